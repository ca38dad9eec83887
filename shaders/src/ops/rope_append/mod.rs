//! Queries, keys and values of attention, from their stacked projections `[tokens, rows]`. Each
//! head `x` of queries and keys becomes `rotate(x / sqrt(mean(x^2) + eps) * weight)`, where each
//! pair `(a, b)` of elements rotates to `(a cos - b sin, a sin + b cos)`. The device writes queries
//! `[tokens, n_head, head_dim]`. It appends keys and values to a page of the caches, `[kv_heads,
//! capacity, head_dim or value_dim]`, where position `p` has row `p % capacity`.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, KernelCase, UNTOUCHED, has, loud_noise, noise, sizes, wide},
    head_pitch,
    params::{TokenPositions, params},
};

params! {
    /// `rope_append`, grid (`2 * kv_heads`, preceded by `n_head` if `first_kv_head` is 0; tokens)
    RopeAppend {
        /// Positions of the tokens. The row of position `p` in the caches is `p % capacity`.
        positions: TokenPositions,
        /// Query heads.
        n_head: u32,
        /// Key/value heads.
        n_kv_head: u32,
        /// First key/value head of the page.
        first_kv_head: u32,
        /// Key/value heads of the page.
        kv_heads: u32,
        /// Elements of a query or key head.
        head_dim: u32,
        /// Elements of a value head.
        value_dim: u32,
        /// Rotated elements of a head, even.
        dims: u32,
        /// Elements from one token's stacked q, k, v to the next's.
        qkv_pitch: u32,
        /// Elements from one token's queries to the next's, a multiple of 4. Consecutive heads are
        /// [`head_pitch`](crate::head_pitch) apart.
        q_pitch: u32,
        /// Rows of each head in the caches, [`head_pitch`](crate::head_pitch) elements each.
        capacity: u32,
        /// Added under the square root of the heads' norms.
        eps: f32,
        /// First row of this sequence's tokens in the buffers that sequences share.
        row: u32,
    }
}

/// The kernel `rope_append`.
pub(crate) const KERNEL: Kernel = Kernel::new::<RopeAppend>(
    "rope_append",
    &[Read, Read, Read, Read, Write, Write, Write],
    include_str!("rope_append.wgsl"),
    cases,
);

/// Rotates the first elements of a head, two for each cosine and sine in `rotations`.
pub(crate) fn rotate(head: &mut [f64], rotations: &[f32], neox: bool) {
    let half = rotations.len() / 2;
    for (pair, rotation) in rotations.chunks_exact(2).enumerate() {
        let (a, b) = if neox { (pair, pair + half) } else { (2 * pair, 2 * pair + 1) };
        let [cos, sin] = [rotation[0], rotation[1]].map(f64::from);
        (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
    }
}

/// Scale of an RMS norm, without its weights.
pub(crate) fn norm_scale(row: &[f32], eps: f32) -> f64 {
    let squares = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    1.0 / (squares / row.len() as f64 + f64::from(eps)).sqrt()
}

/// Heads of queries, keys or values in a token's row.
struct Heads<'a> {
    /// Index of the first element.
    at: usize,
    count: usize,
    /// Elements from one head to the next.
    step: usize,
    dim: usize,
    /// Weights of the norm of a head or of all heads. `None` if there is no norm.
    norm: Option<&'a [f32]>,
}

/// A head of a token's `row`, normed and rotated, with the padding of its result.
fn oracle(options: &str, row: &[f32], heads: &Heads<'_>, head: usize, rotations: &[f32]) -> Vec<f64> {
    let row = &row[heads.at..];
    let x = &row[head * heads.step..][..heads.dim];
    let is_of_all = heads.norm.is_some_and(|norm| norm.len() > heads.dim);
    let (normed, first) = if is_of_all { (&row[..heads.count * heads.dim], head * heads.dim) } else { (x, 0) };
    let scale = norm_scale(normed, EPS);
    let norm = |x: &mut [f64]| {
        let weights = heads.norm.iter().flat_map(|norm| &norm[first..]);
        x.iter_mut().zip(weights).for_each(|(x, weight)| *x *= scale * f64::from(*weight));
    };
    let mut result = wide(x);
    if !has(options, "NORM_AFTER_ROPE") {
        norm(&mut result);
    }
    rotate(&mut result, rotations, has(options, "NEOX"));
    if has(options, "NORM_AFTER_ROPE") {
        norm(&mut result);
    }
    result.resize(head_pitch(heads.dim as u32) as usize, 0.0);
    result
}

