//! Tensors of a model, in file order, and the scale of their values.
//!
//! The first [`RESERVED`] channels of the residual stream belong to the constant: channel 0 has the value [`CONSTANT`] in every
//! embedding, the others are zero, and no matrix writes to any of them. They fill a quantised sub-block of their own, so the
//! constant (and each neuron's weight on it) survives quantisation and costs its neighbours nothing. RMS norm scales the
//! constant like everything else, which leaves the sign of a pre-activation alone; layer norm gets the constant from its
//! bias instead. Only the FFN's norm lets it through.
//!
//! All other channels start with variance 1. Attention and FFN add little to it ([`ATTENTION_GROWTH`], [`FFN_GROWTH`]), so the
//! variance at every layer is known beforehand, and with it the bias a neuron needs.

use super::{
    expert_choice::ExpertChoice,
    firing::{power_law, quantile, relu_fourth_moment, relu_mean, relu_second_moment},
    options::SynthOptions,
    random::StreamPurpose,
    shape::{DeltaNetSizes, ExpertCounts, SynthFamily, SynthShape},
};
use crate::{
    error::{Error, Result},
    format::gguf::TensorInfo,
    quant::TensorType,
};

/// Channels set aside for the constant: one sub-block of the K types, one block of the others.
pub(super) const RESERVED: usize = 32;
/// Value of channel 0. Larger than the rest of the stream, so that biases are small; small enough not to spoil the precision of
/// activations that share its scale when they are quantised.
pub(super) const CONSTANT: f32 = 4.0;
/// Fraction of the stream's initial variance that attention adds over all layers, at the first position. (Later positions average
/// over more values and get less.)
pub(super) const ATTENTION_GROWTH: f64 = 0.05;
/// The same for the FFNs.
pub(super) const FFN_GROWTH: f64 = 0.2;
/// Fraction of the embedding's variance in the token embedding, where there is a position embedding too.
const TOKEN_VARIANCE: f64 = 0.9;
/// Fraction of tokens at which the up row of a dReLU neuron is positive; the gate row does the rest.
pub(super) const DRELU_UP: f64 = 0.9;
/// `mean(silu(z)^2)` over a standard normal `z`.
pub(super) const SILU_SECOND_MOMENT: f64 = 0.356;
/// `mean((z sigmoid(1.702 z))^2)` over a standard normal `z`.
const SWIGLU_SECOND_MOMENT: f64 = 0.422;
/// Mean of the sum of a token's squared router weights, for two of eight experts chosen by scores of standard deviation 1.
const SQUARED_ROUTER_WEIGHTS: f64 = 0.56;
/// Rate at which a delta net forgets: the state decays by `e^(DECAY softplus(alpha))` per token.
const DECAY: f32 = -0.1;
/// Standard deviation of the logits.
const LOGITS: f64 = 2.0;
/// Epsilon of every norm.
pub(super) const NORM_EPS: f32 = 1e-5;

/// Generator of a tensor's values.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// Given values.
    Vector(Vec<f32>),
    /// Normal numbers; the first `quiet` rows are zero.
    Normal { purpose: StreamPurpose, std: f32, quiet: usize },
    /// Token embedding.
    Embedding,
    /// Position embedding.
    Positions,
    /// Router of an MoE layer.
    Router,
    /// The rows that decide whether a neuron fires: gate, or up where there is no gate.
    Firing,
    /// The rows that decide whether a neuron of the shared expert fires.
    SharedFiring,
    /// The gate of neurons that are never silent.
    Gate,
    /// The other factor of a gated FFN.
    Up,
    /// Output-major down projection.
    DownOutputs,
    /// Neuron-major down projection.
    DownNeurons,
    /// First layer of the predictor.
    Features,
    /// Second layer of the predictor.
    Scores,
}

impl Content {
    /// True if the values depend on the layer's neurons.
    pub(super) fn belongs_to_ffn(&self) -> bool {
        !matches!(self, Content::Vector(_) | Content::Normal { .. } | Content::Embedding | Content::Positions)
    }
}

/// A tensor of the file.
#[derive(Debug, Clone)]
pub(super) struct SynthTensor {
    pub(super) info: TensorInfo,
    pub(super) layer: usize,
    pub(super) content: Content,
}

