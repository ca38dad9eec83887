//! Kernels of recurrent mixers: short convolution, gated delta rule, Mamba-2 and gated norm. Also
//! the gates of attention heads.

use bytemuck::{bytes_of, cast_vec};
use thermocline_shaders::{limits::SCAN_ROWS, params};

use crate::gpu::{Call, Gpu, assert_close, bytes, noise};

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

#[test]
fn short_conv_in_runs_and_pieces_matches_its_equation() {
    let gpu = Gpu::get();
    for (channels, taps, tokens, span) in [(37, 4, 1, 1), (37, 4, 9, 9), (70, 4, 23, 5), (5, 1, 3, 2), (40, 7, 4, 4)] {
        let (history, x_pitch, y_pitch) = (taps - 1, 3 * channels + 11, channels + 3);
        let (x, weight, bias) = (noise(tokens * x_pitch, 1), noise(taps * channels, 2), noise(channels, 3));
        let before = noise(history * channels, 4);
        let of_kinds = [(true, false, false), (true, true, false), (false, true, false), (false, false, true)];
        for (tier, (activate, biased, gated)) in gpu.tiers().into_iter().flat_map(|tier| of_kinds.map(|of| (tier, of)))
        {
            // Parts of a token's row: inputs, input gates, output gates.
            let at = |token: usize, part: usize, c: usize| f64::from(x[token * x_pitch + part * channels + c]);
            let input = |row: usize, c: usize| match row.checked_sub(history) {
                Some(token) => at(token, 0, c) * if gated { at(token, 1, c) } else { 1.0 },
                None => f64::from(before[row * channels + c]),
            };
            let mut wanted = vec![0.0; tokens * y_pitch];
            for (t, c) in (0..tokens).flat_map(|t| (0..channels).map(move |c| (t, c))) {
                let sum = (0..taps).map(|j| f64::from(weight[j * channels + c]) * input(t + j, c)).sum::<f64>();
                let sum = sum + if biased { f64::from(bias[c]) } else { 0.0 };
                let sum = if activate { silu(sum) } else { sum };
                wanted[t * y_pitch + c] = if gated { sum * at(t, 2, c) } else { sum };
            }
            let after: Vec<f64> = (0..history * channels).map(|i| input(tokens + i / channels, i % channels)).collect();
            let runs = tokens.div_ceil(span);
            let run = |span: usize, save: bool, runs: usize| {
                let [channels, taps, tokens, x_pitch, y_pitch, span] =
                    [channels, taps, tokens, x_pitch, y_pitch, span].map(|n| n as u32);
                let params =
                    params::ShortConv { channels, taps, tokens, x_pitch, y_pitch, span, save: u32::from(save), row: 0 };
                let (state, y) = (if before.is_empty() { vec![0.0] } else { before.clone() }, vec![0.0; wanted.len()]);
                let call = Call {
                    kernel: "short_conv",
                    tier,
                    weights: None,
                    overrides: &[
                        ("WORKGROUP_SIZE", 32.0),
                        ("ACTIVATE", f64::from(u8::from(activate))),
                        ("HAS_BIAS", f64::from(u8::from(biased))),
                        ("GATED", f64::from(u8::from(gated))),
                    ],
                    params: bytes_of(&params),
                    buffers: &[bytes(&x), bytes(&weight), bytes(&bias), bytes(&state), bytes(&y)],
                    workgroups: (channels.div_ceil(32), runs as u32, 1),
                };
                gpu.run_for(&call, [3, 4]).map(cast_vec::<u32, f32>)
            };
            let what =
                format!("{channels} channels, {taps} taps, {tokens} tokens, runs of {span}, gated: {gated}, {tier}");
            let [state, y] = run(span, runs == 1, runs);
            assert_close(&y, &wanted, 1e-5, &what);
            if history > 0 {
                let state = if runs == 1 { state } else { run(0, true, 1)[0].clone() };
                assert_close(&state, &after, 1e-6, &format!("{what}: state"));
            }
        }
    }
}

/// Shapes of delta nets: key heads, value heads, their sizes, whether heads are interleaved,
/// tokens.
const DELTA_NETS: [(usize, usize, usize, usize, bool, usize); 6] = [
    (2, 4, 16, 16, true, 5),
    (2, 4, 16, 16, false, 1),
    (1, 2, 5, 7, false, 9),
    (1, 2, 128, 40, true, 24),
    (3, 3, 24, 80, false, 6),
    (1, 1, 256, 16, false, 3),
];

