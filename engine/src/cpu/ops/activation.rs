//! Activations between the up and down projections of an FFN.

use crate::cpu::{
    Cpu,
    simd::vector::{Kernel, Vector, dispatch},
};

use super::math::{erfc_abs, sigmoid, tanh};

/// Form of the hidden activation; `g` is the gate's output (or the up matrix's, where there is no gate), `u` the up
/// matrix's (or 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hidden {
    /// `relu(g) * u`
    Relu,
    /// `relu(g)^2 * u`
    ReluSquared,
    /// `g * sigmoid(g) * u`
    Silu,
    /// `0.5 g (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))) * u`
    GeluTanh,
    /// `0.5 g (1 + erf(g / sqrt 2)) * u`
    GeluErf,
    /// `relu(g) * relu(u)`
    DRelu,
}

/// Elements a worker takes at a time.
const CHUNK: usize = 4096;

#[inline(always)]
fn activate<V: Vector>(v: V, form: Hidden, g: V::F) -> V::F {
    let zero = v.splat(0.0);
    match form {
        Hidden::Relu | Hidden::DRelu => v.max(zero, g),
        Hidden::ReluSquared => {
            let g = v.max(zero, g);
            v.mul(g, g)
        }
        Hidden::Silu => v.mul(g, sigmoid(v, g)),
        Hidden::GeluTanh => {
            let cube = v.mul(v.mul(g, g), g);
            let inner = v.mul_add(cube, v.splat(0.044_715), g);
            let t = tanh(v, v.mul(inner, v.splat(0.797_884_6)));
            v.mul(v.mul(g, v.splat(0.5)), v.add(t, v.splat(1.0)))
        }
        Hidden::GeluErf => {
            // 0.5 g (1 + erf) = max(g, 0) - 0.5 |g| erfc |g / sqrt 2|
            let tail = erfc_abs(v, v.mul(g, v.splat(std::f32::consts::FRAC_1_SQRT_2)));
            let half = v.mul(v.max(g, v.sub(zero, g)), v.splat(0.5));
            v.sub(v.max(zero, g), v.mul(half, tail))
        }
    }
}

struct Activate<'a> {
    form: Hidden,
    g: &'a mut [f32],
    u: Option<&'a [f32]>,
}

impl Kernel for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        // One loop per form, so that the choice is not made per vector.
        match self.form {
            Hidden::Relu => each(v, self.g, self.u, Hidden::Relu),
            Hidden::ReluSquared => each(v, self.g, self.u, Hidden::ReluSquared),
            Hidden::Silu => each(v, self.g, self.u, Hidden::Silu),
            Hidden::GeluTanh => each(v, self.g, self.u, Hidden::GeluTanh),
            Hidden::GeluErf => each(v, self.g, self.u, Hidden::GeluErf),
            Hidden::DRelu => each(v, self.g, self.u, Hidden::DRelu),
        }
    }
}

/// One vector's worth.
#[inline(always)]
fn one<V: Vector>(v: V, g: &mut [f32], u: Option<&[f32]>, form: Hidden) {
    let mut y = activate(v, form, v.load(g));
    if let Some(u) = u {
        let u = v.load(u);
        y = v.mul(y, if form == Hidden::DRelu { v.max(v.splat(0.0), u) } else { u });
    }
    v.store(g, y);
}

#[inline(always)]
fn each<V: Vector>(v: V, g: &mut [f32], u: Option<&[f32]>, form: Hidden) {
    let whole = g.len() / V::LANES * V::LANES;
    match u {
        Some(u) => {
            for (g, u) in g.chunks_exact_mut(V::LANES).zip(u.chunks_exact(V::LANES)) {
                one(v, g, Some(u), form);
            }
        }
        None => {
            for g in g.chunks_exact_mut(V::LANES) {
                one(v, g, None, form);
            }
        }
    }
    if whole < g.len() {
        let (mut last, mut last_u) = ([0.0; 16], [0.0; 16]);
        let left = g.len() - whole;
        last[..left].copy_from_slice(&g[whole..]);
        if let Some(u) = u {
            last_u[..left].copy_from_slice(&u[whole..]);
        }
        one(v, &mut last, u.is_some().then_some(&last_u), form);
        g[whole..].copy_from_slice(&last[..left]);
    }
}

impl Cpu {
    /// `g = act(g) * u` (just `act(g)` when there is no `u`), in place, any length.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn activate(&self, form: Hidden, g: &mut [f32], u: Option<&[f32]>) {
        assert!(u.is_none_or(|u| u.len() == g.len()));
        self.for_each_chunk(g, CHUNK, 4, |i, g| {
            let u = u.map(|u| &u[i * CHUNK..][..g.len()]);
            dispatch(self.isa(), Activate { form, g, u });
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::ops::tests::each_cpu;

    /// Error function by its Maclaurin series: exact enough for `|x| < 4`.
    fn erf(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    fn plain(form: Hidden, g: f32, u: Option<f32>) -> f64 {
        let (g, u) = (f64::from(g), u.map(f64::from));
        match form {
            Hidden::Relu => g.max(0.0) * u.unwrap_or(1.0),
            Hidden::ReluSquared => g.max(0.0).powi(2) * u.unwrap_or(1.0),
            Hidden::Silu => g / (1.0 + (-g).exp()) * u.unwrap_or(1.0),
            Hidden::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044_715 * g.powi(3));
                0.5 * g * (1.0 + inner.tanh()) * u.unwrap_or(1.0)
            }
            Hidden::GeluErf => 0.5 * g * (1.0 + erf(g * std::f64::consts::FRAC_1_SQRT_2)) * u.unwrap_or(1.0),
            Hidden::DRelu => g.max(0.0) * u.map_or(1.0, |u| u.max(0.0)),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn activations(pairs in prop::collection::vec((-5f32..5.0, -3f32..3.0), 0..70), gated: bool) {
            use Hidden::*;
            let (g, u): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            for cpu in each_cpu() {
                for form in [Relu, ReluSquared, Silu, GeluTanh, GeluErf, DRelu] {
                    let mut out = g.clone();
                    cpu.activate(form, &mut out, gated.then_some(&u));
                    for i in 0..g.len() {
                        let wanted = plain(form, g[i], gated.then_some(u[i]));
                        prop_assert!((f64::from(out[i]) - wanted).abs() < 1e-5, "{form:?} {} {wanted}", out[i]);
                    }
                }
            }
        }
    }
}
