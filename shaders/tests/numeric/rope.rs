//! Head norms, rotation and appending to the caches, compared with their equations in f64.

use bytemuck::{bytes_of, cast_slice, cast_vec};
use half::f16;
use thermocline_shaders::{Tier, head_pitch, params::RopeAppend};

use crate::gpu::{Call, Gpu, assert_close, bytes, noise};

#[derive(Debug, Clone, Copy)]
struct Variant {
    head_dim: u32,
    dims: u32,
    neox: bool,
    rope: bool,
    qk_norm: bool,
    /// True if each norm covers all heads together.
    norm_all: bool,
    /// True if the weights of norms are applied after the rotation.
    norm_after: bool,
    gated: bool,
    /// Width of values and a factor on them; `None`: the width of keys and no factor.
    values: Option<(u32, f64)>,
    /// True if queries grow with their position.
    grows: bool,
    kv_f32: bool,
    /// True if each key/value head has a page of its own in the caches.
    pages: bool,
    position: u32,
    workgroup: u32,
}

const PLAIN: Variant = Variant {
    head_dim: 64,
    dims: 64,
    neox: false,
    rope: true,
    qk_norm: false,
    norm_all: false,
    norm_after: false,
    gated: false,
    values: None,
    grows: false,
    kv_f32: false,
    pages: false,
    position: 5,
    workgroup: 32,
};

/// Contents of the buffers before the dispatch. The kernel must not change elements outside its
/// output.
pub(super) const UNTOUCHED: f32 = 7.0;

/// A cache of `len` elements before the dispatch.
pub(super) fn untouched(len: usize, kv_f32: bool) -> Vec<u8> {
    match kv_f32 {
        true => cast_slice(&vec![UNTOUCHED; len]).to_vec(),
        false => cast_slice(&vec![f16::from_f32(UNTOUCHED); len]).to_vec(),
    }
}

const N_HEAD: u32 = 3;
const N_KV_HEAD: u32 = 2;
const TOKENS: u32 = 4;

struct Inputs<'a> {
    variant: Variant,
    params: RopeAppend,
    qkv: &'a [f32],
    table: &'a [f32],
    /// Norm weights of queries and of keys.
    norms: &'a [Vec<f32>; 2],
}

