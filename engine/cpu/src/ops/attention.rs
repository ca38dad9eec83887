//! Attention over cached keys and values, and its division into tasks for the workers.
//!
//! Reading the cache limits decoding. A decoding task is one key/value head and a range of
//! positions, which is read once for all query heads that share the head. The partial results are
//! then merged. Arithmetic limits prompts. A prompt task is a range of tokens, and owns the output
//! rows of these tokens. It visits the same ranges of positions and merges them in the same order.
//! A token's result is therefore bit-identical alone and in a prompt.

use std::ops::Range;

use parking_lot::Mutex;

use super::{
    AttentionWindow, HeadSizes, KvRows,
    attend::{Attend, Finish, PositionBias, QueryBlock, RowWidths},
    attention_window::SeenKeys,
    next,
};
use crate::{Cpu, simd::vector::dispatch};

/// Sizes and variants of attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionShape<'a> {
    /// Numbers and lengths of heads.
    pub heads: HeadSizes,
    /// Factor of query-key products.
    pub scale: f32,
    /// Caps scores: `cap * tanh(s / cap)`.
    pub softcap: Option<f32>,
    /// Keys that a query sees.
    pub window: AttentionWindow,
    /// `[n_head]`: for each query head the score of a key without a value, in addition to the keys
    /// that it sees (gpt-oss).
    pub sinks: Option<&'a [f32]>,
    /// Biases of scores that depend on the key's position.
    pub key_bias: Option<PositionBias<'a>>,
}

/// Queries of consecutive tokens.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// `[tokens, n_head * head_dim]`
    pub q: &'a [f32],
    /// Position of the first token.
    pub first: usize,
    /// Ranges of positions. A query in one of them also sees the later positions of its range:
    /// attention in both directions, within the window.
    pub whole: &'a [Range<usize>],
}

/// Keys and values that queries see, one set of rows per key/value head. Keys and values may be the
/// same rows, which are then read once.
#[derive(Debug, Clone, Copy)]
pub struct SeenRows<'a> {
    /// Keys.
    pub keys: &'a [KvRows],
    /// Values.
    pub values: &'a [KvRows],
}

impl AttentionShape<'_> {
    /// Sets the query rows that share key/value head `head`, from `q`, `[tokens, n_head *
    /// head_dim]`.
    fn set_queries(&self, block: &mut QueryBlock, q: &[f32], head: usize) {
        let (dim, group) = (self.heads.head_dim, self.heads.group());
        for (token, q) in q.chunks_exact(self.heads.n_head * dim).enumerate() {
            for (of_group, query) in q[head * group * dim..][..group * dim].chunks_exact(dim).enumerate() {
                block.set_query(token * group + of_group, query, self.scale);
            }
        }
    }

    fn sink(&self, head: usize) -> Option<f32> {
        self.sinks.map(|sinks| sinks[head])
    }

    /// The biases of the query heads that share key/value head `head`.
    fn bias_of_group(&self, head: usize) -> Option<PositionBias<'_>> {
        let group = self.heads.group();
        self.key_bias.map(|bias| PositionBias { slopes: &bias.slopes[head * group..][..group], ..bias })
    }
}

/// Buffers of [`Cpu::attention`], kept between calls.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    /// One block of queries per worker.
    blocks: Vec<Mutex<QueryBlock>>,
    /// Partial results of decoding tasks, `[tasks, rows * (width + 2)]`: each row's sum of values,
    /// maximum score and sum of weights.
    partials: Vec<f32>,
}

impl AttentionScratch {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (self.partials.capacity() * size_of::<f32>()) as u64
            + self.blocks.iter().map(|block| block.lock().bytes()).sum::<u64>()
    }
}

/// Most tokens of a pass that is divided into decoding tasks.
const FEW_TOKENS: usize = 8;
/// Positions of a decoding task. The number is fixed, so that results do not depend on the number
/// of workers.
const RANGE: usize = 256;
/// Positions prefetched at the start of a task. The hardware prefetcher does the rest.
const PREFETCHED: usize = 4;
/// Query rows of a prompt task, enough to amortise the decoding of a tile of keys.
const PROMPT_ROWS: usize = 64;

