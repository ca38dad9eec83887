//! The FFN of a layer of which some neurons are resident, in extents: the hottest first, each in matrices of its own, so that
//! memory is freed by dropping the last ones. What the others add comes from elsewhere, as one more share of the sum.

use thermocline_shaders::limits::{NO_NEURON, SLOT_GRID};

use super::{
    elementwise::ActivationOp,
    extent::{Extent, NeuronWeights, PER_WORKGROUP, UNIT},
    fired::FiredMask,
    loader::Loader,
    neurons::{PartialSums, Shares, Sum},
    predictor::{MaskBuffers, PredictorOps},
    registers::Registers,
    segment::Segment,
    slab::Piece,
};
use crate::{
    error::{Error, Result},
    gpu::{Buffer, Gpu, Op, Purpose, Recorder, Usage, params},
    model::{Ffn, LayerWeights, Predictor, Probe, Register, mask},
};

/// Most extents of a layer. Each costs a few dispatches per token.
pub(super) const MOST_EXTENTS: usize = 16;
/// As many as hot neurons are put into at once.
const EXTENTS: usize = 4;
/// Invocations of the one workgroup that lists an extent's neurons.
const LIST_WORKGROUP: u32 = 256;

/// What is computed of one token, or of several.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Which {
    /// Every resident neuron.
    All,
    /// Those whose gate's activation is above the layer's cut, as a magnitude.
    Above(f32),
    /// Those in the predictor's mask; one token only.
    Predicted,
}

/// Temporaries; layers of one width share them.
#[derive(Debug, Clone)]
pub(super) struct HotBuffers {
    /// Slots of a layer there is room for.
    pub slots: usize,
    /// `[chunk, gate and up of each slot]`, or `[chunk, slots]` without gates.
    pub gate_up: Buffer,
    /// `[chunk, slots]`
    pub hidden: Buffer,
    pub activation: ActivationOp,
    pub sums: PartialSums,
    /// What `slot_list` writes.
    pub lists: Buffer,
    pub grids: Buffer,
    masks: MaskBuffers,
    /// By slot.
    pub fired: FiredMask,
    neurons: usize,
    gated: bool,
}

impl HotBuffers {
    fn new(loader: &Loader<'_, '_>, weights: NeuronWeights<'_>) -> Result<Self> {
        let (gpu, chunk) = (loader.gpu, loader.chunk);
        let (neurons, gated) = (weights.neurons(), weights.gate.is_some());
        let slots = Self::slots(neurons);
        let gate_up = loader.scratch("gate and up", chunk * slots * weights.rows())?;
        let hidden = loader.scratch("hidden activations", chunk * slots)?;
        let form = (gated, gated);
        let activation = ActivationOp::new(gpu, loader.config.activation, form, (&gate_up, &hidden), slots)?;
        let grid_bytes = (MOST_EXTENTS * SLOT_GRID as usize * 4) as u64;
        let masks = MaskBuffers::new(loader, neurons)?;
        Ok(HotBuffers {
            slots,
            activation,
            sums: PartialSums::new(loader, weights.types().1, weights.down.weight.cols())?,
            lists: loader.scratch("lists of hot neurons", slots + MOST_EXTENTS * UNIT)?,
            grids: gpu.arena().buffer(Purpose::Scratch, "grids of hot neurons", grid_bytes, Usage::Indirect)?,
            masks,
            fired: FiredMask::new(loader, &hidden, chunk, slots)?,
            gate_up,
            hidden,
            neurons,
            gated,
        })
    }

    /// Slots for `neurons`.
    pub const fn slots(neurons: usize) -> usize {
        neurons.next_multiple_of(UNIT)
    }

    fn fits(&self, weights: NeuronWeights<'_>) -> bool {
        (self.neurons, self.gated) == (weights.neurons(), weights.gate.is_some())
            && self.sums.fits(weights.types().1, weights.down.weight.cols())
    }
}

