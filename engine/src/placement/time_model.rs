//! The time model: seconds of a layer, depending on how much of it is resident.
//!
//! Decoding is bound by memory, so a product takes its bytes at the measured rate of its type. A resident layer whose neurons are
//! all hot takes the device's time. Otherwise the CPU needs the FFN's input and its partial sum has to come back, while the device
//! computes the hot neurons:
//!
//! `layer = attention + hand-over + max(hot, cold)`
//!
//! In an MoE layer a token is routed to a few experts, and how many of these are cold differs from token to token: the time is the
//! expected one over all such numbers.
//!
//! The device hides some of the hand-over behind its own work, but pays for it with submissions of its own for every layer.
//!
//! If both processors share one memory, each is slower while the other works, by the measured fractions ([`SharedMemory`]).

use super::{
    cost_profile::{CostProfile, ExpectedRows, HeadCosts, LayerCosts, ReadBytes, SkippedRows},
    machine::{CpuRates, GpuRates, Machine, ProductRate, SharedMemory},
};

/// Dispatches of a resident layer without its FFN: two norms, products, rotation, attention and its merge.
const ATTENTION_DISPATCHES: f64 = 7.0;
/// Dispatches of an FFN, by [`SkippedRows`]: products, activation, sums; products with activation, sums; after a predictor; of experts.
const FFN_DISPATCHES: [f64; 4] = [4.0, 3.0, 9.0, 7.0];
/// Dispatches of the head.
const HEAD_DISPATCHES: f64 = 4.0;
/// Joins of the CPU's workers for attention, for a predictor, and for an FFN.
const ATTENTION_JOINS: f64 = 4.0;
const PREDICTOR_JOINS: f64 = 2.0;
const FFN_JOINS: f64 = 3.0;
/// Most routed experts that the expected time is summed over.
const MAX_ROUTED: f64 = 512.0;

/// Seconds of one layer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LayerTime {
    /// Seconds that the device computes.
    pub gpu: f64,
    /// Seconds that the CPU computes.
    pub cpu: f64,
    /// Seconds of attention or the recurrent mixer, part of those of the side that has them.
    pub attention: f64,
    /// Seconds of the GPU-CPU synchronisation.
    pub hand_over: f64,
    /// Seconds from the layer's beginning to its end.
    pub seconds: f64,
}

/// The time model of one layer on one machine.
#[derive(Debug)]
pub(super) struct LayerTimer<'a> {
    costs: &'a LayerCosts,
    machine: &'a Machine,
    /// Seconds of all but the units, on either side, and of attention alone.
    cpu_rest: f64,
    gpu_rest: f64,
    cpu_attention: f64,
    gpu_attention: f64,
}

impl<'a> LayerTimer<'a> {
    pub fn new(costs: &'a LayerCosts, machine: &'a Machine) -> Self {
        let cpu = &machine.cpu;
        let others = || costs.predictor_reads.iter().chain(&costs.routing_reads);
        let predictor_joins = if costs.predictor_reads.is_empty() { 0.0 } else { PREDICTOR_JOINS };
        let cpu_attention = costs.attention_reads.iter().map(|it| cpu_seconds(cpu, it)).sum::<f64>();
        let cpu_attention = cpu_attention + ATTENTION_JOINS * cpu.join;
        let cpu_rest =
            cpu_attention + others().map(|it| cpu_seconds(cpu, it)).sum::<f64>() + predictor_joins * cpu.join;
        let on_gpu = machine.gpu.as_ref().map(|gpu| {
            let attention = costs.attention_reads.iter().map(|it| gpu_seconds(gpu, it)).sum::<f64>();
            let attention = attention + ATTENTION_DISPATCHES * gpu.dispatch;
            (attention, attention + others().map(|it| gpu_seconds(gpu, it)).sum::<f64>())
        });
        let (gpu_attention, gpu_rest) = on_gpu.unwrap_or((f64::INFINITY, f64::INFINITY));
        LayerTimer { costs, machine, cpu_rest, gpu_rest, cpu_attention, gpu_attention }
    }

    /// The layer on the CPU alone.
    pub fn on_cpu(&self) -> LayerTime {
        let cpu = self.cpu_rest + self.cold_seconds(self.costs.all_rows());
        LayerTime { cpu, attention: self.cpu_attention, seconds: cpu, ..LayerTime::default() }
    }

    /// The layer on the device, except for the units that are not `hot`.
    pub fn resident(&self, hot: ExpectedRows) -> LayerTime {
        let Some(gpu) = &self.machine.gpu else { return LayerTime { seconds: f64::INFINITY, ..LayerTime::default() } };
        let hot_seconds = self.hot_seconds(gpu, hot);
        let gpu_total = self.gpu_rest + hot_seconds;
        let cold = self.costs.all_rows().minus(hot);
        // Half a unit is what rounding leaves of none.
        if cold.units < 0.5 {
            let attention = self.gpu_attention;
            return LayerTime { gpu: gpu_total, attention, seconds: gpu_total, ..LayerTime::default() };
        }
        let (cpu, both) = match self.costs.skips {
            SkippedRows::NotRouted => self.expected_experts(gpu, hot, cold),
            _ => {
                let cpu = self.cold_seconds(cold);
                (cpu, concurrent_seconds(hot_seconds, cpu, gpu.together))
            }
        };
        LayerTime {
            gpu: gpu_total,
            cpu,
            attention: self.gpu_attention,
            hand_over: gpu.hand_over,
            seconds: self.gpu_rest + gpu.hand_over + both,
        }
    }

