//! The solver against an exact one, against PowerInfer's, and against what any solver must do.

use std::time::{Duration, Instant};

use good_lp::{Expression, ProblemVariables, Solution, SolverModel, Variable, microlp, variable};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use super::{
    cost::{self, LayerCost},
    *,
};
use crate::{
    format::TensorType,
    model::{Resident, mask},
};

const MIB: u64 = 1 << 20;

/// A layer with a firing row and two others of `row` bytes, `n` neurons, each firing as often as `frequency` says.
pub(super) fn layer(n: usize, row: u64, base: u64, skips: Skips, frequency: impl Fn(usize) -> f32) -> LayerDemand {
    let reads = Reads { ty: TensorType::Q4_0, cpu: row, device: row };
    let experts = skips == Skips::Unchosen;
    let mut layer = LayerDemand {
        attention: base,
        vectors: 0,
        kv: base / 4,
        predictor: 0,
        routing: 0,
        split: 0,
        neuron: 3 * row,
        unit: if experts { 1 } else { BLOCK },
        order: Vec::new(),
        frequency: Vec::new(),
        named: Vec::new(),
        skips,
        attention_reads: vec![Reads { ty: TensorType::Q4_0, cpu: base, device: base }],
        predictor_reads: Vec::new(),
        routing_reads: Vec::new(),
        firing_read: if experts { Reads { cpu: 0, device: 0, ..reads } } else { reads },
        other_reads: vec![reads; if experts { 3 } else { 2 }],
        whole_reads: Vec::new(),
        loads: Vec::new(),
    };
    let frequency: Vec<f32> = (0..n).map(frequency).collect();
    layer.sort(&frequency, 1.2);
    layer
}

pub(super) fn demand(layers: Vec<LayerDemand>, head: u64, fixed: u64) -> Demand {
    let reads = Reads { ty: TensorType::Q4_0, cpu: head, device: head };
    let head = HeadDemand { matrix: head, vectors: 0, scratch: head / 16, reads };
    Demand { layers, head, scratch: fixed / 2, staging: fixed - fixed / 2, assumptions: Vec::new() }
}

/// How often the neuron at `rank` of `n` fires if `share` of them fire on average, by a power law.
fn power_law(rank: usize, n: usize, share: f64, exponent: f64) -> f32 {
    let x = (rank as f64 + 0.5) / n as f64;
    ((share * (1.0 - exponent)) * x.powf(-exponent)).min(1.0) as f32
}

/// Of a model of the size and shape of LLaMA-70B in Q4_0, with layers that differ.
fn large(skips: Skips, seed: u64) -> Demand {
    let rng = &mut StdRng::seed_from_u64(seed);
    let layers = (0..80).map(|_| {
        let (share, exponent) = (rng.random_range(0.05..0.4), rng.random_range(0.3..0.8));
        let mut ranks: Vec<usize> = (0..28672).collect();
        rand::seq::SliceRandom::shuffle(&mut ranks[..], rng);
        layer(28672, 4608, 90 * MIB, skips, |neuron| power_law(ranks[neuron], 28672, share, exponent))
    });
    demand(layers.collect(), 148 * MIB, 160 * MIB)
}

/// A machine on which every time is a sum over rows.
fn linear(rng: &mut impl Rng) -> Machine {
    let mut machine = Machine::typical();
    let same = |rate: f64| Rate { sequential: rate, scattered: rate };
    machine.cpu.join = 0.0;
    machine.cpu.rates.values_mut().for_each(|rate| *rate = same(20e9));
    let gpu = machine.gpu.as_mut().unwrap();
    let rate = 20e9 * [0.5, 2.0, 5.0, 12.0][rng.random_range(0..4)];
    gpu.rates.values_mut().for_each(|of| *of = same(rate));
    (gpu.dispatch, gpu.hand_over) = (0.0, [0.0, 20e-6, 200e-6][rng.random_range(0..3)]);
    machine
}

fn small(rng: &mut StdRng) -> Demand {
    let skips = [Skips::Nothing, Skips::Silent, Skips::RuledOut][rng.random_range(0..3)];
    let layers = (0..rng.random_range(1..=4)).map(|_| {
        let units = rng.random_range(2..=5);
        let n = units * BLOCK;
        let row = rng.random_range(2_000..20_000);
        let rates: Vec<f32> = (0..n).map(|_| rng.random_range(0.0_f32..1.0).powi(3)).collect();
        layer(n, row, rng.random_range(1..8) * MIB, skips, |at| rates[at])
    });
    let layers = layers.collect();
    demand(layers, rng.random_range(1..20) * MIB, rng.random_range(0..4) * MIB)
}

