//! Attention of queries `[tokens, n_head, head_dim]` over keys `[kv_heads, capacity, head_dim]` and
//! values `[kv_heads, capacity, value_dim]`, where position `p` has row `p % capacity`:
//! `out = sum(e^s * value) / sum(e^s)` with scores `s = capped(scale * dot(query, key))`.
//! `attention_prompt` computes a chunk of tokens. `attention_decode` computes few tokens, with the
//! keys in one or several splits. `attention_merge` combines the partial results of several splits.

mod cases;

use std::ops::Range;

use half::f16;

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CLOSE, KernelCase, UNTOUCHED, has, loud_noise, noise, sizes},
    head_pitch,
    params::params,
};

params! {
    /// `attention_decode` (grid: [`DecodeGrid`](crate::DecodeGrid)) and `attention_prompt` (grid:
    /// query heads of the page; groups of [`ATTENTION_QUERIES`](crate::limits::ATTENTION_QUERIES)
    /// tokens; groups of [`ATTENTION_OUT`](crate::limits::ATTENTION_OUT) elements)
    Attention {
        /// Query heads.
        n_head: u32,
        /// Key/value heads.
        n_kv_head: u32,
        /// First key/value head of the page.
        first_kv_head: u32,
        /// Key/value heads of the page.
        kv_heads: u32,
        /// Elements from one token's queries to the next's, a multiple of 4.
        q_pitch: u32,
        /// Elements from one token's output to the next's.
        out_pitch: u32,
        /// Tokens of the chunk.
        tokens: u32,
        /// Position of the first token.
        position: u32,
        /// Rows of each head in the caches. Each head is a ring with room for all keys that the
        /// tokens see and 64 more positions.
        capacity: u32,
        /// A query sees itself and the `window - 1` keys before it. 0: all keys.
        window: u32,
        /// Keys of one split (decoding only).
        span: u32,
        /// Splits (decoding only).
        splits: u32,
        /// Factor on query-key products.
        scale: f32,
        /// Scores are capped as `softcap * tanh(score / softcap)`. 0: no cap.
        softcap: f32,
        /// First row of this sequence's tokens in the buffers that sequences share.
        row: u32,
        /// End of the positions that every token sees, even if they are later than its own: the end
        /// of a picture (`attention_prompt` only). 0: tokens see no later positions.
        seen_end: u32,
        /// First position that tokens see, even if their window begins earlier: the start of a part
        /// of a picture (`attention_prompt` only).
        seen_start: u32,
    }

    /// `attention_merge`, grid (`n_head`, tokens)
    AttentionMerge {
        /// Query heads.
        n_head: u32,
        /// Elements from one token's output to the next's.
        out_pitch: u32,
        /// Partials per head and token.
        splits: u32,
        /// First row of this sequence's tokens in the buffers that sequences share.
        row: u32,
    }
}

/// The kernel `attention_decode`.
pub(crate) const ATTENTION_DECODE: Kernel = Kernel::new::<Attention>(
    "attention_decode",
    &[Read, Read, Read, Read, Write],
    include_str!("attention_decode.wgsl"),
    cases::cases,
);

/// The kernel `attention_merge`.
pub(crate) const ATTENTION_MERGE: Kernel = Kernel::new::<AttentionMerge>(
    "attention_merge",
    &[Read, Write],
    include_str!("attention_merge.wgsl"),
    cases::cases,
);

/// The kernel `attention_prompt`.
pub(crate) const ATTENTION_PROMPT: Kernel = Kernel::new::<Attention>(
    "attention_prompt",
    &[Read, Read, Read, Read, Write],
    include_str!("attention_prompt.wgsl"),
    cases::cases,
);

/// Heads and keys.
#[derive(Debug, Clone, Copy)]
struct AttentionForm {
    /// `KV_F32` and `SINKS` are overrides. With `RING`, the caches have room only for the window,
    /// the tokens and one tile. With `STEEP`, scores are too large for `exp`.
    options: &'static str,
    /// Query heads, key/value heads, and the first and the number of those of the page.
    heads: [usize; 4],
    /// Elements of a key and of a value.
    dims: [usize; 2],
    position: usize,
    window: usize,
    softcap: f32,
    /// Number of positions after those of the tokens that all tokens see, or `None` if they see no
    /// later positions.
    ahead: Option<usize>,
    /// The first position that all tokens see.
    seen_start: usize,
    runs: &'static [Run],
}

