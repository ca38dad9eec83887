//! Attention for decoding and for prompts, compared with its equation in f64, at head sizes, ratios
//! and offsets that do not match the tiles.

use bytemuck::{bytes_of, cast_slice};
use half::f16;
use thermocline_shaders::{
    DecodeGrid, Tier, decode_heads, head_pitch, limits,
    params::{Attention, AttentionMerge, SoftCap},
};

use crate::gpu::{Call, Gpu, assert_close, bytes, noise};

#[derive(Debug, Clone, Copy)]
struct Shape {
    n_head: u32,
    n_kv_head: u32,
    head_dim: u32,
    /// Width of values; 0: the width of keys.
    value_dim: u32,
    tokens: u32,
    position: u32,
    window: u32,
    softcap: f32,
    kv_f32: bool,
    sinks: bool,
    /// True if the caches have room only for the window, the tokens and one tile.
    ring: bool,
    /// Key/value heads per page of the caches; 0: all heads.
    page_heads: u32,
}

const PLAIN: Shape = Shape {
    n_head: 2,
    n_kv_head: 2,
    head_dim: 64,
    value_dim: 0,
    tokens: 1,
    position: 0,
    window: 0,
    softcap: 0.0,
    kv_f32: false,
    sinks: false,
    ring: false,
    page_heads: 0,
};

/// Filler around input data. It must not be read.
const POISON: f32 = f32::NAN;
/// Filler around results. It must not be changed.
const UNTOUCHED: f32 = 7.0;

/// Inputs of one case, and the output computed from its equation.
struct Case {
    params: Attention,
    shape: Shape,
    q: Vec<f32>,
    keys: Vec<u8>,
    values: Vec<u8>,
    sinks: Vec<f32>,
    expected: Vec<f64>,
}

impl Shape {
    fn value_dim(&self) -> u32 {
        if self.value_dim == 0 { self.head_dim } else { self.value_dim }
    }
}

/// A cache [n_kv_head, capacity, dim] with noise up to row `rows`: its bytes, and its rounded
/// values.
fn cache(shape: &Shape, dim: u32, capacity: usize, rows: usize, seed: u32) -> (Vec<u8>, Vec<f64>) {
    let [heads, dim, pitch] = [shape.n_kv_head, dim, head_pitch(dim)].map(|v| v as usize);
    let mut noise = noise(heads * capacity * pitch, seed);
    for (i, value) in noise.iter_mut().enumerate() {
        if i / pitch % capacity >= rows {
            *value = POISON;
        } else if i % pitch >= dim {
            *value = 0.0;
        }
    }
    if shape.kv_f32 {
        return (bytes(&noise).to_vec(), noise.iter().map(|v| f64::from(*v)).collect());
    }
    let halves: Vec<f16> = noise.iter().map(|v| f16::from_f32(*v)).collect();
    (cast_slice(&halves).to_vec(), halves.iter().map(|v| v.to_f64()).collect())
}

impl Case {
    fn new(shape: Shape) -> Self {
        let Shape { n_head, n_kv_head, tokens, position, window, softcap, .. } = shape;
        let [heads, group, dim, pitch] =
            [n_head, n_head / n_kv_head, shape.head_dim, head_pitch(shape.head_dim)].map(|v| v as usize);
        let rows = (position + tokens) as usize;
        let ring = (window + tokens + 64) as usize;
        let capacity = if shape.ring { ring.next_multiple_of(64) } else { rows + 70 };
        let params = Attention {
            n_head,
            n_kv_head,
            first_kv_head: 0,
            kv_heads: n_kv_head,
            q_pitch: (n_head * head_pitch(shape.head_dim)).next_multiple_of(32) + 32,
            out_pitch: (n_head * shape.value_dim()).next_multiple_of(32) + 32,
            tokens,
            position,
            capacity: capacity as u32,
            window,
            span: 0,
            splits: 0,
            // Scores of a few units, so that neither one key dominates nor all weigh the same.
            scale: 6.0 / (dim as f32).sqrt(),
            softcap,
            row: 0,
        };
        let (keys, key_values) = cache(&shape, shape.head_dim, capacity, rows, 21);
        let (values, value_values) = cache(&shape, shape.value_dim(), capacity, rows, 22);
        let (q_pitch, out_pitch) = (params.q_pitch as usize, params.out_pitch as usize);
        let mut q = noise(tokens as usize * q_pitch, 23);
        let sinks: Vec<f32> = noise(if shape.sinks { heads } else { 1 }, 24).iter().map(|v| 6.0 * v).collect();
        let mut expected = vec![f64::from(UNTOUCHED); tokens as usize * out_pitch];
        for (i, value) in q.iter_mut().enumerate() {
            if i % q_pitch >= heads * pitch {
                *value = POISON;
            } else if i % q_pitch % pitch >= dim {
                *value = 0.0;
            }
        }
        for (token, head) in (0..tokens as usize).flat_map(|t| (0..heads).map(move |h| (t, h))) {
            let last = position as usize + token;
            let first = if window == 0 { 0 } else { (last + 1).saturating_sub(window as usize) };
            let query = &q[token * q_pitch + head * pitch..][..dim];
            let row = |i: usize, pitch: usize| (head / group * capacity + i % capacity) * pitch;
            let scores = (first..=last).map(|i| {
                let products = query.iter().zip(&key_values[row(i, pitch)..]);
                let score = products.map(|(a, b)| f64::from(*a) * b).sum::<f64>() * f64::from(params.scale);
                let cap = f64::from(softcap);
                if cap == 0.0 { score } else { cap * (score / cap).tanh() }
            });
            let weights: Vec<f64> = scores.map(f64::exp).collect();
            let sink = if shape.sinks { f64::from(sinks[head]).exp() } else { 0.0 };
            let total: f64 = weights.iter().sum::<f64>() + sink;
            let [out_dim, value_pitch] = [shape.value_dim(), head_pitch(shape.value_dim())].map(|v| v as usize);
            for d in 0..out_dim {
                let value = |i: usize| value_values[row(i, value_pitch) + d];
                let terms = weights.iter().zip(first..).map(|(weight, i)| weight * value(i));
                expected[token * out_pitch + head * out_dim + d] = terms.sum::<f64>() / total;
            }
        }
        Case { params, shape, q, keys, values, sinks, expected }
    }

