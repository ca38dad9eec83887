//! Properties of every solution, and the price of placements.

use super::{time_model::threshold_ratio, *};
use thermocline_model::mask;

/// The resident parts of a fully uploaded `placement`.
pub(super) fn resident(profile: &CostProfile, placement: &Placement) -> Resident {
    let layers = placement.hot.iter().zip(&profile.layers);
    let hot = layers.map(|(hot, layer)| {
        let mut held = vec![0; mask::words(layer.units())];
        hot.iter().for_each(|unit| mask::insert(&mut held, *unit as usize));
        held
    });
    Resident { first_layer: placement.first_resident, hot: hot.collect(), head: placement.head }
}

#[test]
fn plans_keep_their_budget_and_more_is_never_slower() {
    let rng = &mut StdRng::seed_from_u64(5);
    for case in 0..40 {
        let profile = small(rng);
        let mut machine = if case % 2 == 0 { Machine::typical() } else { linear(rng) };
        if case % 4 > 1 {
            with_bursts(&mut machine, 0.3);
        }
        let frontier = Frontier::new(&profile, &machine);
        let all = Plan::new(&profile, &machine, Placement::all(&profile)).bytes.total();
        let mut before = f64::INFINITY;
        for step in 0..=200 {
            let budget = all * step / 180;
            let plan = frontier.plan(&profile, &machine, budget);
            assert!(plan.bytes.total() <= budget, "case {case}");
            assert!(plan.seconds <= before * (1.0 + 1e-12), "case {case}, {budget} bytes");
            before = plan.seconds;
            assert_eq!(plan, solve(&profile, &machine, budget));
        }
    }
}

#[test]
fn thresholds_follow_the_seconds_of_each_side() {
    let mut measured = Machine::typical();
    measured.assumed = false;
    let profile = large(SkippedRows::Silent, 1);
    let gpu = |scattered: f64| {
        let mut machine = measured.clone();
        let rates = machine.gpu.iter_mut().flat_map(|gpu| gpu.rates.values_mut());
        rates.for_each(|rate| *rate = ProductRate { sequential: 2.0 * scattered, scattered });
        machine
    };
    let cpu = measured.cpu.rate(TensorType::Q4_0).scattered;
    assert!((threshold_ratio(&profile, &gpu(9.0 * cpu)) - 1.0 / 3.0).abs() < 1e-6);
    // No side has a higher threshold than the model's.
    assert_eq!(threshold_ratio(&profile, &gpu(0.5 * cpu)), 1.0);
    let mut assumed = gpu(9.0 * cpu);
    assumed.assumed = true;
    assert_eq!(threshold_ratio(&profile, &assumed), 1.0);
    let mut without = gpu(9.0 * cpu);
    without.gpu = None;
    assert_eq!(threshold_ratio(&profile, &without), 1.0);
    assert_eq!(threshold_ratio(&large(SkippedRows::NotRouted, 1), &gpu(9.0 * cpu)), 1.0, "experts");
}

#[test]
fn empty_budget_is_the_cpu_and_an_ample_one_is_everything() {
    let mut machine = Machine::typical();
    // A card that holds such a large model is fast. A typical card would use the CPU's help.
    let rates = machine.gpu.iter_mut().flat_map(|gpu| gpu.rates.values_mut());
    rates.for_each(|rate| *rate = ProductRate { sequential: 900e9, scattered: 700e9 });
    let mut alone = machine.clone();
    alone.gpu = None;
    for skips in [SkippedRows::Nothing, SkippedRows::Silent, SkippedRows::NotPredicted] {
        let profile = large(skips, 1);
        let nothing = solve(&profile, &machine, 0);
        assert_eq!((nothing.placement.clone(), nothing.bytes.total()), (Placement::cpu(80), 0));
        assert_eq!(
            solve(&profile, &alone, u64::MAX),
            Plan { assumptions: nothing.assumptions.clone(), ..nothing.clone() }
        );
        let all = solve(&profile, &machine, u64::MAX);
        assert!(all.placement == Placement::all(&profile), "{:?}", all.layers[0]);
        assert!(all.layers.iter().all(|layer| layer.time.hand_over == 0.0 && layer.time.cpu == 0.0));
        let half = solve(&profile, &machine, 20 << 30);
        assert!(all.seconds < half.seconds && half.seconds < nothing.seconds);
        assert!(half.hot_fraction() > 0.5 && (all.hot_fraction() - 1.0).abs() < 1e-9 && nothing.hot_fraction() == 0.0);
    }
    let moe = profile(
        (0..4).map(|_| layer(8, 5 * MIB, MIB, SkippedRows::NotRouted, |at| 0.4 / (1 + at) as f32)).collect(),
        MIB,
        0,
    );
    assert_eq!(solve(&moe, &machine, u64::MAX).placement, Placement::all(&moe));
    assert_eq!(solve(&profile(Vec::new(), MIB, 0), &machine, u64::MAX).placement, Placement::cpu(0));
}

