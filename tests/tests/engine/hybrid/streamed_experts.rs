//! Prompts whose cold experts are streamed to the device.

use std::collections::HashSet;

use super::{
    experts::{self, MIXTRAL, thresholded},
    streaming::{Loads, PLENTY, every_placement_streams, least, streaming, streaming_as},
    *,
};

#[test]
fn streamed_experts_do_not_change_logits() {
    every_placement_streams(MIXTRAL, &model(MIXTRAL), &Tier::ALL, Sparsity::Dense);
}

#[test]
fn streamed_experts_do_not_change_logits_beside_a_shared_expert() {
    every_placement_streams("shared expert", &wide(), &[FULL, Tier::PORTABLE], Sparsity::Dense);
}

/// Returns the reports on a prompt's layers.
fn loads(forward: &mut Forward, ids: &[u32]) -> Vec<(usize, u64, u64)> {
    let mut loads = Loads::default();
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    forward.run(ids, &mut kv, Outputs::Last, &mut loads).unwrap();
    loads.0
}

/// Experts with biases, with quantised weights, without gates, and in a layer beside dense layers.
/// The logits equal the reference, and the CPU computes no resident layer.
#[test]
fn published_experts_are_streamed() {
    let names = [
        "gpt-oss",
        "gpt-oss-mxfp4",
        "qwen2-moe",
        "qwen3-moe",
        "glm4-moe",
        "ernie4_5-moe",
        "nemotron-3-nano",
        "qwen3_5-moe",
    ];
    for name in names {
        let path = format!("fixtures/models/{name}");
        let model = if matches!(name, "glm4-moe" | "ernie4_5-moe") { neuron_major(&path) } else { model(&path) };
        let expected = Expected::read(&here(&format!("{path}/expected.safetensors")));
        let (ids, wanted) = (expected.ids("input_ids"), expected.f32("logits"));
        let least = least(&model);
        for (at, (what, placement)) in placements(&model, 12).into_iter().enumerate() {
            let (chunk, buffer) = ([24, 5, 24][at % 3], [PLENTY, least][at % 2]);
            let mut forward = streaming(shared(FULL), &model, &placement, chunk, buffer);
            let error = max_diff(&logits(&mut forward, &ids, 4), &wanted);
            assert!(error <= 1e-3, "{name} {what}, chunks of {chunk}, {buffer} bytes: logits differ by {error}");
        }
        let attention = placement(&model, 0, true, |_, _| Vec::new());
        let mut forward = streaming(shared(FULL), &model, &attention, ids.len(), PLENTY);
        let loads = loads(&mut forward, &ids);
        assert!(!loads.is_empty(), "{name}: no reports");
        for (layer, cpu_bytes, bus_bytes) in loads {
            assert!(cpu_bytes == 0 && bus_bytes > 0, "{name}, layer {layer}: {cpu_bytes} and {bus_bytes} bytes");
        }
    }
}

/// Rings of layers with a window grow with the chunks of the device. A chunk of more tokens than
/// [`LONGEST_PASS`] is one pass, and the device computes all its experts.
#[test]
fn long_chunks_are_streamed_beside_windows() {
    const CHUNK: usize = LONGEST_PASS + 88;
    let model = model("fixtures/models/gpt-oss");
    let ids: Vec<u32> = ids(&model, CHUNK / 2).into_iter().cycle().take(2 * CHUNK + 9).collect();
    let attention = placement(&model, 0, true, |_, _| Vec::new());
    let mut forward = streaming(shared(FULL), &model, &attention, CHUNK, PLENTY);
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    assert_eq!(kv.longest_pass(), CHUNK, "no layer has a ring, or rings are too short");
    let mut reports = Loads::default();
    let got = forward.run(&ids, &mut kv, Outputs::Last, &mut reports).unwrap().to_vec();
    assert_eq!(reports.0.len(), 3 * model.config.n_layer(), "two long chunks and a short one");
    assert!(reports.0.iter().all(|(_, cpu_bytes, bus_bytes)| *cpu_bytes == 0 && *bus_bytes > 0));
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let mut all = KvCache::for_passes(&model.config, ids.len(), KvType::F32, ids.len()).unwrap();
    let wanted = scalar.run(&ids, &mut all, Outputs::Last, &mut ()).unwrap();
    let error = max_diff(&got, wanted);
    assert!(error <= 1e-3, "logits differ by {error}");
}

