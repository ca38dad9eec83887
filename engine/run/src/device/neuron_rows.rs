//! The neuron-major down projection, in which a neuron is a row:
//! `y = sum over neurons of hidden[n] * W[n]`. A layer's neurons may be in several matrices. Each
//! matrix writes partial sums, and the partial sums are then added up.

use thermocline_shaders::{WeightType, limits::GEMM_NEURONS_COLUMNS};

use super::{
    elementwise::{WORKGROUP, flat_grid},
    loader::GpuLoader,
};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_gpu::{
    Binding, Buffer, FEW_TOKENS, Gpu, MatrixPart, Op, Purpose, Recorder, SparseDownVariant, params, pitch,
};
use thermocline_model::Linear;

/// Workgroups of one dispatch over a few tokens.
const WORKGROUPS: usize = 512;
/// Fewest neurons of a workgroup.
const LEAST_NEURONS: usize = 64;
/// Number of matrices with partial sums of their own; further matrices add to existing partial
/// sums.
const MATRICES: usize = 8;
/// Largest number of tokens for which the untiled kernel is faster.
const MOST_UNTILED: usize = 16;
/// Invocations of a `gemm_neurons` workgroup, which computes half as many tokens.
const GEMM_WORKGROUP: u32 = 128;

/// The buffer of partial sums, shared by layers of equal width.
#[derive(Debug, Clone)]
pub(crate) struct PartialSumBuffer {
    /// `[partial sums, tokens, 32 * chunks]` f32
    buffer: Buffer,
    /// Number of rows: partial sums times tokens.
    rows: usize,
    /// Largest number of tokens of a pass in which each token has as many partial sums as a single
    /// token.
    few: usize,
    /// 32-column chunks per row.
    chunks: usize,
    /// Most neurons of a layer.
    neurons: usize,
}

/// The partial sums of one FFN's output for some tokens, counted while they are recorded.
#[derive(Debug)]
pub(crate) struct PartialSums {
    tokens: usize,
    /// Neurons of all matrices.
    neurons: usize,
    used: usize,
}

impl PartialSums {
    /// Starts without partial sums, for `tokens` tokens and matrices of `neurons` neurons in total.
    pub fn new(tokens: usize, neurons: usize) -> Self {
        PartialSums { tokens, neurons: neurons.max(1), used: 0 }
    }
}

impl PartialSumBuffer {
    /// Makes the buffer for `neurons` rows of `cols` weights of type `ty`.
    pub fn new(loader: &GpuLoader<'_, '_>, ty: WeightType, cols: usize, neurons: usize) -> Result<Self> {
        let chunks = chunks(ty, cols);
        let most = loader.gpu.caps().max_binding as usize / (chunks * 128);
        // A few tokens have as many partial sums each as one token. Every token needs at least one
        // partial sum from the device and one from the CPU.
        let few = FEW_TOKENS.min(loader.chunk);
        let of_one = (WORKGROUPS / SparseDownVariant::strips(chunks)).min(neurons / LEAST_NEURONS) + MATRICES;
        let rows = (of_one * few).min(most).max(2 * loader.chunk);
        Ok(PartialSumBuffer { buffer: loader.scratch("partial sums", rows * chunks * 32)?, rows, few, chunks, neurons })
    }

    /// True if the buffer suits `neurons` rows of `cols` weights of type `ty`.
    pub fn fits(&self, ty: WeightType, cols: usize, neurons: usize) -> bool {
        self.chunks == chunks(ty, cols) && neurons <= self.neurons
    }

    /// Adds a partial sum that is uploaded, `[tokens, 32 * chunks]`. Returns the buffer and the
    /// byte offset of the partial sum.
    pub fn append(&self, partials: &mut PartialSums) -> (&Buffer, u64) {
        let offset = partials.used * partials.tokens * self.row_bytes();
        partials.used += 1;
        (&self.buffer, offset as u64)
    }

    /// Bytes of one token's partial sum.
    pub fn row_bytes(&self) -> usize {
        self.chunks * 128
    }
}

fn chunks(ty: WeightType, cols: usize) -> usize {
    cols.next_multiple_of(ty.block()) / 32
}

/// Neurons whose down rows are one part of a matrix, and their hidden activations.
#[derive(Debug)]
pub(crate) struct NeuronRows {
    neurons: usize,
    sums: PartialSumBuffer,
    /// One token: all rows, or only the rows of neurons that are not silent.
    all: Op,
    fired: Op,
    /// A few tokens, which share the rows read, because few neurons are silent for all of them.
    few: (Op, SparseDownVariant),
    /// Many tokens, in tiles.
    many: Op,
}

