//! MoE models with some resident experts.

use std::time::Duration;

use thermocline_engine::{
    model::Activation,
    sparsity::migration::{FollowOptions, Follower},
};

use super::*;

pub(super) const MIXTRAL: &str = "fixtures/models/mixtral";

/// Tests prompts in groups and slot by slot, and tokens one by one.
#[test]
fn expert_placements_do_not_change_logits() {
    for tier in Tier::ALL {
        placements::every_placement_of(MIXTRAL, &model(MIXTRAL), tier, &[Sparsity::Dense]);
    }
    for tier in [FULL, Tier::PORTABLE] {
        placements::every_placement_of("shared expert", &wide(), tier, &[Sparsity::Dense]);
    }
}

/// Experts with biases, chosen by softmax or sigmoid, with or without bias, and a shared expert
/// with or without a gate. Some are resident and some are not, in chunks of several lengths. The
/// logits equal the reference.
#[test]
fn published_experts_in_part() {
    for name in ["gpt-oss", "gpt-oss-mxfp4", "qwen2-moe", "qwen3-moe", "glm4-moe", "ernie4_5-moe"] {
        let path = format!("fixtures/models/{name}");
        // A dense layer is split by its neurons, so its down projection becomes neuron-major.
        // Floats keep their values.
        let model = if matches!(name, "glm4-moe" | "ernie4_5-moe") { neuron_major(&path) } else { model(&path) };
        let expected = Expected::read(&here(&format!("{path}/expected.safetensors")));
        let (ids, wanted) = (expected.ids("input_ids"), expected.f32("logits"));
        for (at, (what, placement)) in placements(&model, 11).into_iter().enumerate() {
            let chunk = [1, 5, 24][at % 3];
            let got = logits(&mut hybrid(shared(FULL), &model, &placement, chunk), &ids, 4);
            let error = max_diff(&got, &wanted);
            assert!(error <= 1e-3, "{name} {what}, chunks of {chunk}: logits differ by {error}");
        }
    }
}

/// Returns the model with another activation and another activation threshold. The experts' down
/// projections are neuron-major or as in the file.
fn variant(model: &Model, (activation, threshold): (Activation, Option<f32>), neuron_major: bool) -> Arc<Model> {
    let (mut config, mut weights) = (model.config.clone(), model.weights.clone());
    config.activation = activation;
    weights.layers.iter_mut().for_each(|layer| layer.activation_threshold = threshold);
    let model = Model { config, weights, checkpoint: model.checkpoint.clone(), draft_head: None };
    match neuron_major {
        true => Arc::new(model.neuron_major(cpu().pool(), &mut |_, _| ControlFlow::Continue(())).unwrap().0),
        false => Arc::new(model),
    }
}

/// Neurons that are silent or below the activation threshold are skipped wherever an expert is, in
/// both orientations of the CPU's down projections. A device uses the orientation of the file.
#[test]
fn expert_placements_do_not_change_sparse_logits() {
    let forms = [
        ((Activation::Relu, None), Sparsity::Exact, true),
        ((Activation::DRelu, None), Sparsity::Exact, false),
        ((Activation::DRelu, None), Sparsity::Exact, true),
        ((Activation::Silu, Some(0.05)), Sparsity::Threshold, false),
        ((Activation::Silu, Some(0.05)), Sparsity::Threshold, true),
    ];
    for (name, model) in [(MIXTRAL, model(MIXTRAL)), ("shared expert", wide())] {
        for (form, mode, neuron_major) in forms {
            let model = variant(&model, form, neuron_major);
            placements::every_placement_of(name, &model, FULL, &[mode]);
            let ids = ids(&model, 24);
            let run = |mode| {
                let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
                scalar.set_sparsity(mode);
                logits(&mut scalar, &ids, 24)
            };
            let off = relative(&run(mode), &run(Sparsity::Dense));
            assert_eq!(off > 1e-4, mode == Sparsity::Threshold, "{name} {form:?}: {off}");
        }
    }
}