/// Bindings too small for gate and up of one expert together.
#[test]
fn streamed_experts_in_narrow_bindings_do_not_change_logits() {
    let model = wide();
    let ids = ids(&model, 50);
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let wanted = logits(&mut scalar, &ids, 8);
    for max_binding in [128 << 10, 32 << 10] {
        let gpu = open(GpuOptions { max_binding: Some(max_binding), ..GpuOptions::default() });
        for (what, placement) in placements(&model, 3) {
            let mut forward = streaming(&gpu, &model, &placement, 16, PLENTY);
            let error = relative(&logits(&mut forward, &ids, 8), &wanted);
            assert!(error <= 1e-4, "{what} in {max_binding}: {error}");
        }
    }
}

/// The experts that tokens choose, by layer.
#[derive(Default)]
struct Choices {
    loads: Loads,
    chosen: Vec<HashSet<usize>>,
}

impl Probe for Choices {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        self.loads.firing(firing);
    }

    fn wants_router(&mut self) -> bool {
        true
    }

    fn router(&mut self, layer: usize, chosen: &[usize]) {
        assert_eq!(layer, self.chosen.len());
        self.chosen.push(chosen.iter().copied().collect());
    }
}

/// Only chosen experts that are not resident pass the bus, once per chunk. A chunk takes two
/// submissions per layer and one per piece, and one at the end. It creates no objects and leaves no
/// work to the CPU. A single token works as usual.
#[test]
fn streamed_chunk_loads_only_the_chosen_cold_experts() {
    let gpu = paced(1);
    let model = wide();
    let (ids, experts) = (ids(&model, 64), model.config.experts.unwrap());
    let (d, width) = (model.config.d_model, experts.n_ff);
    let some = placement(&model, 0, true, |layer, n| {
        (0..n as u32).filter(|at| (*at as usize + layer).is_multiple_of(3)).collect()
    });
    let mut forward = streaming(&gpu, &model, &some, 16, least(&model));
    let mut kv = forward.kv_cache(ids.len(), KvType::F16).unwrap();
    for (at, chunk) in ids.chunks(4).enumerate() {
        let before = (gpu.submits(), gpu.arena().made(), gpu.bind_groups());
        let mut choices = Choices::default();
        forward.run(chunk, &mut kv, Outputs::Last, &mut choices).unwrap();
        let mut pieces = 0;
        assert_eq!((choices.loads.0.len(), choices.chosen.len()), (model.config.n_layer(), model.config.n_layer()));
        for ((layer, cpu_bytes, bus_bytes), chosen) in choices.loads.0.iter().zip(&choices.chosen) {
            let is_cold = |expert: &&usize| !some.hot[*layer].contains(&(**expert as u32));
            let cold = chosen.iter().filter(is_cold).count();
            let floats = 3 * d * width + 2 * width + d;
            // Gates and ups are one stack, downs another. Rows are padded to whole chunks of 32.
            let row = |cols: usize| cols.next_multiple_of(32);
            let padded = 2 * width * row(d) + d * row(width) + 2 * width + d;
            let ids = (chunk.len() * experts.used * 4) as u64;
            // Each piece brings its tiles, and the first one the order of the pairs.
            let most = ids + 4 * (cold * padded + 2 * cold * 3 + chunk.len() * experts.used) as u64;
            let range = (ids + 4 * (cold * floats) as u64)..=most;
            assert!(*cpu_bytes == 0 && range.contains(bus_bytes), "layer {layer}: {cpu_bytes} and {bus_bytes} bytes");
            pieces += 2 * cold as u64;
        }
        if at > 0 {
            let now = (before.0 + pieces + 2 * model.config.n_layer() as u64 + 1, before.1, before.2);
            assert_eq!((gpu.submits(), gpu.arena().made(), gpu.bind_groups()), now, "submits, buffers, bind groups");
        }
        assert!(pieces > 0, "chunk {at}: no cold expert was chosen");
    }
    let loads = loads(&mut forward, &[1]);
    assert!(loads.iter().any(|(_, cpu_bytes, _)| *cpu_bytes > 0), "{loads:?}");
}

