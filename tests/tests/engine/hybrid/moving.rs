//! Moves of the resident part between two tokens.

use super::{placements::thresholded, *};

/// A planner that returns one placement after another, or as many neurons of as many layers as fit.
#[derive(Debug)]
enum Script {
    Placements(Arc<Mutex<(Option<Placement>, u64)>>),
    Most(CostProfile),
}

/// Returns a placement of as many neurons of as many layers as fit.
pub(super) fn most(model: &Model, demand: &CostProfile, budget: u64) -> Placement {
    most_up_to(12, model, demand, budget)
}

/// Returns the same placement with at most `twelfths` twelfths of a layer's neurons.
pub(super) fn most_up_to(twelfths: usize, model: &Model, demand: &CostProfile, budget: u64) -> Placement {
    let machine = Machine::typical();
    let n_layer = model.config.n_layer();
    let parts = (0..=twelfths).rev().flat_map(|part| (0..n_layer).map(move |first| (first, part)));
    let candidates = parts.map(|(first, part)| {
        placement(model, first, first == 0, |_, n| (0..n as u32).rev().take(n * part / 12).collect())
    });
    let fits = |placement: &Placement| Plan::new(demand, &machine, placement.clone()).bytes.total() <= budget;
    candidates.into_iter().find(fits).unwrap_or_else(|| Placement::cpu(n_layer))
}

impl Planner for Script {
    fn plan(&mut self, model: &Model, budget: u64) -> thermocline_engine::Result<Placement> {
        match self {
            Script::Placements(_) => Ok(Placement::cpu(model.config.n_layer())),
            Script::Most(demand) => Ok(most(model, demand, budget)),
        }
    }

    fn revise(&mut self, _: &Model, _: &Placement) -> thermocline_engine::Result<Option<Placement>> {
        match self {
            Script::Placements(next) => Ok(next.lock().unwrap().0.take()),
            Script::Most(_) => Ok(None),
        }
    }

    fn bytes_per_move(&self) -> u64 {
        match self {
            Script::Placements(next) => next.lock().unwrap().1,
            Script::Most(_) => 50_000,
        }
    }
}

/// Logits do not change for any move, however small its steps.
#[test]
fn moving_weights_between_tokens_does_not_change_logits() {
    // In Gemma 4 E2B and 3n, layers read keys and values of layers that may be on the other
    // processor.
    let of = |name: &str| neuron_major(&format!("fixtures/models/{name}"));
    let others = ["gemma4-e2b", "gemma3n", "plm", "glm4-moe-lite", "laguna"].map(of);
    let whole = [model(POWERINFER), model(experts::MIXTRAL), wide(), model("fixtures/models/gemma4-moe")];
    for model in whole.into_iter().chain(others) {
        check_moves_keep_logits(shared(FULL), &model, 60);
    }
}

/// Caches in several buffers on the device move to RAM and back without loss.
#[test]
fn moving_caches_in_pages_does_not_change_logits() {
    let gpu = open(GpuOptions { max_binding: Some(64 << 10), ..GpuOptions::default() });
    // The keys of one head are at least 48 KiB.
    for name in ["gemma3n", "jais2", "llama-silu-gqa"] {
        check_moves_keep_logits(&gpu, &neuron_major(&format!("fixtures/models/{name}")), 1000);
    }
}