    fn overrides(&self) -> Vec<(&'static str, f64)> {
        let switch = |on: bool| f64::from(u8::from(on));
        let Shape { head_dim, kv_f32, sinks, .. } = self.shape;
        let value_dim = ("VALUE_DIM", f64::from(self.shape.value_dim()));
        vec![value_dim, ("HEAD_DIM", f64::from(head_dim)), ("KV_F32", switch(kv_f32)), ("SINKS", switch(sinks))]
    }

    /// The parameters of each page of the caches, with its keys and values.
    fn pages(&self) -> Vec<(Attention, &[u8], &[u8])> {
        let Shape { n_kv_head, page_heads, .. } = self.shape;
        let page_heads = if page_heads == 0 { n_kv_head } else { page_heads };
        let part = |of: &'_ [u8], first: u32, heads: u32| {
            let head = of.len() / n_kv_head as usize;
            first as usize * head..(first + heads) as usize * head
        };
        let page = |first: u32| {
            let kv_heads = page_heads.min(n_kv_head - first);
            let params = Attention { first_kv_head: first, kv_heads, ..self.params };
            let [keys, values] = [&self.keys, &self.values].map(|of| &of[part(of, first, kv_heads)]);
            (params, keys, values)
        };
        (0..n_kv_head).step_by(page_heads as usize).map(page).collect()
    }

    fn attend(&self, tier: Tier, decode: Option<(DecodeGrid, u32, u32)>) -> Vec<f32> {
        let Case { shape, q, sinks, expected, .. } = self;
        let group = shape.n_head / shape.n_kv_head;
        let mut out = vec![UNTOUCHED; expected.len()];
        let mut overrides = self.overrides();
        let Some((grid, heads, workgroup)) = decode else {
            for (params, keys, values) in self.pages() {
                let call = Call {
                    kernel: "attention_prompt",
                    tier,
                    weights: None,
                    overrides: &overrides,
                    params: bytes_of(&params),
                    buffers: &[bytes(q), keys, values, bytes(sinks), bytes(&out)],
                    workgroups: (
                        params.kv_heads * group,
                        shape.tokens.div_ceil(limits::ATTENTION_QUERIES),
                        shape.value_dim().div_ceil(limits::ATTENTION_OUT),
                    ),
                };
                out = Gpu::get().run(&call, 4);
            }
            return out;
        };
        overrides.push(("WORKGROUP_SIZE", f64::from(workgroup)));
        overrides.push(("HEADS", f64::from(heads)));
        if grid.splits > 1 {
            out = vec![POISON; grid.partials_len(shape.n_head, shape.value_dim())];
        }
        for (params, keys, values) in self.pages() {
            let params = Attention { span: grid.span, splits: grid.splits, ..params };
            let call = Call {
                kernel: "attention_decode",
                tier,
                weights: None,
                overrides: &overrides,
                params: bytes_of(&params),
                buffers: &[bytes(q), keys, values, bytes(sinks), bytes(&out)],
                workgroups: grid.of_heads(&params, heads).workgroups(),
            };
            out = Gpu::get().run(&call, 4);
        }
        if grid.splits == 1 {
            return out;
        }
        overrides.truncate(1);
        overrides.push(("WORKGROUP_SIZE", f64::from(workgroup)));
        let (out_pitch, result) = (self.params.out_pitch, vec![UNTOUCHED; expected.len()]);
        let merge = AttentionMerge { n_head: shape.n_head, out_pitch, splits: grid.splits, row: 0 };
        let call = Call {
            kernel: "attention_merge",
            tier,
            weights: None,
            overrides: &overrides,
            params: bytes_of(&merge),
            buffers: &[bytes(&out), bytes(&result)],
            workgroups: (shape.n_head, shape.tokens, 1),
        };
        Gpu::get().run(&call, 1)
    }

    fn check_prompt(&self, tier: Tier) {
        let what = format!("prompt {tier} {:?}", self.shape);
        assert_close(&self.attend(tier, None), &self.expected, 2e-5, &what);
    }

    /// Checks decoding with splits for `workgroups` workgroups; 0: splits of one tile.
    fn check_decode(&self, tier: Tier, workgroups: u32, workgroup: u32) {
        let heads = decode_heads(self.shape.n_head, self.shape.n_kv_head, self.shape.head_dim).min(workgroup / 16);
        let mut grid = DecodeGrid::new(&self.params, heads, workgroups);
        if workgroups == 0 {
            let seen = grid.span * grid.splits;
            grid = DecodeGrid { span: limits::ATTENTION_TILE, splits: seen.div_ceil(limits::ATTENTION_TILE), ..grid };
        }
        let what = format!("decode {tier} {workgroup} {grid:?} {:?}", self.shape);
        assert_close(&self.attend(tier, Some((grid, heads, workgroup))), &self.expected, 2e-5, &what);
    }
}

