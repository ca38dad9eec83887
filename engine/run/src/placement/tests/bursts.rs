//! Plans for a device whose clocks sink between short submissions.

use super::*;

/// A machine whose GPU has this fraction of its rates in bursts. It has no times for dispatches and
/// joins, and reads scattered rows as fast as others.
fn machine(fraction: f64) -> Machine {
    let mut machine = Machine::typical();
    with_bursts(&mut machine, fraction);
    let gpu = machine.gpu.as_mut().unwrap();
    (gpu.dispatch, machine.cpu.join) = (0.0, 0.0);
    let rates = gpu.rates.values_mut().chain(machine.cpu.rates.values_mut());
    rates.for_each(|rate| rate.scattered = rate.sequential);
    machine
}

/// Three equal layers of 256 neurons that all fire.
fn three_layers() -> CostProfile {
    let layers = (0..3).map(|_| layer(256, 4096, 4 * MIB, SkippedRows::Nothing, |_| 1.0));
    profile(layers.collect(), 8 * MIB, MIB)
}

fn of(machine: &Machine, first_resident: usize, hot: [usize; 3], head: bool) -> Plan {
    let profile = three_layers();
    let hot = hot.map(|hot| (0..hot as u32).collect::<Vec<u32>>()).to_vec();
    Plan::new(&profile, machine, Placement { first_resident, hot, head })
}

fn near(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-9
}

/// The GPU's seconds for a layer with `hot` neurons at 240 GB/s.
fn sustained(hot: f64) -> f64 {
    (4.0 * MIB as f64 + hot * 3.0 * 4096.0) / 240e9
}

#[test]
fn split_layers_take_the_time_of_bursts_and_whole_ones_that_of_work_without_waits() {
    let third = machine(1.0 / 3.0);
    let head = 8.0 * MIB as f64 / 240e9;
    let whole = of(&third, 0, [256; 3], true);
    assert!(whole.layers.iter().all(|layer| near(layer.time.gpu, sustained(256.0))), "{:?}", whole.layers);
    assert!(near(whole.head_seconds, head), "the device alone computes the token");

    let split = of(&third, 0, [256, 64, 256], true);
    let [before, within, behind] = [0, 1, 2].map(|at| split.layers[at].time);
    assert!(near(before.gpu, sustained(256.0)) && near(behind.gpu, sustained(256.0)));
    assert!(near(within.gpu, 3.0 * sustained(64.0)) && near(within.attention, 3.0 * 4.0 * MIB as f64 / 240e9));
    let cold = 192.0 * 3.0 * 4096.0 / 36e9;
    let hot = 3.0 * 64.0 * 3.0 * 4096.0 / 240e9;
    assert!(near(within.seconds, within.attention + 60e-6 + f64::max(hot, cold)), "{within:?}");

    let last = of(&third, 0, [256, 256, 64], true);
    assert!(near(last.head_seconds, 3.0 * head), "it follows a wait for the CPU");
    assert!(last.layers.windows(2).all(|pair| near(pair[0].time.gpu, sustained(256.0))));
}

/// The first whole layer after a wait for the CPU is a burst; the next ones are not.
#[test]
fn first_whole_layer_of_a_device_that_has_waited_is_a_burst() {
    let third = machine(1.0 / 3.0);
    let times = |plan: Plan| plan.layers.iter().map(|layer| layer.time.gpu / sustained(256.0)).collect::<Vec<f64>>();
    let are = |got: Vec<f64>, expected: [f64; 3]| got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9);
    assert!(are(times(of(&third, 1, [0, 256, 256], true)), [0.0, 3.0, 1.0]), "the CPU has the layer below");
    assert!(are(times(of(&third, 2, [0, 0, 256], false)), [0.0, 0.0, 3.0]));
    for head in [false, true] {
        assert!(are(times(of(&third, 0, [256; 3], head)), [1.0; 3]), "the device has all layers");
    }
    assert!(are(times(of(&machine(1.0), 1, [0, 256, 256], true)), [0.0, 1.0, 1.0]), "clocks that do not sink");
}

