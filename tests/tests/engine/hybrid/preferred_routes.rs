//! Routes that prefer resident experts.

use thermocline_engine::runtime::{HeldExperts, RoutePreference, always_taken};

use super::{experts::MIXTRAL, *};

/// A token's chosen experts in the first layer, token by token.
#[derive(Default)]
struct FirstLayer(Vec<Vec<usize>>);

impl Probe for FirstLayer {
    fn wants_router(&mut self) -> bool {
        true
    }

    fn router(&mut self, layer: usize, chosen: &[usize]) {
        if layer == 0 {
            self.0.push(chosen.to_vec());
        }
    }
}

/// Every second expert of every layer.
fn half(model: &Model) -> Placement {
    placement(model, 0, true, |_, n| (0..n as u32).step_by(2).collect())
}

fn masks_of(model: &Model, placement: &Placement) -> HeldExperts {
    let mask = |(layer, hot): (usize, &Vec<u32>)| {
        let mut words = vec![0; mask::words(neurons(model, layer))];
        hot.iter().for_each(|expert| mask::insert(&mut words, *expert as usize));
        words
    };
    HeldExperts::Masks(placement.hot.iter().enumerate().map(mask).collect())
}

fn scalar(model: &Arc<Model>) -> Forward {
    golden::forward(model, Setup { isa: Some(Isa::Scalar), ..Setup::default() })
}

const MIXTURES: [&str; 4] =
    [MIXTRAL, "fixtures/models/gpt-oss", "fixtures/models/qwen2-moe", "fixtures/models/qwen3-moe"];

/// A preference changes no bit if it is zero, or if all experts are resident. Prompts are exact.
#[test]
fn preferences_without_effect_keep_every_bit() {
    let strong = RoutePreference { near: 0.4, drop: 1.0, frozen: false };
    for name in MIXTURES {
        let model = model(name);
        let ids = ids(&model, 20);
        let every = placement(&model, 0, true, |_, n| (0..n as u32).collect());
        let half = half(&model);
        let run = |placement: &Placement, routes, single| {
            let mut forward = hybrid(shared(FULL), &model, placement, 16);
            forward.set_routes(routes);
            logits(&mut forward, &ids, single)
        };
        assert_eq!(run(&every, strong, 8), run(&every, RoutePreference::OFF, 8), "{name}: all resident");
        let zero = RoutePreference { near: 0.0, drop: 0.0, frozen: true };
        assert_eq!(run(&half, zero, 8), run(&half, RoutePreference::OFF, 8), "{name}: zero");
        assert_eq!(run(&half, strong, 0), run(&half, RoutePreference::OFF, 0), "{name}: a prompt");
        let on_cpu = |routes| {
            let mut forward = scalar(&model);
            forward.set_routes(routes);
            logits(&mut forward, &ids, 8)
        };
        assert_eq!(on_cpu(strong), on_cpu(RoutePreference::OFF), "{name}: all in RAM");
    }
}

/// A device and the CPU prefer the same experts, in passes of one token and of several.
#[test]
fn both_processors_prefer_the_same_experts() {
    for name in MIXTURES {
        let model = model(name);
        let (ids, half) = (ids(&model, 24), half(&model));
        for (near, drop) in [(0.3, 0.0), (0.0, 1.5), (0.2, 0.9)] {
            let routes = RoutePreference { near, drop, frozen: false };
            let (mut device, mut cpu) = (hybrid(shared(FULL), &model, &half, 16), scalar(&model));
            cpu.hold_experts(masks_of(&model, &half));
            for rows in [1, 2, 4, 8] {
                let run = |forward: &mut Forward, routes| {
                    forward.set_routes(routes);
                    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
                    let batches = ids.chunks(rows);
                    batches
                        .flat_map(|part| forward.run_batch(&mut [(&mut kv, part)], &mut ()).unwrap().to_vec())
                        .collect()
                };
                let (got, wanted): (Vec<f32>, Vec<f32>) = (run(&mut device, routes), run(&mut cpu, routes));
                let exact: Vec<f32> = run(&mut cpu, RoutePreference::OFF);
                let error = relative(&got, &wanted);
                assert!(error <= 1e-3, "{name} {routes}, {rows} rows: {error}");
                assert!(relative(&wanted, &exact) > 1e-3, "{name} {routes} changes nothing");
            }
        }
    }
}

/// The best experts are taken wherever they are. A strong preference takes only resident experts
/// beside them.
#[test]
fn best_experts_are_always_taken() {
    for name in MIXTURES {
        let model = model(name);
        let (ids, half, used) = (ids(&model, 24), half(&model), model.config.experts.unwrap().used);
        let chosen = |near| {
            let mut forward = hybrid(shared(FULL), &model, &half, 16);
            forward.set_routes(RoutePreference { near, drop: 0.0, frozen: false });
            let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
            let mut seen = FirstLayer::default();
            for id in &ids {
                forward.run(&[*id], &mut kv, Outputs::Last, &mut seen).unwrap();
            }
            seen.0
        };
        let (exact, near) = (chosen(0.0), chosen(10.0));
        let always = always_taken(used).min(used);
        let mut moved = 0;
        // The range of the first token is not known before it is computed.
        for (exact, near) in exact.iter().zip(&near).skip(1) {
            assert_eq!(exact[..always], near[..always], "{name}");
            let resident = near[always..].iter().filter(|expert| *expert % 2 == 0).count();
            assert_eq!(resident, (used - always).min(half.hot[0].len()), "{name}: {near:?}");
            moved += usize::from(exact != near);
        }
        assert!(moved > 0, "{name}: the preference changes no choice");
    }
}
