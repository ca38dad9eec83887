//! The solver compared with integer programming, with PowerInfer's order, and with Lagrangian
//! bounds.

use good_lp::{Expression, ProblemVariables, Solution, SolverModel, Variable, microlp, variable};

use super::*;
use crate::placement::time_model::{LayerTimer, head_seconds, layer_timers, token_seconds};

/// Fewest seconds of any placement, by integer programming over resident layers, hot blocks of
/// each, and the head. A layer takes at least the time of either side.
fn exact(profile: &CostProfile, machine: &Machine, budget: u64) -> f64 {
    let gpu = machine.gpu.as_ref().unwrap();
    let (mib, ms) = (|bytes: u64| bytes as f64 / MIB as f64, |seconds: f64| seconds * 1e3);
    let timers = layer_timers(profile, machine);
    let mut vars = ProblemVariables::new();
    let resident: Vec<Variable> = timers.iter().map(|_| vars.add(variable().binary())).collect();
    let full: Vec<Variable> = timers.iter().map(|_| vars.add(variable().binary())).collect();
    let time: Vec<Variable> = timers.iter().map(|_| vars.add(variable().min(0.0))).collect();
    let head = vars.add(variable().binary());
    let hot: Vec<Vec<Variable>> = profile
        .layers
        .iter()
        .map(|layer| (0..layer.blocks()).map(|_| vars.add(variable().binary())).collect())
        .collect();
    let any = resident[timers.len() - 1];

    let (on_cpu, on_gpu) = (
        head_seconds(&profile.head, machine, None),
        head_seconds(&profile.head, machine, Some(DeviceClocks::Sustained)),
    );
    let mut all = ms(on_cpu) + head * ms(on_gpu - on_cpu) + any * ms(token_seconds(machine));
    time.iter().for_each(|time| all += *time);
    let mut problem = vars.minimise(all).using(microlp);
    let head_bytes = profile.head.matrix + profile.head.vectors + profile.head.scratch;
    let mut bytes = any * mib(profile.scratch + profile.staging) + head * mib(head_bytes);
    problem = problem.with((head - any).leq(0.0));
    for (at, (layer, timer)) in profile.layers.iter().zip(&timers).enumerate() {
        let rest =
            timer.resident(layer.all_rows(), DeviceClocks::Sustained).seconds - gpu_time(layer, gpu, 0..layer.blocks());
        bytes += resident[at] * mib(layer.base());
        let hand_over = (resident[at] - full[at]) * ms(gpu.hand_over);
        let mut on_gpu: Expression = resident[at] * ms(rest) + hand_over.clone();
        let away: Expression = (1.0 - resident[at]) * ms(timer.on_cpu().seconds);
        let mut on_cpu: Expression = resident[at] * ms(rest) + hand_over + away;
        let of_layer = &hot[at];
        for (block, hot) in of_layer.iter().enumerate() {
            let units = [block + 1, block].map(|blocks| layer.hot_bytes(layer.units_in(blocks)));
            bytes += *hot * mib(units[0] - units[1]);
            on_gpu += *hot * ms(gpu_time(layer, gpu, block..block + 1));
            on_cpu += (resident[at] - *hot) * ms(cpu_time(layer, machine, block..block + 1));
            let before = if block == 0 { resident[at] } else { of_layer[block - 1] };
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
    of_head + layers + solution.value(any) * token_seconds(machine)
}

/// Seconds of some blocks, summed row by row.
fn row_time(layer: &LayerCosts, blocks: std::ops::Range<usize>, seconds: impl Fn(&ReadBytes) -> f64) -> f64 {
    let one = |at: usize| {
        let (fires, predicted) = (f64::from(layer.frequency[at]), f64::from(layer.predicted[at]));
        let (looked, fired) = match layer.skips {
            SkippedRows::Nothing => (1.0, 1.0),
            SkippedRows::Silent => (1.0, fires),
            SkippedRows::NotPredicted => (predicted, fires),
            SkippedRows::NotRouted => (0.0, fires),
        };
        looked * seconds(&layer.firing_read) + fired * layer.other_reads.iter().map(&seconds).sum::<f64>()
    };
    (layer.units_in(blocks.start)..layer.units_in(blocks.end)).map(one).sum()
}

fn gpu_time(layer: &LayerCosts, gpu: &GpuRates, blocks: std::ops::Range<usize>) -> f64 {
    row_time(layer, blocks, |reads| reads.device as f64 / gpu.rate(reads.ty).sequential)
}

fn cpu_time(layer: &LayerCosts, machine: &Machine, blocks: std::ops::Range<usize>) -> f64 {
    row_time(layer, blocks, |reads| reads.cpu as f64 / machine.cpu.rate(reads.ty).sequential)
}

#[test]
fn small_models_are_placed_within_a_hundredth_of_the_optimum() {
    let rng = &mut StdRng::seed_from_u64(11);
    let mut split = 0;
    for case in 0..60 {
        let (profile, machine) = (small(rng), linear(rng));
        let all = Plan::new(&profile, &machine, Placement::all(&profile)).bytes.total();
        let budget = (all as f64 * rng.random_range(0.05..1.05)) as u64;
        let plan = solve(&profile, &machine, budget);
        let best = exact(&profile, &machine, budget);
        assert!(plan.bytes.total() <= budget, "case {case}");
        assert!(plan.seconds <= best * 1.01, "case {case}: {} s, could be {best}", plan.seconds);
        assert!(plan.seconds >= best * (1.0 - 1e-6), "case {case}: the reference is not the best");
        split += usize::from(plan.layers.iter().any(|layer| layer.hot > 0 && layer.hot < layer.units));
    }
    // Otherwise the test has tried nothing.
    assert!(split > 15, "{split}");
}

/// The plan by PowerInfer's rule: everything except units, then the most often firing blocks of any
/// layer.
fn by_frequency(profile: &CostProfile, machine: &Machine, budget: u64) -> Option<Plan> {
    let mut placement = Placement::all(profile);
    placement.hot.iter_mut().for_each(Vec::clear);
    let bytes = |placement: &Placement| Plan::new(profile, machine, placement.clone()).bytes.total();
    let mut room = usable(budget).checked_sub(bytes(&placement))?;
    let mut blocks = Vec::new();
    for (at, layer) in profile.layers.iter().enumerate() {
        for block in 0..layer.blocks() {
            let of = layer.units_in(block)..layer.units_in(block + 1);
            blocks.push((layer.frequency[of.clone()].iter().sum::<f32>(), at, of));
        }
    }
    blocks.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (_, at, of) in blocks {
        let layer = &profile.layers[at];
        room = match room.checked_sub(layer.hot_bytes(of.end) - layer.hot_bytes(of.start)) {
            Some(room) => room,
            None => break,
        };
        placement.hot[at].extend_from_slice(&layer.order[of]);
    }
    Some(Plan::new(profile, machine, placement))
}

#[test]
fn plans_are_never_slower_than_the_order_of_blocks_by_frequency() {
    let machine = Machine::typical();
    let mut compared = 0;
    for (seed, skips) in [SkippedRows::Silent, SkippedRows::NotPredicted, SkippedRows::Nothing].into_iter().enumerate()
    {
        let profile = large(skips, seed as u64);
        let frontier = Frontier::new(&profile, &machine);
        for budget in (8..48).step_by(2).map(|gib| gib << 30) {
            let Some(theirs) = by_frequency(&profile, &machine, budget) else { continue };
            let ours = frontier.plan(&profile, &machine, budget);
            assert!(ours.bytes.total() <= budget && theirs.bytes.total() <= budget);
            let least = theirs.seconds * (1.0 + 1e-12);
            assert!(ours.seconds <= least, "{skips:?}, {} GiB: {} s, {least} s", budget >> 30, ours.seconds);
            compared += 1;
        }
    }
    assert!(compared > 40, "{compared}");
}

/// Lower bound of the seconds if layers were divisible, by Lagrange multipliers for each first
/// resident layer.
fn bound(profile: &CostProfile, machine: &Machine, budget: u64) -> f64 {
    let timers = layer_timers(profile, machine);
    let curves: Vec<Vec<(f64, f64)>> =
        timers.iter().zip(&profile.layers).map(|(timer, layer)| curve(timer, layer)).collect();
    let head = [
        (0.0, head_seconds(&profile.head, machine, None)),
        (
            (profile.head.matrix + profile.head.scratch) as f64,
            head_seconds(&profile.head, machine, Some(DeviceClocks::Sustained)),
        ),
    ];
    let fixed = (profile.scratch + profile.staging) as f64;
    let least = |points: &[(f64, f64)], price: f64| {
        points.iter().map(|(bytes, time)| time + price * bytes).fold(f64::INFINITY, f64::min)
    };
    // Closely spaced prices, and at each price the best option of every resident layer.
    let prices: Vec<f64> = (0..1200).map(|step| 1e-14 * 1.01_f64.powi(step)).collect();
    let mut best = vec![f64::NEG_INFINITY; timers.len()];
    for price in prices {
        let mut all = least(&head, price) + token_seconds(machine) + price * fixed - price * usable(budget) as f64;
        all += timers.iter().map(|timer| timer.on_cpu().seconds).sum::<f64>();
        for first in (0..timers.len()).rev() {
            all += least(&curves[first], price) - timers[first].on_cpu().seconds;
            best[first] = best[first].max(all);
        }
    }
    let on_cpu = timers.iter().map(|timer| timer.on_cpu().seconds).sum::<f64>() + head[0].1;
    best.into_iter().fold(on_cpu, f64::min)
}

fn curve(timer: &LayerTimer<'_>, layer: &LayerCosts) -> Vec<(f64, f64)> {
    let of = |blocks: usize| {
        let bytes = layer.base() + layer.hot_bytes(layer.units_in(blocks));
        (bytes as f64, timer.resident(layer.prefix_rows[blocks], DeviceClocks::Sustained).seconds)
    };
    (0..=layer.blocks()).map(of).collect()
}

#[test]
fn large_models_are_placed_within_a_hundredth_of_the_bound() {
    let machine = Machine::typical();
    for (seed, skips) in [SkippedRows::Silent, SkippedRows::NotPredicted].into_iter().enumerate() {
        let profile = large(skips, 7 + seed as u64);
        let frontier = Frontier::new(&profile, &machine);
        for gib in [1, 2, 4, 8, 12, 16, 24, 32, 40] {
            let plan = frontier.plan(&profile, &machine, gib << 30);
            let bound = bound(&profile, &machine, gib << 30);
            assert!(plan.seconds <= bound * 1.01, "{skips:?}, {gib} GiB: {} s of {bound}", plan.seconds);
            assert!(plan.seconds >= bound * (1.0 - 1e-9), "{skips:?}, {gib} GiB");
        }
    }
}

/// In MoE models the solution is at least as fast as every number of hot experts in each layer.
/// Tries them all.
#[test]
fn moe_models_are_placed_within_a_hundredth_of_the_optimum() {
    let rng = &mut StdRng::seed_from_u64(12);
    let (mut partly, mut hottest) = (0, 0);
    for case in 0..12 {
        let counts: Vec<usize> = (0..3).map(|_| rng.random_range(2..=6)).collect();
        let layers = counts.iter().map(|count| {
            let rates: Vec<f32> = (0..*count).map(|_| rng.random_range(0.02_f32..1.0)).collect();
            let scale = 2.0 / rates.iter().sum::<f32>();
            let row = rng.random_range(200_000..2_000_000);
            layer(*count, row, rng.random_range(1..4) * MIB, SkippedRows::NotRouted, |at| (rates[at] * scale).min(1.0))
        });
        let profile = profile(layers.collect(), 6 * MIB, 2 * MIB);
        let mut machine = if case % 2 == 0 { Machine::typical() } else { linear(rng) };
        if case % 3 == 0 {
            with_bursts(&mut machine, 0.4);
        }
        let mut tried = vec![Plan::new(&profile, &machine, Placement::cpu(3))];
        for first in 0..3 {
            let options: Vec<usize> = (0..3).map(|at| if at < first { 1 } else { counts[at] + 1 }).collect();
            for number in 0..2 * options.iter().product::<usize>() {
                let mut rest = number / 2;
                let hot = (0..3).map(|at| {
                    let hot = rest % options[at];
                    rest /= options[at];
                    profile.layers[at].order[..hot].to_vec()
                });
                let placement = Placement { hot: hot.collect(), first_resident: first, head: number % 2 == 0 };
                tried.push(Plan::new(&profile, &machine, placement));
            }
        }
        let frontier = Frontier::new(&profile, &machine);
        let all = Plan::new(&profile, &machine, Placement::all(&profile)).bytes.total();
        for budget in (0..=40).map(|step| all * step / 38) {
            let plan = frontier.plan(&profile, &machine, budget);
            let fits = tried.iter().filter(|plan| plan.bytes.total() <= usable(budget));
            let best = fits.map(|plan| plan.seconds).fold(f64::INFINITY, f64::min);
            assert!(plan.bytes.total() <= budget && plan.seconds <= best * 1.01, "{case}: {} {best}", plan.seconds);
            partly += plan.layers.iter().filter(|layer| (1..layer.units).contains(&layer.hot)).count();
            hottest += plan.placement.hot.iter().filter(|hot| hot.len() == 1).count();
            for (hot, layer) in plan.placement.hot.iter().zip(&profile.layers) {
                assert_eq!(hot[..], layer.order[..hot.len()], "those chosen most often");
            }
        }
    }
    assert!(partly > 50 && hottest > 5, "{partly} {hottest}");
}