#[test]
fn delta_inputs_match_their_equations() {
    let gpu = Gpu::get();
    for (k_heads, v_heads, k_dim, v_dim, _, tokens) in DELTA_NETS {
        let (keys, pitch) = (k_heads * k_dim, 2 * k_heads * k_dim + v_heads * v_dim + 5);
        let (decay_at, rate_at, rates_pitch) = (3, 3 + v_heads, 2 * v_heads + 4);
        let qkv: Vec<f32> = noise(tokens * pitch, 1).iter().map(|v| v * 3.0).collect();
        let rates: Vec<f32> = noise(tokens * rates_pitch, 2).iter().map(|v| v * 30.0).collect();
        let a: Vec<f32> = noise(v_heads, 3).iter().map(|v| -v.abs()).collect();
        let dt_bias = noise(v_heads, 4);
        let [mut wanted, mut wanted_rates] =
            [&qkv, &rates].map(|of| of.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>());
        for t in 0..tokens {
            for slot in 0..2 * k_heads {
                let of = &mut wanted[t * pitch + slot * k_dim..][..k_dim];
                let square: f64 = of.iter().map(|x| x * x).sum();
                let by = (square + 1e-6).sqrt() * if slot < k_heads { (k_dim as f64).sqrt() } else { 1.0 };
                of.iter_mut().for_each(|x| *x /= by);
            }
            let row = &mut wanted_rates[t * rates_pitch..][..rates_pitch];
            for h in 0..v_heads {
                let x = row[decay_at + h] + f64::from(dt_bias[h]);
                row[decay_at + h] = (f64::from(a[h]) * (1.0 + x.exp()).ln()).exp();
                row[rate_at + h] = 1.0 / (1.0 + (-row[rate_at + h]).exp());
            }
        }
        for (tier, workgroup) in gpu.tiers().into_iter().flat_map(|tier| [(tier, 64.0), (tier, 96.0)]) {
            let [heads, values, dim, qkv_pitch, rates_pitch, decay_at, rate_at] =
                [k_heads, v_heads, k_dim, pitch, rates_pitch, decay_at, rate_at].map(|n| n as u32);
            let params = params::DeltaInputs {
                k_heads: heads,
                v_heads: values,
                k_dim: dim,
                qkv_pitch,
                rates_pitch,
                decay_at,
                rate_at,
            };
            let call = Call {
                kernel: "delta_inputs",
                tier,
                weights: None,
                overrides: &[("WORKGROUP_SIZE", workgroup)],
                params: bytes_of(&params),
                buffers: &[bytes(&qkv), bytes(&rates), bytes(&a), bytes(&dt_bias)],
                workgroups: (2 * heads + 1, tokens as u32, 1),
            };
            let what = format!("{k_heads} heads of {k_dim}, {keys} keys, {tier}");
            let [got, got_rates] = gpu.run_for(&call, [0, 1]).map(cast_vec::<u32, f32>);
            assert_close(&got, &wanted, 1e-5, &what);
            assert_close(&got_rates, &wanted_rates, 1e-5, &format!("{what}: rates"));
        }
    }
}

