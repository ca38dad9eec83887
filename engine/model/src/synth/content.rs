//! Values of a model's tensors by their roles: random values with a scale, or given values.

use super::{
    firing::{quantile, relu_fourth_moment},
    plan::{ATTENTION_GROWTH, CONSTANT, FFN_GROWTH, RESERVED, SILU_SECOND_MOMENT, SynthPlan},
    random::StreamPurpose,
};
use crate::{
    Activation, Ffn, NormKind, NormSlot, RecordedModel, RecordedTensor, RecurrentConfig, Register, Step, TensorRole,
};

/// Decay rates of recurrent states. A delta net decays by `e^(rate softplus(alpha))` per token,
/// which halves its state in a few tokens. Mamba-2 decays per unit of a token's step and forgets a
/// tenth per token.
const DELTA_NET_DECAY: f32 = -0.1;
const MAMBA2_DECAY: f32 = -1.0;
/// Bias of Mamba-2's steps: `softplus(-2)` is 0.13.
const MAMBA2_STEP_BIAS: f32 = -2.0;
/// Divisor that stops the rotation of a pair.
const NO_ROTATION: f32 = 1e30;

/// Generator of a tensor's values.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// Given values.
    Vector(Vec<f32>),
    /// Normal random numbers of a stream; the first `quiet` rows are zero.
    Normal { stream: u64, std: f32, quiet: usize },
    /// Token embedding.
    Embedding,
    /// Position embedding.
    Positions,
    /// Output matrix that makes one token follow another.
    Successors,
    /// Projection of a draft head.
    DraftProjection,
    /// Router of an MoE layer.
    Router,
    /// Rows that decide whether a neuron fires: gate, or up without a gate.
    Firing,
    /// Rows that decide whether a neuron of the shared expert fires.
    SharedFiring,
    /// Gate of neurons that are never silent.
    Gate,
    /// Up rows of a gated FFN.
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
    pub fn belongs_to_ffn(&self) -> bool {
        !matches!(
            self,
            Content::Vector(_)
                | Content::Normal { .. }
                | Content::Embedding
                | Content::Positions
                | Content::Successors
                | Content::DraftProjection
        )
    }
}

/// Choice of contents for a recorded model's tensors.
pub(super) struct TensorContents<'a> {
    pub(super) plan: &'a SynthPlan,
    pub(super) model: &'a RecordedModel,
}

