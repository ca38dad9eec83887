//! A neuron block: resident neurons of one layer in matrices of their own, loaded and freed
//! together, with their sparse GEMV.

use thermocline_shaders::{
    WeightType,
    limits::{SLOT_GRID, SPARSE_NEURONS},
};

use super::{
    GpuLoader,
    elementwise::overrides,
    neuron_buffers::NeuronBuffers,
    neuron_rows::NeuronRows,
    neuron_weights::{NeuronWeights, SLOT_MULTIPLE},
    slot_table::SlotBlock,
};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_gpu::{Binding, Buffer, GpuMatrix, Matmul, MatrixLayout, MemoryUse, Op, Purpose, Recorder, params};

/// Neurons of a `sparse_gate_up` workgroup, whose invocations all work on the same rows. Workgroups
/// are small, so that a few hundred firing neurons are enough workgroups to occupy a card.
pub(crate) const PER_WORKGROUP: u32 = SPARSE_NEURONS;

/// Invocations of a `sparse_gate_up` workgroup: one per place in a row of `chunks`, within limits.
fn workgroup(ty: WeightType, chunks: usize) -> u32 {
    let places = chunks * 4 / ty.parts();
    places.next_power_of_two().clamp(32, 128) as u32
}

/// The weights of a layer's neurons in one block of slots.
#[derive(Debug)]
pub(crate) struct NeuronBlock {
    /// Index of the block in its layer.
    at: usize,
    slots: usize,
    gate_up: GpuMatrix,
    down: GpuMatrix,
    bias: Option<Buffer>,
    /// Gate and up of every neuron.
    pub(super) product: Matmul,
    /// Gate, up and activation: of the neurons on the block's list, and of all its neurons.
    listed: Op,
    all: Op,
    /// The neurons' partial sums of the down projection.
    pub(super) rows: NeuronRows,
    step: u32,
    chunks: u32,
}

impl NeuronBlock {
    /// Uploads the neurons of `block`, whose slots are a multiple of [`SLOT_MULTIPLE`]. The neurons
    /// read `x`. `scales` holds the scales of the gates of all slots.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        buffers: &NeuronBuffers,
        weights: NeuronWeights<'_>,
        block: &SlotBlock,
        x: &Buffer,
        scales: Option<&Buffer>,
    ) -> Result<Self> {
        const WHAT: MemoryUse = MemoryUse { purpose: Purpose::Ffn, what: "FFN weights" };
        let gpu = loader.gpu;
        let SlotBlock { index: at, start, units: ref slots } = *block;
        let (ty, down_ty) = weights.types();
        let rows = weights.rows();
        let layout = MatrixLayout { ty, rows: slots.len() * rows, cols: weights.up.weight.cols(), rows_together: rows };
        let gate_up = loader.uploader.gathered(WHAT, layout, &|row| weights.gate_up(slots, row))?;
        let layout =
            MatrixLayout { ty: down_ty, rows: slots.len(), cols: weights.down.weight.cols(), rows_together: 1 };
        let down = loader.uploader.gathered(WHAT, layout, &|row| weights.down(slots, row))?;
        let bias = weights.biases(slots).map(|bias| loader.vector("a bias", &bias)).transpose()?;
        let ([gate_up_part], [down_part]) = (gate_up.parts(), down.parts()) else {
            let (wanted, available) = (gate_up.bytes().max(down.bytes()), gpu.caps().max_binding);
            return Err(Error::memory(ScarceMemory::Gpu, "FFN weights of a few neurons", wanted, available));
        };
        let output = (&buffers.gate_up, rows * buffers.slots, rows * start);
        let product = Matmul::new(gpu, &gate_up, x, bias.as_ref(), output.0, output.1, output.2)?;
        let switch = |on: bool| f64::from(u8::from(on));
        let workgroup = workgroup(ty, gate_up.chunks());
        let [kind, limit] = overrides(weights.form(loader.config.activation));
        let pipeline = |listed: bool| {
            let overrides = [
                kind,
                limit,
                ("GATED", switch(rows == 2)),
                ("HAS_BIAS", switch(bias.is_some())),
                ("LANES", f64::from(workgroup)),
                ("LISTED", switch(listed)),
                ("GATE_FIRST", switch(rows == 2)),
                ("SCALED", switch(scales.is_some())),
            ];
            gpu.pipelines().get("sparse_gate_up", Some(ty), workgroup, &overrides)
        };
        let words = |start: usize, len: usize| (start as u64 * 4, len as u64 * 4);
        let (list, hidden) =
            (words(start + SLOT_MULTIPLE * at, slots.len() + SLOT_MULTIPLE), words(start, slots.len()));
        let bindings = [
            gate_up_part.main(),
            gate_up_part.aux(gpu.nothing()),
            x.into(),
            Binding::part(&buffers.lists, list.0, list.1),
            bias.as_ref().unwrap_or(gpu.nothing()).into(),
            scales.map_or(gpu.nothing().into(), |scales| Binding::part(scales, hidden.0, hidden.1)),
            Binding::part(&buffers.hidden, hidden.0, hidden.1),
        ];
        let listed = Op::new(gpu, &pipeline(true)?, &bindings)?;
        let all = Op::new(gpu, &pipeline(false)?, &bindings)?;
        let down_rows = NeuronRows::new(gpu, down_ty, down_part, &buffers.hidden, start, &buffers.sums)?;
        let (step, chunks) = (rows as u32, gate_up.chunks() as u32);
        Ok(NeuronBlock {
            at,
            slots: slots.len(),
            gate_up,
            down,
            bias,
            product,
            listed,
            all,
            rows: down_rows,
            step,
            chunks,
        })
    }

    /// Records gate, up and activation of one token, for the neurons on the block's list or,
    /// without a list, for all. If there are gates, up rows are read only for neurons whose gate's
    /// activation, times its scale, is above `threshold`. All others get a hidden value of 0.
    pub fn record_firing(
        &self,
        recorder: &mut Recorder,
        buffers: &NeuronBuffers,
        listed: bool,
        stride: u32,
        threshold: f32,
    ) {
        let (step, count) = (self.step, self.slots as u32);
        let params = params::SparseGateUp { chunks: self.chunks, step, up_at: step - 1, stride, count, threshold };
        if listed {
            let grid = u64::from(SLOT_GRID) * 4 * self.at as u64;
            return recorder.dispatch_indirect(&self.listed, &params, &buffers.grids, grid);
        }
        let groups = count.div_ceil(PER_WORKGROUP);
        recorder.dispatch(&self.all, &params, [groups.min(stride), groups.div_ceil(stride), 1]);
    }

    /// Replaces the neuron in `slot` (numbered within this block) by `neuron`.
    pub fn replace(
        &self,
        loader: &mut GpuLoader<'_, '_>,
        weights: NeuronWeights<'_>,
        slot: usize,
        neuron: u32,
    ) -> Result<()> {
        let one = [neuron];
        let rows = weights.rows();
        // The uploader counts rows within the block.
        let gate_up = |row: usize| weights.gate_up(&one, row - slot * rows);
        loader.uploader.rewrite(&self.gate_up, slot * rows..(slot + 1) * rows, &gate_up)?;
        loader.uploader.rewrite(&self.down, slot..slot + 1, &|row| weights.down(&one, row - slot))?;
        if let (Some(buffer), Some(bias)) = (&self.bias, weights.biases(&one)) {
            loader.uploader.bytes(buffer, (slot * rows * 4) as u64, bytemuck::cast_slice(&bias))?;
        }
        Ok(())
    }
}
