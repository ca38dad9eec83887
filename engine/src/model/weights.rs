//! Weights of a model by role. Matrices keep their file type and share the file's bytes; vectors are f32.

use std::sync::OnceLock;

use smallvec::{SmallVec, smallvec};

use super::{InputCurves, InputFigures, NormSlot, SkippedInputs};
use crate::{
    cpu::{InputMajor, ops::ShortConv},
    format::Matrix,
    telemetry::neurons::LayerNeurons,
};

/// A linear map, `y = W x + b`.
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

/// Attention weights of one layer. `d` is the width of the residual stream, heads are `head_dim` wide.
#[derive(Debug, Clone)]
pub struct AttentionWeights {
    /// `[n_head * head_dim, d]`; twice the rows if heads are gated.
    pub q: Linear,
    /// `[n_kv_head * head_dim, d]`; absent where keys are another layer's.
    pub k: Option<Linear>,
    /// `[n_kv_head * head_dim, d]`; absent where values are what `k` yields, before norm and rotation, or another layer's.
    pub v: Option<Linear>,
    /// `[d, n_head * head_dim]`
    pub output: Linear,
    /// Norm of queries before rope: of each head, `[head_dim]`, or of all heads together, `[n_head * head_dim]`.
    pub q_norm: Option<Norm>,
    /// Norm of keys before rope: of each head, `[head_dim]`, or of all heads together, `[n_kv_head * head_dim]`.
    pub k_norm: Option<Norm>,
    /// Per query head the score of a key without a value, `[n_head]` (gpt-oss).
    pub sinks: Option<Vec<f32>>,
    /// The rest of latent attention: `q` is `[n_head * (nope_dim + rope), d or q_rank]`, `k` is `[rank + rope, d]`, `output` is
    /// `[d, n_head * v_dim]`.
    pub latent: Option<Box<LatentWeights>>,
    /// Gate of the heads' outputs, `[n_head, d]` or `[n_head * head_dim, d]`.
    pub gate: Option<Linear>,
}

impl AttentionWeights {
    /// Its matrices.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        let behind = self.latent.iter().flat_map(|latent| {
            let q = latent.low_q.as_ref().map(|_| &self.q);
            q.into_iter().chain(&latent.keys).chain(&latent.values)
        });
        self.inputs().chain(&self.gate).chain(behind).chain([&self.output])
    }

    /// The matrices that read its input.
    pub fn inputs(&self) -> impl Iterator<Item = &Linear> {
        let low = self.latent.as_ref().and_then(|latent| latent.low_q.as_ref()).map(|(low, _)| low);
        [low.unwrap_or(&self.q)].into_iter().chain(&self.k).chain(&self.v)
    }
}

/// Weights of latent attention beside those of all attention.
#[derive(Debug, Clone)]
pub struct LatentWeights {
    /// Where queries are low-rank: `[q_rank, d]`, and the norm behind it, `[q_rank]`.
    pub low_q: Option<(Linear, Norm)>,
    /// Norm of the latent, `[rank]`.
    pub norm: Norm,
    /// Per head, from its query to the latent's width: `[rank, nope_dim]`.
    pub keys: Vec<Linear>,
    /// Per head, from the latent to its value: `[v_dim, rank]`.
    pub values: Vec<Linear>,
}

/// Weights of a gated delta net. The state's heads are those of the values.
#[derive(Debug, Clone)]
pub struct DeltaNetWeights {
    /// Queries, keys and values, `[2 * k_heads * k_dim + v_heads * v_dim, d]`.
    pub qkv: Linear,
    /// Gate of the outputs, `[v_heads * v_dim, d]`.
    pub gate: Linear,
    /// Decay's input, `[v_heads, d]`.
    pub alpha: Linear,
    /// Rate's input, `[v_heads, d]`.
    pub beta: Linear,
    /// Convolution of queries, keys and values.
    pub conv: ShortConv,
    /// Factor on the logarithm of the decay, `[v_heads]`, below 0: `log g = a * softplus(alpha x + dt_bias)`.
    pub a: Vec<f32>,
    /// `[v_heads]`
    pub dt_bias: Vec<f32>,
    /// Norm of a head's outputs, `[v_dim]`.
    pub norm: Norm,
    /// `[d, v_heads * v_dim]`
    pub output: Linear,
}

