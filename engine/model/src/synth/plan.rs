//! Tensors of a model, in file order, and the scale of their values.
//!
//! The first [`RESERVED`] channels of the residual stream are reserved for the constant. Channel 0
//! has the value [`CONSTANT`] in every embedding, the others are zero, and no matrix writes to any
//! of them. They fill a quantised sub-block of their own. The constant, and each neuron's weight on
//! it, thus survives quantisation and does not affect neighbours. RMS norm scales the constant like
//! everything else, which does not change the sign of a pre-activation. Layer norm gets the
//! constant from its bias instead. Only the FFN's norm lets the constant through.
//!
//! All other channels start with variance 1. Attention and FFN add little to it
//! ([`ATTENTION_GROWTH`], [`FFN_GROWTH`]). The variance at every layer and the bias of each neuron
//! are therefore known in advance.

use super::{
    content::{Content, TensorContents},
    draft::ShapeDraft,
    draft_head,
    expert_choice::ExpertChoice,
    firing::{power_law, quantile, relu_fourth_moment, relu_mean, relu_second_moment},
    options::SynthOptions,
    shape::{ExpertCounts, SynthShape},
};
use crate::{Activation, Ffn, ModelConfig, NormKind, NormSlot, Position, RecordedModel, RecordedTensor, TensorRole};
use thermocline_base::error::{Error, Result};
use thermocline_formats::{
    format::{Metadata, gguf::TensorInfo},
    quant::TensorType,
};

/// Channels reserved for the constant: one sub-block of the K types, one block of the others.
pub(super) const RESERVED: usize = 32;
/// Value of channel 0. It is larger than the rest of the stream, so that biases are small. It is
/// small enough to keep the precision of activations that share its scale when they are quantised.
pub(super) const CONSTANT: f32 = 4.0;
/// Fraction of the stream's initial variance that attention adds over all layers, at the first
/// position. Later positions average over more values and get less.
pub(super) const ATTENTION_GROWTH: f64 = 0.05;
/// Fraction of the stream's initial variance that the FFNs add over all layers.
pub(super) const FFN_GROWTH: f64 = 0.2;
/// Fraction of the embedding's variance that is in the token embedding, if there is also a position
/// embedding.
const TOKEN_VARIANCE: f64 = 0.9;
/// Fraction of tokens at which the up row of a dReLU neuron is positive. The gate row determines
/// the rest.
pub(super) const DRELU_UP: f64 = 0.9;
/// `mean(silu(z)^2)` over a standard normal `z`.
pub(super) const SILU_SECOND_MOMENT: f64 = 0.356;
/// `mean((z sigmoid(1.702 z))^2)` over a standard normal `z`.
const SWIGLU_SECOND_MOMENT: f64 = 0.422;
/// Mean of the sum of a token's squared router weights, for two of eight experts chosen by scores
/// with a standard deviation of 1.
const SQUARED_ROUTER_WEIGHTS: f64 = 0.56;
/// Standard deviation of the logits.
const LOGITS: f64 = 2.0;
/// Epsilon of every norm.
pub(super) const NORM_EPS: f32 = 1e-5;

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
    /// Gain of the norm.
    pub(super) gain: f64,
    /// Value of the constant channel after the norm.
    pub(super) constant: f64,
    /// Standard deviation of the down projection's weights.
    pub(super) down: f32,
}

