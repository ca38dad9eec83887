//! Attention of a block of queries to a run of one head's keys and values, in tiles. It keeps the
//! running maximum and sum of an online softmax (Milakov and Gimelshein 2018; Dao et al. 2022).
//! Decoding and prompts differ only in their blocks.

use std::ops::Range;

use half::{bf16, f16};

use super::{
    KvRows,
    attention_window::SeenKeys,
    kv_rows::RowData,
    math::{exp, tanh},
};
use crate::{
    Isa,
    scratch::{AlignedBuffer, LINE},
    simd::vector::{
        Vector, VectorKernel, dispatch,
        tile::{TILE, query_key, weigh},
    },
};

/// Prefetch distance in bytes ahead of the rows being decoded. The hardware prefetcher does not
/// suffice. It stops at page boundaries, and loses the stream of keys while values are read.
const AHEAD: isize = 8 << 10;

/// A block of queries with the state of its online softmax, and scratch memory for a tile of keys
/// and values. Buffers grow and are kept.
#[derive(Debug, Default)]
pub(super) struct QueryBlock {
    /// Number of query rows.
    rows: usize,
    /// Widths of the rows, in elements.
    widths: RowWidths,
    /// `[rows, widths.keys]`, already scaled.
    q: AlignedBuffer<f32>,
    /// `[rows, widths.values]`, sums of values weighted by `e^(score - max)`.
    out: AlignedBuffer<f32>,
    /// `[rows]`, largest score so far.
    max: AlignedBuffer<f32>,
    /// `[rows]`, sums of the weights.
    sum: AlignedBuffer<f32>,
    /// `[rows, TILE]`
    scores: AlignedBuffer<f32>,
    /// `[TILE, width]`, first for keys, then for values.
    tile: AlignedBuffer<f32>,
    /// `[rows, widths.values + 2]`, over the ranges of positions so far: a row's sum of values,
    /// maximum score and sum of weights.
    total: AlignedBuffer<f32>,
}

/// Elements of a cache's rows, padding included. Queries are as wide as keys, outputs as wide as
/// values.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct RowWidths {
    pub(super) keys: usize,
    pub(super) values: usize,
}

impl QueryBlock {
    /// Bytes held.
    pub(super) fn bytes(&self) -> u64 {
        let buffers = [&self.q, &self.out, &self.max, &self.sum, &self.scores, &self.tile, &self.total];
        buffers.iter().map(|buffer| buffer.bytes()).sum()
    }

    /// Restarts with `rows` queries of these widths.
    pub(super) fn start(&mut self, rows: usize, widths: RowWidths) {
        (self.rows, self.widths) = (rows, widths);
        let width = widths.values;
        for total in self.total.take(rows * (width + 2)).chunks_exact_mut(width + 2) {
            total.fill(0.0);
            total[width] = f32::NEG_INFINITY;
        }
        self.start_range();
    }

    /// Starts another range of positions with the same queries.
    fn start_range(&mut self) {
        let (rows, width) = (self.rows, self.widths.values);
        self.out.take(rows * width).fill(0.0);
        self.max.take(rows).fill(f32::NEG_INFINITY);
        self.sum.take(rows).fill(0.0);
    }

    /// Copies a range's sums of values, maxima and sums of weights to `to`, `[rows * (width + 2)]`.
    pub(super) fn store_range(&self, to: &mut [f32]) {
        let (rows, width) = (self.rows, self.widths.values);
        let (values, rest) = to.split_at_mut(rows * width);
        values.copy_from_slice(self.out.get(rows * width));
        rest[..rows].copy_from_slice(self.max.get(rows));
        rest[rows..].copy_from_slice(self.sum.get(rows));
    }

    /// Adds a range that another block stored in `from` to the ranges before it.
    pub(super) fn add_range(&mut self, isa: Isa, from: &[f32]) {
        let (rows, width) = (self.rows, self.widths.values);
        let (values, rest) = from.split_at(rows * width);
        for (row, total) in self.total.take(rows * (width + 2)).chunks_exact_mut(width + 2).enumerate() {
            let part = RangeSums { values: &values[row * width..][..width], max: rest[row], sum: rest[rows + row] };
            dispatch(isa, AddRange { total, part });
        }
    }

    /// Ends a range of positions, and adds it to the ranges before it.
    pub(super) fn end_range(&mut self, isa: Isa) {
        let (rows, width) = (self.rows, self.widths.values);
        let (values, max, sum) = (self.out.get(rows * width), self.max.get(rows), self.sum.get(rows));
        for (row, total) in self.total.take(rows * (width + 2)).chunks_exact_mut(width + 2).enumerate() {
            let part = RangeSums { values: &values[row * width..][..width], max: max[row], sum: sum[row] };
            dispatch(isa, AddRange { total, part });
        }
        self.start_range();
    }

    /// Sum of values, maximum score and sum of weights of query `row`, over all ranges.
    pub(super) fn total(&self, row: usize) -> &[f32] {
        let width = self.widths.values + 2;
        &self.total.get((row + 1) * width)[row * width..]
    }

