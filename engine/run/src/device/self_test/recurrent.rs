//! Kernels of recurrent mixers (short convolution, gated delta rule, Mamba-2, gated norm) and of
//! AltUp streams.

use thermocline_shaders::{limits::SCAN_ROWS, params};

use super::case::{CLOSE, Case, NEAR, noise, unpadded};
use thermocline_cpu::{
    Cpu,
    ops::{
        Activation, DeltaNetScratch, DeltaNetShape, DeltaNetTokens, Mamba2Scratch, Mamba2Shape, Mamba2Tokens,
        ShortConv, softplus,
    },
};

/// Columns of a state that a scan's workgroup computes.
const COLUMNS: usize = 8;

pub(super) fn cases(cpu: &Cpu) -> Vec<Case> {
    let mut cases = vec![short_conv(cpu), gated_norm(cpu), mamba2(cpu), altup_add(cpu)];
    cases.extend(delta_net(cpu));
    cases.extend(altup());
    cases
}

fn short_conv(cpu: &Cpu) -> Case {
    let (channels, taps, tokens) = (37, 4, 9);
    let (x_pitch, y_pitch) = (channels + 11, channels + 3);
    let (x, weight, bias) = (noise(tokens * x_pitch, 1), noise(taps * channels, 2), noise(channels, 3));
    let before = noise((taps - 1) * channels, 4);
    // A filter has a row per channel; the kernel's weights have a row per tap.
    let rows: Vec<f32> = (0..channels * taps).map(|at| weight[at % taps * channels + at / taps]).collect();
    let conv = ShortConv::new(&rows, taps, Some(bias.clone()));
    let (mut state, mut y) = (before.clone(), vec![0.0; tokens * channels]);
    cpu.short_conv(&conv, &unpadded(&x, x_pitch, channels), &mut state, &mut y, true);
    let out = vec![0.0; tokens * y_pitch];
    let [channels32, taps, tokens32, x_pitch, y_pitch32] = [channels, taps, tokens, x_pitch, y_pitch].map(|n| n as u32);
    let params = params::ShortConv {
        channels: channels32,
        taps,
        tokens: tokens32,
        x_pitch,
        y_pitch: y_pitch32,
        span: tokens32,
        save: 1,
        row: 0,
    };
    Case::new("short_conv", 64, params, [channels32.div_ceil(64), 1, 1])
        .set("HAS_BIAS", 1)
        .floats(&x)
        .floats(conv.weight())
        .floats(&bias)
        .changes(&before, &state, CLOSE)
        .rows(&out, y_pitch, &y, channels, CLOSE)
}

/// Heads that are normed and then multiplied by their gates.
fn gated_norm(cpu: &Cpu) -> Case {
    let (heads, dim, tokens, eps, gate_at) = (3, 80, 2, 1e-5, 7);
    let (pitch, gate_pitch) = (heads * dim + 4, heads * dim + 9);
    let (x, gates, weight) = (noise(tokens * pitch, 1), noise(tokens * gate_pitch, 2), noise(dim, 3));
    let mut normed = unpadded(&x, pitch, heads * dim);
    cpu.rms_norm(&mut normed, None, &weight, eps);
    let mut gated: Vec<f32> =
        gates.chunks_exact(gate_pitch).flat_map(|row| &row[gate_at..gate_at + heads * dim]).copied().collect();
    cpu.activate(Activation::Silu, &mut gated, Some(&normed));
    let [dim32, pitch32, gate_pitch, gate_at] = [dim, pitch, gate_pitch, gate_at].map(|n| n as u32);
    let params = params::GatedNorm { dim: dim32, pitch: pitch32, gate_pitch, gate_at, eps };
    Case::new("gated_norm", 64, params, [heads as u32, tokens as u32, 1])
        .rows(&x, pitch, &gated, heads * dim, CLOSE)
        .floats(&gates)
        .floats(&weight)
}

