//! Scales of the K types. The format does not prescribe them. Here they minimise the squared error
//! of the block.
//!
//! A sub-block is fitted by alternating two steps that both lower the error. First every element is
//! rounded to its nearest code under the current scale. Then the least-squares problem is solved
//! for the scale under the current codes. The result depends on the start. Several starts are tried
//! (the range of the elements, more or less clipped), and the best result is kept. The scales of a
//! block are then rounded to their own few bits, and the codes are chosen again under the rounded
//! scales.

use super::{
    bits::to_f16,
    k_scales,
    round::{extreme, inverse, nearest_even, range},
};

/// Number of codes by which each start exceeds the full range. Negative numbers leave the ends of
/// the code range unused. Positive numbers clip the outermost elements.
const STARTS: [f32; 8] = [-1.0, -0.6, -0.3, 0.0, 0.3, 0.6, 1.0, 1.5];
/// Alternations after each start.
const ROUNDS: usize = 2;

/// `x ~ scale * q - min` with `scale, min >= 0` and `0 <= q <= top`.
#[derive(Clone, Copy)]
struct Affine {
    scale: f32,
    min: f32,
}

fn fit_affine(x: &[f32; 32], top: f32) -> Affine {
    let (low, high) = range(x);
    let low = low.min(0.0);
    let width = high - low;
    if width <= 0.0 {
        return Affine { scale: 0.0, min: -low };
    }
    // Sums of differences to the lowest element do not cancel.
    let y: [f32; 32] = std::array::from_fn(|i| x[i] - low);
    let sum_y: f32 = lanes(|i| y[i]);
    let n = y.len() as f32;
    let (mut best, mut best_gain) = (Affine { scale: width / top, min: -low }, f32::NEG_INFINITY);
    for start in STARTS {
        let (mut per_unit, mut offset) = ((top + start) / width, 0.0f32);
        for _ in 0..ROUNDS {
            let mut q = [0.0f32; 32];
            for i in 0..32 {
                q[i] = nearest_even((y[i] - offset) * per_unit).clamp(0.0, top);
            }
            let sum_q: f32 = lanes(|i| q[i]);
            let sum_qq: f32 = lanes(|i| q[i] * q[i]);
            let sum_qy: f32 = lanes(|i| q[i] * y[i]);
            let determinant = n * sum_qq - sum_q * sum_q;
            if determinant <= 0.0 {
                break;
            }
            let mut scale = (n * sum_qy - sum_q * sum_y) / determinant;
            offset = (sum_y - scale * sum_q) / n;
            if offset > -low {
                // A positive offset cannot be stored, because min >= 0.
                offset = -low;
                scale = (sum_qy - offset * sum_q) / sum_qq;
            }
            if scale <= 0.0 {
                break;
            }
            // The squared error is `sum y^2 - gain`.
            let gain = 2.0 * (scale * sum_qy + offset * sum_y)
                - (scale * scale * sum_qq + 2.0 * scale * offset * sum_q + n * offset * offset);
            if gain > best_gain {
                best_gain = gain;
                best = Affine { scale, min: -low - offset };
            }
            per_unit = 1.0 / scale;
        }
    }
    best
}

/// Fits `x ~ scale * q` with `-32 <= q <= 31`. The sign of the scale gives the largest element the
/// longer side.
fn fit_symmetric(x: &[f32; 16]) -> f32 {
    let largest = extreme(x);
    if largest == 0.0 {
        return 0.0;
    }
    let (mut best, mut best_gain) = (largest / -32.0, f32::NEG_INFINITY);
    for start in STARTS {
        let mut per_unit = (32.0 + start) / -largest;
        for _ in 0..ROUNDS {
            let (mut sum_qq, mut sum_qx) = (0.0, 0.0);
            for x in x {
                let q = nearest_even(x * per_unit).clamp(-32.0, 31.0);
                sum_qq += q * q;
                sum_qx += q * x;
            }
            if sum_qq <= 0.0 || sum_qx == 0.0 {
                break;
            }
            let gain = sum_qx * sum_qx / sum_qq;
            if gain > best_gain {
                best_gain = gain;
                best = sum_qx / sum_qq;
            }
            per_unit = sum_qq / sum_qx;
        }
    }
    best
}