#[test]
fn delta_net_matches_the_rule_token_by_token() {
    let gpu = Gpu::get();
    for (k_heads, v_heads, k_dim, v_dim, interleaved, tokens) in DELTA_NETS {
        let (keys, pitch) = (k_heads * k_dim, 2 * k_heads * k_dim + v_heads * v_dim + 5);
        let (decay_at, rate_at, rates_pitch, out_pitch) = (1, 1 + v_heads, 2 * v_heads + 4, v_heads * v_dim + 2);
        let root = (k_dim as f32).sqrt();
        let qkv: Vec<f32> = noise(tokens * pitch, 1).iter().map(|v| v * 1.7 / root).collect();
        let rates: Vec<f32> = noise(tokens * rates_pitch, 2).iter().map(|v| v.abs()).collect();
        let before = noise(v_heads * k_dim * v_dim, 3);
        let mut state: Vec<f64> = before.iter().map(|v| f64::from(*v)).collect();
        let mut wanted = vec![0.0; tokens * out_pitch];
        for (t, h) in (0..tokens).flat_map(|t| (0..v_heads).map(move |h| (t, h))) {
            let row = &qkv[t * pitch..][..pitch];
            let k_head = if interleaved { h % k_heads } else { h / (v_heads / k_heads) };
            let (q, k) = (&row[k_head * k_dim..][..k_dim], &row[keys + k_head * k_dim..][..k_dim]);
            let rate = |at: usize| f64::from(rates[t * rates_pitch + at + h]);
            let s = &mut state[h * k_dim * v_dim..][..k_dim * v_dim];
            s.iter_mut().for_each(|s| *s *= rate(decay_at));
            for i in 0..v_dim {
                let memory: f64 = (0..k_dim).map(|j| s[j * v_dim + i] * f64::from(k[j])).sum();
                let delta = rate(rate_at) * (f64::from(row[2 * keys + h * v_dim + i]) - memory);
                (0..k_dim).for_each(|j| s[j * v_dim + i] += f64::from(k[j]) * delta);
                wanted[t * out_pitch + h * v_dim + i] = (0..k_dim).map(|j| s[j * v_dim + i] * f64::from(q[j])).sum();
            }
        }
        let slices = (k_dim as u32).div_ceil(SCAN_ROWS);
        for (tier, columns) in gpu.tiers().into_iter().flat_map(|tier| [(tier, 8), (tier, 3)]) {
            let numbers = [tokens, k_heads, v_heads, v_dim, pitch, rates_pitch, decay_at, rate_at, out_pitch];
            let [tokens, k_heads, v_heads, v_dim, qkv_pitch, rates_pitch, decay_at, rate_at, out_pitch] =
                numbers.map(|n| n as u32);
            let params = params::DeltaNet {
                tokens,
                k_heads,
                v_heads,
                v_dim,
                qkv_pitch,
                rates_pitch,
                decay_at,
                rate_at,
                out_pitch,
                row: 0,
            };
            let out = vec![0.0; wanted.len()];
            let call = Call {
                kernel: "delta_net",
                tier,
                weights: None,
                overrides: &[
                    ("WORKGROUP_SIZE", f64::from(slices * columns)),
                    ("STATE_ROWS", k_dim as f64),
                    ("COLUMNS", f64::from(columns)),
                    ("INTERLEAVED", f64::from(u8::from(interleaved))),
                ],
                params: bytes_of(&params),
                buffers: &[bytes(&qkv), bytes(&rates), bytes(&before), bytes(&out)],
                workgroups: (v_dim.div_ceil(columns), v_heads, 1),
            };
            let what = format!("{v_heads} heads of {k_dim} x {v_dim}, {tokens} tokens, {columns} columns, {tier}");
            let [after, out] = gpu.run_for(&call, [2, 3]).map(cast_vec::<u32, f32>);
            assert_close(&out, &wanted, 1e-5, &what);
            assert_close(&after, &state, 1e-5, &format!("{what}: state"));
        }
    }
}

/// Shapes of Mamba-2: heads, size of their inputs, groups, elements of `B`, tokens, limits of
/// steps.
const MAMBAS: [(usize, usize, usize, usize, usize, [f32; 2]); 6] = [
    (4, 16, 2, 16, 5, [0.0, f32::MAX]),
    (4, 16, 1, 16, 1, [0.0, f32::MAX]),
    (3, 7, 3, 5, 9, [0.01, 0.5]),
    (2, 40, 1, 128, 24, [0.0, f32::MAX]),
    (6, 80, 2, 24, 8, [0.0, f32::MAX]),
    (1, 16, 1, 256, 17, [0.0, 0.1]),
];

