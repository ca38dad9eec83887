//! FFN of a layer, dense or MoE: weights, and the form that a step names.

use std::sync::Arc;

use super::{ExpertWeights, LayerNorms, Linear, Predictor};
use crate::{Activation, ActivationForm, Register};
use thermocline_base::telemetry::neurons::LayerNeurons;
use thermocline_cpu::{Cpu, MatmulJob};
use thermocline_formats::format::Matrix;

/// Down projection of an FFN, in one of two orientations.
#[derive(Debug, Clone)]
pub enum Down {
    /// Output-major, `[d, n_ff]`: each output is a row.
    Outputs(Linear),
    /// Neuron-major, `[n_ff, d]`: each neuron is a row (PowerInfer's `ffn_down_t`). The bias is
    /// `[d]`.
    Neurons(Linear),
}

impl Down {
    /// Returns the projection, in either orientation.
    pub fn linear(&self) -> &Linear {
        let (Down::Outputs(linear) | Down::Neurons(linear)) = self;
        linear
    }

    /// Returns the number of outputs, `d`.
    pub fn outputs(&self) -> usize {
        match self {
            Down::Outputs(down) => down.weight.rows(),
            Down::Neurons(down) => down.weight.cols(),
        }
    }

    /// Computes the product with `hidden` `[tokens, n_ff]`, plus `bias`, into `out` `[tokens, d]`.
    pub fn product(&self, cpu: &Cpu, bias: Option<&[f32]>, hidden: &[f32], tokens: usize, out: &mut [f32]) {
        match self {
            Down::Outputs(Linear { weight, .. }) => cpu.matmul(&mut [MatmulJob { weight, bias, out }], hidden, tokens),
            Down::Neurons(Linear { weight, .. }) => {
                cpu.matmul_neurons(weight, bias, hidden, tokens, out);
            }
        }
    }

    /// Replaces the projection by the neuron-major `weight`. The bias stays.
    pub fn set_neuron_major(&mut self, weight: Matrix) {
        let (Down::Outputs(old) | Down::Neurons(old)) = self;
        let bias = old.bias.take();
        *self = Down::Neurons(Linear { weight, bias });
    }
}

/// Weights of one FFN (or one expert).
#[derive(Debug, Clone)]
pub struct FfnWeights {
    /// `[n_ff, d]`; absent in ungated FFNs.
    pub gate: Option<Linear>,
    /// `[n_ff, d]`
    pub up: Linear,
    /// Down projection.
    pub down: Down,
    /// `gate` again, in the bundles of a sidecar. A bundle is the rows of one neuron, side by side:
    /// `up`, `down`, and this one.
    pub bundled_gate: Option<Linear>,
    /// Limit on activated gates and on up values ([`ActivationForm`]).
    pub limit: Option<f32>,
    /// Factors by which the magnitudes of activated gates are multiplied before they are compared
    /// with the layer's activation threshold, `[n_ff]`. `None` for ones, and in experts.
    pub gate_scales: Option<Arc<[f32]>>,
}

impl FfnWeights {
    /// Iterates over all matrices.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain([&self.up, self.down.linear()])
    }

    /// Returns the gate to read if the up rows of the same neurons are read too.
    pub fn gate_beside_up(&self) -> Option<&Linear> {
        self.bundled_gate.as_ref().or(self.gate.as_ref())
    }

    /// Returns the rows that decide if neurons fire: gates, or up rows without gates. `predicted`
    /// is true if they are read only for predicted neurons, whose other rows are read next.
    pub fn firing_rows(&self, predicted: bool) -> &Linear {
        let gate = if predicted { self.gate_beside_up() } else { self.gate.as_ref() };
        gate.unwrap_or(&self.up)
    }

    /// Replaces the rows of the neurons by those in bundles, which have the same bytes.
    pub fn set_bundles(&mut self, up: Matrix, gate: Option<Matrix>) {
        self.up.weight = up.with_factor(self.up.weight.factor());
        self.bundled_gate = gate
            .zip(self.gate.as_ref())
            .map(|(weight, own)| Linear { weight: weight.with_factor(own.weight.factor()), bias: own.bias.clone() });
    }

    /// True if the activated `gate` of `neuron` exceeds the layer's activation `threshold`.
    pub fn exceeds(&self, neuron: usize, gate: f32, threshold: f32) -> bool {
        gate.abs() * self.gate_scales.as_ref().map_or(1.0, |scales| scales[neuron]) > threshold
    }

    /// Multiplies activated `gates` of `neurons` (all if `None`), `[tokens, neurons]`, by their
    /// scales.
    pub fn scale_gates(&self, neurons: Option<&[u32]>, gates: &mut [f32]) {
        let Some(scales) = &self.gate_scales else { return };
        let n = neurons.map_or(scales.len(), <[u32]>::len).max(1);
        for gates in gates.chunks_exact_mut(n) {
            match neurons {
                None => gates.iter_mut().zip(&**scales).for_each(|(gate, scale)| *gate *= scale),
                Some(list) => gates.iter_mut().zip(list).for_each(|(gate, at)| *gate *= scales[*at as usize]),
            }
        }
    }

    /// Returns the form of the hidden values in a model with this activation.
    pub fn form(&self, activation: Activation) -> ActivationForm {
        ActivationForm { activation, limit: self.limit }
    }
}

