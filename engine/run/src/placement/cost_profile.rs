//! Bytes and reads of every part of a model, and how often each neuron fires. Plans are priced with
//! them.

use super::{
    Assumption, DeviceBytes, LayerBytes, LayerCosts, PlanInputs, ReadBytes, SkippedRows, layer_costs::matrix_reads,
};
use crate::runtime::{KeptRows, KvType};
use thermocline_base::{
    error::{Error, Result},
    telemetry::neurons::LayerNeurons,
};
use thermocline_formats::quant::TensorType;
use thermocline_model::{AttentionConfig, Ffn, LayerConfig, LayerWeights, Model, PredictorKind, SkipRule, Skips};

/// Assumed fraction of neurons that fire, if no profile has measured it.
const ASSUMED_FREQUENCY: f32 = 0.3;

/// Assumed number of predicted neurons per firing neuron, if a predictor's precision was not
/// measured.
const ASSUMED_EXCESS: f32 = 1.3;

/// Bytes and reads of the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadCosts {
    /// Device bytes of the head's matrix.
    pub matrix: u64,
    /// Device bytes of the final norm and its bias.
    pub vectors: u64,
    /// Device bytes of logits and shortlists.
    pub scratch: u64,
    /// Product of the head's matrix.
    pub reads: ReadBytes,
}

impl HeadCosts {
    /// All device bytes of the head.
    pub fn bytes(&self) -> u64 {
        self.matrix + self.vectors + self.scratch
    }
}

/// Bytes and reads of a whole model under given [`PlanInputs`].
#[derive(Debug, Clone, PartialEq)]
pub struct CostProfile {
    /// One entry per layer.
    pub layers: Vec<LayerCosts>,
    /// The head.
    pub head: HeadCosts,
    /// Device bytes of registers and temporaries, needed as soon as one layer is resident.
    pub scratch: u64,
    /// Device bytes of the rings for uploads and results, needed as soon as one layer is resident.
    pub staging: u64,
    /// Assumptions about values that were not measured.
    pub assumptions: Vec<Assumption>,
}

impl CostProfile {
    /// Computes the costs of `model`, whose parts take `bytes` on the device, under `inputs`. The
    /// machine's speeds are not used.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `bytes` belong to another model, or if a profile does not have one
    /// frequency per unit.
    pub fn new(model: &Model, bytes: &DeviceBytes, inputs: &PlanInputs) -> Result<Self> {
        let weights = &model.weights;
        if bytes.layers.len() != weights.layers.len() {
            return Err(Error::invalid(
                "sizes on the device",
                format!("{} layers", weights.layers.len()),
                bytes.layers.len(),
            ));
        }
        let layers = (0..weights.layers.len()).map(|at| layer_costs(model, at, bytes, inputs));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        let is_profiled =
            |(costs, layer): (&LayerCosts, &LayerWeights)| costs.units() == 0 || layer.planned_frequency().is_some();
        let profiled = layers.iter().zip(&weights.layers).all(is_profiled);
        let head = HeadCosts {
            matrix: bytes.head,
            vectors: bytes.head_vectors,
            scratch: bytes.head_scratch,
            reads: matrix_reads(&weights.output.weight),
        };
        let assumptions = if profiled { Vec::new() } else { vec![Assumption::NoProfile] };
        Ok(CostProfile { layers, head, scratch: bytes.scratch, staging: bytes.staging, assumptions })
    }

    /// The types of the weights that a token reads, without duplicates.
    pub fn weight_types(&self) -> Vec<TensorType> {
        let layers = self.layers.iter().flat_map(|layer| {
            let each_token = layer.weights_of_each_token().chain(&layer.cache_reads);
            each_token.chain([&layer.firing_read]).chain(&layer.other_reads).chain(&layer.whole_reads)
        });
        let mut types: Vec<TensorType> =
            layers.chain([&self.head.reads]).filter(|reads| reads.cpu > 0).map(|reads| reads.ty).collect();
        types.sort_unstable();
        types.dedup();
        types
    }

    /// Fewest device bytes of a plan with a resident part: `of_layer` of the last layer, and
    /// buffers.
    pub(super) fn least_bytes(&self, of_layer: impl Fn(&LayerCosts) -> u64) -> u64 {
        self.scratch + self.staging + self.layers.last().map_or(0, of_layer)
    }
}

