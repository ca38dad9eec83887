//! Products of weights and activations: the entry points, and the path of one token.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    Cpu, code_panels, few_tokens, gemm, paged_reads,
    pool::{ColumnsMut, split_columns},
    product_input::QuantisedInputBuffer,
    row_selection::{AHEAD, RowSelection, prefetch_distance},
    simd::{DOT_ROWS, GatheredRow},
};
use thermocline_formats::{format::Matrix, quant::BlockType};

/// Bytes of weights that a worker takes at a time. Long enough that a stream of reads is rarely
/// interrupted, short enough that workers finish at about the same time.
const CHUNK_BYTES: usize = 96 << 10;

/// Fewest bytes of weights that are worth waking a worker.
const LEAST_CHUNK_BYTES: usize = 8 << 10;

/// Bytes of the next product that a waiting worker prefetches: a part of a second-level cache.
const PREFETCH_BYTES: usize = 256 << 10;

/// One product among several that share their input.
#[derive(Debug)]
pub struct MatmulJob<'a> {
    /// `[rows, cols]` weights.
    pub weight: &'a Matrix,
    /// Added to every output row, `[rows]`.
    pub bias: Option<&'a [f32]>,
    /// `[tokens, rows]`; overwritten.
    pub out: &'a mut [f32],
}

/// A product with selected rows of a matrix: `out[t, i] = W[rows[i]] x[t] + bias[rows[i]]`.
#[derive(Debug)]
pub struct RowsJob<'a> {
    /// `[all rows, cols]` weights.
    pub weight: &'a Matrix,
    /// Biases of all rows.
    pub bias: Option<&'a [f32]>,
    /// Row indices. `None` for all rows.
    pub rows: Option<&'a [u32]>,
    /// `[tokens, selected rows]`; overwritten.
    pub out: &'a mut [f32],
}

impl RowsJob<'_> {
    pub(super) fn selection(&self) -> RowSelection<'_> {
        self.rows.map_or(RowSelection::All, RowSelection::Listed)
    }

    fn check(&self, x: &[f32], tokens: usize) {
        let (rows, cols) = (self.weight.rows(), self.weight.cols());
        assert_eq!(x.len(), tokens * cols, "activations of {tokens} tokens, {cols} columns");
        assert_eq!(self.out.len(), tokens * self.selection().len(rows), "outputs of {tokens} tokens");
        assert!(self.bias.is_none_or(|bias| bias.len() == rows), "biases of {rows} rows");
    }
}

/// The method for a product of several tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    /// See [`code_panels`].
    Panels,
    /// See [`few_tokens`].
    FewTokens,
    /// See [`gemm`].
    Tiles,
}

/// Rows of one job that a worker takes at a time in a product of several tokens.
pub(super) struct RowBlock<'a> {
    pub weight: &'a Matrix,
    bias: Option<&'a [f32]>,
    pub selection: RowSelection<'a>,
    /// Index of the first row among the selected rows.
    pub first: usize,
    pub out: ColumnsMut<'a>,
}

impl<'a> RowBlock<'a> {
    /// Divides the rows of each job into blocks of `width(weight)` rows.
    pub fn split(jobs: &'a mut [RowsJob<'_>], width: impl Fn(&Matrix) -> usize) -> Vec<Self> {
        let mut blocks = Vec::new();
        for RowsJob { weight, bias, rows, out } in jobs {
            let (bias, selection) = (*bias, rows.map_or(RowSelection::All, RowSelection::Listed));
            let (rows, width) = (selection.len(weight.rows()), width(weight));
            if rows > 0 {
                let columns = split_columns(out, rows, width).into_iter().enumerate();
                blocks.extend(columns.map(|(at, out)| RowBlock { weight, bias, selection, first: at * width, out }));
            }
        }
        blocks
    }

    /// Applies the matrix's factor and the biases to a token's products for `rows` of the block.
    pub fn finish(&mut self, token: usize, rows: Range<usize>) {
        let out = &mut self.out.row_mut(token)[rows.clone()];
        self.weight.scale(out);
        if let Some(bias) = self.bias {
            rows.zip(out).for_each(|(at, out)| *out += bias[self.selection.get(self.first + at)]);
        }
    }
}

/// Consecutive rows of one job (of the matrix or of the list of selected rows), and their outputs.
struct RowRun<'a> {
    weight: &'a Matrix,
    bias: Option<&'a [f32]>,
    selection: RowSelection<'a>,
    first: usize,
    /// Index of the rows' input.
    input: usize,
    out: &'a mut [f32],
}

