//! A placement with its bytes and its expected times.

use std::fmt;

use super::{
    CostProfile, DeviceClocks, LayerTime, Machine, Placement, SkippedRows,
    time_model::{head_seconds, layer_timers, token_seconds},
};
use thermocline_formats::quant::TensorType;

/// Device bytes of a plan, by purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlanBytes {
    /// Query, key, value and output matrices.
    pub attention: u64,
    /// Hot neurons, routers, shared experts, and slot tables.
    pub ffn: u64,
    /// The head.
    pub head: u64,
    /// Norms and biases.
    pub vectors: u64,
    /// Keys and values.
    pub kv: u64,
    /// Registers and temporaries.
    pub scratch: u64,
    /// Rings for uploads and results.
    pub staging: u64,
    /// Predictors.
    pub predictor: u64,
    /// The streaming buffer for cold neurons and experts of prompts
    /// ([`StreamingBufferSize`](super::StreamingBufferSize)).
    pub streaming_buffer: u64,
}

impl PlanBytes {
    /// Sum over all purposes.
    pub fn total(&self) -> u64 {
        self.by_name().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of weights.
    pub fn weights(&self) -> u64 {
        self.attention + self.ffn + self.head + self.vectors + self.predictor
    }

    /// Bytes with the names under which they are shown.
    pub fn by_name(&self) -> [(&'static str, u64); 9] {
        [
            ("attention weights", self.attention),
            ("FFN weights", self.ffn),
            ("head", self.head),
            ("norms and biases", self.vectors),
            ("KV cache", self.kv),
            ("scratch", self.scratch),
            ("staging", self.staging),
            ("predictors", self.predictor),
            ("streamed prompts", self.streaming_buffer),
        ]
    }
}

/// One layer of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerPlan {
    /// True if the layer's attention is on the device.
    pub resident: bool,
    /// True for an MoE layer, whose units are experts instead of neurons.
    pub experts: bool,
    /// Number of hot units: neurons, or experts.
    pub hot: usize,
    /// Number of all units.
    pub units: usize,
    /// Mean number of units that fire for a token.
    pub firings: f64,
    /// Mean number of hot units that fire for a token.
    pub hot_firings: f64,
    /// Device bytes.
    pub bytes: u64,
    /// Expected time.
    pub time: LayerTime,
}

/// The part of the machine that takes most of a token's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bottleneck {
    /// The CPU computes.
    Cpu,
    /// The device computes.
    Gpu,
    /// The processors wait for each other's results.
    HandOver,
}

impl Bottleneck {
    /// The name shown to users.
    pub const fn name(self) -> &'static str {
        match self {
            Bottleneck::Cpu => "the CPU's memory",
            Bottleneck::Gpu => "the GPU",
            Bottleneck::HandOver => "hand-overs",
        }
    }
}

/// Fewest hot experts that are worth their memory, in multiples of the experts per token. A few
/// tokens use all of a smaller number.
pub const WORTHWHILE_EXPERTS: usize = 3;

/// An assumption about something that was not measured, or a reason against the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assumption {
    /// No profile has counted firings, so all neurons are assumed to fire equally often.
    NoProfile,
    /// The speeds are published or typical figures.
    UnmeasuredMachine,
    /// The speed of weights of this type was not measured.
    UnmeasuredType(TensorType),
    /// Some layer has fewer hot experts than [`WORTHWHILE_EXPERTS`] times the experts per token.
    FewExperts {
        /// Number of hot experts in that layer.
        hot: usize,
        /// Experts per token.
        used: usize,
    },
}

impl fmt::Display for Assumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Assumption::NoProfile => {
                f.write_str("no profile says how often neurons fire, so the plan assumes that all fire equally often")
            }
            Assumption::UnmeasuredMachine => f.write_str(
                "this machine was not measured, so its speeds are published figures or those of a typical desktop",
            ),
            Assumption::FewExperts { hot, used } => write!(
                f,
                "a layer has {hot} experts in VRAM, fewer than {WORTHWHILE_EXPERTS} times the {used} experts that a \
                 token uses: so few experts save no time"
            ),
            Assumption::UnmeasuredType(ty) => {
                write!(f, "{ty} weights were not measured, so the plan assumes the speed of the slowest measured type")
            }
        }
    }
}

/// A placement with its bytes and its expected times.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The resident parts of the model.
    pub placement: Placement,
    /// Device bytes.
    pub bytes: PlanBytes,
    /// One entry per layer.
    pub layers: Vec<LayerPlan>,
    /// Seconds of the head.
    pub head_seconds: f64,
    /// Seconds of a token outside its layers and the head: the transfers to the device and back.
    pub token_seconds: f64,
    /// Seconds of a token.
    pub seconds: f64,
    /// Assumptions about values that were not measured.
    pub assumptions: Vec<Assumption>,
}