/// Weights of Mamba-2. The first three matrices are one in files.
#[derive(Debug, Clone)]
pub struct Mamba2Weights {
    /// Gate of the outputs, `[heads * head_dim, d]`.
    pub gate: Linear,
    /// Inputs of all heads, then `B` and `C` of all groups, `[heads * head_dim + 2 * groups * state, d]`.
    pub xbc: Linear,
    /// Steps before their bias and softplus, `[heads, d]`.
    pub dt: Linear,
    /// Convolution of the inputs, `B` and `C`.
    pub conv: ShortConv,
    /// Logarithm of the decay per unit of a step, `[heads]`, at most 0.
    pub a: Vec<f32>,
    /// Part of the inputs that is added to the outputs, `[heads]`.
    pub d: Vec<f32>,
    /// `[heads]`
    pub dt_bias: Vec<f32>,
    /// Norm of the gated outputs of each group, `[heads * head_dim]`.
    pub norm: Vec<f32>,
    /// `[d, heads * head_dim]`
    pub output: Linear,
}

/// Weights of a short convolution between two gates: `y = output (output_gate x * conv(input_gate x * input x))`. The first three
/// matrices are one in files.
#[derive(Debug, Clone)]
pub struct ShortConvWeights {
    /// `[channels, d]`
    pub input_gate: Linear,
    /// `[channels, d]`
    pub output_gate: Linear,
    /// `[channels, d]`
    pub input: Linear,
    /// The convolution of gated inputs.
    pub conv: ShortConv,
    /// `[d, channels]`
    pub output: Linear,
}

/// Weights of a recurrent mixer.
#[derive(Debug, Clone)]
pub enum RecurrentWeights {
    /// A gated delta net's.
    DeltaNet(Box<DeltaNetWeights>),
    /// Mamba-2's.
    Mamba2(Box<Mamba2Weights>),
    /// A short convolution's.
    ShortConv(Box<ShortConvWeights>),
}

impl RecurrentWeights {
    /// Its matrices, those first that are read first.
    pub fn linears(&self) -> SmallVec<[&Linear; 5]> {
        match self {
            RecurrentWeights::DeltaNet(of) => smallvec![&of.qkv, &of.gate, &of.alpha, &of.beta, &of.output],
            RecurrentWeights::Mamba2(of) => smallvec![&of.gate, &of.xbc, &of.dt, &of.output],
            RecurrentWeights::ShortConv(of) => smallvec![&of.input_gate, &of.input, &of.output_gate, &of.output],
        }
    }
}

/// The down projection, in either orientation.
#[derive(Debug, Clone)]
pub enum Down {
    /// Output-major, `[d, n_ff]`: an output is a row.
    Outputs(Linear),
    /// Neuron-major, `[n_ff, d]`: a neuron is a row (PowerInfer's `ffn_down_t`). The bias is `[d]`.
    Neurons(Linear),
}

impl Down {
    /// The projection, however its rows lie.
    pub fn linear(&self) -> &Linear {
        let (Down::Outputs(linear) | Down::Neurons(linear)) = self;
        linear
    }

    /// Replaces it by `weight`, in which a neuron is a row. The bias stays.
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
}

impl FfnWeights {
    /// Its matrices.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain([&self.up, self.down.linear()])
    }
}

/// Weights of a mixture-of-experts (MoE) layer.
#[derive(Debug, Clone)]
pub struct ExpertWeights {
    /// Router, `[experts, d]`.
    pub router: Linear,
    /// Norm of the residual stream by which the router reads it; without one it reads the experts' input.
    pub router_norm: Option<Norm>,
    /// Factors on the weights of chosen experts, `[experts]` (Gemma 4).
    pub scale: Option<Vec<f32>>,
    /// Added to the router's scores where experts are chosen, `[experts]`; weights are without it.
    pub selection_bias: Option<Vec<f32>>,
    /// Maps between the residual stream's width and the routed experts', where that is narrower.
    pub latent: Option<Box<ExpertLatent>>,
    /// One FFN per expert.
    pub experts: Vec<FfnWeights>,
    /// Shared expert, which sees every token (Qwen2-MoE). Several side by side are one of their widths together.
    pub shared: Option<Box<SharedExpert>>,
    /// The experts' output-major down projections, `[d, n_ff]` each, where `experts` have neuron-major ones: GPUs take them from
    /// here. Otherwise empty.
    pub file_down: Vec<Linear>,
}

