//! The time model: how long a layer takes, depending on how much of it is where.
//!
//! Decoding is reading, so a product takes its bytes at the measured rate of its type. A resident layer whose neurons are all
//! hot takes the device's time. Otherwise the CPU has to be told the FFN's input and its part of the sum has to come back, while
//! the device computes the hot neurons:
//!
//! `layer = attention + hand-over + max(hot, cold)`
//!
//! Of a mixture's experts a token uses a few, and how many of these are cold differs from token to token: what is reckoned is
//! the expected time over all such numbers.
//!
//! The device hides some of the hand-over behind its own work, but pays for it with submissions of its own for every layer.
//!
//! Where both processors share one memory, what they do at the same time takes longer by what was measured
//! ([`Together`]).

use super::{
    demand::{Demand, HeadDemand, LayerDemand, Load, Reads, Skips},
    machine::{CpuRates, GpuRates, Machine, Rate, Together},
};

/// Dispatches of a resident layer apart from its FFN: two norms, products, rotation, attention and its merge.
const ATTENTION_DISPATCHES: f64 = 7.0;
/// Of an FFN: products, activation, sums; with active lists; with a predictor before them; of a mixture.
const FFN_DISPATCHES: [f64; 4] = [4.0, 6.0, 9.0, 7.0];
/// Of the head.
const HEAD_DISPATCHES: f64 = 4.0;
/// Times the CPU's workers are called for attention, and for an FFN.
const ATTENTION_JOINS: f64 = 4.0;
const FFN_JOINS: f64 = 3.0;

/// Seconds of one layer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LayerTime {
    /// The device works.
    pub gpu: f64,
    /// The CPU works.
    pub cpu: f64,
    /// The CPU is told what to work on, and its results come back.
    pub hand_over: f64,
    /// From the beginning of the layer to its end.
    pub seconds: f64,
}

/// One layer on one machine.
#[derive(Debug)]
pub(super) struct LayerCost<'a> {
    demand: &'a LayerDemand,
    machine: &'a Machine,
    /// Seconds of everything but the neurons.
    cpu_rest: f64,
    gpu_rest: f64,
}

impl<'a> LayerCost<'a> {
    pub fn new(demand: &'a LayerDemand, machine: &'a Machine) -> Self {
        let cpu = &machine.cpu;
        let reads = || demand.attention_reads.iter().chain(&demand.predictor_reads).chain(&demand.routing_reads);
        let joins = ATTENTION_JOINS + if demand.predictor_reads.is_empty() { 0.0 } else { 2.0 };
        let cpu_rest = reads().map(|it| on_cpu(cpu, it)).sum::<f64>() + joins * cpu.join;
        let gpu_rest = machine.gpu.as_ref().map_or(f64::INFINITY, |gpu| {
            reads().map(|it| on_gpu(gpu, it)).sum::<f64>() + ATTENTION_DISPATCHES * gpu.dispatch
        });
        LayerCost { demand, machine, cpu_rest, gpu_rest }
    }

    /// The layer on the CPU alone.
    pub fn on_cpu(&self) -> LayerTime {
        let cpu = self.cpu_rest + self.cold(self.demand.all());
        LayerTime { cpu, seconds: cpu, ..LayerTime::default() }
    }

    /// The layer on the device but for the neurons that are not `hot`.
    pub fn resident(&self, hot: Load) -> LayerTime {
        let Some(gpu) = &self.machine.gpu else { return LayerTime { seconds: f64::INFINITY, ..LayerTime::default() } };
        let hot_time = self.hot(gpu, hot);
        let working = self.gpu_rest + hot_time;
        let cold = self.demand.all().minus(hot);
        // Half a neuron is what rounding leaves of none.
        if cold.neurons < 0.5 {
            return LayerTime { gpu: working, seconds: working, ..LayerTime::default() };
        }
        let (cpu, beside) = match self.demand.skips {
            Skips::Unchosen => self.chosen(gpu, hot, cold),
            _ => {
                let cpu = self.cold(cold);
                (cpu, beside(hot_time, cpu, gpu.together))
            }
        };
        LayerTime { gpu: working, cpu, hand_over: gpu.hand_over, seconds: self.gpu_rest + gpu.hand_over + beside }
    }

