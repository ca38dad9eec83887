//! The down projection with a neuron for a row: sums of rows instead of products with them. The neurons of a layer may lie in
//! several matrices; each adds its shares of the sum, and the shares are then added up.

use thermocline_shaders::{
    WeightType,
    limits::{GEMM_NEURONS_COLUMNS, SPARSE_DOWN_TOKENS},
};

use super::{
    elementwise::{WORKGROUP, flat_grid},
    loader::Loader,
};
use crate::{
    error::{Error, Result},
    gpu::{Binding, Buffer, Caps, Gpu, MatrixPart, Op, Purpose, Recorder, layout::device_type, params, pitch},
    model::Linear,
};

/// Workgroups that few tokens' sums are cut into.
const WORKGROUPS: usize = 512;
/// Fewer neurons than this are not worth a workgroup of their own.
const LEAST_SHARE: usize = 64;
/// Matrices that may each have shares of their own; more add to what is there.
const MATRICES: usize = 8;
/// Invocations of a workgroup of `sparse_down`, and those that read a row side by side, eight columns each.
const DOWN_WORKGROUP: u32 = 128;
const STRIP: usize = 32;
/// With more tokens than this tiles are quicker, as in a product with rows of outputs.
const FEW: usize = 16;
/// Invocations of a workgroup of `gemm_neurons`, which takes half as many tokens.
const GEMM_WORKGROUP: u32 = 128;

/// Where shares of sums go; layers of one width have it in common.
#[derive(Debug, Clone)]
pub(super) struct PartialSums {
    /// `[shares, tokens, 32 * chunks]`
    buffer: Buffer,
    /// Shares of all tokens together.
    rows: usize,
    /// 32-column chunks of a row.
    chunks: usize,
}

/// Shares of the sums of some tokens, as they are recorded.
#[derive(Debug)]
pub(super) struct Shares {
    tokens: usize,
    /// Neurons of all matrices.
    neurons: usize,
    used: usize,
}

impl Shares {
    /// Of `tokens` tokens, none yet; matrices of `neurons` neurons together are to come.
    pub fn new(tokens: usize, neurons: usize) -> Self {
        Shares { tokens, neurons: neurons.max(1), used: 0 }
    }
}

/// Workgroups side by side on a row of `chunks` times 32 columns.
fn strips(chunks: usize) -> usize {
    (chunks * 4).div_ceil(STRIP)
}

impl PartialSums {
    /// For rows of `cols` weights of type `ty`.
    pub fn new(loader: &Loader<'_, '_>, ty: WeightType, cols: usize) -> Result<Self> {
        let chunks = chunks(ty, cols);
        let rows = Self::rows(loader.gpu.caps(), chunks, loader.chunk);
        Ok(PartialSums { buffer: loader.scratch("partial sums", rows * chunks * 32)?, rows, chunks })
    }

    /// Shares of all tokens together, of `chunk` tokens.
    pub fn rows(caps: &Caps, chunks: usize, chunk: usize) -> usize {
        let most = caps.max_binding as usize / (chunks * 128);
        // At least one share of each token's from the device, and one from elsewhere.
        (WORKGROUPS / strips(chunks) + MATRICES).min(most).max(2 * chunk)
    }

    /// Whether rows of `cols` weights of type `ty` fit.
    pub fn fits(&self, ty: WeightType, cols: usize) -> bool {
        self.chunks == chunks(ty, cols)
    }

    /// Where `sums` come to lie that somebody else computed, as a share of their own: the buffer and the offset in it. They
    /// are `[tokens, 32 * chunks]`.
    pub fn append(&self, shares: &mut Shares) -> (&Buffer, u64) {
        let offset = shares.used * shares.tokens * self.row_bytes();
        shares.used += 1;
        (&self.buffer, offset as u64)
    }

    /// Bytes of one token's share.
    pub fn row_bytes(&self) -> usize {
        self.chunks * 128
    }
}

fn chunks(ty: WeightType, cols: usize) -> usize {
    cols.next_multiple_of(ty.block()) / 32
}