impl ExpertWeights {
    /// The matrices that every token reads: of router, latent, shared expert and its gate.
    pub fn always_read(&self) -> impl Iterator<Item = &Linear> {
        let latent = self.latent.iter().flat_map(|latent| [&latent.down, &latent.up]);
        let shared = self.shared.iter().flat_map(|shared| shared.gate.iter().chain(shared.ffn.linears()));
        [&self.router].into_iter().chain(latent).chain(shared)
    }

    /// Number and grouping of the experts' neurons.
    pub fn neurons(&self) -> LayerNeurons {
        let rows = |ffn: &FfnWeights| ffn.up.weight.rows();
        LayerNeurons::Experts {
            experts: self.experts.len(),
            width: self.experts.first().map_or(0, rows),
            shared: self.shared.as_ref().map_or(0, |shared| rows(&shared.ffn)),
        }
    }

    /// True if the routed experts have gates.
    pub fn gated(&self) -> bool {
        self.experts.iter().any(|expert| expert.gate.is_some())
    }

    /// The routed experts, then the shared one.
    pub fn ffns(&self) -> impl Iterator<Item = &FfnWeights> {
        self.experts.iter().chain(self.shared.iter().map(|shared| &shared.ffn))
    }

    /// Their down projections, in the order of [`ExpertWeights::ffns`].
    pub fn downs(&self) -> impl Iterator<Item = &Down> {
        self.ffns().map(|ffn| &ffn.down)
    }

    /// The output-major down projection of a routed expert, if it is at hand.
    pub fn output_major(&self, expert: usize) -> Option<&Linear> {
        match &self.experts.get(expert)?.down {
            Down::Outputs(down) => Some(down),
            Down::Neurons(_) => self.file_down.get(expert),
        }
    }

    /// Replaces down projections by neuron-major ones, `[n_ff, d]` each and in the order of [`ExpertWeights::downs`]; `None` leaves
    /// one as it is. Biases stay.
    pub fn set_neuron_major(&mut self, downs: impl IntoIterator<Item = Option<Matrix>>) {
        let file: Option<Vec<Linear>> =
            (0..self.experts.len()).map(|expert| self.output_major(expert).cloned()).collect();
        let shared = self.shared.iter_mut().map(|shared| &mut shared.ffn);
        for (ffn, down) in self.experts.iter_mut().chain(shared).zip(downs) {
            if let Some(weight) = down {
                ffn.down.set_neuron_major(weight);
            }
        }
        let neuron_major = self.experts.iter().any(|ffn| matches!(ffn.down, Down::Neurons(_)));
        self.file_down = file.filter(|_| neuron_major).unwrap_or_default();
    }
}

/// The routed experts' way into a latent and out of it: `up (sum of experts(down x))` (Nemotron 3 Super). Router and shared expert read
/// `x` itself.
#[derive(Debug, Clone)]
pub struct ExpertLatent {
    /// `[latent, d]`
    pub down: Linear,
    /// `[d, latent]`, without a bias: parts of the sum are mapped by themselves.
    pub up: Linear,
}

/// The shared expert, computed for every token: `sigmoid(gate x) * ffn(x)`, or `ffn(x)` without a gate, is added to the routed
/// experts' sum.
#[derive(Debug, Clone)]
pub struct SharedExpert {
    /// `[1, d]`
    pub gate: Option<Linear>,
    /// Its width may differ from the routed experts'.
    pub ffn: FfnWeights,
}

/// FFN weights of one layer.
#[derive(Debug, Clone)]
pub enum Ffn {
    /// One FFN for every token.
    Dense(FfnWeights),
    /// MoE: experts, chosen per token by a router.
    Experts(ExpertWeights),
    /// No FFN: the layer is attention (or another mixer of tokens) alone.
    None,
}

impl Ffn {
    /// Number and grouping of its neurons.
    pub fn neurons(&self) -> LayerNeurons {
        match self {
            Ffn::Dense(ffn) => LayerNeurons::Dense(ffn.up.weight.rows()),
            Ffn::Experts(moe) => moe.neurons(),
            Ffn::None => LayerNeurons::Dense(0),
        }
    }
}

