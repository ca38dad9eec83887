//! Hardware products of 16-bit floats, replaced here by functions in plain WGSL, and the scales of
//! their activations.

use bytemuck::{bytes_of, cast_slice};
use thermocline_shaders::{Tier, WeightType, params};

use crate::gpu::{Call, Gpu, assert_close, bytes, noise, weights::Weights};

/// The kernels, and their number of subgroups per workgroup.
const KERNELS: [(&str, u32); 2] = [("gemm_coop", 4), ("gemm_coop_8", 8)];
/// Contents of the output before the dispatch.
const BEFORE: f32 = 0.25;

/// Computes the scales of the rows of `x`, `pitch` elements apart, from their first `chunks` chunks
/// of 32 columns.
fn scales(tier: Tier, x: &[f32], chunks: usize, pitch: usize) -> Vec<f32> {
    let params = params::HalfScale { chunks: chunks as u32, x_pitch: pitch as u32 };
    let tokens = x.len() / pitch;
    let out = vec![0.0; 2 * tokens];
    let call = Call {
        kernel: "half_scale",
        tier,
        weights: None,
        overrides: &[("WORKGROUP_SIZE", 32.0)],
        params: bytes_of(&params),
        buffers: &[bytes(x), bytes(&out)],
        workgroups: (tokens as u32, 1, 1),
    };
    Gpu::get().run(&call, 1)
}

/// Activations that 16-bit floats represent exactly after scaling: 11-bit noise. Every third token
/// also has a value above 65504. Every fifth token has only values below the smallest 16-bit float.
fn activations(tokens: usize, cols: usize) -> Vec<f32> {
    let mut x: Vec<f32> = noise(tokens * cols, 10).iter().map(|value| (value * 1024.0).round() / 1024.0).collect();
    for (token, row) in x.chunks_exact_mut(cols).enumerate() {
        if token % 3 == 0 {
            row[token % cols] = 98304.0;
        } else if token % 5 == 0 {
            row.iter_mut().for_each(|value| *value *= 2_f32.powi(-30));
        }
    }
    x
}

#[test]
fn tiles_of_halves_match_the_equation() {
    let full = Tier { subgroups: true, f16: true };
    assert!(Gpu::get().tiers().contains(&full), "the driver has subgroups and halves");
    let lanes = Gpu::get().subgroup();
    // F16 weights have no more bits than the products. Other types lose bits beyond the eleventh.
    for (ty, tolerance) in [(WeightType::F16, 2e-5), (WeightType::Q4_K, 2e-3)] {
        let (rows, cols, tokens) = (70, if ty == WeightType::F16 { 96 } else { 256 }, 67);
        let (weights, x, bias) = (Weights::random(ty, rows, cols, 9), activations(tokens, cols), noise(rows, 11));
        let scales = scales(full, &x, cols / 32, cols);
        let params = params::Matmul {
            rows: rows as u32,
            chunks: cols as u32 / 32,
            tokens: tokens as u32,
            x_pitch: cols as u32,
            y_pitch: rows as u32 + 3,
            y_offset: 2,
            bias_offset: 0,
            stride: 1,
        };
        let out = vec![BEFORE; tokens * (rows + 3)];
        let mut expected = vec![f64::from(BEFORE); out.len()];
        let mut magnitudes = vec![1.0; out.len()];
        for (token, row) in (0..tokens).flat_map(|token| (0..rows).map(move |row| (token, row))) {
            let products = || {
                let weights = &weights.values[row * cols..][..cols];
                weights.iter().zip(&x[token * cols..]).map(|(weight, x)| weight * f64::from(*x))
            };
            let at = token * (rows + 3) + 2 + row;
            expected[at] = products().sum::<f64>() + f64::from(bias[row]);
            magnitudes[at] = 1.0 + products().map(f64::abs).sum::<f64>();
        }
        // With the number of subgroups that the kernel uses, and with more, which repeat the work
        // of the last one.
        for ((kernel, subgroups), more) in KERNELS.into_iter().flat_map(|kernel| [(kernel, 1), (kernel, 2)]) {
            if more > 1 && ty != WeightType::F16 {
                continue;
            }
            let call = Call {
                kernel,
                tier: full,
                weights: Some(ty),
                overrides: &[("WORKGROUP_SIZE", f64::from(subgroups * lanes * more)), ("HAS_BIAS", 1.0)],
                params: bytes_of(&params),
                buffers: &[
                    cast_slice(&weights.main),
                    cast_slice(&weights.aux),
                    bytes(&x),
                    bytes(&bias),
                    bytes(&out),
                    bytes(&scales),
                ],
                workgroups: (2, 1, 2),
            };
            let got = Gpu::get().run(&call, 4);
            // The error relative to the magnitude of the products.
            let relative = |values: &mut dyn Iterator<Item = f64>| -> Vec<f64> {
                values.zip(&magnitudes).map(|(value, magnitude)| value / magnitude).collect()
            };
            let close = relative(&mut got.iter().map(|got| f64::from(*got)));
            let close: Vec<f32> = close.iter().map(|value| *value as f32).collect();
            let expected = relative(&mut expected.iter().copied());
            assert_close(
                &close,
                &expected,
                tolerance,
                &format!("{kernel} {ty} {subgroups} x {more} subgroups of {lanes}"),
            );
        }
    }
}

#[test]
fn half_scales_bring_activations_within_halves() {
    let (chunks, pitch, tokens) = (5_usize, 192_usize, 6_usize);
    let mut x = noise(tokens * pitch, 10);
    // Values beyond the columns must be ignored.
    x.chunks_exact_mut(pitch).for_each(|row| row[chunks * 32..].fill(1e30));
    let largest = [1.0_f32, 1e5, 65504.0, 1e-30, 3e38, 0.0];
    for (row, largest) in x.chunks_exact_mut(pitch).zip(largest) {
        row[..chunks * 32].iter_mut().for_each(|value| *value *= largest * 0.5);
        row[77] = -largest;
    }
    for tier in Gpu::get().tiers() {
        let got = scales(tier, &x, chunks, pitch);
        for (pair, largest) in got.chunks_exact(2).zip(largest) {
            assert!(pair[0].log2().fract() == 0.0 && pair[0] * pair[1] == 1.0, "{tier} {largest}: {pair:?}");
            let scaled = f64::from(largest) * f64::from(pair[0]);
            let most = if largest > 1e-20 { 16384.0..32768.0 } else { 0.0..32768.0 };
            assert!(most.contains(&scaled), "{tier} {largest}: {scaled}");
        }
    }
}
