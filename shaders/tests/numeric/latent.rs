//! Queries and keys of latent attention, and gates above the mean of their token, compared with
//! their equations in f64.

use bytemuck::{bytes_of, cast_slice};
use half::f16;
use thermocline_shaders::params;

use crate::{
    gpu::{Call, Gpu, assert_close, bytes, noise},
    rope::{UNTOUCHED, untouched},
};

const TOKENS: usize = 3;
const HEADS: usize = 2;
const EPS: f32 = 1e-5;

#[derive(Debug, Clone, Copy)]
struct Variant {
    nope: usize,
    rope: usize,
    rank: usize,
    neox: bool,
    rotates: bool,
    /// True if queries grow with their position.
    grows: bool,
    kv_f32: bool,
}

/// Element `i` of `row`, rotated with the rotations of token `token`.
fn rotated(variant: Variant, row: &[f32], table: &[f32], token: usize, i: usize) -> f64 {
    let half = variant.rope / 2;
    if !variant.rotates {
        return f64::from(row[i]);
    }
    let pair = if variant.neox { i % half } else { i / 2 };
    let (a, b) = if variant.neox { (pair, pair + half) } else { (2 * pair, 2 * pair + 1) };
    let [cos, sin] = [0, 1].map(|part| f64::from(table[(token * half + pair) * 2 + part]));
    let (x, y) = (f64::from(row[a]), f64::from(row[b]));
    if i == a { x * cos - y * sin } else { x * sin + y * cos }
}

/// A token's cached key including padding: the normalised latent, then the rotated part.
fn key(variant: Variant, row: &[f32], norm: &[f32], table: &[f32], token: usize) -> Vec<f64> {
    let Variant { rope, rank, .. } = variant;
    let mean = row[..rank].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / rank as f64;
    let element = |i: usize| match i {
        _ if i < rank => f64::from(row[i]) / (mean + f64::from(EPS)).sqrt() * f64::from(norm[i]),
        _ if i < rank + rope => rotated(variant, &row[rank..], table, token, i - rank),
        _ => 0.0,
    };
    (0..(rank + rope).next_multiple_of(4)).map(element).collect()
}

/// Rows of the cache. The last tokens wrap around to its beginning.
const CAPACITY: usize = 6;

/// Factor, step and offset of the growth of queries.
const BETA: f32 = 0.25;
const LENGTH: usize = 2;
const OFFSET: usize = 1;

/// Growth factor of the query at `position`.
fn growth(variant: Variant, position: usize) -> f64 {
    let steps = (position + OFFSET) / LENGTH;
    if variant.grows { 1.0 + f64::from(BETA) * (1.0 + steps as f64).ln() } else { 1.0 }
}

