//! The head on the device: final norm, output matrix, soft-cap and shortlist, from the residual
//! stream to logits.

use std::ops::Range;

use thermocline_shaders::limits::{TOP_K_MOST, TOP_K_RANGE};

use super::{
    elementwise::{WORKGROUP, flat_grid},
    embedding::Embedding,
    loader::GpuLoader,
    norm::{NormOp, NormWeights},
    product::Product,
    registers::Registers,
    segment::Segment,
};
use crate::runtime::MAX_SHORTLIST;
use thermocline_base::error::Result;
use thermocline_gpu::{
    Buffer, BufferRows, FEW_TOKENS, Gpu, MemoryUse, Op, Purpose, Recorder, WorkKind, params, pitch, work_of,
};
use thermocline_model::{Register, Weights};

const _: () = assert!(MAX_SHORTLIST as u32 == TOP_K_MOST);

/// Bytes of logits computed and read back at once.
const LOGITS_BYTES: usize = 4 << 20;

/// The operations and buffers of the head.
#[derive(Debug)]
pub(crate) struct Head {
    gpu: Gpu,
    /// `Normed = norm(Residual)`
    norm: NormOp,
    /// `Normed = norm(Normed)`, for rows of the residual stream that have been copied to `Normed`.
    in_place: NormOp,
    output: Product,
    /// The embedding, if it is the output matrix (tied weights).
    pub embedding: Option<Embedding>,
    /// `cap * tanh(logit / cap)`, and its cap.
    soft_cap: Option<(Op, f32)>,
    top: TopK,
    logits: Buffer,
    /// Rows of `logits`: the tokens that are computed and read back together.
    rows: usize,
    n_vocab: usize,
}

impl Head {
    pub fn new(loader: &mut GpuLoader<'_, '_>, registers: &Registers, weights: &Weights) -> Result<Self> {
        let (gpu, config) = (loader.gpu, loader.config);
        let row = pitch(config.n_vocab);
        // A few tokens are computed together, so that each has the steps of a single token.
        let most = LOGITS_BYTES.max(FEW_TOKENS * row * 4).min(gpu.caps().max_binding as usize);
        let rows = (most / (row * 4)).clamp(1, loader.chunk);
        let logits = loader.scratch("logits", rows * row)?;
        let [residual, normed, out] = [Register::Residual, Register::Normed, Register::Out].map(|it| registers.get(it));
        let norm = NormWeights::new(loader, &weights.output_norm)?;
        let what = MemoryUse { purpose: Purpose::Head, what: "the head" };
        let into = BufferRows { buffer: &logits, pitch: row };
        let output = Product::new(loader, what, &[&weights.output], normed, into)?;
        let embedding = match &output.matrices[..] {
            [matrix] => Embedding::new(loader, weights, matrix, residual)?,
            _ => None,
        };
        let soft_cap = match config.final_softcap {
            Some(cap) => Some((Op::of(gpu, "soft_cap", WORKGROUP, &[], &[&logits])?, cap)),
            None => None,
        };
        Ok(Head {
            gpu: gpu.clone(),
            norm: NormOp::new(loader, &norm, residual, Some(out), normed)?,
            in_place: NormOp::new(loader, &norm, normed, None, normed)?,
            output,
            embedding,
            soft_cap,
            top: TopK::new(loader, &logits, config.n_vocab)?,
            logits,
            rows,
            n_vocab: config.n_vocab,
        })
    }

    /// Bytes of the logits buffer.
    pub fn bytes(&self) -> u64 {
        self.logits.bytes()
    }

    /// Computes the logits of the chunk's `tokens`, `[tokens.len(), n_vocab]`. `due`: `Out` has not
    /// been added to the residual stream yet.
    pub fn logits(
        &self,
        segment: &mut Segment,
        registers: &Registers,
        due: bool,
        tokens: Range<usize>,
        logits: &mut [f32],
    ) -> Result<()> {
        let (end, row) = (tokens.end, pitch(self.n_vocab));
        let due = self.add_unless_in_norm(segment, registers, due, &tokens);
        for (start, logits) in tokens.step_by(self.rows).zip(logits.chunks_mut(self.rows * self.n_vocab)) {
            let rows = start..(start + self.rows).min(end);
            self.expect(segment, rows.len())?;
            self.record(segment.recorder(), registers, due, rows.clone());
            let bytes = (rows.len() * row * 4) as u64;
            segment.read(&[(&self.logits, 0, bytes)], |read| {
                for (to, from) in logits.chunks_exact_mut(self.n_vocab).zip(read.chunks_exact(row * 4)) {
                    bytemuck::cast_slice_mut(to).copy_from_slice(&from[..self.n_vocab * 4]);
                }
            })?;
        }
        Ok(())
    }

