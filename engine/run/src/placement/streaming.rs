//! Streaming of prompts: cold rows are sent to the device for a chunk of tokens, if that is faster
//! than multiplying them on the CPU.
//!
//! Products are limited by arithmetic (`cpu`, `gpu`: seconds per neuron and token), and uploads by
//! bytes (`bus`: seconds per neuron). For a chunk of `t` tokens:
//!
//! `split = max(hot gpu t, cold cpu t)`, `streamed = hot gpu t + cold (bus + gpu t)`
//!
//! Both wait for the device about once, so the synchronisation does not matter. Experts have a cost
//! of their own ([`ExpertStreamCost`]), because a chunk chooses some of them.

use std::sync::Arc;

use super::{CostProfile, DeviceBytes, ExpertStreamCost, Machine, Placement, Plan, PromptRates, usable};
use thermocline_base::error::{Error, Result};
use thermocline_model::{Down, Ffn, FfnWeights, Linear, Model};

/// Fewest tokens of a streamed chunk. A single token is sparse, and its rows are read once either
/// way.
const LEAST: usize = 2;

/// Fraction of a budget (one part in this many) for a streaming buffer. The buffer makes only
/// prompts faster, but neurons make every token faster.
const PRICED_DIVISOR: u64 = 32;
/// Fraction (one part in this many) if one expert needs more. Prompts gain a multiple of the speed
/// that decoding loses.
const LARGE_EXPERT_DIVISOR: u64 = 8;
/// Fraction (one part in this many) if prompts are always streamed.
const FORCED_DIVISOR: u64 = 4;

/// The units of a layer that a chunk of a prompt needs: neurons, or experts in an MoE layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamedChunk {
    /// Tokens of the chunk.
    pub tokens: usize,
    /// Experts that a token uses, in an MoE layer.
    pub used: usize,
    /// Units that are resident.
    pub hot: usize,
    /// Units that are not resident.
    pub cold: usize,
}

impl StreamedChunk {
    /// A chunk of `model` while none of the `units` of a layer is resident.
    fn without_residents(model: &Model, units: usize, tokens: usize) -> Self {
        StreamedChunk { tokens, used: model.config.experts.map_or(0, |experts| experts.used), hot: 0, cold: units }
    }
}

/// The processor that computes the cold neurons and experts of a prompt.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Streaming {
    /// Always the CPU.
    #[default]
    Never,
    /// Always the device.
    Always,
    /// The device if it is faster by the speeds of this machine, decided for each layer and chunk.
    Priced(Arc<Machine>),
}

impl Streaming {
    /// True if the cold units of `ffn` are sent to the device for `chunk`.
    pub fn pays(&self, ffn: &Ffn, chunk: StreamedChunk) -> bool {
        if chunk.cold == 0 || chunk.tokens < LEAST {
            return false;
        }
        match (self, ffn) {
            (Streaming::Never, _) | (_, Ffn::None) => false,
            (Streaming::Always, _) => true,
            (Streaming::Priced(machine), Ffn::Dense(ffn)) => {
                let cost = StreamCost::new(ffn, machine);
                let fewest = cost.and_then(|cost| cost.fewest_tokens(chunk.hot, chunk.cold));
                fewest.is_some_and(|fewest| chunk.tokens >= fewest)
            }
            (Streaming::Priced(machine), Ffn::Experts(experts)) => {
                ExpertStreamCost::new(experts, machine).is_some_and(|cost| cost.pays(chunk))
            }
        }
    }

    /// True if some layer of `model` is sent to the device for a chunk of `tokens` tokens if none
    /// of its units is resident.
    pub fn pays_for(&self, model: &Model, tokens: usize) -> bool {
        model.weights.layers.iter().any(|layer| {
            let units = layer.ffn.units();
            self.pays(&layer.ffn, StreamedChunk::without_residents(model, units, tokens))
        })
    }
}

/// Seconds that the rows of one neuron take in a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamCost {
    /// Multiplication on the CPU, per token.
    pub cpu: f64,
    /// Multiplication on the device, per token.
    pub gpu: f64,
    /// Repacking and upload.
    pub bus: f64,
}