/// The hot part of one layer's FFN, prepared.
#[derive(Debug)]
pub(super) struct HotOps {
    gpu: Gpu,
    pub buffers: HotBuffers,
    /// Hottest first. All but the last are full.
    pub extents: Vec<Extent>,
    /// Bit `i % 32` of word `i / 32`: whether neuron `i` is resident; and how many are.
    pub resident: Vec<u32>,
    held: usize,
    /// What `slot_list` reads: where extents begin and end, and the neuron of every slot.
    table: Buffer,
    list: Op,
    pub sum: Sum,
    pub predictor: Option<PredictorOps>,
    /// What computes neurons that pass through the slab.
    pub piece: Option<Piece>,
    /// Of the layer.
    cut: Option<f32>,
    pub from: Buffer,
    neurons: usize,
    d_model: usize,
    rows: usize,
    /// Silent neurons are zero exactly, and many.
    sparse: bool,
}

impl HotOps {
    /// Whether neurons of `ffn` can be placed one by one.
    pub fn can_hold(ffn: &Ffn) -> bool {
        matches!(ffn, Ffn::Dense(ffn) if NeuronWeights::of(ffn).is_some())
    }

    /// `before` is another layer's. `neurons` are the resident ones, hottest first, in `most` extents or as few as possible.
    pub fn new(
        loader: &mut Loader<'_, '_>,
        before: Option<&HotOps>,
        weights: &LayerWeights,
        neurons: &[u32],
        several: bool,
        (registers, from): (&Registers, Register),
    ) -> Result<Self> {
        let rows_of = neuron_weights(&weights.ffn)?;
        let gpu = loader.gpu;
        let buffers = match before.filter(|before| before.buffers.fits(rows_of)) {
            Some(before) => before.buffers.clone(),
            None => HotBuffers::new(loader, rows_of)?,
        };
        let words = 2 * MOST_EXTENTS + buffers.slots;
        let table = gpu.arena().buffer(Purpose::Ffn, "places of hot neurons", words as u64 * 4, Usage::Storage)?;
        let extents = ("EXTENTS", MOST_EXTENTS as f64);
        let pipeline = gpu.pipelines().get("slot_list", None, LIST_WORKGROUP, &[extents])?;
        let bindings = [&buffers.masks.mask, &table, &buffers.lists, &buffers.grids, &buffers.hidden];
        let list = Op::new(gpu, &pipeline, &bindings.map(Into::into))?;
        let bias = rows_of.down.bias.as_ref().map(|bias| loader.vector("a bias", bias)).transpose()?;
        let d_model = rows_of.down.weight.cols();
        let sum = Sum::new(gpu, &buffers.sums, bias.as_ref(), registers.get(Register::Out), d_model)?;
        let mut ops = HotOps {
            gpu: gpu.clone(),
            buffers,
            extents: Vec::new(),
            resident: vec![0; mask::words(rows_of.neurons())],
            held: 0,
            table,
            list,
            sum,
            predictor: None,
            piece: None,
            cut: weights.cut,
            from: registers.get(from).clone(),
            neurons: rows_of.neurons(),
            d_model,
            rows: rows_of.rows(),
            sparse: loader.config.activation.is_sparse(),
        };
        if let Some(predictor) = weights.predictor.as_ref().filter(|_| loader.predictors) {
            ops.add_predictor(loader, predictor, (registers, from))?;
        }
        ops.append(loader, rows_of, neurons, if several { EXTENTS } else { 1 })?;
        Ok(ops)
    }

    /// Brings the predictor up, which looks at the residual stream or at the FFN's input.
    pub fn add_predictor(
        &mut self,
        loader: &mut Loader<'_, '_>,
        predictor: &Predictor,
        (registers, from): (&Registers, Register),
    ) -> Result<()> {
        let sees = (registers.get(Register::Residual), registers.get(from));
        self.predictor = Some(PredictorOps::new(loader, &self.buffers.masks, predictor, self.neurons, sees)?);
        Ok(())
    }

