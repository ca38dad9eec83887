//! Activation functions between the up and down projections of an FFN.

use std::{fmt, str::FromStr};

use super::math::{erfc_abs, sigmoid, tanh};
use crate::{
    Cpu,
    simd::vector::{Vector, VectorKernel, dispatch},
};
use thermocline_base::error::{Error, Result};

/// Activation function of an FFN's hidden values. `g` is the gate's output, or the up matrix's
/// output if there is no gate. `u` is the up matrix's output (or 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
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
    /// `relu(g) * relu(u)` (Bamboo, TurboSparse)
    DRelu,
    /// `h * sigmoid(1.702 h) * (1 + min(max(u, -7), 7))` with `h = min(g, 7)` (gpt-oss)
    ClampedSwiglu,
}

/// Factor in the sigmoid of [`Activation::ClampedSwiglu`].
pub const SWIGLU_SLOPE: f32 = 1.702;
/// Upper limit of the gate, and limit of an up value's magnitude, in [`Activation::ClampedSwiglu`].
pub const SWIGLU_LIMIT: f32 = 7.0;

impl Activation {
    /// All activation functions.
    pub const ALL: [Activation; 7] = [
        Activation::Relu,
        Activation::ReluSquared,
        Activation::Silu,
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::DRelu,
        Activation::ClampedSwiglu,
    ];

    /// The name used in metadata (`{arch}.hidden_activation`) and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::Relu => "relu",
            Activation::ReluSquared => "relu2",
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_pytorch_tanh",
            Activation::GeluErf => "gelu",
            Activation::DRelu => "drelu",
            Activation::ClampedSwiglu => "swiglu_oai",
        }
    }

    /// True if hidden values are exactly zero for neurons that do not fire.
    pub const fn is_sparse(self) -> bool {
        matches!(self, Activation::Relu | Activation::ReluSquared | Activation::DRelu)
    }
}

/// An activation function with limits on its factors (Step 3.5). Activated gates are at most
/// `limit`, and up values are clamped to `-limit..=limit`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActivationForm {
    /// The activation function.
    pub activation: Activation,
    /// The limit, above 0. `None` for no limit.
    pub limit: Option<f32>,
}

