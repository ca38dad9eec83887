//! Cost of a token, and behaviour if the device or its memory fails.

use super::{firing::Heard, *};

#[test]
fn token_submits_twice_per_split_layer_and_creates_no_gpu_objects() {
    let gpu = paced(1);
    let model = model(POWERINFER);
    let every = |_, n: usize| (0..n as u32).collect::<Vec<u32>>();
    let half = |_, n: usize| (0..n as u32 / 2).collect::<Vec<u32>>();
    for (placement, submits) in [
        (placement(&model, 0, true, every), 1),
        (placement(&model, 0, false, every), 1),
        (placement(&model, 1, true, every), 1),
        (placement(&model, 0, true, half), 5),
        (placement(&model, 1, false, half), 3),
        // Without hot neurons, a layer has no second submission.
        (placement(&model, 0, true, |_, _| Vec::new()), 3),
        (Placement::cpu(model.config.n_layer()), 0),
    ] {
        for mode in [Sparsity::Exact, Sparsity::Predicted] {
            let mut forward = hybrid(&gpu, &model, &placement, 32);
            forward.set_sparsity(mode);
            let mut kv = forward.kv_cache(100, KvType::F16).unwrap();
            forward.run(&ids(&model, 40), &mut kv, Outputs::Last, &mut Heard::default()).unwrap();
            let counts = || (gpu.submits(), gpu.arena().made(), gpu.bind_groups());
            for token in 0..10 {
                let before = counts();
                match token % 3 {
                    0 => drop(forward.run(&[token], &mut kv, Outputs::Last, &mut ()).unwrap()),
                    1 => drop(forward.top(&[token], &mut kv, 40, &mut ()).unwrap()),
                    _ => drop(forward.run(&[token], &mut kv, Outputs::Last, &mut Heard::default()).unwrap()),
                }
                let now = counts();
                assert_eq!(now.1, before.1, "{mode} {placement:?}: buffers");
                assert_eq!(now.2, before.2, "{mode} {placement:?}: bind groups");
                assert_eq!(now.0 - before.0, submits, "{mode} {placement:?}: submissions");
            }
        }
    }
}

#[test]
fn device_loss_at_any_submission_or_readback_is_an_error() {
    for model in [model(POWERINFER), wide()] {
        every_moment(&model);
    }
}

fn every_moment(model: &Arc<Model>) {
    let placement = placement(model, 1, true, |_, n| (0..n as u32 / 2).collect());
    let ids = ids(model, 20);
    for point in [FaultPoint::Submit, FaultPoint::Readback] {
        let n = lost_at_every(point, |gpu| {
            let load = GpuLoad { chunk: 8, ..GpuLoad::default() };
            let mut go_on = |_, _| ControlFlow::Continue(());
            let processor = HybridProcessor::load(gpu, cpu(), model, &placement, &load, &mut go_on)?;
            let mut forward = Forward::on(Arc::clone(model), Box::new(processor));
            forward.set_sparsity(Sparsity::Exact);
            let mut kv = forward.kv_cache(ids.len(), KvType::F16)?;
            forward.run(&ids[..17], &mut kv, Outputs::None, &mut Heard::default())?;
            for id in &ids[17..] {
                forward.run(&[*id], &mut kv, Outputs::Last, &mut Heard::default())?;
            }
            Ok(())
        });
        assert!(n > 10, "{point:?}: passed {n} times");
    }
}

#[test]
fn failed_allocation_of_a_hybrid_model_is_an_error() {
    let model = model(POWERINFER);
    let half = placement(&model, 0, true, |_, n| (0..n as u32 / 2).collect());
    let ids = ids(&model, 12);
    let mut n = 0;
    loop {
        n += 1;
        let faults = Faults(Some((FaultPoint::Allocation, n)));
        // The first allocation belongs to the device itself.
        let Ok(gpu) = Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), faults, ..GpuOptions::default() })
        else {
            continue;
        };
        let empty = gpu.arena().used();
        let load = GpuLoad { chunk: 8, ..GpuLoad::default() };
        let mut go_on = |_, _| ControlFlow::Continue(());
        let loaded = HybridProcessor::load(&gpu, cpu(), &model, &half, &load, &mut go_on);
        let done = loaded.and_then(|processor| {
            let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
            let mut kv = forward.kv_cache(ids.len(), KvType::F16)?;
            for id in &ids {
                forward.run(&[*id], &mut kv, Outputs::Last, &mut Heard::default())?;
            }
            Ok(())
        });
        // A load that was refused a buffer and requested a smaller one has made at least `n`
        // allocations.
        let over = done.is_ok() && gpu.arena().made() < n;
        if let Err(error) = done {
            assert!(matches!(error, Error::Memory { .. }), "{n}: {error}");
        }
        assert_eq!(gpu.arena().used(), empty, "{n}: something stayed");
        if over {
            break;
        }
    }
    assert!(n > 20, "{n} allocations");
}

/// If memory suffices for some of the experts, the device uses these.
#[test]
fn failed_allocation_of_experts_keeps_the_logits() {
    let model = wide();
    let half = placement(&model, 0, true, |_, n| (0..n as u32 / 2).collect());
    let ids = ids(&model, 12);
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let wanted = logits(&mut scalar, &ids, 12);
    let (mut loaded, mut refused) = (0, 0);
    for n in 1..=400 {
        let faults = Faults(Some((FaultPoint::Allocation, n)));
        let Ok(gpu) = Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), faults, ..GpuOptions::default() })
        else {
            continue;
        };
        let empty = gpu.arena().used();
        let load = GpuLoad { chunk: 8, ..GpuLoad::default() };
        let mut go_on = |_, _| ControlFlow::Continue(());
        match HybridProcessor::load(&gpu, cpu(), &model, &half, &load, &mut go_on) {
            Err(error) => {
                assert!(matches!(error, Error::Memory { .. }), "{n}: {error}");
                refused += 1;
            }
            Ok(processor) => {
                let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
                let held = resident(&mut forward);
                assert!(held.hot.iter().all(|hot| mask::count(hot) == 6), "{n}: {held:?}");
                match forward.kv_cache(ids.len(), KvType::F32) {
                    Err(error) => assert!(matches!(error, Error::Memory { .. }), "{n}: {error}"),
                    Ok(kv) => {
                        drop(kv);
                        let error = relative(&logits(&mut forward, &ids, 12), &wanted);
                        assert!(error <= 1e-4, "{n}: {error}");
                    }
                }
                loaded += 1;
            }
        }
        assert_eq!(gpu.arena().used(), empty, "{n}: something stayed");
        if loaded > 12 {
            break;
        }
    }
    assert!(loaded > 12 && refused > 20, "{loaded} loads, {refused} refusals");
}
