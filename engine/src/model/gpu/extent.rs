//! Neurons that are resident together.

use thermocline_shaders::{
    WeightType,
    limits::{NO_NEURON, SLOT_GRID, SPARSE_NEURONS},
};

use super::{
    elementwise::kind,
    hot::HotBuffers,
    loader::Loader,
    neurons::{NeuronRows, Shares, most_rows},
};
use crate::{
    error::{Error, Result},
    format::Matrix,
    gpu::{Binding, Buffer, GpuMatrix, Matmul, Op, Purpose, Recorder, layout::device_type, params},
    model::{Down, FfnWeights, Linear},
};

/// An extent has a multiple of this many slots: hidden activations then begin where any device lets a binding begin.
pub(super) const UNIT: usize = 64;

/// Invocations of a workgroup of `sparse_gate_up`, and those that share a neuron's rows.
const WORKGROUP: u32 = 128;
const LANES: u32 = 32;

/// Neurons a workgroup of it takes.
pub(super) const PER_WORKGROUP: u32 = SPARSE_NEURONS * WORKGROUP / LANES;

/// The three matrices of an FFN whose neurons can be placed one by one.
#[derive(Debug, Clone, Copy)]
pub(super) struct NeuronWeights<'a> {
    pub gate: Option<&'a Linear>,
    pub up: &'a Linear,
    /// A neuron is a row.
    pub down: &'a Linear,
}

impl<'a> NeuronWeights<'a> {
    /// `None` if a neuron is not a row of each, or gate and up do not fit one matrix.
    pub fn of(ffn: &'a FfnWeights) -> Option<Self> {
        let Down::Neurons(down) = &ffn.down else { return None };
        let ty = |linear: &Linear| device_type(linear.weight.ty());
        let alike = ffn.gate.as_ref().is_none_or(|gate| ty(gate) == ty(&ffn.up));
        alike.then_some(NeuronWeights { gate: ffn.gate.as_ref(), up: &ffn.up, down })
    }

    pub fn neurons(&self) -> usize {
        self.up.weight.rows()
    }

    /// Rows of a neuron before the activation.
    pub fn rows(&self) -> usize {
        1 + usize::from(self.gate.is_some())
    }

    /// Types of gate and up, and of down, on the device.
    pub fn types(&self) -> (WeightType, WeightType) {
        (device_type(self.up.weight.ty()), device_type(self.down.weight.ty()))
    }

    /// Row `at` of gate and up of `neurons`, which take turns.
    pub fn gate_up(&self, neurons: &[u32], at: usize) -> Option<(&'a Matrix, usize)> {
        let neuron = neurons[at / self.rows()];
        let linear = self.gate.filter(|_| at.is_multiple_of(2)).unwrap_or(self.up);
        (neuron != NO_NEURON).then_some((&linear.weight, neuron as usize))
    }

    /// Their down row.
    pub fn down(&self, neurons: &[u32], at: usize) -> Option<(&'a Matrix, usize)> {
        let neuron = neurons[at];
        (neuron != NO_NEURON).then_some((&self.down.weight, neuron as usize))
    }

    /// Biases of gate and up of `neurons`, as their rows lie; `None` if there are none.
    pub fn biases(&self, neurons: &[u32]) -> Option<Vec<f32>> {
        let linears = [self.gate, Some(self.up)].into_iter().flatten();
        if linears.clone().all(|linear| linear.bias.is_none()) {
            return None;
        }
        let bias = |linear: &Linear, neuron: u32| {
            let bias = linear.bias.as_ref().and_then(|bias| bias.get(neuron as usize));
            bias.copied().unwrap_or(0.0)
        };
        Some(neurons.iter().flat_map(|neuron| linears.clone().map(|linear| bias(linear, *neuron))).collect())
    }

    /// Bytes of the file a neuron has.
    pub fn bytes(&self) -> u64 {
        let linears = [self.gate, Some(self.up), Some(self.down)].into_iter().flatten();
        linears.map(|linear| linear.weight.row_bytes() as u64).sum()
    }

    /// Most slots of an extent: each of its matrices is one binding.
    pub fn most_slots(&self, loader: &Loader<'_, '_>) -> usize {
        let (gate_up, down) = self.types();
        let pairs = most_rows(loader.gpu, gate_up, self.up.weight.cols(), self.rows() * UNIT) / self.rows();
        pairs.min(most_rows(loader.gpu, down, self.down.weight.cols(), UNIT))
    }
}

/// Neurons of one layer in matrices of their own, which come and go together. Slots count on through a layer's extents.
#[derive(Debug)]
pub(super) struct Extent {
    /// Place among the layer's extents, and its first slot.
    at: usize,
    pub start: usize,
    /// By slot; [`NO_NEURON`] where there is none.
    pub neurons: Vec<u32>,
    gate_up: GpuMatrix,
    down: GpuMatrix,
    bias: Option<Buffer>,
    product: Matmul,
    sparse: Op,
    rows: NeuronRows,
    step: u32,
    chunks: u32,
}