impl From<Activation> for ActivationForm {
    #[inline(always)]
    fn from(activation: Activation) -> Self {
        ActivationForm { activation, limit: None }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Activation {
    type Err = Error;

    /// Parses this engine's names and the values of Hugging Face's `hidden_act`.
    fn from_str(text: &str) -> Result<Self> {
        match text.to_ascii_lowercase().as_str() {
            // ProSparse's FATReLU is zero below a small positive value. PowerInfer also runs it as
            // a ReLU.
            "relu" | "fatrelu" => Ok(Activation::Relu),
            "relu2" | "relu_squared" | "relu^2" => Ok(Activation::ReluSquared),
            "silu" | "swish" | "swiglu" => Ok(Activation::Silu),
            "gelu_pytorch_tanh" | "gelu_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluTanh),
            "gelu" | "gelu_erf" | "gelu_python" => Ok(Activation::GeluErf),
            "drelu" => Ok(Activation::DRelu),
            "swiglu_oai" => Ok(Activation::ClampedSwiglu),
            _ => Err(Error::unsupported("activation", text, Activation::ALL.map(Activation::name).join(", "))),
        }
    }
}

/// Elements that a worker takes at a time.
const CHUNK: usize = 4096;

#[inline(always)]
fn activate<V: Vector>(v: V, form: Activation, g: V::F) -> V::F {
    let zero = v.splat(0.0);
    match form {
        Activation::Relu | Activation::DRelu => v.max(zero, g),
        Activation::ReluSquared => {
            let g = v.max(zero, g);
            v.mul(g, g)
        }
        Activation::Silu => v.mul(g, sigmoid(v, g)),
        Activation::GeluTanh => {
            let cube = v.mul(v.mul(g, g), g);
            let inner = v.mul_add(cube, v.splat(0.044_715), g);
            let t = tanh(v, v.mul(inner, v.splat(0.797_884_6)));
            v.mul(v.mul(g, v.splat(0.5)), v.add(t, v.splat(1.0)))
        }
        Activation::GeluErf => {
            // 0.5 g (1 + erf) = max(g, 0) - 0.5 |g| erfc |g / sqrt 2|
            let tail = erfc_abs(v, v.mul(g, v.splat(std::f32::consts::FRAC_1_SQRT_2)));
            let half = v.mul(v.max(g, v.sub(zero, g)), v.splat(0.5));
            v.sub(v.max(zero, g), v.mul(half, tail))
        }
        Activation::ClampedSwiglu => {
            let h = v.min(v.splat(SWIGLU_LIMIT), g);
            v.mul(h, sigmoid(v, v.mul(h, v.splat(SWIGLU_SLOPE))))
        }
    }
}

/// Factor of an activated gate: the up value after the activation's own function for up values.
#[inline(always)]
fn factor<V: Vector>(v: V, form: Activation, u: V::F) -> V::F {
    match form {
        Activation::DRelu => v.max(v.splat(0.0), u),
        Activation::ClampedSwiglu => {
            let u = v.min(v.splat(SWIGLU_LIMIT), v.max(v.splat(-SWIGLU_LIMIT), u));
            v.add(u, v.splat(1.0))
        }
        _ => u,
    }
}

struct Activate<'a> {
    form: ActivationForm,
    g: &'a mut [f32],
    u: Option<&'a [f32]>,
}

impl VectorKernel for Activate<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        // One loop per activation function, so that the function is not selected for every vector.
        let (form, g, u) = (self.form, self.g, self.u);
        if form.limit.is_some() {
            return each(v, form, g, u);
        }
        match form.activation {
            Activation::Relu => each(v, Activation::Relu.into(), g, u),
            Activation::ReluSquared => each(v, Activation::ReluSquared.into(), g, u),
            Activation::Silu => each(v, Activation::Silu.into(), g, u),
            Activation::GeluTanh => each(v, Activation::GeluTanh.into(), g, u),
            Activation::GeluErf => each(v, Activation::GeluErf.into(), g, u),
            Activation::DRelu => each(v, Activation::DRelu.into(), g, u),
            Activation::ClampedSwiglu => each(v, Activation::ClampedSwiglu.into(), g, u),
        }
    }
}

/// Computes one vector of gates and, if present, of up values. There is no closure here: the
/// compiler may leave a closure as a function of its own, without the instruction set.
#[inline(always)]
fn one<V: Vector>(v: V, ActivationForm { activation, limit }: ActivationForm, g: &mut [f32], u: Option<&[f32]>) {
    let mut y = activate(v, activation, v.load(g));
    if let Some(limit) = limit {
        y = v.min(v.splat(limit), y);
    }
    if let Some(u) = u {
        let mut u = v.load(u);
        if let Some(limit) = limit {
            u = v.min(v.splat(limit), v.max(v.splat(-limit), u));
        }
        y = v.mul(y, factor(v, activation, u));
    }
    v.store(g, y);
}

