//! The resident neurons of a layer's FFN. The CPU's output for the cold neurons is added as one
//! more partial sum.

use std::collections::HashSet;

use thermocline_shaders::limits::NO_NEURON;

use super::{
    GpuLoader, Segment,
    fired::DeviceMask,
    neuron_block::NeuronBlock,
    neuron_buffers::NeuronBuffers,
    neuron_rows::Sum,
    neuron_weights::{NeuronWeights, SLOT_MULTIPLE},
    predictor::PredictorOps,
    registers::Registers,
    slot_table::{MOST_BLOCKS, SlotTable},
    streamed_neurons::StreamedNeurons,
};
use crate::runtime::{Pass, Probe};
use thermocline_base::error::Result;
use thermocline_gpu::{Binding, Buffer, Gpu, Op, Purpose, Usage};
use thermocline_model::{LayerWeights, Predictor, Register, SkipRule, Skips, mask};

/// Invocations of the single workgroup that lists a block's neurons.
const LIST_WORKGROUP: u32 = 1024;

/// The resident neurons of one layer's FFN, prepared.
#[derive(Debug)]
pub(crate) struct ResidentNeurons {
    pub(super) gpu: Gpu,
    pub buffers: NeuronBuffers,
    /// The neurons by slot, and the weights of every block of slots.
    pub slots: SlotTable,
    pub(super) blocks: Vec<NeuronBlock>,
    /// Input of `slot_list`: [`SlotTable::unit_words`].
    table: Buffer,
    /// Scales of the gates by slot, `[slots]`, if the layer has scales.
    scales: Option<Buffer>,
    pub(super) list: Op,
    pub sum: Sum,
    pub predictor: Option<PredictorOps>,
    /// Computes the cold neurons that pass through the streaming buffer, if there is a buffer.
    pub streamed: Option<StreamedNeurons>,
    /// Rule for the neurons that may be skipped. The predictor is separate, because it can be
    /// loaded and freed.
    pub(super) rule: SkipRule,
    /// Input, `[chunk, pitch(d_model)]`.
    pub from: Buffer,
    d_model: usize,
    rows: usize,
}

/// The part of a layer's FFN that is uploaded first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeuronUpload<'a> {
    /// Hottest first.
    pub neurons: &'a [u32],
    /// True for several blocks, so that some can be dropped; false for as few blocks as possible.
    pub several: bool,
    /// True if the layer's predictor is uploaded too.
    pub with_predictor: bool,
}

