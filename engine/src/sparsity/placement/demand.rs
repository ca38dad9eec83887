//! What a model asks of a machine: bytes and reads of each part, and how often each neuron fires.

use crate::{
    error::{Error, Result},
    format::{Matrix, TensorType},
    model::{
        DeviceBytes, Down, ExpertWeights, Ffn, FfnWeights, GpuProcessor, KvType, LayerBytes, LayerWeights, Model,
        PredictorKind, Sparsity, device_row_bytes,
    },
    telemetry::neurons::LayerNeurons,
};

/// Neurons that move together. Kernels take rows in groups of this many.
pub const BLOCK: usize = 64;

/// Share of neurons that fire where nobody has counted.
const ASSUMED_FREQUENCY: f32 = 0.3;

/// Neurons a predictor lets through for each that fires, where it does not say how precise it is.
const ASSUMED_EXCESS: f32 = 1.3;

/// Bytes that one token's product with some weights reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reads {
    /// Type of the weights in their file.
    pub ty: TensorType,
    /// On the CPU.
    pub cpu: u64,
    /// On the device, in its encoding.
    pub device: u64,
}

/// Which neurons a token has to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skips {
    /// All of them, with all their rows.
    Nothing,
    /// Every neuron's firing row; the others of those that fire.
    Silent,
    /// Firing rows of those the predictor names; the others of those that fire.
    RuledOut,
    /// Experts: whole, those that were chosen.
    Unchosen,
}

/// How much of some neurons a token needs: expected numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Load {
    /// Neurons.
    pub neurons: f64,
    /// Those whose firing row is read.
    pub looked: f64,
    /// Those whose other rows are read.
    pub read: f64,
    /// Those that fire.
    pub fires: f64,
}

impl Load {
    pub fn minus(self, other: Load) -> Load {
        Load {
            neurons: (self.neurons - other.neurons).max(0.0),
            looked: (self.looked - other.looked).max(0.0),
            read: (self.read - other.read).max(0.0),
            fires: (self.fires - other.fires).max(0.0),
        }
    }

    fn plus(self, other: Load) -> Load {
        Load {
            neurons: self.neurons + other.neurons,
            looked: self.looked + other.looked,
            read: self.read + other.read,
            fires: self.fires + other.fires,
        }
    }
}

/// One layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerDemand {
    /// What it takes to be resident, with no neuron hot. Keys and values are those of all contexts.
    pub attention: u64,
    /// Norms and biases.
    pub vectors: u64,
    /// Keys and values of all contexts.
    pub kv: u64,
    /// The predictor, if the mode asks it.
    pub predictor: u64,
    /// Router and shared expert.
    pub routing: u64,
    /// Tables of a layer that is split.
    pub split: u64,
    /// Bytes of one hot neuron (or expert).
    pub neuron: u64,
    /// Neurons (experts) that move together.
    pub unit: usize,
    /// Neurons (experts), those that fire most often first.
    pub order: Vec<u32>,
    /// How often each of `order` fires, a share of tokens.
    pub frequency: Vec<f32>,
    /// How often the predictor names each of `order`; 1 where none is asked.
    pub named: Vec<f32>,
    /// What is skipped.
    pub skips: Skips,
    /// Products every token needs: of attention, keys and values included.
    pub attention_reads: Vec<Reads>,
    /// Of the predictor.
    pub predictor_reads: Vec<Reads>,
    /// Of the router and the shared expert.
    pub routing_reads: Vec<Reads>,
    /// Of a neuron: its firing row. Of an expert: nothing.
    pub firing_read: Reads,
    /// Of a neuron that fires: its other rows. Of an expert: all.
    pub other_reads: Vec<Reads>,
    /// Of all neurons on a side, if there are any: what has no row per neuron and cannot be read in part.
    pub whole_reads: Vec<Reads>,
    /// What the first units need, from none to all of them.
    pub(super) loads: Vec<Load>,
}

/// The head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadDemand {
    /// Its matrix.
    pub matrix: u64,
    /// The final norm, and its bias.
    pub vectors: u64,
    /// Logits and shortlists.
    pub scratch: u64,
    /// Its product.
    pub reads: Reads,
}

impl HeadDemand {
    /// All it takes on a device.
    pub fn bytes(&self) -> u64 {
        self.matrix + self.vectors + self.scratch
    }
}

/// What a plan had to take for granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assumption {
    /// Nobody has counted firings: all neurons are taken to fire equally often.
    NoProfile,
    /// The speeds are not this machine's.
    TypicalMachine,
    /// Weights of some type were not measured.
    UnmeasuredType(TensorType),
}

