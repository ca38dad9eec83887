//! Sums and scalings of whole buffers.

use super::math::{sigmoid, tanh};
use crate::{
    Cpu,
    simd::vector::{Vector, VectorKernel, dispatch},
};

/// Elements that a worker takes at a time.
const CHUNK: usize = 8192;

/// `x += scale * y`
pub(super) struct AddScaled<'a> {
    pub x: &'a mut [f32],
    pub y: &'a [f32],
    pub scale: f32,
}

impl VectorKernel for AddScaled<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let scale = v.splat(self.scale);
        let mut x = self.x.chunks_exact_mut(V::LANES);
        let mut y = self.y.chunks_exact(V::LANES);
        for (x, y) in x.by_ref().zip(y.by_ref()) {
            v.store(x, v.mul_add(v.load(y), scale, v.load(x)));
        }
        for (x, y) in x.into_remainder().iter_mut().zip(y.remainder()) {
            *x += self.scale * y;
        }
    }
}

/// `x *= sigmoid(gate)`
struct Gate<'a> {
    x: &'a mut [f32],
    gate: &'a [f32],
}

impl VectorKernel for Gate<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let mut x = self.x.chunks_exact_mut(V::LANES);
        let mut gate = self.gate.chunks_exact(V::LANES);
        for (x, gate) in x.by_ref().zip(gate.by_ref()) {
            v.store(x, v.mul(v.load(x), sigmoid(v, v.load(gate))));
        }
        for (x, gate) in x.into_remainder().iter_mut().zip(gate.remainder()) {
            *x /= 1.0 + (-gate).exp();
        }
    }
}

/// `x *= factor`
struct Multiply<'a> {
    x: &'a mut [f32],
    factor: f32,
}

impl VectorKernel for Multiply<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let factor = v.splat(self.factor);
        let mut x = self.x.chunks_exact_mut(V::LANES);
        for x in x.by_ref() {
            v.store(x, v.mul(v.load(x), factor));
        }
        x.into_remainder().iter_mut().for_each(|x| *x *= self.factor);
    }
}

/// `x = cap * tanh(x / cap)`
struct SoftCap<'a> {
    x: &'a mut [f32],
    cap: f32,
}

impl VectorKernel for SoftCap<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let (cap, inverse) = (v.splat(self.cap), v.splat(1.0 / self.cap));
        let mut x = self.x.chunks_exact_mut(V::LANES);
        for x in x.by_ref() {
            v.store(x, v.mul(cap, tanh(v, v.mul(v.load(x), inverse))));
        }
        for x in x.into_remainder() {
            *x = self.cap * (*x / self.cap).tanh();
        }
    }
}

impl Cpu {
    /// `to = from`. Workers share a large copy.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn copy(&self, from: &[f32], to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "a copy of the same length");
        self.for_each_chunk(to, CHUNK, 1, |i, to| to.copy_from_slice(&from[i * CHUNK..][..to.len()]));
    }

    /// `x += y`, any length.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        self.add_scaled(x, y, 1.0);
    }

    /// `x += scale * y`, any length.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add_scaled(&self, x: &mut [f32], y: &[f32], scale: f32) {
        assert_eq!(x.len(), y.len());
        self.for_each_chunk(x, CHUNK, 1, |i, x| {
            dispatch(self.isa(), AddScaled { y: &y[i * CHUNK..][..x.len()], x, scale });
        });
    }

    /// `x *= sigmoid(gate)`, any length.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gate(&self, x: &mut [f32], gate: &[f32]) {
        assert_eq!(x.len(), gate.len());
        self.for_each_chunk(x, CHUNK, 8, |i, x| {
            dispatch(self.isa(), Gate { gate: &gate[i * CHUNK..][..x.len()], x });
        });
    }

    /// `x *= factor`, any length.
    pub fn scale(&self, x: &mut [f32], factor: f32) {
        self.for_each_chunk(x, CHUNK, 1, |_, x| dispatch(self.isa(), Multiply { x, factor }));
    }

    /// `x = cap * tanh(x / cap)`, any length.
    pub fn soft_cap(&self, x: &mut [f32], cap: f32) {
        self.for_each_chunk(x, CHUNK, 8, |_, x| dispatch(self.isa(), SoftCap { x, cap }));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::ops::tests::each_cpu;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn add_agrees_with_f64(pairs in prop::collection::vec((-9f32..9.0, -9f32..9.0), 0..70), scale in -2f32..2.0) {
            let (x, y): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            for cpu in each_cpu() {
                let mut out = x.clone();
                cpu.add_scaled(&mut out, &y, scale);
                for i in 0..x.len() {
                    prop_assert!((out[i] - (x[i] + scale * y[i])).abs() < 1e-5);
                }
            }
        }

        #[test]
        fn scale_agrees_with_f64(x in prop::collection::vec(-9f32..9.0, 0..70), factor in -2f32..2.0) {
            for cpu in each_cpu() {
                let mut out = x.clone();
                cpu.scale(&mut out, factor);
                for (out, x) in out.iter().zip(&x) {
                    prop_assert!((f64::from(*out) - f64::from(*x) * f64::from(factor)).abs() < 1e-5);
                }
            }
        }

        #[test]
        fn gate_agrees_with_f64(pairs in prop::collection::vec((-9f32..9.0, -20f32..20.0), 0..70)) {
            let (x, gate): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            for cpu in each_cpu() {
                let mut out = x.clone();
                cpu.gate(&mut out, &gate);
                for i in 0..x.len() {
                    let wanted = f64::from(x[i]) / (1.0 + (-f64::from(gate[i])).exp());
                    prop_assert!((f64::from(out[i]) - wanted).abs() < 1e-5);
                }
            }
        }

        #[test]
        fn softcap_agrees_with_f64(x in prop::collection::vec(-99f32..99.0, 0..40), cap in 1f32..60.0) {
            for cpu in each_cpu() {
                let mut out = x.clone();
                cpu.soft_cap(&mut out, cap);
                for (out, x) in out.iter().zip(&x) {
                    prop_assert!((out - cap * (x / cap).tanh()).abs() < 1e-6 * cap);
                }
            }
        }
    }
}