/// Least seconds there can be, by integer programming: which layers, how many of their blocks, the head; the time of a layer is
/// at least what either side needs.
fn exact(demand: &Demand, machine: &Machine, budget: u64) -> f64 {
    let gpu = machine.gpu.as_ref().unwrap();
    let (mib, ms) = (|bytes: u64| bytes as f64 / MIB as f64, |seconds: f64| seconds * 1e3);
    let costs = cost::layers(demand, machine);
    let mut vars = ProblemVariables::new();
    let resident: Vec<Variable> = costs.iter().map(|_| vars.add(variable().binary())).collect();
    let full: Vec<Variable> = costs.iter().map(|_| vars.add(variable().binary())).collect();
    let time: Vec<Variable> = costs.iter().map(|_| vars.add(variable().min(0.0))).collect();
    let head = vars.add(variable().binary());
    let hot: Vec<Vec<Variable>> =
        demand.layers.iter().map(|layer| (0..layer.units()).map(|_| vars.add(variable().binary())).collect()).collect();
    let any = resident[costs.len() - 1];

    let (on_cpu, on_gpu) = (cost::head(&demand.head, machine, false), cost::head(&demand.head, machine, true));
    let mut all = ms(on_cpu) + head * ms(on_gpu - on_cpu) + any * ms(cost::token(machine));
    time.iter().for_each(|time| all += *time);
    let mut problem = vars.minimise(all).using(microlp);
    let head_bytes = demand.head.matrix + demand.head.vectors + demand.head.scratch;
    let mut bytes = any * mib(demand.scratch + demand.staging) + head * mib(head_bytes);
    problem = problem.with((head - any).leq(0.0));
    for (at, (layer, cost)) in demand.layers.iter().zip(&costs).enumerate() {
        let rest = cost.resident(layer.all()).seconds - gpu_time(layer, gpu, 0..layer.units());
        bytes += resident[at] * mib(layer.base());
        let hand_over = (resident[at] - full[at]) * ms(gpu.hand_over);
        let mut on_gpu: Expression = resident[at] * ms(rest) + hand_over.clone();
        let away: Expression = (1.0 - resident[at]) * ms(cost.on_cpu().seconds);
        let mut on_cpu: Expression = resident[at] * ms(rest) + hand_over + away;
        let of_layer = &hot[at];
        for (unit, hot) in of_layer.iter().enumerate() {
            let neurons = (layer.first(unit + 1) - layer.first(unit)) as u64;
            bytes += *hot * mib(neurons * layer.neuron);
            on_gpu += *hot * ms(gpu_time(layer, gpu, unit..unit + 1));
            on_cpu += (resident[at] - *hot) * ms(cpu_time(layer, machine, unit..unit + 1));
            let before = if unit == 0 { resident[at] } else { of_layer[unit - 1] };
            problem = problem.with((*hot - before).leq(0.0)).with((full[at] - *hot).leq(0.0));
        }
        problem = problem.with((time[at] - on_gpu).geq(0.0)).with((time[at] - on_cpu).geq(0.0));
        if let Some(next) = resident.get(at + 1) {
            problem = problem.with((resident[at] - *next).leq(0.0));
        }
    }
    let problem = problem.with(bytes.leq(mib(usable(budget))));
    let solution = problem.solve().unwrap();
    let of_head = if solution.value(head) > 0.5 { on_gpu } else { on_cpu };
    let layers: f64 = time.iter().map(|time| solution.value(*time)).sum::<f64>() / 1e3;
    of_head + layers + solution.value(any) * cost::token(machine)
}

/// Seconds of some units, reckoned row by row.
fn row_time(layer: &LayerDemand, units: std::ops::Range<usize>, seconds: impl Fn(&Reads) -> f64) -> f64 {
    let one = |at: usize| {
        let (fires, named) = (f64::from(layer.frequency[at]), f64::from(layer.named[at]));
        let (looked, fired) = match layer.skips {
            Skips::Nothing => (1.0, 1.0),
            Skips::Silent => (1.0, fires),
            Skips::RuledOut => (named, fires),
            Skips::Unchosen => (0.0, fires),
        };
        looked * seconds(&layer.firing_read) + fired * layer.other_reads.iter().map(&seconds).sum::<f64>()
    };
    (layer.first(units.start)..layer.first(units.end)).map(one).sum()
}

