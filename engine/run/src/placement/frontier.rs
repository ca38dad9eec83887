//! The best placement under a budget.
//!
//! A layer is computed by the CPU, or is resident with some number of its hottest neurons. For each
//! number its bytes and its time are known, and both are sums over layers. The best plans of the
//! last layers are therefore enough to find the best plans of one layer more. This is dynamic
//! programming from the last layer to the first. It keeps the Pareto-optimal plans (no other plan
//! has both fewer bytes and less time): a few thousand, spread evenly over the bytes. Because the
//! resident layers are the last ones, each step also gives the plans in which the CPU computes all
//! earlier layers.
//!
//! The result is one curve of time against bytes, for all budgets at once. A larger budget is never
//! slower.

use super::{
    CostProfile, DeviceClocks, LayerCosts, Machine, Placement, Plan,
    time_model::{LayerTimer, head_seconds, layer_timers, rested_head_seconds, token_seconds},
};

/// Half of the largest number of plans kept after each layer.
const PLANS: u64 = 2048;
/// A number of hot blocks is considered if it makes the layer faster by this fraction than the last
/// number considered. It is also considered if it exceeds the last number by this factor.
const LEAST_GAIN: f64 = 0.02;
const LEAST_GROWTH: f64 = 1.5;
/// Most blocks of a layer in which every number of hot blocks is considered.
const FEW_BLOCKS: usize = 24;

/// Most steps in which the blocks of a large layer are counted. One step is less than a thousandth
/// of such a layer.
const MOST_STEPS: usize = 4096;

/// Budget from which the driver's allocator is counted, because it allocates whole blocks.
const BLOCKS_FROM: u64 = 64 << 20;
/// Fraction of the budget (one part in this many) reserved for partly filled driver blocks, and the
/// most bytes reserved.
const BLOCKS_DIVISOR: u64 = 16;
const BLOCKS_MOST: u64 = 96 << 20;

/// Returns the fastest plan of `profile` on `machine` within `budget` bytes of device memory. For
/// several budgets a [`Frontier`] is cheaper.
pub fn solve(profile: &CostProfile, machine: &Machine, budget: u64) -> Plan {
    Frontier::new(profile, machine).plan(profile, machine, budget)
}

/// The Pareto-optimal plans of a model, for all budgets.
#[derive(Debug)]
pub struct Frontier {
    /// `[layers]` the numbers of hot blocks considered in each layer.
    options: Vec<Vec<LayerOption>>,
    /// `[layers + 1]` the plans of the layers from the index on, all of them resident.
    suffixes: Vec<Vec<SuffixPlan>>,
    /// The layer of each step of the model's blocks, most often firing first.
    by_frequency: Vec<u32>,
    /// All plans, bytes ascending, seconds descending.
    plans: Vec<PlanCandidate>,
}

/// A resident layer with its first `blocks` blocks hot.
#[derive(Debug, Clone, Copy)]
struct LayerOption {
    blocks: usize,
    bytes: u64,
    seconds: f64,
}

/// A plan of a layer and all layers after it.
#[derive(Debug, Clone, Copy)]
struct SuffixPlan {
    bytes: u64,
    seconds: f64,
    /// Index of the first layer's option. After the last layer: 1 if the head is resident.
    option: u32,
    /// Index of the plan of the later layers.
    after: u32,
}

/// A plan of all layers.
#[derive(Debug, Clone, Copy)]
struct PlanCandidate {
    bytes: u64,
    seconds: f64,
    construction: Construction,
}

/// How to construct a candidate's placement.
#[derive(Debug, Clone, Copy)]
enum Construction {
    /// Nothing resident.
    Cpu,
    /// The layers from `first_resident` are resident: the first by the option with index `option`,
    /// the later layers by their plan with index `after`.
    Suffix { first_resident: usize, option: u32, after: u32 },
    /// All layers are resident, with this many steps of [`Frontier::by_frequency`] hot.
    ByFrequency(usize),
}

