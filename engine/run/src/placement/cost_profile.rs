//! Bytes and reads of every part of a model, and how often each neuron fires. Plans are priced with
//! them.

use super::{Assumption, DeviceBytes, LayerBytes, PlanInputs};
use crate::runtime::{KeptRows, KvType};
use thermocline_base::{
    error::{Error, Result},
    telemetry::neurons::LayerNeurons,
};
use thermocline_formats::{format::Matrix, quant::TensorType};
use thermocline_model::{
    AttentionConfig, Down, ExpertWeights, Ffn, FfnWeights, LayerConfig, LayerWeights, Model, PredictorKind, SkipRule,
    Skips,
};

/// Number of neurons that are placed together, because kernels compute rows in groups of this size.
pub const BLOCK: usize = 64;

/// Assumed fraction of neurons that fire, if no profile has measured it.
const ASSUMED_FREQUENCY: f32 = 0.3;

/// Assumed number of predicted neurons per firing neuron, if a predictor's precision was not
/// measured.
const ASSUMED_EXCESS: f32 = 1.3;

/// Bytes that one token's product with some weights reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadBytes {
    /// Type of the weights in the file.
    pub ty: TensorType,
    /// Bytes read by the CPU.
    pub cpu: u64,
    /// Bytes read by the device, in the device's encoding.
    pub device: u64,
}

/// The rows of a layer's FFN that decoding a token skips, as plans price them: the rule of
/// [`SkipRule`], in rows of units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkippedRows {
    /// No rows.
    Nothing,
    /// All rows of silent neurons except the firing row (the gate, or up without a gate).
    Silent,
    /// All rows of neurons that are not predicted, and all rows except the firing row of predicted
    /// neurons that do not fire.
    NotPredicted,
    /// All rows of experts that are not routed to.
    NotRouted,
}

impl From<Skips> for SkippedRows {
    fn from(skips: Skips) -> Self {
        match skips {
            Skips::Nothing => SkippedRows::Nothing,
            Skips::Silent | Skips::Above(_) => SkippedRows::Silent,
            Skips::NotPredicted => SkippedRows::NotPredicted,
        }
    }
}

/// Expected numbers of rows of some units that one token reads.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ExpectedRows {
    /// Number of units: neurons, or experts.
    pub units: f64,
    /// Number of firing rows read.
    pub firing_rows: f64,
    /// Number of units whose other rows are read.
    pub other_rows: f64,
    /// Number of units that fire, or are chosen.
    pub fires: f64,
}

impl ExpectedRows {
    pub fn minus(self, other: ExpectedRows) -> ExpectedRows {
        ExpectedRows {
            units: (self.units - other.units).max(0.0),
            firing_rows: (self.firing_rows - other.firing_rows).max(0.0),
            other_rows: (self.other_rows - other.other_rows).max(0.0),
            fires: (self.fires - other.fires).max(0.0),
        }
    }

    fn plus(self, other: ExpectedRows) -> ExpectedRows {
        ExpectedRows {
            units: self.units + other.units,
            firing_rows: self.firing_rows + other.firing_rows,
            other_rows: self.other_rows + other.other_rows,
            fires: self.fires + other.fires,
        }
    }
}