impl NeuronRows {
    /// Prepares the products of `part` of a matrix of type `ty`. The first neuron's hidden
    /// activation is element `start` of a row of `hidden`, which must be aligned for a binding.
    pub fn new(
        gpu: &Gpu,
        ty: WeightType,
        part: &MatrixPart,
        hidden: &Buffer,
        start: usize,
        sums: &PartialSumBuffer,
    ) -> Result<Self> {
        let [one, fired, several] = SparseDownVariant::all(gpu, ty)?;
        let offset = start as u64 * 4;
        let bindings = [
            part.main(),
            part.aux(gpu.nothing()),
            Binding::part(hidden, offset, hidden.bytes() - offset),
            (&sums.buffer).into(),
        ];
        let all = Op::new(gpu, &one.pipeline, &bindings)?;
        let gemm = gpu.pipelines().get("gemm_neurons", Some(ty), GEMM_WORKGROUP, &[])?;
        let many = Op::new(gpu, &gemm, &bindings)?;
        Ok(NeuronRows {
            neurons: part.rows().len(),
            sums: sums.clone(),
            fired: all.variant(&fired.pipeline),
            few: (all.variant(&several.pipeline), several),
            many,
            all,
        })
    }

    /// Records the neurons' partial sums. Rows of hidden activations are `pitch` apart. `skip`:
    /// many activations are zero.
    pub fn record(&self, recorder: &mut Recorder, pitch: usize, skip: bool, partials: &mut PartialSums) {
        self.record_first(recorder, self.neurons, pitch, skip, partials);
    }

    /// Records the partial sums of the first `neurons` neurons only.
    pub fn record_first(
        &self,
        recorder: &mut Recorder,
        neurons: usize,
        pitch: usize,
        skip: bool,
        partials: &mut PartialSums,
    ) {
        let tokens = partials.tokens;
        // Workgroups over the columns and over the tokens of a partial sum.
        let strips = SparseDownVariant::strips(self.sums.chunks);
        let (across, groups, op) = match (tokens, skip) {
            (1, true) => (strips, 1, &self.fired),
            (1, false) => (strips, 1, &self.all),
            (..=MOST_UNTILED, _) => {
                let (op, variant) = &self.few;
                ((self.sums.chunks * 4).div_ceil(variant.strip), tokens.div_ceil(variant.tokens), op)
            }
            _ => {
                let at_once = self.many.pipeline().workgroup() as usize / 2;
                ((self.sums.chunks * 32).div_ceil(GEMM_NEURONS_COLUMNS as usize), tokens.div_ceil(at_once), &self.many)
            }
        };
        // A few tokens have the ranges of one token, so that their sums have the same order.
        let few = tokens <= FEW_TOKENS;
        let of_range = if few { strips } else { across * groups };
        let wanted = (WORKGROUPS / of_range).max(1) * neurons / partials.neurons;
        let wanted = wanted.min(neurons / LEAST_NEURONS).max(1);
        // One place stays free for the CPU's partial sum.
        let room = (self.sums.rows / tokens.max(self.sums.few)).saturating_sub(partials.used + 1);
        let fresh = partials.used == 0 || (few && room > 0);
        let (first, splits) =
            if fresh { (partials.used, wanted.min(room).max(1)) } else { (0, wanted.min(partials.used)) };
        if fresh {
            partials.used += splits;
        }
        let params = params::SparseDown {
            chunks: self.sums.chunks as u32,
            neurons: neurons as u32,
            tokens: tokens as u32,
            hidden_pitch: pitch as u32,
            splits: splits as u32,
            first: first as u32,
            accumulate: u32::from(!fresh),
        };
        // Neighbouring workgroups share weights.
        recorder.dispatch(op, &params, [groups, across, splits].map(|n| n as u32));
    }
}

/// `y[t] = sum of all partial sums + b`
#[derive(Debug)]
pub(crate) struct Sum {
    gpu: Gpu,
    op: Op,
    cols: usize,
    chunks: usize,
}