/// With one of two experts cold, half of the tokens routed to one expert find it cold. The time is
/// the mean of both times, not the larger of both means.
#[test]
fn time_of_an_moe_layer_is_that_of_an_average_token() {
    let machine = Machine::typical();
    let profile = profile(vec![layer(2, 20 * MIB, 0, SkippedRows::NotRouted, |_| 0.5)], MIB, 0);
    let of = |hot: &[u32]| {
        let placement = Placement { first_resident: 0, hot: vec![hot.to_vec()], head: true };
        Plan::new(&profile, &machine, placement).layers[0].time
    };
    let (none, one, both) = (of(&[]), of(&[0]), of(&[0, 1]));
    let hand_over = machine.gpu.as_ref().unwrap().hand_over;
    let wanted = hand_over + (none.seconds - hand_over + both.seconds) / 2.0;
    assert!((one.seconds / wanted - 1.0).abs() < 0.01, "{} for {wanted}", one.seconds);
    assert!((one.cpu / none.cpu - 0.5).abs() < 1e-9);
}

#[test]
fn slow_hand_over_leaves_no_layer_split() {
    let profile = large(SkippedRows::Silent, 2);
    let mut machine = Machine::typical();
    if let Some(gpu) = &mut machine.gpu {
        // A GPU as fast as the CPU, with slow hand-overs.
        gpu.rates = machine.cpu.rates.clone();
        gpu.hand_over = 0.1;
    }
    let plan = solve(&profile, &machine, 30 << 30);
    let hybrid = |layer: &&LayerPlan| layer.resident && layer.hot < layer.units;
    assert_eq!(plan.layers.iter().filter(hybrid).count(), 0, "no layer's units pay for a tenth of a second");
}

/// Every submission of a split layer costs its delay twice, once for each direction of the
/// hand-over.
#[test]
fn slower_submissions_split_fewer_layers() {
    let profile = large(SkippedRows::Silent, 2);
    let hybrid = |layer: &&LayerPlan| layer.resident && layer.hot < layer.units;
    let plans = [0.0, 30e-6, 100e-6, 300e-6].map(|delay| {
        let mut machine = Machine::typical();
        let gpu = machine.gpu.as_mut().unwrap();
        gpu.hand_over = 40e-6 + 2.0 * delay;
        let plan = solve(&profile, &machine, 20 << 30);
        let split = plan.layers.iter().filter(hybrid).count();
        let resident = plan.layers.iter().filter(|layer| layer.resident).count();
        let waiting: f64 = plan.layers.iter().map(|layer| layer.time.hand_over).sum();
        println!(
            "{:>3.0} us per submission: {split} of {resident} resident layers split, {:.1} ms a token, {:.1} of hand-overs",
            delay * 1e6,
            plan.seconds * 1e3,
            waiting * 1e3
        );
        // Seconds of the plan for no delay, at this delay.
        (split, plan.seconds, Plan::new(&profile, &machine, plan.placement.clone()).seconds, machine, plan.placement)
    });
    for pair in plans.windows(2) {
        let [(before, quicker, ..), (split, seconds, priced, machine, _)] = pair else { unreachable!() };
        assert!(split <= before && seconds > quicker, "{split} layers split after {before}");
        assert!((priced / seconds - 1.0).abs() < 1e-9);
        let unmoved = Plan::new(&profile, machine, plans[0].4.clone()).seconds;
        // The solver is within a thousandth of the optimum.
        assert!(*seconds <= unmoved * 1.001, "the plan for no delay is quicker: {unmoved} against {seconds}");
    }
}

/// Layers that the CPU reads in less time than two hand-overs are whole on one side if submissions
/// are slow.
#[test]
fn slow_submissions_leave_no_small_layer_split() {
    let layers = (0..24).map(|_| layer(4096, 2048, 4 * MIB, SkippedRows::Silent, |at| power_law(at, 4096, 0.2, 0.6)));
    let profile = profile(layers.collect(), 32 * MIB, 16 * MIB);
    let splits = [0.0, 30e-6, 100e-6, 300e-6].map(|delay| {
        let mut machine = Machine::typical();
        machine.gpu.as_mut().unwrap().hand_over = 40e-6 + 2.0 * delay;
        let plan = solve(&profile, &machine, 160 << 20);
        let hybrid = |layer: &&LayerPlan| layer.resident && layer.hot < layer.units;
        let split = plan.layers.iter().filter(hybrid).count();
        println!("{:>3.0} us per submission: {split} of 24 layers split, {:.2} ms", delay * 1e6, plan.seconds * 1e3);
        split
    });
    assert!(splits.is_sorted_by(|a, b| a >= b), "{splits:?}");
    assert!(splits[0] >= 12 && splits[3] <= 1, "{splits:?}");
}