impl std::fmt::Display for Assumption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Assumption::NoProfile => {
                f.write_str("nobody has counted which neurons fire: all are taken to fire equally often")
            }
            Assumption::TypicalMachine => {
                f.write_str("nothing could be measured: speeds are those of a usual desktop with a card")
            }
            Assumption::UnmeasuredType(ty) => {
                write!(f, "{ty} weights were not measured: they are taken to be as slow as the slowest that were")
            }
        }
    }
}

/// How the model is to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DemandOptions {
    /// Tokens of each context.
    pub context: usize,
    /// Contexts held at once.
    pub sessions: usize,
    /// Type of their caches.
    pub kv_type: KvType,
    /// What is skipped.
    pub sparsity: Sparsity,
    /// Tokens in the context while a token is timed; `None`: half of it.
    pub filled: Option<usize>,
}

/// What a model asks of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// Every layer.
    pub layers: Vec<LayerDemand>,
    /// The head.
    pub head: HeadDemand,
    /// Registers and temporaries, as soon as one layer is resident.
    pub scratch: u64,
    /// Rings that carry data up and down, likewise.
    pub staging: u64,
    /// What had to be taken for granted.
    pub assumptions: Vec<Assumption>,
}

impl Demand {
    /// What `model` asks for, whose parts take `bytes` on the device.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `bytes` are another model's, or a profile has not one figure per neuron.
    pub fn of(model: &Model, bytes: &DeviceBytes, options: &DemandOptions) -> Result<Self> {
        let (config, weights) = (&model.config, &model.weights);
        if bytes.layers.len() != weights.layers.len() {
            return Err(Error::invalid(
                "sizes on the device",
                format!("{} layers", weights.layers.len()),
                bytes.layers.len(),
            ));
        }
        let filled = options.filled.unwrap_or(options.context / 2).clamp(1, options.context.max(1)) as u64;
        let kv_row = 2 * config.n_kv_head as u64 * options.kv_type.row_bytes(config.head_dim) as u64;
        let kv_type = match options.kv_type {
            KvType::F16 => TensorType::F16,
            KvType::F32 => TensorType::F32,
            KvType::Q8_0 => TensorType::Q8_0,
        };
        let mut profiled = true;
        let layers = weights.layers.iter().zip(&bytes.layers).zip(&config.layers).enumerate().map(|(at, it)| {
            let ((layer, bytes), shape) = it;
            let attention = &layer.attention;
            let mut attention_reads: Vec<Reads> = [&attention.q, &attention.k, &attention.v, &attention.output]
                .map(|linear| all(&linear.weight))
                .to_vec();
            let seen = shape.window.map_or(filled, |window| filled.min(window as u64));
            attention_reads.push(Reads { ty: kv_type, cpu: kv_row * seen, device: bytes.kv_token * seen });
            let kv = bytes.kv_token.saturating_mul(options.context as u64).saturating_mul(options.sessions as u64);
            let mut new = LayerDemand::resident(bytes, kv, attention_reads);
            let neurons = match &layer.ffn {
                Ffn::Dense(ffn) => {
                    new.of_neurons(ffn);
                    let neurons = ffn.up.weight.rows();
                    // On the device with all of them, or not at all.
                    if !GpuProcessor::places_neurons(&layer.ffn) {
                        new.unit = neurons.max(1);
                    }
                    neurons
                }
                Ffn::Experts(mixture) => {
                    let skips = match options.sparsity {
                        Sparsity::Dense => false,
                        Sparsity::Exact | Sparsity::Predicted => config.activation.is_sparse(),
                        Sparsity::Threshold => layer.cut.is_some(),
                    };
                    new.of_experts(mixture, if skips { chosen_that_fire(layer) } else { 1.0 });
                    mixture.experts.len()
                }
            };
            let named = layer.predictor.as_ref().filter(|_| options.sparsity == Sparsity::Predicted);
            let sparse = config.activation.is_sparse();
            if new.skips == Skips::Nothing {
                new.skips = match options.sparsity {
                    Sparsity::Predicted if sparse && named.is_some() => Skips::RuledOut,
                    Sparsity::Exact | Sparsity::Predicted if sparse => Skips::Silent,
                    Sparsity::Threshold if layer.cut.is_some() => Skips::Silent,
                    _ => Skips::Nothing,
                };
            }
            if let (Some(predictor), Skips::RuledOut) = (named, new.skips) {
                new.predictor = bytes.predictor;
                // The CPU does not read what silent hidden units are multiplied by, but nobody has counted how many are silent.
                new.predictor_reads = match &predictor.kind {
                    PredictorKind::LowRank { fc1, fc2 } => vec![all(fc1), all(fc2)],
                    PredictorKind::Rows { rows, .. } => vec![all(rows)],
                };
            }
            let used = config.experts.map_or(0.0, |experts| experts.used as f32 / experts.count.max(1) as f32);
            profiled &= layer.frequency.is_some();
            let frequency = match &layer.frequency {
                Some(frequency) if frequency.len() != neurons => {
                    let got = format!("{} in layer {at}", frequency.len());
                    return Err(Error::invalid("firing frequencies", format!("{neurons}, one per neuron"), got));
                }
                Some(frequency) => frequency.clone(),
                None if new.skips == Skips::Unchosen => vec![used; neurons],
                None => vec![ASSUMED_FREQUENCY; neurons],
            };
            let quality = named.and_then(|predictor| predictor.quality);
            let excess = quality.map_or(ASSUMED_EXCESS, |of| of.recall / of.precision.max(1e-3));
            new.sort(&frequency, excess);
            Ok(new)
        });
        let layers = layers.collect::<Result<Vec<_>>>()?;
        let head = HeadDemand {
            matrix: bytes.head,
            vectors: bytes.head_vectors,
            scratch: bytes.head_scratch,
            reads: all(&weights.output.weight),
        };
        let assumptions = if profiled { Vec::new() } else { vec![Assumption::NoProfile] };
        Ok(Demand { layers, head, scratch: bytes.scratch, staging: bytes.staging, assumptions })
    }