impl ResidentNeurons {
    /// Uploads neurons of a layer, which read the register `from`. Buffers are shared with the
    /// layers in `before` if they fit.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        before: Option<&ResidentNeurons>,
        weights: &LayerWeights,
        upload: NeuronUpload<'_>,
        registers: &Registers,
        from: Register,
    ) -> Result<Self> {
        let NeuronUpload { neurons, several, with_predictor } = upload;
        let rows_of = NeuronWeights::of_ffn(&weights.ffn)?;
        let gpu = loader.gpu;
        let mut buffers = match before.filter(|before| before.buffers.fits(rows_of)) {
            Some(before) => before.buffers.clone(),
            None => NeuronBuffers::new(loader, rows_of)?,
        };
        let words = 2 * MOST_BLOCKS + buffers.slots;
        let table = gpu.arena().buffer(Purpose::Ffn, "slots of resident neurons", words as u64 * 4, Usage::Storage)?;
        let scales = rows_of.gate_scales.map(|_| {
            let bytes = buffers.slots as u64 * 4;
            gpu.arena().buffer(Purpose::Ffn, "scales of gates", bytes, Usage::Storage)
        });
        let scales = scales.transpose()?;
        buffers.activation = buffers.activation.scaled_by(scales.as_ref().map(Binding::from))?;
        let blocks = ("BLOCKS", MOST_BLOCKS as f64);
        let of = [&buffers.masks.mask, &table, &buffers.lists, &buffers.grids, &buffers.hidden];
        let list = Op::of(gpu, "slot_list", LIST_WORKGROUP, &[blocks], &of)?;
        let bias = rows_of.down.bias.as_ref().map(|bias| loader.vector("a bias", bias)).transpose()?;
        let d_model = rows_of.down.weight.cols();
        let sum = Sum::new(gpu, &buffers.sums, bias.as_ref(), registers.get(Register::Out), d_model)?;
        let mut ops = ResidentNeurons {
            gpu: gpu.clone(),
            buffers,
            slots: SlotTable::new(rows_of.neurons(), SLOT_MULTIPLE),
            blocks: Vec::new(),
            table,
            scales,
            list,
            sum,
            predictor: None,
            streamed: None,
            rule: loader.skip_rule(weights),
            from: registers.get(from).clone(),
            d_model,
            rows: rows_of.rows(),
        };
        if let Some(predictor) = weights.predictor.as_ref().filter(|_| with_predictor) {
            ops.add_predictor(loader, predictor, registers, from)?;
        }
        ops.append(loader, rows_of, neurons, several)?;
        Ok(ops)
    }

    /// Uploads the predictor, which reads the residual stream or the FFN's input.
    pub fn add_predictor(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        predictor: &Predictor,
        registers: &Registers,
        from: Register,
    ) -> Result<()> {
        let (residual, from) = (registers.get(Register::Residual), registers.get(from));
        let masks = &self.buffers.masks;
        self.predictor = Some(PredictorOps::new(loader, masks, predictor, self.neurons(), residual, from)?);
        Ok(())
    }

    /// Uploads `neurons` as further blocks (several, or as few as possible) and the table of slots.
    pub(super) fn append(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        weights: NeuronWeights<'_>,
        neurons: &[u32],
        several: bool,
    ) -> Result<()> {
        let done = self.append_blocks(loader, weights, neurons, several);
        done.and(self.write_table(loader, weights))
    }

    fn append_blocks(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        weights: NeuronWeights<'_>,
        neurons: &[u32],
        several: bool,
    ) -> Result<()> {
        let most = weights.most_slots(loader);
        let mut left = neurons;
        while !left.is_empty() {
            let now = if several { self.slots.units_of_next(left.len()) } else { left.len() };
            let (now, later) = left.split_at(now.min(most));
            let block = self.slots.next_block(now, 0)?;
            self.blocks.push(NeuronBlock::new(
                loader,
                &self.buffers,
                weights,
                &block,
                &self.from,
                self.scales.as_ref(),
            )?);
            self.slots.push(block);
            left = later;
        }
        Ok(())
    }

    /// Uploads the table of slots, and the scales of their gates.
    fn write_table(&self, loader: &mut GpuLoader<'_, '_>, weights: NeuronWeights<'_>) -> Result<()> {
        if let (Some(buffer), Some(scales)) = (&self.scales, weights.scales(self.slots.units())) {
            loader.uploader.bytes(buffer, 0, bytemuck::cast_slice(&scales))?;
        }
        loader.uploader.bytes(&self.table, 0, bytemuck::cast_slice(&self.slots.unit_words()))
    }

    /// Neurons of the layer, resident or not.
    pub fn neurons(&self) -> usize {
        self.slots.of_layer
    }

    /// The neurons that a pass may skip. `shows`: an observer sees hidden values.
    pub(super) fn skips(&self, pass: &Pass<'_>, shows: bool) -> Skips {
        SkipRule { has_predictor: self.predictor.is_some(), ..self.rule }.skips(pass.sparsity, pass.is_single(), shows)
    }

    /// True if the predictor is needed for a pass.
    pub fn predicts(&self, pass: &Pass<'_>) -> bool {
        self.skips(pass, false) == Skips::NotPredicted
    }

    /// Activation threshold above which a neuron counts as fired even if all neurons were computed.
    pub fn fires_above(&self) -> Option<f32> {
        self.rule.fires_above()
    }

    /// The predictor's mask, `[n_ff.div_ceil(32)]`.
    pub fn predicted_mask(&self) -> DeviceMask<'_> {
        DeviceMask { buffer: &self.buffers.masks.mask, bytes: mask::words(self.neurons()) as u64 * 4 }
    }

    /// Adds to `fired`, `[tokens, n_ff.div_ceil(32)]`, the neurons whose slots are in `slots`,
    /// `[tokens, slots / 32]`.
    pub fn add_fired(&self, slots: &[u32], fired: &mut [u32]) {
        let (from, to) = (self.slots.len() / 32, mask::words(self.neurons()));
        if from == 0 {
            return;
        }
        for (slots, fired) in slots.chunks_exact(from).zip(fired.chunks_exact_mut(to)) {
            for (slot, neuron) in self.slots.by_slot() {
                fired[neuron as usize / 32] |= (slots[slot / 32] >> (slot % 32) & 1) << (neuron % 32);
            }
        }
    }

    /// Puts the strengths of the neurons, `[slots]`, into `strength`, `[n_ff]`.
    pub fn add_strengths(&self, slots: &[f32], strength: &mut [f32]) {
        for (slot, neuron) in self.slots.by_slot() {
            if let (Some(from), Some(to)) = (slots.get(slot), strength.get_mut(neuron as usize)) {
                *to = *from;
            }
        }
    }

    /// Reads gate and up values of a layer whose neurons are all resident back for `probe`.
    pub fn show(&self, segment: &mut Segment, tokens: usize, layer: usize, probe: &mut dyn Probe) -> Result<()> {
        let row = self.buffers.slots * self.rows;
        let (neurons, n) = (self.neurons(), tokens * self.neurons());
        let (mut gate, mut up) = (vec![0.0; if self.rows == 2 { n } else { 0 }], vec![0.0; n]);
        segment.read(&[(&self.buffers.gate_up, 0, (tokens * row * 4) as u64)], |read| {
            let read: Vec<f32> = bytemuck::pod_collect_to_vec(read);
            for (token, read) in read.chunks_exact(row).enumerate() {
                for (slot, neuron) in self.slots.by_slot() {
                    let to = token * neurons + neuron as usize;
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

    /// Multiply-adds per token with all resident neurons.
    pub fn work(&self) -> u64 {
        self.work_of(self.slots.len())
    }

    /// Multiply-adds per token with `neurons` of the layer's neurons.
    pub fn work_of(&self, neurons: usize) -> u64 {
        (neurons * (self.rows + 1) * self.d_model) as u64
    }

    /// Drops blocks from the end until at most `slots` slots are left. The device's table is
    /// updated with the next upload. Until then no dispatch reads the dropped slots.
    pub fn drop_to(&mut self, slots: usize) {
        self.slots.drop_to(slots);
        self.blocks.truncate(self.slots.blocks());
    }

    /// Uploads `wanted` into empty slots and slots of `unwanted` neurons, then into new blocks.
    /// Returns how many were uploaded.
    pub fn bring(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        weights: NeuronWeights<'_>,
        wanted: &[u32],
        unwanted: &HashSet<u32>,
    ) -> Result<usize> {
        let free = |neuron| neuron == NO_NEURON || unwanted.contains(&neuron);
        let free: Vec<usize> = self.slots.slots_of(free).take(wanted.len()).collect();
        let (replacing, more) = wanted.split_at(free.len());
        let mut slots = free.into_iter().zip(replacing);
        let mut done = slots.try_for_each(|(slot, neuron)| self.replace(loader, weights, slot, *neuron));
        if done.is_ok() && !more.is_empty() {
            // If there are many blocks, the later ones are merged with the new neurons.
            let mut neurons = self.slots.drop_small();
            self.blocks.truncate(self.slots.blocks());
            neurons.extend(more);
            done = self.append(loader, weights, &neurons, false);
        } else {
            done = done.and(self.write_table(loader, weights));
        }
        done.map(|()| wanted.len())
    }

    /// Uploads `neuron` into `slot`, replacing its neuron.
    fn replace(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        weights: NeuronWeights<'_>,
        slot: usize,
        neuron: u32,
    ) -> Result<()> {
        if let Some((block, at)) = self.slots.block_of(slot) {
            self.blocks[block].replace(loader, weights, at, neuron)?;
            self.slots.put(slot, neuron);
        }
        Ok(())
    }
}
