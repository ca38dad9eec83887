//! Kernels that work per element: norms, activations, sums, scaled and gated rows.

use bytemuck::bytes_of;
use thermocline_shaders::params;

use crate::gpu::{Call, Gpu, activation, assert_close, bytes, limited_activation, noise};

#[test]
fn norm_matches_its_equation() {
    let gpu = Gpu::get();
    let (rows, eps) = (3, 1e-5_f32);
    for (cols, pitch) in [(1, 4), (7, 32), (64, 64), (129, 160), (1000, 1024)] {
        // With a large mean, the result shows whether the variance is computed from centred values.
        let x: Vec<f32> = noise(rows * pitch, 1).iter().map(|v| v + 30.0).collect();
        let (delta, weight, bias) = (noise(rows * pitch, 2), noise(pitch, 3), noise(pitch, 4));
        for tier in gpu.tiers() {
            for (layer, add, workgroup) in [(0, 0, 64), (0, 1, 96), (1, 0, 128), (1, 1, 32)] {
                let factor = if cols == 64 { 0.75 } else { 1.0 };
                let [cols32, pitch32, rows32] = [cols, pitch, rows].map(|v| v as u32);
                // Two rows of the grid.
                let params = params::Norm { cols: cols32, pitch: pitch32, rows: rows32, stride: 2, eps };
                let out = vec![0.0_f32; rows * pitch];
                let call = Call {
                    kernel: "norm",
                    tier,
                    weights: None,
                    overrides: &[
                        ("WORKGROUP_SIZE", f64::from(workgroup)),
                        ("LAYER", f64::from(layer)),
                        ("HAS_BIAS", f64::from(layer)),
                        ("ADD_DELTA", f64::from(add)),
                        ("DELTA_SCALE", factor),
                    ],
                    params: bytes_of(&params),
                    buffers: &[bytes(&x), bytes(&delta), bytes(&weight), bytes(&bias), bytes(&out)],
                    workgroups: (2, 2, 1),
                };
                let mut expected = vec![0.0; rows * pitch];
                let mut sums: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
                for t in 0..rows {
                    let row = &mut sums[t * pitch..][..cols];
                    let added = factor * f64::from(add);
                    row.iter_mut().zip(&delta[t * pitch..]).for_each(|(v, d)| *v += added * f64::from(*d));
                    let mean = if layer == 1 { row.iter().sum::<f64>() / cols as f64 } else { 0.0 };
                    let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / cols as f64;
                    let scale = 1.0 / (variance + f64::from(eps)).sqrt();
                    for i in 0..cols {
                        let bias = f64::from(layer) * f64::from(bias[i]);
                        expected[t * pitch + i] = (row[i] - mean) * scale * f64::from(weight[i]) + bias;
                    }
                }
                let what = format!("norm {cols} {tier} layer {layer} add {add}");
                assert_close(&gpu.run(&call, 4), &expected, if cols == 1 { 1e-2 } else { 2e-4 }, &what);
                assert_close(&gpu.run(&call, 0), &sums, 1e-6, &format!("{what}: sums"));
            }
        }
    }
}

#[test]
fn subgroup_trial_sums_over_the_workgroup() {
    let gpu = Gpu::get();
    for tier in gpu.tiers() {
        for workgroup in [32, 96, 128] {
            let zeros = vec![0.0; 1 + workgroup as usize];
            let call = Call {
                kernel: "subgroup_trial",
                tier,
                weights: None,
                overrides: &[("WORKGROUP_SIZE", f64::from(workgroup))],
                params: bytes_of(&params::SubgroupTrial { value: 5 }),
                buffers: &[bytes(&zeros)],
                workgroups: (1, 1, 1),
            };
            let [answer] = gpu.run_for(&call, [0]);
            let sum: u32 = (0..workgroup).map(|index| index + 5).sum();
            assert!(answer[1..].iter().all(|got| *got == sum), "{tier} {workgroup}: {answer:?}");
            assert!(if tier.subgroups { answer[0] > 1 } else { answer[0] == 1 }, "{tier} {workgroup}: {answer:?}");
        }
    }
}