impl Extent {
    /// Uploads `neurons`, with slots for as many as make whole units.
    pub fn new(
        loader: &mut Loader<'_, '_>,
        buffers: &HotBuffers,
        weights: NeuronWeights<'_>,
        neurons: &[u32],
        (at, start): (usize, usize),
        x: &Buffer,
    ) -> Result<Self> {
        const WHAT: (Purpose, &str) = (Purpose::Ffn, "FFN weights");
        let gpu = loader.gpu;
        let mut slots = neurons.to_vec();
        slots.resize(neurons.len().next_multiple_of(UNIT), NO_NEURON);
        let (ty, down_ty) = weights.types();
        let rows = weights.rows();
        let shape = (slots.len() * rows, weights.up.weight.cols());
        let gate_up = loader.uploader.gathered(WHAT, ty, shape, rows, &|row| weights.gate_up(&slots, row))?;
        let shape = (slots.len(), weights.down.weight.cols());
        let down = loader.uploader.gathered(WHAT, down_ty, shape, 1, &|row| weights.down(&slots, row))?;
        let bias = weights.biases(&slots).map(|bias| loader.vector("a bias", &bias)).transpose()?;
        let ([gate_up_part], [down_part]) = (gate_up.parts(), down.parts()) else {
            let (wanted, available) = (gate_up.bytes().max(down.bytes()), gpu.caps().max_binding);
            return Err(Error::Memory { what: "FFN weights of a few neurons", wanted, available });
        };
        let output = (&buffers.gate_up, rows * buffers.slots, rows * start);
        let product = Matmul::new(gpu, &gate_up, x, bias.as_ref(), output.0, output.1, output.2)?;
        let switch = |on: bool| f64::from(u8::from(on));
        let overrides = [
            ("KIND", f64::from(kind(loader.config.activation))),
            ("GATED", switch(rows == 2)),
            ("HAS_BIAS", switch(bias.is_some())),
            ("SCATTER", 1.0),
            ("LANES", f64::from(LANES)),
        ];
        let pipeline = gpu.pipelines().get("sparse_gate_up", Some(ty), WORKGROUP, &overrides)?;
        let words = |start: usize, len: usize| (start as u64 * 4, len as u64 * 4);
        let (list, hidden) = (words(start + UNIT * at, slots.len() + UNIT), words(start, slots.len()));
        let bindings = [
            gate_up_part.main(),
            gate_up_part.aux(gpu.nothing()),
            x.into(),
            Binding::part(&buffers.lists, list.0, list.1),
            bias.as_ref().unwrap_or(gpu.nothing()).into(),
            gpu.nothing().into(),
            Binding::part(&buffers.hidden, hidden.0, hidden.1),
        ];
        let sparse = Op::new(gpu, &pipeline, &bindings)?;
        let down_rows = NeuronRows::new(gpu, down_ty, down_part, &buffers.hidden, start, &buffers.sums)?;
        let (step, chunks) = (rows as u32, gate_up.chunks() as u32);
        Ok(Extent { at, start, neurons: slots, gate_up, down, bias, product, sparse, rows: down_rows, step, chunks })
    }

    /// Slots.
    pub fn slots(&self) -> usize {
        self.neurons.len()
    }

    /// Records gate and up of every neuron for the first `tokens` rows.
    pub fn record_all(&self, recorder: &mut Recorder, tokens: usize) {
        self.product.record(recorder, tokens);
    }

    /// Records gate, up and activation of one token for the neurons on the extent's list.
    pub fn record_listed(&self, recorder: &mut Recorder, buffers: &HotBuffers, stride: u32) {
        let params = params::SparseGateUp { chunks: self.chunks, step: self.step, up_at: self.step - 1, stride };
        let grid = u64::from(SLOT_GRID) * 4 * self.at as u64;
        recorder.dispatch_indirect(&self.sparse, &params, &buffers.grids, grid);
    }

    /// Records their share of the down projection.
    pub fn record_down(&self, recorder: &mut Recorder, buffers: &HotBuffers, skip: bool, shares: &mut Shares) {
        self.rows.record(recorder, buffers.slots, skip, shares);
    }

    /// Lets `neuron` have `slot` of this extent.
    pub fn put(
        &mut self,
        loader: &mut Loader<'_, '_>,
        weights: NeuronWeights<'_>,
        slot: usize,
        neuron: u32,
    ) -> Result<()> {
        let one = [neuron];
        let rows = weights.rows();
        // Rows are asked for by their place in the extent.
        let gate_up = |row: usize| weights.gate_up(&one, row - slot * rows);
        loader.uploader.rewrite(&self.gate_up, slot * rows..(slot + 1) * rows, &gate_up)?;
        loader.uploader.rewrite(&self.down, slot..slot + 1, &|row| weights.down(&one, row - slot))?;
        if let (Some(buffer), Some(bias)) = (&self.bias, weights.biases(&one)) {
            loader.uploader.bytes(buffer, (slot * rows * 4) as u64, bytemuck::cast_slice(&bias))?;
        }
        self.neurons[slot] = neuron;
        Ok(())
    }
}