/// If a third of the rate remains in bursts, a split layer's neurons are worth less, and whole
/// layers as much as before.
#[test]
fn fewer_layers_are_split_where_clocks_sink() {
    let profile = large(SkippedRows::Silent, 2);
    let budget = 20 << 30;
    let plans = [1.0, 1.0 / 3.0].map(|fraction| {
        let mut machine = Machine::typical();
        with_bursts(&mut machine, fraction);
        let plan = solve(&profile, &machine, budget);
        let split: Vec<&LayerPlan> = plan.layers.iter().filter(|it| it.resident && it.hot < it.units).collect();
        let whole = plan.layers.iter().filter(|layer| layer.resident && layer.hot == layer.units).count();
        let hot: usize = split.iter().map(|layer| layer.hot).sum();
        println!("{fraction:.2}: {} split with {hot} hot, {whole} whole, {:.1} ms", split.len(), plan.seconds * 1e3);
        (split.len(), hot, whole, plan, machine)
    });
    let [(split_before, hot_before, whole_before, hopeful, _), (split, hot, whole, plan, third)] = plans;
    assert!(split < split_before && hot < hot_before && whole >= whole_before, "{split} {hot} {whole}");
    let priced = Plan::new(&profile, &third, hopeful.placement.clone());
    assert!(plan.seconds < priced.seconds && hopeful.seconds < priced.seconds, "{} {}", plan.seconds, priced.seconds);
    assert!(plan.bytes.total() <= budget);
}

/// No placement of three layers is faster than the solution. Tries all placements of whole blocks.
#[test]
fn small_models_are_placed_within_a_hundredth_of_the_optimum_where_clocks_sink() {
    let rng = &mut StdRng::seed_from_u64(21);
    let mut differ = 0;
    for case in 0..8 {
        let layers = (0..3).map(|_| {
            let rates: Vec<f32> = (0..4 * BLOCK).map(|_| rng.random_range(0.0_f32..1.0).powi(3)).collect();
            layer(4 * BLOCK, rng.random_range(20_000..60_000), MIB, SkippedRows::Silent, |at| rates[at])
        });
        let profile = profile(layers.collect(), 6 * MIB, 2 * MIB);
        let [quick, slow] = [1.0, 0.3].map(|fraction| {
            let mut machine = Machine::typical();
            with_bursts(&mut machine, fraction);
            machine
        });
        let mut tried = vec![Plan::new(&profile, &slow, Placement::cpu(3))];
        for first in 0..3 {
            let blocks: Vec<usize> = (0..3).map(|at| if at < first { 1 } else { 5 }).collect();
            for number in 0..2 * blocks.iter().product::<usize>() {
                let mut rest = number / 2;
                let hot = (0..3).map(|at| {
                    let hot = rest % blocks[at];
                    rest /= blocks[at];
                    profile.layers[at].order[..hot * BLOCK].to_vec()
                });
                let placement = Placement { hot: hot.collect(), first_resident: first, head: number % 2 == 0 };
                tried.push(Plan::new(&profile, &slow, placement));
            }
        }
        let all = Plan::new(&profile, &slow, Placement::all(&profile)).bytes.total();
        let [with, without] = [&slow, &quick].map(|machine| Frontier::new(&profile, machine));
        for budget in (0..=40).map(|step| all * step / 38) {
            let plan = with.plan(&profile, &slow, budget);
            let fits = tried.iter().filter(|plan| plan.bytes.total() <= usable(budget));
            let best = fits.map(|plan| plan.seconds).fold(f64::INFINITY, f64::min);
            assert!(plan.seconds <= best * 1.01, "{case}, {budget} bytes: {} s of {best}", plan.seconds);
            differ += usize::from(without.plan(&profile, &quick, budget).placement != plan.placement);
        }
    }
    assert!(differ > 20, "{differ} plans are others than where clocks do not sink");
}