impl TensorContents<'_> {
    /// Returns the content of a tensor, chosen by its role and its name.
    pub fn of(&self, tensor: &RecordedTensor) -> Content {
        let (layer, name) = tensor.layer_and_name();
        let all = |value: f32| Content::Vector(vec![value; tensor.shape.iter().product()]);
        match tensor.role {
            TensorRole::Norm(slot) => self.norm(tensor, slot),
            // The activation adds 1 to ups, which would push the residual stream the same way at
            // every token.
            TensorRole::Bias if name == "ffn_up_exps.bias" && self.clamped() => all(-1.0),
            TensorRole::Bias => all(0.0),
            TensorRole::Vector if name == "rope_freqs.weight" => {
                // Layers without a window rotate the first quarter of the pairs.
                let pairs = tensor.shape.iter().product();
                let factor = |pair: usize| if pair < pairs / 4 { 1.0 } else { NO_ROTATION };
                Content::Vector((0..pairs).map(factor).collect())
            }
            TensorRole::Vector => all(self.parameter(layer, name)),
            // With these weights, the convolution averages the last inputs.
            TensorRole::Matrix if name == "ssm_conv1d.weight" => all(1.0 / (cols(tensor) as f32).sqrt()),
            TensorRole::Matrix | TensorRole::Stack => {
                let stem = name.strip_suffix(".weight").unwrap_or(name);
                self.neurons(stem).unwrap_or_else(|| self.normal(tensor, layer, stem))
            }
        }
    }

    /// Returns the content of a tensor that only draft heads have: norms that let the constant
    /// through, and the projection.
    pub fn of_draft_input(&self, tensor: &RecordedTensor) -> Content {
        match tensor.role {
            TensorRole::Norm(_) => Content::Vector(vec![1.0; tensor.shape.iter().product()]),
            _ => Content::DraftProjection,
        }
    }

    fn clamped(&self) -> bool {
        self.model.config.activation == Activation::ClampedSwiglu
    }

    /// Returns the value of all elements of a parameter that is neither weight nor bias.
    fn parameter(&self, layer: Option<usize>, name: &str) -> f32 {
        let recurrent = layer.and_then(|layer| self.model.config.layers[layer].recurrent.as_ref());
        let mamba2 = matches!(recurrent, Some(RecurrentConfig::Mamba2 { .. }));
        match name {
            "ssm_a" if mamba2 => MAMBA2_DECAY,
            "ssm_a" => DELTA_NET_DECAY,
            "ssm_dt.bias" if mamba2 => MAMBA2_STEP_BIAS,
            "attn_sinks.weight" | "ffn_gate_inp_shexp.weight" => 0.0,
            bias if bias.ends_with(".bias") => 0.0,
            _ => 1.0,
        }
    }

    /// Returns the values of a norm. Norms of the residual stream block the constant. Only the norm
    /// that feeds the biased FFN lets it through, in channel 0.
    fn norm(&self, tensor: &RecordedTensor, slot: Option<NormSlot>) -> Content {
        let (layer, name) = tensor.layer_and_name();
        let (config, is_bias) = (&self.model.config, name.ends_with(".bias"));
        let is_output = name.starts_with("output_norm.");
        if !is_output && matches!(slot, None | Some(NormSlot::Heads | NormSlot::Hidden)) {
            let attention = layer.and_then(|layer| config.layers[layer].attention.as_ref());
            // Scores without a scale would be as large as the head is wide.
            let unscaled =
                name.starts_with("attn_") && attention.is_some_and(|attention| attention.scores.scale == 1.0);
            let len = tensor.shape.iter().product();
            let weight = if unscaled { (len as f32).powf(-0.25) } else { 1.0 };
            return Content::Vector(vec![if is_bias { 0.0 } else { weight }; len]);
        }
        let n_layer = config.n_layer() as f64;
        let weight = match slot {
            None if self.model.weights.tied => self.plan.logits_std() / (1.0 / config.embedding_scale),
            None | Some(NormSlot::Attention | NormSlot::Ffn | NormSlot::Experts) => 1.0,
            Some(_) => (ATTENTION_GROWTH / n_layer).sqrt() as f32,
        };
        let feeds = slot.is_some() && layer.is_some_and(|layer| self.constant_norm(layer) == slot);
        let constant = if feeds { CONSTANT } else { 0.0 };
        let mut values = vec![if is_bias { 0.0 } else { weight }; config.d_model];
        values[..RESERVED].fill(0.0);
        if is_bias {
            values[0] = constant;
        } else if feeds && config.norm == NormKind::Rms {
            values[0] = 1.0;
        }
        Content::Vector(values)
    }

    /// Returns the norm of a layer that feeds the FFN whose neurons or experts get biases from the
    /// constant.
    fn constant_norm(&self, layer: usize) -> Option<NormSlot> {
        let (shape, moe) = (&self.plan.shape, self.model.config.experts.is_some());
        let main = matches!(self.model.weights.layers[layer].ffn, Ffn::Experts(_)) == moe;
        let mut norms: Vec<(Register, NormSlot)> = Vec::new();
        for step in self.model.config.layers[layer].steps.iter() {
            match step {
                Step::Norm { norm, into, .. } => norms.push((*into, *norm)),
                Step::Ffn { from } if main && (moe || shape.relu()) => {
                    return norms.iter().rev().find(|(into, _)| into == from).map(|(_, norm)| *norm);
                }
                _ => {}
            }
        }
        None
    }

    /// Returns the content of embeddings and of the matrices of neurons, experts and predictors;
    /// `None` for other matrices.
    fn neurons(&self, stem: &str) -> Option<Content> {
        let (relu, moe, gated) = (self.plan.shape.relu(), self.model.config.experts.is_some(), self.plan.gated);
        let firing = if relu { Content::Firing } else { Content::Gate };
        Some(match stem {
            "token_embd" => Content::Embedding,
            "position_embd" => Content::Positions,
            "output" if self.plan.agreement.is_some() => Content::Successors,
            "ffn_gate_inp" => Content::Router,
            "fc1" => Content::Features,
            "fc2" => Content::Scores,
            "ffn_up_exps" if gated => Content::Up,
            "ffn_gate_exps" | "ffn_up_exps" => firing,
            "ffn_down_exps" => Content::DownOutputs,
            "ffn_up_shexp" if relu && !gated => Content::SharedFiring,
            // In MoE models, the neurons of dense layers are never silent.
            _ if moe => return None,
            "ffn_up" if gated => Content::Up,
            "ffn_gate" | "ffn_up" => firing,
            "ffn_down" => Content::DownOutputs,
            "ffn_down_t" => Content::DownNeurons,
            _ => return None,
        })
    }

    /// Returns random weights. Their outputs have the variance of their inputs. Only matrices that
    /// write to the residual stream have smaller weights, because each block adds little to the
    /// stream.
    fn normal(&self, tensor: &RecordedTensor, layer: Option<usize>, stem: &str) -> Content {
        let config = &self.model.config;
        let (cols, n_layer) = (cols(tensor), config.n_layer() as f64);
        let recurrent = layer.is_some_and(|layer| config.layers[layer].recurrent.is_some());
        let stream = StreamPurpose::of_weights(stem, recurrent);
        let (attention, ffn) = (ATTENTION_GROWTH / n_layer, FFN_GROWTH / n_layer);
        let moment = match self.neurons("ffn_up_shexp") {
            Some(_) => relu_fourth_moment(quantile(self.plan.active)),
            None => SILU_SECOND_MOMENT,
        };
        let writes = |std: f64| (std.sqrt() as f32, RESERVED);
        let (std, quiet) = match stem {
            "output" => (self.plan.logits_std(), 0),
            "attn_output" => writes(attention / cols as f64),
            "ssm_out" => writes(attention / (cols as f64 * SILU_SECOND_MOMENT)),
            "ffn_down_shexp" => writes(ffn / (cols as f64 * moment)),
            "ffn_down" => writes(ffn / (cols as f64 * SILU_SECOND_MOMENT)),
            "per_layer_token_embd" => (1.0 / (config.per_layer_input.unwrap_or(1) as f32).sqrt(), 0),
            "per_layer_model_proj" => (1.0, 0),
            // A norm follows this matrix, so its scale does not matter.
            "proj" => (1.0, RESERVED),
            _ if stream.is_none() && layer.is_some() && tensor.shape[..] == [config.d_model, cols] => {
                writes(attention / cols as f64)
            }
            _ => (1.0 / (cols as f32).sqrt(), 0),
        };
        let stream = stream.map_or_else(|| StreamPurpose::of_name(stem), u64::from);
        Content::Normal { stream, std, quiet }
    }
}

fn cols(tensor: &RecordedTensor) -> usize {
    tensor.shape.last().copied().unwrap_or(1)
}