impl Cpu {
    /// Attention of `queries` to the rows they see, which include their own positions. `out` is
    /// `[tokens, n_head * value_dim]` and is overwritten.
    ///
    /// # Panics
    /// If sizes disagree.
    pub fn attention(
        &self,
        shape: &AttentionShape<'_>,
        queries: Queries<'_>,
        seen: SeenRows<'_>,
        out: &mut [f32],
        scratch: &mut AttentionScratch,
    ) {
        let (Queries { q, first, whole }, SeenRows { keys, values }) = (queries, seen);
        let row = shape.heads.q_dim();
        assert!(shape.sinks.is_none_or(|sinks| sinks.len() == shape.heads.n_head));
        assert!(shape.key_bias.is_none_or(|bias| bias.slopes.len() == shape.heads.n_head));
        assert!(shape.heads.n_head.is_multiple_of(shape.heads.n_kv_head) && q.len().is_multiple_of(row));
        assert!(keys.len() == shape.heads.n_kv_head && values.len() == shape.heads.n_kv_head);
        let tokens = q.len() / row;
        assert!(out.len() == tokens * shape.heads.out_dim());
        let end = SeenKeys { window: shape.window, whole, end: first + tokens }.of_all(first..first + tokens).end;
        assert!(keys.iter().chain(values).all(|rows| rows.len() >= end));
        scratch.blocks.resize_with(self.pool().threads(), Mutex::default);
        if tokens <= FEW_TOKENS {
            self.attend_in_stretches(shape, queries, seen, out, scratch);
        } else {
            self.attend_in_blocks(shape, queries, seen, out, scratch);
        }
    }

    fn attend_in_stretches(
        &self,
        shape: &AttentionShape<'_>,
        Queries { q, first, whole }: Queries<'_>,
        SeenRows { keys, values }: SeenRows<'_>,
        out: &mut [f32],
        scratch: &mut AttentionScratch,
    ) {
        let group = shape.heads.group();
        let row = shape.heads.q_dim();
        let tokens = q.len() / row;
        let (rows, widths) = (tokens * group, RowWidths { keys: keys[0].stride(), values: values[0].stride() });
        let keys_of = SeenKeys { window: shape.window, whole, end: first + tokens };
        let visit = keys_of.of_all(first..first + tokens);
        let first_range = visit.start / RANGE;
        let ranges = visit.end.div_ceil(RANGE) - first_range;
        let part = rows * (widths.values + 2);
        let needed = shape.heads.n_kv_head * ranges * part;
        if scratch.partials.len() < needed {
            scratch.partials.resize(needed, 0.0);
        }
        let partials = &mut scratch.partials[..needed];

        let place = |task: usize| {
            let (head, range) = (task / ranges, first_range + task % ranges);
            (head, (range * RANGE).max(visit.start)..((range + 1) * RANGE).min(visit.end))
        };
        let prefetch = |task: usize| {
            let (head, visit) = place(task);
            let visit = visit.start..visit.end.min(visit.start + PREFETCHED);
            keys[head].prefetch(visit.clone());
            values[head].prefetch(visit);
        };
        let task = |task: usize, part: &mut [f32], block: &mut QueryBlock| {
            // The task that this worker most likely runs next.
            if task + 1 < shape.heads.n_kv_head * ranges {
                prefetch(task + 1);
            }
            let (head, visit) = place(task);
            block.start(rows, widths);
            shape.set_queries(block, q, head);
            let (keys, values) = (&keys[head], &values[head]);
            let bias = shape.bias_of_group(head);
            let softcap = shape.softcap;
            let attend = Attend { block, keys, values, visit, first, group, seen: keys_of, softcap, bias };
            dispatch(self.isa(), attend);
            block.store_range(part);
        };
        let blocks = &scratch.blocks;
        let mut parts: Vec<_> = partials.chunks_mut(part).enumerate().collect();
        let work = visit.len() * shape.heads.n_kv_head * (widths.keys + widths.values);
        self.for_each_item(&mut parts, work, |worker, (i, part)| task(*i, part, &mut blocks[worker].lock()));

        let mut block = blocks[0].lock();
        for (head, parts) in partials.chunks_exact(ranges * part).enumerate() {
            block.start(rows, widths);
            parts.chunks_exact(part).for_each(|part| block.add_range(self.isa(), part));
            self.finish(shape, head, &block, out);
        }
    }

