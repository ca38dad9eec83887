//! A placement with what it costs.

use super::{
    Placement,
    cost::{self, LayerTime},
    demand::{Assumption, Demand, Skips},
    machine::Machine,
};

/// Device bytes of a plan, by purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlanBytes {
    /// Query, key, value and output matrices.
    pub attention: u64,
    /// Hot neurons, routers, shared experts, and the tables of split layers.
    pub ffn: u64,
    /// The head.
    pub head: u64,
    /// Norms and biases.
    pub vectors: u64,
    /// Keys and values.
    pub kv: u64,
    /// Registers and temporaries.
    pub scratch: u64,
    /// Rings that carry data up and down.
    pub staging: u64,
    /// Predictors.
    pub predictor: u64,
    /// What carries cold rows of prompts to the device ([`Slab`](super::Slab)).
    pub slab: u64,
}

impl PlanBytes {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.by_name().iter().map(|(_, bytes)| bytes).sum()
    }

    /// With the names they are shown under.
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
            ("streamed prompts", self.slab),
        ]
    }
}

/// One layer of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerPlan {
    /// Whether its attention is on the device.
    pub resident: bool,
    /// Whether it is a mixture, whose experts are counted in place of neurons.
    pub experts: bool,
    /// Hot neurons (experts).
    pub hot: usize,
    /// All of them.
    pub neurons: usize,
    /// Neurons that fire for a token, on average.
    pub firings: f64,
    /// Those of them that are hot.
    pub hot_firings: f64,
    /// Device bytes.
    pub bytes: u64,
    /// Time.
    pub time: LayerTime,
}

/// What a token's time goes into most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bottleneck {
    /// The CPU computes.
    Cpu,
    /// The device computes.
    Gpu,
    /// One waits for the other's answer.
    HandOver,
}

impl Bottleneck {
    /// In a few words.
    pub const fn name(self) -> &'static str {
        match self {
            Bottleneck::Cpu => "the CPU's memory",
            Bottleneck::Gpu => "the GPU",
            Bottleneck::HandOver => "hand-overs",
        }
    }
}

/// A placement, and what is to be expected of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What is resident.
    pub placement: Placement,
    /// Device bytes.
    pub bytes: PlanBytes,
    /// Every layer.
    pub layers: Vec<LayerPlan>,
    /// Seconds of the head.
    pub head_seconds: f64,
    /// Seconds of a token beside its layers and the head: the way to the device and back.
    pub token_seconds: f64,
    /// Seconds of a token.
    pub seconds: f64,
    /// What had to be taken for granted.
    pub assumptions: Vec<Assumption>,
}

impl Plan {
    /// What is to be expected of `placement`, which is brought into the order of `demand` where it has neurons the model has
    /// not, or hot ones in layers that are not resident.
    pub fn of(demand: &Demand, machine: &Machine, placement: Placement) -> Self {
        let placement = placement.within(demand);
        let costs = cost::layers(demand, machine);
        let any = placement.first_resident < demand.layers.len();
        let mut bytes = PlanBytes::default();
        if any {
            (bytes.scratch, bytes.staging) = (demand.scratch, demand.staging);
        }
        if placement.head {
            bytes.head = demand.head.matrix;
            bytes.vectors += demand.head.vectors;
            bytes.scratch += demand.head.scratch;
        }
        let mut layers = Vec::with_capacity(costs.len());
        for (at, (layer, cost)) in demand.layers.iter().zip(&costs).enumerate() {
            let resident = at >= placement.first_resident;
            let hot = &placement.hot[at];
            let load = layer.load(hot);
            let mut of_layer = 0;
            if resident {
                let ffn = layer.routing + layer.split + hot.len() as u64 * layer.neuron;
                of_layer = layer.attention + layer.vectors + layer.kv + layer.predictor + ffn;
                bytes.attention += layer.attention;
                bytes.vectors += layer.vectors;
                bytes.kv += layer.kv;
                bytes.predictor += layer.predictor;
                bytes.ffn += ffn;
            }
            layers.push(LayerPlan {
                resident,
                experts: layer.skips == Skips::Unchosen,
                hot: hot.len(),
                neurons: layer.neurons(),
                firings: layer.all().fires,
                hot_firings: load.fires,
                bytes: of_layer,
                time: if resident { cost.resident(load) } else { cost.on_cpu() },
            });
        }
        let head_seconds = cost::head(&demand.head, machine, placement.head);
        let token_seconds = if any { cost::token(machine) } else { 0.0 };
        let seconds = layers.iter().map(|layer| layer.time.seconds).sum::<f64>() + head_seconds + token_seconds;
        let mut assumptions = demand.assumptions.clone();
        if machine.assumed {
            assumptions.push(Assumption::TypicalMachine);
        }
        let unknown = demand.types().into_iter().filter(|ty| !machine.knows(&[*ty]));
        assumptions.extend(unknown.map(Assumption::UnmeasuredType));
        Plan { placement, bytes, layers, head_seconds, token_seconds, seconds, assumptions }
    }

    /// Tokens per second.
    pub fn tokens_per_second(&self) -> f64 {
        1.0 / self.seconds
    }

    /// Share of all firings that hot neurons have.
    pub fn hot_share(&self) -> f64 {
        let sum = |of: fn(&LayerPlan) -> f64| self.layers.iter().map(of).sum::<f64>();
        sum(|layer| layer.hot_firings) / sum(|layer| layer.firings).max(f64::MIN_POSITIVE)
    }

    /// What would have to be quicker.
    pub fn bottleneck(&self) -> Bottleneck {
        let (mut cpu, mut gpu, mut hand_over) = (0.0, 0.0, self.token_seconds);
        for LayerPlan { time, .. } in &self.layers {
            // Where one waits for the other, the one that is waited for is to blame.
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
