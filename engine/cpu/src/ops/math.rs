//! The exponential and related functions on vectors.

use crate::simd::vector::Vector;

/// `e^x` to 2e-7 relative. 0 below -87.3, `e^88.3` above 88.3, NaN for NaN. Cody and Waite's
/// reduction to `|r| <= ln 2 / 2`, then Cephes' polynomial.
#[inline(always)]
pub(crate) fn exp<V: Vector>(v: V, x: V::F) -> V::F {
    const LOW: f32 = -87.3;
    let clamped = v.min(v.splat(88.3), v.max(v.splat(LOW), x));
    let n = v.round(v.mul(clamped, v.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts. The first has so few bits that its product with n is exact.
    let r = v.mul_add(n, v.splat(-0.693_359_4), clamped);
    let r = v.mul_add(n, v.splat(2.121_944_4e-4), r);
    let mut p = v.splat(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5] {
        p = v.mul_add(p, r, v.splat(c));
    }
    let y = v.add(v.mul_add(p, v.mul(r, r), r), v.splat(1.0));
    v.zero_below(x, v.splat(LOW), v.scale(y, n))
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub(crate) fn sigmoid<V: Vector>(v: V, x: V::F) -> V::F {
    let one = v.splat(1.0);
    v.div(one, v.add(one, exp(v, v.sub(v.splat(0.0), x))))
}

/// `tanh x = 1 - 2 / (1 + e^2x)`, to 2e-7 absolute.
#[inline(always)]
pub(crate) fn tanh<V: Vector>(v: V, x: V::F) -> V::F {
    let one = v.splat(1.0);
    v.sub(one, v.div(v.splat(2.0), v.add(one, exp(v, v.add(x, x)))))
}

/// `erfc |x|`, to 2e-7 absolute (Abramowitz and Stegun 7.1.26).
#[inline(always)]
pub(crate) fn erfc_abs<V: Vector>(v: V, x: V::F) -> V::F {
    let (zero, one) = (v.splat(0.0), v.splat(1.0));
    let abs = v.max(x, v.sub(zero, x));
    let t = v.div(one, v.mul_add(abs, v.splat(0.327_591_1), one));
    let mut p = v.splat(1.061_405_4);
    for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = v.mul_add(p, t, v.splat(c));
    }
    v.mul(v.mul(p, t), exp(v, v.sub(zero, v.mul(abs, abs))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Isa,
        simd::vector::{VectorKernel, dispatch},
    };

    /// A function to apply to a slice whose length is a multiple of 16.
    struct Apply<'a>(&'a mut [f32], usize);

    impl VectorKernel for Apply<'_> {
        #[inline(always)]
        fn run<V: Vector>(self, v: V) {
            for x in self.0.chunks_exact_mut(V::LANES) {
                let y = match self.1 {
                    0 => exp(v, v.load(x)),
                    1 => sigmoid(v, v.load(x)),
                    2 => tanh(v, v.load(x)),
                    _ => erfc_abs(v, v.load(x)),
                };
                v.store(x, y);
            }
        }
    }

    fn apply(isa: Isa, function: usize, x: &[f32]) -> Vec<f32> {
        let mut y = x.to_vec();
        dispatch(isa, Apply(&mut y, function));
        y
    }

    #[test]
    fn exp_is_accurate_where_it_is_not_zero() {
        let x: Vec<f32> = (0..16_384).map(|i| -87.0 + i as f32 * (175.0 / 16_384.0)).collect();
        for isa in Isa::available() {
            for (x, y) in x.iter().zip(apply(isa, 0, &x)) {
                let wanted = f64::from(*x).exp();
                assert!((f64::from(y) - wanted).abs() <= 3e-7 * wanted, "{isa}: exp({x}) = {y}, not {wanted}");
            }
        }
    }

    #[test]
    fn exp_out_of_range_is_zero_or_infinite() {
        let mut x = [0.0; 16];
        x[..6].copy_from_slice(&[f32::NEG_INFINITY, -1e9, -87.4, 1e9, f32::INFINITY, f32::NAN]);
        for isa in Isa::available() {
            let y = apply(isa, 0, &x);
            assert_eq!(y[..3], [0.0; 3], "{isa}");
            assert!(y[3] > 1e38 && y[4] > 1e38 && y[5].is_nan(), "{isa}: {y:?}");
            assert_eq!(y[6], 1.0);
        }
    }

    #[test]
    fn sigmoid_tanh_and_erfc_agree_with_f64() {
        let x: Vec<f32> = (0..4096).map(|i| (i as f32 - 2048.0) * 0.02).collect();
        for isa in Isa::available() {
            for (i, x) in x.iter().enumerate() {
                let wide = f64::from(*x);
                for (function, wanted) in [(1, 1.0 / (1.0 + (-wide).exp())), (2, wide.tanh())] {
                    let y = apply(isa, function, std::slice::from_ref(x).repeat(16).as_slice())[0];
                    assert!((f64::from(y) - wanted).abs() < 4e-7, "{isa}: function {function} of {x} ({i})");
                }
            }
            // erfc at 0, 0.5, 1, 2, 3 to ten digits.
            for (x, wanted) in
                [(0.0, 1.0), (0.5, 0.479_500_1), (-1.0, 0.157_299_2), (2.0, 0.004_677_735), (3.0, 2.209e-5)]
            {
                let y = apply(isa, 3, &[x; 16])[0];
                assert!((y - wanted).abs() < 4e-7, "{isa}: erfc |{x}| = {y}, not {wanted}");
            }
        }
    }
}
