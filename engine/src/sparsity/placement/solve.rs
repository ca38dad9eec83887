//! The best placement under a budget.
//!
//! A layer may be the CPU's, or be resident with any number of its hottest neurons. For each number its bytes and its time are
//! known, and both only add up over layers, so that the best plans of the last layers are enough to find the best plans of
//! one layer more: dynamic programming from the last layer to the first. What it keeps are plans such that no other has
//! both fewer bytes and less time, a few thousand of them, spread evenly over the bytes there are. Since the resident layers are the
//! last ones, each step also gives the plans in which all layers before are the CPU's.
//!
//! That makes one curve, time against bytes, for all budgets at once: a larger budget can never be slower.

use super::{
    Placement, Plan,
    cost::{self, LayerCost},
    demand::{Demand, LayerDemand},
    machine::Machine,
};

/// Plans kept after each layer: at most twice as many as this.
const PLANS: u64 = 3072;
/// A number of hot neurons is considered if it makes the layer faster by this share than the last number considered, or has by
/// this factor more neurons.
const LEAST_GAIN: f64 = 0.02;
const LEAST_GROWTH: f64 = 1.5;
/// Layers of up to so many units have every number considered.
const FEW_UNITS: usize = 24;

/// A budget from here on has to hold what the driver's allocator reserves, too, which hands out whole blocks.
const BLOCKS_FROM: u64 = 64 << 20;
/// Share of the budget that blocks may leave empty, and most bytes of them.
const BLOCKS_SHARE: u64 = 16;
const BLOCKS_MOST: u64 = 96 << 20;

/// The best placement of `demand` on `machine` with no more than `budget` bytes of the device's memory. Several
/// budgets are cheaper with a [`Frontier`].
pub fn solve(demand: &Demand, machine: &Machine, budget: u64) -> Plan {
    Frontier::new(demand, machine).plan(demand, machine, budget)
}

/// The best placements for all budgets.
#[derive(Debug)]
pub struct Frontier {
    /// What a layer may have hot, in units, with bytes and seconds.
    options: Vec<Vec<LayerOption>>,
    /// Of the last layers, as many as there are after the index: the plans that keep them resident.
    suffixes: Vec<Vec<State>>,
    /// All layers resident, and of all units of all layers, those that fire most often first: layers.
    by_frequency: Vec<u32>,
    /// Bytes ascending, seconds descending.
    plans: Vec<Candidate>,
}

#[derive(Debug, Clone, Copy)]
struct LayerOption {
    units: usize,
    bytes: u64,
    seconds: f64,
}

/// A plan of the last layers.
#[derive(Debug, Clone, Copy)]
struct State {
    bytes: u64,
    seconds: f64,
    /// Of the first of these layers.
    option: u32,
    /// Which plan of the layers after it.
    after: u32,
}

/// A plan of all layers.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    bytes: u64,
    seconds: f64,
    how: How,
}

#[derive(Debug, Clone, Copy)]
enum How {
    Cpu,
    /// This state of those that keep layers from this one on resident.
    Suffix {
        first_resident: usize,
        state: usize,
    },
    /// So many of [`Frontier::by_frequency`].
    ByFrequency(usize),
}