fn gpu_time(layer: &LayerDemand, gpu: &GpuRates, units: std::ops::Range<usize>) -> f64 {
    row_time(layer, units, |reads| reads.device as f64 / gpu.rate(reads.ty).sequential)
}

fn cpu_time(layer: &LayerDemand, machine: &Machine, units: std::ops::Range<usize>) -> f64 {
    row_time(layer, units, |reads| reads.cpu as f64 / machine.cpu.rate(reads.ty).sequential)
}

#[test]
fn small_models_are_placed_within_a_hundredth_of_the_optimum() {
    let rng = &mut StdRng::seed_from_u64(11);
    let mut split = 0;
    for case in 0..60 {
        let (demand, machine) = (small(rng), linear(rng));
        let all = Plan::of(&demand, &machine, Placement::all(&demand)).bytes.total();
        let budget = (all as f64 * rng.random_range(0.05..1.05)) as u64;
        let plan = solve(&demand, &machine, budget);
        let best = exact(&demand, &machine, budget);
        assert!(plan.bytes.total() <= budget, "case {case}");
        assert!(plan.seconds <= best * 1.01, "case {case}: {} s, could be {best}", plan.seconds);
        assert!(plan.seconds >= best * (1.0 - 1e-6), "case {case}: the reference is not the best");
        split += usize::from(plan.layers.iter().any(|layer| layer.hot > 0 && layer.hot < layer.neurons));
    }
    // Otherwise nothing was tried.
    assert!(split > 15, "{split}");
}

/// PowerInfer's: everything but the neurons, then the blocks that fire most often anywhere.
fn by_frequency(demand: &Demand, machine: &Machine, budget: u64) -> Option<Plan> {
    let mut placement = Placement::all(demand);
    placement.hot.iter_mut().for_each(Vec::clear);
    let bytes = |placement: &Placement| Plan::of(demand, machine, placement.clone()).bytes.total();
    let mut room = usable(budget).checked_sub(bytes(&placement))?;
    let mut blocks = Vec::new();
    for (at, layer) in demand.layers.iter().enumerate() {
        for unit in 0..layer.units() {
            let of = layer.first(unit)..layer.first(unit + 1);
            blocks.push((layer.frequency[of.clone()].iter().sum::<f32>(), at, of));
        }
    }
    blocks.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (_, at, of) in blocks {
        let layer = &demand.layers[at];
        room = match room.checked_sub(of.len() as u64 * layer.neuron) {
            Some(room) => room,
            None => break,
        };
        placement.hot[at].extend_from_slice(&layer.order[of]);
    }
    Some(Plan::of(demand, machine, placement))
}

#[test]
fn never_worse_than_the_sort_of_all_blocks_by_frequency() {
    let machine = Machine::typical();
    let mut compared = 0;
    for (seed, skips) in [Skips::Silent, Skips::RuledOut, Skips::Nothing].into_iter().enumerate() {
        let demand = large(skips, seed as u64);
        let frontier = Frontier::new(&demand, &machine);
        for budget in (8..48).step_by(2).map(|gib| gib << 30) {
            let Some(theirs) = by_frequency(&demand, &machine, budget) else { continue };
            let ours = frontier.plan(&demand, &machine, budget);
            assert!(ours.bytes.total() <= budget && theirs.bytes.total() <= budget);
            let least = theirs.seconds * (1.0 + 1e-12);
            assert!(ours.seconds <= least, "{skips:?}, {} GiB: {} s, {least} s", budget >> 30, ours.seconds);
            compared += 1;
        }
    }
    assert!(compared > 40, "{compared}");
}

/// The least there can be, if a layer could be two things by halves: by Lagrange multipliers, for each first resident layer.
fn bound(demand: &Demand, machine: &Machine, budget: u64) -> f64 {
    let costs = cost::layers(demand, machine);
    let curves: Vec<Vec<(f64, f64)>> =
        costs.iter().zip(&demand.layers).map(|(cost, layer)| curve(cost, layer)).collect();
    let head = [
        (0.0, cost::head(&demand.head, machine, false)),
        ((demand.head.matrix + demand.head.scratch) as f64, cost::head(&demand.head, machine, true)),
    ];
    let fixed = (demand.scratch + demand.staging) as f64;
    let least = |points: &[(f64, f64)], price: f64| {
        points.iter().map(|(bytes, time)| time + price * bytes).fold(f64::INFINITY, f64::min)
    };
    // Prices a little apart, and at each what every layer would be if it were resident.
    let prices: Vec<f64> = (0..1200).map(|step| 1e-14 * 1.01_f64.powi(step)).collect();
    let mut best = vec![f64::NEG_INFINITY; costs.len()];
    for price in prices {
        let mut all = least(&head, price) + cost::token(machine) + price * fixed - price * usable(budget) as f64;
        all += costs.iter().map(|cost| cost.on_cpu().seconds).sum::<f64>();
        for first in (0..costs.len()).rev() {
            all += least(&curves[first], price) - costs[first].on_cpu().seconds;
            best[first] = best[first].max(all);
        }
    }
    let on_cpu = costs.iter().map(|cost| cost.on_cpu().seconds).sum::<f64>() + head[0].1;
    best.into_iter().fold(on_cpu, f64::min)
}

