//! Scratch buffers for computing resident neurons.

use thermocline_shaders::limits::SLOT_GRID;

use super::{
    GpuLoader,
    elementwise::{ActivationOp, GateUpRows},
    fired::FiredMask,
    neuron_rows::PartialSumBuffer,
    neuron_weights::{NeuronWeights, SLOT_MULTIPLE},
    predictor::MaskBuffers,
    slot_table::MOST_BLOCKS,
};
use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, Purpose, Usage};

/// Scratch buffers of resident neurons, shared by layers of equal width and limit.
#[derive(Debug, Clone)]
pub(crate) struct NeuronBuffers {
    /// Most slots of a layer.
    pub slots: usize,
    /// `[chunk, slots, 2]`, gate and up interleaved; without gates `[chunk, slots]`.
    pub gate_up: Buffer,
    /// `[chunk, slots]`
    pub hidden: Buffer,
    /// With the layer's scales of gates.
    pub activation: ActivationOp,
    pub sums: PartialSumBuffer,
    /// Output of `slot_list`: for each block its listed slots and the grid of its indirect
    /// dispatch.
    pub lists: Buffer,
    pub grids: Buffer,
    pub masks: MaskBuffers,
    /// Fired masks, one bit per slot.
    pub fired: FiredMask,
    neurons: usize,
    gated: bool,
    limit: Option<f32>,
}

impl NeuronBuffers {
    /// Makes the buffers for a layer of `weights`.
    pub fn new(loader: &GpuLoader<'_, '_>, weights: NeuronWeights<'_>) -> Result<Self> {
        let (gpu, chunk) = (loader.gpu, loader.chunk);
        let (neurons, gated) = (weights.neurons(), weights.gate.is_some());
        let slots = Self::slots(neurons);
        let gate_up = loader.scratch("gate and up", chunk * slots * weights.rows())?;
        let hidden = loader.scratch("hidden activations", chunk * slots)?;
        let from = GateUpRows { buffer: &gate_up, gated, interleaved: gated };
        let activation = ActivationOp::new(gpu, weights.form(loader.config.activation), from, &hidden, slots)?;
        let grid_bytes = (MOST_BLOCKS * SLOT_GRID as usize * 4) as u64;
        let masks = MaskBuffers::new(loader, neurons)?;
        Ok(NeuronBuffers {
            slots,
            activation,
            sums: PartialSumBuffer::new(loader, weights.types().1, weights.down.weight.cols(), neurons)?,
            lists: loader.scratch("lists of hot neurons", slots + MOST_BLOCKS * SLOT_MULTIPLE)?,
            grids: gpu.arena().buffer(Purpose::Scratch, "grids of hot neurons", grid_bytes, Usage::Indirect)?,
            masks,
            fired: FiredMask::new(loader, &hidden, chunk, slots)?,
            gate_up,
            hidden,
            neurons,
            gated,
            limit: weights.limit,
        })
    }

    /// Slots of a layer of `neurons` neurons.
    pub const fn slots(neurons: usize) -> usize {
        neurons.next_multiple_of(SLOT_MULTIPLE)
    }

    /// True if these buffers suit a layer of `weights`.
    pub fn fits(&self, weights: NeuronWeights<'_>) -> bool {
        (self.neurons, self.gated, self.limit) == (weights.neurons(), weights.gate.is_some(), weights.limit)
            && self.sums.fits(weights.types().1, weights.down.weight.cols(), weights.neurons())
    }
}
