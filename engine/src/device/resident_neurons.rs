//! The resident neurons of a layer's FFN, in blocks: the hottest first, each block in matrices of its own, so that memory is freed by
//! dropping the last ones. The cold neurons' output comes from the CPU, as one more partial sum.

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
    streaming_buffer::StreamedNeurons,
};
use crate::{
    error::{Error, Result},
    gpu::{Buffer, Gpu, Op, Purpose, Usage},
    model::{LayerWeights, Predictor, Register, SkipRule, Skips, mask},
    runtime::{Pass, Probe},
};

/// Most blocks of a layer. Each costs a few dispatches per token.
pub(crate) const MOST_BLOCKS: usize = 16;
/// Blocks that the hot neurons of a load are put into.
const BLOCKS_OF_LOAD: usize = 4;
/// Invocations of the one workgroup that lists a block's neurons.
const LIST_WORKGROUP: u32 = 1024;

/// The resident neurons of one layer's FFN, prepared.
#[derive(Debug)]
pub(crate) struct ResidentNeurons {
    pub(super) gpu: Gpu,
    pub buffers: NeuronBuffers,
    /// Hottest first. All but the last are full.
    pub blocks: Vec<NeuronBlock>,
    /// Mask of the resident neurons, and how many they are.
    pub resident: Vec<u32>,
    resident_count: usize,
    /// Input of `slot_list`: first slot and length of every block, then the neuron of every slot.
    table: Buffer,
    pub(super) list: Op,
    pub sum: Sum,
    pub predictor: Option<PredictorOps>,
    /// Computes the cold neurons that pass through the streaming buffer, if there is one.
    pub streamed: Option<StreamedNeurons>,
    /// The neurons that may be skipped, without the predictor, which comes and goes.
    pub(super) rule: SkipRule,
    /// Input, `[chunk, pitch(d_model)]`.
    pub from: Buffer,
    neurons: usize,
    d_model: usize,
    rows: usize,
}

/// The part of a layer's FFN that is uploaded at first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeuronUpload<'a> {
    /// Hottest first.
    pub neurons: &'a [u32],
    /// True for a few blocks, false for as few as possible.
    pub several: bool,
    /// True if the layer's predictor comes with them.
    pub with_predictor: bool,
}