fn curve(cost: &LayerCost<'_>, layer: &LayerDemand) -> Vec<(f64, f64)> {
    let of = |units: usize| {
        let bytes = layer.base() + layer.first(units) as u64 * layer.neuron;
        (bytes as f64, cost.resident(layer.loads[units]).seconds)
    };
    (0..=layer.units()).map(of).collect()
}

#[test]
fn large_models_are_placed_within_a_hundredth_of_what_could_be() {
    let machine = Machine::typical();
    for (seed, skips) in [Skips::Silent, Skips::RuledOut].into_iter().enumerate() {
        let demand = large(skips, 7 + seed as u64);
        let frontier = Frontier::new(&demand, &machine);
        for gib in [1, 2, 4, 8, 12, 16, 24, 32, 40] {
            let plan = frontier.plan(&demand, &machine, gib << 30);
            let bound = bound(&demand, &machine, gib << 30);
            assert!(plan.seconds <= bound * 1.01, "{skips:?}, {gib} GiB: {} s of {bound}", plan.seconds);
            assert!(plan.seconds >= bound * (1.0 - 1e-9), "{skips:?}, {gib} GiB");
        }
    }
}

#[test]
fn a_large_model_is_placed_between_two_frames() {
    let (demand, machine) = (large(Skips::RuledOut, 3), Machine::typical());
    let mut best = Duration::MAX;
    // Other tests run beside this one: what it costs is seen when they leave it a processor.
    for budget in (0..10).cycle().take(200) {
        let started = Instant::now();
        let plan = solve(&demand, &machine, budget << 32);
        best = best.min(started.elapsed());
        assert!(plan.seconds > 0.0);
        if budget == 9 && best < Duration::from_millis(50) {
            break;
        }
    }
    assert!(best < Duration::from_millis(50), "{best:?}");
}

#[test]
fn once_solved_every_budget_is_a_look_away() {
    let (demand, machine) = (large(Skips::RuledOut, 3), Machine::typical());
    let frontier = Frontier::new(&demand, &machine);
    let now = frontier.plan(&demand, &machine, 10 << 30);
    let resident = resident(&demand, &now.placement);
    assert_eq!(now.placement.moves(&demand, Some(&resident)), (0, 0));
    let mut best = Duration::MAX;
    for budget in (0..48).step_by(4).map(|gib| gib << 30) {
        let started = Instant::now();
        let plan = frontier.plan(&demand, &machine, budget);
        let (arriving, leaving) = plan.placement.moves(&demand, Some(&resident));
        best = best.min(started.elapsed());
        // Scratch memory and rings do not move.
        let of = |plan: &Plan| plan.bytes.total() - plan.bytes.scratch - plan.bytes.staging;
        assert_eq!(of(&now) + arriving, of(&plan) + leaving, "{budget} bytes");
        assert_eq!(plan.placement.moves(&demand, None), (of(&plan), 0), "from nothing");
    }
    assert!(best < Duration::from_millis(30), "{best:?}");
}

/// What a device holds that holds `placement`.
fn resident(demand: &Demand, placement: &Placement) -> Resident {
    let layers = placement.hot.iter().zip(&demand.layers);
    let hot = layers.map(|(hot, layer)| {
        let mut held = vec![0; mask::words(layer.neurons())];
        hot.iter().for_each(|neuron| mask::insert(&mut held, *neuron as usize));
        held
    });
    Resident { first_layer: placement.first_resident, hot: hot.collect(), head: placement.head }
}

