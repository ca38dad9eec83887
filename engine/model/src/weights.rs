//! Weights of a model and of its layers by role. Matrices keep their file type and share the file's
//! bytes. Vectors are F32.

use smallvec::SmallVec;

use super::{
    AltupTable, AltupWeights, AssistantWeights, AttentionWeights, EmbeddingHead, Ffn, FfnWeights, InputCurves,
    InputFigures, LayerNorms, LayerPart, Linear, Norm, NormSlot, PerLayerTable, PerLayerWeights, Predictor,
    RecurrentWeights, SkippedInputs, StateInput,
};
use thermocline_formats::format::Matrix;

/// Weights of one layer.
#[derive(Debug, Clone, Default)]
pub struct LayerWeights {
    /// Norms that the layer's program names.
    pub norms: Vec<(NormSlot, Norm)>,
    /// Attention, if the layer has one.
    pub attention: Option<AttentionWeights>,
    /// Recurrent mixer, if the layer has one.
    pub recurrent: Option<RecurrentWeights>,
    /// FFN.
    pub ffn: Ffn,
    /// Dense FFN beside the experts, with its own norms, if the layer has one (Gemma 4).
    pub beside_experts: Option<FfnWeights>,
    /// Weights for the layer's own input, if it has one.
    pub per_layer: Option<PerLayerWeights>,
    /// Weights for several streams (AltUp), if the model has them.
    pub altup: Option<Box<AltupWeights>>,
    /// Standard deviations above the mean of a token's gates that a gate has to exceed for its
    /// neuron to fire. Only the excess is activated (Gemma 3n). `None`: all gates are activated
    /// unchanged.
    pub gate_deviations: Option<f32>,
    /// Factor that [`Step::Scale`](super::Step::Scale) applies to the residual stream.
    pub output_scale: Option<f32>,
    /// Activation predictor, if the file or its sidecar has one.
    pub predictor: Option<Predictor>,
    /// Magnitude of the gate's activation up to which
    /// [`Sparsity::Threshold`](super::Sparsity::Threshold) skips a neuron, from the sidecar.
    pub activation_threshold: Option<f32>,
    /// Thresholds for the inputs of the layer's products, by level, from the sidecar.
    pub input_curves: Option<InputCurves>,
    /// Inputs that are skipped at the chosen level
    /// ([`Model::skip_inputs`](super::Model::skip_inputs)).
    pub skipped_inputs: Option<Box<SkippedInputs>>,
    /// Firing frequency of each neuron: the fraction of tokens at which it fires, `[n_ff]`. In an
    /// MoE layer, the fraction of tokens that choose each expert, `[experts]`. From the sidecar or
    /// a profile.
    pub frequency: Option<Vec<f32>>,
    /// Firing frequency counted in earlier runs (`KeptCounts`), for plans of a layer without a
    /// profile.
    pub counted_frequency: Option<Vec<f32>>,
    /// In an MoE layer, the fraction of tokens at which each neuron fires: expert by expert, the
    /// shared expert last.
    pub neuron_frequency: Option<Vec<f32>>,
}

impl LayerWeights {
    /// Creates the weights of a layer from its file, without the figures of a sidecar.
    pub fn new(
        norms: Vec<(NormSlot, Norm)>,
        attention: impl Into<Option<AttentionWeights>>,
        ffn: Ffn,
        predictor: Option<Predictor>,
    ) -> Self {
        LayerWeights { norms, attention: attention.into(), ffn, predictor, ..LayerWeights::default() }
    }

    /// Returns the firing frequencies that plans use: those of a profile, or else those of earlier
    /// runs.
    pub fn planned_frequency(&self) -> Option<&[f32]> {
        self.frequency.as_deref().or(self.counted_frequency.as_deref())
    }

    /// Iterates over the parts that are always placed with the layer's attention. The FFN is placed
    /// separately.
    pub fn parts(&self) -> impl Iterator<Item = LayerPart<'_>> {
        let attention = self.attention.iter().map(LayerPart::Attention);
        let recurrent = self.recurrent.iter().map(LayerPart::Recurrent);
        let per_layer = self.per_layer.iter().map(LayerPart::PerLayer);
        let altup = self.altup.iter().map(|altup| LayerPart::Altup(altup));
        let dense = self.beside_experts.iter().map(LayerPart::DenseFfn);
        attention.chain(recurrent).chain(per_layer).chain(altup).chain(dense)
    }

    /// Returns the matrices that the layer reads first, those of its token mixer. Empty for a layer
    /// without a mixer.
    pub fn first_read(&self) -> SmallVec<[&Matrix; 3]> {
        self.parts().flat_map(LayerPart::first_read).map(|linear| &linear.weight).collect()
    }

    /// Iterates over the matrices of [`LayerWeights::parts`].
    pub fn mixers(&self) -> impl Iterator<Item = &Linear> {
        self.parts().flat_map(LayerPart::linears)
    }

    /// True if the output of a neuron of the dense FFN depends on the other neurons. The reason is
    /// a norm over all neurons, or a threshold from their gates.
    pub fn couples_neurons(&self) -> bool {
        self.gate_deviations.is_some() || self.norm(NormSlot::Hidden).is_some()
    }

    /// Returns the norm in `slot`. Loading checks that every norm in the program exists.
    pub fn norm(&self, slot: NormSlot) -> Option<&Norm> {
        self.layer_norms().get(slot)
    }

    /// Returns all norms of the layer.
    pub fn layer_norms(&self) -> LayerNorms<'_> {
        LayerNorms::new(&self.norms)
    }
}

/// All weights of a model.
#[derive(Debug, Clone)]
pub struct Weights {
    /// `[n_vocab, d]`
    pub token_embedding: Matrix,
    /// `[positions + offset, d]`; only for learned positions.
    pub position_embedding: Option<Matrix>,
    /// `[types, d]`, added to the embeddings (BERT). The first row is for the first or the only
    /// text, the second row for the second text of a pair.
    pub token_types: Option<Matrix>,
    /// Weights after the pooling, in models that embed or rank texts.
    pub embedding_head: EmbeddingHead,
    /// Table of the layers' own inputs, if the model has them.
    pub per_layer: Option<PerLayerTable>,
    /// Weights that add hidden states to the embeddings, in a draft head.
    pub state_input: Option<StateInput>,
    /// The weights of an assistant that belong to no layer. `None` in other models.
    pub assistant: Option<Box<AssistantWeights>>,
    /// Maps for the streams after the first, in models with several streams (AltUp).
    pub altup: Option<AltupTable>,
    /// Weights per layer.
    pub layers: Vec<LayerWeights>,
    /// Norm before the head.
    pub output_norm: Norm,
    /// Head, `[n_vocab, d]`; the embedding's matrix if tied.
    pub output: Linear,
    /// True if the head is the embedding.
    pub tied: bool,
    /// Chosen level of input sparsity: the fraction of the layers' weights that is skipped.
    pub input_level: Option<f32>,
    /// Measured costs of levels, from the sidecar.
    pub input_figures: Vec<InputFigures>,
}