    /// Finds the `ids.len()` largest logits of `token` and their ids, in descending order.
    pub fn top(
        &self,
        segment: &mut Segment,
        registers: &Registers,
        due: bool,
        token: usize,
        ids: &mut [u32],
        logits: &mut [f32],
    ) -> Result<()> {
        let due = self.add_unless_in_norm(segment, registers, due, &(token..token + 1));
        self.expect(segment, 1)?;
        self.record(segment.recorder(), registers, due, token..token + 1);
        let (found_values, found_ids) = self.top.record(segment.recorder(), ids.len());
        let bytes = (ids.len() * 4) as u64;
        segment.read(&[(found_values, 0, bytes), (found_ids, 0, bytes)], |read| {
            let (values, which) = read.split_at(ids.len() * 4);
            bytemuck::cast_slice_mut(logits).copy_from_slice(values);
            bytemuck::cast_slice_mut(ids).copy_from_slice(which);
        })
    }

    /// Adds `Out` to the residual stream if the addition is due. If the first tokens are computed
    /// together, their norm adds `Out` instead, and the function returns true.
    fn add_unless_in_norm(
        &self,
        segment: &mut Segment,
        registers: &Registers,
        due: bool,
        tokens: &Range<usize>,
    ) -> bool {
        let in_norm = tokens.start == 0 && tokens.end <= self.rows;
        if due && !in_norm {
            registers.add.record(segment.recorder(), tokens.end);
        }
        due && in_norm
    }

    /// Announces the work of the logits of `tokens` tokens.
    fn expect(&self, segment: &mut Segment, tokens: usize) -> Result<()> {
        segment.expect(WorkKind::of(tokens), work_of(self.output.work, tokens))
    }

    /// Records the logits of the tokens `rows`, which must be at most `self.rows` tokens.
    fn record(&self, recorder: &mut Recorder, registers: &Registers, due: bool, rows: Range<usize>) {
        let (count, row_bytes) = (rows.len(), registers.row_bytes());
        if rows.start == 0 {
            self.norm.record(recorder, count, due);
        } else {
            let [residual, normed] = [Register::Residual, Register::Normed].map(|it| registers.get(it));
            recorder.copy(residual, rows.start as u64 * row_bytes, normed, 0, count as u64 * row_bytes);
            self.in_place.record(recorder, count, false);
        }
        self.output.record(recorder, count);
        if let Some((op, cap)) = &self.soft_cap {
            let (groups, stride) = flat_grid(&self.gpu, count * self.n_vocab, op.pipeline().workgroup());
            let [cols, pitch, rows] = [self.n_vocab, pitch(self.n_vocab), count].map(|n| n as u32);
            recorder.dispatch(op, &params::SoftCap { cols, pitch, rows, stride, cap: *cap }, groups);
        }
    }
}

/// Finds the `k` largest logits in rounds. Each round keeps `k` of every [`TOP_K_RANGE`] values,
/// until one workgroup is left.
#[derive(Debug)]
struct TopK {
    /// First round, from the logits to `lists[0]`.
    first: Op,
    /// Later rounds, from `lists[0]` to `lists[1]` and back.
    rounds: [Op; 2],
    /// Values and ids, `[workgroups of the first round, MAX_SHORTLIST]`.
    lists: [(Buffer, Buffer); 2],
    n_vocab: usize,
}

impl TopK {
    fn new(loader: &GpuLoader<'_, '_>, logits: &Buffer, n_vocab: usize) -> Result<Self> {
        let gpu = loader.gpu;
        // Elements of a list after the first round.
        let longest = n_vocab.div_ceil(TOP_K_RANGE as usize) * MAX_SHORTLIST;
        let list = || Ok((loader.scratch("a shortlist", longest)?, loader.scratch("a shortlist", longest)?));
        let lists = [list()?, list()?];
        let top_k = |first, of: [&Buffer; 4]| Op::of(gpu, "top_k", WORKGROUP, &[("FIRST", first)], &of);
        let round = |(values, ids): &(Buffer, Buffer), (to_values, to_ids): &(Buffer, Buffer)| {
            top_k(0.0, [values, ids, to_values, to_ids])
        };
        let [a, b] = &lists;
        Ok(TopK {
            first: top_k(1.0, [logits, gpu.nothing(), &a.0, &a.1])?,
            rounds: [round(a, b)?, round(b, a)?],
            lists,
            n_vocab,
        })
    }

    /// Records all rounds for `k` values; returns the buffers of the values and of their ids.
    fn record(&self, recorder: &mut Recorder, k: usize) -> (&Buffer, &Buffer) {
        let (mut len, mut into, mut op) = (self.n_vocab, 0, &self.first);
        loop {
            let groups = len.div_ceil(TOP_K_RANGE as usize);
            recorder.dispatch(op, &params::TopK { len: len as u32, k: k as u32 }, [groups as u32, 1, 1]);
            if groups == 1 {
                return (&self.lists[into].0, &self.lists[into].1);
            }
            (len, op) = (groups * k, &self.rounds[into]);
            into = 1 - into;
        }
    }
}
