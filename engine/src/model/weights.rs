//! Weights by role. Matrices stay in their file type and share the file's bytes; vectors are f32.

use std::sync::OnceLock;

use crate::{cpu::InputMajor, format::Matrix, telemetry::neurons::LayerNeurons};

use super::NormSlot;

/// `y = W x + b`
#[derive(Debug, Clone)]
pub struct Linear {
    /// `[outputs, inputs]`
    pub weight: Matrix,
    /// `[outputs]`
    pub bias: Option<Vec<f32>>,
}

/// Weights of a norm.
#[derive(Debug, Clone)]
pub struct Norm {
    /// `[n]`
    pub weight: Vec<f32>,
    /// `[n]`, layer norm only.
    pub bias: Option<Vec<f32>>,
}

/// Attention of one layer. `d` is the model's width, heads are `head_dim` wide.
#[derive(Debug, Clone)]
pub struct AttentionWeights {
    /// `[n_head * head_dim, d]`
    pub q: Linear,
    /// `[n_kv_head * head_dim, d]`
    pub k: Linear,
    /// `[n_kv_head * head_dim, d]`
    pub v: Linear,
    /// `[d, n_head * head_dim]`
    pub output: Linear,
    /// Per-head norm of queries, `[head_dim]`, before rope.
    pub q_norm: Option<Norm>,
    /// Per-head norm of keys, `[head_dim]`, before rope.
    pub k_norm: Option<Norm>,
}

/// The down projection, in whichever orientation the file has.
#[derive(Debug, Clone)]
pub enum Down {
    /// `[d, n_ff]`: an output is a row.
    Outputs(Linear),
    /// `[n_ff, d]`: a neuron is a row (PowerInfer's `ffn_down_t`); the bias is `[d]`.
    Neurons(Linear),
}

/// One FFN (or one expert).
#[derive(Debug, Clone)]
pub struct FfnWeights {
    /// `[n_ff, d]`; absent in ungated FFNs.
    pub gate: Option<Linear>,
    /// `[n_ff, d]`
    pub up: Linear,
    /// Back to `d`.
    pub down: Down,
}

/// A mixture of experts.
#[derive(Debug, Clone)]
pub struct ExpertWeights {
    /// `[experts, d]`
    pub router: Linear,
    /// One FFN per expert.
    pub experts: Vec<FfnWeights>,
    /// One more FFN that sees every token (Qwen2-MoE).
    pub shared: Option<Box<SharedExpert>>,
    /// The experts' down projections as the file has them, where `experts` have them turned, and nothing else: devices take them
    /// with a row per output.
    pub file_down: Vec<Linear>,
}

impl ExpertWeights {
    /// Their neurons.
    pub fn neurons(&self) -> LayerNeurons {
        let rows = |ffn: &FfnWeights| ffn.up.weight.rows();
        LayerNeurons::Mixture {
            experts: self.experts.len(),
            width: self.experts.first().map_or(0, rows),
            shared: self.shared.as_ref().map_or(0, |shared| rows(&shared.ffn)),
        }
    }

    /// The experts and the shared one, in this order.
    pub fn ffns(&self) -> impl Iterator<Item = &FfnWeights> {
        self.experts.iter().chain(self.shared.iter().map(|shared| &shared.ffn))
    }

    /// Their down projections.
    pub fn downs(&self) -> impl Iterator<Item = &Down> {
        self.ffns().map(|ffn| &ffn.down)
    }

    /// The down projection of an expert with a row per output, where there is one.
    pub fn outputs(&self, expert: usize) -> Option<&Linear> {
        match &self.experts.get(expert)?.down {
            Down::Outputs(down) => Some(down),
            Down::Neurons(_) => self.file_down.get(expert),
        }
    }

    /// Has the experts and the shared one have `turned` down projections `[n_ff, d]` in the order of [`ExpertWeights::downs`], where
    /// there is one; biases stay.
    pub fn turn(&mut self, turned: impl IntoIterator<Item = Option<Matrix>>) {
        let file: Option<Vec<Linear>> = (0..self.experts.len()).map(|expert| self.outputs(expert).cloned()).collect();
        let shared = self.shared.iter_mut().map(|shared| &mut shared.ffn);
        for (ffn, turned) in self.experts.iter_mut().chain(shared).zip(turned) {
            if let Some(weight) = turned {
                let (Down::Outputs(old) | Down::Neurons(old)) = &mut ffn.down;
                ffn.down = Down::Neurons(Linear { weight, bias: old.bias.take() });
            }
        }
        let are_turned = self.experts.iter().any(|ffn| matches!(ffn.down, Down::Neurons(_)));
        self.file_down = file.filter(|_| are_turned).unwrap_or_default();
    }
}