    /// Sets query `row` to `query` times `scale`.
    pub(super) fn set_query(&mut self, row: usize, query: &[f32], scale: f32) {
        let width = self.widths.keys;
        let (used, padding) = self.q.take(self.rows * width)[row * width..][..width].split_at_mut(query.len());
        for (to, from) in used.iter_mut().zip(query) {
            *to = from * scale;
        }
        padding.fill(0.0);
    }
}

/// Biases of scores that depend on the position of the key (ALiBi).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PositionBias<'a> {
    /// Bias per position, for each query head.
    pub slopes: &'a [f32],
    /// Factor of all biases.
    pub scale: f32,
    /// True if biases fall with the distance of query and key. Otherwise they grow with the key's
    /// position, which is the same for queries that read no later keys.
    pub by_distance: bool,
}

impl PositionBias<'_> {
    /// The bias of query head `head` at position `query` for the key at position `key`. Biases by
    /// the key's position are rounded to bfloat16, because models with such biases are trained so.
    pub(super) fn at(&self, head: usize, query: usize, key: usize) -> f32 {
        match self.by_distance {
            true => -self.scale * self.slopes[head] * query.abs_diff(key) as f32,
            false => self.scale * bf16::from_f32(self.slopes[head] * key as f32).to_f32(),
        }
    }
}

/// Attention of every query of `block` to the keys at positions `visit`, limited by its mask. Query
/// `row` is at position `first + row / group`.
pub(super) struct Attend<'a> {
    pub(super) block: &'a mut QueryBlock,
    pub(super) keys: &'a KvRows,
    pub(super) values: &'a KvRows,
    pub(super) visit: Range<usize>,
    pub(super) first: usize,
    pub(super) group: usize,
    pub(super) seen: SeenKeys<'a>,
    pub(super) softcap: Option<f32>,
    /// The biases of the `group` query heads.
    pub(super) bias: Option<PositionBias<'a>>,
}

impl VectorKernel for Attend<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let QueryBlock { rows, widths, q, out, max, sum, scores, tile, .. } = self.block;
        let (rows, RowWidths { keys: width, values: out_width }) = (*rows, *widths);
        let (q, out, max, sum) = (q.get(rows * width), out.take(rows * out_width), max.take(rows), sum.take(rows));
        let (scores, tile) = (scores.take(rows * TILE), tile.take(TILE * width.max(out_width)));
        // Tiles start at multiples of their size, so that a query's result does not depend on its
        // block. In a ring of whole tiles no tile wraps.
        let mut start = self.visit.start / TILE * TILE;
        while start < self.visit.end {
            let n = TILE.min(self.visit.end - start);
            let k = decode(v, self.keys.data(), self.keys.place(start), n, width, tile);
            query_key(v, q, k, width, rows, n, scores);
            for row in 0..rows {
                let position = self.first + row / self.group;
                let seen = self.seen.of(position);
                let seen = seen.start.max(self.visit.start)..seen.end.min(start + n);
                let seen = seen.start.max(start) - start..seen.end.max(start) - start;
                let scores = &mut scores[row * TILE..][..TILE];
                if let Some(bias) = self.bias {
                    let biased = scores.iter_mut().zip(start..).take(n);
                    biased.for_each(|(score, key)| *score += bias.at(row % self.group, position, key));
                }
                let out = &mut out[row * out_width..][..out_width];
                soften(v, scores, seen, self.softcap, &mut max[row], &mut sum[row], out);
            }
            if std::ptr::eq(self.keys, self.values) {
                weigh(v, scores, k, width, rows, n, out);
            } else {
                let values = decode(v, self.values.data(), self.values.place(start), n, out_width, tile);
                weigh(v, scores, values, out_width, rows, n, out);
            }
            start += TILE;
        }
    }
}

/// Returns rows `start..start + n` as f32: in place if they are stored as f32, otherwise decoded
/// into `tile`.
#[inline(always)]
fn decode<'a, V: Vector>(
    v: V,
    data: &'a RowData,
    start: usize,
    n: usize,
    width: usize,
    tile: &'a mut [f32],
) -> &'a [f32] {
    let range = start * width..(start + n) * width;
    let used = &mut tile[..n * width];
    match data {
        RowData::F32(data) if n == TILE => return &data[range],
        RowData::F32(data) => used.copy_from_slice(&data[range]),
        RowData::F16(data) => {
            let of_line = LINE / size_of::<f16>();
            for (to, line) in used.chunks_mut(of_line).zip(data[range].chunks(of_line)) {
                v.prefetch(line, AHEAD);
                for (to, from) in to.chunks_exact_mut(V::LANES).zip(line.chunks_exact(V::LANES)) {
                    v.store(to, v.load_f16(from));
                }
            }
        }
        RowData::Q8_0 { quants, scales } => {
            let scales = &scales[range.start / 32..range.end / 32];
            let groups = used.chunks_mut(32 * 16).zip(quants[range].chunks(32 * 16));
            for ((to, from), scales) in groups.zip(scales.chunks(16)) {
                v.prefetch(from, AHEAD);
                v.prefetch(scales, AHEAD / 16);
                let mut wide = [0.0; 16];
                widen(v, scales, &mut wide);
                for ((to, from), scale) in to.chunks_exact_mut(32).zip(from.chunks_exact(32)).zip(wide) {
                    let scale = v.splat(scale);
                    for (to, from) in to.chunks_exact_mut(V::LANES).zip(from.chunks_exact(V::LANES)) {
                        v.store(to, v.mul(v.load_i8(from), scale));
                    }
                }
            }
        }
    }
    tile
}