#[test]
fn streamed_experts_do_not_change_firings() {
    let gpu = shared(FULL);
    for model in [thresholded(&model(MIXTRAL)), thresholded(&wide())] {
        let ids = ids(&model, 60);
        let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), chunk: 16, ..Setup::default() });
        let wanted = experts::hear(&mut scalar, &ids);
        for (what, placement) in placements(&model, 8) {
            let heard = experts::hear(&mut streaming(gpu, &model, &placement, 16, least(&model)), &ids);
            assert_eq!((heard.0.len(), &heard.1), (wanted.0.len(), &wanted.1), "{what}");
            let mut differ = 0;
            for (heard, wanted) in heard.0.iter().zip(&wanted.0) {
                assert_eq!((heard.0, heard.1, &heard.3), (wanted.0, wanted.1, &wanted.3), "{what}");
                differ += heard.2.iter().zip(&wanted.2).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
            }
            // Of the 20,000 neurons of 60 tokens, a few near the activation threshold may differ by
            // rounding.
            assert!(differ <= 6, "{what}: {differ} neurons differ");
        }
    }
}

/// With a fast bus the device computes the cold experts of a long chunk, and with a slow bus the
/// CPU.
#[test]
fn measured_speeds_decide_where_cold_experts_are_computed() {
    let model = wide();
    let (ids, attention) = (ids(&model, 64), placement(&model, 0, true, |_, _| Vec::new()));
    let on_cpu = |bus: f64, tokens: usize| {
        let mut machine = Machine::typical();
        machine.cpu.rates.values_mut().for_each(|rate| rate.sequential = 1e12);
        let gpu = machine.gpu.as_mut().unwrap();
        gpu.streams.values_mut().for_each(|rate| *rate = bus);
        gpu.prompts.values_mut().for_each(|rate| *rate = 1e13);
        let priced = Streaming::Priced(Arc::new(machine));
        let mut forward = streaming_as(&priced, shared(FULL), &model, &attention, 64, PLENTY);
        let loads = loads(&mut forward, &ids[..tokens]);
        assert_eq!(loads.len(), model.config.n_layer());
        let on_cpu = loads.iter().filter(|(_, cpu_bytes, _)| *cpu_bytes > 0).count();
        assert!(on_cpu == 0 || on_cpu == loads.len(), "{on_cpu} layers of {}", loads.len());
        on_cpu > 0
    };
    assert!(!on_cpu(1e12, 64), "a fast bus");
    assert!(on_cpu(1e9, 64), "a slow bus");
    // 64 tokens make 16 pairs per expert. 16 multiply-adds per weight at 200e9 take as long as four
    // bytes at 50e9.
    assert!(!on_cpu(100e9, 64), "a long chunk");
    assert!(on_cpu(30e9, 64) && on_cpu(100e9, 2), "a short chunk");
}

#[test]
fn device_loss_during_streaming_of_experts_is_an_error() {
    let model = wide();
    let placement = placement(&model, 1, true, |_, n| (0..n as u32 / 4).collect());
    let ids = ids(&model, 12);
    for point in [FaultPoint::Submit, FaultPoint::Readback] {
        let n = lost_at_every(point, |gpu| {
            let load = GpuLoad { chunk: 8, ..GpuLoad::default() };
            let mut go_on = |_, _| ControlFlow::Continue(());
            let mut processor = HybridProcessor::load(gpu, cpu(), &model, &placement, &load, &mut go_on)?;
            processor.stream(&model, Streaming::Always, PLENTY)?;
            let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
            let mut kv = forward.kv_cache(ids.len(), KvType::F16)?;
            forward.run(&ids, &mut kv, Outputs::Last, &mut Loads::default())?;
            Ok(())
        });
        assert!(n > if point == FaultPoint::Submit { 10 } else { 2 }, "{point:?}: passed {n} times");
    }
}
