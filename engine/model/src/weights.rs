//! Weights of a model and of its layers by role. Matrices keep their file type and share the file's bytes; vectors are f32.

use smallvec::SmallVec;

use super::{
    AltupTable, AltupWeights, AttentionWeights, Ffn, FfnWeights, InputCurves, InputFigures, LayerNorms, LayerPart,
    Linear, Norm, NormSlot, PerLayerTable, PerLayerWeights, Predictor, RecurrentWeights, SkippedInputs,
};
use thermocline_formats::format::Matrix;

/// Weights of one layer.
#[derive(Debug, Clone, Default)]
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
    /// The same from counts of earlier runs (`KeptCounts`), for plans of a layer without a profile.
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
        LayerWeights { norms, attention: attention.into(), ffn, predictor, ..LayerWeights::default() }
    }

    /// Firing frequencies that plans go by: of a profile, else of earlier runs.
    pub fn planned_frequency(&self) -> Option<&[f32]> {
        self.frequency.as_deref().or(self.counted_frequency.as_deref())
    }

    /// The parts that are where the layer's attention is, whatever becomes of its FFN.
    pub fn parts(&self) -> impl Iterator<Item = LayerPart<'_>> {
        let attention = self.attention.iter().map(LayerPart::Attention);
        let recurrent = self.recurrent.iter().map(LayerPart::Recurrent);
        let per_layer = self.per_layer.iter().map(LayerPart::PerLayer);
        let altup = self.altup.iter().map(|altup| LayerPart::Altup(altup));
        let dense = self.beside_experts.iter().map(LayerPart::DenseFfn);
        attention.chain(recurrent).chain(per_layer).chain(altup).chain(dense)
    }

    /// The matrices that the layer reads first, of its mixer of tokens; none of a layer without one.
    pub fn first_read(&self) -> SmallVec<[&Matrix; 3]> {
        self.parts().flat_map(LayerPart::first_read).map(|linear| &linear.weight).collect()
    }

    /// The matrices of those parts.
    pub fn mixers(&self) -> impl Iterator<Item = &Linear> {
        self.parts().flat_map(LayerPart::linears)
    }

    /// True if what a neuron of the dense FFN yields depends on the others: by a norm of them all, or a threshold from their gates.
    pub fn couples_neurons(&self) -> bool {
        self.gate_deviations.is_some() || self.norm(NormSlot::Hidden).is_some()
    }

    /// The norm in `slot`. Loading checks that every norm the program names is there.
    pub fn norm(&self, slot: NormSlot) -> Option<&Norm> {
        self.layer_norms().get(slot)
    }

    /// All norms.
    pub fn layer_norms(&self) -> LayerNorms<'_> {
        LayerNorms::new(&self.norms)
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
