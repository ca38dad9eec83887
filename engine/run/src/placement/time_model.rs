//! The time model: seconds of a layer, depending on how much of it is resident.
//!
//! Decoding is limited by memory, so a product takes its bytes divided by the measured rate of its
//! type. A resident layer whose neurons are all hot takes the device's time. Otherwise the CPU
//! needs the FFN's input and returns its partial sum, while the device computes the hot neurons:
//!
//! `layer = attention + hand-over + max(hot, cold)`
//!
//! In an MoE layer a token is routed to a few experts, and the number of cold ones differs from
//! token to token. The time is the expected value over all such numbers.
//!
//! The device hides some of the hand-over behind its own work, but pays with separate submissions
//! for every layer.
//!
//! A driver lowers the clocks of a device that waits, and a short submission does not raise them
//! again. About one layer's work after a wait is as slow as in bursts ([`DeviceClocks::Sunken`]);
//! the rest is as fast as without waits. The device waits while the CPU computes:
//!
//! - A split layer waits for the CPU's partial sum, so every split layer is priced as a burst,
//!   including its attention. The wait is at the layer's end. In reality the layer after a run of
//!   split layers is slow instead of the first layer of the run.
//! - Consecutive whole layers are one submission without waits, except the first. If the CPU
//!   computes the layers below, the device has waited, and the first whole layer is a burst. A few
//!   whole layers above the CPU's therefore cost more per layer than many.
//! - A resident head is submitted with the last layer. After a split layer it is a burst as well.
//!
//! If the device computes all layers of a token alone, it waits once per token: for sampling, or
//! for a head on the CPU. No part of such a token is priced as a burst.
//!
//! If both processors share one memory, each is slower while the other works, by the measured
//! fractions ([`SharedMemory`]).

use super::{
    cost_profile::{CostProfile, HeadCosts},
    layer_costs::{LayerCosts, ReadBytes},
    machine::{CpuRates, DeviceClocks, GpuRates, Machine, ProductRate, SharedMemory},
    skipped_rows::{ExpectedRows, SkippedRows},
};
use thermocline_formats::quant::TensorType;

/// Dispatches of a resident layer without its FFN: two norms, products, rotation, attention and its
/// merge.
const ATTENTION_DISPATCHES: f64 = 7.0;
/// Dispatches of the head.
const HEAD_DISPATCHES: f64 = 4.0;
/// Joins of the CPU's workers for attention, for a predictor, and for an FFN.
const ATTENTION_JOINS: f64 = 4.0;
const PREDICTOR_JOINS: f64 = 2.0;
const FFN_JOINS: f64 = 3.0;
/// Most routed experts that the expected time is summed over.
const MAX_ROUTED: f64 = 512.0;

/// Dispatches of an FFN.
fn ffn_dispatches(skips: SkippedRows) -> f64 {
    match skips {
        // Products, activation, and sums.
        SkippedRows::Nothing => 4.0,
        // Products with the activation, and sums.
        SkippedRows::Silent => 3.0,
        SkippedRows::NotPredicted => 9.0,
        SkippedRows::NotRouted => 7.0,
    }
}

/// Seconds of one layer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LayerTime {
    /// Seconds that the device computes.
    pub gpu: f64,
    /// Seconds that the CPU computes.
    pub cpu: f64,
    /// Seconds of attention or the recurrent mixer, included in the seconds of the side that
    /// computes it.
    pub attention: f64,
    /// Seconds of the GPU-CPU synchronisation.
    pub hand_over: f64,
    /// Seconds from the start of the layer to its end.
    pub seconds: f64,
}

/// One processor's times for a layer, looked up once because a solver needs them for every number
/// of hot units.
#[derive(Debug)]
struct LayerRates {
    /// Seconds of attention or the recurrent mixer.
    attention: f64,
    /// Seconds of everything except the units: attention, predictor, router and shared expert.
    rest: f64,
    /// Rate of the units' firing rows.
    firing: ProductRate,
    /// Rate of each of the units' other rows.
    others: Vec<ProductRate>,
    /// Seconds of the matrices without a row per neuron.
    whole: f64,
}