impl Frontier {
    /// Finds them.
    pub fn new(demand: &Demand, machine: &Machine) -> Self {
        let costs = cost::layers(demand, machine);
        let n_layer = costs.len();
        let all_cpu = cost::head(&demand.head, machine, false);
        let mut on_cpu: Vec<f64> = vec![0.0];
        for cost in &costs {
            on_cpu.push(on_cpu[on_cpu.len() - 1] + cost.on_cpu().seconds);
        }
        let nothing = Candidate { bytes: 0, seconds: on_cpu[n_layer] + all_cpu, how: How::Cpu };
        if machine.gpu.is_none() || n_layer == 0 {
            return Frontier {
                options: Vec::new(),
                suffixes: Vec::new(),
                by_frequency: Vec::new(),
                plans: vec![nothing],
            };
        }
        let options: Vec<Vec<LayerOption>> =
            costs.iter().zip(&demand.layers).map(|(cost, layer)| options(cost, layer)).collect();
        let fixed = demand.scratch + demand.staging;
        let head = demand.head.bytes();
        let total = fixed + head + demand.layers.iter().map(|layer| bytes(layer, layer.units())).sum::<u64>();

        let of_head = |option: u32, bytes, resident| {
            let seconds = cost::token(machine) + cost::head(&demand.head, machine, resident);
            State { bytes: fixed + bytes, seconds, option, after: 0 }
        };
        let ends = [of_head(0, 0, false), of_head(1, head, true)];
        let mut thinning = Thinning::new(total);
        let mut suffixes = vec![Vec::new(); n_layer + 1];
        suffixes[n_layer] = thinning.keep(ends.into_iter());
        let mut plans = vec![nothing];
        for layer in (0..n_layer).rev() {
            let after = &suffixes[layer + 1];
            let pairs = options[layer].iter().zip(0..).flat_map(|(option, number)| {
                after.iter().zip(0..).map(move |(state, after)| State {
                    bytes: state.bytes + option.bytes,
                    seconds: state.seconds + option.seconds,
                    option: number,
                    after,
                })
            });
            suffixes[layer] = thinning.keep(pairs);
            plans.extend(suffixes[layer].iter().enumerate().map(|(state, of)| Candidate {
                bytes: of.bytes,
                seconds: of.seconds + on_cpu[layer],
                how: How::Suffix { first_resident: layer, state },
            }));
        }
        let by_frequency = by_frequency(demand);
        plans.extend(path(demand, &costs, &by_frequency, &ends[1]));
        let plans = thinning.best(plans);
        Frontier { options, suffixes, by_frequency, plans }
    }

    /// The best placement for `budget`, of the `demand` and on the `machine` it was made for.
    pub fn plan(&self, demand: &Demand, machine: &Machine, budget: u64) -> Plan {
        let usable = usable(budget);
        let fits = self.plans.partition_point(|plan| plan.bytes <= usable);
        // The first takes nothing.
        let plan = self.plans[fits.saturating_sub(1)];
        Plan::of(demand, machine, self.placement(demand, plan))
    }

    fn placement(&self, demand: &Demand, plan: Candidate) -> Placement {
        let mut placement = Placement::cpu(demand.layers.len());
        let mut units = vec![0; demand.layers.len()];
        match plan.how {
            How::Cpu => {}
            How::Suffix { first_resident, state } => {
                placement.first_resident = first_resident;
                let mut state = self.suffixes[first_resident][state];
                for (layer, units) in units.iter_mut().enumerate().skip(first_resident) {
                    *units = self.options[layer][state.option as usize].units;
                    state = self.suffixes[layer + 1][state.after as usize];
                }
                placement.head = state.option == 1;
            }
            How::ByFrequency(n) => {
                (placement.first_resident, placement.head) = (0, true);
                self.by_frequency[..n].iter().for_each(|layer| units[*layer as usize] += 1);
            }
        }
        let hot = demand.layers.iter().zip(units).map(|(layer, units)| layer.order[..layer.first(units)].to_vec());
        placement.hot = hot.collect();
        placement
    }
}

/// Bytes of `budget` that a plan may use: the rest is left to the driver's blocks.
pub fn usable(budget: u64) -> u64 {
    let with_blocks = |budget: u64| budget - (budget / BLOCKS_SHARE).min(BLOCKS_MOST);
    // A little below, as much as a little above: more is never less.
    if budget < BLOCKS_FROM { budget.min(with_blocks(BLOCKS_FROM)) } else { with_blocks(budget) }
}

/// `layer` with its first `units` hot.
fn option(cost: &LayerCost<'_>, layer: &LayerDemand, units: usize) -> LayerOption {
    LayerOption { units, bytes: bytes(layer, units), seconds: cost.resident(layer.loads[units]).seconds }
}

fn bytes(layer: &LayerDemand, units: usize) -> u64 {
    layer.base() + layer.first(units) as u64 * layer.neuron
}