#[test]
fn mamba2_scan_matches_its_equations_token_by_token() {
    let gpu = Gpu::get();
    for (heads, width, groups, rows, tokens, [least, most]) in MAMBAS {
        let inner = heads * width;
        let (pitch, rates_pitch, out_pitch, steps_at) = (inner + 2 * groups * rows + 5, heads + 4, inner + 2, 3);
        let vectors = noise(tokens * pitch, 1);
        // Steps from nearly zero to steps that forget the whole state.
        let steps: Vec<f32> = noise(tokens * rates_pitch, 2).iter().map(|v| v * 12.0 - 4.0).collect();
        let (a, bias, d) = (noise(heads, 3), noise(heads, 4), noise(heads, 5));
        let of_heads: Vec<f32> = a.iter().map(|v| -4.0 * v.abs()).chain(bias).chain(d).collect();
        let before = noise(heads * rows * width, 6);
        let mut state: Vec<f64> = before.iter().map(|v| f64::from(*v)).collect();
        let mut wanted = vec![0.0; tokens * out_pitch];
        for (t, h) in (0..tokens).flat_map(|t| (0..heads).map(move |h| (t, h))) {
            let of_head = |at: usize| f64::from(of_heads[at * heads + h]);
            let vector = |at: usize| f64::from(vectors[t * pitch + at]);
            let (b, c) = (inner + h * groups / heads * rows, inner + (groups + h * groups / heads) * rows);
            let step = f64::from(steps[t * rates_pitch + steps_at + h]) + of_head(1);
            let dt = step.exp().ln_1p().clamp(f64::from(least), f64::from(most));
            let s = &mut state[h * rows * width..][..rows * width];
            for i in 0..width {
                let x = vector(h * width + i);
                let mut out = of_head(2) * x;
                for j in 0..rows {
                    let s = &mut s[j * width + i];
                    *s = (of_head(0) * dt).exp() * *s + vector(b + j) * dt * x;
                    out += *s * vector(c + j);
                }
                wanted[t * out_pitch + h * width + i] = out;
            }
        }
        let slices = (rows as u32).div_ceil(SCAN_ROWS);
        for (tier, columns) in gpu.tiers().into_iter().flat_map(|tier| [(tier, 8), (tier, 3)]) {
            let numbers = [tokens, heads, groups, width, pitch, rates_pitch, steps_at, out_pitch];
            let [tokens, heads, groups, width, vectors_pitch, rates_pitch, steps_at, out_pitch] =
                numbers.map(|n| n as u32);
            let params = params::Mamba2Scan {
                tokens,
                heads,
                groups,
                width,
                vectors_pitch,
                rates_pitch,
                steps_at,
                out_pitch,
                least,
                most,
                row: 0,
            };
            let out = vec![0.0; wanted.len()];
            let call = Call {
                kernel: "mamba2_scan",
                tier,
                weights: None,
                overrides: &[
                    ("WORKGROUP_SIZE", f64::from(slices * columns)),
                    ("STATE_ROWS", rows as f64),
                    ("COLUMNS", f64::from(columns)),
                ],
                params: bytes_of(&params),
                buffers: &[bytes(&vectors), bytes(&steps), bytes(&of_heads), bytes(&before), bytes(&out)],
                workgroups: (width.div_ceil(columns), heads, 1),
            };
            let what = format!("{heads} heads of {rows} x {width}, {tokens} tokens, {columns} columns, {tier}");
            let [after, out] = gpu.run_for(&call, [3, 4]).map(cast_vec::<u32, f32>);
            assert_close(&out, &wanted, 2e-5, &what);
            assert_close(&after, &state, 2e-5, &format!("{what}: state"));
        }
    }
}

#[test]
fn gated_norm_matches_its_equation_in_both_orders() {
    let gpu = Gpu::get();
    let (heads, tokens, eps, gate_at) = (3, 2, 1e-5_f32, 7);
    for (dim, first, of_head) in [(7, false, false), (128, false, false), (80, true, true), (300, true, true)] {
        let (pitch, gate_pitch) = (heads * dim + 4, heads * dim + 9);
        let (x, gates) = (noise(tokens * pitch, 1), noise(tokens * gate_pitch, 2));
        let weight = noise(if of_head { heads * dim } else { dim }, 3);
        let mut wanted: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
        for (t, h) in (0..tokens).flat_map(|t| (0..heads).map(move |h| (t, h))) {
            let of = &mut wanted[t * pitch + h * dim..][..dim];
            let gate = |i: usize| silu(f64::from(gates[t * gate_pitch + gate_at + h * dim + i]));
            let each = |of: &mut [f64]| of.iter_mut().enumerate().for_each(|(i, x)| *x *= gate(i));
            if first {
                each(of);
            }
            let mean = of.iter().map(|x| x * x).sum::<f64>() / dim as f64;
            let weight = &weight[if of_head { h * dim } else { 0 }..][..dim];
            of.iter_mut().zip(weight).for_each(|(x, w)| *x *= f64::from(*w) / (mean + f64::from(eps)).sqrt());
            if !first {
                each(of);
            }
        }
        for tier in gpu.tiers() {
            let [dim32, pitch, gate_pitch] = [dim, pitch, gate_pitch].map(|n| n as u32);
            let params = params::GatedNorm { dim: dim32, pitch, gate_pitch, gate_at: gate_at as u32, eps };
            let call = Call {
                kernel: "gated_norm",
                tier,
                weights: None,
                overrides: &[
                    ("WORKGROUP_SIZE", 64.0),
                    ("GATE_FIRST", f64::from(u8::from(first))),
                    ("WEIGHT_PER_HEAD", f64::from(u8::from(of_head))),
                ],
                params: bytes_of(&params),
                buffers: &[bytes(&x), bytes(&gates), bytes(&weight)],
                workgroups: (heads as u32, tokens as u32, 1),
            };
            assert_close(&gpu.run(&call, 0), &wanted, 1e-5, &format!("heads of {dim}, {tier}"));
        }
    }
}