impl Inputs<'_> {
    /// Element `i` of head `slot` of a token. Slots are queries, then keys, then values.
    fn element(&self, token: usize, slot: usize, i: usize) -> f64 {
        let Inputs { variant, params, qkv, table, norms } = self;
        let Variant { neox, rope, qk_norm, norm_all, norm_after, gated, grows, position, .. } = *variant;
        let [dim, half, qkv_pitch] = [variant.head_dim, variant.dims / 2, params.qkv_pitch].map(|v| v as usize);
        let keys_end = (N_HEAD + N_KV_HEAD) as usize;
        let (value_dim, factor) = variant.values.map_or((dim, 1.0), |(dim, factor)| (dim as usize, factor));
        let own_dim = if slot >= keys_end { value_dim } else { dim };
        if i >= own_dim {
            return 0.0;
        }
        if slot >= keys_end {
            let before = if gated { keys_end + N_HEAD as usize } else { keys_end };
            return factor * f64::from(qkv[token * qkv_pitch + before * dim + (slot - keys_end) * value_dim + i]);
        }
        let at = if gated { slot + slot.min(N_HEAD as usize) } else { slot };
        let head = &qkv[token * qkv_pitch + at * dim..][..dim];
        let is_query = slot < N_HEAD as usize;
        let (first, heads) = if is_query { (0, N_HEAD as usize) } else { (N_HEAD as usize, N_KV_HEAD as usize) };
        let (mean_of, at) = match norm_all {
            true => (&qkv[token * qkv_pitch + first * dim..][..heads * dim], (slot - first) * dim),
            false => (head, 0),
        };
        let mean = mean_of.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / mean_of.len() as f64;
        let growth = 1.0
            + f64::from(params.query_beta)
                * (1.0 + ((position as usize + token + params.query_offset as usize) / 2) as f64).ln();
        let factor = if is_query && grows { growth } else { 1.0 };
        let weight = |i: usize| if qk_norm { f64::from(norms[usize::from(!is_query)][at + i]) } else { 1.0 };
        let [before, behind] = [!norm_after, norm_after].map(|here| move |i| if here { weight(i) } else { 1.0 });
        let normed = |i: usize| {
            let norm = if qk_norm { 1.0 / (mean + f64::from(params.eps)).sqrt() } else { 1.0 };
            f64::from(head[i]) * factor * norm * before(i)
        };
        if !rope || i >= half * 2 {
            return normed(i) * behind(i);
        }
        let pair = if neox { i % half } else { i / 2 };
        let (a, b) = if neox { (pair, pair + half) } else { (2 * pair, 2 * pair + 1) };
        let [cos, sin] = [0, 1].map(|part| f64::from(table[(token * half + pair) * 2 + part]));
        let rotated = if i == a { normed(a) * cos - normed(b) * sin } else { normed(a) * sin + normed(b) * cos };
        rotated * behind(i)
    }

    /// Expected queries, and expected caches of keys and of values.
    fn outputs(&self) -> (Vec<f64>, [Vec<f64>; 2]) {
        let Inputs { variant, params, .. } = self;
        let [tokens, capacity, position] = [TOKENS, params.capacity, variant.position].map(|v| v as usize);
        let [pitch, value_pitch] = [params.head_dim, params.value_dim].map(|dim| head_pitch(dim) as usize);
        let q_pitch = params.q_pitch as usize;
        let mut q = vec![f64::from(UNTOUCHED); tokens * q_pitch];
        let mut caches =
            [pitch, value_pitch].map(|pitch| vec![f64::from(UNTOUCHED); N_KV_HEAD as usize * capacity * pitch]);
        for token in 0..tokens {
            for (head, i) in (0..N_HEAD as usize).flat_map(|head| (0..pitch).map(move |i| (head, i))) {
                q[token * q_pitch + head * pitch + i] = self.element(token, head, i);
            }
            for (which, (cache, pitch)) in caches.iter_mut().zip([pitch, value_pitch]).enumerate() {
                for (head, i) in (0..N_KV_HEAD as usize).flat_map(|head| (0..pitch).map(move |i| (head, i))) {
                    let slot = N_HEAD as usize + which * N_KV_HEAD as usize + head;
                    let row = head * capacity + (position + token) % capacity;
                    cache[row * pitch + i] = self.element(token, slot, i);
                }
            }
        }
        (q, caches)
    }
}

fn params(variant: Variant) -> RopeAppend {
    let Variant { head_dim, dims, position, .. } = variant;
    let (value_dim, _) = variant.values.unwrap_or((head_dim, 1.0));
    RopeAppend {
        n_head: N_HEAD,
        n_kv_head: N_KV_HEAD,
        first_kv_head: 0,
        kv_heads: N_KV_HEAD,
        head_dim,
        value_dim,
        dims,
        qkv_pitch: ((2 * N_HEAD + 2 * N_KV_HEAD) * head_dim.max(value_dim)).next_multiple_of(32) + 32,
        q_pitch: (N_HEAD * head_pitch(head_dim)).next_multiple_of(32) + 32,
        position,
        // Some positions wrap around.
        capacity: if position >= TOKENS { position + 1 } else { position + TOKENS + 3 },
        eps: 1e-5,
        query_beta: 0.25,
        query_length: 2,
        query_offset: 1,
        row: 0,
    }
}

/// Computed queries, and the words of the caches, one page after the other.
struct Appended {
    q: Vec<u32>,
    caches: [Vec<u32>; 2],
}