    /// Writes the results of `block` for key/value head `head` to `out`.
    fn finish(&self, shape: &AttentionShape<'_>, head: usize, block: &QueryBlock, out: &mut [f32]) {
        let (dim, group) = (shape.heads.value_dim, shape.heads.group());
        for (token, out) in out.chunks_exact_mut(shape.heads.n_head * dim).enumerate() {
            let heads = out[head * group * dim..][..group * dim].chunks_exact_mut(dim).enumerate();
            for (of_group, out) in heads {
                let sink = shape.sink(head * group + of_group);
                dispatch(self.isa(), Finish { total: block.total(token * group + of_group), sink, out });
            }
        }
    }

    fn attend_in_blocks(
        &self,
        shape: &AttentionShape<'_>,
        Queries { q, first, whole }: Queries<'_>,
        SeenRows { keys, values }: SeenRows<'_>,
        out: &mut [f32],
        scratch: &mut AttentionScratch,
    ) {
        let group = shape.heads.group();
        let (row, out_row) = (shape.heads.q_dim(), shape.heads.out_dim());
        let widths = RowWidths { keys: keys[0].stride(), values: values[0].stride() };
        let tokens = q.len() / row;
        let keys_of = SeenKeys { window: shape.window, whole, end: first + tokens };
        let per_task = tokens.div_ceil(self.pool().threads() * 4);
        let per_block = (PROMPT_ROWS / group).min(per_task).max(FEW_TOKENS / 2);

        let task = |i: usize, out: &mut [f32], block: &mut QueryBlock| {
            let token = i * per_block;
            let tokens = out.len() / out_row;
            let first = first + token;
            let visit = keys_of.of_all(first..first + tokens);
            for head in 0..shape.heads.n_kv_head {
                block.start(tokens * group, widths);
                shape.set_queries(block, &q[token * row..][..tokens * row], head);
                let (keys, values, softcap) = (&keys[head], &values[head], shape.softcap);
                let bias = shape.bias_of_group(head);
                // Range by range, as for one token.
                for range in visit.start / RANGE..visit.end.div_ceil(RANGE) {
                    let visit = (range * RANGE).max(visit.start)..((range + 1) * RANGE).min(visit.end);
                    let attend =
                        Attend { block: &mut *block, keys, values, visit, first, group, seen: keys_of, softcap, bias };
                    dispatch(self.isa(), attend);
                    block.end_range(self.isa());
                }
                self.finish(shape, head, block, out);
            }
        };
        // The last blocks run first, because they see the most keys.
        let queue = Mutex::new(out.chunks_mut(per_block * out_row).enumerate().rev());
        self.pool().run_on_the_free(|worker| {
            let mut block = scratch.blocks[worker].lock();
            while let Some((i, out)) = next(&queue) {
                task(i, out, &mut block);
            }
        });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ops::{KvType, tests::each_cpu};

    /// Attention to every key, whose scores are plain products.
    pub(crate) const PLAIN: AttentionShape<'static> = AttentionShape {
        heads: HeadSizes { n_head: 1, n_kv_head: 1, head_dim: 16, value_dim: 16 },
        scale: 1.0,
        softcap: None,
        window: AttentionWindow::ALL,
        sinks: None,
        key_bias: None,
    };