/// Activation predictor of one layer: neuron `i` may fire where `score(x)[i] >= threshold`.
#[derive(Debug, Clone)]
pub struct Predictor {
    /// How the scores are computed.
    pub kind: PredictorKind,
    /// Vector that the scores are computed from.
    pub input: PredictorInput,
    /// Threshold on the scores.
    pub threshold: f32,
    /// Quality, if measured.
    pub quality: Option<PredictorQuality>,
    /// Its second layer in input-major order for single tokens, made on first use.
    pub by_input: OnceLock<Option<InputMajor>>,
}

/// Quality of a predictor on held-out text, means over tokens, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictorQuality {
    /// Fraction of the firing neurons that it names.
    pub recall: f32,
    /// The same, weighted by the neurons' mass `|a_i| * |down_i|`.
    pub mass_recall: f32,
    /// Fraction of the named neurons that fire.
    pub precision: f32,
    /// Fraction of all neurons that it names.
    pub density: f32,
}

/// Weights of a predictor.
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

/// Vector that a predictor reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PredictorInput {
    /// The residual stream before the FFN's norm (PowerInfer).
    Residual,
    /// The FFN's own input.
    Normed,
}

/// The use that a layer makes of its own input `p`, `[w]`: `output (activation(gate x) * p)` of the residual stream `x`.
#[derive(Debug, Clone)]
pub struct PerLayerWeights {
    /// `[w, d]`
    pub gate: Linear,
    /// `[d, w]`
    pub output: Linear,
}

impl PerLayerWeights {
    /// Its matrices.
    pub fn linears(&self) -> [&Linear; 2] {
        [&self.gate, &self.output]
    }
}

/// The inputs that layers have of their own, `w` elements each (Gemma 3n and 4): for a token with the embedding `e`, `[d]`,
/// `(norm(projection e / sqrt(d)) + sqrt(w) row) / sqrt(2)`, normed layer by layer.
#[derive(Debug, Clone)]
pub struct PerLayerTable {
    /// A row per token, `[n_vocab, n_layer * w]`. It is read row by row and stays in the file.
    pub rows: Matrix,
    /// `[n_layer * w, d]`
    pub projection: Linear,
    /// `[w]`
    pub norm: Norm,
}

/// Weights by which a layer predicts and corrects the streams of a model that has several (AltUp, Baykal et al. 2023), `n` of them,
/// and those of its low-rank path beside attention (LAuReL, Menghani et al. 2024).
#[derive(Debug, Clone)]
pub struct AltupWeights {
    /// Norm before the router, `[d]`.
    pub router_norm: Norm,
    /// `[n, d]`: `tanh` of its product is what coefficients are made of.
    pub router: Linear,
    /// Coefficients of the prediction, `[n * n, n]`: row `to * n + from`.
    pub predict: Linear,
    /// Coefficients of the correction, less 1, `[n, n]`.
    pub correct: Linear,
    /// Factors on the corrected active stream where the layer's own input meets it, `[d]`.
    pub scale: Vec<f32>,
    /// `[rank, d]` and `[d, rank]`.
    pub laurel: [Linear; 2],
    /// `[d]`
    pub laurel_norm: Norm,
}

impl AltupWeights {
    /// Its large matrices; coefficients are vectors on a device.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        [&self.router].into_iter().chain(&self.laurel)
    }
}

/// Maps between the embedding, or the head's input, and the streams of a model that has several.
#[derive(Debug, Clone)]
pub struct AltupTable {
    /// `[d, d]`, from the embedding to every stream but the first.
    pub projections: Vec<Linear>,
    /// `[d, d]`, from every stream but the first to what the head reads the mean of.
    pub unembed: Vec<Linear>,
}