/// Magnitudes at the FFN of one layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct FfnMagnitudes {
    /// Standard deviation of a channel of the residual stream.
    pub(super) sigma: f64,
    /// Factor of the norm.
    pub(super) gain: f64,
    /// Value of the constant channel behind the norm.
    pub(super) constant: f64,
    /// Standard deviation of the down projection's weights.
    pub(super) down: f32,
}

/// Plan of a synthetic model, for [`super::generate`].
#[derive(Debug)]
pub(super) struct SynthPlan {
    pub(super) shape: SynthShape,
    pub(super) ty: TensorType,
    pub(super) seed: u64,
    /// Bias of the firing row per rank (most active neuron first), in standard deviations; empty for dense shapes.
    pub(super) firing_bias: Vec<f64>,
    /// Bias of all up rows, in standard deviations; 0 except for dReLU.
    pub(super) up_bias: f64,
    pub(super) recall: f64,
    /// Fraction of neurons that fire.
    pub(super) active: f64,
    /// Frequencies and biases of experts, in MoE shapes.
    pub(super) choice: Option<ExpertChoice>,
    /// Rank of the predictors; `None` without.
    pub(super) predictor_rank: Option<usize>,
    /// Directions that firing rows are sums of.
    pub(super) features: usize,
    pub(super) tensors: Vec<SynthTensor>,
}

impl SynthPlan {
    pub(super) fn new(options: &SynthOptions) -> Result<Self> {
        options.check()?;
        let mut shape = options.shape;
        shape.n_layer = options.layers.unwrap_or(shape.n_layer);
        if let Some(mamba2) = shape.mamba2.filter(|mamba2| mamba2.mixers.len() < shape.n_layer) {
            let expected = format!("at most {}, the layers of {}", mamba2.mixers.len(), shape.name);
            return Err(Error::invalid("layers", expected, shape.n_layer));
        }
        let divides = shape.n_head > 0
            && match shape.wide_head {
                _ if shape.latent.is_some() => true,
                Some(head) => head > 0 && head.is_multiple_of(2),
                None => shape.d_model.is_multiple_of(shape.n_head * 2),
            };
        let grouped = shape.n_kv_head > 0 && shape.n_head.is_multiple_of(shape.n_kv_head.max(1));
        if !divides || !grouped || shape.d_model < 4 * RESERVED || shape.n_ff < RESERVED || shape.n_vocab < 512 {
            let expected = "whole heads, at least 128 channels, 32 neurons and 512 tokens";
            return Err(Error::invalid("shape", expected, format!("{shape:?}")));
        }
        let chooses = |counts: &ExpertCounts| (1..counts.experts).contains(&counts.used) && counts.experts <= 256;
        if !shape.moe.as_ref().is_none_or(chooses)
            || shape.moe.is_some() && matches!(shape.family, SynthFamily::Opt | SynthFamily::Falcon)
        {
            let expected = "experts of a family that has such, 256 at most, of which a token uses some";
            return Err(Error::invalid("shape", expected, format!("{shape:?}")));
        }
        let up_bias = if shape.family == SynthFamily::Bamboo && shape.relu { quantile(DRELU_UP) } else { 0.0 };
        let firing_bias = match shape.relu {
            false => Vec::new(),
            true => {
                let gate = if up_bias > 0.0 { DRELU_UP } else { 1.0 };
                power_law(shape.n_ff, options.active / gate, options.hot_fraction, options.hot_firings)?
                    .into_iter()
                    .map(quantile)
                    .collect()
            }
        };
        let rank = options.predictor_rank.unwrap_or((shape.d_model / 4).next_multiple_of(32).max(128));
        let mut plan = SynthPlan {
            shape,
            ty: options.ty,
            seed: options.seed,
            firing_bias,
            up_bias,
            recall: options.recall,
            active: options.active,
            choice: shape.moe.map(ExpertChoice::new),
            predictor_rank: (shape.relu && shape.moe.is_none() && options.predictor).then_some(rank),
            // Each direction takes two hidden units (relu(z) - relu(-z) = z); a block of 32 is left for the constant.
            features: (rank - RESERVED) / 2,
            tensors: Vec::new(),
        };
        plan.list();
        Ok(plan)
    }

    /// Type of a matrix with rows of `cols`.
    pub(super) fn matrix_type(&self, cols: usize) -> TensorType {
        // As published: MXFP4 is for experts.
        let own = if self.ty == TensorType::MXFP4 { TensorType::Q8_0 } else { self.ty };
        self.fitting(own, cols)
    }