/// Plan of a synthetic model, for [`super::generate`].
#[derive(Debug)]
pub(super) struct SynthPlan {
    pub(super) shape: SynthShape,
    /// Keys that describe the shape.
    pub(super) metadata: Metadata,
    pub(super) config: ModelConfig,
    /// True if the FFN has a gate.
    pub(super) gated: bool,
    pub(super) ty: TensorType,
    pub(super) seed: u64,
    /// Bias of the firing row per rank (most active neuron first), in standard deviations. Empty
    /// for dense shapes.
    pub(super) firing_bias: Vec<f64>,
    /// Bias of all up rows, in standard deviations; 0 except for dReLU.
    pub(super) up_bias: f64,
    pub(super) recall: f64,
    /// Fraction of neurons that fire.
    pub(super) active: f64,
    /// Frequencies and biases of experts, in MoE shapes.
    pub(super) choice: Option<ExpertChoice>,
    /// Rank of the predictors; `None` without predictors.
    pub(super) predictor_rank: Option<usize>,
    /// Number of directions that firing rows are sums of.
    pub(super) features: usize,
    /// Fraction of tokens at which the draft head agrees; `None` without a head.
    pub(super) agreement: Option<f64>,
    pub(super) tensors: Vec<SynthTensor>,
}

impl SynthPlan {
    pub fn new(options: &SynthOptions) -> Result<Self> {
        options.check()?;
        let mut shape = options.shape;
        shape.n_layer = options.layers.unwrap_or(shape.n_layer);
        shape.tied &= options.agreement.is_none();
        check(&shape)?;
        let rank = options.predictor_rank.unwrap_or((shape.d_model / 4).next_multiple_of(32).max(128));
        let predictor_rank = (shape.relu() && shape.moe.is_none() && options.predictor).then_some(rank);
        let mut draft = ShapeDraft::new(&shape, options)?;
        if let Some(rank) = predictor_rank {
            draft.have(&["ffn_down_t.weight"]);
            draft.rows("fc1.weight", rank);
        }
        let model = draft.record()?;
        let head = options.agreement.map(|_| draft_head::record(&shape, options)).transpose()?;
        if head.is_some() {
            draft.size("block_count", shape.n_layer + 1);
            draft.size("nextn_predict_layers", 1);
        }
        if shape.moe.is_some() != model.config.experts.is_some() {
            return Err(Error::invalid(
                "shape",
                "experts if and only if the model family has experts",
                format!("{shape:?}"),
            ));
        }
        let up_bias = if shape.activation == Activation::DRelu { quantile(DRELU_UP) } else { 0.0 };
        let firing_bias = match shape.relu() {
            false => Vec::new(),
            true => {
                let gate = if up_bias > 0.0 { DRELU_UP } else { 1.0 };
                power_law(shape.n_ff, options.active / gate, options.hot_fraction, options.hot_firings)?
                    .into_iter()
                    .map(quantile)
                    .collect()
            }
        };
        let mut plan = SynthPlan {
            shape,
            metadata: draft.metadata,
            config: model.config.clone(),
            gated: gated(&model),
            ty: options.ty,
            seed: options.seed,
            firing_bias,
            up_bias,
            recall: options.recall,
            active: options.active,
            choice: shape.moe.map(ExpertChoice::new),
            predictor_rank,
            // Each direction takes two hidden units (relu(z) - relu(-z) = z). A block of 32 units
            // is left for the constant.
            features: (rank - RESERVED) / 2,
            agreement: options.agreement,
            tensors: Vec::new(),
        };
        plan.tensors = plan.list(&model, head.as_ref());
        Ok(plan)
    }

    /// Returns the tensors of the model and of its draft head in file order, with their contents.
    fn list(&self, model: &RecordedModel, head: Option<&RecordedModel>) -> Vec<SynthTensor> {
        let contents = TensorContents { plan: self, model };
        let mut listed: Vec<(RecordedTensor, Content)> =
            model.tensors.iter().map(|tensor| (tensor.clone(), contents.of(tensor))).collect();
        if let Some(head) = head {
            let (contents, layer) = (TensorContents { plan: self, model: head }, self.shape.n_layer);
            let named = |tensor: &RecordedTensor| {
                let name = draft_head::name(tensor, layer)?;
                Some((RecordedTensor { name, ..tensor.clone() }, contents.of(tensor)))
            };
            listed.extend(head.tensors.iter().filter_map(named));
            listed.extend(draft_head::inputs(&self.shape, layer).map(|tensor| {
                let content = contents.of_draft_input(&tensor);
                (tensor, content)
            }));
        }
        listed.sort_by_key(|(tensor, _)| place(tensor));
        listed.into_iter().map(|(tensor, content)| self.tensor(&tensor, content)).collect()
    }