/// Report on a layer: layer, tokens, firing neurons, chosen experts, hot neurons, bytes that the
/// CPU read, and bytes over the bus.
pub(super) type Told = (usize, usize, Vec<u32>, Vec<u32>, Option<Vec<u32>>, u64, u64);

#[derive(Default)]
pub(super) struct Heard(pub Vec<Told>, pub Vec<usize>);

impl Probe for Heard {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let (chosen, hot) = (firing.chosen.unwrap().to_vec(), firing.hot.map(<[u32]>::to_vec));
        let bytes = (firing.cpu_bytes, firing.bus_bytes);
        self.0.push((firing.layer, firing.tokens, firing.fired.to_vec(), chosen, hot, bytes.0, bytes.1));
    }

    fn wants_router(&mut self) -> bool {
        true
    }

    fn router(&mut self, _: usize, chosen: &[usize]) {
        self.1.extend_from_slice(chosen);
    }
}

pub(super) fn hear(forward: &mut Forward, ids: &[u32]) -> Heard {
    let (mut heard, mut kv) = (Heard::default(), forward.kv_cache(ids.len(), KvType::F32).unwrap());
    let (prompt, rest) = ids.split_at(ids.len() - 12);
    forward.run(prompt, &mut kv, Outputs::None, &mut heard).unwrap();
    for id in rest {
        forward.top(&[*id], &mut kv, 4, &mut heard).unwrap();
    }
    heard
}

/// Returns the model with an activation threshold that tells which neurons fire.
pub(super) fn thresholded(model: &Model) -> Arc<Model> {
    let mut weights = model.weights.clone();
    weights.layers.iter_mut().for_each(|layer| layer.activation_threshold = Some(0.05));
    Arc::new(Model { config: model.config.clone(), weights, checkpoint: model.checkpoint.clone(), draft_head: None })
}

/// Firings equal those of the CPU wherever experts are, and hot experts are the resident ones. Only
/// a token that uses an expert that is not resident gives the CPU work and the bus another load.
#[test]
fn split_moe_layers_report_the_firings_of_the_cpu() {
    let gpu = shared(FULL);
    for model in [thresholded(&model(MIXTRAL)), thresholded(&wide())] {
        let shape = model.neuron_shape();
        let experts = model.config.experts.unwrap();
        let ids = ids(&model, 60);
        let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), chunk: 16, ..Setup::default() });
        let wanted = hear(&mut scalar, &ids);
        assert!(wanted.0.iter().any(|told| mask::count(&told.2) > 0));
        for (what, placement) in placements(&model, 8) {
            let heard = hear(&mut hybrid(gpu, &model, &placement, 16), &ids);
            assert_eq!((heard.0.len(), &heard.1), (wanted.0.len(), &wanted.1), "{what}");
            let mut differ = 0;
            for (heard, wanted) in heard.0.iter().zip(&wanted.0) {
                let (layer, tokens, fired, chosen, hot, cpu_bytes, bus_bytes) = heard;
                assert_eq!((layer, tokens, chosen), (&wanted.0, &wanted.1, &wanted.3), "{what}");
                differ += fired.iter().zip(&wanted.2).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
                if *layer < placement.first_resident {
                    assert!(hot.is_none() && *cpu_bytes > 0, "{what}");
                    continue;
                }
                let mut is_hot = vec![0; mask::words(experts.count)];
                placement.hot[*layer].iter().for_each(|expert| mask::insert(&mut is_hot, *expert as usize));
                assert_eq!(hot.as_ref(), Some(&shape.of_experts(*layer, &is_hot)), "{what}");
                let cold = chosen.iter().zip(is_hot.iter().cycle()).any(|(chosen, hot)| chosen & !hot != 0);
                assert_eq!(*cpu_bytes > 0, cold, "{what}: {chosen:?} of {is_hot:?}");
                let row = model.config.d_model.next_multiple_of(32) as u64 * 4;
                let down = row + 8 * experts.used as u64;
                let split = placement.hot[*layer].len() < experts.count;
                let moved = if split { down + if cold { row } else { 0 } } else { 0 };
                assert_eq!(*bus_bytes, moved * *tokens as u64, "{what}: {chosen:?} of {is_hot:?}");
            }
            // Of the 20,000 neurons of 60 tokens, a few near the activation threshold may differ by
            // rounding.
            assert!(differ <= 6, "{what}: {differ} neurons differ");
        }
    }
}