/// What `layer` may have hot. Numbers that take longer than a smaller one are none.
fn options(cost: &LayerCost<'_>, layer: &LayerDemand) -> Vec<LayerOption> {
    let units = layer.units();
    let every: Vec<LayerOption> = (0..=units).map(|units| option(cost, layer, units)).collect();
    let best = every.iter().map(|option| option.seconds).fold(f64::INFINITY, f64::min);
    let mut chosen = vec![every[0]];
    for option in &every[1..] {
        let last = chosen[chosen.len() - 1];
        let gain = last.seconds - option.seconds;
        let grown = option.units as f64 >= last.units as f64 * LEAST_GROWTH;
        let end = option.units == units || option.seconds == best;
        if gain > 0.0 && (units <= FEW_UNITS || end || grown || gain >= last.seconds * LEAST_GAIN) {
            chosen.push(*option);
        }
    }
    chosen
}

/// The layers of all units, those that fire most often first: PowerInfer's order.
fn by_frequency(demand: &Demand) -> Vec<u32> {
    let mut units = Vec::new();
    for (at, layer) in demand.layers.iter().zip(0..).map(|(layer, at)| (at, layer)) {
        units.extend(layer.loads.windows(2).map(|pair| (pair[1].fires - pair[0].fires, at)));
    }
    units.sort_by(|a, b| b.0.total_cmp(&a.0));
    units.into_iter().map(|(_, layer)| layer).collect()
}

/// The plans that take units in this order, with everything else resident. Where layers differ little they are the best
/// there are.
fn path(demand: &Demand, costs: &[LayerCost<'_>], order: &[u32], end: &State) -> Vec<Candidate> {
    let mut now: Vec<LayerOption> =
        costs.iter().zip(&demand.layers).map(|(cost, layer)| option(cost, layer, 0)).collect();
    let mut bytes = end.bytes + now.iter().map(|option| option.bytes).sum::<u64>();
    let mut seconds = end.seconds + now.iter().map(|option| option.seconds).sum::<f64>();
    let mut plans = vec![Candidate { bytes, seconds, how: How::ByFrequency(0) }];
    for (taken, layer) in (1..).zip(order) {
        let at = *layer as usize;
        let next = option(&costs[at], &demand.layers[at], now[at].units + 1);
        bytes += next.bytes - now[at].bytes;
        seconds += next.seconds - now[at].seconds;
        now[at] = next;
        plans.push(Candidate { bytes, seconds, how: How::ByFrequency(taken) });
    }
    plans
}

/// Keeps the fastest of all plans that have about as many bytes.
struct Thinning {
    shift: u32,
    slots: Vec<State>,
}

const EMPTY: State = State { bytes: 0, seconds: f64::INFINITY, option: 0, after: 0 };

impl Thinning {
    /// For plans of up to `total` bytes.
    fn new(total: u64) -> Self {
        let shift = (total / PLANS).max(1).ilog2();
        Thinning { shift, slots: vec![EMPTY; (total >> shift) as usize + 1] }
    }

    fn slot(&self, bytes: u64) -> usize {
        (bytes >> self.shift) as usize
    }

    fn keep(&mut self, plans: impl Iterator<Item = State>) -> Vec<State> {
        self.slots.fill(EMPTY);
        let shift = self.shift;
        for plan in plans {
            let slot = &mut self.slots[(plan.bytes >> shift) as usize];
            if plan.seconds < slot.seconds {
                *slot = plan;
            }
        }
        let mut best = f64::INFINITY;
        let better = |plan: &&State| {
            plan.seconds < best && {
                best = plan.seconds;
                true
            }
        };
        self.slots.iter().filter(better).copied().collect()
    }

    /// Of all `plans` those than which none has both fewer bytes and less time, bytes ascending. Most of the others are found
    /// out before anything is sorted.
    fn best(&self, mut plans: Vec<Candidate>) -> Vec<Candidate> {
        let mut below = vec![f64::INFINITY; self.slots.len() + 1];
        for plan in &plans {
            let least = &mut below[self.slot(plan.bytes) + 1];
            *least = least.min(plan.seconds);
        }
        for slot in 1..below.len() {
            below[slot] = below[slot].min(below[slot - 1]);
        }
        plans.retain(|plan| plan.seconds < below[self.slot(plan.bytes)]);
        plans.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.seconds.total_cmp(&b.seconds)));
        let mut best = f64::INFINITY;
        plans.retain(|plan| {
            plan.seconds < best && {
                best = plan.seconds;
                true
            }
        });
        plans
    }
}