    /// Returns a tensor of the file with its type.
    fn tensor(&self, of: &RecordedTensor, content: Content) -> SynthTensor {
        let cols = of.shape.last().copied().unwrap_or(1);
        let ty = match (&content, of.role) {
            (Content::Vector(_) | Content::Router, _) => TensorType::F32,
            (Content::Features | Content::Scores, _) => self.predictor_type(),
            (_, TensorRole::Stack) => self.fitting(self.ty, cols),
            _ => self.matrix_type(cols),
        };
        let info = TensorInfo { name: of.name.clone(), ty, shape: of.shape.clone() };
        SynthTensor { info, layer: of.layer_and_name().0.unwrap_or(0), content }
    }

    /// Returns the type of a matrix with rows of `cols`.
    pub fn matrix_type(&self, cols: usize) -> TensorType {
        // Published models use MXFP4 for experts only.
        let own = if self.ty == TensorType::MXFP4 { TensorType::Q8_0 } else { self.ty };
        self.fitting(own, cols)
    }

    fn fitting(&self, own: TensorType, cols: usize) -> TensorType {
        let fits = |ty: &TensorType| ty.row_bytes(cols).is_some();
        [own, TensorType::Q8_0].into_iter().find(fits).unwrap_or(TensorType::F16)
    }

    /// Returns the type of the predictors. It stores `-x` as the exact opposite of `x`, and is a
    /// type that PowerInfer supports, if possible.
    pub fn predictor_type(&self) -> TensorType {
        match self.ty {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => TensorType::F16,
            TensorType::Q4_0 => TensorType::Q4_0,
            _ => TensorType::Q8_0,
        }
    }

    /// Returns the standard deviations of token embeddings and of position embeddings.
    pub fn embedding_std(&self) -> (f32, f32) {
        match self.config.position {
            Position::Learned { .. } => (TOKEN_VARIANCE.sqrt() as f32, (1.0 - TOKEN_VARIANCE).sqrt() as f32),
            // The model multiplies embeddings by its scale.
            _ => (1.0 / self.config.embedding_scale, 0.0),
        }
    }

    /// Returns the value of channel 0 in the embedding.
    pub fn embedded_constant(&self) -> f32 {
        CONSTANT * (1.0 / self.config.embedding_scale)
    }

    /// Returns the standard deviation of the output matrix's weights, which determines that of the
    /// logits.
    pub fn logits_std(&self) -> f32 {
        self.keeping_std() * LOGITS as f32
    }

    /// Returns the standard deviation of weights whose output has the variance of their input.
    pub fn keeping_std(&self) -> f32 {
        1.0 / (self.shape.d_model as f32).sqrt()
    }

    /// True if neurons of neighbouring ranks have opposite down weights. Without this, the mean of
    /// activations that are never negative would push the residual stream the same way at every
    /// token.
    pub fn paired(&self) -> bool {
        self.shape.relu() && (!self.gated || self.up_bias > 0.0)
    }

    /// Returns the magnitudes at the FFN of `layer`.
    pub fn scale(&self, layer: usize) -> FfnMagnitudes {
        let d = self.shape.d_model as f64;
        let ffn_growth = FFN_GROWTH / self.shape.n_layer as f64;
        let variance = 1.0 + layer as f64 * ffn_growth;
        let constant = f64::from(CONSTANT);
        let square = (constant * constant + (d - RESERVED as f64) * variance) / d + f64::from(NORM_EPS);
        let (gain, constant) = match self.layer_norm() {
            true => (1.0 / (square - (constant / d).powi(2)).sqrt(), constant),
            false => (1.0 / square.sqrt(), constant / square.sqrt()),
        };
        // Variance of a firing or up row's product with the normed stream.
        let input = gain * gain * variance * (d - RESERVED as f64) / d;
        let sum: f64 = match self.shape.relu() {
            true => self.firing_bias.iter().map(|&bias| self.moment(bias, input)).sum(),
            false if self.shape.activation == Activation::ClampedSwiglu => {
                self.shape.n_ff as f64 * SWIGLU_SECOND_MOMENT * input * input
            }
            false => self.shape.n_ff as f64 * SILU_SECOND_MOMENT * input * input,
        };
        let squares = if self.shape.moe.is_some() { SQUARED_ROUTER_WEIGHTS } else { 1.0 };
        let squares = squares * f64::from(self.config.experts.map_or(1.0, |experts| experts.router.scale)).powi(2);
        FfnMagnitudes { sigma: variance.sqrt(), gain, constant, down: (ffn_growth / (squares * sum)).sqrt() as f32 }
    }