#[test]
fn gates_of_heads_stand_behind_their_queries() {
    let gpu = Gpu::get();
    let (heads, dim, tokens) = (3, 5, 4);
    let (cols, pitch, gate_pitch) = (heads * dim, 32, 2 * heads * dim + 20);
    let x = noise(tokens * pitch, 1);
    let gates: Vec<f32> = noise(tokens * gate_pitch, 2).iter().map(|v| v * 8.0).collect();
    let wanted: Vec<f64> = (0..tokens * pitch)
        .map(|at| {
            let (t, i) = (at / pitch, at % pitch);
            let gate = || f64::from(gates[t * gate_pitch + (2 * (i / dim) + 1) * dim + i % dim]);
            f64::from(x[at]) * if i < cols { 1.0 / (1.0 + (-gate()).exp()) } else { 1.0 }
        })
        .collect();
    for tier in gpu.tiers() {
        let [cols, pitch, rows, gate_width, gate_pitch] = [cols, pitch, tokens, dim, gate_pitch].map(|n| n as u32);
        let params = params::GateHeads { cols, pitch, rows, stride: 32, gate_width, gate_pitch, gate_first: 0 };
        let call = Call {
            kernel: "gate_heads",
            tier,
            weights: None,
            overrides: &[("WORKGROUP_SIZE", 16.0)],
            params: bytes_of(&params),
            buffers: &[bytes(&x), bytes(&gates)],
            workgroups: (2, 2, 1),
        };
        assert_close(&gpu.run(&call, 0), &wanted, 1e-6, &tier.to_string());
    }
}

#[test]
fn gates_of_their_own_are_softplus_or_sigmoid() {
    let gpu = Gpu::get();
    let (heads, dim, tokens, first) = (3, 6, 4, 7);
    let (cols, pitch, gate_pitch) = (heads * dim, 32, 40);
    let x = noise(tokens * pitch, 1);
    let gates: Vec<f32> = noise(tokens * gate_pitch, 2).iter().map(|v| v * 60.0).collect();
    // One gate per head, or one per element.
    for (width, is_softplus) in [(dim, true), (1, true), (dim, false), (1, false)] {
        let wanted: Vec<f64> = (0..tokens * pitch)
            .map(|at| {
                let (t, i) = (at / pitch, at % pitch);
                let gate = || f64::from(gates[t * gate_pitch + first + i / width]);
                let softplus = |gate: f64| gate.max(0.0) + (-gate.abs()).exp().ln_1p();
                let sigmoid = |gate: f64| 1.0 / (1.0 + (-gate).exp());
                let function = |gate| if is_softplus { softplus(gate) } else { sigmoid(gate) };
                f64::from(x[at]) * if i < cols { function(gate()) } else { 1.0 }
            })
            .collect();
        for tier in gpu.tiers() {
            let [cols, pitch, rows, gate_width, gate_pitch, gate_first] =
                [cols, pitch, tokens, width, gate_pitch, first].map(|n| n as u32);
            let params = params::GateHeads { cols, pitch, rows, stride: 32, gate_width, gate_pitch, gate_first };
            let call = Call {
                kernel: "gate_heads",
                tier,
                weights: None,
                overrides: &[
                    ("WORKGROUP_SIZE", 16.0),
                    ("OWN_GATES", 1.0),
                    ("SOFTPLUS", f64::from(u8::from(is_softplus))),
                ],
                params: bytes_of(&params),
                buffers: &[bytes(&x), bytes(&gates)],
                workgroups: (2, 3, 1),
            };
            assert_close(
                &gpu.run(&call, 0),
                &wanted,
                1e-5,
                &format!("{tier}, {width} elements per gate, softplus: {is_softplus}"),
            );
        }
    }
}
