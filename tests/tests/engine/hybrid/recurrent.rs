//! Recurrent states beside the KV cache, on whichever side their layer is.

use super::{
    moving::{check_moves_keep_logits, check_moves_reach_the_placement},
    *,
};

fn recurrent(name: &str) -> Arc<Model> {
    neuron_major(&format!("fixtures/models/{name}"))
}

/// Recurrent layers on either side, and chunks that are shorter than a run of the convolution, and longer.
#[test]
fn placements_do_not_change_logits_of_recurrent_models() {
    let gpu = shared(FULL);
    for name in RECURRENT {
        let model = recurrent(name);
        let ids = ids(&model, 90);
        let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
        let wanted = logits(&mut scalar, &ids, 4);
        let half = model.config.n_layer() / 2;
        let some = |_, n: usize| (0..n as u32 / 2).collect();
        let mut all = placements(&model, 5);
        all.push(("half of the layers", placement(&model, half, true, some)));
        for (what, placement) in all {
            for chunk in [1, 5, 24, 64] {
                let error = relative(&logits(&mut hybrid(gpu, &model, &placement, chunk), &ids, 4), &wanted);
                assert!(error <= 1e-4, "{name} {what}, chunks of {chunk}: {error}\n{placement:?}");
            }
        }
    }
}

#[test]
fn moving_recurrent_states_between_tokens_does_not_change_logits() {
    for name in RECURRENT {
        check_moves_keep_logits(&recurrent(name));
    }
    check_moves_reach_the_placement(&recurrent("qwen3_5"), BLOCK);
}

/// Snapshots restore the state wherever the layers were when they were taken, and wherever they are now.
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