    /// Types of the weights a token reads, each once.
    pub fn types(&self) -> Vec<TensorType> {
        let layers = self.layers.iter().flat_map(|layer| {
            let all = layer.attention_reads.iter().chain(&layer.predictor_reads).chain(&layer.routing_reads);
            all.chain([&layer.firing_read]).chain(&layer.other_reads).chain(&layer.whole_reads)
        });
        let mut types: Vec<TensorType> =
            layers.chain([&self.head.reads]).filter(|reads| reads.cpu > 0).map(|reads| reads.ty).collect();
        types.sort_unstable();
        types.dedup();
        types
    }
}

impl LayerDemand {
    fn resident(bytes: &LayerBytes, kv: u64, attention_reads: Vec<Reads>) -> Self {
        LayerDemand {
            attention: bytes.attention,
            vectors: bytes.vectors,
            kv,
            predictor: 0,
            routing: bytes.routing,
            split: bytes.split,
            neuron: bytes.neuron,
            unit: BLOCK,
            order: Vec::new(),
            frequency: Vec::new(),
            named: Vec::new(),
            skips: Skips::Nothing,
            attention_reads,
            predictor_reads: Vec::new(),
            routing_reads: Vec::new(),
            firing_read: Reads { ty: TensorType::F32, cpu: 0, device: 0 },
            other_reads: Vec::new(),
            whole_reads: Vec::new(),
            loads: Vec::new(),
        }
    }

    fn of_neurons(&mut self, ffn: &FfnWeights) {
        let firing = ffn.gate.as_ref().unwrap_or(&ffn.up);
        self.firing_read = row(&firing.weight);
        self.other_reads = ffn.gate.iter().map(|_| row(&ffn.up.weight)).collect();
        match &ffn.down {
            Down::Neurons(down) => self.other_reads.push(row(&down.weight)),
            Down::Outputs(down) => self.whole_reads.push(all(&down.weight)),
        }
    }

    /// Of a chosen expert the CPU reads the gate, and the other rows of the share `fires` of its neurons; a device reads all of it.
    fn of_experts(&mut self, mixture: &ExpertWeights, fires: f64) {
        (self.skips, self.unit) = (Skips::Unchosen, 1);
        if let Some(expert) = mixture.experts.first() {
            let gates = usize::from(expert.gate.is_some());
            let downs = if matches!(expert.down, Down::Neurons(_)) { 0 } else { 1 };
            let reads = whole(expert);
            let skipped = gates..reads.len() - downs;
            let on_device = mixture.outputs(0).map(|down| all(&down.weight).device);
            self.other_reads = reads;
            for reads in &mut self.other_reads[skipped] {
                reads.cpu = (reads.cpu as f64 * fires) as u64;
            }
            if let (Some(down), Some(device)) = (self.other_reads.last_mut(), on_device) {
                down.device = device;
            }
        }
        self.routing_reads = vec![all(&mixture.router.weight)];
        if let Some(shared) = &mixture.shared {
            self.routing_reads.extend([all(&shared.gate.weight)].into_iter().chain(whole(&shared.ffn)));
        }
    }

