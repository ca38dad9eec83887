//! Prediction and correction of the streams of a model with several streams (AltUp), compared with
//! their equations in f64.

use bytemuck::bytes_of;
use thermocline_shaders::params::Streams;

use crate::gpu::{Call, Gpu, assert_close, bytes, noise};

const STREAMS: usize = 4;
const ROWS: usize = 3;
const COLS: usize = 37;
const PITCH: usize = 64;
const STREAM_PITCH: usize = (ROWS + 1) * PITCH;
const MODALITIES_PITCH: usize = 32;

/// Runs `kernel` on `buffers` in every tier and compares the buffers listed in `wanted`.
fn check(kernel: &'static str, buffers: &[&[f32]], wanted: &[(usize, &[f64])]) {
    let params = Streams {
        cols: COLS as u32,
        pitch: PITCH as u32,
        rows: ROWS as u32,
        stride: 64,
        stream_pitch: STREAM_PITCH as u32,
        modalities_pitch: MODALITIES_PITCH as u32,
    };
    let buffers: Vec<&[u8]> = buffers.iter().map(|buffer| bytes(buffer)).collect();
    let gpu = Gpu::get();
    for tier in gpu.tiers() {
        let call = Call {
            kernel,
            tier,
            weights: None,
            overrides: &[("WORKGROUP_SIZE", 32.0)],
            params: bytes_of(&params),
            buffers: &buffers,
            workgroups: (2, 2, 1),
        };
        for (buffer, wanted) in wanted {
            assert_close(&gpu.run(&call, *buffer), wanted, 1e-5, &format!("{kernel}, {tier}, buffer {buffer}"));
        }
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

/// Every element of a stream: its row and its column.
fn elements() -> impl Iterator<Item = (usize, usize)> {
    (0..ROWS).flat_map(|row| (0..COLS).map(move |col| (row, row * PITCH + col)))
}

/// Product of a row of `map` and the modalities of a row.
fn coefficient(modalities: &[f32], map: &[f32], row: usize, at: usize) -> f64 {
    (0..STREAMS)
        .map(|j| f64::from(map[at * STREAMS + j]) * f64::from(modalities[row * MODALITIES_PITCH + j]).tanh())
        .sum()
}

#[test]
fn altup_predict_matches_its_equation() {
    let (modalities, map) = (noise(ROWS * MODALITIES_PITCH, 1), noise(STREAMS * STREAMS * STREAMS, 2));
    let streams = noise(STREAMS * STREAM_PITCH, 3);
    let (before, residual) = (noise(STREAMS * STREAM_PITCH, 4), noise(ROWS * PITCH, 5));
    let (mut predicted, mut first) = (wide(&before), wide(&residual));
    for (row, at) in elements() {
        for to in 0..STREAMS {
            let mixed = (0..STREAMS).map(|from| {
                coefficient(&modalities, &map, row, to * STREAMS + from) * f64::from(streams[from * STREAM_PITCH + at])
            });
            predicted[to * STREAM_PITCH + at] = f64::from(streams[to * STREAM_PITCH + at]) + mixed.sum::<f64>();
        }
        first[at] = predicted[at];
    }
    let buffers: [&[f32]; 5] = [&modalities, &map, &streams, &before, &residual];
    check("altup_predict", &buffers, &[(3, &predicted), (4, &first)]);
}

#[test]
fn altup_correct_matches_its_equation() {
    let (modalities, map) = (noise(ROWS * MODALITIES_PITCH, 1), noise(STREAMS * STREAMS, 2));
    let (predicted, scale) = (noise(STREAMS * STREAM_PITCH, 3), noise(COLS, 4));
    let (before, residual) = (noise(STREAMS * STREAM_PITCH, 5), noise(ROWS * PITCH, 6));
    let (mut streams, mut first) = (wide(&before), wide(&residual));
    for (row, at) in elements() {
        let difference = f64::from(residual[at]) - f64::from(predicted[at]);
        for to in 0..STREAMS {
            let factor = 1.0 + coefficient(&modalities, &map, row, to);
            streams[to * STREAM_PITCH + at] = f64::from(predicted[to * STREAM_PITCH + at]) + factor * difference;
        }
        first[at] = streams[at] * f64::from(scale[at % PITCH]);
    }
    let buffers: [&[f32]; 6] = [&modalities, &map, &predicted, &scale, &before, &residual];
    check("altup_correct", &buffers, &[(4, &streams), (5, &first)]);
}

#[test]
fn altup_add_reaches_every_stream_but_the_first() {
    let (out, before, residual) = (noise(ROWS * PITCH, 1), noise(STREAMS * STREAM_PITCH, 2), noise(ROWS * PITCH, 3));
    let (mut streams, mut first) = (wide(&before), wide(&residual));
    for (_, at) in elements() {
        (1..STREAMS).for_each(|to| streams[to * STREAM_PITCH + at] += f64::from(out[at]));
        first[at] = streams[at];
    }
    check("altup_add", &[&out, &before, &residual], &[(1, &streams), (2, &first)]);
}