/// Moves weights between the tokens of a text, with room for `room` positions in the caches.
pub(super) fn check_moves_keep_logits(gpu: &Gpu, model: &Arc<Model>, room: usize) {
    let ids = ids(model, 60);
    let mut scalar = golden::forward(model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let wanted = logits(&mut scalar, &ids, 60);
    let n_vocab = model.config.n_vocab;
    for seed in 0..4 {
        let (everywhere, dice) = (placements(model, seed), &mut Dice(seed));
        let load = GpuLoad { chunk: 16, ..GpuLoad::default() };
        let mut go_on = |_, _| ControlFlow::Continue(());
        let start = &everywhere[dice.below(everywhere.len())].1;
        let processor = HybridProcessor::load(gpu, cpu(), model, start, &load, &mut go_on).unwrap();
        let next = Arc::new(Mutex::new((None, 0)));
        let processor = processor.with_planner(Box::new(Script::Placements(Arc::clone(&next))));
        let mut forward = Forward::on(Arc::clone(model), Box::new(processor));
        forward.set_sparsity(Sparsity::Exact);
        let mut kv = forward.kv_cache(room, KvType::F32).unwrap();
        for (at, id) in ids.iter().enumerate() {
            if at % 6 == 5 {
                next.lock().unwrap().0 = Some(everywhere[dice.below(everywhere.len())].1.clone());
            }
            next.lock().unwrap().1 = [1, 20_000, u64::MAX][dice.below(3)];
            settle(&mut forward, &mut [&mut kv]).unwrap();
            assert!(forward.holds(&kv), "seed {seed} token {at}");
            let got = forward.run(&[*id], &mut kv, Outputs::Last, &mut ()).unwrap();
            let error = relative(got, &wanted[at * n_vocab..(at + 1) * n_vocab]);
            assert!(error <= 1e-4, "seed {seed} token {at}: {error}");
        }
    }
}

/// A neuron has the activation threshold of the side that it is on, also after it has moved.
#[test]
fn neurons_have_the_threshold_of_their_side() {
    let model = thresholded(&neuron_major("fixtures/models/llama-silu-gqa"), Some(&|_| 1.0));
    let ids = ids(&model, 30);
    let skipping = |forward: &mut Forward| {
        forward.set_sparsity(Sparsity::Threshold);
        logits(forward, &ids, 30)
    };
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let of_one_side = skipping(&mut scalar);
    let load = GpuLoad { chunk: 16, threshold_ratio: 0.5, ..GpuLoad::default() };
    let (everywhere, mut go_on) = (placements(&model, 3), |_, _| ControlFlow::Continue(()));
    let start = &everywhere[0].1;
    let processor = HybridProcessor::load(shared(FULL), cpu(), &model, start, &load, &mut go_on).unwrap();
    let next = Arc::new(Mutex::new((None, u64::MAX)));
    let processor = processor.with_planner(Box::new(Script::Placements(Arc::clone(&next))));
    let (mut forward, mut differ) = (Forward::on(Arc::clone(&model), Box::new(processor)), 0);
    for (what, placement) in everywhere {
        next.lock().unwrap().0 = Some(placement);
        while settle(&mut forward, &mut []).unwrap() {}
        // On one side only, half the threshold is the same as twice the gate.
        let (of, residency) = forward.residency().unwrap();
        let held = residency.resident(of).unwrap_or_default();
        let mut of_sides = Model::clone(&model);
        for (hot, layer) in held.hot.iter().zip(&mut of_sides.weights.layers) {
            let scale = |neuron: usize| if mask::contains(hot, neuron) { 2.0 } else { 1.0 };
            let scales = |ffn: &FfnWeights| (0..ffn.up.weight.rows()).map(scale).collect();
            layer.ffn.ffns_mut().for_each(|ffn| ffn.gate_scales = Some(scales(ffn)));
        }
        let of_sides = Arc::new(of_sides);
        let mut scalar = golden::forward(&of_sides, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
        let (got, wanted) = (skipping(&mut forward), skipping(&mut scalar));
        let error = relative(&got, &wanted);
        assert!(error <= 1e-4, "{what}: {error}");
        differ += usize::from(relative(&got, &of_one_side) > 1e-3);
    }
    assert!(differ >= 5, "{differ} placements differ from one threshold");
}

#[test]
fn moves_end_at_the_requested_placement() {
    for (model, block) in [(model(POWERINFER), BLOCK), (wide(), 1)] {
        check_moves_reach_the_placement(&model, block);
    }
}

pub(super) fn check_moves_reach_the_placement(model: &Arc<Model>, block: usize) {
    let gpu = open(GpuOptions::default());
    let (everywhere, dice) = (placements(model, 11), &mut Dice(5));
    let load = GpuLoad { chunk: 16, ..GpuLoad::default() };
    let mut go_on = |_, _| ControlFlow::Continue(());
    let mut processor = HybridProcessor::load(&gpu, cpu(), model, &everywhere[0].1, &load, &mut go_on).unwrap();
    for _ in 0..30 {
        let (what, to) = &everywhere[dice.below(everywhere.len())];
        let mut steps = 0;
        while processor.apply(model, to, &mut [], 30_000).unwrap().more {
            steps += 1;
            assert!(steps < 100, "{what}: no end");
        }
        let held = processor.resident(model).unwrap_or_default();
        for layer in to.first_resident..model.config.n_layer() {
            assert_eq!((held.first_layer, held.head), (to.first_resident, to.head), "{what}");
            let resident = &held.hot[layer];
            assert!(to.hot[layer].iter().all(|i| mask::contains(resident, *i as usize)), "{what}, layer {layer}");
            // Memory is freed in blocks of neurons.
            let most = to.hot[layer].len().next_multiple_of(block);
            assert!(mask::count(resident) <= most, "{what}, layer {layer}: {} resident", mask::count(resident));
        }
        assert_eq!(gpu.arena().used_for(Purpose::Head) > 0, to.head, "{what}");
        assert_eq!(gpu.arena().used_for(Purpose::Attention) > 0, to.first_resident < model.config.n_layer(), "{what}");
    }
}

#[test]
fn changing_budgets_are_kept_while_weights_move() {
    for model in [model(POWERINFER), wide()] {
        check_changing_budget_is_kept(&model);
    }
}

pub(super) fn check_changing_budget_is_kept(model: &Arc<Model>) {
    let ids = ids(model, 120);
    let mut scalar = golden::forward(model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let wanted = logits(&mut scalar, &ids, 120);
    let (n_vocab, n_layer) = (model.config.n_vocab, model.config.n_layer());
    let load = GpuLoad { chunk: 8, ..GpuLoad::default() };
    let demand = demand(model, ids.len(), &load);
    let whole = most(model, &demand, u64::MAX);
    let all = Plan::new(&demand, &Machine::typical(), whole.clone()).bytes.total();
    let gpu = open(GpuOptions { budget: Some(all), ..GpuOptions::default() });
    let mut go_on = |_, _| ControlFlow::Continue(());
    let processor = HybridProcessor::load(&gpu, cpu(), model, &whole, &load, &mut go_on).unwrap();
    let processor = processor.with_planner(Box::new(Script::Most(demand)));
    let mut forward = Forward::on(Arc::clone(model), Box::new(processor));
    forward.set_sparsity(Sparsity::Exact);
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    let (mut budget, mut split) = (all, 0);
    let dice = &mut Dice(1);
    for (at, id) in ids.iter().enumerate() {
        if at % 4 == 3 {
            budget = dice.below(all as usize * 5 / 4) as u64 + 1000;
            set_budget(&mut forward, budget, &mut [&mut kv]).unwrap();
        }
        assert!(gpu.arena().used() <= budget, "token {at}: {} of {budget}", gpu.arena().used());
        settle(&mut forward, &mut [&mut kv]).unwrap();
        assert!(gpu.arena().used() <= budget, "token {at}: {} of {budget}", gpu.arena().used());
        assert!(forward.holds(&kv), "token {at}");
        let before = gpu.submits();
        let got = forward.run(&[*id], &mut kv, Outputs::Last, &mut ()).unwrap();
        let error = relative(got, &wanted[at * n_vocab..(at + 1) * n_vocab]);
        assert!(error <= 1e-4, "token {at} in {budget}: {error}");
        assert!(gpu.arena().used() <= budget, "token {at}: {} of {budget}", gpu.arena().used());
        split += usize::from((2..=2 * n_layer as u64 + 1).contains(&(gpu.submits() - before)));
    }
    assert!(split > 10, "of {} tokens {split} were split", ids.len());
}