#[test]
fn activation_matches_its_equation() {
    let gpu = Gpu::get();
    let (rows, cols, pitch) = (5, 200, 224);
    // A range wide enough for tanh and exp to saturate.
    let input: Vec<f32> = noise(rows * pitch * 2, 5).iter().map(|v| v * 60.0).collect();
    let forms = [(0, false, -1.0), (1, false, -1.0), (1, true, -1.0), (1, true, 0.5), (1, false, 0.0), (0, false, 2.0)];
    for tier in gpu.tiers() {
        let limited = [(2, 3.5), (3, 0.25), (6, 5.0)];
        let kinds = (0..7).map(|kind| (kind, 0.0)).chain(limited);
        for ((kind, limit), (gated, interleaved, threshold)) in kinds.flat_map(|kind| forms.map(|form| (kind, form))) {
            // 5 by 2 workgroups of 128: more than the elements, in two rows of the grid.
            let params = params::Activation { cols: 200, pitch: 224, rows: 5, stride: 640, threshold };
            let out = vec![0.0_f32; rows * pitch];
            let call = Call {
                kernel: "activation",
                tier,
                weights: None,
                overrides: &[
                    ("KIND", f64::from(kind)),
                    ("LIMIT", limit),
                    ("GATED", gated as f64),
                    ("INTERLEAVED", f64::from(u8::from(interleaved))),
                ],
                params: bytes_of(&params),
                buffers: &[bytes(&input), bytes(&out)],
                workgroups: (5, 2, 1),
            };
            let mut expected = vec![0.0; rows * pitch];
            for (t, i) in (0..rows).flat_map(|t| (0..cols).map(move |i| (t, i))) {
                let at = |i: usize| f64::from(input[t * pitch * (1 + gated) + i]);
                let (gate, up) = if interleaved { (at(2 * i), at(2 * i + 1)) } else { (at(i), at(gated * cols + i)) };
                if limited_activation(kind, limit, gate, None).abs() > f64::from(threshold) {
                    expected[t * pitch + i] = limited_activation(kind, limit, gate, (gated == 1).then_some(up));
                }
            }
            let what = format!(
                "kind {kind} limit {limit} gated {gated} interleaved {interleaved} threshold {threshold} {tier}"
            );
            assert_close(&gpu.run(&call, 1), &expected, 1e-5, &what);
        }
    }
}

#[test]
fn add_adds() {
    let gpu = Gpu::get();
    let (to, from) = (noise(3 * 32, 7), noise(3 * 32, 8));
    for tier in gpu.tiers() {
        let call = Call {
            kernel: "add",
            tier,
            weights: None,
            overrides: &[("WORKGROUP_SIZE", 16.0), ("DELTA_SCALE", 0.75)],
            params: bytes_of(&params::Elements { cols: 30, pitch: 32, rows: 3, stride: 48 }),
            buffers: &[bytes(&to), bytes(&from)],
            workgroups: (3, 2, 1),
        };
        let sums = to.iter().zip(&from).enumerate();
        let expected: Vec<f64> =
            sums.map(|(i, (a, b))| f64::from(*a) + if i % 32 < 30 { 0.75 * f64::from(*b) } else { 0.0 }).collect();
        assert_close(&gpu.run(&call, 0), &expected, 1e-6, &tier.to_string());
    }
}

#[test]
fn scale_multiplies_the_sum() {
    let gpu = Gpu::get();
    let (x, delta) = (noise(3 * 32, 9), noise(3 * 32, 10));
    for (tier, add) in gpu.tiers().into_iter().flat_map(|tier| [(tier, 0.0), (tier, 1.0)]) {
        let call = Call {
            kernel: "scale",
            tier,
            weights: None,
            overrides: &[("WORKGROUP_SIZE", 16.0), ("ADD_DELTA", add), ("DELTA_SCALE", 0.5)],
            params: bytes_of(&params::Scale { cols: 30, pitch: 32, rows: 3, stride: 48, factor: 1.5 }),
            buffers: &[bytes(&x), bytes(&delta)],
            workgroups: (3, 2, 1),
        };
        let value = |(i, (x, delta)): (usize, (&f32, &f32))| {
            let (x, delta) = (f64::from(*x), f64::from(*delta));
            if i % 32 < 30 { 1.5 * (x + add * 0.5 * delta) } else { x }
        };
        let expected: Vec<f64> = x.iter().zip(&delta).enumerate().map(value).collect();
        assert_close(&gpu.run(&call, 0), &expected, 1e-6, &format!("{tier} {add}"));
    }
}

#[test]
fn gated_input_multiplies_rows_without_gaps() {
    let gpu = Gpu::get();
    let (gate, input, zeros, first) = (noise(3 * 32, 11), noise(7 + 3 * 30, 12), [0.0; 3 * 32], 7);
    for (tier, kind) in gpu.tiers().into_iter().flat_map(|tier| [0, 3].map(|kind| (tier, kind))) {
        let params = params::GatedInput { cols: 30, pitch: 32, rows: 3, stride: 48, first: first as u32 };
        let call = Call {
            kernel: "gated_input",
            tier,
            weights: None,
            overrides: &[("WORKGROUP_SIZE", 16.0), ("KIND", f64::from(kind))],
            params: bytes_of(&params),
            buffers: &[bytes(&gate), bytes(&input), bytes(&zeros)],
            workgroups: (3, 2, 1),
        };
        let mut expected = vec![0.0; 3 * 32];
        for (t, i) in (0..3).flat_map(|t| (0..30).map(move |i| (t, i))) {
            let input = f64::from(input[first + t * 30 + i]);
            expected[t * 32 + i] = activation(kind, f64::from(gate[t * 32 + i]), Some(input));
        }
        assert_close(&gpu.run(&call, 2), &expected, 1e-5, &format!("{tier} {kind}"));
    }
}