/// Dispatches for a number of tokens.
#[derive(Debug, Clone, Copy)]
enum Run {
    Prompt(usize),
    /// Tokens, most workgroups (0: splits of one tile) and least invocations of a workgroup.
    Decode(usize, u32, u32),
}

/// Inputs of attention. Elements that the kernels must not read are NaN.
struct Inputs<'a> {
    form: &'a AttentionForm,
    params: Attention,
    /// `[rows, n_head + 1, head_dim]` with padding
    q: Vec<f32>,
    /// `[kv_heads, capacity, head_dim]` with padding, rounded as in the cache
    keys: Vec<f32>,
    values: Vec<f32>,
    sinks: Vec<f32>,
}

/// Softmax over some keys.
struct Partial {
    highest: f64,
    /// Sum of `e^(score - highest)`.
    total: f64,
    /// Sum of `e^(score - highest) * value`, with padding.
    values: Vec<f64>,
}

/// Row of the first token.
const ROW: usize = 1;
/// Highest score of no keys.
const HIDDEN: f64 = -1e30;

/// `count` rows of noise with padding to whole units.
fn noisy_rows(count: usize, dim: usize, seed: u64, is_read: impl Fn(usize) -> bool) -> Vec<f32> {
    let pitch = head_pitch(dim as u32) as usize;
    let mut rows = noise(count * pitch, seed);
    for (i, row) in rows.chunks_exact_mut(pitch).enumerate() {
        row[dim..].fill(0.0);
        if !is_read(i) {
            row.fill(f32::NAN);
        }
    }
    rows
}

impl<'a> Inputs<'a> {
    fn new(form: &'a AttentionForm, tokens: usize) -> Self {
        let AttentionForm { options, heads, dims: [head_dim, value_dim], position, window, softcap, ahead, .. } = *form;
        let n_head = heads[0];
        let rows = position + tokens + ahead.unwrap_or(0);
        let ring = (window + tokens + ahead.unwrap_or(0) + 64).next_multiple_of(64);
        let capacity = if has(options, "RING") { ring } else { rows + 70 };
        let cache = |dim: usize, seed: u64| {
            let noise = noisy_rows(heads[3] * capacity, dim, seed, |row| row % capacity < rows);
            let rounded = |x: f32| if has(options, "KV_F32") { x } else { f16::from_f32(x).to_f32() };
            noise.into_iter().map(rounded).collect::<Vec<f32>>()
        };
        let [n_head32, n_kv_head, first_kv_head, kv_heads] = sizes(heads);
        let params = Attention {
            n_head: n_head32,
            n_kv_head,
            first_kv_head,
            kv_heads,
            q_pitch: (n_head32 + 1) * head_pitch(head_dim as u32),
            out_pitch: (n_head * value_dim + 3) as u32,
            tokens: tokens as u32,
            position: position as u32,
            capacity: capacity as u32,
            window: window as u32,
            span: rows as u32,
            splits: 1,
            // Without `STEEP`, scores are a few units, so that neither one key dominates nor all
            // weigh the same.
            scale: if has(options, "STEEP") { 1e4 } else { 6.0 / (head_dim as f32).sqrt() },
            softcap,
            row: ROW as u32,
            seen_end: ahead.map_or(0, |_| rows as u32),
            seen_start: form.seen_start as u32,
        };
        let is_query = |row: usize| row / (n_head + 1) >= ROW && row % (n_head + 1) < n_head;
        Inputs {
            form,
            params,
            q: noisy_rows((ROW + tokens) * (n_head + 1), head_dim, 23, is_query),
            keys: cache(head_dim, 21),
            values: cache(value_dim, 22),
            sinks: loud_noise(n_head, 24, 6.0),
        }
    }