impl Cpu {
    /// `out[t] = W x[t] + bias` for every job. `x` is `[tokens, cols]`, one for all jobs.
    ///
    /// Quantised weights use `x` in the precision of [`InputPrecision`](super::InputPrecision),
    /// float weights use it unrounded. The result does not depend on the number of threads. A
    /// token's result is bit-identical alone and in a pass of up to [`Cpu::same_bits`] tokens.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn matmul(&self, jobs: &mut [MatmulJob<'_>], x: &[f32], tokens: usize) {
        let jobs =
            jobs.iter_mut().map(|job| RowsJob { weight: job.weight, bias: job.bias, rows: None, out: &mut *job.out });
        self.matmul_rows(&mut jobs.collect::<SmallVec<[_; 4]>>(), x, tokens);
    }

    /// Most tokens of a pass in which every token's product with `weight` has the bits of the token
    /// computed alone.
    pub fn same_bits(&self, weight: &Matrix) -> usize {
        match self.codes_of(weight) {
            Some(ty) if !self.sums_in_lanes(ty) => self.panel_tokens(),
            None if few_tokens::takes_any(self, weight) => usize::MAX,
            _ => few_tokens::most(self, weight),
        }
    }

    /// Computes [`Cpu::matmul`] for selected rows of every job, and reads only these rows. Each
    /// row's result equals that of [`Cpu::matmul`].
    ///
    /// # Panics
    /// If shapes disagree, or a row does not exist.
    pub fn matmul_rows(&self, jobs: &mut [RowsJob<'_>], x: &[f32], tokens: usize) {
        jobs.iter().for_each(|job| job.check(x, tokens));
        if x.is_empty() {
            // Without tokens or columns only the bias remains.
            for RowsJob { weight, bias, rows, out } in jobs {
                let selection = rows.map_or(RowSelection::All, RowSelection::Listed);
                for token in out.chunks_exact_mut(selection.len(weight.rows()).max(1)) {
                    let bias = |at| bias.map_or(0.0, |bias| bias[selection.get(at)]);
                    token.iter_mut().enumerate().for_each(|(at, out)| *out = bias(at));
                }
            }
            return;
        }
        paged_reads::of_jobs(jobs);
        if tokens == 1 {
            return self.matvec(jobs, &[x]);
        }
        let path = |job: &RowsJob<'_>| self.path(job.weight, tokens);
        for jobs in jobs.chunk_by_mut(|a, b| path(a) == path(b)) {
            match path(&jobs[0]) {
                Path::Panels => code_panels::matmul(self, jobs, x, tokens),
                Path::FewTokens => few_tokens::matmul(self, jobs, x, tokens),
                Path::Tiles => gemm::matmul(self, jobs, x, tokens),
            }
        }
    }

    /// Chooses the path of a product of several tokens.
    fn path(&self, weight: &Matrix, tokens: usize) -> Path {
        let few = tokens <= few_tokens::most(self, weight) || few_tokens::takes_any(self, weight);
        match self.codes_of(weight) {
            Some(ty) if few && self.sums_in_lanes(ty) => Path::FewTokens,
            Some(_) if tokens <= self.panel_tokens() => Path::Panels,
            None if few => Path::FewTokens,
            _ => Path::Tiles,
        }
    }

    /// True if products of one token with codes of `ty` are summed in lanes, in an order of their
    /// own.
    pub(super) fn sums_in_lanes(&self, ty: BlockType) -> bool {
        self.kernels.lanes.is_some_and(|lanes| (lanes.has)(ty))
    }

    /// Most tokens of a product that uses panels of codes.
    fn panel_tokens(&self) -> usize {
        if self.kernels.code_tiles.is_some() { code_panels::LESS_THAN_TILES } else { usize::MAX }
    }

    /// Computes [`Cpu::matmul_rows`] for jobs with separate inputs, `[tokens, cols]` each. All
    /// products of one token are one piece of work, so that workers stay busy even if each product
    /// is small.
    ///
    /// # Panics
    /// If the numbers of inputs and jobs differ, shapes disagree, or a row does not exist.
    pub fn matmul_each(&self, jobs: &mut [RowsJob<'_>], inputs: &[&[f32]], tokens: usize) {
        assert_eq!(inputs.len(), jobs.len(), "inputs of {} products", jobs.len());
        if tokens != 1 || inputs.iter().any(|x| x.is_empty()) {
            let jobs = jobs.chunks_mut(1).zip(inputs);
            return jobs.for_each(|(job, x)| self.matmul_rows(job, x, tokens));
        }
        jobs.iter().zip(inputs).for_each(|(job, x)| job.check(x, 1));
        paged_reads::of_jobs(jobs);
        self.matvec(jobs, inputs);
    }

    /// Announces the matrices that the next product of one token will read in full and in one call.
    /// Each idle worker prefetches the beginning of its share of them. Replaces the previous list.
    /// An empty list ends the prefetching.
    pub fn prefetch(&self, weights: &[&Matrix]) {
        let chunk = self.chunk_of(weights.iter().map(|weight| weight.byte_len()).sum());
        let items = |weight: &Matrix| weight.rows().div_ceil(rows_of(chunk, weight));
        let (n, threads) = (weights.iter().map(|weight| items(weight)).sum::<usize>(), self.pool().threads());
        self.pool().prefetch(|worker| {
            let mut first = n * worker / threads;
            for weight in weights {
                if first < items(weight) {
                    let bytes = &weight.data()[first * rows_of(chunk, weight) * weight.stride()..];
                    return &bytes[..bytes.len().min(PREFETCH_BYTES)];
                }
                first -= items(weight);
            }
            &[]
        });
    }

    /// Bytes of weights that a worker takes at a time, if there are `bytes` in all.
    pub(super) fn chunk_of(&self, bytes: usize) -> usize {
        (bytes / (4 * self.pool().threads())).clamp(LEAST_CHUNK_BYTES, CHUNK_BYTES)
    }

    /// Bytes of weights of `jobs` that a worker takes at a time.
    pub(super) fn chunk_of_jobs(&self, jobs: &[RowsJob<'_>]) -> usize {
        let bytes = |job: &RowsJob<'_>| job.selection().len(job.weight.rows()) * job.weight.row_bytes();
        self.chunk_of(jobs.iter().map(bytes).sum())
    }

    /// `out[r] = W[r] . x` for consecutive rows of `weight`. `codes` are the codes of `x`.
    fn dot_rows(
        &self,
        weight: &Matrix,
        rows: &[u8],
        x: &[f32],
        codes: &QuantisedInputBuffer,
        ahead: isize,
        out: &mut [f32],
    ) {
        match self.codes_of(weight) {
            Some(ty) => (self.kernels.dot_codes)(ty, rows, codes.row(), ahead, out),
            None => self.kernels.dot_floats(weight.weight_type(), rows, x, ahead, out),
        }
    }

    /// `out[i]` is the product of selected row `first + i` with `x`. `codes` are the codes of `x`.
    pub(super) fn dot_selected(
        &self,
        weight: &Matrix,
        selection: RowSelection<'_>,
        first: usize,
        x: &[f32],
        codes: &QuantisedInputBuffer,
        out: &mut [f32],
    ) {
        let n = selection.len(weight.rows());
        let gathered = |at: usize| GatheredRow {
            row: weight.row(selection.get(at)),
            ahead: prefetch_distance(weight, at, n, DOT_ROWS, |at| selection.get(at)),
        };
        let one = |of: GatheredRow<'_>, out: &mut f32| {
            self.dot_rows(weight, of.row, x, codes, of.ahead, std::slice::from_mut(out));
        };
        let (groups, rest) = out.as_chunks_mut::<DOT_ROWS>();
        let mut at = first;
        for out in groups {
            let rows: [_; DOT_ROWS] = std::array::from_fn(|row| gathered(at + row));
            match self.codes_of(weight) {
                Some(ty) => self.kernels.dot_gathered(ty, &rows, codes.row(), out),
                None => rows.into_iter().zip(out).for_each(|(of, out)| one(of, out)),
            }
            at += DOT_ROWS;
        }
        (at..).zip(rest).for_each(|(at, out)| one(gathered(at), out));
    }

    /// Multiplies for one token. There is one input per job, or one for all jobs.
    fn matvec(&self, jobs: &mut [RowsJob<'_>], inputs: &[&[f32]]) {
        self.scratch.with(|scratch| {
            let codes = &mut scratch.rows;
            codes.resize_with(codes.len().max(inputs.len()), Default::default);
            if jobs.iter().any(|job| self.codes_of(job.weight).is_some()) {
                codes.iter_mut().zip(inputs).for_each(|(codes, x)| codes.fill_for_dots(self.kernels, x));
            }
            let bytes: usize = jobs.iter().map(|job| job.out.len() * job.weight.row_bytes()).sum();
            let chunk = self.chunk_of(bytes);
            let mut items: Vec<RowRun<'_>> = Vec::with_capacity(bytes / chunk + jobs.len());
            for (job, RowsJob { weight, bias, rows: chosen, out }) in jobs.iter_mut().enumerate() {
                let (rows, input) = (rows_of(chunk, weight), job.min(inputs.len() - 1));
                let selection = chosen.map_or(RowSelection::All, RowSelection::Listed);
                let parts = out.chunks_mut(rows).enumerate();
                items.extend(parts.map(|(at, out)| RowRun {
                    weight,
                    bias: *bias,
                    selection,
                    first: at * rows,
                    input,
                    out,
                }));
            }
            let codes = &*codes;
            self.pool().for_each(&mut items, |_, RowRun { weight, bias, selection, first, input, out }| {
                let (x, codes) = (inputs[*input], &codes[*input]);
                match selection {
                    RowSelection::All if weight.is_contiguous() => {
                        let rows = &weight.data()[*first * weight.row_bytes()..][..out.len() * weight.row_bytes()];
                        self.dot_rows(weight, rows, x, codes, AHEAD as isize, out);
                    }
                    _ => self.dot_selected(weight, *selection, *first, x, codes, out),
                }
                weight.scale(out);
                if let Some(bias) = bias {
                    (*first..).zip(out.iter_mut()).for_each(|(at, out)| *out += bias[selection.get(at)]);
                }
            });
        });
    }
}

/// Number of rows in `chunk` bytes.
pub(super) fn rows_of(chunk: usize, weight: &Matrix) -> usize {
    (chunk / weight.row_bytes().max(1)).max(1)
}

#[cfg(test)]
pub(super) mod tests;