    fn fitting(&self, own: TensorType, cols: usize) -> TensorType {
        let fits = |ty: &TensorType| ty.row_bytes(cols).is_some();
        [own, TensorType::Q8_0].into_iter().find(fits).unwrap_or(TensorType::F16)
    }

    /// Type of the predictors: one that keeps `-x` exactly opposite to `x`, and that PowerInfer computes with where it can.
    pub(super) fn predictor_type(&self) -> TensorType {
        match self.ty {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => TensorType::F16,
            TensorType::Q4_0 => TensorType::Q4_0,
            _ => TensorType::Q8_0,
        }
    }

    /// Standard deviation of embeddings: of tokens, of positions.
    pub(super) fn embedding_std(&self) -> (f32, f32) {
        match self.shape.family {
            SynthFamily::Opt => (TOKEN_VARIANCE.sqrt() as f32, (1.0 - TOKEN_VARIANCE).sqrt() as f32),
            // The model multiplies by the root of the width.
            SynthFamily::Gemma4 => (self.keeping_std(), 0.0),
            _ => (1.0, 0.0),
        }
    }

    /// Value of channel 0 in the embedding.
    pub(super) fn embedded_constant(&self) -> f32 {
        CONSTANT * if self.shape.family == SynthFamily::Gemma4 { self.keeping_std() } else { 1.0 }
    }

    /// Standard deviation of weights whose output is to have the variance of their input.
    pub(super) fn keeping_std(&self) -> f32 {
        1.0 / (self.shape.d_model as f32).sqrt()
    }

    /// True if neurons of neighbouring ranks have opposite down weights. Otherwise the mean of activations that are never negative
    /// would push the residual stream the same way at every token.
    pub(super) fn paired(&self) -> bool {
        self.shape.relu && (!self.shape.family.gated() || self.up_bias > 0.0)
    }

    /// Magnitudes at the FFN of `layer`.
    pub(super) fn scale(&self, layer: usize) -> FfnMagnitudes {
        let d = self.shape.d_model as f64;
        let ffn_growth = FFN_GROWTH / self.shape.n_layer as f64;
        let variance = 1.0 + layer as f64 * ffn_growth;
        let constant = f64::from(CONSTANT);
        let square = (constant * constant + (d - RESERVED as f64) * variance) / d + f64::from(NORM_EPS);
        let (gain, constant) = match self.shape.family.layer_norm() {
            true => (1.0 / (square - (constant / d).powi(2)).sqrt(), constant),
            false => (1.0 / square.sqrt(), constant / square.sqrt()),
        };
        // Variance of a firing or up row's product with the normed stream.
        let input = gain * gain * variance * (d - RESERVED as f64) / d;
        let sum: f64 = match self.shape.relu {
            true => self.firing_bias.iter().map(|&bias| self.moment(bias, input)).sum(),
            false if self.shape.family == SynthFamily::GptOss => {
                self.shape.n_ff as f64 * SWIGLU_SECOND_MOMENT * input * input
            }
            false => self.shape.n_ff as f64 * SILU_SECOND_MOMENT * input * input,
        };
        let squares = if self.shape.moe.is_some() { SQUARED_ROUTER_WEIGHTS } else { 1.0 };
        let squares = squares * f64::from(self.shape.router_scale()).powi(2);
        FfnMagnitudes { sigma: variance.sqrt(), gain, constant, down: (ffn_growth / (squares * sum)).sqrt() as f32 }
    }

    /// Contribution of a neuron to the variance of the down projection's output: the second moment of its activation, less the mean's
    /// part where pairs of neurons cancel it. `bias` is that of its firing row, `input` the variance of its rows' products.
    fn moment(&self, bias: f64, input: f64) -> f64 {
        if self.shape.family == SynthFamily::NemotronH {
            return input * input * (relu_fourth_moment(bias) - relu_second_moment(bias).powi(2));
        }
        let cancelled = if self.paired() { relu_mean(bias).powi(2) } else { 0.0 };
        match (self.shape.family.gated(), self.up_bias > 0.0) {
            (false, _) => input * (relu_second_moment(bias) - cancelled),
            (true, false) => input * input * relu_second_moment(bias),
            (true, true) => {
                let up = self.up_bias;
                let second = relu_second_moment(bias) * relu_second_moment(up);
                input * input * (second - cancelled * relu_mean(up).powi(2))
            }
        }
    }