/// FFN weights of one layer.
#[derive(Debug, Clone, Default)]
pub enum Ffn {
    /// One FFN for every token.
    Dense(FfnWeights),
    /// MoE: experts, chosen per token by a router.
    Experts(ExpertWeights),
    /// No FFN: the layer has only attention or another token mixer.
    #[default]
    None,
}

impl Ffn {
    /// Returns number and grouping of the neurons.
    pub fn neurons(&self) -> LayerNeurons {
        self.kind().map_or(LayerNeurons::Dense(0), |kind| kind.neurons())
    }

    /// Returns the number of units in which an FFN is placed: its neurons, or the experts of an MoE
    /// layer.
    pub fn units(&self) -> usize {
        match self {
            Ffn::None => 0,
            Ffn::Dense(ffn) => ffn.up.weight.rows(),
            Ffn::Experts(experts) => experts.experts.len(),
        }
    }

    /// Iterates over the weights of a unit: the rows of a neuron, or the matrices of an expert.
    /// Rows in bundles take the place of the file's. An output-major down projection has no row.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn rows_of(&self, unit: usize) -> impl Iterator<Item = &[u8]> {
        let (dense, expert) = match self {
            Ffn::Dense(ffn) => (Some(ffn), None),
            Ffn::Experts(moe) => (None, Some(&moe.experts[unit])),
            Ffn::None => (None, None),
        };
        let rows = dense.into_iter().flat_map(move |ffn| {
            let down = matches!(ffn.down, Down::Neurons(_)).then(|| ffn.down.linear());
            let linears = ffn.gate_beside_up().into_iter().chain([&ffn.up]).chain(down);
            linears.map(move |linear| linear.weight.row(unit))
        });
        let experts = expert.into_iter().flat_map(FfnWeights::linears);
        rows.chain(experts.flat_map(|linear| linear.weight.pieces()))
    }

    /// Iterates over the FFNs: the dense one, or the routed experts and then the shared expert.
    pub fn ffns_mut(&mut self) -> impl Iterator<Item = &mut FfnWeights> {
        let (dense, experts, shared) = match self {
            Ffn::Dense(ffn) => (Some(ffn), &mut [][..], None),
            Ffn::Experts(moe) => (None, &mut moe.experts[..], moe.shared.as_mut().map(|shared| &mut shared.ffn)),
            Ffn::None => (None, &mut [][..], None),
        };
        dense.into_iter().chain(experts).chain(shared)
    }

    /// Returns FFN `at`, in the order of [`Ffn::ffns_mut`].
    pub fn at(&self, at: usize) -> Option<&FfnWeights> {
        match self {
            Ffn::Dense(ffn) => (at == 0).then_some(ffn),
            Ffn::Experts(moe) => moe.ffns().nth(at),
            Ffn::None => None,
        }
    }

    /// Returns the FFN's weights; `None` without an FFN.
    pub fn kind(&self) -> Option<FfnKind<'_>> {
        match self {
            Ffn::Dense(weights) => Some(FfnKind::Dense(weights)),
            Ffn::Experts(weights) => Some(FfnKind::Experts(weights)),
            Ffn::None => None,
        }
    }
}

/// Weights of an existing FFN.
#[derive(Debug, Clone, Copy)]
pub enum FfnKind<'m> {
    /// One FFN for every token.
    Dense(&'m FfnWeights),
    /// Experts of an MoE layer.
    Experts(&'m ExpertWeights),
}

impl FfnKind<'_> {
    /// Returns number and grouping of the neurons.
    pub fn neurons(&self) -> LayerNeurons {
        match self {
            FfnKind::Dense(ffn) => LayerNeurons::Dense(ffn.up.weight.rows()),
            FfnKind::Experts(moe) => moe.neurons(),
        }
    }
}

/// FFN of a layer, bound to a step.
#[derive(Debug, Clone, Copy)]
pub struct BoundFfn<'m> {
    /// Index of the layer.
    pub layer: usize,
    /// Input.
    pub from: Register,
    /// Weights.
    pub kind: FfnKind<'m>,
    /// Norms of the layer. A dense FFN uses the norm of its hidden values.
    pub norms: LayerNorms<'m>,
    /// As [`LayerWeights::gate_deviations`](crate::LayerWeights::gate_deviations).
    pub gate_deviations: Option<f32>,
    /// Predictor of a dense FFN.
    pub predictor: Option<&'m Predictor>,
    /// As [`LayerWeights::activation_threshold`](crate::LayerWeights::activation_threshold).
    pub activation_threshold: Option<f32>,
    /// True if an earlier step chooses the experts.
    pub routed: bool,
    /// True if the residual stream still holds the input of the FFN's norm when the FFN begins.
    pub keeps_residual: bool,
}
