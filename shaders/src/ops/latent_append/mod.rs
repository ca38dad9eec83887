//! Queries and keys of latent attention, from queries `[tokens, n_head, nope_dim | rope_dim]` and
//! projections `[tokens, rank | rope_dim]`. The first part of each query becomes an input of the
//! matrix that maps it to the latents' space. The second is rotated. Row `p % capacity` of the keys
//! `[capacity, rank | rope_dim]` is `l / sqrt(mean(l^2) + eps) * norm` of the latent `l` at
//! position `p`, and the rotated rest.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, KernelCase, UNTOUCHED, has, loud_noise, noise, sizes, wide},
    ops::rope_append::{norm_scale, rotate},
    params::{TokenPositions, params},
};

params! {
    /// `latent_append`, grid (`n_head + 1`; tokens)
    LatentAppend {
        /// Positions of the tokens. The row of position `p` in the cache is `p % capacity`.
        positions: TokenPositions,
        /// Query heads.
        n_head: u32,
        /// Elements of a head's query that are not rotated.
        nope_dim: u32,
        /// Rotated elements of a query or a key, even.
        rope_dim: u32,
        /// Elements of a latent.
        rank: u32,
        /// Elements from one token's queries to the next's.
        queries_pitch: u32,
        /// Elements from one token's projected latent and key to the next's.
        projected_pitch: u32,
        /// Elements from one head's input to the next's.
        inputs_pitch: u32,
        /// Rows of the cache.
        capacity: u32,
        /// Added under the square root of the latent's norm.
        eps: f32,
        /// First row of this sequence's tokens in the buffers that sequences share.
        row: u32,
    }
}

/// The kernel `latent_append`.
pub(crate) const KERNEL: Kernel = Kernel::new::<LatentAppend>(
    "latent_append",
    &[Read, Read, Read, Read, Write, Write, Write],
    include_str!("latent_append.wgsl"),
    cases,
);

/// The rotated part of a query or key.
fn rotated(options: &str, row: &[f32], rotations: &[f32]) -> Vec<f64> {
    let mut row = wide(row);
    if has(options, "ROPE") {
        rotate(&mut row, rotations, has(options, "NEOX"));
    }
    row
}

/// The key of a latent and of the part that is rotated.
fn oracle(options: &str, latent: &[f32], rest: &[f32], norm: &[f32], rotations: &[f32]) -> Vec<f64> {
    let scale = norm_scale(latent, EPS);
    let latent = latent.iter().zip(norm).map(|(x, norm)| f64::from(*x) * scale * f64::from(*norm));
    latent.chain(rotated(options, rest, rotations)).collect()
}

const TOKENS: usize = 3;
const HEADS: usize = 2;
const POSITION: usize = 4;
/// Rows of the cache. The last token wraps around to its beginning.
const CAPACITY: usize = 6;
/// Row of the first token.
const ROW: usize = 1;
const EPS: f32 = 1e-5;

/// Options and `nope_dim`, `rope_dim` and `rank`, which are not always whole units of four.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let forms = [
        ("ROPE", [24, 16, 32]),
        ("ROPE KV_F32", [24, 16, 32]),
        ("ROPE NEOX", [24, 16, 32]),
        ("ROPE QUERY_SCALE KV_F32", [24, 16, 32]),
        ("NEOX QUERY_SCALE", [5, 16, 32]),
        ("KV_F32", [24, 16, 32]),
        ("ROPE KV_F32", [5, 6, 40]),
        ("ROPE NEOX", [33, 2, 7]),
    ];
    request.pick(&forms, 1).iter().map(|(options, dims)| case(options, *dims)).collect()
}

fn case(options: &str, dims: [usize; 3]) -> KernelCase {
    let [nope, rope, rank] = dims;
    let (width, head_dim, rows) = (rank + rope, nope + rope, ROW + TOKENS);
    let (padded, inputs_pitch) = (width.next_multiple_of(4), nope.next_multiple_of(32));
    let (queries_pitch, projected_pitch) = (HEADS * head_dim + 5, width + 3);
    let (queries, projected) = (noise(rows * queries_pitch, 1), loud_noise(rows * projected_pitch, 2, 3.0));
    let (table, norm) = (noise(rows * rope, 3), noise(rank, 4));
    let before = [rows * HEADS * inputs_pitch, rows * HEADS * padded, CAPACITY * padded];
    let before = before.map(|len| vec![UNTOUCHED; len]);
    let [nope_dim, rope_dim, rank32] = sizes(dims);
    let params = LatentAppend {
        positions: TokenPositions { first: POSITION as u32, beta: 0.25, length: 2, offset: 1 },
        n_head: HEADS as u32,
        nope_dim,
        rope_dim,
        rank: rank32,
        queries_pitch: queries_pitch as u32,
        projected_pitch: projected_pitch as u32,
        inputs_pitch: inputs_pitch as u32,
        capacity: CAPACITY as u32,
        eps: EPS,
        row: ROW as u32,
    };
    let [mut inputs, mut q, mut keys] = before.clone().map(|before| wide(&before));
    for token in 0..TOKENS {
        let factor = if has(options, "QUERY_SCALE") { params.positions.growth(token as u32) } else { 1.0 };
        let at = ROW + token;
        let rotations = &table[at * rope..][..rope];
        for head in 0..HEADS {
            let query = &queries[at * queries_pitch + head * head_dim..][..head_dim];
            let slot = at * HEADS + head;
            let (plain, rotated) = (wide(&query[..nope]), rotated(options, &query[nope..], rotations));
            let scaled = |part: Vec<f64>| part.into_iter().map(move |x| x * factor).chain(std::iter::repeat(0.0));
            inputs.splice(slot * inputs_pitch..(slot + 1) * inputs_pitch, scaled(plain).take(inputs_pitch));
            // The latent part of q is the product of the input and a matrix.
            q.splice(slot * padded + rank..(slot + 1) * padded, scaled(rotated).take(padded - rank));
        }
        let (latent, rest) = projected[at * projected_pitch..][..width].split_at(rank);
        let mut key = oracle(options, latent, rest, &norm, rotations);
        key.resize(padded, 0.0);
        keys[(POSITION + token) % CAPACITY * padded..][..padded].copy_from_slice(&key);
    }
    KernelCase::new("latent_append", 32, params, [params.n_head + 1, TOKENS as u32, 1])
        .named(format!("{options} {params:?}"))
        .switches(&["NEOX", "ROPE", "QUERY_SCALE", "KV_F32"], options)
        .input(&queries)
        .input(&projected)
        .input(&table)
        .input(&norm)
        .input(&before[0])
        .becomes(&inputs, 1e-6)
        .input(&before[1])
        .becomes(&q, 1e-5)
        .cache(&before[2], has(options, "KV_F32"))
        .becomes_cache(&keys, has(options, "KV_F32"))
}