    /// Reference: attention of query head `head` at `position`, `[value_dim]`, in f64.
    fn plain(
        shape: &AttentionShape<'_>,
        head: usize,
        q: &[f32],
        keys: &KvRows,
        values: &KvRows,
        position: usize,
        whole: &[Range<usize>],
    ) -> Vec<f64> {
        let slope = shape.key_bias.map(|bias| PositionBias { slopes: &bias.slopes[head..=head], ..bias });
        let start = match shape.window {
            AttentionWindow { length, chunked: false, .. } => (position + 1).saturating_sub(length),
            AttentionWindow { length, .. } => (0..=position).rev().find(|p| p % length == 0).unwrap(),
        };
        let own = position.saturating_add(shape.window.ahead).min(keys.len() - 1) + 1;
        let end = whole.iter().find(|range| range.contains(&position)).map_or(own, |range| range.end.max(own));
        let mut row = vec![0.0; shape.heads.head_dim];
        let mut scores = Vec::new();
        for p in start..end {
            keys.get(p, &mut row);
            let dot: f64 = q.iter().zip(&row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let s = dot * f64::from(shape.scale) + slope.map_or(0.0, |slope| f64::from(slope.at(0, position, p)));
            scores.push(shape.softcap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh()));
        }
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
        let total = total + shape.sink(head).map_or(0.0, |sink| (f64::from(sink) - top).exp());
        let (mut out, mut row) = (vec![0.0; shape.heads.value_dim], vec![0.0; shape.heads.value_dim]);
        for (p, s) in (start..end).zip(&scores) {
            values.get(p, &mut row);
            for (out, x) in out.iter_mut().zip(&row) {
                *out += (s - top).exp() / total * f64::from(*x);
            }
        }
        out
    }

    fn noise(seed: &mut u64) -> f32 {
        2.0 * crate::ops::tests::noise(seed)
    }

