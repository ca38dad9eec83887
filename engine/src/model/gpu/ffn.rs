//! The FFN of a layer.

use super::{elementwise::Elementwise, loader::Loader, product::Product, segment::Segment};
use crate::{
    error::{Error, Result},
    gpu::{Buffer, Purpose, Recorder, pitch},
    model::{Activation, Down, Ffn, FfnWeights, Probe},
};

/// The FFN of one layer, prepared.
#[derive(Debug)]
pub(super) enum FfnOps {
    /// One FFN for every token.
    Dense(DenseOps),
}

impl FfnOps {
    /// `before` is another layer's, whose temporaries are shared where they fit.
    pub fn new(
        loader: &mut Loader<'_, '_>,
        before: Option<&FfnOps>,
        weights: &Ffn,
        from: &Buffer,
        into: (&Buffer, usize),
    ) -> Result<Self> {
        match weights {
            Ffn::Dense(weights) => {
                let (n_ff, gated) = (weights.up.weight.rows(), weights.gate.is_some());
                let hidden = match before {
                    Some(FfnOps::Dense(before)) if before.hidden.fits(n_ff, gated) => before.hidden.clone(),
                    _ => Hidden::new(loader, loader.chunk, n_ff, gated)?,
                };
                Ok(FfnOps::Dense(DenseOps::new(loader, &hidden, weights, from, into)?))
            }
            Ffn::Experts(_) => Err(Error::invalid("FFN on the GPU", "a dense one", "a mixture of experts")),
        }
    }

    /// Records it for the first `tokens` rows.
    pub fn record(&self, segment: &mut Segment, tokens: usize, layer: usize, probe: &mut dyn Probe) -> Result<()> {
        match self {
            FfnOps::Dense(dense) => {
                dense.record_gate_up(segment.recorder(), tokens);
                if probe.wants_ffn_hidden() {
                    dense.hidden.show(segment, tokens, layer, probe)?;
                }
                dense.record_down(segment.recorder(), tokens);
            }
        }
        Ok(())
    }

    /// Multiply-adds of a token.
    pub fn work(&self) -> u64 {
        match self {
            FfnOps::Dense(dense) => dense.work(),
        }
    }
}

/// Number of the form in `activation.wgsl`.
const fn kind(activation: Activation) -> u32 {
    match activation {
        Activation::Relu => 0,
        Activation::ReluSquared => 1,
        Activation::Silu => 2,
        Activation::GeluTanh => 3,
        Activation::GeluErf => 4,
        Activation::DRelu => 5,
    }
}

/// Hidden activations of FFNs of one width; all layers share them.
#[derive(Debug, Clone)]
pub(super) struct Hidden {
    /// `[rows, gate | up]`, or `[rows, up]` without gates.
    pub gate_up: Buffer,
    /// Elements from one row of `gate_up` to the next.
    pub gate_up_pitch: usize,
    /// `[rows, pitch(n_ff)]`, after the activation.
    pub hidden: Buffer,
    activation: Elementwise,
    pub n_ff: usize,
    pub gated: bool,
}

impl Hidden {
    pub fn new(loader: &Loader<'_, '_>, rows: usize, n_ff: usize, gated: bool) -> Result<Self> {
        let gate_up_pitch = Self::gate_up_pitch(n_ff, gated);
        let gate_up = loader.scratch("gate and up", rows * gate_up_pitch)?;
        let hidden = loader.scratch("hidden activations", rows * pitch(n_ff))?;
        let overrides = [("KIND", f64::from(kind(loader.config.activation))), ("GATED", f64::from(u8::from(gated)))];
        let sizes = (n_ff, pitch(n_ff));
        let activation = Elementwise::new(loader.gpu, "activation", &overrides, &[&gate_up, &hidden], sizes)?;
        Ok(Hidden { gate_up, gate_up_pitch, hidden, activation, n_ff, gated })
    }

    pub const fn gate_up_pitch(n_ff: usize, gated: bool) -> usize {
        pitch(n_ff) * if gated { 2 } else { 1 }
    }

    fn fits(&self, n_ff: usize, gated: bool) -> bool {
        (self.n_ff, self.gated) == (n_ff, gated)
    }

    /// Lets `probe` see gate and up.
    fn show(&self, segment: &mut Segment, tokens: usize, layer: usize, probe: &mut dyn Probe) -> Result<()> {
        let (row, n_ff) = (self.gate_up_pitch * 4, self.n_ff);
        let (mut gate, mut up) = (Vec::new(), Vec::new());
        segment.read(&[(&self.gate_up, 0, (tokens * row) as u64)], |read| {
            for row in read.chunks_exact(row) {
                let (first, second) = row.split_at(n_ff * 4);
                let second = if self.gated { &second[..n_ff * 4] } else { first };
                up.extend_from_slice(&bytemuck::pod_collect_to_vec::<u8, f32>(second));
                if self.gated {
                    gate.extend_from_slice(&bytemuck::pod_collect_to_vec::<u8, f32>(first));
                }
            }
        })?;
        probe.ffn_hidden(layer, tokens, &gate, &up);
        Ok(())
    }

    /// Records the activation of the first `rows`.
    pub fn activate(&self, recorder: &mut Recorder, rows: usize) {
        self.activation.record(recorder, rows);
    }
}

/// One FFN for every token.
#[derive(Debug)]
pub(super) struct DenseOps {
    pub hidden: Hidden,
    gate_up: Product,
    down: Product,
}

impl DenseOps {
    pub fn new(
        loader: &mut Loader<'_, '_>,
        hidden: &Hidden,
        weights: &FfnWeights,
        from: &Buffer,
        into: (&Buffer, usize),
    ) -> Result<Self> {
        let what = (Purpose::Ffn, "FFN weights");
        let rows: Vec<_> = weights.gate.iter().chain([&weights.up]).collect();
        let gate_up = Product::new(loader, what, &rows, from, (&hidden.gate_up, hidden.gate_up_pitch))?;
        let down = match &weights.down {
            Down::Outputs(down) => Product::new(loader, what, &[down], &hidden.hidden, into)?,
            Down::Neurons(_) => {
                return Err(Error::invalid("down projection", "rows of outputs", "rows of neurons"));
            }
        };
        Ok(DenseOps { hidden: hidden.clone(), gate_up, down })
    }

    /// Records gate and up.
    pub fn record_gate_up(&self, recorder: &mut Recorder, tokens: usize) {
        self.gate_up.record(recorder, tokens);
    }

    /// Records what follows them.
    pub fn record_down(&self, recorder: &mut Recorder, tokens: usize) {
        self.hidden.activate(recorder, tokens);
        self.down.record(recorder, tokens);
    }

    /// Multiply-adds of a token.
    pub fn work(&self) -> u64 {
        self.gate_up.work + self.down.work
    }
}