impl LayerRates {
    /// Computes the times of `costs`. `bytes` returns the processor's bytes of a read, and `rate`
    /// the rate of a weight type. `starts` are the seconds of attention besides its reads.
    fn new(
        costs: &LayerCosts,
        bytes: fn(&ReadBytes) -> u64,
        rate: impl Fn(TensorType) -> ProductRate,
        starts: f64,
    ) -> Self {
        let seconds = |reads: &ReadBytes| bytes(reads) as f64 / rate(reads.ty).sequential;
        let attention = costs.attention_reads.iter().chain(&costs.cache_reads).map(seconds).sum::<f64>() + starts;
        let others = costs.predictor_reads.iter().chain(&costs.routing_reads);
        LayerRates {
            attention,
            rest: attention + others.map(seconds).sum::<f64>(),
            firing: rate(costs.firing_read.ty),
            others: costs.other_reads.iter().map(|reads| rate(reads.ty)).collect(),
            whole: costs.whole_reads.iter().map(seconds).sum(),
        }
    }
}

/// The time model of one layer on one machine.
#[derive(Debug)]
pub(super) struct LayerTimer<'a> {
    costs: &'a LayerCosts,
    machine: &'a Machine,
    cpu: LayerRates,
    device: Option<DeviceTimer<'a>>,
}

/// The device's part of a [`LayerTimer`], for both kinds of clocks.
#[derive(Debug)]
struct DeviceTimer<'a> {
    gpu: &'a GpuRates,
    sustained: LayerRates,
    sunken: LayerRates,
}

impl<'a> LayerTimer<'a> {
    pub fn new(costs: &'a LayerCosts, machine: &'a Machine) -> Self {
        let cpu = &machine.cpu;
        let mut on_cpu = LayerRates::new(costs, |it| it.cpu, |ty| cpu.rate(ty), ATTENTION_JOINS * cpu.join);
        if !costs.predictor_reads.is_empty() {
            on_cpu.rest += PREDICTOR_JOINS * cpu.join;
        }
        let device = machine.gpu.as_ref().map(|gpu| {
            let starts = ATTENTION_DISPATCHES * gpu.dispatch;
            let with = |clocks| LayerRates::new(costs, |it| it.device, |ty| gpu.rate_at(clocks, ty), starts);
            DeviceTimer { gpu, sustained: with(DeviceClocks::Sustained), sunken: with(DeviceClocks::Sunken) }
        });
        LayerTimer { costs, machine, cpu: on_cpu, device }
    }

    /// Time of the layer on the CPU alone.
    pub fn on_cpu(&self) -> LayerTime {
        let cpu = self.cpu.rest + self.cold_seconds(self.costs.all_rows());
        LayerTime { cpu, attention: self.cpu.attention, seconds: cpu, ..LayerTime::default() }
    }

    /// Time of the layer on the device, without the units that are not `hot`. `begins` are the
    /// device's clocks at the start of the layer. With cold units the clocks always sink.
    pub fn resident(&self, hot: ExpectedRows, begins: DeviceClocks) -> LayerTime {
        let Some(device) = &self.device else { return LayerTime { seconds: f64::INFINITY, ..LayerTime::default() } };
        let gpu = device.gpu;
        let cold = self.costs.all_rows().minus(hot);
        // Rounding may leave up to half a unit.
        let is_whole = cold.units < 0.5;
        let rates = match begins {
            DeviceClocks::Sustained if is_whole => &device.sustained,
            _ => &device.sunken,
        };
        let hot_seconds = self.hot_seconds(gpu, rates, hot);
        let (attention, gpu_total) = (rates.attention, rates.rest + hot_seconds);
        if is_whole {
            return LayerTime { gpu: gpu_total, attention, seconds: gpu_total, ..LayerTime::default() };
        }
        let (cpu, both) = match self.costs.skips {
            SkippedRows::NotRouted => self.expected_experts(device, hot, cold),
            _ => {
                let cpu = self.cold_seconds(cold);
                (cpu, concurrent_seconds(hot_seconds, cpu, gpu.together))
            }
        };
        let seconds = rates.rest + gpu.hand_over + both;
        LayerTime { gpu: gpu_total, cpu, attention, hand_over: gpu.hand_over, seconds }
    }

