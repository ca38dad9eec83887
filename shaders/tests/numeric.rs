//! Every kernel computes what its equation says, in every tier the adapter has, at sizes that do not fit the workgroup.
#![allow(clippy::unwrap_used)]

mod gpu;

use gpu::{Call, Gpu};
use half::f16;

/// Deterministic values in (-1, 1) without structure.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn bytes(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

fn assert_close(got: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*got) - expected).abs();
        assert!(error <= tolerance * (1.0 + expected.abs()), "{what}: element {i} is {got}, expected {expected}");
    }
}

#[test]
fn norm_matches_its_equation() {
    let gpu = Gpu::get();
    let (tokens, eps) = (3, 1e-5_f32);
    for n in [1, 7, 64, 129, 1000] {
        // A large mean shows whether the variance is taken from centred values.
        let x: Vec<f32> = noise(tokens * n, 1).iter().map(|v| v + 30.0).collect();
        let (residual, weight, bias) = (noise(tokens * n, 2), noise(n, 3), noise(n, 4));
        for tier in gpu.tiers() {
            for (layer, add, workgroup) in [(0, 0, 64), (0, 1, 96), (1, 0, 128), (1, 1, 32)] {
                let params: Vec<u8> =
                    [(n as u32).to_le_bytes(), (tokens as u32).to_le_bytes(), eps.to_le_bytes()].concat();
                let out = vec![0.0_f32; tokens * n];
                let call = Call {
                    kernel: "norm",
                    tier,
                    overrides: &[
                        ("WORKGROUP_SIZE", f64::from(workgroup)),
                        ("LAYER", f64::from(layer)),
                        ("HAS_BIAS", f64::from(layer)),
                        ("ADD_RESIDUAL", f64::from(add)),
                    ],
                    params: &params,
                    buffers: &[bytes(&x), bytes(&residual), bytes(&weight), bytes(&bias), bytes(&out)],
                    workgroups: (tokens as u32, 1),
                };
                let mut expected = Vec::new();
                let mut sums = Vec::new();
                for t in 0..tokens {
                    let row: Vec<f64> = (0..n)
                        .map(|i| f64::from(x[t * n + i]) + f64::from(add) * f64::from(residual[t * n + i]))
                        .collect();
                    let mean = if layer == 1 { row.iter().sum::<f64>() / n as f64 } else { 0.0 };
                    let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
                    let scale = 1.0 / (variance + f64::from(eps)).sqrt();
                    expected.extend((0..n).map(|i| {
                        (row[i] - mean) * scale * f64::from(weight[i]) + f64::from(layer) * f64::from(bias[i])
                    }));
                    sums.extend(row);
                }
                let what = format!("norm n {n} {tier} layer {layer} add {add}");
                assert_close(&gpu.run(&call, 4), &expected, if n == 1 { 1e-2 } else { 2e-4 }, &what);
                if add == 1 {
                    assert_close(&gpu.run(&call, 1), &sums, 1e-6, &format!("{what}: residual"));
                }
            }
        }
    }
}

#[test]
fn activation_matches_its_equation() {
    let gpu = Gpu::get();
    let gelu = |v: f64| 0.5 * v * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v.powi(3))).tanh());
    let forms: [fn(f64) -> f64; 5] =
        [|v| v.max(0.0), |v| v.max(0.0).powi(2), |v| v / (1.0 + (-v).exp()), |v| v, |v| v.max(0.0)];
    let len = 1000;
    // Wide enough to reach where tanh and exp saturate.
    let gate: Vec<f32> = noise(len, 5).iter().map(|v| v * 60.0).collect();
    let up = noise(len, 6);
    for tier in gpu.tiers() {
        for kind in 0..5_usize {
            let f = |v: f64| if kind == 3 { gelu(v) } else { forms[kind](v) };
            for gated in [0, 1] {
                // 5 by 2 workgroups of 128: more than the elements, and two rows of the grid.
                let params: Vec<u8> = [(len as u32).to_le_bytes(), 640_u32.to_le_bytes()].concat();
                let call = Call {
                    kernel: "activation",
                    tier,
                    overrides: &[("KIND", kind as f64), ("GATED", f64::from(gated))],
                    params: &params,
                    buffers: &[bytes(&gate), bytes(&up)],
                    workgroups: (5, 2),
                };
                let expected: Vec<f64> = (0..len)
                    .map(|i| match (gated, kind) {
                        (0, _) => f(f64::from(up[i])),
                        (_, 4) => f(f64::from(gate[i])) * f64::from(up[i]).max(0.0),
                        _ => f(f64::from(gate[i])) * f64::from(up[i]),
                    })
                    .collect();
                assert_close(&gpu.run(&call, 0), &expected, 1e-5, &format!("kind {kind} gated {gated} {tier}"));
            }
        }
    }
}