/// The least-squares scale for the rounded min, under the codes of the old scale.
fn refit_scale(x: &[f32; 32], Affine { scale, min }: Affine, top: f32) -> f32 {
    let per_unit = inverse(scale);
    let mut q = [0.0f32; 32];
    for i in 0..32 {
        q[i] = nearest_even(((x[i] + min) * per_unit).clamp(0.0, top));
    }
    let sum_qq: f32 = lanes(|i| q[i] * q[i]);
    let sum_qx: f32 = lanes(|i| q[i] * (x[i] + min));
    (sum_qx * inverse(sum_qq)).max(0.0)
}

/// Returns the header (`d`, `dmin`, packed scales and mins) and the codes `0..=top` of a Q4_K or
/// Q5_K block.
pub(super) fn affine_block(x: &[f32; 256], top: u8) -> ([u8; 16], [u8; 256]) {
    let top = f32::from(top);
    let subs = x.as_chunks::<32>().0;
    let mut fits: [Affine; 8] = std::array::from_fn(|sub| fit_affine(&subs[sub], top));
    let largest_min = fits.iter().fold(0.0f32, |largest, fit| largest.max(fit.min));
    let (dmin_bytes, dmin) = to_f16(largest_min / 63.0);
    let mins: [u8; 8] = fits.map(|fit| nearest_even(fit.min * inverse(dmin)).clamp(0.0, 63.0) as u8);
    for ((fit, x), min) in fits.iter_mut().zip(subs).zip(mins) {
        fit.min = dmin * f32::from(min);
        fit.scale = refit_scale(x, *fit, top);
    }
    let largest_scale = fits.iter().fold(0.0f32, |largest, fit| largest.max(fit.scale));
    let (d_bytes, d) = to_f16(largest_scale / 63.0);
    let scales: [u8; 8] = fits.map(|fit| nearest_even(fit.scale * inverse(d)).clamp(0.0, 63.0) as u8);

    let mut codes = [0; 256];
    for (((codes, x), fit), scale) in codes.as_chunks_mut::<32>().0.iter_mut().zip(subs).zip(fits).zip(scales) {
        let per_unit = inverse(d * f32::from(scale));
        for (code, x) in codes.iter_mut().zip(x) {
            *code = nearest_even(((x + fit.min) * per_unit).clamp(0.0, top)) as u8;
        }
    }
    let mut header = [0; 16];
    header[..2].copy_from_slice(&d_bytes);
    header[2..4].copy_from_slice(&dmin_bytes);
    header[4..].copy_from_slice(&k_scales::pack(&scales, &mins));
    (header, codes)
}

/// Returns `d`, the scales and the codes `0..64` (32 stands for zero) of a Q6_K block.
pub(super) fn symmetric_block(x: &[f32; 256]) -> ([u8; 2], [i8; 16], [u8; 256]) {
    let subs = x.as_chunks::<16>().0;
    let fits: [f32; 16] = std::array::from_fn(|sub| fit_symmetric(&subs[sub]));
    let (d_bytes, d) = to_f16(extreme(&fits) / -128.0);
    let scales = fits.map(|scale| nearest_even(scale * inverse(d)).clamp(-128.0, 127.0) as i8);

    let mut codes = [0; 256];
    for (sub, (codes, x)) in codes.as_chunks_mut::<16>().0.iter_mut().zip(subs).enumerate() {
        let per_unit = inverse(d * f32::from(scales[sub]));
        for (code, x) in codes.iter_mut().zip(x) {
            *code = (nearest_even((x * per_unit).clamp(-32.0, 31.0)) + 32.0) as u8;
        }
    }
    (d_bytes, scales, codes)
}

/// Sum of 32 terms in eight running sums. This order vectorises.
fn lanes(term: impl Fn(usize) -> f32) -> f32 {
    let mut sums = [0.0f32; 8];
    for at in 0..4 {
        for lane in 0..8 {
            sums[lane] += term(8 * at + lane);
        }
    }
    sums.iter().sum()
}
