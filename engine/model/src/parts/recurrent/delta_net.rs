//! Gated delta net (Yang et al. 2024) after a short convolution.

use smallvec::{SmallVec, smallvec};

use crate::{Linear, MixerConfig, MixerWeights, Norm, StateShape};
use thermocline_cpu::ops::{DeltaNetShape, ShortConv};

/// Sizes of a gated delta net.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaNetConfig {
    /// Number and sizes of heads.
    pub shape: DeltaNetShape,
    /// Number of taps of the convolution.
    pub taps: usize,
}

impl MixerConfig for DeltaNetConfig {
    fn name(&self) -> &'static str {
        "gated delta net"
    }

    fn state(&self) -> StateShape {
        let DeltaNetConfig { shape, taps } = self;
        StateShape { conv: [taps - 1, shape.qkv()], scan: [shape.v_heads, shape.k_dim, shape.v_dim] }
    }
}

/// Weights of a gated delta net. The state has one head per value head.
#[derive(Debug, Clone)]
pub struct DeltaNetWeights {
    /// Matrix of queries, keys and values, `[2 * k_heads * k_dim + v_heads * v_dim, d]`.
    pub qkv: Linear,
    /// Gate of the outputs, `[v_heads * v_dim, d]`.
    pub gate: Linear,
    /// Matrix for the decay's input, `[v_heads, d]`.
    pub alpha: Linear,
    /// Matrix for the rate's input, `[v_heads, d]`.
    pub beta: Linear,
    /// Convolution of queries, keys and values.
    pub conv: ShortConv,
    /// Factor on the logarithm of the decay `g`, `[v_heads]`, below 0:
    /// `log g = a * softplus(alpha x + dt_bias)`.
    pub a: Vec<f32>,
    /// `[v_heads]`
    pub dt_bias: Vec<f32>,
    /// Norm of a head's outputs, `[v_dim]`.
    pub norm: Norm,
    /// `[d, v_heads * v_dim]`
    pub output: Linear,
}

impl MixerWeights for DeltaNetWeights {
    fn inputs(&self) -> SmallVec<[&Linear; 4]> {
        smallvec![&self.qkv, &self.gate, &self.alpha, &self.beta]
    }

    fn conv(&self) -> Option<&ShortConv> {
        Some(&self.conv)
    }

    fn vectors(&self) -> SmallVec<[&[f32]; 4]> {
        smallvec![&self.a[..], &self.dt_bias[..], &self.norm.weight[..]]
    }

    fn output(&self) -> &Linear {
        &self.output
    }
}
