//! The time model: how long a layer takes, depending on how much of it is where.
//!
//! Decoding is reading, so a product takes its bytes at the measured rate of its type. A resident layer whose neurons are all
//! hot takes the device's time. Otherwise the CPU has to be told the FFN's input, and its part of the sum has to come back;
//! while that happens and the CPU works, the device computes the hot neurons:
//!
//! `layer = attention + max(hot, hand-over + cold)`
//!
//! Where both processors share one memory, what they do at the same time takes longer by what was measured
//! ([`Together`]).

use super::{
    demand::{Demand, HeadDemand, LayerDemand, Reads, Skips},
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

/// How much of some neurons a token needs: expected numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Load {
    /// Neurons.
    pub neurons: f64,
    /// Those whose firing row is read.
    pub looked: f64,
    /// Those whose other rows are read.
    pub fired: f64,
}

impl Load {
    pub fn minus(self, other: Load) -> Load {
        Load {
            neurons: (self.neurons - other.neurons).max(0.0),
            looked: (self.looked - other.looked).max(0.0),
            fired: (self.fired - other.fired).max(0.0),
        }
    }

    fn plus(self, other: Load) -> Load {
        Load {
            neurons: self.neurons + other.neurons,
            looked: self.looked + other.looked,
            fired: self.fired + other.fired,
        }
    }
}

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
    /// What the first `units` need, from none to all.
    hot: Vec<Load>,
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
        let mut hot = vec![Load::default()];
        let mut sum = Load::default();
        for unit in 0..demand.units() {
            for at in demand.first(unit)..demand.first(unit + 1) {
                sum = sum.plus(Self::one(demand, at));
            }
            hot.push(sum);
        }
        LayerCost { demand, machine, cpu_rest, gpu_rest, hot }
    }

    /// What the neuron at `at` of the order needs.
    fn one(demand: &LayerDemand, at: usize) -> Load {
        let (fires, named) = (f64::from(demand.frequency[at]), f64::from(demand.named[at]));
        let (looked, fired) = match demand.skips {
            Skips::Nothing => (1.0, 1.0),
            Skips::Silent => (1.0, fires),
            Skips::RuledOut => (named, fires),
            Skips::Unchosen => (0.0, fires),
        };
        Load { neurons: 1.0, looked, fired }
    }

    /// What the neurons at these places of the order need.
    pub fn of(&self, places: impl Iterator<Item = usize>) -> Load {
        places.map(|at| Self::one(self.demand, at)).fold(Load::default(), Load::plus)
    }

    /// What the first `units` need.
    pub fn first(&self, units: usize) -> Load {
        self.hot[units.min(self.hot.len() - 1)]
    }

    /// What all need.
    pub fn all(&self) -> Load {
        self.first(usize::MAX)
    }

    /// The layer on the CPU alone.
    pub fn on_cpu(&self) -> LayerTime {
        let cpu = self.cpu_rest + self.cold(self.all());
        LayerTime { cpu, seconds: cpu, ..LayerTime::default() }
    }

    /// The layer on the device but for the neurons that are not `hot`.
    pub fn resident(&self, hot: Load) -> LayerTime {
        let Some(gpu) = &self.machine.gpu else { return LayerTime { seconds: f64::INFINITY, ..LayerTime::default() } };
        let hot_time = self.hot(gpu, hot);
        let working = self.gpu_rest + hot_time;
        let cold = self.all().minus(hot);
        // Half a neuron is what rounding leaves of none.
        if cold.neurons < 0.5 {
            return LayerTime { gpu: working, seconds: working, ..LayerTime::default() };
        }
        let cpu = self.cold(cold);
        let beside = beside((hot_time - gpu.hand_over).max(0.0), cpu, gpu.together);
        LayerTime { gpu: working, cpu, hand_over: gpu.hand_over, seconds: self.gpu_rest + gpu.hand_over + beside }
    }

    fn hot(&self, gpu: &GpuRates, hot: Load) -> f64 {
        if hot.neurons == 0.0 {
            return 0.0;
        }
        let rates = |reads: &Reads, rows: f64| {
            let rate = gpu.rate(reads.ty);
            self.rows(rate, reads.device, rows, hot.neurons)
        };
        self.sum(hot, rates) + FFN_DISPATCHES[self.demand.skips as usize] * gpu.dispatch
    }

    fn cold(&self, cold: Load) -> f64 {
        let cpu = &self.machine.cpu;
        let all = self.demand.neurons() as f64;
        let rates = |reads: &Reads, rows: f64| self.rows(cpu.rate(reads.ty), reads.cpu, rows, all);
        self.sum(cold, rates) + FFN_JOINS * cpu.join
    }

    fn sum(&self, load: Load, time: impl Fn(&Reads, f64) -> f64) -> f64 {
        let others = self.demand.other_reads.iter().map(|reads| time(reads, load.fired)).sum::<f64>();
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