/// Queries and keys of length one and the rates of a token, then the rule token by token.
fn delta_net(cpu: &Cpu) -> [Case; 2] {
    let shape = DeltaNetShape { k_heads: 2, v_heads: 4, k_dim: 24, v_dim: 20, interleaved: true };
    let DeltaNetShape { k_heads, v_heads, k_dim, v_dim, .. } = shape;
    let (tokens, root) = (9, (k_dim as f32).sqrt());
    let (pitch, rates_pitch, out_pitch) = (shape.qkv() + 5, 2 * v_heads + 4, shape.values() + 2);
    let (decay_at, rate_at) = (1, 1 + v_heads);
    let raw: Vec<f32> = noise(tokens * pitch, 1).iter().map(|value| value * 3.0).collect();
    let raw_rates: Vec<f32> = noise(tokens * rates_pitch, 2).iter().map(|value| value * 10.0).collect();
    let (a, dt_bias) = (noise(v_heads, 3).iter().map(|v| -v.abs()).collect::<Vec<_>>(), noise(v_heads, 4));
    let (mut qkv, mut rates) = (raw.clone(), raw_rates.clone());
    let (mut log_decay, mut beta) = (Vec::new(), Vec::new());
    for (row, rates) in qkv.chunks_exact_mut(pitch).zip(rates.chunks_exact_mut(rates_pitch)) {
        for (slot, head) in row[..2 * k_heads * k_dim].chunks_exact_mut(k_dim).enumerate() {
            // The squared length is the mean square times the number of elements.
            let square: f32 = head.iter().map(|x| x * x).sum();
            let by = (square + 1e-6).sqrt() * if slot < k_heads { root } else { 1.0 };
            head.iter_mut().for_each(|x| *x /= by);
        }
        for head in 0..v_heads {
            let log = a[head] * softplus(rates[decay_at + head] + dt_bias[head]);
            let rate = 1.0 / (1.0 + (-rates[rate_at + head]).exp());
            log_decay.push(log);
            beta.push(rate);
            (rates[decay_at + head], rates[rate_at + head]) = (log.exp(), rate);
        }
    }
    let before = noise(shape.state(), 5);
    let (mut state, mut out) = (before.clone(), vec![0.0; tokens * shape.values()]);
    let unscaled = unpadded(&raw, pitch, shape.qkv());
    let of = DeltaNetTokens { qkv: &unscaled, log_decay: &log_decay, beta: &beta };
    cpu.gated_delta_net(&shape, &of, &mut state, &mut out, &mut DeltaNetScratch::default());
    let [k, v, dim, width, qkv_pitch, rates_pitch, decay_at, rate_at, out_pitch32, tokens32] =
        [k_heads, v_heads, k_dim, v_dim, pitch, rates_pitch, decay_at, rate_at, out_pitch, tokens].map(|n| n as u32);
    let (k_heads, v_heads) = (k, v);
    let params = params::DeltaInputs { k_heads, v_heads, k_dim: dim, qkv_pitch, rates_pitch, decay_at, rate_at };
    let inputs = Case::new("delta_inputs", 64, params, [2 * k + 1, tokens32, 1])
        .changes(&raw, &qkv, CLOSE)
        .changes(&raw_rates, &rates, CLOSE)
        .floats(&a)
        .floats(&dt_bias);
    let params = params::DeltaNet {
        tokens: tokens32,
        k_heads,
        v_heads,
        v_dim: width,
        qkv_pitch,
        rates_pitch,
        decay_at,
        rate_at,
        out_pitch: out_pitch32,
        row: 0,
    };
    let workgroup = dim.div_ceil(SCAN_ROWS) * COLUMNS as u32;
    let nothing = vec![0.0; tokens * out_pitch];
    let rule = Case::new("delta_net", workgroup, params, [v_dim.div_ceil(COLUMNS) as u32, v, 1])
        .set("STATE_ROWS", dim)
        .set("COLUMNS", COLUMNS as u32)
        .set("INTERLEAVED", 1)
        .floats(&qkv)
        .floats(&rates)
        .changes(&before, &state, NEAR)
        .rows(&nothing, out_pitch, &out, shape.values(), NEAR);
    [inputs, rule]
}

/// Steps from almost no forgetting to complete forgetting.
fn mamba2(cpu: &Cpu) -> Case {
    let shape = Mamba2Shape { heads: 6, head_dim: 20, groups: 2, state: 24 };
    let (tokens, steps_at) = (8, 3);
    let (pitch, rates_pitch, out_pitch) = (shape.channels() + 5, shape.heads + 4, shape.inner() + 2);
    let vectors = noise(tokens * pitch, 1);
    let steps: Vec<f32> = noise(tokens * rates_pitch, 2).iter().map(|value| value * 12.0 - 4.0).collect();
    let a: Vec<f32> = noise(shape.heads, 3).iter().map(|value| -4.0 * value.abs()).collect();
    let (bias, d) = (noise(shape.heads, 4), noise(shape.heads, 5));
    let rows = steps.chunks_exact(rates_pitch);
    let dt: Vec<f32> = rows
        .flat_map(|row| {
            row[steps_at..steps_at + shape.heads].iter().zip(&bias).map(|(step, bias)| softplus(step + bias))
        })
        .collect();
    let before = noise(shape.state_len(), 6);
    let (mut state, mut out) = (before.clone(), vec![0.0; tokens * shape.inner()]);
    let xbc = unpadded(&vectors, pitch, shape.channels());
    let of = Mamba2Tokens { xbc: &xbc, dt: &dt, a: &a, d: &d };
    cpu.mamba2_scan(&shape, &of, &mut state, &mut out, &mut Mamba2Scratch::default());
    let of_heads = [a, bias, d].concat();
    let params = params::Mamba2Scan {
        tokens: tokens as u32,
        heads: shape.heads as u32,
        groups: shape.groups as u32,
        width: shape.head_dim as u32,
        vectors_pitch: pitch as u32,
        rates_pitch: rates_pitch as u32,
        steps_at: steps_at as u32,
        out_pitch: out_pitch as u32,
        most: f32::MAX,
        ..Default::default()
    };
    let workgroup = (shape.state as u32).div_ceil(SCAN_ROWS) * COLUMNS as u32;
    let nothing = vec![0.0; tokens * out_pitch];
    Case::new("mamba2_scan", workgroup, params, [shape.head_dim.div_ceil(COLUMNS) as u32, shape.heads as u32, 1])
        .set("STATE_ROWS", shape.state as u32)
        .set("COLUMNS", COLUMNS as u32)
        .floats(&vectors)
        .floats(&steps)
        .floats(&of_heads)
        .changes(&before, &state, NEAR)
        .rows(&nothing, out_pitch, &out, shape.inner(), NEAR)
}