    /// Returns a neuron's contribution to the variance of the down projection's output. This is the
    /// second moment of its activation, minus the part of the mean that pairs of neurons cancel.
    /// `bias` is the bias of its firing row, `input` the variance of its rows' products.
    fn moment(&self, bias: f64, input: f64) -> f64 {
        if self.shape.activation == Activation::ReluSquared {
            return input * input * (relu_fourth_moment(bias) - relu_second_moment(bias).powi(2));
        }
        let cancelled = if self.paired() { relu_mean(bias).powi(2) } else { 0.0 };
        match (self.gated, self.up_bias > 0.0) {
            (false, _) => input * (relu_second_moment(bias) - cancelled),
            (true, false) => input * input * relu_second_moment(bias),
            (true, true) => {
                let up = self.up_bias;
                let second = relu_second_moment(bias) * relu_second_moment(up);
                input * input * (second - cancelled * relu_mean(up).powi(2))
            }
        }
    }

    /// True for layer norms, false for RMS norms.
    pub fn layer_norm(&self) -> bool {
        self.config.norm == NormKind::Layer
    }
}

/// Checks sizes that no loader checks.
fn check(shape: &SynthShape) -> Result<()> {
    if shape.d_model < 4 * RESERVED || shape.n_ff < RESERVED || shape.n_vocab < 512 {
        let expected = "at least 128 channels, 32 neurons and 512 tokens";
        return Err(Error::invalid("shape", expected, format!("{shape:?}")));
    }
    let chooses = |counts: &ExpertCounts| (1..counts.experts).contains(&counts.used) && counts.experts <= 256;
    if !shape.moe.as_ref().is_none_or(chooses) {
        return Err(Error::invalid("shape", "at most 256 experts, some of which a token uses", format!("{shape:?}")));
    }
    Ok(())
}

/// True if the FFNs have a gate (in an MoE model, the experts).
fn gated(model: &RecordedModel) -> bool {
    let has_gate = |ffn: &Ffn| match ffn {
        Ffn::Experts(moe) => moe.experts.iter().any(|expert| expert.gate.is_some()),
        Ffn::Dense(ffn) => model.config.experts.is_none() && ffn.gate.is_some(),
        Ffn::None => false,
    };
    model.weights.layers.iter().any(|layer| has_gate(&layer.ffn))
}

/// Returns the place of a tensor in the file: before, in, or after the layers. A layer has its
/// mixer, FFN and predictor, each after its norm, in the order in which they are read.
fn place(tensor: &RecordedTensor) -> (usize, usize, usize) {
    let (layer, name) = tensor.layer_and_name();
    let Some(layer) = layer else { return (if name.starts_with("output") { 2 } else { 0 }, 0, 0) };
    let part = match tensor.role {
        TensorRole::Norm(Some(NormSlot::Attention)) => 0,
        TensorRole::Norm(Some(NormSlot::Ffn)) => 2,
        TensorRole::Norm(Some(_)) => 5,
        _ if name.starts_with("ffn_") || name.starts_with("exp_") => 3,
        _ if name.starts_with("fc") => 4,
        _ => 1,
    };
    (1, layer, part)
}