impl Plan {
    /// Prices `placement`, after making it valid for the model ([`Placement::valid_for`]).
    pub fn new(profile: &CostProfile, machine: &Machine, placement: Placement) -> Self {
        let placement = placement.valid_for(profile);
        let any_resident = placement.any_resident();
        let mut bytes = PlanBytes::default();
        if any_resident {
            (bytes.scratch, bytes.staging) = (profile.scratch, profile.staging);
        }
        if placement.head {
            bytes.head = profile.head.matrix;
            bytes.vectors += profile.head.vectors;
            bytes.scratch += profile.head.scratch;
        }
        let timers = layer_timers(profile, machine);
        let mut layers = Vec::with_capacity(timers.len());
        for (at, (layer, timer)) in profile.layers.iter().zip(&timers).enumerate() {
            let resident = at >= placement.first_resident;
            let hot = &placement.hot[at];
            let hot_rows = layer.rows_of(hot);
            // After the CPU's layers, the device has waited.
            let begins = DeviceClocks::after_wait(at > 0 && at == placement.first_resident);
            let mut layer_bytes = 0;
            if resident {
                let ffn = layer.routing + layer.split_tables + layer.hot_bytes(hot.len());
                layer_bytes = layer.attention + layer.vectors + layer.kv + layer.predictor + ffn;
                bytes.attention += layer.attention;
                bytes.vectors += layer.vectors;
                bytes.kv += layer.kv;
                bytes.predictor += layer.predictor;
                bytes.ffn += ffn;
            }
            layers.push(LayerPlan {
                resident,
                experts: layer.skips == SkippedRows::NotRouted,
                hot: hot.len(),
                units: layer.units(),
                firings: layer.all_rows().fires,
                hot_firings: hot_rows.fires,
                bytes: layer_bytes,
                time: if resident { timer.resident(hot_rows, begins) } else { timer.on_cpu() },
            });
        }
        let behind_split = layers.last().is_some_and(|last| last.resident && last.hot < last.units);
        let head_clocks = placement.head.then_some(DeviceClocks::after_wait(behind_split));
        let head_seconds = head_seconds(&profile.head, machine, head_clocks);
        let token_seconds = if any_resident { token_seconds(machine) } else { 0.0 };
        let seconds = layers.iter().map(|layer| layer.time.seconds).sum::<f64>() + head_seconds + token_seconds;
        let mut assumptions = profile.assumptions.clone();
        if machine.assumed {
            assumptions.push(Assumption::UnmeasuredMachine);
        }
        let unmeasured = profile.weight_types().into_iter().filter(|ty| !machine.knows(&[*ty]));
        assumptions.extend(unmeasured.map(Assumption::UnmeasuredType));
        assumptions.extend(layers.iter().filter_map(few_experts).min_by_key(|few| match few {
            Assumption::FewExperts { hot, .. } => *hot,
            _ => usize::MAX,
        }));
        Plan { placement, bytes, layers, head_seconds, token_seconds, seconds, assumptions }
    }

    /// Tokens per second.
    pub fn tokens_per_second(&self) -> f64 {
        1.0 / self.seconds
    }

    /// Fraction of all firings that hot units account for, from 0 to 1.
    pub fn hot_fraction(&self) -> f64 {
        let sum = |of: fn(&LayerPlan) -> f64| self.layers.iter().map(of).sum::<f64>();
        sum(|layer| layer.hot_firings) / sum(|layer| layer.firings).max(f64::MIN_POSITIVE)
    }

    /// Number of hot units, and of all units: neurons, or experts in MoE layers.
    pub fn units(&self) -> (usize, usize) {
        (self.layers.iter().map(|layer| layer.hot).sum(), self.layers.iter().map(|layer| layer.units).sum())
    }

    /// The part of the machine that limits the speed.
    pub fn bottleneck(&self) -> Bottleneck {
        let (mut cpu, mut gpu, mut hand_over) = (0.0, 0.0, self.token_seconds);
        for LayerPlan { time, .. } in &self.layers {
            // In a layer that both compute, the slower side counts.
            if time.cpu + time.hand_over >= time.gpu {
                cpu += time.cpu;
                hand_over += time.hand_over;
            } else {
                gpu += time.gpu;
            }
        }
        *(if self.placement.head { &mut gpu } else { &mut cpu }) += self.head_seconds;
        if cpu >= gpu && cpu >= hand_over {
            Bottleneck::Cpu
        } else if gpu >= hand_over {
            Bottleneck::Gpu
        } else {
            Bottleneck::HandOver
        }
    }
}

/// Returns the assumption if a layer has too few hot experts to be useful.
fn few_experts(layer: &LayerPlan) -> Option<Assumption> {
    let used = layer.firings.round() as usize;
    let few = layer.experts && layer.hot > 0 && layer.hot < (WORTHWHILE_EXPERTS * used).min(layer.units);
    few.then_some(Assumption::FewExperts { hot: layer.hot, used })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_hot_experts_are_told() {
        let layer = |experts, hot| LayerPlan {
            resident: true,
            experts,
            hot,
            units: 64,
            firings: 7.9,
            hot_firings: 0.0,
            bytes: 0,
            time: LayerTime::default(),
        };
        let told = |experts, hot| few_experts(&layer(experts, hot)).is_some();
        assert_eq!([0, 1, 23, 24, 64].map(|hot| told(true, hot)), [false, true, true, false, false]);
        assert!(!told(false, 5));
        let text = few_experts(&layer(true, 5)).unwrap().to_string();
        assert!(text.contains("5 experts") && text.contains("the 8 experts that"), "{text}");
    }
}