    /// Uploads `neurons` as further extents, the first half of them, a quarter, and so on.
    pub fn append(
        &mut self,
        loader: &mut Loader<'_, '_>,
        weights: NeuronWeights<'_>,
        neurons: &[u32],
        extents: usize,
    ) -> Result<()> {
        let done = self.extend(loader, weights, neurons, extents);
        done.and(self.write_table(loader))
    }

    fn extend(
        &mut self,
        loader: &mut Loader<'_, '_>,
        weights: NeuronWeights<'_>,
        neurons: &[u32],
        extents: usize,
    ) -> Result<()> {
        let most = weights.most_slots(loader);
        let (mut left, mut made) = (neurons, 0);
        while !left.is_empty() {
            let start = self.slots();
            made += 1;
            let half = if made < extents { (left.len() / 2).next_multiple_of(UNIT) } else { left.len() };
            let (now, later) = left.split_at(half.clamp(1, left.len()).min(most));
            if self.extents.len() == MOST_EXTENTS || start + now.len().next_multiple_of(UNIT) > self.buffers.slots {
                let wanted = (self.extents.len() + 1) as u64;
                return Err(Error::Memory { what: "extents of a layer", wanted, available: MOST_EXTENTS as u64 });
            }
            let at = (self.extents.len(), start);
            self.extents.push(Extent::new(loader, &self.buffers, weights, now, at, &self.from)?);
            left = later;
        }
        Ok(())
    }

    /// Notes where the neurons are, here and on the device.
    pub fn write_table(&mut self, loader: &mut Loader<'_, '_>) -> Result<()> {
        self.count();
        let mut table = vec![0; 2 * MOST_EXTENTS];
        for (places, extent) in table.chunks_exact_mut(2).zip(&self.extents) {
            places.copy_from_slice(&[extent.start as u32, extent.slots() as u32]);
        }
        table.extend(self.extents.iter().flat_map(|extent| &extent.neurons));
        loader.uploader.bytes(&self.table, 0, bytemuck::cast_slice(&table))
    }

    /// Notes which neurons are resident.
    pub fn count(&mut self) {
        self.resident.fill(0);
        self.held = 0;
        for neuron in self.extents.iter().flat_map(|extent| &extent.neurons).filter(|neuron| **neuron != NO_NEURON) {
            mask::insert(&mut self.resident, *neuron as usize);
            self.held += 1;
        }
    }

    /// Slots of all extents.
    pub fn slots(&self) -> usize {
        self.extents.last().map_or(0, |last| last.start + last.slots())
    }

    /// Neurons that are resident, by slot.
    pub fn by_slot(&self) -> impl Iterator<Item = (usize, u32)> {
        let slots = self.extents.iter().flat_map(|extent| &extent.neurons).copied().enumerate();
        slots.filter(|(_, neuron)| *neuron != NO_NEURON)
    }

    /// Whether every neuron is.
    pub fn is_whole(&self) -> bool {
        self.held == self.neurons
    }

    /// Neurons of the layer, resident or not.
    pub fn neurons(&self) -> usize {
        self.neurons
    }

    /// The cut of layers with gates.
    pub fn cut(&self) -> Option<f32> {
        self.cut.filter(|_| self.rows == 2)
    }

    /// Whether silent neurons are zero exactly.
    pub fn is_sparse(&self) -> bool {
        self.sparse
    }

    /// The predictor's mask, `[n_ff.div_ceil(32)]`.
    pub fn mask(&self) -> &Buffer {
        &self.buffers.masks.mask
    }