fn append(inputs: &Inputs<'_>, tier: Tier) -> Appended {
    let Inputs { variant, params, qkv, table, norms } = inputs;
    let page_heads = if variant.pages { 1 } else { N_KV_HEAD };
    let before = |dim: u32| untouched((page_heads * params.capacity * head_pitch(dim)) as usize, variant.kv_f32);
    let (keys_before, values_before) = (before(params.head_dim), before(params.value_dim));
    let switch = |name, on| (name, f64::from(u8::from(on)));
    let overrides = [
        ("WORKGROUP_SIZE", f64::from(variant.workgroup)),
        switch("NEOX", variant.neox),
        switch("ROPE", variant.rope),
        switch("QK_NORM", variant.qk_norm),
        switch("QK_NORM_ALL", variant.norm_all),
        switch("NORM_AFTER_ROPE", variant.norm_after),
        switch("GATED", variant.gated),
        switch("QUERY_SCALE", variant.grows),
        switch("KV_F32", variant.kv_f32),
        ("VALUE_SCALE", variant.values.map_or(1.0, |(_, scale)| scale)),
    ];
    let [of_queries, of_keys] = [&norms[0], &norms[1]].map(|norm| bytes(norm));
    let mut got =
        Appended { q: vec![UNTOUCHED.to_bits(); (TOKENS * params.q_pitch) as usize], caches: [Vec::new(), Vec::new()] };
    for first_kv_head in (0..N_KV_HEAD).step_by(page_heads as usize) {
        let queries = if first_kv_head == 0 { N_HEAD } else { 0 };
        let params = RopeAppend { first_kv_head, kv_heads: page_heads, ..*params };
        let call = Call {
            kernel: "rope_append",
            tier,
            weights: None,
            overrides: &overrides,
            params: bytes_of(&params),
            buffers: &[bytes(qkv), bytes(table), of_queries, of_keys, cast_slice(&got.q), &keys_before, &values_before],
            workgroups: (queries + 2 * page_heads, TOKENS, 1),
        };
        let [q, keys, values] = Gpu::get().run_for(&call, [4, 5, 6]);
        got.q = q;
        got.caches[0].extend(keys);
        got.caches[1].extend(values);
    }
    got
}

fn check(variant: Variant) {
    let params = params(variant);
    let [tokens, dim, half] = [TOKENS, variant.head_dim, variant.dims / 2].map(|v| v as usize);
    let qkv: Vec<f32> = noise(tokens * params.qkv_pitch as usize, 41).iter().map(|v| v * 3.0).collect();
    let table = noise(tokens * half.max(1) * 2, 42);
    let norm_len = |heads: u32| if variant.norm_all { dim * heads as usize } else { dim };
    let norms = [noise(norm_len(N_HEAD), 43), noise(norm_len(N_KV_HEAD), 44)];

    let inputs = Inputs { variant, params, qkv: &qkv, table: &table, norms: &norms };
    let (q, caches) = inputs.outputs();
    for tier in Gpu::get().tiers() {
        let got = append(&inputs, tier);
        let what = format!("{tier} {variant:?}");
        assert_close(&cast_vec(got.q), &q, 1e-5, &format!("{what}: q"));
        for (name, (words, expected)) in ["keys", "values"].into_iter().zip(got.caches.into_iter().zip(&caches)) {
            let what = format!("{what}: {name}");
            if variant.kv_f32 {
                assert_close(&cast_vec(words), expected, 1e-5, &what);
            } else {
                let halves: Vec<f32> = cast_slice::<u32, f16>(&words).iter().map(|v| v.to_f32()).collect();
                assert_close(&halves, expected, 1e-3, &what);
            }
        }
    }
}

#[test]
fn rope_matches_its_equation_for_both_orders_and_norms() {
    for (neox, rope, qk_norm) in
        [(false, true, false), (true, true, false), (false, true, true), (true, true, true), (true, false, true)]
    {
        for kv_f32 in [false, true] {
            check(Variant { neox, rope, qk_norm, kv_f32, ..PLAIN });
        }
    }
}