/// Bytes and reads of one layer. Its units are the neurons of its FFN, or the experts in an MoE
/// layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerCosts {
    /// Device bytes of the attention matrices.
    pub attention: u64,
    /// Device bytes of norms and biases.
    pub vectors: u64,
    /// Device bytes of keys and values of all contexts.
    pub kv: u64,
    /// Device bytes of the predictor; 0 if the mode does not use it.
    pub predictor: u64,
    /// Device bytes of router and shared expert.
    pub routing: u64,
    /// Device bytes of the slot tables of a layer with cold units.
    pub split_tables: u64,
    /// Device bytes of one hot unit.
    pub unit: u64,
    /// Number of units that are placed together.
    pub block: usize,
    /// `[units]` the layer's units, most often firing first.
    pub order: Vec<u32>,
    /// `[units]` firing frequency of each unit of `order`, from 0 to 1.
    pub frequency: Vec<f32>,
    /// `[units]` fraction of tokens for which each unit of `order` is predicted; 1 if no predictor
    /// is used.
    pub predicted: Vec<f32>,
    /// Rows that decoding skips.
    pub skips: SkippedRows,
    /// Products of attention or of a recurrent mixer; read for every token.
    pub attention_reads: Vec<ReadBytes>,
    /// Keys and values, and recurrent states; read for every token.
    pub cache_reads: Vec<ReadBytes>,
    /// Products of the predictor; read for every token.
    pub predictor_reads: Vec<ReadBytes>,
    /// Products of the router, the experts' latent and the shared expert; read for every token.
    pub routing_reads: Vec<ReadBytes>,
    /// The firing row of a neuron; empty for an expert.
    pub firing_read: ReadBytes,
    /// The other rows of a firing neuron; for an expert, all its matrices.
    pub other_reads: Vec<ReadBytes>,
    /// Matrices without a row per neuron. Each side that computes any unit reads them whole.
    pub whole_reads: Vec<ReadBytes>,
    /// True if the rows of a neuron lie side by side in a file, so that one request reads all of
    /// them.
    pub bundled: bool,
    /// `[blocks + 1]` expected rows of the first 0, 1, ... blocks.
    pub(super) prefix_rows: Vec<ExpectedRows>,
}

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
        let (config, weights) = (&model.config, &model.weights);
        if bytes.layers.len() != weights.layers.len() {
            return Err(Error::invalid(
                "sizes on the device",
                format!("{} layers", weights.layers.len()),
                bytes.layers.len(),
            ));
        }
        let (mut profiled, chunk) = (true, bytes.chunk);
        let layers = weights.layers.iter().zip(&bytes.layers).zip(&config.layers).enumerate().map(|(at, it)| {
            let ((layer, bytes), shape) = it;
            let source = config.kv_source(at).unwrap_or(at);
            let room = KeptRows::room_for(config, source, inputs.context, chunk) as u64;
            let conversation = bytes.kv_token.saturating_mul(room).saturating_add(bytes.state);
            let kv = conversation.saturating_mul(inputs.sessions as u64);
            // Decoding computes a single token, without an observer of hidden values.
            let skips = SkipRule::of(layer, config.activation).skips(inputs.sparsity, true, false);
            let attention = layer.mixers().map(|linear| matrix_reads(&linear.weight)).collect();
            let mut costs = LayerCosts::without_ffn(bytes, kv, attention);
            costs.cache_reads = cache_reads(shape, bytes, inputs);
            let units = match &layer.ffn {
                Ffn::None => 0,
                Ffn::Dense(ffn) => {
                    costs.skips = skips.into();
                    costs.add_dense_ffn(ffn);
                    if layer.gate_deviations.is_some() {
                        costs.read_whole_on_device(ffn.up.weight.rows());
                    }
                    let neurons = ffn.up.weight.rows();
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
                // The CPU skips the columns of silent hidden values in `fc2`, but their number was
                // not measured, so all are counted.
                costs.predictor_reads = match &predictor.kind {
                    PredictorKind::LowRank { fc1, fc2 } => vec![matrix_reads(fc1), matrix_reads(fc2)],
                    PredictorKind::Rows { rows, .. } => vec![matrix_reads(rows)],
                };
            }
            let routed = config.experts.map_or(0.0, |experts| experts.used as f32 / experts.count.max(1) as f32);
            profiled &= layer.planned_frequency().is_some() || units == 0;
            let frequency = match layer.planned_frequency() {
                Some(frequency) if frequency.len() != units => {
                    let got = format!("{} frequencies in layer {at}", frequency.len());
                    return Err(Error::invalid(
                        "firing frequencies",
                        format!("{units} frequencies, one per neuron"),
                        got,
                    ));
                }
                Some(frequency) => frequency.to_vec(),
                None if costs.skips == SkippedRows::NotRouted => vec![routed; units],
                None => vec![ASSUMED_FREQUENCY; units],
            };
            let quality = predictor.and_then(|predictor| predictor.quality);
            let excess = quality.map_or(ASSUMED_EXCESS, |of| of.recall / of.precision.max(1e-3));
            costs.sort_units(&frequency, excess);
            Ok(costs)
        });
        let layers = layers.collect::<Result<Vec<_>>>()?;
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

impl LayerCosts {
    /// The costs of a layer without its FFN and its cache.
    pub(super) fn without_ffn(bytes: &LayerBytes, kv: u64, attention_reads: Vec<ReadBytes>) -> Self {
        LayerCosts {
            attention: bytes.attention,
            vectors: bytes.vectors,
            kv,
            predictor: 0,
            routing: bytes.routing,
            split_tables: bytes.split_tables,
            unit: bytes.unit,
            block: BLOCK,
            order: Vec::new(),
            frequency: Vec::new(),
            predicted: Vec::new(),
            skips: SkippedRows::Nothing,
            attention_reads,
            cache_reads: Vec::new(),
            predictor_reads: Vec::new(),
            routing_reads: Vec::new(),
            firing_read: ReadBytes { ty: TensorType::F32, cpu: 0, device: 0 },
            other_reads: Vec::new(),
            whole_reads: Vec::new(),
            bundled: false,
            prefix_rows: Vec::new(),
        }
    }

    fn add_dense_ffn(&mut self, ffn: &FfnWeights) {
        let firing = ffn.gate.as_ref().unwrap_or(&ffn.up);
        self.firing_read = row_reads(&firing.weight);
        self.bundled = !ffn.up.weight.is_contiguous();
        self.other_reads = ffn.gate.iter().map(|_| row_reads(&ffn.up.weight)).collect();
        match &ffn.down {
            Down::Neurons(down) => self.other_reads.push(row_reads(&down.weight)),
            Down::Outputs(down) => self.whole_reads.push(matrix_reads(&down.weight)),
        }
    }

    /// Makes the device read the other rows of all `n` neurons. If the threshold that silences a
    /// gate depends on all gates, the device computes the up rows together with the gates. It
    /// multiplies the down rows of silent neurons by zero.
    fn read_whole_on_device(&mut self, n: usize) {
        for reads in &mut self.other_reads {
            let device = n as u64 * std::mem::take(&mut reads.device);
            self.whole_reads.push(ReadBytes { cpu: 0, device, ty: reads.ty });
        }
    }

    /// Adds the costs of experts. Both sides read a routed expert's gate. The CPU reads the up rows
    /// of the fraction `fires` of its neurons, and the device does so only if there is a gate. The
    /// CPU reads the same fraction of a neuron-major down projection, and the device reads all of
    /// it.
    fn add_experts(&mut self, experts: &ExpertWeights, fires: f64) {
        (self.skips, self.block) = (SkippedRows::NotRouted, 1);
        if let Some(expert) = experts.experts.first() {
            let gates = usize::from(expert.gate.is_some());
            let downs = if matches!(expert.down, Down::Neurons(_)) { 0 } else { 1 };
            let reads = ffn_reads(expert);
            let skipped = gates..reads.len() - downs;
            let on_device = experts.output_major(0).map(|down| matrix_reads(&down.weight).device);
            self.other_reads = reads;
            for (at, reads) in self.other_reads.iter_mut().enumerate() {
                if skipped.contains(&at) {
                    reads.cpu = (reads.cpu as f64 * fires) as u64;
                }
                if at == 1 && gates == 1 {
                    reads.device = (reads.device as f64 * fires) as u64;
                }
            }
            if let (Some(down), Some(device)) = (self.other_reads.last_mut(), on_device) {
                down.device = device;
            }
        }
        self.routing_reads = experts.always_read().map(|linear| matrix_reads(&linear.weight)).collect();
    }

    /// Sorts units by `frequency` (`[units]`, in the model's order), hottest first; equal units
    /// keep the model's order. The predictor names `excess` units per firing unit.
    pub(super) fn sort_units(&mut self, frequency: &[f32], excess: f32) {
        let of = |unit: u32| frequency[unit as usize].clamp(0.0, 1.0);
        self.order = (0..frequency.len() as u32).collect();
        self.order.sort_by(|a, b| of(*b).total_cmp(&of(*a)));
        self.frequency = self.order.iter().map(|unit| of(*unit)).collect();
        let has_predictor = self.skips == SkippedRows::NotPredicted;
        let predicted = |fires: &f32| if has_predictor { (fires * excess).clamp(0.0, 1.0) } else { 1.0 };
        self.predicted = self.frequency.iter().map(predicted).collect();
        let mut sum = ExpectedRows::default();
        self.prefix_rows = vec![sum];
        for block in 0..self.blocks() {
            let ranks = self.units_in(block)..self.units_in(block + 1);
            sum = ranks.map(|rank| self.rows_at(rank)).fold(sum, ExpectedRows::plus);
            self.prefix_rows.push(sum);
        }
    }

    /// Expected rows of the unit at `rank` in the order.
    fn rows_at(&self, rank: usize) -> ExpectedRows {
        let (fires, predicted) = (f64::from(self.frequency[rank]), f64::from(self.predicted[rank]));
        let (firing_rows, other_rows) = match self.skips {
            SkippedRows::Nothing => (1.0, 1.0),
            SkippedRows::Silent => (1.0, fires),
            SkippedRows::NotPredicted => (predicted, fires),
            SkippedRows::NotRouted => (0.0, fires),
        };
        ExpectedRows { units: 1.0, firing_rows, other_rows, fires }
    }

    /// Expected rows of the units `hot`.
    pub(super) fn rows_of(&self, hot: &[u32]) -> ExpectedRows {
        let blocks = hot.len().div_ceil(self.block);
        if self.units_in(blocks) == hot.len() && self.order.starts_with(hot) {
            return self.prefix_rows.get(blocks).copied().unwrap_or_default();
        }
        let mut is_hot = vec![false; self.units()];
        hot.iter().for_each(|unit| is_hot[*unit as usize] = true);
        let ranks = (0..self.units()).filter(|rank| is_hot[self.order[*rank] as usize]);
        ranks.map(|rank| self.rows_at(rank)).fold(ExpectedRows::default(), ExpectedRows::plus)
    }

    /// The weights that every token reads, whichever units fire.
    pub(super) fn weights_of_each_token(&self) -> impl Iterator<Item = &ReadBytes> {
        self.attention_reads.iter().chain(&self.predictor_reads).chain(&self.routing_reads)
    }

    /// Expected rows of all units.
    pub(super) fn all_rows(&self) -> ExpectedRows {
        self.prefix_rows.last().copied().unwrap_or_default()
    }

    /// Device bytes of the layer with no unit hot.
    pub fn base(&self) -> u64 {
        self.attention + self.vectors + self.kv + self.predictor + self.routing + self.split_tables
    }

    /// Device bytes of `hot` units, rounded up to whole blocks.
    pub fn hot_bytes(&self, hot: usize) -> u64 {
        hot.next_multiple_of(self.block.max(1)) as u64 * self.unit
    }

    /// Device bytes of the layer with all units hot.
    pub fn whole(&self) -> u64 {
        self.base() + self.hot_bytes(self.units())
    }

    /// Number of units: neurons, or experts.
    pub fn units(&self) -> usize {
        self.order.len()
    }

    /// Number of blocks of units. The last block may be shorter.
    pub fn blocks(&self) -> usize {
        self.units().div_ceil(self.block)
    }

    /// Number of units in the first `blocks` blocks.
    pub fn units_in(&self, blocks: usize) -> usize {
        (blocks * self.block).min(self.units())
    }
}

/// Reads of a product with all rows of `matrix`.
fn matrix_reads(matrix: &Matrix) -> ReadBytes {
    let rows = matrix.rows() as u64;
    ReadBytes {
        cpu: matrix.byte_len() as u64,
        device: rows * matrix.ty().device_type().device_row_bytes(matrix.cols()) as u64,
        ty: matrix.ty(),
    }
}

/// Reads of a product with one row of `matrix`.
fn row_reads(matrix: &Matrix) -> ReadBytes {
    ReadBytes {
        cpu: matrix.row_bytes() as u64,
        device: matrix.ty().device_type().device_row_bytes(matrix.cols()) as u64,
        ty: matrix.ty(),
    }
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

/// Reads of the products with all matrices of `ffn`.
fn ffn_reads(ffn: &FfnWeights) -> Vec<ReadBytes> {
    ffn.linears().map(|linear| matrix_reads(&linear.weight)).collect()
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