impl ResidentNeurons {
    /// Uploads neurons of a layer, which read the register `from`. `before` is another layer's, whose buffers are shared where they fit.
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
        let buffers = match before.filter(|before| before.buffers.fits(rows_of)) {
            Some(before) => before.buffers.clone(),
            None => NeuronBuffers::new(loader, rows_of)?,
        };
        let words = 2 * MOST_BLOCKS + buffers.slots;
        let table = gpu.arena().buffer(Purpose::Ffn, "slots of resident neurons", words as u64 * 4, Usage::Storage)?;
        let blocks = ("BLOCKS", MOST_BLOCKS as f64);
        let pipeline = gpu.pipelines().get("slot_list", None, LIST_WORKGROUP, &[blocks])?;
        let bindings = [&buffers.masks.mask, &table, &buffers.lists, &buffers.grids, &buffers.hidden];
        let list = Op::new(gpu, &pipeline, &bindings.map(Into::into))?;
        let bias = rows_of.down.bias.as_ref().map(|bias| loader.vector("a bias", bias)).transpose()?;
        let d_model = rows_of.down.weight.cols();
        let sum = Sum::new(gpu, &buffers.sums, bias.as_ref(), registers.get(Register::Out), d_model)?;
        let mut ops = ResidentNeurons {
            gpu: gpu.clone(),
            buffers,
            blocks: Vec::new(),
            resident: vec![0; mask::words(rows_of.neurons())],
            resident_count: 0,
            table,
            list,
            sum,
            predictor: None,
            streamed: None,
            rule: SkipRule::of(weights, loader.config.activation),
            from: registers.get(from).clone(),
            neurons: rows_of.neurons(),
            d_model,
            rows: rows_of.rows(),
        };
        if let Some(predictor) = weights.predictor.as_ref().filter(|_| with_predictor) {
            ops.add_predictor(loader, predictor, registers, from)?;
        }
        ops.append(loader, rows_of, neurons, if several { BLOCKS_OF_LOAD } else { 1 })?;
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
        self.predictor = Some(PredictorOps::new(loader, masks, predictor, self.neurons, residual, from)?);
        Ok(())
    }

    /// Uploads `neurons` as up to `blocks` further blocks: the first half of them, then a quarter, and so on.
    pub fn append(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        weights: NeuronWeights<'_>,
        neurons: &[u32],
        blocks: usize,
    ) -> Result<()> {
        let done = self.append_blocks(loader, weights, neurons, blocks);
        done.and(self.write_table(loader))
    }

    fn append_blocks(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        weights: NeuronWeights<'_>,
        neurons: &[u32],
        blocks: usize,
    ) -> Result<()> {
        let most = weights.most_slots(loader);
        let (mut left, mut made) = (neurons, 0);
        while !left.is_empty() {
            let start = self.slots();
            made += 1;
            let half = if made < blocks { (left.len() / 2).next_multiple_of(SLOT_MULTIPLE) } else { left.len() };
            let (now, later) = left.split_at(half.clamp(1, left.len()).min(most));
            if self.blocks.len() == MOST_BLOCKS
                || start + now.len().next_multiple_of(SLOT_MULTIPLE) > self.buffers.slots
            {
                let wanted = (self.blocks.len() + 1) as u64;
                return Err(Error::Memory { what: "neuron blocks of a layer", wanted, available: MOST_BLOCKS as u64 });
            }
            let at = self.blocks.len();
            self.blocks.push(NeuronBlock::new(loader, &self.buffers, weights, now, at, start, &self.from)?);
            left = later;
        }
        Ok(())
    }

    /// Updates the slot tables, here and on the device.
    fn write_table(&mut self, loader: &mut GpuLoader<'_, '_>) -> Result<()> {
        self.count();
        let mut table = vec![0; 2 * MOST_BLOCKS];
        for (range, block) in table.chunks_exact_mut(2).zip(&self.blocks) {
            range.copy_from_slice(&[block.start as u32, block.slots() as u32]);
        }
        table.extend(self.blocks.iter().flat_map(|block| &block.neurons));
        loader.uploader.bytes(&self.table, 0, bytemuck::cast_slice(&table))
    }

    /// Updates the mask of resident neurons.
    fn count(&mut self) {
        self.resident.fill(0);
        self.resident_count = 0;
        for neuron in self.blocks.iter().flat_map(|block| &block.neurons).filter(|neuron| **neuron != NO_NEURON) {
            mask::insert(&mut self.resident, *neuron as usize);
            self.resident_count += 1;
        }
    }

    /// Slots of all blocks.
    pub fn slots(&self) -> usize {
        self.blocks.last().map_or(0, |last| last.start + last.slots())
    }

    /// Slot and neuron of every resident neuron.
    pub fn by_slot(&self) -> impl Iterator<Item = (usize, u32)> {
        let slots = self.blocks.iter().flat_map(|block| &block.neurons).copied().enumerate();
        slots.filter(|(_, neuron)| *neuron != NO_NEURON)
    }

    /// True if every neuron is resident.
    pub fn is_whole(&self) -> bool {
        self.resident_count == self.neurons
    }

    /// Neurons of the layer, resident or not.
    pub fn neurons(&self) -> usize {
        self.neurons
    }

    /// True if neuron `neuron` is resident.
    pub fn is_resident(&self, neuron: u32) -> bool {
        mask::contains(&self.resident, neuron as usize)
    }

    /// The neurons that may be left out of a pass. `shows`: an observer sees hidden values.
    pub(super) fn skips(&self, pass: &Pass<'_>, shows: bool) -> Skips {
        SkipRule { has_predictor: self.predictor.is_some(), ..self.rule }.skips(pass.sparsity, pass.is_single(), shows)
    }

    /// True if the predictor is needed for a pass.
    pub fn predicts(&self, pass: &Pass<'_>) -> bool {
        self.skips(pass, false) == Skips::NotPredicted
    }

    /// Activation threshold above which neurons count as fired though all were computed.
    pub fn fires_above(&self) -> Option<f32> {
        self.rule.fires_above()
    }

    /// True if the activation makes silent neurons exactly zero.
    pub fn is_sparse(&self) -> bool {
        self.rule.sparse_activation
    }

    /// The predictor's mask, `[n_ff.div_ceil(32)]`.
    pub fn predicted_mask(&self) -> DeviceMask<'_> {
        DeviceMask { buffer: &self.buffers.masks.mask, bytes: mask::words(self.neurons) as u64 * 4 }
    }

    /// Adds to `fired`, `[tokens, n_ff.div_ceil(32)]`, the neurons whose slots are in `slots`, `[tokens, slots / 32]`.
    pub fn add_fired(&self, slots: &[u32], fired: &mut [u32]) {
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

    /// Reads gate and up of a layer that is whole back for `probe`.
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

    /// Drops blocks from the end until at most `slots` slots are left. (The device's slot table is updated with the next upload; until
    /// then no dispatch reads the slots that are gone.)
    pub fn drop_to(&mut self, slots: usize) {
        while self.slots() > slots {
            self.blocks.pop();
        }
        self.count();
    }

    /// Uploads `wanted` into empty slots and slots of `unwanted` neurons, then into new blocks. Returns how many were uploaded.
    pub fn bring(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        weights: NeuronWeights<'_>,
        wanted: &[u32],
        unwanted: &HashSet<u32>,
    ) -> Result<usize> {
        let free: Vec<(usize, usize)> = self
            .blocks
            .iter()
            .enumerate()
            .flat_map(|(at, block)| block.neurons.iter().enumerate().map(move |(slot, neuron)| (at, slot, *neuron)))
            .filter(|(.., neuron)| *neuron == NO_NEURON || unwanted.contains(neuron))
            .map(|(at, slot, _)| (at, slot))
            .collect();
        let mut left = wanted;
        let mut done = Ok(());
        for (at, slot) in free {
            let Some((neuron, later)) = left.split_first() else { break };
            done = self.blocks[at].replace(loader, weights, slot, *neuron);
            if done.is_err() {
                break;
            }
            left = later;
        }
        if done.is_ok() && !left.is_empty() {
            let mut more = left.to_vec();
            if self.blocks.len() >= MOST_BLOCKS / 2 {
                // Many small blocks cost dispatches: the last are merged with the new neurons.
                let kept = self.blocks.len() / 2;
                let small: Vec<u32> = self.blocks.drain(kept..).flat_map(|block| block.neurons).collect();
                more.splice(0..0, small.into_iter().filter(|neuron| *neuron != NO_NEURON));
            }
            done = self.append(loader, weights, &more, 1);
            left = &[];
        } else {
            done = done.and(self.write_table(loader));
        }
        self.count();
        done.map(|()| wanted.len() - left.len())
    }
}