#[test]
fn attention_matches_its_equation_for_every_head_size() {
    for (head_dim, kv_f32) in [
        (8, false),
        (20, false),
        (20, true),
        (6, false),
        (7, true),
        (64, false),
        (80, false),
        (96, true),
        (128, false),
        (256, false),
        (256, true),
        (300, true),
        (576, false),
    ] {
        let shape = Shape { head_dim, kv_f32, n_head: 3, n_kv_head: 1, ..PLAIN };
        let decode = Case::new(Shape { tokens: 2, position: 171, ..shape });
        let prompt = Case::new(Shape { tokens: 45, position: 83, ..shape });
        // At least one invocation per unit of a head.
        let workgroup = (head_pitch(head_dim) / 4).next_multiple_of(32).max(128);
        for tier in Gpu::get().tiers() {
            decode.check_decode(tier, 0, workgroup);
            prompt.check_prompt(tier);
        }
    }
}

#[test]
fn attention_matches_its_equation_for_values_of_another_width() {
    for (head_dim, value_dim, kv_f32) in
        [(192, 128, false), (12, 8, true), (20, 6, false), (24, 64, false), (64, 300, true)]
    {
        let shape = Shape { head_dim, value_dim, kv_f32, n_head: 6, n_kv_head: 2, sinks: true, window: 90, ..PLAIN };
        let decode = Case::new(Shape { tokens: 2, position: 171, ..shape });
        let prompt = Case::new(Shape { tokens: 45, position: 83, ..shape });
        let workgroup = (head_pitch(head_dim.max(value_dim)) / 4).next_multiple_of(32).max(128);
        for tier in Gpu::get().tiers() {
            for workgroups in [0, 1] {
                decode.check_decode(tier, workgroups, workgroup);
            }
            prompt.check_prompt(tier);
        }
    }
}

#[test]
fn attention_matches_its_equation_for_grouped_heads() {
    for (n_head, n_kv_head) in [(2, 2), (6, 2), (16, 2), (11, 1)] {
        let shape = Shape { n_head, n_kv_head, ..PLAIN };
        let decode = Case::new(Shape { tokens: 3, position: 140, ..shape });
        let prompt = Case::new(Shape { tokens: 33, position: 0, ..shape });
        for tier in Gpu::get().tiers() {
            decode.check_decode(tier, 1, 128);
            decode.check_decode(tier, 30, 64);
            prompt.check_prompt(tier);
        }
    }
}

#[test]
fn attention_matches_its_equation_in_pages_of_some_heads() {
    for (n_head, n_kv_head, page_heads) in [(6, 3, 1), (10, 5, 2), (4, 4, 3)] {
        let shape = Shape { n_head, n_kv_head, page_heads, head_dim: 20, sinks: true, window: 90, ..PLAIN };
        let decode = Case::new(Shape { tokens: 3, position: 140, ..shape });
        let prompt = Case::new(Shape { tokens: 33, position: 70, kv_f32: true, ..shape });
        for tier in Gpu::get().tiers() {
            decode.check_decode(tier, 1, 128);
            decode.check_decode(tier, 0, 64);
            prompt.check_prompt(tier);
        }
    }
}