/// Weights of one layer.
#[derive(Debug, Clone)]
pub struct LayerWeights {
    /// Norms the layer's program names.
    pub norms: Vec<(NormSlot, Norm)>,
    /// Attention, if the layer has one.
    pub attention: Option<AttentionWeights>,
    /// Recurrent mixer, if the layer has one.
    pub recurrent: Option<RecurrentWeights>,
    /// FFN.
    pub ffn: Ffn,
    /// Dense FFN beside the experts, with norms of its own, if the layer has one (Gemma 4).
    pub beside_experts: Option<FfnWeights>,
    /// Use of the layer's own input, if it has one.
    pub per_layer: Option<PerLayerWeights>,
    /// Use of several streams, if the model has them.
    pub altup: Option<Box<AltupWeights>>,
    /// Standard deviations above the mean of a token's gates that a gate has to exceed for its neuron to fire; the excess is activated
    /// (Gemma 3n). `None`: every gate is activated as it is.
    pub gate_deviations: Option<f32>,
    /// Factor of [`Step::Scale`](super::Step::Scale) on the residual stream.
    pub output_scale: Option<f32>,
    /// Predictor, where the file or its sidecar has one.
    pub predictor: Option<Predictor>,
    /// Magnitude of the gate's activation at or below which [`Sparsity::Threshold`](super::Sparsity::Threshold) skips a
    /// neuron, from the sidecar.
    pub activation_threshold: Option<f32>,
    /// Thresholds of the inputs of its products, by level, from the sidecar.
    pub input_curves: Option<InputCurves>,
    /// Inputs that are skipped, at the level that was chosen ([`Model::skip_inputs`](super::Model::skip_inputs)).
    pub skipped_inputs: Option<Box<SkippedInputs>>,
    /// Fraction of tokens at which each neuron fires, `[n_ff]`; in an MoE layer, at which each expert is chosen, `[experts]`. From
    /// the sidecar or a profile.
    pub frequency: Option<Vec<f32>>,
    /// The same from counts of earlier runs ([`KeptCounts`](crate::sparsity::KeptCounts)), for plans of a layer without a profile.
    pub counted_frequency: Option<Vec<f32>>,
    /// In an MoE layer: fraction of tokens at which each neuron fires, expert by expert, the shared expert's last.
    pub neuron_frequency: Option<Vec<f32>>,
}

impl LayerWeights {
    /// The weights of a layer as its file has them, without the figures of a sidecar.
    pub fn new(
        norms: Vec<(NormSlot, Norm)>,
        attention: impl Into<Option<AttentionWeights>>,
        ffn: Ffn,
        predictor: Option<Predictor>,
    ) -> Self {
        let attention = attention.into();
        let (activation_threshold, frequency, neuron_frequency) = (None, None, None);
        LayerWeights {
            norms,
            attention,
            recurrent: None,
            ffn,
            beside_experts: None,
            per_layer: None,
            altup: None,
            gate_deviations: None,
            output_scale: None,
            predictor,
            activation_threshold,
            input_curves: None,
            skipped_inputs: None,
            frequency,
            counted_frequency: None,
            neuron_frequency,
        }
    }

    /// Firing frequencies that plans go by: of a profile, else of earlier runs.
    pub fn planned_frequency(&self) -> Option<&[f32]> {
        self.frequency.as_deref().or(self.counted_frequency.as_deref())
    }

    /// The matrices that are where the layer's attention is, whatever becomes of its FFN: of attention, of the recurrent mixer, of the
    /// layer's own input, between streams, and of the dense FFN beside experts.
    pub fn mixers(&self) -> impl Iterator<Item = &Linear> {
        let recurrent = self.recurrent.iter().flat_map(RecurrentWeights::linears);
        let others = self.per_layer.iter().flat_map(PerLayerWeights::linears);
        let others = others.chain(self.altup.iter().flat_map(|altup| altup.linears()));
        let others = others.chain(self.beside_experts.iter().flat_map(FfnWeights::linears));
        self.attention.iter().flat_map(AttentionWeights::linears).chain(recurrent).chain(others)
    }

    /// True if what a neuron of the dense FFN yields depends on the others: by a norm of them all, or a threshold from their gates.
    pub fn couples_neurons(&self) -> bool {
        self.gate_deviations.is_some() || self.norm(NormSlot::Hidden).is_some()
    }

    /// The norm in `slot`. Loading checks that every norm the program names is there.
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
    /// The inputs that layers have of their own.
    pub per_layer: Option<PerLayerTable>,
    /// Streams beside the first, in models that have several.
    pub altup: Option<AltupTable>,
    /// Weights per layer.
    pub layers: Vec<LayerWeights>,
    /// Norm before the head.
    pub output_norm: Norm,
    /// `[n_vocab, d]`; the embedding's own matrix when tied.
    pub output: Linear,
    /// True if the head is the embedding.
    pub tied: bool,
    /// Level of input sparsity that was chosen: the fraction of the layers' weights that is skipped.
    pub input_level: Option<f32>,
    /// Costs of levels, from the sidecar.
    pub input_figures: Vec<InputFigures>,
}