    pub(super) fn add(
        &mut self,
        name: impl Into<String>,
        layer: usize,
        ty: TensorType,
        shape: &[usize],
        content: Content,
    ) {
        let info = TensorInfo { name: name.into(), ty, shape: shape.to_vec() };
        self.tensors.push(SynthTensor { info, layer, content });
    }

    pub(super) fn matrix(&mut self, name: impl Into<String>, layer: usize, rows: usize, cols: usize, content: Content) {
        self.add(name, layer, self.matrix_type(cols), &[rows, cols], content);
    }

    /// One matrix per expert, one after the other.
    pub(super) fn stacked(&mut self, name: String, layer: usize, [experts, rows, cols]: [usize; 3], content: Content) {
        self.add(name, layer, self.fitting(self.ty, cols), &[experts, rows, cols], content);
    }

    /// A norm of weight `weight`, zero on the reserved channels; `constant` is what its output has in channel 0.
    pub(super) fn norm(&mut self, stem: &str, layer: usize, weight: f32, constant: f32) {
        let d = self.shape.d_model;
        let layer_norm = self.shape.family.layer_norm();
        let mut weights = vec![weight; d];
        weights[..RESERVED].fill(0.0);
        if constant != 0.0 && !layer_norm {
            weights[0] = 1.0;
        }
        self.add(format!("{stem}.weight"), layer, TensorType::F32, &[d], Content::Vector(weights));
        if layer_norm {
            let mut bias = vec![0.0; d];
            bias[0] = constant;
            self.add(format!("{stem}.bias"), layer, TensorType::F32, &[d], Content::Vector(bias));
        }
    }

    /// A bias of zeros, for the families that have biases.
    fn bias(&mut self, stem: &str, layer: usize, len: usize) {
        if matches!(self.shape.family, SynthFamily::Opt | SynthFamily::GptOss) {
            self.zeros(&format!("{stem}.bias"), layer, &[len]);
        }
    }

    pub(super) fn zeros(&mut self, name: &str, layer: usize, shape: &[usize]) {
        self.constant(name, layer, shape, 0.0);
    }

    /// A tensor whose elements are all `value`.
    pub(super) fn constant(&mut self, name: &str, layer: usize, shape: &[usize], value: f32) {
        let values = Content::Vector(vec![value; shape.iter().product()]);
        self.add(name, layer, TensorType::F32, shape, values);
    }

    fn list(&mut self) {
        let SynthShape { family, d_model: d, n_vocab, n_layer, context, .. } = self.shape;
        self.matrix("token_embd.weight", 0, n_vocab, d, Content::Embedding);
        if family == SynthFamily::Opt {
            // Two rows for padding, as published.
            self.matrix("position_embd.weight", 0, context + 2, d, Content::Positions);
        }
        if family == SynthFamily::Gemma4 {
            self.list_gemma4_inputs();
        }
        for layer in 0..n_layer {
            self.list_layer(layer);
        }
        let logits = self.keeping_std() * LOGITS as f32;
        if family == SynthFamily::Gemma4 {
            self.norm("output_norm", 0, LOGITS as f32, 0.0);
        } else if self.shape.tied {
            self.norm("output_norm", 0, logits, 0.0);
        } else {
            self.norm("output_norm", 0, 1.0, 0.0);
            let content = Content::Normal { purpose: StreamPurpose::Output, std: logits, quiet: 0 };
            self.matrix("output.weight", 0, n_vocab, d, content);
        }
    }

    fn list_layer(&mut self, layer: usize) {
        if let Some(sizes) = self.shape.mamba2 {
            return match sizes.mixers.as_bytes()[layer] {
                b'M' => self.list_mamba2(layer, &sizes),
                b'*' => self.list_attention(layer),
                _ => self.list_ffn(layer),
            };
        }
        match (self.shape.delta_net_of(layer), self.shape.latent) {
            (Some(sizes), _) => self.list_delta_net(layer, sizes),
            (None, Some(sizes)) => self.list_latent_attention(layer, &sizes),
            (None, None) => self.list_attention(layer),
        }
        match self.shape.latent {
            Some(sizes) if layer == 0 => self.list_first_ffn(sizes.first_ff),
            _ => self.list_ffn(layer),
        }
        if self.shape.family == SynthFamily::Gemma4 {
            self.list_gemma4_layer(layer);
        }
    }