impl Frontier {
    /// Solves for all budgets.
    pub fn new(profile: &CostProfile, machine: &Machine) -> Self {
        let timers = layer_timers(profile, machine);
        let n_layer = timers.len();
        let head_on_cpu = head_seconds(&profile.head, machine, None);
        let mut on_cpu: Vec<f64> = vec![0.0];
        for timer in &timers {
            on_cpu.push(on_cpu[on_cpu.len() - 1] + timer.on_cpu().seconds);
        }
        let nothing =
            PlanCandidate { bytes: 0, seconds: on_cpu[n_layer] + head_on_cpu, construction: Construction::Cpu };
        if machine.gpu.is_none() || n_layer == 0 {
            return Frontier {
                options: Vec::new(),
                suffixes: Vec::new(),
                by_frequency: Vec::new(),
                plans: vec![nothing],
            };
        }
        let options: Vec<Vec<LayerOption>> =
            timers.iter().zip(&profile.layers).map(|(timer, layer)| layer_options(timer, layer)).collect();
        let fixed = profile.scratch + profile.staging;
        let head = profile.head.bytes();
        let total = fixed + head + profile.layers.iter().map(LayerCosts::whole).sum::<u64>();

        let head_plan = |option: u32, bytes, resident| {
            let seconds = token_seconds(machine) + head_seconds(&profile.head, machine, resident);
            SuffixPlan { bytes: fixed + bytes, seconds, option, after: 0 }
        };
        let ends = [head_plan(0, 0, None), head_plan(1, head, Some(DeviceClocks::Sustained))];
        let rested_head = rested_head_seconds(&profile.head, machine);
        let mut thinning = Thinning::new(total);
        let mut suffixes = vec![Vec::new(); n_layer + 1];
        ends.iter().for_each(|end| thinning.offer(end.bytes, end.seconds, end.option, end.after));
        suffixes[n_layer] = thinning.take();
        let mut plans = vec![nothing];
        for layer in (0..n_layer).rev() {
            let (blocks, rested_layer) = (profile.layers[layer].blocks(), timers[layer].rested_seconds());
            let candidate = |of: &SuffixPlan, wait: f64| PlanCandidate {
                bytes: of.bytes,
                seconds: of.seconds + on_cpu[layer] + wait,
                construction: Construction::Suffix { first_resident: layer, option: of.option, after: of.after },
            };
            for (option, number) in options[layer].iter().zip(0..) {
                let is_split = option.blocks < blocks;
                if !is_split && layer > 0 && rested_layer > 0.0 {
                    // After the CPU's layers a split layer is no slower, and it may be faster than
                    // the whole layer.
                    plans.extend(thinning.kept().iter().map(|of| candidate(of, 0.0)));
                }
                let splits_last = is_split && layer + 1 == n_layer;
                for (suffix, after) in suffixes[layer + 1].iter().zip(0..) {
                    // After the last layer, the option is the head.
                    let wait = if splits_last && suffix.option == 1 { rested_head } else { 0.0 };
                    thinning.offer(suffix.bytes + option.bytes, suffix.seconds + option.seconds + wait, number, after);
                }
            }
            let best = thinning.take();
            plans.extend(best.iter().map(|of| {
                let is_whole = options[layer][of.option as usize].blocks == blocks;
                candidate(of, if is_whole && layer > 0 { rested_layer } else { 0.0 })
            }));
            suffixes[layer] = best;
        }
        let by_frequency = by_frequency(profile);
        plans.extend(frequency_path(profile, &timers, &by_frequency, &ends[1], rested_head));
        let plans = thinning.pareto_optimal(plans);
        Frontier { options, suffixes, by_frequency, plans }
    }

    /// Returns the fastest plan within `budget` bytes, with its times on `machine`. `profile` must
    /// be the one that the frontier was solved for.
    pub fn plan(&self, profile: &CostProfile, machine: &Machine, budget: u64) -> Plan {
        let usable = usable(budget);
        let fits = self.plans.partition_point(|plan| plan.bytes <= usable);
        // The first plan takes no bytes.
        let plan = self.plans[fits.saturating_sub(1)];
        Plan::new(profile, machine, self.placement(profile, plan))
    }