    /// Records the resident neurons' shares of the sum for the first `tokens` rows. `before` may look at gate and up in
    /// between.
    pub fn record(
        &self,
        segment: &mut Segment,
        tokens: usize,
        which: Which,
        before: impl FnOnce(&mut Segment) -> Result<()>,
    ) -> Result<Shares> {
        let slots = self.slots();
        let mut shares = Shares::new(tokens, slots);
        if slots == 0 {
            return Ok(shares);
        }
        let recorder = segment.recorder();
        if which == Which::Predicted {
            let stride = self.gpu.caps().max_groups;
            let params = params::SlotList { per_workgroup: PER_WORKGROUP, stride };
            recorder.dispatch(&self.list, &params, [self.extents.len() as u32, 1, 1]);
            self.extents.iter().for_each(|extent| extent.record_listed(recorder, &self.buffers, stride));
        } else {
            self.extents.iter().for_each(|extent| extent.record_all(recorder, tokens));
            before(segment)?;
            let cut = if let Which::Above(cut) = which { Some(cut) } else { None };
            self.buffers.activation.record(segment.recorder(), tokens, slots, cut);
        }
        let (recorder, skip) = (segment.recorder(), self.sparse || which != Which::All);
        for extent in &self.extents {
            extent.record_down(recorder, &self.buffers, skip, &mut shares);
        }
        Ok(shares)
    }

    /// Records, behind the sums, which neurons of a layer with a cut count as fired though all were computed: those above it.
    pub fn record_cut(&self, recorder: &mut Recorder, tokens: usize, which: Which) {
        if let (Some(cut), Which::All, false) = (self.cut(), which, self.sparse || self.extents.is_empty()) {
            self.buffers.activation.record(recorder, tokens, self.slots(), Some(cut));
        }
    }

    /// Records which resident neurons fired, slot by slot; returns where that will be, and its length in bytes.
    pub fn record_fired(&self, recorder: &mut Recorder, tokens: usize) -> (&Buffer, u64) {
        self.buffers.fired.record(recorder, tokens, self.slots())
    }

    /// Sets in `fired`, `[tokens, n_ff.div_ceil(32)]`, what `slots`, `[tokens, slots / 32]`, says of resident neurons.
    pub fn spread(&self, slots: &[u32], fired: &mut [u32]) {
        let (from, to) = (self.slots() / 32, mask::words(self.neurons));
        if from == 0 {
            return;
        }
        for (slots, fired) in slots.chunks_exact(from).zip(fired.chunks_exact_mut(to)) {
            for (slot, neuron) in self.by_slot() {
                fired[neuron as usize / 32] |= (slots[slot / 32] >> (slot % 32) & 1) << (neuron % 32);
            }
        }
    }

    /// Lets `probe` see gate and up of a layer that is whole.
    pub fn show(&self, segment: &mut Segment, tokens: usize, layer: usize, probe: &mut dyn Probe) -> Result<()> {
        let row = self.buffers.slots * self.rows;
        let n = tokens * self.neurons;
        let (mut gate, mut up) = (vec![0.0; if self.rows == 2 { n } else { 0 }], vec![0.0; n]);
        segment.read(&[(&self.buffers.gate_up, 0, (tokens * row * 4) as u64)], |read| {
            let read: Vec<f32> = bytemuck::pod_collect_to_vec(read);
            for (token, read) in read.chunks_exact(row).enumerate() {
                for (slot, neuron) in self.by_slot() {
                    let to = token * self.neurons + neuron as usize;
                    up[to] = read[slot * self.rows + self.rows - 1];
                    if let Some(gate) = gate.get_mut(to) {
                        *gate = read[slot * 2];
                    }
                }
            }
        })?;
        probe.ffn_hidden(layer, tokens, &gate, &up);
        Ok(())
    }

    /// Multiply-adds of a token, with every resident neuron.
    pub fn work(&self) -> u64 {
        (self.slots() * (self.rows + 1) * self.d_model) as u64
    }
}

/// The neurons of an FFN that [`HotOps::can_hold`].
pub(super) fn neuron_weights(ffn: &Ffn) -> Result<NeuronWeights<'_>> {
    let weights = match ffn {
        Ffn::Dense(ffn) => NeuronWeights::of(ffn),
        Ffn::Experts(_) => None,
    };
    weights.ok_or_else(|| Error::Unsupported {
        what: "a part of an FFN on the GPU",
        got: "a mixture, or a matrix with a row per output".to_owned(),
        supported: "a down projection with a row per neuron, gate and up of one type".to_owned(),
    })
}