impl StreamCost {
    /// The cost of the neurons of `ffn`. `None` if some matrix does not have a row per neuron, or
    /// `machine` lacks a rate.
    pub fn new(ffn: &FfnWeights, machine: &Machine) -> Option<Self> {
        let (Down::Neurons(down), Some(gpu)) = (&ffn.down, &machine.gpu) else { return None };
        let linears = || [ffn.gate.as_ref(), Some(&ffn.up), Some(down)].into_iter().flatten();
        let sum = |rates: &PromptRates, of: fn(&Linear) -> usize| {
            let each = linears().map(|linear| {
                let rate = rates.get(linear.weight.ty().name())?;
                Some(of(linear) as f64 / rate)
            });
            each.sum::<Option<f64>>()
        };
        Some(StreamCost {
            cpu: sum(&machine.cpu.prompts, |linear| linear.weight.cols())?,
            gpu: sum(&gpu.prompts, |linear| linear.weight.cols())?,
            bus: sum(&gpu.streams, |linear| linear.weight.row_bytes())?,
        })
    }

    /// Fewest tokens of a chunk for which streaming `cold` neurons is faster, if `hot` others are
    /// resident. `None` if streaming is never faster.
    pub fn fewest_tokens(&self, hot: usize, cold: usize) -> Option<usize> {
        let (hot, cold) = (hot as f64, cold as f64);
        // Seconds saved per token. A CPU with less work than the device finishes first anyway.
        let saved = cold * self.cpu - (hot + cold) * self.gpu;
        if cold == 0.0 || saved.is_nan() || saved <= 0.0 {
            return None;
        }
        let even = (cold * self.bus / saved).floor();
        (even < 1e9).then(|| (even as usize + 1).max(LEAST))
    }
}

/// Size of the streaming buffer, through which cold neurons and experts of prompts pass on their
/// way to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamingBufferSize {
    /// Bytes wanted; 0 if streaming does not pay.
    bytes: u64,
    /// Fewest bytes of a buffer that is of use.
    least: u64,
    /// The buffer may take one part in this many of a budget.
    divisor: u64,
    /// Device bytes of the whole model. If they fit the budget, nothing is cold.
    everything: u64,
}

impl StreamingBufferSize {
    /// Computes the size for prompts of `model`, which takes `bytes` on the device and has the
    /// costs of `profile`. The size is 0 unless `streaming` pays.
    pub fn new(model: &Model, bytes: &DeviceBytes, profile: &CostProfile, streaming: &Streaming) -> Self {
        StreamingBufferSize {
            bytes: if streaming.pays_for(model, bytes.chunk) { bytes.streaming_buffer } else { 0 },
            least: bytes.least_streaming_buffer,
            divisor: if *streaming == Streaming::Always { FORCED_DIVISOR } else { PRICED_DIVISOR },
            everything: Placement::all(profile).bytes(profile),
        }
    }

    /// Device bytes of the whole model with its caches.
    pub fn everything(&self) -> u64 {
        self.everything
    }

    /// Bytes of `budget` that the buffer may take; 0 if nothing is cold, or if the buffer would be
    /// too small.
    pub fn bytes_within(&self, budget: u64) -> u64 {
        let share = budget / self.divisor;
        let one_expert = self.least.min(budget / LARGE_EXPERT_DIVISOR);
        let bytes = self.bytes.min(share.max(one_expert));
        if self.everything <= usable(budget) || bytes < self.least { 0 } else { bytes }
    }

