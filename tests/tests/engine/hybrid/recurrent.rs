//! Recurrent states beside the KV cache, on the processor of their layer.

use super::{
    moving::{check_changing_budget_is_kept, check_moves_keep_logits, check_moves_reach_the_placement},
    *,
};

fn recurrent(name: &str) -> Arc<Model> {
    neuron_major(&format!("fixtures/models/{name}"))
}

/// Tests recurrent layers on both processors, with chunks shorter and longer than a run of the
/// convolution. Models with a sparse activation run with and without their silent neurons.
fn every_placement_keeps_the_logits(name: &str) {
    let (gpu, model) = (shared(FULL), recurrent(name));
    let (ids, n_vocab) = (ids(&model, 70), model.config.n_vocab);
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let wanted = logits(&mut scalar, &ids, 4);
    let half = model.config.n_layer() / 2;
    let some = |_, n: usize| (0..n as u32 / 2).collect();
    let mut all = placements(&model, 5);
    all.push(("half of the layers", placement(&model, half, true, some)));
    let sparse = model.config.activation.is_sparse();
    let (dense, exact) = (Sparsity::Dense, if sparse { Sparsity::Exact } else { Sparsity::Dense });
    for (what, placement) in all {
        // Short chunks continue from a state many times, so fewer tokens suffice.
        let runs = [(1, 16, dense), (5, 30, exact), (24, 70, dense), (64, 70, exact), (1, 16, exact)];
        for (chunk, n, mode) in runs.into_iter().take(if sparse { 5 } else { 4 }) {
            let mut forward = hybrid(gpu, &model, &placement, chunk);
            forward.set_sparsity(mode);
            let error = relative(&logits(&mut forward, &ids[..n], 4), &wanted[..n * n_vocab]);
            assert!(error <= 1e-4, "{name} {what}, chunks of {chunk}, {mode}: {error}\n{placement:?}");
        }
    }
}

fn is_delta_net(name: &str) -> bool {
    name.starts_with("qwen3")
}

fn is_short_convolution(name: &str) -> bool {
    name.starts_with("lfm2")
}

#[test]
fn placements_do_not_change_logits_of_delta_nets() {
    RECURRENT.into_iter().filter(|name| is_delta_net(name)).for_each(every_placement_keeps_the_logits);
}

#[test]
fn placements_do_not_change_logits_of_short_convolutions() {
    RECURRENT.into_iter().filter(|name| is_short_convolution(name)).for_each(every_placement_keeps_the_logits);
}

#[test]
fn placements_do_not_change_logits_of_selective_state_spaces() {
    let others = RECURRENT.into_iter().filter(|name| !is_delta_net(name) && !is_short_convolution(name));
    others.for_each(every_placement_keeps_the_logits);
}

#[test]
fn moving_recurrent_states_between_tokens_does_not_change_logits() {
    for name in RECURRENT {
        check_moves_keep_logits(shared(FULL), &recurrent(name), 60);
    }
    check_moves_reach_the_placement(&recurrent("qwen3_5"), BLOCK);
}

#[test]
fn changing_budgets_are_kept_while_recurrent_states_move() {
    for name in ["nemotron-3-nano", "qwen3-next"] {
        check_changing_budget_is_kept(&recurrent(name));
    }
}

