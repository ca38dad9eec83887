//! Rounding that compiles to a few vector instructions on every machine. (`f32::round` is a library
//! call without SSE4.1.)

/// Rounds `x` to the nearest integer, halves to even, for `|x| < 2^22`.
pub(super) fn nearest_even(x: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves no bits for a fraction.
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// Rounds `x` to the nearest integer, halves away from zero, like C's `roundf`, for `|x| < 2^31`.
pub(super) fn nearest_away(x: f32) -> i32 {
    let whole = x as i32;
    let fraction = x - whole as f32;
    whole + i32::from(fraction >= 0.5) - i32::from(fraction <= -0.5)
}

/// The first element of largest magnitude, with its sign. +0 if all are zero.
pub(super) fn extreme(x: &[f32]) -> f32 {
    let largest = x.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
    if largest == 0.0 {
        return 0.0;
    }
    x.iter().copied().find(|v| v.abs() == largest).unwrap_or(0.0)
}

/// `1 / x`, or 0 for zero and subnormals. (Their inverse may be infinite, and as F16 scales they
/// are zero.)
pub(super) fn inverse(x: f32) -> f32 {
    if x.is_normal() { 1.0 / x } else { 0.0 }
}

/// Smallest and largest element.
pub(super) fn range(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), &v| (min.min(v), max.max(v)))
}