#[test]
fn rope_matches_its_equation() {
    let gpu = Gpu::get();
    let tokens = 5;
    for (heads, head_dim, dims) in [(1, 8, 8), (3, 24, 24), (4, 64, 16)] {
        let x = noise(tokens * heads * head_dim, 7);
        let angles = noise(tokens * dims / 2, 8);
        let table: Vec<f32> = angles.iter().flat_map(|angle| [angle.cos(), angle.sin()]).collect();
        for tier in gpu.tiers() {
            for neox in [0, 1] {
                let params: Vec<u8> = [heads, head_dim, dims].iter().flat_map(|v| (*v as u32).to_le_bytes()).collect();
                let call = Call {
                    kernel: "rope",
                    tier,
                    overrides: &[("WORKGROUP_SIZE", 16.0), ("NEOX", f64::from(neox))],
                    params: &params,
                    buffers: &[bytes(&x), bytes(&table)],
                    workgroups: ((heads * dims / 2).div_ceil(16) as u32, tokens as u32),
                };
                let mut expected: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
                for t in 0..tokens {
                    for head in expected[t * heads * head_dim..][..heads * head_dim].chunks_mut(head_dim) {
                        for pair in 0..dims / 2 {
                            let (a, b) = if neox == 1 { (pair, pair + dims / 2) } else { (2 * pair, 2 * pair + 1) };
                            let (sin, cos) = f64::from(angles[t * dims / 2 + pair]).sin_cos();
                            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
                        }
                    }
                }
                assert_close(&gpu.run(&call, 0), &expected, 1e-5, &format!("{heads}x{head_dim}/{dims} {tier}"));
            }
        }
    }
}

#[test]
fn gemv_f16_matches_its_equation() {
    let gpu = Gpu::get();
    for (rows, cols) in [(1, 2), (5, 30), (33, 500), (70, 1024)] {
        let weight: Vec<f16> = noise(rows * cols, 9).iter().map(|v| f16::from_f32(*v)).collect();
        let x = noise(cols, 10);
        for tier in gpu.tiers() {
            for workgroup in [32.0, 96.0, 256.0] {
                let stride = 16;
                let params: Vec<u8> = [rows, cols, stride].iter().flat_map(|v| (*v as u32).to_le_bytes()).collect();
                let out = vec![0.0_f32; rows];
                let call = Call {
                    kernel: "gemv_f16",
                    tier,
                    overrides: &[("WORKGROUP_SIZE", workgroup)],
                    params: &params,
                    buffers: &[bytemuck::cast_slice(&weight), bytes(&x), bytes(&out)],
                    workgroups: (stride as u32, rows.div_ceil(stride) as u32),
                };
                let expected: Vec<f64> = weight
                    .chunks(cols)
                    .map(|row| row.iter().zip(&x).map(|(w, x)| w.to_f64() * f64::from(*x)).sum())
                    .collect();
                assert_close(&gpu.run(&call, 2), &expected, 1e-4, &format!("{rows}x{cols} {tier} {workgroup}"));
            }
        }
    }
}
