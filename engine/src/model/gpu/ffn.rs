//! The FFN of a layer.

use super::{
    elementwise::Elementwise, experts::ExpertOps, loader::Loader, neurons::NeuronsDown, product::Product,
    segment::Segment,
};
use crate::{
    error::Result,
    gpu::{Buffer, Purpose, Recorder, pitch},
    model::{Activation, Down, Ffn, FfnWeights, Probe},
};

/// The FFN of one layer, prepared.
#[derive(Debug)]
pub(super) enum FfnOps {
    /// One FFN for every token.
    Dense(Box<DenseOps>),
    /// A mixture.
    Experts(Box<ExpertOps>),
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
                let before = match before {
                    Some(FfnOps::Dense(before)) => Some(&**before),
                    _ => None,
                };
                let hidden = match before.filter(|before| before.hidden.fits(n_ff, gated)) {
                    Some(before) => before.hidden.clone(),
                    None => Hidden::new(loader, loader.chunk, n_ff, gated)?,
                };
                let dense = DenseOps::new(loader, before, &hidden, weights, from, into)?;
                Ok(FfnOps::Dense(Box::new(dense)))
            }
            Ffn::Experts(weights) => {
                let before = match before {
                    Some(FfnOps::Experts(before)) => Some(&**before),
                    _ => None,
                };
                let experts = ExpertOps::new(loader, before, weights, from, into)?;
                Ok(FfnOps::Experts(Box::new(experts)))
            }
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
                Ok(())
            }
            FfnOps::Experts(experts) => experts.record(segment, tokens, layer, probe),
        }
    }

    /// Multiply-adds of a token.
    pub fn work(&self) -> u64 {
        match self {
            FfnOps::Dense(dense) => dense.work(),
            FfnOps::Experts(experts) => experts.work(),
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
    down: DownOps,
}

/// The down projection in the file's orientation.
#[derive(Debug)]
enum DownOps {
    Outputs(Product),
    Neurons(NeuronsDown),
}

impl DenseOps {
    pub fn new(
        loader: &mut Loader<'_, '_>,
        before: Option<&DenseOps>,
        hidden: &Hidden,
        weights: &FfnWeights,
        from: &Buffer,
        into: (&Buffer, usize),
    ) -> Result<Self> {
        let what = (Purpose::Ffn, "FFN weights");
        let rows: Vec<_> = weights.gate.iter().chain([&weights.up]).collect();
        let gate_up = Product::new(loader, what, &rows, from, (&hidden.gate_up, hidden.gate_up_pitch))?;
        let down = match &weights.down {
            Down::Outputs(down) => DownOps::Outputs(Product::new(loader, what, &[down], &hidden.hidden, into)?),
            Down::Neurons(down) => {
                let before = match before {
                    Some(DenseOps { down: DownOps::Neurons(before), .. }) => Some(&before.sums),
                    _ => None,
                };
                DownOps::Neurons(NeuronsDown::new(loader, before, down, &hidden.hidden, into)?)
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
        match &self.down {
            DownOps::Outputs(down) => down.record(recorder, tokens),
            DownOps::Neurons(down) => down.record(recorder, tokens),
        }
    }

    /// Multiply-adds of a token.
    pub fn work(&self) -> u64 {
        let (DownOps::Outputs(Product { work, .. }) | DownOps::Neurons(NeuronsDown { work, .. })) = &self.down;
        self.gate_up.work + work
    }
}