const N_HEAD: usize = 3;
const N_KV_HEAD: usize = 2;
const TOKENS: usize = 4;
/// Row of the first token.
const ROW: usize = 1;
const EPS: f32 = 1e-5;
const VALUE_SCALE: f64 = 0.75;

/// Overrides. With `LOUD`, some keys and values are too large for halves.
const OPTIONS: [&str; 12] = [
    "QK_NORM",
    "LOUD",
    "GATED V_NORM",
    "QK_NORM KV_F32",
    "QK_NORM GATED",
    "KV_F32",
    "QK_NORM QK_NORM_ALL",
    "QUERY_SCALE",
    "QK_NORM QK_NORM_ALL QUERY_SCALE",
    "QK_NORM NORM_AFTER_ROPE KV_F32",
    "QK_NORM QK_NORM_ALL NORM_AFTER_ROPE",
    "V_NORM KV_F32",
];

/// Some shapes of heads and pages with all options, and others with the first options.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let shapes = [
        [80, 80, 64, 5, 0, 2],
        [12, 12, 12, 5, 0, 2],
        [64, 24, 64, 5, 0, 1],
        [64, 24, 64, 5, 1, 1],
        [192, 128, 4, 5, 0, 2],
        [12, 8, 4, 5, 0, 2],
        [20, 6, 4, 5, 0, 2],
        [24, 64, 4, 5, 0, 2],
        [8, 8, 8, 0, 0, 2],
        [6, 6, 4, 0, 0, 2],
        [7, 7, 6, 0, 0, 2],
        [20, 20, 20, 0, 0, 2],
        [128, 128, 64, 0, 0, 2],
        [256, 256, 256, 0, 0, 2],
    ];
    let [n_head, n_kv_head, row] = sizes([N_HEAD, N_KV_HEAD, ROW]);
    let shapes = request.pick(&shapes, 1).iter();
    let shapes = shapes.map(|[head_dim, value_dim, dims, position, first_kv_head, kv_heads]| RopeAppend {
        positions: TokenPositions { first: *position, beta: 0.25, length: 2, offset: 1 },
        n_head,
        n_kv_head,
        first_kv_head: *first_kv_head,
        kv_heads: *kv_heads,
        head_dim: *head_dim,
        value_dim: *value_dim,
        dims: *dims,
        qkv_pitch: 0,
        q_pitch: (n_head + 1) * head_pitch(*head_dim),
        // The row of the second token wraps around to the beginning, unless the position is 0.
        capacity: if *position > 0 { position + 1 } else { 7 },
        eps: EPS,
        row,
    });
    let cases = shapes.enumerate().flat_map(|(i, params)| {
        let options = request.pick(if i < 4 { &OPTIONS } else { &OPTIONS[..5] }, 2);
        let orders = request.pick(&["ROPE", "ROPE NEOX", "NEOX"], 2).iter();
        orders.flat_map(move |order| options.iter().map(move |options| case(&format!("{order} {options}"), params)))
    });
    cases.collect()
}