/// A token that uses resident experts only costs two submissions per layer and one at the end. It
/// creates no GPU objects.
#[test]
fn tokens_of_split_moe_layers_create_no_gpu_objects() {
    let gpu = paced(1);
    let model = wide();
    let some = placement(&model, 0, true, |layer, n| {
        (0..n as u32).filter(|e| !(*e as usize + layer).is_multiple_of(3)).collect()
    });
    let mut forward = hybrid(&gpu, &model, &some, 32);
    let mut kv = forward.kv_cache(100, KvType::F16).unwrap();
    forward.run(&ids(&model, 40), &mut kv, Outputs::Last, &mut ()).unwrap();
    forward.top(&[1], &mut kv, 4, &mut ()).unwrap();
    for token in 0..10 {
        let before = (gpu.submits(), gpu.arena().made(), gpu.bind_groups());
        forward.top(&[token], &mut kv, 4, &mut ()).unwrap();
        let layers = model.config.n_layer() as u64;
        // Each layer has a submission for the part before the hand-over and one for the resident
        // experts. The rest is the last submission.
        let now = (before.0 + 2 * layers + 1, before.1, before.2);
        assert_eq!((gpu.submits(), gpu.arena().made(), gpu.bind_groups()), now, "submits, buffers, bind groups");
    }
}

/// An expert becomes resident after its last row is uploaded, for any step size. Until then the CPU
/// computes it.
#[test]
fn large_experts_are_resident_after_their_last_step() {
    let gpu = open(GpuOptions::default());
    let model = wide();
    let ids = ids(&model, 60);
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let wanted = logits(&mut scalar, &ids, 60);
    // Rows of gate and up have `d` elements, rows of down have `width`.
    let (d, width) = (model.config.d_model as u64, model.config.experts.unwrap().n_ff as u64);
    let (expert, row) = (3 * d * width * 4, 4 * d.max(width));
    let (none, some) =
        (placement(&model, 0, true, |_, _| Vec::new()), placement(&model, 0, true, |_, _| vec![5, 0, 9, 3, 7]));
    let load = GpuLoad { chunk: 16, ..GpuLoad::default() };
    let mut go_on = |_, _| ControlFlow::Continue(());
    let mut processor = HybridProcessor::load(&gpu, cpu(), &model, &none, &load, &mut go_on).unwrap();
    let mut kv = processor.kv_cache(&model, ids.len(), KvType::F32).unwrap();
    let (step, mut steps, mut before) = (expert / 3, 0, 0);
    loop {
        let moved = processor.apply(&model, &some, &mut [&mut kv], step).unwrap();
        assert!(moved.bytes <= step + row, "{} bytes in a step of {step}", moved.bytes);
        let held = processor.resident(&model).unwrap();
        let now: usize = held.hot.iter().map(|hot| mask::count(hot)).sum();
        assert!((before..=before + 1).contains(&now), "{before}, then {now} experts");
        (before, steps) = (now, steps + 1);
        if !moved.more {
            break;
        }
    }
    assert_eq!(before, 5 * model.config.n_layer());
    assert!(steps >= 3 * before, "{steps} steps for {before} experts");
    // Here the move stops in the middle of an expert.
    let mut processor = HybridProcessor::load(&gpu, cpu(), &model, &none, &load, &mut go_on).unwrap();
    processor.apply(&model, &some, &mut [&mut kv], step).unwrap();
    let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
    let error = relative(&logits(&mut forward, &ids, 60), &wanted);
    assert!(error <= 1e-4, "{error}");
}