/// Neurons whose rows are one part of a matrix, and their hidden activations.
#[derive(Debug)]
pub(super) struct NeuronRows {
    neurons: usize,
    sums: PartialSums,
    /// One token: with every row, and without those of silent neurons.
    all: Op,
    fired: Op,
    /// Several tokens share what is read: what is silent for one is mostly not silent for all of them.
    few: Op,
    /// Many tokens, in tiles.
    many: Op,
}

impl NeuronRows {
    /// `part` of a matrix of `ty`, the first neuron's hidden activation being element `start` of a row of `hidden`. (`start` is
    /// where a binding may begin.)
    pub fn new(
        gpu: &Gpu,
        ty: WeightType,
        part: &MatrixPart,
        hidden: &Buffer,
        start: usize,
        sums: &PartialSums,
    ) -> Result<Self> {
        let down = |tokens: u32, skip: f64| {
            let tokens = ("TOKENS", f64::from(tokens));
            let overrides = [("DENSE", 1.0), ("SKIP", skip), ("STRIP", STRIP as f64), tokens];
            gpu.pipelines().get("sparse_down", Some(ty), DOWN_WORKGROUP, &overrides)
        };
        let offset = start as u64 * 4;
        let bindings = [
            part.main(),
            part.aux(gpu.nothing()),
            Binding::part(hidden, offset, hidden.bytes() - offset),
            gpu.nothing().into(),
            (&sums.buffer).into(),
        ];
        let all = Op::new(gpu, &down(1, 0.0)?, &bindings)?;
        let gemm = gpu.pipelines().get("gemm_neurons", Some(ty), GEMM_WORKGROUP, &[])?;
        let [main, aux, hidden, _, sums_of] = bindings;
        let many = Op::new(gpu, &gemm, &[main, aux, hidden, sums_of])?;
        Ok(NeuronRows {
            neurons: part.rows().len(),
            sums: sums.clone(),
            fired: all.variant(&down(1, 1.0)?),
            few: all.variant(&down(SPARSE_DOWN_TOKENS, 0.0)?),
            many,
            all,
        })
    }

    /// Records their part of the sums; rows of hidden activations are `pitch` apart. `skip`: many are zero.
    pub fn record(&self, recorder: &mut Recorder, pitch: usize, skip: bool, shares: &mut Shares) {
        self.record_first(recorder, (self.neurons, pitch), skip, shares);
    }

    /// The same of the first `neurons` of them alone.
    pub fn record_first(
        &self,
        recorder: &mut Recorder,
        (neurons, pitch): (usize, usize),
        skip: bool,
        shares: &mut Shares,
    ) {
        let tokens = shares.tokens;
        // Workgroups across the columns and the tokens of a share.
        let (across, groups, op) = match (tokens, skip) {
            (1, true) => (strips(self.sums.chunks), 1, &self.fired),
            (1, false) => (strips(self.sums.chunks), 1, &self.all),
            (..=FEW, _) => (strips(self.sums.chunks), tokens.div_ceil(SPARSE_DOWN_TOKENS as usize), &self.few),
            _ => {
                let at_once = self.many.pipeline().workgroup() as usize / 2;
                ((self.sums.chunks * 32).div_ceil(GEMM_NEURONS_COLUMNS as usize), tokens.div_ceil(at_once), &self.many)
            }
        };
        let wanted = WORKGROUPS / (across * groups) * neurons / shares.neurons;
        let wanted = wanted.min(neurons / LEAST_SHARE).max(1);
        // One stays free for the CPU's.
        let room = (self.sums.rows / tokens).saturating_sub(shares.used + 1);
        let fresh = shares.used == 0 || (tokens == 1 && room > 0);
        let (first, splits) = if fresh { (shares.used, wanted.min(room).max(1)) } else { (0, wanted.min(shares.used)) };
        if fresh {
            shares.used += splits;
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
        // In tiles, neighbours share weights.
        let grid = if tokens > FEW { [groups, across, splits] } else { [across, splits, groups] };
        recorder.dispatch(op, &params, grid.map(|n| n as u32));
    }
}

/// `y[t] = sum of all shares + b`
#[derive(Debug)]
pub(super) struct Sum {
    gpu: Gpu,
    op: Op,
    cols: usize,
    chunks: usize,
}

impl Sum {
    /// Into rows of `y`, [`pitch`]`(cols)` apart.
    pub fn new(gpu: &Gpu, sums: &PartialSums, bias: Option<&Buffer>, y: &Buffer, cols: usize) -> Result<Self> {
        let has_bias = [("HAS_BIAS", f64::from(u8::from(bias.is_some())))];
        let pipeline = gpu.pipelines().get("sum_splits", None, WORKGROUP, &has_bias)?;
        let bindings = [(&sums.buffer).into(), bias.unwrap_or(gpu.nothing()).into(), y.into()];
        Ok(Sum { gpu: gpu.clone(), op: Op::new(gpu, &pipeline, &bindings)?, cols, chunks: sums.chunks })
    }