    fn list_attention(&mut self, layer: usize) {
        let SynthShape { family, d_model: d, n_layer, .. } = self.shape;
        let head = self.shape.head_dim_of(layer);
        let (q, kv) = (self.shape.n_head * head, self.shape.n_kv_head * head);
        // A gate behind each query.
        let q_rows = if family == SynthFamily::Qwen35 { 2 * q } else { q };
        let at = |stem: &str| format!("blk.{layer}.{stem}");
        let (norm, std) = match family {
            SynthFamily::Falcon => ("attn_norm_2", self.keeping_std()),
            _ => ("attn_norm", self.keeping_std()),
        };
        self.norm(&at(norm), layer, 1.0, 0.0);
        let inputs: &[(&str, StreamPurpose, usize)] = match family {
            SynthFamily::Falcon => &[("attn_qkv", StreamPurpose::AttentionQkv, q + 2 * kv)],
            _ => &[
                ("attn_q", StreamPurpose::AttentionQ, q_rows),
                ("attn_k", StreamPurpose::AttentionK, kv),
                ("attn_v", StreamPurpose::AttentionV, kv),
            ],
        };
        let own = if self.shape.reads_earlier_kv(layer) { 1 } else { inputs.len() };
        for &(stem, purpose, rows) in &inputs[..own] {
            self.matrix(at(stem) + ".weight", layer, rows, d, Content::Normal { purpose, std, quiet: 0 });
            self.bias(&at(stem), layer, rows);
        }
        let std = (ATTENTION_GROWTH / n_layer as f64 / q as f64).sqrt() as f32;
        let content = Content::Normal { purpose: StreamPurpose::AttentionOutput, std, quiet: RESERVED };
        self.matrix(at("attn_output.weight"), layer, d, q, content);
        self.bias(&at("attn_output"), layer, d);
        match family {
            SynthFamily::GptOss => self.zeros(&at("attn_sinks.weight"), layer, &[self.shape.n_head]),
            SynthFamily::Qwen35 => {
                for norm in ["attn_q_norm.weight", "attn_k_norm.weight"] {
                    self.constant(&at(norm), layer, &[self.shape.head_dim()], 1.0);
                }
            }
            _ => {}
        }
    }

    /// A gated delta net: its decay halves the state in some tokens, its convolution averages the last inputs.
    fn list_delta_net(&mut self, layer: usize, sizes: DeltaNetSizes) {
        let SynthShape { d_model: d, n_layer, .. } = self.shape;
        let at = |stem: &str| format!("blk.{layer}.{stem}");
        let std = self.keeping_std();
        self.norm(&at("attn_norm"), layer, 1.0, 0.0);
        for (stem, purpose, rows) in [
            ("attn_qkv", StreamPurpose::AttentionQkv, sizes.qkv()),
            ("attn_gate", StreamPurpose::AttentionQ, sizes.values()),
            ("ssm_alpha", StreamPurpose::AttentionK, sizes.v_heads),
            ("ssm_beta", StreamPurpose::AttentionV, sizes.v_heads),
        ] {
            self.matrix(at(stem) + ".weight", layer, rows, d, Content::Normal { purpose, std, quiet: 0 });
        }
        self.constant(&at("ssm_conv1d.weight"), layer, &[sizes.qkv(), sizes.taps], 1.0 / (sizes.taps as f32).sqrt());
        self.constant(&at("ssm_a"), layer, &[sizes.v_heads], DECAY);
        self.zeros(&at("ssm_dt.bias"), layer, &[sizes.v_heads]);
        self.constant(&at("ssm_norm.weight"), layer, &[sizes.head_dim], 1.0);
        let growth = ATTENTION_GROWTH / n_layer as f64;
        let std = (growth / (sizes.values() as f64 * SILU_SECOND_MOMENT)).sqrt() as f32;
        let content = Content::Normal { purpose: StreamPurpose::AttentionOutput, std, quiet: RESERVED };
        self.matrix(at("ssm_out.weight"), layer, d, sizes.values(), content);
    }