/// The costs of layer `at`.
fn layer_costs(model: &Model, at: usize, of_model: &DeviceBytes, inputs: &PlanInputs) -> Result<LayerCosts> {
    let (config, layer, bytes) = (&model.config, &model.weights.layers[at], &of_model.layers[at]);
    let source = config.kv_source(at).unwrap_or(at);
    let room = KeptRows::room_for(config, source, inputs.context, of_model.chunk) as u64;
    let conversation = bytes.kv_token.saturating_mul(room).saturating_add(bytes.state);
    let kv = conversation.saturating_mul(inputs.sessions as u64);
    let rule = SkipRule::of(layer, config.activation);
    let skips = rule.skips_of_token(inputs.sparsity);
    let attention = layer.mixers().map(|linear| matrix_reads(&linear.weight)).collect();
    let mut costs = LayerCosts::without_ffn(bytes, kv, attention);
    costs.cache_reads = cache_reads(&config.layers[at], bytes, inputs);
    let units = match &layer.ffn {
        Ffn::None => 0,
        Ffn::Dense(ffn) => {
            let neurons = ffn.up.weight.rows();
            costs.skips = skips.into();
            costs.add_dense_ffn(ffn);
            if rule.silences_gates {
                costs.read_whole_on_device(neurons);
            }
            if !bytes.by_unit {
                costs.block = neurons.max(1);
            }
            neurons
        }
        Ffn::Experts(experts) => {
            let fires = if skips == Skips::Nothing { 1.0 } else { firing_in_routed_experts(layer) };
            costs.add_experts(experts, fires);
            experts.experts.len()
        }
    };
    let predictor = layer.predictor.as_ref().filter(|_| skips == Skips::NotPredicted);
    if let Some(predictor) = predictor {
        costs.predictor = bytes.predictor;
        // The CPU skips the columns of silent hidden values in `fc2`, but their number was not
        // measured, so all are counted.
        costs.predictor_reads = match &predictor.kind {
            PredictorKind::LowRank { fc1, fc2 } => vec![matrix_reads(fc1), matrix_reads(fc2)],
            PredictorKind::Rows { rows, .. } => vec![matrix_reads(rows)],
        };
    }
    let frequency = match (layer.planned_frequency(), &config.experts) {
        (Some(frequency), _) if frequency.len() != units => {
            let got = format!("{} frequencies in layer {at}", frequency.len());
            return Err(Error::invalid("firing frequencies", format!("{units} frequencies, one per neuron"), got));
        }
        (Some(frequency), _) => frequency.to_vec(),
        (None, Some(experts)) if costs.skips == SkippedRows::NotRouted => {
            vec![experts.used as f32 / experts.count.max(1) as f32; units]
        }
        (None, _) => vec![ASSUMED_FREQUENCY; units],
    };
    let quality = predictor.and_then(|predictor| predictor.quality);
    let excess = quality.map_or(ASSUMED_EXCESS, |of| of.recall / of.precision.max(1e-3));
    costs.sort_units(&frequency, excess);
    Ok(costs)
}

/// Reads of a layer's keys, values and recurrent state, with a half-filled cache.
fn cache_reads(shape: &LayerConfig, bytes: &LayerBytes, inputs: &PlanInputs) -> Vec<ReadBytes> {
    let filled = (inputs.context / 2).clamp(1, inputs.context.max(1)) as u64;
    let kv_row = |of: &AttentionConfig| of.cached_bytes(|len| inputs.kv_type.row_bytes(len));
    let ty = match inputs.kv_type {
        KvType::F16 => TensorType::F16,
        KvType::F32 => TensorType::F32,
        KvType::Q8_0 => TensorType::Q8_0,
    };
    let mut reads = Vec::new();
    if let Some(of) = &shape.attention {
        let seen = filled.min(of.seen().length as u64);
        // A layer without bytes of its own reads keys and values that are counted with another
        // layer.
        let device = if bytes.kv_token == 0 { kv_row(of) } else { bytes.kv_token };
        reads.push(ReadBytes { ty, cpu: kv_row(of) * seen, device: device * seen });
    }
    if let Some(state) = shape.state() {
        // The state is read and written.
        let both = 2 * state.bytes();
        reads.push(ReadBytes { ty: TensorType::F32, cpu: both, device: both });
    }
    reads
}

/// Mean fraction of the neurons of routed experts that fire.
fn firing_in_routed_experts(layer: &LayerWeights) -> f64 {
    let (Some(routed), Some(neurons), Ffn::Experts(weights)) = (&layer.frequency, &layer.neuron_frequency, &layer.ffn)
    else {
        return f64::from(ASSUMED_FREQUENCY);
    };
    let LayerNeurons::Experts { experts, width, .. } = weights.neurons() else { return 1.0 };
    let sum = |values: &[f32]| values.iter().map(|value| f64::from(*value)).sum::<f64>();
    let computed = sum(routed) * width as f64;
    let fires = sum(&neurons[..neurons.len().min(experts * width)]);
    if computed > 0.0 { (fires / computed).min(1.0) } else { f64::from(ASSUMED_FREQUENCY) }
}

#[cfg(test)]
mod tests;