#[inline(always)]
fn each<V: Vector>(v: V, form: ActivationForm, g: &mut [f32], u: Option<&[f32]>) {
    let whole = g.len() / V::LANES * V::LANES;
    match u {
        Some(u) => {
            for (g, u) in g.chunks_exact_mut(V::LANES).zip(u.chunks_exact(V::LANES)) {
                one(v, form, g, Some(u));
            }
        }
        None => {
            for g in g.chunks_exact_mut(V::LANES) {
                one(v, form, g, None);
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
        one(v, form, &mut last, u.is_some().then_some(&last_u));
        g[whole..].copy_from_slice(&last[..left]);
    }
}

/// `x = max(x - (mean + deviations * standard deviation), 0)` of one row.
fn excess(row: &mut [f32], deviations: f32) {
    let n = row.len().max(1) as f64;
    let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
    let threshold = (mean + f64::from(deviations) * variance.sqrt()) as f32;
    row.iter_mut().for_each(|x| *x = (*x - threshold).max(0.0));
}

impl Cpu {
    /// Replaces every element by its excess over the mean plus `deviations` standard deviations of
    /// its row, or by 0 if it has none. Rows are `len` long. The standard deviation is that of all
    /// elements: `sqrt(mean((x - mean)^2))`.
    ///
    /// # Panics
    /// If `g` is not a whole number of rows.
    pub fn gate_excess(&self, g: &mut [f32], len: usize, deviations: f32) {
        assert!(g.len().is_multiple_of(len.max(1)));
        self.for_each_chunk(g, len.max(1), 4, |_, row| excess(row, deviations));
    }

    /// `g = act(g) * u`, or `act(g)` without `u`. In place, any length, within the limit of `form`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn activate(&self, form: impl Into<ActivationForm>, g: &mut [f32], u: Option<&[f32]>) {
        let form = form.into();
        assert!(u.is_none_or(|u| u.len() == g.len()));
        self.for_each_chunk(g, CHUNK, 4, |i, g| {
            let u = u.map(|u| &u[i * CHUNK..][..g.len()]);
            dispatch(self.isa(), Activate { form, g, u });
        });
    }
}

/// `ln(1 + e^x)`
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ops::tests::each_cpu;

    /// The error function, by its Maclaurin series. Accurate enough for `|x| < 4`.
    fn erf(x: f64) -> f64 {
        if x.abs() >= 4.0 {
            return x.signum();
        }
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    fn plain(form: Activation, g: f32, u: Option<f32>) -> f64 {
        let (g, u) = (f64::from(g), u.map(f64::from));
        match form {
            Activation::Relu => g.max(0.0) * u.unwrap_or(1.0),
            Activation::ReluSquared => g.max(0.0).powi(2) * u.unwrap_or(1.0),
            Activation::Silu => g / (1.0 + (-g).exp()) * u.unwrap_or(1.0),
            Activation::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044_715 * g.powi(3));
                0.5 * g * (1.0 + inner.tanh()) * u.unwrap_or(1.0)
            }
            Activation::GeluErf => 0.5 * g * (1.0 + erf(g * std::f64::consts::FRAC_1_SQRT_2)) * u.unwrap_or(1.0),
            Activation::DRelu => g.max(0.0) * u.map_or(1.0, |u| u.max(0.0)),
            Activation::ClampedSwiglu => {
                let h = g.min(7.0);
                h / (1.0 + (-1.702 * h).exp()) * u.map_or(1.0, |u| u.clamp(-7.0, 7.0) + 1.0)
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn gate_excess_agrees_with_f64(
            rows in 1usize..4,
            x in prop::collection::vec(-5f32..5.0, 3 * 40),
            deviations in 0f32..2.0,
        ) {
            for cpu in each_cpu() {
                let mut out = x[..rows * 40].to_vec();
                cpu.gate_excess(&mut out, 40, deviations);
                for (out, x) in out.chunks(40).zip(x.chunks(40)) {
                    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / 40.0;
                    let square = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 40.0;
                    let threshold = mean + f64::from(deviations) * (square - mean * mean).max(0.0).sqrt();
                    for (out, x) in out.iter().zip(x) {
                        prop_assert!((f64::from(*out) - (f64::from(*x) - threshold).max(0.0)).abs() < 1e-5);
                    }
                }
            }
        }

        #[test]
        fn activate_agrees_with_f64(pairs in prop::collection::vec((-5f32..9.0, -9f32..9.0), 0..70), gated: bool) {
            let (g, u): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            for cpu in each_cpu() {
                for (form, limit) in Activation::ALL.into_iter().flat_map(|form| [(form, None), (form, Some(0.75))]) {
                    let mut out = g.clone();
                    cpu.activate(ActivationForm { activation: form, limit }, &mut out, gated.then_some(&u));
                    for i in 0..g.len() {
                        let up = gated.then_some(u[i]);
                        let wanted = match limit.map(f64::from) {
                            Some(most) => {
                                let factor = |u: f32| plain(form, 1.0, Some(u.clamp(-0.75, 0.75))) / plain(form, 1.0, None);
                                plain(form, g[i], None).min(most) * up.map_or(1.0, factor)
                            }
                            None => plain(form, g[i], up),
                        };
                        prop_assert!((f64::from(out[i]) - wanted).abs() < 1e-5 * wanted.abs().max(1.0), "{form:?} {} {wanted}", out[i]);
                    }
                }
            }
        }
    }
}