    /// The expert of every token, `shared` neurons, and its gate.
    fn list_shared_expert(&mut self, layer: usize, shared: usize) {
        let SynthShape { d_model: d, n_layer, .. } = self.shape;
        let at = |stem: &str| format!("blk.{layer}.{stem}_shexp.weight");
        let std = self.keeping_std();
        let mut moment = SILU_SECOND_MOMENT;
        if self.shape.family == SynthFamily::NemotronH {
            moment = relu_fourth_moment(quantile(self.active));
            self.matrix(at("ffn_up"), layer, shared, d, Content::SharedFiring);
        } else {
            if self.shape.family == SynthFamily::Qwen35 {
                self.zeros(&at("ffn_gate_inp"), layer, &[d]);
            }
            for (stem, purpose) in [("ffn_gate", StreamPurpose::SharedGate), ("ffn_up", StreamPurpose::SharedUp)] {
                self.matrix(at(stem), layer, shared, d, Content::Normal { purpose, std, quiet: 0 });
            }
        }
        let growth = FFN_GROWTH / n_layer as f64;
        let std = (growth / (shared as f64 * moment)).sqrt() as f32;
        let content = Content::Normal { purpose: StreamPurpose::SharedDown, std, quiet: RESERVED };
        self.matrix(at("ffn_down"), layer, d, shared, content);
    }

    fn list_ffn(&mut self, layer: usize) {
        let SynthShape { family, d_model: d, n_ff, relu, moe, .. } = self.shape;
        let at = |stem: &str| format!("blk.{layer}.{stem}");
        let norm = match family {
            SynthFamily::Falcon => "attn_norm",
            SynthFamily::GptOss | SynthFamily::Qwen35 => "post_attention_norm",
            SynthFamily::NemotronH => "attn_norm",
            _ => "ffn_norm",
        };
        self.norm(&at(norm), layer, 1.0, if relu || moe.is_some() { CONSTANT } else { 0.0 });
        let firing = if relu { Content::Firing } else { Content::Gate };
        if let Some(ExpertCounts { experts, .. }) = moe {
            self.add(at("ffn_gate_inp.weight"), layer, TensorType::F32, &[experts, d], Content::Router);
            if family.gated() {
                self.stacked(at("ffn_gate_exps.weight"), layer, [experts, n_ff, d], firing);
                self.stacked(at("ffn_up_exps.weight"), layer, [experts, n_ff, d], Content::Up);
            } else {
                self.stacked(at("ffn_up_exps.weight"), layer, [experts, n_ff, d], firing);
            }
            if matches!(family, SynthFamily::NemotronH | SynthFamily::DeepSeek) {
                self.zeros(&at("exp_probs_b.bias"), layer, &[experts]);
            }
            self.stacked(at("ffn_down_exps.weight"), layer, [experts, d, n_ff], Content::DownOutputs);
            if family == SynthFamily::GptOss {
                self.bias(&at("ffn_gate_inp"), layer, experts);
                self.zeros(&at("ffn_gate_exps.bias"), layer, &[experts, n_ff]);
                // The activation adds 1, which would push the residual stream the same way at every token.
                self.constant(&at("ffn_up_exps.bias"), layer, &[experts, n_ff], -1.0);
                self.zeros(&at("ffn_down_exps.bias"), layer, &[experts, d]);
            }
            if let Some(shared) = self.shape.shared_ff {
                self.list_shared_expert(layer, shared);
            }
            return;
        }
        if family.gated() {
            self.matrix(at("ffn_gate.weight"), layer, n_ff, d, firing);
            self.matrix(at("ffn_up.weight"), layer, n_ff, d, Content::Up);
        } else {
            self.matrix(at("ffn_up.weight"), layer, n_ff, d, firing);
            self.bias(&at("ffn_up"), layer, n_ff);
        }
        match self.predictor_rank {
            None => {
                self.matrix(at("ffn_down.weight"), layer, d, n_ff, Content::DownOutputs);
                self.bias(&at("ffn_down"), layer, d);
            }
            Some(rank) => {
                self.matrix(at("ffn_down_t.weight"), layer, n_ff, d, Content::DownNeurons);
                self.bias(&at("ffn_down_t"), layer, d);
                let ty = self.predictor_type();
                self.add(at("fc1.weight"), layer, ty, &[rank, d], Content::Features);
                self.add(at("fc2.weight"), layer, ty, &[n_ff, rank], Content::Scores);
            }
        }
    }
}