/// Number of streams of a model with several, their rows and elements, and the modalities of a row.
const STREAMS: usize = 4;
const ROWS: usize = 3;
const COLS: usize = 37;
const PITCH: usize = 64;
const STREAM_PITCH: usize = (ROWS + 1) * PITCH;
const MODALITIES_PITCH: usize = 32;

fn streams_case(kernel: &'static str) -> Case {
    let params = params::Streams {
        cols: COLS as u32,
        pitch: PITCH as u32,
        rows: ROWS as u32,
        stride: 64,
        stream_pitch: STREAM_PITCH as u32,
        modalities_pitch: MODALITIES_PITCH as u32,
    };
    Case::new(kernel, 64, params, [1, 2, 1])
}

/// The row and the offset of every element of a stream.
fn elements() -> impl Iterator<Item = (usize, usize)> {
    (0..ROWS).flat_map(|row| (0..COLS).map(move |col| (row, row * PITCH + col)))
}

/// Prediction and correction of all streams by products of their maps with a row's modalities.
fn altup() -> [Case; 2] {
    let (modalities, residual) = (noise(ROWS * MODALITIES_PITCH, 1), noise(ROWS * PITCH, 5));
    let coefficient = |map: &[f32], row: usize, at: usize| -> f32 {
        (0..STREAMS).map(|j| map[at * STREAMS + j] * modalities[row * MODALITIES_PITCH + j].tanh()).sum()
    };
    let (map, streams) = (noise(STREAMS * STREAMS * STREAMS, 2), noise(STREAMS * STREAM_PITCH, 3));
    let before = noise(STREAMS * STREAM_PITCH, 4);
    let (mut predicted, mut first) = (before.clone(), residual.clone());
    for (row, at) in elements() {
        for to in 0..STREAMS {
            let mixed = (0..STREAMS)
                .map(|from| coefficient(&map, row, to * STREAMS + from) * streams[from * STREAM_PITCH + at]);
            predicted[to * STREAM_PITCH + at] = streams[to * STREAM_PITCH + at] + mixed.sum::<f32>();
        }
        first[at] = predicted[at];
    }
    let predict = streams_case("altup_predict")
        .floats(&modalities)
        .floats(&map)
        .floats(&streams)
        .changes(&before, &predicted, CLOSE)
        .changes(&residual, &first, CLOSE);
    let (map, scale) = (noise(STREAMS * STREAMS, 6), noise(COLS, 7));
    let (mut corrected, mut first) = (before.clone(), residual.clone());
    for (row, at) in elements() {
        let difference = residual[at] - streams[at];
        for to in 0..STREAMS {
            corrected[to * STREAM_PITCH + at] =
                streams[to * STREAM_PITCH + at] + (1.0 + coefficient(&map, row, to)) * difference;
        }
        first[at] = corrected[at] * scale[at % PITCH];
    }
    let correct = streams_case("altup_correct")
        .floats(&modalities)
        .floats(&map)
        .floats(&streams)
        .floats(&scale)
        .changes(&before, &corrected, CLOSE)
        .changes(&residual, &first, CLOSE);
    [predict, correct]
}

fn altup_add(cpu: &Cpu) -> Case {
    let (out, before, residual) = (noise(ROWS * PITCH, 1), noise(STREAMS * STREAM_PITCH, 2), noise(ROWS * PITCH, 3));
    let added = unpadded(&out, PITCH, COLS);
    let (mut streams, mut first) = (before.clone(), residual.clone());
    for to in 1..STREAMS {
        let stream = &mut streams[to * STREAM_PITCH..][..ROWS * PITCH];
        let mut sums = unpadded(stream, PITCH, COLS);
        cpu.add(&mut sums, &added);
        for (row, sums) in stream.chunks_exact_mut(PITCH).zip(sums.chunks_exact(COLS)) {
            row[..COLS].copy_from_slice(sums);
        }
    }
    elements().for_each(|(_, at)| first[at] = streams[at]);
    streams_case("altup_add").floats(&out).changes(&before, &streams, CLOSE).changes(&residual, &first, CLOSE)
}
