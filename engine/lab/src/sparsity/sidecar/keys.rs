//! Names of a sidecar's keys and tensors. Per-layer keys are arrays with an element for every
//! layer. The element of a layer without a value is 0, or -1 for an activation threshold. Keys
//! named `cut` hold activation thresholds.

use thermocline_model::InputSite;

/// `general.architecture` of every sidecar.
pub(super) const ARCHITECTURE: &str = "thermocline";
/// Version of the keys and tensors, u32.
pub(super) const FORMAT_VERSION: &str = "thermocline.format_version";
/// Version of sidecars without scales of gates.
pub(super) const VERSION: usize = 1;
/// Version of sidecars with scales of gates. Their thresholds mean something else without scales.
pub(super) const VERSION_WITH_SCALES: usize = 2;
/// Version of sidecars with bundles, which take the place of down projections.
pub(super) const VERSION_WITH_BUNDLES: usize = 3;

/// The model's architecture, text.
pub(super) const MODEL_ARCHITECTURE: &str = "thermocline.model.architecture";
/// Number of the model's layers, u64 like the following keys.
pub(super) const MODEL_LAYERS: &str = "thermocline.model.block_count";
/// Width of the model's residual stream.
pub(super) const MODEL_WIDTH: &str = "thermocline.model.embedding_length";
/// Neurons per dense layer of the model; 0 without dense layers.
pub(super) const MODEL_NEURONS: &str = "thermocline.model.feed_forward_length";
/// Experts per layer of the model; 0 without experts.
pub(super) const MODEL_EXPERTS: &str = "thermocline.model.expert_count";
/// Number of tensors in the model file.
pub(super) const MODEL_TENSORS: &str = "thermocline.model.tensor_count";
/// FNV-1a of the tensors' names, types and shapes.
pub(super) const MODEL_LAYOUT: &str = "thermocline.model.layout_hash";
/// FNV-1a of samples of the tensors' bytes.
pub(super) const MODEL_DATA: &str = "thermocline.model.data_hash";

/// Activation of the model when it was prepared, text.
pub(super) const ACTIVATION: &str = "thermocline.activation";
/// Description of the corpus, text.
pub(super) const CORPUS: &str = "thermocline.corpus";
/// Number of counted tokens, u64.
pub(super) const TOKENS_PROFILED: &str = "thermocline.tokens_profiled";
/// Number of counted tokens that were held out for measuring, u64.
pub(super) const TOKENS_HELD_OUT: &str = "thermocline.tokens_held_out";
/// Target recall, f32.
pub(super) const TARGET_RECALL: &str = "thermocline.predictor.target_recall";
/// Target mass recall, f32.
pub(super) const TARGET_MASS_RECALL: &str = "thermocline.predictor.target_mass_recall";

/// Per layer, text: `none`; `low_rank` (fc1 and fc2); `rows` (gate_low); `model` (the model file's
/// own predictor).
pub(super) const KIND: &str = "thermocline.predictor.kind";
/// Per layer, text: `residual` or `normed`.
pub(super) const INPUT: &str = "thermocline.predictor.input";
/// Per layer, f32 like the following keys: score threshold. Neurons with at least this score are
/// selected.
pub(super) const THRESHOLD: &str = "thermocline.predictor.threshold";
/// Recall on held-out text: fraction of the firing neurons that are selected.
pub(super) const RECALL: &str = "thermocline.predictor.recall";
/// Mass recall: fraction of the activation mass in selected neurons.
pub(super) const MASS_RECALL: &str = "thermocline.predictor.mass_recall";
/// Precision: fraction of the selected neurons that fire.
pub(super) const PRECISION: &str = "thermocline.predictor.precision";
/// Density: fraction of all neurons that are selected.
pub(super) const DENSITY: &str = "thermocline.predictor.density";

/// Per layer, f32: activation threshold. The threshold mode skips a neuron if the magnitude of its
/// gate's activation, times the gate's scale, is at or below it. -1 without a threshold.
pub(super) const ACTIVATION_THRESHOLD: &str = "thermocline.cut.value";
/// Per layer, f32: fraction of the neurons above the activation threshold.
pub(super) const ACTIVATION_THRESHOLD_DENSITY: &str = "thermocline.cut.density";
/// Per layer, f32: root mean square of the difference between the stored and the model's down
/// projection, divided by the root mean square of the model's.
pub(super) const DOWN_ERROR: &str = "thermocline.down.error";

/// Per layer, text: the types of the rows in a bundle, separated by spaces: up, down and, if it is
/// in the bundle, gate. Empty for a layer without bundles. Absent if no layer has bundles.
pub(super) const BUNDLE_TYPES: &str = "thermocline.bundle.types";

/// Levels of input sparsity, f32, ascending: fractions of a layer's weights that the thresholds
/// skip. Absent without thresholds.
pub(super) const INPUT_LEVELS: &str = "thermocline.inputs.levels";
/// Figures of the levels of input sparsity on held-out text, a JSON array of
/// [`InputFigures`](thermocline_model::InputFigures).
pub(super) const INPUT_FIGURES: &str = "thermocline.inputs.figures";

/// Importances of a site's inputs, `[inputs]`.
pub(super) fn input_importance(layer: usize, site: InputSite) -> String {
    format!("blk.{layer}.inputs_{}.importance", site.name())
}

/// Thresholds of a site's inputs, `[levels]`.
pub(super) fn input_thresholds(layer: usize, site: InputSite) -> String {
    format!("blk.{layer}.inputs_{}.thresholds", site.name())
}

/// Firing frequencies of the experts' neurons, `[experts, n_ff]`.
pub(super) fn expert_frequency(layer: usize) -> String {
    format!("blk.{layer}.expert_neuron_freq")
}

/// Firing frequencies of the shared expert's neurons, `[n_ff]`.
pub(super) fn shared_frequency(layer: usize) -> String {
    format!("blk.{layer}.shared_neuron_freq")
}

/// Neuron-major down projection of an expert, `[n_ff, d]`.
pub(super) fn expert_down(layer: usize, expert: usize) -> String {
    format!("blk.{layer}.ffn_down_t.{expert}.weight")
}

/// Neuron-major down projection of the shared expert, `[n_ff, d]`.
pub(super) fn shared_down(layer: usize) -> String {
    format!("blk.{layer}.ffn_down_shexp_t.weight")
}

/// Firing frequencies of a dense layer's neurons, `[n_ff]`, or choice frequencies of experts,
/// `[experts]`.
pub(super) fn frequency(layer: usize) -> String {
    format!("blk.{layer}.neuron_freq")
}

/// Scales of a dense layer's gates, `[n_ff]`. A layer without them has scales of 1.
pub(super) fn gate_scales(layer: usize) -> String {
    format!("blk.{layer}.gate_scales")
}

/// Neuron-major down projection, `[n_ff, d]`.
pub(super) fn down(layer: usize) -> String {
    format!("blk.{layer}.ffn_down_t.weight")
}

/// Bundles, `[n_ff, bytes of a record]`.
pub(super) fn bundles(layer: usize) -> String {
    format!("blk.{layer}.ffn_bundles")
}

/// First layer of a low-rank predictor, `[rank, d]`.
pub(super) fn fc1(layer: usize) -> String {
    format!("blk.{layer}.fc1.weight")
}

/// Second layer of a low-rank predictor, `[n_ff, rank]`.
pub(super) fn fc2(layer: usize) -> String {
    format!("blk.{layer}.fc2.weight")
}

/// Firing rows in few bits, `[n_ff, d]`.
pub(super) fn gate_low(layer: usize) -> String {
    format!("blk.{layer}.gate_low.weight")
}