/// The expert every token passes through: `sigmoid(gate x) * ffn(x)` is added to the mixture's output.
#[derive(Debug, Clone)]
pub struct SharedExpert {
    /// `[1, d]`
    pub gate: Linear,
    /// Its own width may differ from the routed experts'.
    pub ffn: FfnWeights,
}

/// The FFN of one layer.
#[derive(Debug, Clone)]
pub enum Ffn {
    /// One FFN for every token.
    Dense(FfnWeights),
    /// The router chooses per token.
    Experts(ExpertWeights),
}

impl Ffn {
    /// Its neurons.
    pub fn neurons(&self) -> LayerNeurons {
        match self {
            Ffn::Dense(ffn) => LayerNeurons::Dense(ffn.up.weight.rows()),
            Ffn::Experts(mixture) => mixture.neurons(),
        }
    }
}

/// Activation predictor of one layer: neuron `i` may fire where `score(x)[i] >= threshold`.
#[derive(Debug, Clone)]
pub struct Predictor {
    /// How the scores are computed.
    pub kind: PredictorKind,
    /// What they are computed from.
    pub input: PredictorInput,
    /// Cut on the raw scores.
    pub threshold: f32,
    /// How good it is, where that was measured.
    pub quality: Option<PredictorQuality>,
    /// Its second layer as single tokens read it, made when one first does.
    pub by_input: OnceLock<Option<InputMajor>>,
}

/// How well a predictor does on text it was not made from, averaged over tokens. Shares, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictorQuality {
    /// Of the neurons that fire, those it finds.
    pub recall: f32,
    /// The same, each neuron counting as much as it adds to the output: `|a_i| * |down_i|`.
    pub mass_recall: f32,
    /// Of the neurons it names, those that fire.
    pub precision: f32,
    /// Of all neurons, those it names.
    pub density: f32,
}

/// How a predictor scores neurons.
#[derive(Debug, Clone)]
pub enum PredictorKind {
    /// `score = fc2 relu(fc1 x)`, no biases (Deja Vu, PowerInfer).
    LowRank {
        /// `[rank, d]`
        fc1: Matrix,
        /// `[n_ff, rank]`
        fc2: Matrix,
    },
    /// `score = rows x`: a copy of the firing rows (the gate's, or the up matrix's where there is no gate) in fewer bits.
    /// Needs no training.
    Rows {
        /// `[n_ff, d]`
        rows: Matrix,
        /// The firing rows' own biases, `[n_ff]`.
        bias: Option<Vec<f32>>,
    },
}

/// What a predictor sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PredictorInput {
    /// The residual stream before the FFN's norm (PowerInfer).
    Residual,
    /// What the FFN itself sees.
    Normed,
}

/// One layer.
#[derive(Debug, Clone)]
pub struct LayerWeights {
    /// Norms the layer's program names.
    pub norms: Vec<(NormSlot, Norm)>,
    /// Attention.
    pub attention: AttentionWeights,
    /// FFN.
    pub ffn: Ffn,
    /// Predictor, where the file or its sidecar has one.
    pub predictor: Option<Predictor>,
    /// Magnitude of the gate's activation below which [`Sparsity::Threshold`](super::Sparsity::Threshold) skips a neuron,
    /// where the sidecar has one.
    pub cut: Option<f32>,
    /// Share of tokens at which each neuron fires, `[n_ff]`, where the sidecar (or a profile) has it; of a mixture, at which each
    /// expert is chosen, `[experts]`.
    pub frequency: Option<Vec<f32>>,
    /// Of a mixture: share of tokens at which each neuron fires, expert by expert, those of the shared one last.
    pub neuron_frequency: Option<Vec<f32>>,
}

impl LayerWeights {
    /// The weights of `slot`. Loading checks that every norm the program names is there.
    pub fn norm(&self, slot: NormSlot) -> Option<&Norm> {
        self.norms.iter().find(|(at, _)| *at == slot).map(|(_, norm)| norm)
    }
}

/// All weights of a model.
#[derive(Debug, Clone)]
pub struct Weights {
    /// `[n_vocab, d]`
    pub token_embedding: Matrix,
    /// `[positions + offset, d]`, learned positions only.
    pub position_embedding: Option<Matrix>,
    /// One per layer.
    pub layers: Vec<LayerWeights>,
    /// Before the head.
    pub output_norm: Norm,
    /// `[n_vocab, d]`; the embedding's own matrix when tied.
    pub output: Linear,
    /// Whether the head is the embedding.
    pub tied: bool,
}