#[test]
fn rope_matches_its_equation_for_norms_of_all_heads_and_growing_queries() {
    for (norm_all, grows, rope) in [(true, false, true), (false, true, true), (true, true, false)] {
        for neox in [false, true] {
            check(Variant { norm_all, grows, rope, neox, qk_norm: norm_all, ..PLAIN });
            check(Variant { norm_all, grows, rope, neox, qk_norm: norm_all, head_dim: 12, dims: 12, ..PLAIN });
        }
    }
}

#[test]
fn rope_matches_its_equation_in_pages_of_a_head() {
    for (kv_f32, norm_all, gated) in [(false, false, false), (true, false, true), (false, true, false)] {
        let values = Some((24, 0.707));
        check(Variant { pages: true, kv_f32, norm_all, gated, values, qk_norm: true, neox: true, ..PLAIN });
    }
}

#[test]
fn rope_matches_its_equation_for_weights_behind_the_rotation() {
    for (neox, rope, norm_all) in [(true, true, false), (false, true, false), (true, false, false), (true, true, true)]
    {
        check(Variant { norm_after: true, qk_norm: true, neox, rope, norm_all, ..PLAIN });
        check(Variant { norm_after: true, qk_norm: true, neox, rope, norm_all, dims: 32, kv_f32: true, ..PLAIN });
    }
}

#[test]
fn rope_matches_its_equation_for_values_of_another_width() {
    for (head_dim, value_dim, kv_f32) in [(192, 128, false), (12, 8, true), (20, 6, false), (24, 64, false)] {
        for gated in [false, true] {
            let values = Some((value_dim, 0.707));
            check(Variant { head_dim, dims: 4, values, kv_f32, gated, qk_norm: true, neox: true, ..PLAIN });
        }
    }
}

#[test]
fn rope_leaves_the_gates_of_queries() {
    for qk_norm in [false, true] {
        check(Variant { gated: true, neox: true, qk_norm, ..PLAIN });
        check(Variant { gated: true, qk_norm, head_dim: 7, dims: 6, kv_f32: true, ..PLAIN });
    }
}

#[test]
fn rope_matches_its_equation_for_head_sizes_and_partial_rotation() {
    for (head_dim, dims, kv_f32) in [
        (8, 8, false),
        (6, 4, false),
        (7, 6, true),
        (20, 20, false),
        (80, 32, false),
        (128, 64, true),
        (256, 256, false),
    ] {
        for neox in [false, true] {
            check(Variant { head_dim, dims, kv_f32, neox, qk_norm: true, position: 0, workgroup: 64, ..PLAIN });
        }
    }
}

#[test]
fn f16_caches_hold_no_infinities() {
    let params = RopeAppend {
        n_head: 1,
        n_kv_head: 1,
        kv_heads: 1,
        head_dim: 4,
        value_dim: 4,
        qkv_pitch: 32,
        q_pitch: 32,
        capacity: 1,
        ..RopeAppend::default()
    };
    let mut qkv = vec![0.0_f32; 32];
    qkv[4..12].copy_from_slice(&[1e6, -1e6, 65504.0, -65530.0, f32::MAX, f32::MIN, 65519.9, 1.0]);
    for tier in Gpu::get().tiers() {
        let call = Call {
            kernel: "rope_append",
            tier,
            weights: None,
            overrides: &[("ROPE", 0.0)],
            params: bytes_of(&params),
            buffers: &[bytes(&qkv), &[0; 8], &[0; 4], &[0; 4], &[0; 128], &[0; 8], &[0; 8]],
            workgroups: (3, 1, 1),
        };
        let [keys, values] = Gpu::get().run_for(&call, [5, 6]);
        let most = f16::MAX;
        assert_eq!(cast_slice::<u32, f16>(&keys), [most, -most, most, -most], "{tier}");
        assert_eq!(cast_slice::<u32, f16>(&values), [most, -most, most, f16::ONE], "{tier}");
    }
}
