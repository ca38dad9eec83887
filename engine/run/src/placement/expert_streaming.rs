//! The cost of streaming experts. For a chunk, a device needs every chosen expert once (`bus`:
//! seconds per expert) and computes whole tiles of pairs (`gpu`: seconds per pair). The CPU
//! multiplies each pair (`cpu`), but at least reads every chosen expert once (`read`). The shared
//! expert is on the device, which computes it while the CPU multiplies, or before the stream.
//!
//! A profile does not say which experts a prompt will choose, so all are assumed to be chosen
//! equally often. If a router prefers some experts, fewer experts pass through the bus.

use thermocline_shaders::limits::EXPERT_TILE;

use super::{Machine, PromptRates, SharedMemory, StreamedChunk, time_model::concurrent_seconds};
use thermocline_model::{ExpertWeights, Linear};

/// Seconds that the matrices of one expert take in a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertStreamCost {
    /// Seconds in which the CPU multiplies one pair of a token and an expert.
    pub cpu: f64,
    /// Seconds in which the CPU reads an expert from RAM.
    pub read: f64,
    /// Seconds in which the device multiplies one pair.
    pub gpu: f64,
    /// Seconds in which an expert is repacked and uploaded.
    pub bus: f64,
    /// Seconds in which the device multiplies a token with the shared expert.
    pub shared: f64,
    /// Rates while both processors work on one shared memory.
    pub together: Option<SharedMemory>,
}

/// Expected seconds of a layer's experts for one chunk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertSeconds {
    /// The CPU multiplies the experts that are not resident.
    pub split: f64,
    /// All experts that are not resident pass through the device.
    pub streamed: f64,
}

impl ExpertStreamCost {
    /// The cost of the experts in `weights`. `None` if there are none, or `machine` lacks a rate.
    pub fn new(weights: &ExpertWeights, machine: &Machine) -> Option<Self> {
        let (gpu, expert) = (machine.gpu.as_ref()?, weights.experts.first()?);
        let matrices = [expert.gate.as_ref(), Some(&expert.up), Some(weights.output_major(0)?)];
        let linears = || matrices.into_iter().flatten();
        let one = |rates: &PromptRates, of: fn(&Linear) -> usize, linear: &Linear| {
            Some(of(linear) as f64 / rates.get(linear.weight.ty().name())?)
        };
        let sum = |rates: &PromptRates, of: fn(&Linear) -> usize| {
            linears().map(|linear| one(rates, of, linear)).sum::<Option<f64>>()
        };
        let macs = |linear: &Linear| linear.weight.rows() * linear.weight.cols();
        let bytes = |linear: &Linear| linear.weight.rows() * linear.weight.row_bytes();
        let read = |linear: &Linear| bytes(linear) as f64 / machine.cpu.rate(linear.weight.ty()).sequential;
        Some(ExpertStreamCost {
            cpu: sum(&machine.cpu.prompts, macs)?,
            read: linears().map(read).sum(),
            gpu: sum(&gpu.prompts, macs)?,
            bus: sum(&gpu.streams, bytes)?,
            shared: weights
                .shared
                .iter()
                .flat_map(|shared| shared.ffn.linears())
                .map(|linear| one(&gpu.prompts, macs, linear))
                .sum::<Option<f64>>()?,
            together: gpu.together,
        })
    }

    /// True if streaming the chosen cold experts of `chunk` is faster than the CPU.
    pub fn pays(&self, chunk: StreamedChunk) -> bool {
        let ExpertSeconds { split, streamed } = self.seconds(chunk);
        chunk.cold > 0 && streamed < split
    }

    /// Expected seconds of the chosen experts of `chunk`.
    pub fn seconds(&self, chunk: StreamedChunk) -> ExpertSeconds {
        let StreamedChunk { tokens, used, hot, cold } = chunk;
        let (hot, cold) = (hot as f64, cold as f64);
        let all = hot + cold;
        let share = (used as f64 / all).min(1.0);
        // Probability that some token chooses an expert, and the mean pairs of a chosen expert.
        let chosen = 1.0 - (1.0 - share).powf(tokens as f64);
        let pairs = tokens as f64 * share / chosen;
        let tile = f64::from(EXPERT_TILE);
        // On average half of an expert's last tile is empty.
        let gpu = (pairs / tile + 0.5).max(1.0) * tile * self.gpu;
        let cpu = (pairs * self.cpu).max(self.read);
        let resident = tokens as f64 * self.shared + chosen * hot * gpu;
        ExpertSeconds {
            split: concurrent_seconds(resident, chosen * cold * cpu, self.together),
            streamed: resident + chosen * cold * (self.bus + gpu),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 64 experts of which a token uses 4, so that 16 tokens are one pair per expert.
    const fn chunk(tokens: usize, hot: usize) -> StreamedChunk {
        StreamedChunk { tokens, used: 4, hot, cold: 64 - hot }
    }

    #[test]
    fn streaming_experts_pays_from_the_length_at_which_it_is_quicker() {
        let cost = ExpertStreamCost { cpu: 10.0, read: 1.0, gpu: 1.0, bus: 544.0, shared: 0.0, together: None };
        // All experts are chosen, and 64 pairs of an expert are one and a half tiles: 640 = 544 +
        // 96.
        assert!(!cost.pays(chunk(1024, 0)), "a tie is no reason");
        assert!(ExpertStreamCost { bus: 543.0, ..cost }.pays(chunk(1024, 0)));
        assert!(!ExpertStreamCost { bus: 543.0, ..cost }.pays(chunk(1008, 0)), "fewer pairs share an upload");
        assert!(cost.pays(chunk(2048, 0)), "more pairs share an upload");
        assert!(!cost.pays(chunk(2048, 60)), "the CPU is done before the device");
        assert!(!cost.pays(chunk(2048, 64)), "nothing is cold");
        assert!(!ExpertStreamCost { bus: f64::INFINITY, ..cost }.pays(chunk(1 << 20, 0)));
        assert!(!ExpertStreamCost { cpu: f64::NAN, ..cost }.pays(chunk(2048, 0)));
        // A CPU that reads slowly loses even if it multiplies fast.
        let slow_memory = ExpertStreamCost { cpu: 0.0, read: 673.0, ..cost };
        assert!(slow_memory.pays(chunk(1024, 0)) && slow_memory.pays(chunk(2, 0)));
        // 64 experts of 96 + 500 seconds, or 640 seconds on the CPU. The shared expert is hidden
        // behind the CPU's work, or comes before the stream.
        let with_shared = ExpertStreamCost { bus: 500.0, shared: 2.0, ..cost };
        let ExpertSeconds { split, streamed } = with_shared.seconds(chunk(1024, 0));
        assert!((split - 64.0 * 640.0).abs() < 1e-6 && (streamed - 2048.0 - 64.0 * 596.0).abs() < 1e-6, "{split}");
        assert!(
            with_shared.pays(chunk(1024, 0)) && !ExpertStreamCost { shared: 3.0, ..with_shared }.pays(chunk(1024, 0))
        );
        // Both processors at half speed: the device is done after 4096 seconds.
        let halves = ExpertStreamCost { together: Some(SharedMemory { cpu: 0.5, gpu: 0.5 }), ..with_shared };
        assert!((halves.seconds(chunk(1024, 0)).split - 64.0 * 640.0 - 2048.0).abs() < 1e-6);
    }
}