/// Bindings too small for all experts, or even for gate and up of one expert.
#[test]
fn narrow_bindings_of_experts_do_not_change_logits() {
    let model = wide();
    let ids = ids(&model, 50);
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let wanted = logits(&mut scalar, &ids, 8);
    for max_binding in [128 << 10, 32 << 10] {
        let gpu = open(GpuOptions { max_binding: Some(max_binding), ..GpuOptions::default() });
        for (what, placement) in placements(&model, 2) {
            let error = relative(&logits(&mut hybrid(&gpu, &model, &placement, 16), &ids, 8), &wanted);
            assert!(error <= 1e-4, "{what} in {max_binding}: {error}");
        }
    }
}

/// A planner that takes the hot experts from a follower.
#[derive(Debug)]
struct Following(Arc<Mutex<Follower>>);

impl Planner for Following {
    fn plan(&mut self, model: &Model, _: u64) -> thermocline_engine::Result<Placement> {
        Ok(Placement::cpu(model.config.n_layer()))
    }

    fn revise(&mut self, _: &Model, now: &Placement) -> thermocline_engine::Result<Option<Placement>> {
        Ok(self.0.lock().unwrap().revise(now))
    }

    fn bytes_per_move(&self) -> u64 {
        20_000
    }
}

/// A probe that reports firings to the follower.
struct Tells(Arc<Mutex<Follower>>);

impl Probe for Tells {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        self.0.lock().unwrap().add_firing(firing);
    }
}

/// Experts that a text uses replace experts that it does not use, a part at a time. The logits stay
/// the same.
#[test]
fn migration_makes_frequent_experts_resident_without_changing_logits() {
    let gpu = open(GpuOptions::default());
    let plain = wide();
    let (config, mut weights) = (plain.config.clone(), plain.weights.clone());
    for layer in &mut weights.layers {
        let Ffn::Experts(moe) = &mut layer.ffn else { panic!("not an MoE layer") };
        // The bias makes the router prefer the last experts.
        moe.router.bias = Some((0..12).map(|expert| if expert < 6 { 0.0 } else { 8.0 }).collect());
    }
    let model = Arc::new(Model { config, weights, checkpoint: plain.checkpoint.clone(), draft_head: None });
    let ids = ids(&model, 160);
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let wanted = logits(&mut scalar, &ids, 160);

    let follower = Arc::new(Mutex::new(Follower::new(&model, FollowOptions::default())));
    let start = placement(&model, 0, true, |_, _| vec![0, 7, 2, 3, 4, 1]);
    let load = GpuLoad { chunk: 16, ..GpuLoad::default() };
    let mut go_on = |_, _| ControlFlow::Continue(());
    let processor = HybridProcessor::load(&gpu, cpu(), &model, &start, &load, &mut go_on).unwrap();
    let processor = processor.with_planner(Box::new(Following(Arc::clone(&follower))));
    let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    let (used, n_vocab) = (gpu.arena().used_for(Purpose::Ffn), model.config.n_vocab);
    for (at, id) in ids.iter().enumerate() {
        let got = forward.run(&[*id], &mut kv, Outputs::Last, &mut Tells(Arc::clone(&follower))).unwrap();
        let error = relative(got, &wanted[at * n_vocab..(at + 1) * n_vocab]);
        assert!(error <= 1e-4, "token {at}: {error}");
        follower.lock().unwrap().add_tokens(1, Duration::ZERO);
        settle(&mut forward, &mut [&mut kv]).unwrap();
        assert_eq!(gpu.arena().used_for(Purpose::Ffn), used, "token {at}: as many places as before");
    }
    while settle(&mut forward, &mut [&mut kv]).unwrap() {}
    let held = resident(&mut forward);
    for layer in 0..model.config.n_layer() {
        assert_eq!(mask::neurons(&held.hot[layer]).collect::<Vec<_>>(), [6, 7, 8, 9, 10, 11], "layer {layer}");
    }
}