#[test]
fn budgets_are_kept_and_more_is_never_slower() {
    let rng = &mut StdRng::seed_from_u64(5);
    for case in 0..40 {
        let demand = small(rng);
        let machine = if case % 2 == 0 { Machine::typical() } else { linear(rng) };
        let frontier = Frontier::new(&demand, &machine);
        let all = Plan::of(&demand, &machine, Placement::all(&demand)).bytes.total();
        let mut before = f64::INFINITY;
        for step in 0..=200 {
            let budget = all * step / 180;
            let plan = frontier.plan(&demand, &machine, budget);
            assert!(plan.bytes.total() <= budget, "case {case}");
            assert!(plan.seconds <= before * (1.0 + 1e-12), "case {case}, {budget} bytes");
            before = plan.seconds;
            assert_eq!(plan, solve(&demand, &machine, budget));
        }
    }
}

#[test]
fn nothing_is_the_cpu_and_enough_is_everything() {
    let mut machine = Machine::typical();
    // As a card is that holds so large a model: a usual one would be glad of the CPU's help.
    let rates = machine.gpu.iter_mut().flat_map(|gpu| gpu.rates.values_mut());
    rates.for_each(|rate| *rate = Rate { sequential: 900e9, scattered: 700e9 });
    let mut alone = machine.clone();
    alone.gpu = None;
    for skips in [Skips::Nothing, Skips::Silent, Skips::RuledOut] {
        let demand = large(skips, 1);
        let nothing = solve(&demand, &machine, 0);
        assert_eq!((nothing.placement.clone(), nothing.bytes.total()), (Placement::cpu(80), 0));
        assert_eq!(
            solve(&demand, &alone, u64::MAX),
            Plan { assumptions: nothing.assumptions.clone(), ..nothing.clone() }
        );
        let all = solve(&demand, &machine, u64::MAX);
        assert!(all.placement == Placement::all(&demand), "{:?}", all.layers[0]);
        assert!(all.layers.iter().all(|layer| layer.time.hand_over == 0.0 && layer.time.cpu == 0.0));
        let half = solve(&demand, &machine, 20 << 30);
        assert!(all.seconds < half.seconds && half.seconds < nothing.seconds);
        assert!(half.hot_share() > 0.5 && (all.hot_share() - 1.0).abs() < 1e-9 && nothing.hot_share() == 0.0);
    }
    let mixture =
        demand((0..4).map(|_| layer(8, 5 * MIB, MIB, Skips::Unchosen, |at| 0.4 / (1 + at) as f32)).collect(), MIB, 0);
    assert_eq!(solve(&mixture, &machine, u64::MAX).placement, Placement::all(&mixture));
    assert_eq!(solve(&demand(Vec::new(), MIB, 0), &machine, u64::MAX).placement, Placement::cpu(0));
}

/// Of mixtures no number of hot experts in each layer is quicker than what is found, by trying them all.
#[test]
fn experts_are_placed_as_well_as_can_be() {
    let rng = &mut StdRng::seed_from_u64(12);
    let (mut partly, mut hottest) = (0, 0);
    for case in 0..12 {
        let counts: Vec<usize> = (0..3).map(|_| rng.random_range(2..=6)).collect();
        let layers = counts.iter().map(|count| {
            let rates: Vec<f32> = (0..*count).map(|_| rng.random_range(0.02_f32..1.0)).collect();
            let scale = 2.0 / rates.iter().sum::<f32>();
            let row = rng.random_range(200_000..2_000_000);
            layer(*count, row, rng.random_range(1..4) * MIB, Skips::Unchosen, |at| (rates[at] * scale).min(1.0))
        });
        let demand = demand(layers.collect(), 6 * MIB, 2 * MIB);
        let machine = if case % 2 == 0 { Machine::typical() } else { linear(rng) };
        let mut tried = vec![Plan::of(&demand, &machine, Placement::cpu(3))];
        for first in 0..3 {
            let options: Vec<usize> = (0..3).map(|at| if at < first { 1 } else { counts[at] + 1 }).collect();
            for number in 0..2 * options.iter().product::<usize>() {
                let mut rest = number / 2;
                let hot = (0..3).map(|at| {
                    let hot = rest % options[at];
                    rest /= options[at];
                    demand.layers[at].order[..hot].to_vec()
                });
                let placement = Placement { hot: hot.collect(), first_resident: first, head: number % 2 == 0 };
                tried.push(Plan::of(&demand, &machine, placement));
            }
        }
        let frontier = Frontier::new(&demand, &machine);
        let all = Plan::of(&demand, &machine, Placement::all(&demand)).bytes.total();
        for budget in (0..=40).map(|step| all * step / 38) {
            let plan = frontier.plan(&demand, &machine, budget);
            let fits = tried.iter().filter(|plan| plan.bytes.total() <= usable(budget));
            let best = fits.map(|plan| plan.seconds).fold(f64::INFINITY, f64::min);
            assert!(plan.bytes.total() <= budget && plan.seconds <= best * 1.01, "{case}: {} {best}", plan.seconds);
            partly += plan.layers.iter().filter(|layer| (1..layer.neurons).contains(&layer.hot)).count();
            hottest += plan.placement.hot.iter().filter(|hot| hot.len() == 1).count();
            for (hot, layer) in plan.placement.hot.iter().zip(&demand.layers) {
                assert_eq!(hot[..], layer.order[..hot.len()], "those chosen most often");
            }
        }
    }
    assert!(partly > 50 && hottest > 5, "{partly} {hottest}");
}