    /// Records it; without any shares `y` is the bias.
    pub fn record(&self, recorder: &mut Recorder, shares: &Shares) {
        let (grid, stride) = flat_grid(&self.gpu, shares.tokens * self.cols, self.op.pipeline().workgroup());
        let params = params::SumSplits {
            cols: self.cols as u32,
            pitch: pitch(self.cols) as u32,
            tokens: shares.tokens as u32,
            splits: shares.used as u32,
            partial_pitch: self.chunks as u32 * 32,
            stride,
        };
        recorder.dispatch(&self.op, &params, grid);
    }
}

/// `y[t] = sum over neurons of hidden[t, n] * W[n] + b`, all neurons of one matrix.
#[derive(Debug)]
pub(super) struct NeuronsDown {
    parts: Vec<NeuronRows>,
    sum: Sum,
    neurons: usize,
    skip: bool,
    /// Multiply-adds of a token.
    pub work: u64,
}

impl NeuronsDown {
    /// `before` is another layer's.
    pub fn new(
        loader: &mut Loader<'_, '_>,
        before: Option<&NeuronsDown>,
        linear: &Linear,
        hidden: &Buffer,
        y: &Buffer,
    ) -> Result<Self> {
        let (gpu, weight) = (loader.gpu, &linear.weight);
        let (neurons, cols, ty) = (weight.rows(), weight.cols(), device_type(weight.ty()));
        // Each part sees the hidden activations from its first neuron on, so that begins where a binding may.
        let step = most_rows(gpu, ty, cols, (gpu.caps().binding_alignment.max(16) / 4) as usize);
        let sums = match before.and_then(|before| before.parts.first()).filter(|rows| rows.sums.fits(ty, cols)) {
            Some(rows) => rows.sums.clone(),
            None => PartialSums::new(loader, ty, cols)?,
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
                return Err(Error::Memory { what: "FFN weights of a few neurons", wanted, available });
            };
            parts.push(NeuronRows::new(gpu, ty, part, hidden, start, &sums)?);
        }
        let sum = Sum::new(gpu, &sums, bias.as_ref(), y, cols)?;
        let (skip, work) = (loader.config.activation.is_sparse(), (neurons * cols) as u64);
        Ok(NeuronsDown { parts, sum, neurons, skip, work })
    }

    /// Records it for the first `tokens` rows.
    pub fn record(&self, recorder: &mut Recorder, tokens: usize) {
        let mut shares = Shares::new(tokens, self.neurons);
        for part in &self.parts {
            part.record(recorder, pitch(self.neurons), self.skip, &mut shares);
        }
        self.sum.record(recorder, &shares);
    }
}

/// Most rows of `cols` weights that one binding holds, a multiple of `unit` and at least that.
pub(super) fn most_rows(gpu: &Gpu, ty: WeightType, cols: usize, unit: usize) -> usize {
    let caps = gpu.caps();
    let most = caps.max_binding.min(caps.max_buffer).min(1 << 31).saturating_sub(caps.binding_alignment.max(16));
    let units = (most / ty.row_bytes(cols).max(1) as u64) as usize / unit.max(1);
    units.max(1) * unit.max(1)
}