/// Snapshots restore the state for any placement of the layers, then and now.
#[test]
fn snapshots_taken_on_one_side_are_restored_on_the_other() {
    let gpu = shared(FULL);
    for name in RECURRENT {
        let model = recurrent(name);
        let ids = ids(&model, 60);
        let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
        let wanted = logits(&mut scalar, &ids, 60);
        let n_vocab = model.config.n_vocab;
        let (n_layer, every) = (model.config.n_layer(), |_, n: usize| (0..n as u32).collect());
        let sides =
            [Placement::cpu(n_layer), placement(&model, 0, true, every), placement(&model, n_layer / 2, true, every)];
        for (before, after) in (0..3).flat_map(|before| (0..3).map(move |after| (before, after))) {
            let load = GpuLoad { chunk: 16, ..GpuLoad::default() };
            let mut go_on = |_, _| ControlFlow::Continue(());
            let mut processor = HybridProcessor::load(gpu, cpu(), &model, &sides[before], &load, &mut go_on).unwrap();
            let mut kv = processor.kv_cache(&model, 60, KvType::F32).unwrap();
            let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
            forward.run(&ids[..20], &mut kv, Outputs::None, &mut ()).unwrap();
            kv.take_snapshot();
            forward.run(&ids[20..47], &mut kv, Outputs::None, &mut ()).unwrap();
            let mut processor = HybridProcessor::load(gpu, cpu(), &model, &sides[after], &load, &mut go_on).unwrap();
            forward.residency().unwrap().1.return_kv(&mut kv).unwrap();
            assert!(kv.on_host());
            processor.take_kv(&model, &mut kv).unwrap();
            forward.replace(&model, Box::new(processor));
            assert!(forward.holds(&kv));
            kv.truncate(33);
            assert_eq!(kv.len(), 20, "{name} {before} {after}");
            let got = forward.run(&ids[20..], &mut kv, Outputs::All, &mut ()).unwrap();
            let error = relative(got, &wanted[20 * n_vocab..]);
            assert!(error <= 1e-4, "{name} {before} {after}: {error}");
            kv.truncate(0);
            let got = forward.run(&ids, &mut kv, Outputs::All, &mut ()).unwrap();
            assert!(relative(got, &wanted) <= 1e-4, "{name} {before} {after}, from the beginning");
        }
    }
}

/// Any part of a recurrent model on the device, with a conversation, uses no more than its plan for
/// each purpose.
#[test]
fn recurrent_models_in_part_allocate_no_more_than_their_plans() {
    let gpu = open(GpuOptions::default());
    for name in RECURRENT {
        let model = recurrent(name);
        let (load, n_layer) = (GpuLoad { chunk: 16, ..GpuLoad::default() }, model.config.n_layer());
        let demand = demand(&model, 40, &load);
        // Neurons are placed in whole blocks.
        let part = |n: usize, half: usize| (0..n as u32).take((n * half / 2).next_multiple_of(BLOCK)).collect();
        for (first, half) in (0..n_layer).flat_map(|first| (0..3).map(move |half| (first, half))) {
            let head = (first + half) % 2 == 0;
            let placement = placement(&model, first, head, |_, n| part(n, half));
            let plan = Plan::new(&demand, &Machine::typical(), placement.clone());
            let what = format!("{name} from layer {first} on, {half} halves of its neurons, head: {head}");
            let mut forward = hybrid(&gpu, &model, &placement, 16);
            let kv = forward.kv_cache(40, KvType::F32).unwrap();
            let arena = gpu.arena();
            let used = |purpose| arena.used_for(purpose);
            for (what_for, used, planned) in [
                ("attention", used(Purpose::Attention), plan.bytes.attention),
                ("FFN and vectors", used(Purpose::Ffn) + used(Purpose::Vectors), plan.bytes.ffn + plan.bytes.vectors),
                ("head", used(Purpose::Head), plan.bytes.head),
                ("KV cache", used(Purpose::Kv), plan.bytes.kv),
                ("scratch", used(Purpose::Scratch), plan.bytes.scratch),
                ("staging", used(Purpose::Staging), plan.bytes.staging),
                ("predictors", used(Purpose::Predictor), plan.bytes.predictor),
            ] {
                assert!(used <= planned, "{what}, {what_for}: {used} bytes, {planned} planned");
            }
            let before = arena.used();
            drop(kv);
            // A conversation uses exactly the planned bytes. The next one is therefore refused only
            // if it does not fit.
            assert_eq!(before - arena.used(), plan.bytes.kv, "{what}");
        }
    }
}