fn case(options: &str, params: RopeAppend) -> KernelCase {
    let on = |name: &str| has(options, name);
    let [head_dim, value_dim, dims] = [params.head_dim, params.value_dim, params.dims].map(|size| size as usize);
    let norm = |heads: usize, seed: u64| noise(if on("QK_NORM_ALL") { heads * head_dim } else { head_dim }, seed);
    let (q_norm, k_norm, v_norm) = (norm(N_HEAD, 43), norm(N_KV_HEAD, 44), vec![1.0; value_dim]);
    let [of_q, of_k] = [&q_norm, &k_norm].map(|norm| on("QK_NORM").then_some(&norm[..]));
    let of_v = on("V_NORM").then_some(&v_norm[..]);
    let step = if on("GATED") { 2 * head_dim } else { head_dim };
    let (keys_at, values_at) = (N_HEAD * step, N_HEAD * step + N_KV_HEAD * head_dim);
    let kinds = [
        Heads { at: 0, count: N_HEAD, step, dim: head_dim, norm: of_q },
        Heads { at: keys_at, count: N_KV_HEAD, step: head_dim, dim: head_dim, norm: of_k },
        Heads { at: values_at, count: N_KV_HEAD, step: value_dim, dim: value_dim, norm: of_v },
    ];
    let qkv_pitch = values_at + N_KV_HEAD * value_dim + 5;
    let mut qkv = loud_noise((ROW + TOKENS) * qkv_pitch, 41, 3.0);
    if on("LOUD") {
        qkv[ROW * qkv_pitch + keys_at..][..4].copy_from_slice(&[1e6, -1e6, 65504.0, -65530.0]);
        qkv[ROW * qkv_pitch + values_at..][..4].copy_from_slice(&[f32::MAX, f32::MIN, 87359.8, 1.0]);
    }
    let table = noise((ROW + TOKENS) * dims, 42);
    let params = RopeAppend { qkv_pitch: qkv_pitch as u32, ..params };
    let [q, keys, values] = results(options, &params, &kinds, &qkv, &table);
    let before = |results: &[f64]| vec![UNTOUCHED; results.len()];
    let queries = if params.first_kv_head == 0 { params.n_head } else { 0 };
    let workgroup = if params.positions.first > 0 { 32 } else { 64 };
    KernelCase::new("rope_append", workgroup, params, [queries + 2 * params.kv_heads, TOKENS as u32, 1])
        .named(format!("{options} {params:?}"))
        .switches(&["NEOX", "ROPE", "NORM_AFTER_ROPE", "GATED", "QUERY_SCALE", "KV_F32"], options)
        .switches(&["QK_NORM", "QK_NORM_ALL", "V_NORM"], options)
        .set("VALUE_SCALE", VALUE_SCALE)
        .input(&qkv)
        .input(&table)
        .input(&q_norm)
        .input(&k_norm)
        .input(&before(&q))
        .becomes(&q, 1e-5)
        .cache(&before(&keys), on("KV_F32"))
        .becomes_cache(&keys, on("KV_F32"))
        .cache(&before(&values), on("KV_F32"))
        .becomes_cache(&values, on("KV_F32"))
}

/// Queries, keys and values after the dispatch.
fn results(options: &str, params: &RopeAppend, kinds: &[Heads<'_>; 3], qkv: &[f32], table: &[f32]) -> [Vec<f64>; 3] {
    let RopeAppend { positions, first_kv_head, kv_heads, .. } = *params;
    let [qkv_pitch, q_pitch, capacity] = [params.qkv_pitch, params.q_pitch, params.capacity].map(|size| size as usize);
    let [dims, first, page_heads] = [params.dims, first_kv_head, kv_heads].map(|size| size as usize);
    let pitches = kinds.each_ref().map(|heads| head_pitch(heads.dim as u32) as usize);
    let lens = [(ROW + TOKENS) * q_pitch, page_heads * capacity * pitches[1], page_heads * capacity * pitches[2]];
    let mut results = lens.map(|len| vec![f64::from(UNTOUCHED); len]);
    for (token, kind) in (0..TOKENS).flat_map(|token| (0..3).map(move |kind| (token, kind))) {
        let rotated = if has(options, "ROPE") && kind < 2 { dims } else { 0 };
        let rotations = &table[(ROW + token) * dims..][..rotated];
        let growth = positions.growth(token as u32);
        let factor = [if has(options, "QUERY_SCALE") { growth } else { 1.0 }, 1.0, VALUE_SCALE][kind];
        let queries = if first == 0 { 0..N_HEAD } else { 0..0 };
        let written = if kind == 0 { queries } else { first..first + page_heads };
        for (i, head) in written.enumerate() {
            let row = &qkv[(ROW + token) * qkv_pitch..];
            let mut result = oracle(options, row, &kinds[kind], head, rotations);
            let most = if kind == 0 { f64::INFINITY } else { 65504.0 };
            result.iter_mut().for_each(|x| *x = (*x * factor).clamp(-most, most));
            let row = i * capacity + (positions.first as usize + token) % capacity;
            let at = if kind == 0 { (ROW + token) * q_pitch + i * pitches[0] } else { row * pitches[kind] };
            results[kind][at..at + result.len()].copy_from_slice(&result);
        }
    }
    results
}