    /// Additional seconds of the whole layer on a device that has just waited.
    pub fn rested_seconds(&self) -> f64 {
        let whole = |begins| self.resident(self.costs.all_rows(), begins).seconds;
        if self.device.is_none() { 0.0 } else { whole(DeviceClocks::Sunken) - whole(DeviceClocks::Sustained) }
    }

    /// Expected seconds of a split layer: of the CPU, and until both processors are done. Each of a
    /// token's experts is cold with the same probability.
    fn expected_experts(&self, device: &DeviceTimer<'_>, hot: ExpectedRows, cold: ExpectedRows) -> (f64, f64) {
        let DeviceTimer { gpu, sunken, .. } = device;
        let all = hot.fires + cold.fires;
        if all <= 0.0 {
            return (0.0, self.hot_seconds(gpu, sunken, hot));
        }
        let routed = all.round().clamp(1.0, MAX_ROUTED) as usize;
        let (p_cold, each) = ((cold.fires / all).clamp(0.0, 1.0), all / routed as f64);
        let mut sums = (0.0, 0.0);
        // Terms of the binomial distribution. If all experts are cold, there is a single term.
        let mut probability = (1.0 - p_cold).powi(routed as i32);
        for count in if p_cold < 1.0 { 0 } else { routed }..=routed {
            if p_cold >= 1.0 {
                probability = 1.0;
            }
            let cpu = match count {
                0 => 0.0,
                count => self.cold_seconds(ExpectedRows { other_rows: count as f64 * each, ..cold }),
            };
            let resident = ExpectedRows { other_rows: (routed - count) as f64 * each, ..hot };
            let on_device = self.hot_seconds(gpu, sunken, resident);
            sums.0 += probability * cpu;
            sums.1 += probability * concurrent_seconds(on_device, cpu, gpu.together);
            probability *= (routed - count) as f64 / (count + 1) as f64 * p_cold / (1.0 - p_cold);
        }
        sums
    }

    /// Seconds of the device for the hot units.
    fn hot_seconds(&self, gpu: &GpuRates, rates: &LayerRates, hot: ExpectedRows) -> f64 {
        if hot.units == 0.0 {
            return 0.0;
        }
        let units = self.units_seconds(rates, |reads| reads.device, hot, hot.units);
        units + rates.whole + ffn_dispatches(self.costs.skips) * gpu.dispatch
    }

    /// Seconds of the CPU for the cold units.
    fn cold_seconds(&self, cold: ExpectedRows) -> f64 {
        // The CPU computes one expert after the other.
        let times = if self.costs.skips == SkippedRows::NotRouted { cold.other_rows } else { 1.0 };
        let units = self.units_seconds(&self.cpu, |reads| reads.cpu, cold, self.costs.units() as f64);
        units + self.cpu.whole + times * FFN_JOINS * self.machine.cpu.join
    }

    /// Seconds of a processor for the rows `read` of its `all` units.
    fn units_seconds(&self, rates: &LayerRates, bytes: fn(&ReadBytes) -> u64, read: ExpectedRows, all: f64) -> f64 {
        let others = self.costs.other_reads.iter().zip(&rates.others);
        let others =
            others.map(|(reads, rate)| self.rows_seconds(*rate, bytes(reads), read.other_rows, all)).sum::<f64>();
        self.rows_seconds(rates.firing, bytes(&self.costs.firing_read), read.firing_rows, all) + others
    }