    fn check(
        shape: &AttentionShape<'_>,
        ty: KvType,
        first: usize,
        tokens: usize,
        whole: &[Range<usize>],
        seed: u64,
    ) -> Result<(), TestCaseError> {
        let mut seed = seed;
        let row = shape.heads.q_dim();
        let mut rows = |dim: usize| {
            let mut rows = KvRows::new(ty, dim, first + tokens).unwrap();
            for _ in 0..first + tokens {
                let row: Vec<f32> = (0..dim).map(|_| noise(&mut seed)).collect();
                rows.push(&row);
            }
            rows
        };
        let keys: Vec<KvRows> = (0..shape.heads.n_kv_head).map(|_| rows(shape.heads.head_dim)).collect();
        let values: Vec<KvRows> = (0..shape.heads.n_kv_head).map(|_| rows(shape.heads.value_dim)).collect();
        let q: Vec<f32> = (0..tokens * row).map(|_| noise(&mut seed)).collect();
        let group = shape.heads.group();
        for cpu in each_cpu() {
            let mut out = vec![f32::NAN; q.len() / shape.heads.head_dim * shape.heads.value_dim];
            let (queries, seen) = (Queries { q: &q, first, whole }, SeenRows { keys: &keys, values: &values });
            cpu.attention(shape, queries, seen, &mut out, &mut AttentionScratch::default());
            for (i, (out, q)) in out.chunks(shape.heads.value_dim).zip(q.chunks(shape.heads.head_dim)).enumerate() {
                let (token, head) = (i / shape.heads.n_head, i % shape.heads.n_head);
                let wanted = plain(shape, head, q, &keys[head / group], &values[head / group], first + token, whole);
                for (a, b) in out.iter().zip(wanted) {
                    prop_assert!((f64::from(*a) - b).abs() < 2e-5, "{} token {token} head {head}: {a} {b}", cpu.isa());
                }
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn attention_agrees_with_f64_for_any_shape(
            dim in prop::sample::select(vec![16usize, 24, 32, 64, 80, 96, 128, 256]),
            value_dim in prop::option::of(prop::sample::select(vec![8usize, 20, 64, 128, 192])),
            n_kv_head in 1usize..3,
            group in 1usize..6,
            ty in prop::sample::select(vec![KvType::F16, KvType::F32, KvType::Q8_0]),
            first in 0usize..300,
            tokens in 1usize..40,
            window in prop::option::of(1usize..200),
            chunked: bool,
            ahead in prop::sample::select(vec![0usize, 0, 1, 20, usize::MAX]),
            softcap in prop::option::of(1f32..30.0),
            sinks in prop::option::of(prop::collection::vec(-8f32..8.0, 10)),
            slopes in prop::option::of(prop::collection::vec(0f32..0.5, 10)),
            by_distance: bool,
            pictures in prop::collection::vec(0usize..40, 0..4),
            seed: u64,
        ) {
            let scale = 1.0 / (dim as f32).sqrt();
            let (n_head, value_dim) = (n_kv_head * group, value_dim.unwrap_or(dim));
            let sinks = sinks.as_ref().map(|sinks| &sinks[..n_head]);
            let key_bias = slopes.as_ref().map(|slopes| PositionBias { slopes: &slopes[..n_head], scale, by_distance });
            let heads = HeadSizes { n_head, n_kv_head, head_dim: dim, value_dim };
            let window = window.map_or(AttentionWindow::ALL, |length| AttentionWindow { length, chunked, ahead: 0 });
            let window = AttentionWindow { ahead, ..window };
            let shape = AttentionShape { heads, scale, softcap, window, sinks, key_bias };
            // Ranges between every other pair of these places of the queries.
            let mut ends: Vec<usize> = pictures.iter().map(|at| first + at % (tokens + 1)).collect();
            ends.sort_unstable();
            let whole: Vec<Range<usize>> = ends.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
            check(&shape, ty, first, tokens, &whole, seed)?;
        }
    }

    #[test]
    fn attention_agrees_with_f64_for_long_contexts_and_prompts() {
        let heads = HeadSizes { n_head: 4, n_kv_head: 2, head_dim: 32, value_dim: 32 };
        let shape = AttentionShape { heads, scale: 0.2, ..PLAIN };
        check(&shape, KvType::F16, 1500, 1, &[], 7).unwrap();
        let sinks = [0.5, -60.0, 80.0, 2.0];
        check(&AttentionShape { sinks: Some(&sinks), ..shape.clone() }, KvType::F32, 1500, 1, &[], 7).unwrap();
        check(&shape, KvType::F16, 0, 256, &[], 8).unwrap();
        for (window, seed) in [(AttentionWindow::BOTH_DIRECTIONS, 8), (AttentionWindow::symmetric(64), 9)] {
            check(&AttentionShape { window, ..shape.clone() }, KvType::F32, 0, 600, &[], seed).unwrap();
        }
        // A picture larger than the window, and one of few tokens.
        let window = AttentionShape { window: AttentionWindow::sliding(30), ..shape.clone() };
        check(&window, KvType::F32, 250, 140, &[260..360, 370..372], 8).unwrap();
        check(&window, KvType::F32, 250, 6, std::slice::from_ref(&(251..255)), 8).unwrap();
        check(&AttentionShape { window: AttentionWindow::sliding(100), ..shape }, KvType::Q8_0, 700, 130, &[], 9)
            .unwrap();
    }

    #[test]
    fn attention_is_the_same_for_any_number_of_workers() {
        let heads = HeadSizes { n_head: 6, n_kv_head: 2, head_dim: 64, value_dim: 64 };
        let shape = AttentionShape { heads, scale: 0.1, ..PLAIN };
        let (mut keys, mut seed) = (Vec::new(), 3);
        for _ in 0..4 {
            let mut rows = KvRows::new(KvType::F16, 64, 600).unwrap();
            for _ in 0..600 {
                rows.push(&(0..64).map(|_| noise(&mut seed)).collect::<Vec<_>>());
            }
            keys.push(rows);
        }
        let values = keys.split_off(2);
        for tokens in [1, 50] {
            let q: Vec<f32> = (0..tokens * 6 * 64).map(|_| noise(&mut seed)).collect();
            let results: Vec<Vec<f32>> = [1, 2, 3]
                .into_iter()
                .map(|threads| {
                    let options = crate::CpuOptions { threads: Some(threads), ..Default::default() };
                    let cpu = Cpu::new(&options).unwrap();
                    let mut out = vec![0.0; q.len()];
                    let (queries, seen) =
                        (Queries { q: &q, first: 550, whole: &[] }, SeenRows { keys: &keys, values: &values });
                    cpu.attention(&shape, queries, seen, &mut out, &mut AttentionScratch::default());
                    out
                })
                .collect();
            assert_eq!(results[0], results[1]);
            assert_eq!(results[0], results[2]);
        }
    }
}