#[test]
fn any_placement_is_made_valid_and_priced() {
    let (profile, machine) = (large(SkippedRows::Silent, 4), Machine::typical());
    // Hot units below the first resident layer, unknown and repeated units, and extra layers are
    // removed.
    let mut placement = Placement { first_resident: 78, hot: vec![vec![3]; 90], head: true };
    placement.hot[79] = vec![5, 5, 28_671, 28_672, u32::MAX];
    let plan = Plan::new(&profile, &machine, placement);
    assert_eq!((plan.layers.len(), plan.layers[77].hot, plan.layers[78].hot, plan.layers[79].hot), (80, 0, 1, 2));
    assert_eq!(plan.placement.hot[79], [5, 28_671]);
    let cpu = Plan::new(&profile, &machine, Placement::cpu(80));
    assert!(plan.seconds < cpu.seconds && plan.bytes.total() > 0);
    assert_eq!(Plan::new(&profile, &machine, plan.placement.clone()), plan);
}

#[test]
fn shared_memory_slows_both_processors() {
    let profile = large(SkippedRows::Silent, 6);
    let machine = Machine::typical();
    let mut shared = machine.clone();
    if let Some(gpu) = &mut shared.gpu {
        gpu.together = Some(SharedMemory { cpu: 0.5, gpu: 0.6 });
    }
    let alone = solve(&profile, &machine, 16 << 30);
    let beside = Plan::new(&profile, &shared, alone.placement.clone());
    assert!(beside.seconds > alone.seconds);
    // Layers computed by one side alone are not slower.
    for (a, b) in alone.layers.iter().zip(&beside.layers).filter(|(a, _)| !a.resident || a.hot == a.units) {
        assert_eq!(a.time, b.time);
    }
    if let Some(gpu) = &mut shared.gpu {
        gpu.together = Some(SharedMemory { cpu: 1.0, gpu: 1.0 });
    }
    assert!((Plan::new(&profile, &shared, alone.placement.clone()).seconds / alone.seconds - 1.0).abs() < 1e-12);
}

#[test]
fn plans_on_one_memory_keep_the_budget_and_are_no_slower_than_one_processor() {
    let profile = large(SkippedRows::Silent, 6);
    // Like Apple's machines: the GPU reads memory slightly faster, each processor is slower while
    // the other reads, and copies are fast.
    let mut machine = Machine::typical();
    machine.cpu.memory = 100e9;
    if let Some(gpu) = &mut machine.gpu {
        (gpu.memory, gpu.upload, gpu.download, gpu.hand_over) = (120e9, 60e9, 60e9, 30e-6);
        gpu.together = Some(SharedMemory { cpu: 0.4, gpu: 0.6 });
    }
    let cpu = Plan::new(&profile, &machine, Placement::cpu(80));
    let mut before = cpu.seconds;
    for budget in (0..=96).step_by(8).map(|gib| gib << 30) {
        let plan = solve(&profile, &machine, budget);
        assert!(plan.bytes.total() <= budget, "{} of {budget}", plan.bytes.total());
        assert!(plan.seconds <= before * 1.01, "{budget}: {} s after {before} s", plan.seconds);
        before = before.min(plan.seconds);
    }
    assert!(before < cpu.seconds, "the GPU is of no use");
}

/// Frequent experts of every layer get slots where hand-overs are quick. Where hand-overs were
/// measured to be slow, the same budget goes to whole layers of experts.
#[test]
fn slots_in_all_layers_and_whole_layers_of_experts_are_weighed_by_measured_speeds() {
    const EXPERTS: usize = 64;
    let frequency = |expert| power_law(expert, EXPERTS, 8.0 / EXPERTS as f64, 0.8);
    let layers = (0..24).map(|_| layer(EXPERTS, 400_000, 8 * MIB, SkippedRows::NotRouted, frequency));
    let moe = profile(layers.collect(), 40 * MIB, 16 * MIB);
    let budget = Plan::new(&moe, &Machine::typical(), Placement::all(&moe)).bytes.total() * 2 / 5;
    let counts = |hand_over| {
        let mut machine = Machine::typical();
        machine.gpu.iter_mut().for_each(|gpu| gpu.hand_over = hand_over);
        let hot = solve(&moe, &machine, budget).placement.hot;
        let split = hot.iter().filter(|hot| (1..EXPERTS).contains(&hot.len())).count();
        (split, hot.iter().filter(|hot| hot.len() == EXPERTS).count())
    };
    let (quick, slow) = (counts(20e-6), counts(400e-6));
    assert!(quick.0 >= 20 && quick.1 == 0, "{quick:?} layers are split and whole");
    assert!(slow.0 == 0 && slow.1 >= 6, "{slow:?} layers are split and whole");
}
