//! The FFN of a layer.

use super::{
    elementwise::ActivationOp,
    experts::ExpertOps,
    fired::FiredMask,
    firing::{Entry, FiringLog},
    hot::HotOps,
    loader::{FfnShare, Loader},
    neurons::NeuronsDown,
    product::Product,
    registers::Registers,
    segment::Segment,
};
use crate::{
    error::{Error, Result},
    gpu::{Buffer, Purpose, Recorder, pitch},
    model::{Down, Ffn, FfnWeights, LayerWeights, Probe, Register, Sparsity, mask},
};

/// The FFN of one layer, prepared.
#[derive(Debug)]
pub(super) enum FfnOps {
    /// One FFN for every token, in the file's order.
    Dense(Box<DenseOps>),
    /// A mixture, with as many of its experts as are hot.
    Experts(Box<ExpertOps>),
    /// As many neurons of an FFN as are hot.
    Hot(Box<HotOps>),
    /// None of it: somebody else computes the FFN.
    Away,
}

impl FfnOps {
    /// `before` are other layers', whose temporaries are shared where they fit.
    pub fn new(
        loader: &mut Loader<'_, '_>,
        before: &[&FfnOps],
        weights: &LayerWeights,
        share: FfnShare<'_>,
        (registers, from): (&Registers, Register),
        into: (&Buffer, usize),
    ) -> Result<Self> {
        let dense = before.iter().rev().find_map(|ffn| match ffn {
            FfnOps::Dense(ffn) => Some(&**ffn),
            _ => None,
        });
        let experts = before.iter().rev().find_map(|ffn| match ffn {
            FfnOps::Experts(ffn) => Some(&**ffn),
            _ => None,
        });
        let hot = before.iter().rev().find_map(|ffn| ffn.hot());
        match (&weights.ffn, share) {
            (ffn, FfnShare::None) if !HotOps::can_hold(ffn) && !ExpertOps::can_hold(ffn) => Ok(FfnOps::Away),
            (Ffn::Dense(ffn), share) if HotOps::can_hold(&weights.ffn) => {
                let (several, neurons) = match share {
                    FfnShare::All => (false, (0..ffn.up.weight.rows() as u32).collect()),
                    FfnShare::Hot(neurons) => (true, neurons.to_vec()),
                    FfnShare::None => (false, Vec::new()),
                };
                let ops = HotOps::new(loader, hot, weights, &neurons, several, (registers, from))?;
                Ok(FfnOps::Hot(Box::new(ops)))
            }
            (Ffn::Dense(_), FfnShare::Hot(neurons)) => Err(Error::Unsupported {
                what: "a part of an FFN on the GPU",
                got: format!("{} neurons of a matrix with a row per output", neurons.len()),
                supported: "a down projection with a row per neuron, gate and up of one type".to_owned(),
            }),
            (Ffn::Dense(ffn), _) => {
                let (n_ff, gated) = (ffn.up.weight.rows(), ffn.gate.is_some());
                let hidden = match dense.filter(|before| before.hidden.fits(n_ff, gated)) {
                    Some(before) => before.hidden.clone(),
                    None => Hidden::new(loader, loader.chunk, n_ff, gated)?,
                };
                let ops = DenseOps::new(loader, dense, &hidden, ffn, registers.get(from), into)?;
                Ok(FfnOps::Dense(Box::new(ops.of_layer(loader, weights.cut))))
            }
            (Ffn::Experts(ffn), share) => {
                let of = (ffn, weights.cut);
                let hot: Vec<u32> = match share {
                    FfnShare::All => (0..ffn.experts.len() as u32).collect(),
                    FfnShare::Hot(experts) => experts.to_vec(),
                    FfnShare::None => Vec::new(),
                };
                let experts = ExpertOps::new(loader, experts, of, &hot, registers.get(from), into)?;
                Ok(FfnOps::Experts(Box::new(experts)))
            }
        }
    }

    /// Records a whole FFN for the first `tokens` rows, in a mode. What fires goes to `log`, if `probe` wants that.
    pub fn record(
        &self,
        segment: &mut Segment,
        (tokens, sparsity): (usize, Sparsity),
        layer: usize,
        probe: &mut dyn Probe,
        log: &mut FiringLog,
    ) -> Result<()> {
        match self {
            FfnOps::Dense(dense) => {
                dense.record_gate_up(segment.recorder(), tokens);
                if probe.wants_ffn_hidden() {
                    dense.hidden.show(segment, tokens, layer, probe)?;
                }
                dense.record_down(segment.recorder(), tokens, None);
                if probe.wants_firing() {
                    let fired = dense.hidden.record_fired(segment.recorder(), tokens, dense.cut);
                    let entry = Entry { complete: true, ..Entry::new(layer, tokens) };
                    log.push(segment, fired, None, entry)?;
                }
                Ok(())
            }
            FfnOps::Experts(experts) => {
                let cut = experts.cut(sparsity, tokens);
                experts.record(segment, (tokens, cut), layer, probe, log)
            }
            FfnOps::Hot(_) | FfnOps::Away => {
                Err(Error::invalid("FFN on the GPU", "all of it", format!("a part of layer {layer}'s")))
            }
        }
    }