    /// Seconds to read `rows` of `of` rows, of `bytes` each. The denser the rows, the more of them
    /// are adjacent. Never more than reading all rows.
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

/// Seconds until both processors are done, if they start together and alone would take `gpu` and
/// `cpu` seconds.
pub(super) fn concurrent_seconds(gpu: f64, cpu: f64, together: Option<SharedMemory>) -> f64 {
    let Some(together) = together else { return gpu.max(cpu) };
    let (slow_gpu, slow_cpu) = (gpu / together.gpu, cpu / together.cpu);
    // After the first processor is done, the other continues at full speed.
    let (first, (slow, alone)) =
        if slow_gpu < slow_cpu { (slow_gpu, (slow_cpu, cpu)) } else { (slow_cpu, (slow_gpu, gpu)) };
    if slow > 0.0 { first + (1.0 - first / slow) * alone } else { 0.0 }
}

/// The activation threshold of neurons on the device, relative to neurons on the CPU, at which
/// skipping has the least expected error for the time that it saves. A neuron is skipped if the
/// square of its error is less than a constant times the seconds of its skipped rows. The ratio is
/// therefore the root of the ratio of both sides' seconds. It is at most 1, so that no side skips
/// more than the model's thresholds say, and 1 if the speeds were not measured.
pub(super) fn threshold_ratio(profile: &CostProfile, machine: &Machine) -> f32 {
    let Some(gpu) = machine.gpu.as_ref().filter(|_| !machine.assumed) else { return 1.0 };
    let dense = profile.layers.iter().filter(|layer| layer.skips != SkippedRows::NotRouted);
    let reads: Vec<&ReadBytes> = dense.flat_map(|layer| &layer.other_reads).collect();
    let cold: f64 = reads.iter().map(|reads| reads.cpu as f64 / machine.cpu.rate(reads.ty).scattered).sum();
    let hot: f64 = reads.iter().map(|reads| reads.device as f64 / gpu.rate(reads.ty).scattered).sum();
    if hot < cold { (hot / cold).sqrt() as f32 } else { 1.0 }
}

fn cpu_seconds(cpu: &CpuRates, reads: &ReadBytes) -> f64 {
    reads.cpu as f64 / cpu.rate(reads.ty).sequential
}

fn gpu_seconds(gpu: &GpuRates, clocks: DeviceClocks, reads: &ReadBytes) -> f64 {
    reads.device as f64 / gpu.rate_at(clocks, reads.ty).sequential
}

/// Seconds of the head: on a device with the clocks `resident`, or on the CPU.
pub(super) fn head_seconds(head: &HeadCosts, machine: &Machine, resident: Option<DeviceClocks>) -> f64 {
    match (&machine.gpu, resident) {
        (Some(gpu), Some(clocks)) => gpu_seconds(gpu, clocks, &head.reads) + HEAD_DISPATCHES * gpu.dispatch,
        _ => cpu_seconds(&machine.cpu, &head.reads) + machine.cpu.join,
    }
}

/// Additional seconds of a resident head after a split layer.
pub(super) fn rested_head_seconds(head: &HeadCosts, machine: &Machine) -> f64 {
    let resident = |clocks| head_seconds(head, machine, Some(clocks));
    resident(DeviceClocks::Sunken) - resident(DeviceClocks::Sustained)
}

/// Seconds that a token costs as soon as one layer is resident: submission, and reading back the
/// results.
pub(super) fn token_seconds(machine: &Machine) -> f64 {
    machine.gpu.as_ref().map_or(f64::INFINITY, |gpu| gpu.hand_over)
}

/// One timer per layer of `profile` on `machine`.
pub(super) fn layer_timers<'a>(profile: &'a CostProfile, machine: &'a Machine) -> Vec<LayerTimer<'a>> {
    profile.layers.iter().map(|layer| LayerTimer::new(layer, machine)).collect()
}