    /// Expected seconds of the CPU, and until both processors are done, where each of a token's experts is cold with the same
    /// probability.
    fn expected_experts(&self, gpu: &GpuRates, hot: ExpectedRows, cold: ExpectedRows) -> (f64, f64) {
        let all = hot.fires + cold.fires;
        if all <= 0.0 {
            return (0.0, self.hot_seconds(gpu, hot));
        }
        let routed = all.round().clamp(1.0, MAX_ROUTED) as usize;
        let (p_cold, each) = ((cold.fires / all).clamp(0.0, 1.0), all / routed as f64);
        let mut sums = (0.0, 0.0);
        // Summands of the binomial distribution; where all are cold there is a single one.
        let mut probability = (1.0 - p_cold).powi(routed as i32);
        for count in if p_cold < 1.0 { 0 } else { routed }..=routed {
            if p_cold >= 1.0 {
                probability = 1.0;
            }
            let cpu = match count {
                0 => 0.0,
                count => self.cold_seconds(ExpectedRows { other_rows: count as f64 * each, ..cold }),
            };
            let device = self.hot_seconds(gpu, ExpectedRows { other_rows: (routed - count) as f64 * each, ..hot });
            sums.0 += probability * cpu;
            sums.1 += probability * concurrent_seconds(device, cpu, gpu.together);
            probability *= (routed - count) as f64 / (count + 1) as f64 * p_cold / (1.0 - p_cold);
        }
        sums
    }

    /// Seconds of the device for the hot units.
    fn hot_seconds(&self, gpu: &GpuRates, hot: ExpectedRows) -> f64 {
        if hot.units == 0.0 {
            return 0.0;
        }
        let rows = |reads: &ReadBytes, rows: f64| {
            let rate = gpu.rate(reads.ty);
            self.rows_seconds(rate, reads.device, rows, hot.units)
        };
        let whole = self.costs.whole_reads.iter().map(|reads| gpu_seconds(gpu, reads)).sum::<f64>();
        self.units_seconds(hot, rows) + whole + FFN_DISPATCHES[self.costs.skips as usize] * gpu.dispatch
    }

    /// Seconds of the CPU for the cold units.
    fn cold_seconds(&self, cold: ExpectedRows) -> f64 {
        let cpu = &self.machine.cpu;
        let all = self.costs.units() as f64;
        let rows = |reads: &ReadBytes, rows: f64| self.rows_seconds(cpu.rate(reads.ty), reads.cpu, rows, all);
        // The CPU computes expert after expert.
        let times = if self.costs.skips == SkippedRows::NotRouted { cold.other_rows } else { 1.0 };
        let whole = self.costs.whole_reads.iter().map(|reads| cpu_seconds(cpu, reads)).sum::<f64>();
        self.units_seconds(cold, rows) + whole + times * FFN_JOINS * cpu.join
    }

    fn units_seconds(&self, of: ExpectedRows, rows_seconds: impl Fn(&ReadBytes, f64) -> f64) -> f64 {
        let others = self.costs.other_reads.iter().map(|reads| rows_seconds(reads, of.other_rows)).sum::<f64>();
        rows_seconds(&self.costs.firing_read, of.firing_rows) + others
    }

    /// Seconds to read `rows` rows of `bytes` each out of `of`: the denser they lie, the more of them follow one another. Never
    /// more than to read them all.
    fn rows_seconds(&self, rate: ProductRate, bytes: u64, rows: f64, of: f64) -> f64 {
        let bytes = bytes as f64;
        if self.costs.skips == SkippedRows::NotRouted || of <= 0.0 {
            return bytes * rows / rate.sequential;
        }
        let density = (rows / of).clamp(0.0, 1.0);
        let each = density / rate.sequential + (1.0 - density) / rate.scattered;
        (bytes * rows * each).min(bytes * of / rate.sequential)
    }
}

/// Seconds until both processors are done that begin together and take `gpu` and `cpu` seconds alone.
fn concurrent_seconds(gpu: f64, cpu: f64, together: Option<SharedMemory>) -> f64 {
    let Some(together) = together else { return gpu.max(cpu) };
    let (slow_gpu, slow_cpu) = (gpu / together.gpu, cpu / together.cpu);
    // After the first is done, the other goes on at its full speed.
    let (first, (slow, alone)) =
        if slow_gpu < slow_cpu { (slow_gpu, (slow_cpu, cpu)) } else { (slow_cpu, (slow_gpu, gpu)) };
    if slow > 0.0 { first + (1.0 - first / slow) * alone } else { 0.0 }
}

fn cpu_seconds(cpu: &CpuRates, reads: &ReadBytes) -> f64 {
    reads.cpu as f64 / cpu.rate(reads.ty).sequential
}

fn gpu_seconds(gpu: &GpuRates, reads: &ReadBytes) -> f64 {
    reads.device as f64 / gpu.rate(reads.ty).sequential
}

/// Seconds of the head, resident or on the CPU.
pub(super) fn head_seconds(head: &HeadCosts, machine: &Machine, resident: bool) -> f64 {
    match &machine.gpu {
        Some(gpu) if resident => gpu_seconds(gpu, &head.reads) + HEAD_DISPATCHES * gpu.dispatch,
        _ => cpu_seconds(&machine.cpu, &head.reads) + machine.cpu.join,
    }
}

/// Seconds that a token costs as soon as one layer is resident: its submission, and the way back of its results.
pub(super) fn token_seconds(machine: &Machine) -> f64 {
    machine.gpu.as_ref().map_or(f64::INFINITY, |gpu| gpu.hand_over)
}

/// One timer per layer of `profile` on `machine`.
pub(super) fn layer_timers<'a>(profile: &'a CostProfile, machine: &'a Machine) -> Vec<LayerTimer<'a>> {
    profile.layers.iter().map(|layer| LayerTimer::new(layer, machine)).collect()
}