impl Sum {
    /// Prepares the sum into rows of `y`, [`pitch`]`(cols)` apart.
    pub fn new(gpu: &Gpu, sums: &PartialSumBuffer, bias: Option<&Buffer>, y: &Buffer, cols: usize) -> Result<Self> {
        let has_bias = [("HAS_BIAS", f64::from(u8::from(bias.is_some())))];
        let of = [&sums.buffer, bias.unwrap_or(gpu.nothing()), y];
        let op = Op::of(gpu, "sum_splits", WORKGROUP, &has_bias, &of)?;
        Ok(Sum { gpu: gpu.clone(), op, cols, chunks: sums.chunks })
    }

    /// Records the sum. Without partial sums, `y` is the bias.
    pub fn record(&self, recorder: &mut Recorder, partials: &PartialSums) {
        let (grid, stride) = flat_grid(&self.gpu, partials.tokens * self.cols, self.op.pipeline().workgroup());
        let params = params::SumSplits {
            cols: self.cols as u32,
            pitch: pitch(self.cols) as u32,
            tokens: partials.tokens as u32,
            splits: partials.used as u32,
            partial_pitch: self.chunks as u32 * 32,
            stride,
        };
        recorder.dispatch(&self.op, &params, grid);
    }
}

/// `y[t] = sum over neurons of hidden[t, n] * W[n] + b`, with all neurons in one matrix.
#[derive(Debug)]
pub(crate) struct NeuronsDown {
    parts: Vec<NeuronRows>,
    sum: Sum,
    neurons: usize,
    skip: bool,
    /// Multiply-adds per token.
    pub work: u64,
}

impl NeuronsDown {
    /// Uploads `linear`. Partial sums are shared with the layer `before` if they fit.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        before: Option<&NeuronsDown>,
        linear: &Linear,
        hidden: &Buffer,
        y: &Buffer,
    ) -> Result<Self> {
        let (gpu, weight) = (loader.gpu, &linear.weight);
        let (neurons, cols, ty) = (weight.rows(), weight.cols(), weight.ty().device_type());
        // Each part's hidden activations begin at its first neuron, so that neuron must be aligned
        // for a binding.
        let step = most_rows(gpu, ty, cols, (gpu.caps().binding_alignment.max(16) / 4) as usize);
        let sums = match before.and_then(|before| before.parts.first()).filter(|rows| rows.sums.fits(ty, cols, neurons))
        {
            Some(rows) => rows.sums.clone(),
            None => PartialSumBuffer::new(loader, ty, cols, neurons)?,
        };
        let bias = linear.bias.as_ref().map(|bias| loader.vector("a bias", bias)).transpose()?;
        let mut parts = Vec::new();
        for start in (0..neurons).step_by(step) {
            let rows = start..(start + step).min(neurons);
            let Some(rows_of) = weight.slice_rows(rows.clone()) else {
                return Err(Error::invalid("down projection", format!("{neurons} rows"), format!("{rows:?}")));
            };
            let matrix = loader.uploader.matrix(Purpose::Ffn, "FFN weights", &[&rows_of])?;
            let [part] = matrix.parts() else {
                let (wanted, available) = (matrix.bytes(), gpu.caps().max_binding);
                return Err(Error::memory(ScarceMemory::Gpu, "FFN weights of a few neurons", wanted, available));
            };
            parts.push(NeuronRows::new(gpu, ty, part, hidden, start, &sums)?);
        }
        let sum = Sum::new(gpu, &sums, bias.as_ref(), y, cols)?;
        let (skip, work) = (loader.config.activation.is_sparse(), (neurons * cols) as u64);
        Ok(NeuronsDown { parts, sum, neurons, skip, work })
    }

    /// Records the product for the first `tokens` rows.
    pub fn record(&self, recorder: &mut Recorder, tokens: usize) {
        let mut partials = PartialSums::new(tokens, self.neurons);
        for part in &self.parts {
            part.record(recorder, pitch(self.neurons), self.skip, &mut partials);
        }
        self.sum.record(recorder, &partials);
    }
}

/// Most rows of `cols` weights that fit one binding: a multiple of `multiple`, and at least one
/// such multiple.
pub(crate) fn most_rows(gpu: &Gpu, ty: WeightType, cols: usize, multiple: usize) -> usize {
    let caps = gpu.caps();
    let most = caps.max_binding.min(caps.max_buffer).min(1 << 31).saturating_sub(caps.binding_alignment.max(16));
    let multiples = (most / ty.device_row_bytes(cols).max(1) as u64) as usize / multiple.max(1);
    multiples.max(1) * multiple.max(1)
}