    /// Puts neurons in the order of their `frequency`, hottest first; equal ones in their own order. The predictor names
    /// `excess` for each that fires.
    pub(super) fn sort(&mut self, frequency: &[f32], excess: f32) {
        let of = |neuron: u32| frequency[neuron as usize].clamp(0.0, 1.0);
        self.order = (0..frequency.len() as u32).collect();
        self.order.sort_by(|a, b| of(*b).total_cmp(&of(*a)));
        self.frequency = self.order.iter().map(|neuron| of(*neuron)).collect();
        let asked = self.skips == Skips::RuledOut;
        let named = |fires: &f32| if asked { (fires * excess).clamp(0.0, 1.0) } else { 1.0 };
        self.named = self.frequency.iter().map(named).collect();
        let mut sum = Load::default();
        self.loads = vec![sum];
        for unit in 0..self.units() {
            sum = (self.first(unit)..self.first(unit + 1)).map(|place| self.one(place)).fold(sum, Load::plus);
            self.loads.push(sum);
        }
    }

    /// What the neuron at `place` of the order needs.
    fn one(&self, place: usize) -> Load {
        let (fires, named) = (f64::from(self.frequency[place]), f64::from(self.named[place]));
        let (looked, read) = match self.skips {
            Skips::Nothing => (1.0, 1.0),
            Skips::Silent => (1.0, fires),
            Skips::RuledOut => (named, fires),
            Skips::Unchosen => (0.0, fires),
        };
        Load { neurons: 1.0, looked, read, fires }
    }

    /// What `hot` need.
    pub(super) fn load(&self, hot: &[u32]) -> Load {
        let units = hot.len().div_ceil(self.unit);
        if self.first(units) == hot.len() && self.order.starts_with(hot) {
            return self.loads.get(units).copied().unwrap_or_default();
        }
        let mut is_hot = vec![false; self.neurons()];
        hot.iter().for_each(|neuron| is_hot[*neuron as usize] = true);
        let places = (0..self.neurons()).filter(|place| is_hot[self.order[*place] as usize]);
        places.map(|place| self.one(place)).fold(Load::default(), Load::plus)
    }

    /// What all need.
    pub(super) fn all(&self) -> Load {
        self.loads.last().copied().unwrap_or_default()
    }

    /// Bytes of a resident layer with no neuron hot, as part of a plan that splits it or not.
    pub fn base(&self) -> u64 {
        self.attention + self.vectors + self.kv + self.predictor + self.routing + self.split
    }

    /// Neurons (experts).
    pub fn neurons(&self) -> usize {
        self.order.len()
    }

    /// Units they come in, the last of which may be short.
    pub fn units(&self) -> usize {
        self.neurons().div_ceil(self.unit)
    }

    /// Neurons of the first `units`.
    pub fn first(&self, units: usize) -> usize {
        (units * self.unit).min(self.neurons())
    }
}

fn all(matrix: &Matrix) -> Reads {
    let rows = matrix.rows() as u64;
    Reads {
        cpu: matrix.data().len() as u64,
        device: rows * device_row_bytes(matrix.ty(), matrix.cols()),
        ty: matrix.ty(),
    }
}

/// Share of the neurons of chosen experts that fire, on average.
fn chosen_that_fire(layer: &LayerWeights) -> f64 {
    let (Some(chosen), Some(neurons), Ffn::Experts(mixture)) = (&layer.frequency, &layer.neuron_frequency, &layer.ffn)
    else {
        return f64::from(ASSUMED_FREQUENCY);
    };
    let LayerNeurons::Mixture { experts, width, .. } = mixture.neurons() else { return 1.0 };
    let sum = |shares: &[f32]| shares.iter().map(|share| f64::from(*share)).sum::<f64>();
    let looked = sum(chosen) * width as f64;
    let fires = sum(&neurons[..neurons.len().min(experts * width)]);
    if looked > 0.0 { (fires / looked).min(1.0) } else { f64::from(ASSUMED_FREQUENCY) }
}

fn row(matrix: &Matrix) -> Reads {
    Reads { cpu: matrix.row_bytes() as u64, device: device_row_bytes(matrix.ty(), matrix.cols()), ty: matrix.ty() }
}

fn whole(ffn: &FfnWeights) -> Vec<Reads> {
    let (Down::Outputs(down) | Down::Neurons(down)) = &ffn.down;
    ffn.gate.iter().chain([&ffn.up, down]).map(|linear| all(&linear.weight)).collect()
}

#[cfg(test)]
mod tests;
