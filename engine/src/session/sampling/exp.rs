//! An exponential that is the same everywhere.

/// `e^x` for `x <= 0`, within 2 units in the last place; 0 below -87. Only IEEE additions and multiplications, so
/// every platform gives the same bits, and loops over it vectorise.
///
/// `e^x = 2^k e^r` with `k = round(x / ln 2)`, `|r| <= ln 2 / 2` and a polynomial for `e^r`.
pub(super) fn exp(x: f32) -> f32 {
    // Adding this rounds to an integer and leaves it in the low bits of the significand.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts; the first has few enough bits that `k * LN2_HIGH` is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = clamped - k * LN2_HIGH - k * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    let scaled = p * f32::from_bits(exponent << 23);
    if x > -87.0 { scaled } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn is_close_to_the_true_exponential() {
        let mut x = 0.0f32;
        while x > -86.9 {
            let want = f64::from(x).exp();
            let relative = (f64::from(exp(x)) - want).abs() / want;
            assert!(relative < 2.0 * f64::from(f32::EPSILON), "exp({x}) is off by {relative:e}");
            x -= 0.001_37;
        }
    }

    #[test]
    fn ends_are_defined() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        for x in [-87.0, -1e9, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(exp(x), 0.0, "exp({x})");
        }
    }

    #[test]
    fn bits_do_not_depend_on_the_platform() {
        let bits = [-0.5f32, -1.0, -3.25, -20.0, -80.125].map(|x| exp(x).to_bits());
        let near = [-0.5f64, -1.0, -3.25, -20.0, -80.125].map(|x| (x.exp() as f32).to_bits());
        for (got, near) in bits.into_iter().zip(near) {
            assert!(got.abs_diff(near) <= 2);
        }
    }
}