/// Widens up to 16 scales to f32.
#[inline(always)]
fn widen<V: Vector>(v: V, scales: &[f16], wide: &mut [f32; 16]) {
    let mut padded = [f16::ZERO; 16];
    padded[..scales.len()].copy_from_slice(scales);
    for (to, from) in wide.chunks_exact_mut(V::LANES).zip(padded.chunks_exact(V::LANES)) {
        v.store(to, v.load_f16(from));
    }
}

/// Replaces one query's scores, `[TILE]`, by its softmax weights `e^(score - max)`. Caps the
/// scores, and gives keys outside `seen` the weight 0. Rescales the sums so far if the maximum
/// grew.
#[inline(always)]
fn soften<V: Vector>(
    v: V,
    scores: &mut [f32],
    seen: Range<usize>,
    softcap: Option<f32>,
    max: &mut f32,
    sum: &mut f32,
    out: &mut [f32],
) {
    if seen.is_empty() {
        scores.fill(0.0);
        return;
    }
    if let Some(cap) = softcap {
        let (factor, inverse) = (v.splat(cap), v.splat(1.0 / cap));
        for s in scores.chunks_exact_mut(V::LANES) {
            v.store(s, v.mul(factor, tanh(v, v.mul(v.load(s), inverse))));
        }
    }
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..].fill(f32::NEG_INFINITY);
    let mut top = v.splat(f32::NEG_INFINITY);
    for s in scores.chunks_exact(V::LANES) {
        top = v.max(v.load(s), top);
    }
    let top = v.max_lane(top);
    if top > *max {
        let factor = (*max - top).exp();
        *max = top;
        *sum *= factor;
        let factor = v.splat(factor);
        for o in out.chunks_exact_mut(V::LANES) {
            v.store(o, v.mul(v.load(o), factor));
        }
    }
    let base = v.splat(*max);
    let mut total = v.splat(0.0);
    for s in scores.chunks_exact_mut(V::LANES) {
        let p = exp(v, v.sub(v.load(s), base));
        total = v.add(total, p);
        v.store(s, p);
    }
    *sum += v.sum(total);
}

/// Sums of one query over a range of positions.
#[derive(Debug, Clone, Copy)]
pub(super) struct RangeSums<'a> {
    /// Sum of values weighted by `e^(score - max)`.
    pub(super) values: &'a [f32],
    /// Largest score. Negative infinity if no key is seen.
    pub(super) max: f32,
    /// Sum of the weights.
    pub(super) sum: f32,
}

/// Adds a range of positions to `total`, which holds the ranges before it: `[width + 2]`, sum of
/// values, maximum score and sum of weights. Ranges are added in order of positions, for one token
/// as for many.
pub(super) struct AddRange<'a> {
    pub(super) total: &'a mut [f32],
    pub(super) part: RangeSums<'a>,
}

impl VectorKernel for AddRange<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let RangeSums { values, max, sum } = self.part;
        let (total, rest) = self.total.split_at_mut(values.len());
        if max == f32::NEG_INFINITY {
            return;
        }
        let highest = max.max(rest[0]);
        let (before, now) = ((rest[0] - highest).exp(), (max - highest).exp());
        rest.copy_from_slice(&[highest, rest[1] * before + sum * now]);
        let (before, now) = (v.splat(before), v.splat(now));
        for (to, from) in total.chunks_exact_mut(V::LANES).zip(values.chunks_exact(V::LANES)) {
            v.store(to, v.mul_add(v.load(from), now, v.mul(v.load(to), before)));
        }
    }
}

/// `out = values / sum of weights` over all ranges.
pub(super) struct Finish<'a> {
    /// As in [`AddRange`].
    pub(super) total: &'a [f32],
    /// Score of a key without a value. It contributes only to the sum of weights.
    pub(super) sink: Option<f32>,
    pub(super) out: &'a mut [f32],
}

impl VectorKernel for Finish<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let (values, rest) = self.total.split_at(self.total.len() - 2);
        let max = rest[0].max(self.sink.unwrap_or(f32::NEG_INFINITY));
        let of_values = (rest[0] - max).exp();
        let sum = rest[1] * of_values + self.sink.map_or(0.0, |sink| (sink - max).exp());
        let factor = of_values / sum;
        // Rows are padded, but outputs are not.
        let values = &values[..self.out.len()];
        let mut to = self.out.chunks_exact_mut(V::LANES);
        let mut from = values.chunks_exact(V::LANES);
        for (to, from) in to.by_ref().zip(from.by_ref()) {
            v.store(to, v.mul(v.load(from), v.splat(factor)));
        }
        for (to, from) in to.into_remainder().iter_mut().zip(from.remainder()) {
            *to = factor * from;
        }
    }
}