    /// The row of a head's cache for a position.
    fn row<'b>(&self, cache: &'b [f32], dim: usize, head: usize, position: usize) -> &'b [f32] {
        let [n_head, n_kv_head, first_kv_head, _] = self.form.heads;
        let kv_head = head / (n_head / n_kv_head) - first_kv_head;
        let (capacity, pitch) = (self.params.capacity as usize, head_pitch(dim as u32) as usize);
        &cache[(kv_head * capacity + position % capacity) * pitch..][..pitch]
    }

    fn score(&self, token: usize, head: usize, key: usize) -> f64 {
        let AttentionForm { heads: [n_head, ..], dims: [head_dim, _], softcap, .. } = *self.form;
        let key = self.row(&self.keys, head_dim, head, key);
        let query = self.q[((ROW + token) * (n_head + 1) + head) * key.len()..].iter().zip(key);
        let product: f64 = query.map(|(query, key)| f64::from(*query) * f64::from(*key)).sum();
        let (score, cap) = (product * f64::from(self.params.scale), f64::from(softcap));
        if cap == 0.0 { score } else { cap * (score / cap).tanh() }
    }

    /// Softmax of a query over `keys` and maybe its sink.
    fn oracle(&self, token: usize, head: usize, keys: Range<usize>, sink: bool) -> Partial {
        let value_dim = self.form.dims[1];
        let scores: Vec<f64> = keys.clone().map(|key| self.score(token, head, key)).collect();
        let sink = sink.then(|| f64::from(self.sinks[head]));
        let highest = scores.iter().copied().chain(sink).fold(HIDDEN, f64::max);
        let mut total = sink.map_or(0.0, |sink| (sink - highest).exp());
        let mut values = vec![0.0; head_pitch(value_dim as u32) as usize];
        for (score, key) in scores.into_iter().zip(keys) {
            let weight = (score - highest).exp();
            total += weight;
            let row = self.row(&self.values, value_dim, head, key);
            values.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * f64::from(*value));
        }
        Partial { highest, total, values }
    }

    /// The output for keys in splits: the result, or partials if there are several splits.
    fn output(&self, params: &Attention) -> Vec<f64> {
        let AttentionForm { options, heads, dims: [_, value_dim], position: first, window, ahead, .. } = *self.form;
        let [n_head, n_kv_head, first_kv_head, kv_heads] = heads;
        let [tokens, span, splits] = [params.tokens, params.span, params.splits].map(|size| size as usize);
        let (out_pitch, part) = (params.out_pitch as usize, head_pitch(value_dim as u32) as usize + 4);
        let len = if splits == 1 { (ROW + tokens) * out_pitch } else { tokens * n_head * splits * part };
        let mut out = vec![f64::from(UNTOUCHED); len];
        let group = n_head / n_kv_head;
        let heads = first_kv_head * group..(first_kv_head + kv_heads) * group;
        let first_seen = |position: usize| if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
        let queries = (0..tokens).flat_map(|token| heads.clone().map(move |head| (token, head)));
        for ((token, head), split) in queries.flat_map(|query| (0..splits).map(move |split| (query, split))) {
            let start = first_seen(first + token).max(self.form.seen_start) + split * span;
            let end = ahead.map_or(first + token + 1, |ahead| first + tokens + ahead);
            let keys = start..(start + span).min(end);
            let Partial { highest, total, values } =
                self.oracle(token, head, keys, has(options, "SINKS") && split == 0);
            if splits == 1 {
                let out = &mut out[(ROW + token) * out_pitch + head * value_dim..][..value_dim];
                out.iter_mut().zip(values).for_each(|(out, value)| *out = value / total);
            } else {
                let out = &mut out[((token * n_head + head) * splits + split) * part..][..part];
                out[..part - 4].copy_from_slice(&values);
                out[part - 4..part - 2].copy_from_slice(&[highest, total]);
            }
        }
        out
    }

    fn case(&self, kernel: &'static str, workgroup: u32, params: Attention, groups: [u32; 3]) -> KernelCase {
        let (options, [head_dim, value_dim]) = (self.form.options, sizes(self.form.dims));
        let out = self.output(&params);
        KernelCase::new(kernel, workgroup, params, groups)
            .named(format!("{:?}, {params:?}", self.form))
            .set("HEAD_DIM", head_dim)
            .set("VALUE_DIM", value_dim)
            .switches(&["KV_F32", "SINKS"], options)
            .input(&self.q)
            .cache(&self.keys, has(options, "KV_F32"))
            .cache(&self.values, has(options, "KV_F32"))
            .input(&self.sinks)
            .input(&vec![UNTOUCHED; out.len()])
            .becomes(&out, self.tolerance())
    }

    /// The last bits of steep scores change the weights.
    fn tolerance(&self) -> f64 {
        if has(self.form.options, "STEEP") { 2e-2 } else { CLOSE }
    }
}