fn check(variant: Variant) {
    let Variant { nope, rope, rank, neox, rotates, kv_f32, .. } = variant;
    let (width, position) = (rank + rope, 4);
    let padded = width.next_multiple_of(4);
    let inputs_pitch = nope.next_multiple_of(32);
    let queries_pitch = HEADS * (nope + rope) + 5;
    let projected_pitch = width + 3;
    let queries = noise(TOKENS * queries_pitch, 1);
    let projected: Vec<f32> = noise(TOKENS * projected_pitch, 2).iter().map(|v| v * 3.0).collect();
    let (table, norm) = (noise(TOKENS * rope, 3), noise(rank, 4));
    let slots = TOKENS * HEADS;
    let mut inputs = vec![0.0; slots * inputs_pitch];
    let mut q = vec![f64::from(UNTOUCHED); slots * padded];
    let mut keys = vec![f64::from(UNTOUCHED); (position + TOKENS + 1) * padded];
    for token in 0..TOKENS {
        let growth = growth(variant, position + token);
        for head in 0..HEADS {
            let slot = token * HEADS + head;
            let query = &queries[token * queries_pitch + head * (nope + rope)..][..nope + rope];
            for i in 0..nope {
                inputs[slot * inputs_pitch + i] = f64::from(query[i]) * growth;
            }
            for i in rank..padded {
                let value = if i < width { rotated(variant, &query[nope..], &table, token, i - rank) } else { 0.0 };
                q[slot * padded + i] = value * growth;
            }
        }
        let row = &projected[token * projected_pitch..][..width];
        keys[(position + token) % CAPACITY * padded..][..padded]
            .copy_from_slice(&key(variant, row, &norm, &table, token));
    }
    let before_keys = untouched(keys.len(), kv_f32);
    let (before_inputs, before_q) = (vec![UNTOUCHED; inputs.len()], vec![UNTOUCHED; q.len()]);
    let params = params::LatentAppend {
        query_beta: BETA,
        query_length: LENGTH as u32,
        query_offset: OFFSET as u32,
        n_head: HEADS as u32,
        nope_dim: nope as u32,
        rope_dim: rope as u32,
        rank: rank as u32,
        queries_pitch: queries_pitch as u32,
        projected_pitch: projected_pitch as u32,
        inputs_pitch: inputs_pitch as u32,
        position: position as u32,
        capacity: CAPACITY as u32,
        eps: EPS,
        row: 0,
    };
    let switch = |name, on| (name, f64::from(u8::from(on)));
    let [neox, grows] = [switch("NEOX", neox), switch("QUERY_SCALE", variant.grows)];
    let overrides = [("WORKGROUP_SIZE", 32.0), neox, switch("ROPE", rotates), grows, switch("KV_F32", kv_f32)];
    let gpu = Gpu::get();
    for tier in gpu.tiers() {
        let call = Call {
            kernel: "latent_append",
            tier,
            weights: None,
            overrides: &overrides,
            params: bytes_of(&params),
            buffers: &[
                bytes(&queries),
                bytes(&projected),
                bytes(&table),
                bytes(&norm),
                bytes(&before_inputs),
                bytes(&before_q),
                &before_keys,
            ],
            workgroups: (HEADS as u32 + 1, TOKENS as u32, 1),
        };
        let what = format!("{tier}, {variant:?}");
        assert_close(&gpu.run(&call, 4), &inputs, 1e-6, &format!("inputs, {what}"));
        assert_close(&gpu.run(&call, 5), &q, 1e-5, &format!("queries, {what}"));
        let got: Vec<f32> = gpu.run(&call, 6);
        let got: Vec<f32> = match kv_f32 {
            true => got,
            false => cast_slice::<f32, f16>(&got).iter().map(|x| x.to_f32()).collect(),
        };
        assert_close(&got, &keys, if kv_f32 { 1e-5 } else { 4e-3 }, &format!("keys, {what}"));
    }
}

#[test]
fn latent_queries_and_keys_match_their_equations() {
    let plain = Variant { nope: 24, rope: 16, rank: 32, neox: false, rotates: true, grows: false, kv_f32: false };
    check(plain);
    check(Variant { kv_f32: true, ..plain });
    check(Variant { neox: true, ..plain });
    check(Variant { grows: true, kv_f32: true, ..plain });
    check(Variant { grows: true, neox: true, rotates: false, nope: 5, ..plain });
    check(Variant { rotates: false, kv_f32: true, ..plain });
    check(Variant { nope: 5, rope: 6, rank: 40, kv_f32: true, ..plain });
    check(Variant { nope: 33, rope: 2, rank: 7, neox: true, ..plain });
}

#[test]
fn gates_exceed_the_mean_by_some_deviations() {
    let (rows, pitch, deviations) = (3, 96, 0.8_f32);
    for cols in [1, 50, 90] {
        let gates: Vec<f32> = noise(rows * pitch, 5).iter().map(|v| v * 4.0 + 1.0).collect();
        let mut wanted: Vec<f64> = gates.iter().map(|x| f64::from(*x)).collect();
        for row in wanted.chunks_exact_mut(pitch) {
            let row = &mut row[..cols];
            let mean = row.iter().sum::<f64>() / cols as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / cols as f64;
            let threshold = mean + f64::from(deviations) * variance.sqrt();
            row.iter_mut().for_each(|x| *x = (*x - threshold).max(0.0));
        }
        let gpu = Gpu::get();
        for tier in gpu.tiers() {
            let (cols32, pitch, rows) = (cols as u32, pitch as u32, rows as u32);
            let params = params::GateExcess { cols: cols32, pitch, rows, stride: 2, deviations };
            let call = Call {
                kernel: "gate_excess",
                tier,
                weights: None,
                overrides: &[("WORKGROUP_SIZE", 32.0)],
                params: bytes_of(&params),
                buffers: &[bytes(&gates)],
                workgroups: (2, 2, 1),
            };
            assert_close(&gpu.run(&call, 0), &wanted, 1e-5, &format!("{tier}, {cols} gates"));
        }
    }
}
