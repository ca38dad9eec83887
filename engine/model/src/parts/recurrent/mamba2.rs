//! Mamba-2 (Dao and Gu 2024): a selective state space after a short convolution.
//!
//! GGUF and Hugging Face keep gates, inputs, `B`, `C` and steps in one matrix, in this order.

use smallvec::{SmallVec, smallvec};

use super::short_conv::load_short_conv;
use crate::{
    Linear, MixerConfig, MixerWeights, StateShape,
    load::{LayerTensors, Loader},
};
use thermocline_base::error::Result;
use thermocline_cpu::ops::{Mamba2Shape, ShortConv};

/// Largest accepted number of taps, and of heads, groups or elements.
const MOST_TAPS: usize = 64;
const LARGEST: usize = 1 << 16;
/// This engine's own key for the smallest and largest step of a token. Without it there are no
/// limits.
pub(crate) const STEP_LIMITS: &str = "ssm.time_step_limit";

/// Sizes of Mamba-2.
#[derive(Debug, Clone, PartialEq)]
pub struct Mamba2Config {
    /// Number and sizes of heads.
    pub shape: Mamba2Shape,
    /// Number of taps of the convolution.
    pub taps: usize,
    /// Smallest and largest step of a token.
    pub step_limits: [f32; 2],
}

impl Mamba2Config {
    /// Reads the sizes from a file and checks them against each other.
    pub(crate) fn read(loader: &Loader<'_>) -> Result<Self> {
        let size = |key: &str, most: usize| loader.required_size(key, 1..=most);
        let taps = size("ssm.conv_kernel", MOST_TAPS)?;
        let (heads, groups) = (size("ssm.time_step_rank", LARGEST)?, size("ssm.group_count", LARGEST)?);
        let (inner, state) = (size("ssm.inner_size", LARGEST * LARGEST)?, size("ssm.state_size", LARGEST)?);
        if !heads.is_multiple_of(groups) {
            return Err(loader.key_error("ssm.group_count", format!("a divisor of time_step_rank {heads}"), groups));
        }
        if !inner.is_multiple_of(heads) {
            return Err(loader.key_error("ssm.inner_size", format!("a multiple of time_step_rank {heads}"), inner));
        }
        let step_limits = match loader.floats(STEP_LIMITS, 2)?.as_deref() {
            Some(&[least, most]) if (0.0..=most).contains(&least) => [least, most],
            Some(other) => {
                return Err(loader.key_error(STEP_LIMITS, "two ascending numbers of at least 0", format!("{other:?}")));
            }
            None => [0.0, f32::INFINITY],
        };
        let shape = Mamba2Shape { heads, head_dim: inner / heads, groups, state };
        Ok(Mamba2Config { shape, taps, step_limits })
    }
}

impl MixerConfig for Mamba2Config {
    fn name(&self) -> &'static str {
        "Mamba-2"
    }

    fn state(&self) -> StateShape {
        let Mamba2Config { shape, taps, .. } = self;
        StateShape { conv: [taps - 1, shape.channels()], scan: [shape.heads, shape.state, shape.head_dim] }
    }
}

/// Weights of Mamba-2. Files join the first three matrices in one.
#[derive(Debug, Clone)]
pub struct Mamba2Weights {
    /// Matrix for the gate of the outputs, `[heads * head_dim, d]`.
    pub gate: Linear,
    /// Matrix for the inputs of all heads, then `B` and `C` of all groups,
    /// `[heads * head_dim + 2 * groups * state, d]`.
    pub xbc: Linear,
    /// Matrix for the steps, before their bias and softplus, `[heads, d]`.
    pub dt: Linear,
    /// Convolution of the inputs, `B` and `C`.
    pub conv: ShortConv,
    /// Logarithm of the decay per unit of a step, `[heads]`, at most 0.
    pub a: Vec<f32>,
    /// Fraction of the inputs that is added to the outputs, `[heads]`.
    pub d: Vec<f32>,
    /// `[heads]`
    pub dt_bias: Vec<f32>,
    /// Norm of the gated outputs of each group, `[heads * head_dim]`.
    pub norm: Vec<f32>,
    /// `[d, heads * head_dim]`
    pub output: Linear,
}

impl Mamba2Weights {
    /// Loads the weights of a layer.
    pub(crate) fn load(at: &LayerTensors<'_>, of: &Mamba2Config) -> Result<Self> {
        let (LayerTensors { loader, n, d_model: d, .. }, shape) = (*at, &of.shape);
        let (heads, inner, channels) = (shape.heads, shape.inner(), shape.channels());
        let stem = |role: &str| format!("blk.{n}.{role}");
        let [gate, xbc, dt] = Linear::split(loader, &stem("ssm_in"), d, [inner, channels, heads])?;
        let by_head = |role: &str| loader.vector_of_shape(&stem(role), &[&[heads], &[heads, 1]]);
        let by_group = [shape.groups, inner / shape.groups];
        Ok(Mamba2Weights {
            gate,
            xbc,
            dt,
            conv: load_short_conv(loader, &stem("ssm_conv1d"), channels, of.taps)?,
            dt_bias: loader.vector(&stem("ssm_dt.bias"), heads)?,
            a: by_head("ssm_a")?,
            d: by_head("ssm_d")?,
            norm: loader.vector_of_shape(&stem("ssm_norm.weight"), &[&[inner], &by_group])?,
            output: loader.linear(&stem("ssm_out"), d, inner)?,
        })
    }
}

impl MixerWeights for Mamba2Weights {
    fn inputs(&self) -> SmallVec<[&Linear; 4]> {
        smallvec![&self.xbc, &self.gate, &self.dt]
    }

    fn conv(&self) -> Option<&ShortConv> {
        Some(&self.conv)
    }

    fn vectors(&self) -> SmallVec<[&[f32]; 4]> {
        smallvec![&self.a[..], &self.dt_bias[..], &self.d[..], &self.norm[..]]
    }

    fn output(&self) -> &Linear {
        &self.output
    }
}