    /// Of a token's experts so many are cold, each with the same chance: expected seconds of the CPU, and until both are done.
    fn chosen(&self, gpu: &GpuRates, hot: Load, cold: Load) -> (f64, f64) {
        let all = hot.fires + cold.fires;
        if all <= 0.0 {
            return (0.0, self.hot(gpu, hot));
        }
        let used = all.round().clamp(1.0, 512.0) as usize;
        let (share, each) = ((cold.fires / all).clamp(0.0, 1.0), all / used as f64);
        let mut sums = (0.0, 0.0);
        // Of the binomial distribution; where all are cold it is a single term.
        let mut chance = (1.0 - share).powi(used as i32);
        for count in if share < 1.0 { 0 } else { used }..=used {
            if share >= 1.0 {
                chance = 1.0;
            }
            let cpu = match count {
                0 => 0.0,
                count => self.cold(Load { read: count as f64 * each, ..cold }),
            };
            let device = self.hot(gpu, Load { read: (used - count) as f64 * each, ..hot });
            sums.0 += chance * cpu;
            sums.1 += chance * beside(device, cpu, gpu.together);
            chance *= (used - count) as f64 / (count + 1) as f64 * share / (1.0 - share);
        }
        sums
    }

    fn hot(&self, gpu: &GpuRates, hot: Load) -> f64 {
        if hot.neurons == 0.0 {
            return 0.0;
        }
        let rates = |reads: &Reads, rows: f64| {
            let rate = gpu.rate(reads.ty);
            self.rows(rate, reads.device, rows, hot.neurons)
        };
        let whole = self.demand.whole_reads.iter().map(|reads| on_gpu(gpu, reads)).sum::<f64>();
        self.sum(hot, rates) + whole + FFN_DISPATCHES[self.demand.skips as usize] * gpu.dispatch
    }

    fn cold(&self, cold: Load) -> f64 {
        let cpu = &self.machine.cpu;
        let all = self.demand.neurons() as f64;
        let rates = |reads: &Reads, rows: f64| self.rows(cpu.rate(reads.ty), reads.cpu, rows, all);
        // Expert after expert.
        let times = if self.demand.skips == Skips::Unchosen { cold.read } else { 1.0 };
        let whole = self.demand.whole_reads.iter().map(|reads| on_cpu(cpu, reads)).sum::<f64>();
        self.sum(cold, rates) + whole + times * FFN_JOINS * cpu.join
    }

    fn sum(&self, load: Load, time: impl Fn(&Reads, f64) -> f64) -> f64 {
        let others = self.demand.other_reads.iter().map(|reads| time(reads, load.read)).sum::<f64>();
        time(&self.demand.firing_read, load.looked) + others
    }

    /// Seconds to read `rows` rows of `bytes` each out of `of`: the denser they lie, the more of them follow one another. It
    /// never takes longer than to read them all.
    fn rows(&self, rate: Rate, bytes: u64, rows: f64, of: f64) -> f64 {
        let bytes = bytes as f64;
        if self.demand.skips == Skips::Unchosen || of <= 0.0 {
            return bytes * rows / rate.sequential;
        }
        let dense = (rows / of).clamp(0.0, 1.0);
        let each = dense / rate.sequential + (1.0 - dense) / rate.scattered;
        (bytes * rows * each).min(bytes * of / rate.sequential)
    }
}

/// Seconds until both of two works that begin together are done.
fn beside(gpu: f64, cpu: f64, together: Option<Together>) -> f64 {
    let Some(together) = together else { return gpu.max(cpu) };
    let (slow_gpu, slow_cpu) = (gpu / together.gpu, cpu / together.cpu);
    // One ends; what the other has left goes on at its own pace.
    let (first, (slow, alone)) =
        if slow_gpu < slow_cpu { (slow_gpu, (slow_cpu, cpu)) } else { (slow_cpu, (slow_gpu, gpu)) };
    if slow > 0.0 { first + (1.0 - first / slow) * alone } else { 0.0 }
}

fn on_cpu(cpu: &CpuRates, reads: &Reads) -> f64 {
    reads.cpu as f64 / cpu.rate(reads.ty).sequential
}

fn on_gpu(gpu: &GpuRates, reads: &Reads) -> f64 {
    reads.device as f64 / gpu.rate(reads.ty).sequential
}

/// Seconds of the head on either side.
pub(super) fn head(head: &HeadDemand, machine: &Machine, resident: bool) -> f64 {
    match &machine.gpu {
        Some(gpu) if resident => on_gpu(gpu, &head.reads) + HEAD_DISPATCHES * gpu.dispatch,
        _ => on_cpu(&machine.cpu, &head.reads) + machine.cpu.join,
    }
}

/// Seconds a token costs as soon as a layer is resident: its submission, and its results' way back.
pub(super) fn token(machine: &Machine) -> f64 {
    machine.gpu.as_ref().map_or(f64::INFINITY, |gpu| gpu.hand_over)
}

/// Every layer of `demand` on `machine`.
pub(super) fn layers<'a>(demand: &'a Demand, machine: &'a Machine) -> Vec<LayerCost<'a>> {
    demand.layers.iter().map(|layer| LayerCost::new(layer, machine)).collect()
}