    fn placement(&self, profile: &CostProfile, plan: PlanCandidate) -> Placement {
        let mut placement = Placement::cpu(profile.layers.len());
        let mut blocks = vec![0; profile.layers.len()];
        match plan.construction {
            Construction::Cpu => {}
            Construction::Suffix { first_resident, mut option, mut after } => {
                placement.first_resident = first_resident;
                for (layer, blocks) in blocks.iter_mut().enumerate().skip(first_resident) {
                    *blocks = self.options[layer][option as usize].blocks;
                    SuffixPlan { option, after, .. } = self.suffixes[layer + 1][after as usize];
                }
                placement.head = option == 1;
            }
            Construction::ByFrequency(n) => {
                (placement.first_resident, placement.head) = (0, true);
                for layer in &self.by_frequency[..n] {
                    let at = *layer as usize;
                    blocks[at] = next_step(&profile.layers[at], blocks[at]);
                }
            }
        }
        let hot =
            profile.layers.iter().zip(blocks).map(|(layer, blocks)| layer.order[..layer.units_in(blocks)].to_vec());
        placement.hot = hot.collect();
        placement
    }
}

/// Bytes of `budget` that a plan may use; the driver's blocks get the rest.
pub fn usable(budget: u64) -> u64 {
    let with_blocks = |budget: u64| budget - (budget / BLOCKS_DIVISOR).min(BLOCKS_MOST);
    // Just below the threshold at least as much is usable as just above it, so a larger budget is
    // never worth less.
    if budget < BLOCKS_FROM { budget.min(with_blocks(BLOCKS_FROM)) } else { with_blocks(budget) }
}

/// The smallest budget that lets a plan use `bytes`.
pub fn budget_for(bytes: u64) -> u64 {
    // The driver's blocks never take more than this.
    let most = bytes.saturating_add((bytes / (BLOCKS_DIVISOR - 1) + 1).min(BLOCKS_MOST));
    let (mut least, mut most) = (bytes, most);
    while least < most {
        let middle = least + (most - least) / 2;
        if usable(middle) < bytes {
            least = middle + 1;
        } else {
            most = middle;
        }
    }
    least
}

/// The number of hot blocks one step above `blocks`, limited to all blocks.
fn next_step(layer: &LayerCosts, blocks: usize) -> usize {
    (blocks + layer.blocks().div_ceil(MOST_STEPS).max(1)).min(layer.blocks())
}

/// The numbers of hot blocks from none to all, step by step.
fn steps(layer: &LayerCosts) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(0), |blocks| (*blocks < layer.blocks()).then(|| next_step(layer, *blocks)))
}

/// The option of `layer` with its first `blocks` blocks hot.
fn layer_option(timer: &LayerTimer<'_>, layer: &LayerCosts, blocks: usize) -> LayerOption {
    LayerOption {
        blocks,
        bytes: layer_bytes(layer, blocks),
        seconds: timer.resident(layer.prefix_rows[blocks], DeviceClocks::Sustained).seconds,
    }
}

/// Device bytes of `layer` with its first `blocks` blocks hot.
fn layer_bytes(layer: &LayerCosts, blocks: usize) -> u64 {
    layer.base() + layer.hot_bytes(layer.units_in(blocks))
}

/// The numbers of hot blocks to consider in `layer`, without numbers that take longer than a
/// smaller number.
fn layer_options(timer: &LayerTimer<'_>, layer: &LayerCosts) -> Vec<LayerOption> {
    let blocks = layer.blocks();
    let every: Vec<LayerOption> = steps(layer).map(|blocks| layer_option(timer, layer, blocks)).collect();
    let best = every.iter().map(|option| option.seconds).fold(f64::INFINITY, f64::min);
    let mut chosen = vec![every[0]];
    for option in &every[1..] {
        let last = chosen[chosen.len() - 1];
        let gain = last.seconds - option.seconds;
        let grown = option.blocks as f64 >= last.blocks as f64 * LEAST_GROWTH;
        let end = option.blocks == blocks || option.seconds == best;
        if gain > 0.0 && (blocks <= FEW_BLOCKS || end || grown || gain >= last.seconds * LEAST_GAIN) {
            chosen.push(*option);
        }
    }
    chosen
}

/// The layer of each step of the model's blocks, most often firing first. This is PowerInfer's
/// order.
fn by_frequency(profile: &CostProfile) -> Vec<u32> {
    let mut parts = Vec::new();
    for (layer, at) in profile.layers.iter().zip(0..) {
        let ends = steps(layer).skip(1);
        parts.extend(steps(layer).zip(ends).map(|(from, to)| {
            let fires = layer.prefix_rows[to].fires - layer.prefix_rows[from].fires;
            (fires / (to - from) as f64, at)
        }));
    }
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    parts.into_iter().map(|(_, layer)| layer).collect()
}