    /// The hot part, if neurons are placed one by one.
    pub fn hot(&self) -> Option<&HotOps> {
        match self {
            FfnOps::Hot(hot) => Some(hot),
            _ => None,
        }
    }

    /// The mixture, if it is here.
    pub fn experts(&self) -> Option<&ExpertOps> {
        match self {
            FfnOps::Experts(experts) => Some(experts),
            _ => None,
        }
    }

    /// Words it tells of a token's firings.
    pub fn logged(&self) -> usize {
        match self {
            FfnOps::Hot(hot) => hot.buffers.slots / 32 + mask::words(hot.neurons()),
            FfnOps::Experts(experts) => experts.logged(),
            FfnOps::Dense(dense) => mask::words(dense.hidden.n_ff),
            FfnOps::Away => 0,
        }
    }

    /// A mask of its neurons that are resident; `None` where none can be.
    pub fn resident(&self) -> Option<&[u32]> {
        match self {
            FfnOps::Hot(hot) => Some(&hot.resident),
            FfnOps::Experts(experts) => Some(experts.resident()),
            FfnOps::Dense(dense) => Some(&dense.resident),
            FfnOps::Away => None,
        }
    }

    /// Whether nobody else is needed.
    pub fn is_whole(&self) -> bool {
        match self {
            FfnOps::Dense(_) => true,
            FfnOps::Experts(experts) => experts.is_whole(),
            FfnOps::Hot(hot) => hot.is_whole(),
            FfnOps::Away => false,
        }
    }

    /// Multiply-adds of a token.
    pub fn work(&self) -> u64 {
        match self {
            FfnOps::Dense(dense) => dense.work(),
            FfnOps::Experts(experts) => experts.work(),
            FfnOps::Hot(hot) => hot.work(),
            FfnOps::Away => 0,
        }
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
    activation: ActivationOp,
    fired: FiredMask,
    pub n_ff: usize,
    pub gated: bool,
}

impl Hidden {
    pub fn new(loader: &Loader<'_, '_>, rows: usize, n_ff: usize, gated: bool) -> Result<Self> {
        let gate_up_pitch = Self::gate_up_pitch(n_ff, gated);
        let gate_up = loader.scratch("gate and up", rows * gate_up_pitch)?;
        let hidden = loader.scratch("hidden activations", rows * pitch(n_ff))?;
        let buffers = (&gate_up, &hidden);
        let activation = ActivationOp::new(loader.gpu, loader.config.activation, (gated, false), buffers, pitch(n_ff))?;
        let fired = FiredMask::new(loader, &hidden, rows, pitch(n_ff))?;
        Ok(Hidden { gate_up, gate_up_pitch, hidden, activation, fired, n_ff, gated })
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

    /// Records the activation of the first `rows`; neurons up to `cut` become silent.
    pub fn activate(&self, recorder: &mut Recorder, rows: usize, cut: Option<f32>) {
        self.activation.record(recorder, rows, self.n_ff, cut);
    }

    /// Records, behind all that needs the activations, which neurons of the first `rows` count as fired: those above `cut`, if
    /// there is one. Returns where that will be, `[rows, n_ff.div_ceil(32)]`, and its length in bytes.
    pub fn record_fired(&self, recorder: &mut Recorder, rows: usize, cut: Option<f32>) -> (&Buffer, u64) {
        if cut.is_some() {
            self.activation.record(recorder, rows, self.n_ff, cut);
        }
        self.fired.record(recorder, rows, self.n_ff)
    }
}

/// One FFN for every token.
#[derive(Debug)]
pub(super) struct DenseOps {
    pub hidden: Hidden,
    gate_up: Product,
    down: DownOps,
    /// A mask of all neurons, where it is a layer's FFN.
    resident: Vec<u32>,
    /// Above which a neuron counts as fired, where silent ones are not zero exactly.
    cut: Option<f32>,
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
                    Some(DenseOps { down: DownOps::Neurons(before), .. }) => Some(before),
                    _ => None,
                };
                DownOps::Neurons(NeuronsDown::new(loader, before, down, &hidden.hidden, into.0)?)
            }
        };
        Ok(DenseOps { hidden: hidden.clone(), gate_up, down, resident: Vec::new(), cut: None })
    }

    /// The same as the FFN of a layer with this cut, of which observers are told.
    fn of_layer(mut self, loader: &Loader<'_, '_>, cut: Option<f32>) -> Self {
        self.resident.resize(mask::words(self.hidden.n_ff), 0);
        mask::fill(&mut self.resident, self.hidden.n_ff, |_| true);
        self.cut = cut.filter(|_| self.hidden.gated && !loader.config.activation.is_sparse());
        self
    }

    /// Records gate and up.
    pub fn record_gate_up(&self, recorder: &mut Recorder, tokens: usize) {
        self.gate_up.record(recorder, tokens);
    }

    /// Records what follows them; neurons up to `cut` become silent.
    pub fn record_down(&self, recorder: &mut Recorder, tokens: usize, cut: Option<f32>) {
        self.hidden.activate(recorder, tokens, cut);
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