    /// Returns the plan that `plan` makes for the budget without the buffer, and adds the buffer's
    /// bytes if any layer has cold units to stream. If nothing fits beside the buffer, the plan
    /// gets the whole budget.
    ///
    /// # Errors
    /// The errors of `plan`.
    pub fn plan_beside(&self, profile: &CostProfile, budget: u64, plan: impl Fn(u64) -> Result<Plan>) -> Result<Plan> {
        let buffer = self.bytes_within(budget);
        match plan(budget - buffer) {
            Ok(mut plan) => {
                let (placement, layers) = (&plan.placement, &profile.layers);
                let mut resident = placement.hot.iter().zip(layers).skip(placement.first_resident);
                if resident.any(|(hot, layer)| hot.len() < layer.units()) {
                    plan.bytes.streaming_buffer = buffer;
                }
                Ok(plan)
            }
            Err(Error::Memory { .. }) if buffer > 0 => plan(budget),
            refused => refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_formats::{
        format::{Bytes, Matrix},
        quant::TensorType,
    };

    fn ffn(neuron_major: bool) -> FfnWeights {
        let linear = |rows: usize, cols: usize| {
            let data = Bytes::new(vec![0; TensorType::F16.row_bytes(cols).unwrap() * rows]);
            Linear { weight: Matrix::new(TensorType::F16, rows, cols, data).unwrap(), bias: None }
        };
        let down = if neuron_major { Down::Neurons(linear(64, 32)) } else { Down::Outputs(linear(32, 64)) };
        FfnWeights {
            gate: Some(linear(64, 32)),
            up: linear(64, 32),
            down,
            bundled_gate: None,
            limit: None,
            gate_scales: None,
        }
    }

    #[test]
    fn stream_cost_fewest_tokens_is_where_streaming_becomes_quicker() {
        let cost = StreamCost { cpu: 10.0, gpu: 1.0, bus: 90.0 };
        // 10 t > 90 + t
        assert_eq!(cost.fewest_tokens(0, 100), Some(11), "after ten tokens it is a tie, which is no reason");
        assert_eq!(StreamCost { bus: 89.0, ..cost }.fewest_tokens(0, 100), Some(10));
        assert_eq!(StreamCost { bus: 180.0, ..cost }.fewest_tokens(0, 100), Some(21), "a slower bus asks for more");
        assert_eq!(StreamCost { cpu: 5.0, ..cost }.fewest_tokens(0, 100), Some(23), "and so does a quicker CPU");
        assert_eq!(StreamCost { bus: 0.0, ..cost }.fewest_tokens(0, 100), Some(2), "one token alone is never streamed");
        // With 500 neurons on the device: 1000 t > 500 t + 100 (90 + t)
        assert_eq!(cost.fewest_tokens(500, 100), Some(23), "the device has something else to do meanwhile");
        assert_eq!(cost.fewest_tokens(900, 100), None, "the CPU is done before the device");
        assert_eq!(StreamCost { cpu: 1.0, ..cost }.fewest_tokens(0, 100), None, "a tie for any number of tokens");
        assert_eq!(cost.fewest_tokens(100, 0), None);
        assert_eq!(StreamCost { bus: f64::INFINITY, ..cost }.fewest_tokens(0, 100), None);
        assert_eq!(StreamCost { cpu: f64::NAN, ..cost }.fewest_tokens(0, 100), None);
    }

    #[test]
    fn buffers_grow_beyond_their_share_for_one_large_expert() {
        let size = StreamingBufferSize { bytes: 400, least: 300, divisor: PRICED_DIVISOR, everything: u64::MAX };
        let bytes = [2399, 2400, 9600, 11200, 12800, 1 << 40].map(|budget| size.bytes_within(budget));
        assert_eq!(bytes, [0, 300, 300, 350, 400, 400]);
        assert_eq!(StreamingBufferSize { bytes: 0, ..size }.bytes_within(1 << 40), 0, "streaming does not pay");
        assert_eq!(StreamingBufferSize { everything: 1 << 20, ..size }.bytes_within(1 << 40), 0, "nothing is cold");
        assert_eq!(StreamingBufferSize { least: 10, ..size }.bytes_within(3200), 100, "small experts");
    }

    #[test]
    fn priced_streaming_goes_by_the_rates_of_the_machine() {
        let mut machine = Machine::typical();
        let gpu = machine.gpu.as_mut().unwrap();
        gpu.prompts.insert("F16".to_owned(), 3.2e12);
        gpu.streams.insert("F16".to_owned(), 6.4e9);
        machine.cpu.prompts.insert("F16".to_owned(), 3.2e11);
        let cost = StreamCost::new(&ffn(true), &machine).unwrap();
        // Three rows of 32 columns, 64 bytes each.
        let expected = StreamCost { cpu: 3e-10, gpu: 3e-11, bus: 3e-8 };
        for (got, expected) in [(cost.cpu, expected.cpu), (cost.gpu, expected.gpu), (cost.bus, expected.bus)] {
            assert!((got / expected - 1.0).abs() < 1e-9, "{cost:?}");
        }
        assert_eq!(cost.fewest_tokens(0, 64), Some(112));
        let priced = Streaming::Priced(Arc::new(machine.clone()));
        let pays = |streaming: &Streaming, neuron_major, cold, tokens| {
            streaming.pays(&Ffn::Dense(ffn(neuron_major)), StreamedChunk { tokens, used: 0, hot: 64 - cold, cold })
        };
        assert!(pays(&priced, true, 64, 112) && !pays(&priced, true, 64, 111));
        assert!(!pays(&priced, false, 64, 10_000), "a neuron is no row");
        assert!(pays(&Streaming::Always, true, 64, 2) && !pays(&Streaming::Always, true, 64, 1));
        assert!(!pays(&Streaming::Always, true, 0, 2) && !pays(&Streaming::Never, true, 64, 10_000));
        machine.cpu.prompts.remove("F16");
        assert_eq!(StreamCost::new(&ffn(true), &machine), None, "what is not known decides nothing");
        machine.gpu = None;
        assert_eq!(StreamCost::new(&ffn(true), &machine), None);
    }
}