/// The plans with the first 0, 1, ... steps of `order` hot and everything else resident. They are
/// the best plans if layers differ little.
fn frequency_path(
    profile: &CostProfile,
    timers: &[LayerTimer<'_>],
    order: &[u32],
    end: &SuffixPlan,
    rested_head: f64,
) -> Vec<PlanCandidate> {
    let mut now: Vec<LayerOption> =
        timers.iter().zip(&profile.layers).map(|(timer, layer)| layer_option(timer, layer, 0)).collect();
    let mut bytes = end.bytes + now.iter().map(|option| option.bytes).sum::<u64>();
    let mut seconds = end.seconds + now.iter().map(|option| option.seconds).sum::<f64>();
    // The resident head waits if the last layer is split.
    let wait = |now: &[LayerOption]| {
        let split = now.last().zip(profile.layers.last()).is_some_and(|(last, layer)| last.blocks < layer.blocks());
        if split { rested_head } else { 0.0 }
    };
    let candidate =
        |bytes, seconds, taken| PlanCandidate { bytes, seconds, construction: Construction::ByFrequency(taken) };
    let mut plans = vec![candidate(bytes, seconds + wait(&now), 0)];
    for (taken, layer) in (1..).zip(order) {
        let at = *layer as usize;
        let layer = &profile.layers[at];
        let next = layer_option(&timers[at], layer, next_step(layer, now[at].blocks));
        bytes += next.bytes - now[at].bytes;
        seconds += next.seconds - now[at].seconds;
        now[at] = next;
        plans.push(candidate(bytes, seconds + wait(&now), taken));
    }
    plans
}

/// Keeps the fastest of all plans with about the same number of bytes.
struct Thinning {
    shift: u32,
    /// Fewest seconds so far for each range of bytes. Separate from the plans, so that they stay in
    /// the first-level cache.
    seconds: Vec<f64>,
    /// The plans with these seconds.
    plans: Vec<SuffixPlan>,
}

impl Thinning {
    /// Makes a thinning for plans of up to `total` bytes.
    fn new(total: u64) -> Self {
        let shift = (total / PLANS).max(1).ilog2();
        let ranges = (total >> shift) as usize + 1;
        let none = SuffixPlan { bytes: 0, seconds: f64::INFINITY, option: 0, after: 0 };
        Thinning { shift, seconds: vec![f64::INFINITY; ranges], plans: vec![none; ranges] }
    }

    fn range_of(&self, bytes: u64) -> usize {
        (bytes >> self.shift) as usize
    }

    /// Keeps a plan if it is the fastest of its range.
    fn offer(&mut self, bytes: u64, seconds: f64, option: u32, after: u32) {
        let range = self.range_of(bytes);
        if seconds < self.seconds[range] {
            self.seconds[range] = seconds;
            self.plans[range] = SuffixPlan { bytes, seconds, option, after };
        }
    }

    /// The Pareto-optimal plans among the kept plans, by ascending bytes.
    fn kept(&self) -> Vec<SuffixPlan> {
        let mut best = f64::INFINITY;
        let mut kept = Vec::new();
        for (seconds, plan) in self.seconds.iter().zip(&self.plans) {
            if *seconds < best {
                best = *seconds;
                kept.push(*plan);
            }
        }
        kept
    }

    /// Returns the plans of [`Thinning::kept`] and drops all plans.
    fn take(&mut self) -> Vec<SuffixPlan> {
        let taken = self.kept();
        self.seconds.fill(f64::INFINITY);
        taken
    }

    /// The Pareto-optimal plans of all `plans`, by ascending bytes. Most others are dropped before
    /// anything is sorted.
    fn pareto_optimal(&self, mut plans: Vec<PlanCandidate>) -> Vec<PlanCandidate> {
        let mut below = vec![f64::INFINITY; self.seconds.len() + 1];
        for plan in &plans {
            let least = &mut below[self.range_of(plan.bytes) + 1];
            *least = least.min(plan.seconds);
        }
        for range in 1..below.len() {
            below[range] = below[range].min(below[range - 1]);
        }
        plans.retain(|plan| plan.seconds < below[self.range_of(plan.bytes)]);
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