#[test]
fn attention_matches_its_equation_with_windows_softcaps_and_positions() {
    for (window, softcap) in [(0, 0.0), (1, 0.0), (5, 2.0), (64, 0.0), (150, 20.0), (0, 3.0)] {
        for position in [0, 1, 63, 64, 300] {
            let shape = Shape { window, softcap, n_head: 2, n_kv_head: 1, head_dim: 32, position, ..PLAIN };
            for tier in Gpu::get().tiers() {
                for (tokens, workgroups) in [(1, 0), (8, 0), (3, 12)] {
                    Case::new(Shape { tokens, ..shape }).check_decode(tier, workgroups, 128);
                }
                for tokens in [1, 31, 97] {
                    Case::new(Shape { tokens, ..shape }).check_prompt(tier);
                }
            }
        }
    }
}

#[test]
fn attention_matches_its_equation_in_rings_at_every_offset_of_tiles() {
    for (window, kv_f32) in [(8, false), (64, true), (100, false)] {
        for position in [0, 1, 63, 64, 127, 128, 150, 191, 192, 255, 256, 319, 1000] {
            let shape = Shape { window, kv_f32, n_head: 2, n_kv_head: 1, head_dim: 32, position, ring: true, ..PLAIN };
            for tier in Gpu::get().tiers() {
                for (tokens, workgroups) in [(1, 0), (8, 12)] {
                    Case::new(Shape { tokens, ..shape }).check_decode(tier, workgroups, 128);
                }
                Case::new(Shape { tokens: 97, ..shape }).check_prompt(tier);
            }
        }
    }
}

#[test]
fn sinks_take_part_in_the_softmax_without_a_value() {
    for (n_head, n_kv_head, window, position) in [(6, 2, 0, 300), (8, 1, 40, 63), (3, 3, 5, 0)] {
        let shape = Shape { n_head, n_kv_head, window, position, head_dim: 32, sinks: true, ..PLAIN };
        for tier in Gpu::get().tiers() {
            for (tokens, workgroups) in [(1, 0), (8, 0), (3, 1)] {
                Case::new(Shape { tokens, ..shape }).check_decode(tier, workgroups, 128);
            }
            for tokens in [1, 45] {
                Case::new(Shape { tokens, ..shape }).check_prompt(tier);
            }
        }
    }
}

#[test]
fn attention_matches_its_equation_for_long_contexts() {
    let shape = Shape { n_head: 4, n_kv_head: 2, head_dim: 64, position: 8000, ..PLAIN };
    for tier in Gpu::get().tiers() {
        let case = Case::new(Shape { tokens: 1, ..shape });
        for workgroups in [1, 64, 100_000] {
            case.check_decode(tier, workgroups, 128);
        }
    }
}

#[test]
fn scores_too_large_for_exp_stay_numbers() {
    for tier in Gpu::get().tiers() {
        for tokens in [4, 40] {
            let mut case = Case::new(Shape { tokens, position: 90, head_dim: 32, ..PLAIN });
            case.params.scale = 1e4;
            let grid = DecodeGrid::new(&case.params, 1, 100);
            let out = case.attend(tier, (tokens == 4).then_some((grid, 1, 128)));
            let row = case.params.out_pitch as usize;
            for (i, value) in out.iter().enumerate().filter(|(i, _)| i % row < 64) {
                assert!(value.abs() <= 1.0, "{tier} {tokens} tokens: element {i} is {value}");
            }
        }
    }
}

#[test]
fn soft_cap_matches_its_equation() {
    let y: Vec<f32> = noise(3 * 64, 31).iter().map(|v| v * 4000.0).collect();
    let expected: Vec<f64> = (y.iter().enumerate())
        .map(|(i, v)| if i % 64 < 50 { 30.0 * (f64::from(*v) / 30.0).tanh() } else { f64::from(*v) })
        .collect();
    for tier in Gpu::get().tiers() {
        let call = Call {
            kernel: "soft_cap",
            tier,
            weights: None,
            overrides: &[("WORKGROUP_SIZE", 32.0)],
            params: bytes_of(&SoftCap { cols: 50, pitch: 64, rows: 3, stride: 96, cap: 30.0 }),
            buffers: &[bytes(&y)],
            workgroups: (3, 2, 1),
        };
        assert_close(&Gpu::get().run(&call, 0), &expected, 1e-5, &tier.to_string());
    }
}