/// With one of two experts cold, half of the tokens that use one expert have it cold: the mean of both times, not the larger of
/// both means.
#[test]
fn a_mixtures_time_is_that_of_an_average_token() {
    let machine = Machine::typical();
    let demand = demand(vec![layer(2, 20 * MIB, 0, Skips::Unchosen, |_| 0.5)], MIB, 0);
    let of = |hot: &[u32]| {
        let placement = Placement { first_resident: 0, hot: vec![hot.to_vec()], head: true };
        Plan::of(&demand, &machine, placement).layers[0].time
    };
    let (none, one, both) = (of(&[]), of(&[0]), of(&[0, 1]));
    let hand_over = machine.gpu.as_ref().unwrap().hand_over;
    let wanted = hand_over + (none.seconds - hand_over + both.seconds) / 2.0;
    assert!((one.seconds / wanted - 1.0).abs() < 0.01, "{} for {wanted}", one.seconds);
    assert!((one.cpu / none.cpu - 0.5).abs() < 1e-9);
}

#[test]
fn a_slow_device_gets_only_what_pays() {
    let demand = large(Skips::Silent, 2);
    let mut machine = Machine::typical();
    if let Some(gpu) = &mut machine.gpu {
        // As fast as the CPU, and far away.
        gpu.rates = machine.cpu.rates.clone();
        gpu.hand_over = 0.1;
    }
    let plan = solve(&demand, &machine, 30 << 30);
    let hybrid = |layer: &&LayerPlan| layer.resident && layer.hot < layer.neurons;
    assert_eq!(plan.layers.iter().filter(hybrid).count(), 0, "no layer's neurons pay for a tenth of a second");
}

#[test]
fn any_placement_has_a_price() {
    let (demand, machine) = (large(Skips::Silent, 4), Machine::typical());
    // Hot neurons below the first resident layer, unknown ones, doubles, and too many layers are left out.
    let mut placement = Placement { first_resident: 78, hot: vec![vec![3]; 90], head: true };
    placement.hot[79] = vec![5, 5, 28_671, 28_672, u32::MAX];
    let plan = Plan::of(&demand, &machine, placement);
    assert_eq!((plan.layers.len(), plan.layers[77].hot, plan.layers[78].hot, plan.layers[79].hot), (80, 0, 1, 2));
    assert_eq!(plan.placement.hot[79], [5, 28_671]);
    let cpu = Plan::of(&demand, &machine, Placement::cpu(80));
    assert!(plan.seconds < cpu.seconds && plan.bytes.total() > 0);
    assert_eq!(Plan::of(&demand, &machine, plan.placement.clone()), plan);
}

#[test]
fn sharing_one_memory_slows_both() {
    let demand = large(Skips::Silent, 6);
    let machine = Machine::typical();
    let mut shared = machine.clone();
    if let Some(gpu) = &mut shared.gpu {
        gpu.together = Some(Together { cpu: 0.5, gpu: 0.6 });
    }
    let alone = solve(&demand, &machine, 16 << 30);
    let beside = Plan::of(&demand, &shared, alone.placement.clone());
    assert!(beside.seconds > alone.seconds);
    // Whatever one side does alone is not slower.
    for (a, b) in alone.layers.iter().zip(&beside.layers).filter(|(a, _)| !a.resident || a.hot == a.neurons) {
        assert_eq!(a.time, b.time);
    }
    if let Some(gpu) = &mut shared.gpu {
        gpu.together = Some(Together { cpu: 1.0, gpu: 1.0 });
    }
    assert!((Plan::of(&demand, &shared, alone.placement.clone()).seconds / alone.seconds - 1.0).abs() < 1e-12);
}
