//! Prompts whose cold neurons are streamed to the device.

use super::{
    firing::Heard,
    moving::{most, most_up_to},
    placements::thresholded,
    *,
};

/// Does the same as [`hybrid`], with a buffer of at most `buffer` bytes that streams the cold units
/// of prompts.
pub(super) fn streaming(gpu: &Gpu, model: &Arc<Model>, placement: &Placement, chunk: usize, buffer: u64) -> Forward {
    streaming_as(&Streaming::Always, gpu, model, placement, chunk, buffer)
}

/// Does the same as [`streaming`], where `when` decides.
pub(super) fn streaming_as(
    when: &Streaming,
    gpu: &Gpu,
    model: &Arc<Model>,
    placement: &Placement,
    chunk: usize,
    buffer: u64,
) -> Forward {
    // Firings of prompts are counted with the model's thresholds on every side.
    let load = GpuLoad { chunk, threshold_ratio: 0.5, ..GpuLoad::default() };
    let mut go_on = |_, _| ControlFlow::Continue(());
    let mut processor = HybridProcessor::load(gpu, cpu(), model, placement, &load, &mut go_on).unwrap();
    processor.stream(model, when.clone(), buffer).unwrap();
    let mut forward = Forward::on(Arc::clone(model), Box::new(processor));
    forward.set_chunk(chunk);
    forward
}

/// Bytes of a buffer with room for any layer.
pub(super) const PLENTY: u64 = 48 << 20;

/// Returns the bytes of the smallest buffer for `model`, with room for 64 neurons or for the stack
/// of one expert.
pub(super) fn least(model: &Arc<Model>) -> u64 {
    let gpu = &open(GpuOptions::default());
    let nothing = placement(model, 0, false, |_, _| Vec::new());
    let before = gpu.arena().used();
    let held = |buffer| {
        let forward = streaming(gpu, model, &nothing, 64, buffer);
        let held = gpu.arena().used() - before;
        drop(forward);
        held
    };
    let without = held(0);
    let mut buffer = 1024;
    while held(buffer) == without {
        buffer += buffer / 4;
    }
    buffer
}

pub(super) fn every_placement_streams(name: &str, model: &Arc<Model>, tiers: &[Tier], mode: Sparsity) {
    let (ids, least) = (ids(model, 43), least(model));
    // Neither side rounds activations.
    let mut alone = Forward::new(Arc::clone(model), cpu());
    alone.set_sparsity(mode);
    let wanted = logits(&mut alone, &ids, 5);
    for tier in tiers.iter().copied() {
        for (what, placement) in placements(model, 7) {
            for (chunk, buffer) in [(64, least), (64, PLENTY), (7, least), (23, least)] {
                let mut forward = streaming(shared(tier), model, &placement, chunk, buffer);
                forward.set_sparsity(mode);
                let error = relative(&logits(&mut forward, &ids, 5), &wanted);
                assert!(error <= 1e-4, "{name} {tier} {mode} {what}, chunks of {chunk}, {buffer} bytes: {error}");
            }
        }
    }
}

#[test]
fn streamed_prompts_do_not_change_logits() {
    every_placement_streams(POWERINFER, &model(POWERINFER), &Tier::ALL, Sparsity::Exact);
}

/// Tests a fixture in 16-bit floats, in the highest and in the portable tier.
fn streamed_prompts_of(name: &str) {
    let model = neuron_major(&format!("fixtures/models/{name}"));
    every_placement_streams(name, &model, &[FULL, Tier::PORTABLE], Sparsity::Dense);
}

#[test]
fn streamed_prompts_do_not_change_logits_of_other_activations() {
    streamed_prompts_of("llama-silu-gqa");
}

#[test]
fn streamed_prompts_do_not_change_logits_without_gates() {
    streamed_prompts_of("opt");
}

#[test]
fn streamed_prompts_do_not_change_logits_of_parallel_attention() {
    streamed_prompts_of("falcon-new");
}

#[test]
fn streamed_prompts_do_not_change_logits_with_biases() {
    streamed_prompts_of("qwen2");
}

/// Scales of quantised weights are a separate stream.
#[test]
fn streamed_prompts_do_not_change_logits_of_quantised_weights() {
    let quantised = model("fixtures/powerinfer/llama-relu-q4_0.powerinfer.gguf");
    every_placement_streams("q4_0", &quantised, &[FULL], Sparsity::Dense);
}

/// Reports on a prompt's layers: layer, bytes that the CPU read, bytes over the bus.
#[derive(Default)]
pub(super) struct Loads(pub Vec<(usize, u64, u64)>);

impl Probe for Loads {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        self.0.push((firing.layer, firing.cpu_bytes, firing.bus_bytes));
    }
}

/// A chunk takes one submission per piece and one readback. It creates no objects and leaves no
/// work to the CPU. A single token works as usual.
#[test]
fn streamed_chunk_creates_no_gpu_objects_and_no_cpu_work() {
    let gpu = paced(1);
    let model = model(POWERINFER);
    let (ids, n_layer) = (ids(&model, 80), model.config.n_layer());
    let n = neurons(&model, 0);
    let (tenth, least) = (placement(&model, 0, true, |_, n| (0..n as u32 / 10).collect()), least(&model));
    let mut forward = streaming(&gpu, &model, &tenth, 16, least);
    let mut kv = forward.kv_cache(ids.len(), KvType::F16).unwrap();
    forward.run(&ids[..16], &mut kv, Outputs::Last, &mut ()).unwrap();
    for chunk in ids[16..64].chunks(16) {
        let before = (gpu.submits(), gpu.arena().made(), gpu.bind_groups());
        forward.run(chunk, &mut kv, Outputs::Last, &mut ()).unwrap();
        let pieces = n_layer * (n - n / 10).div_ceil(64);
        let now = (before.0 + pieces as u64 + 1, before.1, before.2);
        assert_eq!((gpu.submits(), gpu.arena().made(), gpu.bind_groups()), now, "submits, buffers, bind groups");
    }
    let mut loads = Loads::default();
    forward.run(&ids[64..80], &mut kv, Outputs::Last, &mut loads).unwrap();
    let Ffn::Dense(ffn) = &model.weights.layers[0].ffn else { panic!() };
    let row = ffn.up.weight.row_bytes() as u64;
    assert_eq!(loads.0.len(), n_layer);
    for (layer, cpu_bytes, bus_bytes) in loads.0 {
        let cold = (n - n / 10) as u64;
        assert_eq!(cpu_bytes, 0, "layer {layer}");
        // A neuron has three rows, and pieces are padded to whole blocks.
        assert!((cold * 3 * row..(cold + 3 * 64) * 3 * row).contains(&bus_bytes), "layer {layer}: {bus_bytes}");
    }
    let mut kv = forward.kv_cache(ids.len(), KvType::F16).unwrap();
    let mut loads = Loads::default();
    forward.run(&[1], &mut kv, Outputs::Last, &mut loads).unwrap();
    assert!(loads.0.iter().all(|(_, cpu_bytes, _)| *cpu_bytes > 0), "{:?}", loads.0);
}

#[test]
fn streamed_prompts_do_not_change_firings() {
    let gpu = shared(FULL);
    let silu = neuron_major("fixtures/models/llama-silu-gqa");
    let scaled = thresholded(&silu, Some(&|at| if at.is_multiple_of(3) { 0.25 } else { 1.5 }));
    for model in [model(POWERINFER), thresholded(&silu, None), scaled] {
        let ids = ids(&model, 50);
        let hear = |forward: &mut Forward| {
            let mut heard = Heard::default();
            let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
            forward.run(&ids, &mut kv, Outputs::Last, &mut heard).unwrap();
            heard
        };
        let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), chunk: 16, ..Setup::default() });
        let wanted = hear(&mut scalar);
        for (what, placement) in placements(&model, 4) {
            for buffer in [least(&model), PLENTY] {
                // Of 20,000 neurons, a few near zero or near the activation threshold may differ by
                // rounding.
                let differ = hear(&mut streaming(gpu, &model, &placement, 16, buffer)).differences(&wanted);
                assert!(differ <= 4, "{what}: {differ} neurons differ");
            }
        }
    }
}

/// If there is no room for the buffer, the CPU computes. If other memory is needed, the buffer is
/// freed.
#[test]
fn streaming_buffer_stays_within_the_budget_and_is_released() {
    let model = model(POWERINFER);
    let (ids, least) = (ids(&model, 40), least(&model));
    let some = placement(&model, 0, true, |_, n| (0..n as u32 / 3).collect());
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let wanted = logits(&mut scalar, &ids, 5);
    let (bare, cache) = {
        let gpu = open(GpuOptions::default());
        let mut forward = hybrid(&gpu, &model, &some, 16);
        let bare = gpu.arena().used();
        let kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
        let cache = gpu.arena().used() - bare;
        drop(kv);
        (bare, cache)
    };
    let mut with_buffer = 0;
    // Loading needs more memory than the loaded model.
    let loading = 40 << 10;
    for room in (0..=(least + cache + loading) / 4096).map(|pages| pages * 4096) {
        let budget = bare + cache + room;
        let gpu = open(GpuOptions { budget: Some(budget), ..GpuOptions::default() });
        let load = GpuLoad { chunk: 16, ..GpuLoad::default() };
        let mut go_on = |_, _| ControlFlow::Continue(());
        let Ok(mut processor) = HybridProcessor::load(&gpu, cpu(), &model, &some, &load, &mut go_on) else { continue };
        let before = gpu.arena().used();
        processor.stream(&model, Streaming::Always, least).unwrap();
        let buffer = gpu.arena().used() - before;
        let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
        forward.set_chunk(16);
        let error = relative(&logits(&mut forward, &ids, 5), &wanted);
        assert!(
            error <= 1e-4 && gpu.arena().used() <= budget,
            "{room} bytes of room, {buffer} of them a buffer: {error}"
        );
        with_buffer += usize::from(buffer > 0);
    }
    assert!(with_buffer > 0, "never was there room");
}

/// Plans as many neurons as fit beside the buffer, but never whole layers.
#[derive(Debug)]
struct Beside(CostProfile, u64);

impl Planner for Beside {
    fn plan(&mut self, model: &Model, budget: u64) -> thermocline_engine::Result<Placement> {
        Ok(most_up_to(9, model, &self.0, budget.saturating_sub(self.1)))
    }

    fn streaming(&mut self, _: &Model, _: u64) -> thermocline_engine::Result<Option<(Streaming, u64)>> {
        Ok(Some((Streaming::Always, self.1)))
    }

    fn bytes_per_move(&self) -> u64 {
        50_000
    }
}

/// The buffer uses memory that the plan leaves free. Total use stays within the budget while
/// budgets change and prompts run.
#[test]
fn streaming_buffer_stays_within_changing_budgets() {
    let model = model(POWERINFER);
    let (ids, least) = (ids(&model, 200), least(&model));
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let wanted = logits(&mut scalar, &ids, 0);
    let n_vocab = model.config.n_vocab;
    let load = GpuLoad { chunk: 8, ..GpuLoad::default() };
    let demand = demand(&model, ids.len(), &load);
    let whole = most(&model, &demand, u64::MAX);
    let all = Plan::new(&demand, &Machine::typical(), whole.clone()).bytes.total();
    let gpu = open(GpuOptions { budget: Some(all), ..GpuOptions::default() });
    let mut go_on = |_, _| ControlFlow::Continue(());
    let processor = HybridProcessor::load(&gpu, cpu(), &model, &whole, &load, &mut go_on).unwrap();
    let processor = processor.with_planner(Box::new(Beside(demand, least)));
    let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    let (mut budget, mut streamed) = (all, 0);
    let dice = &mut Dice(2);
    for (at, chunk) in ids.chunks(5).enumerate() {
        if at % 2 == 1 {
            budget = dice.below(all as usize * 5 / 4) as u64 + 1000;
            set_budget(&mut forward, budget, &mut [&mut kv]).unwrap();
        }
        for _ in 0..1 + dice.below(6) {
            assert!(gpu.arena().used() <= budget, "chunk {at}: {} of {budget}", gpu.arena().used());
            settle(&mut forward, &mut [&mut kv]).unwrap();
        }
        assert!(gpu.arena().used() <= budget, "chunk {at}: {} of {budget}", gpu.arena().used());
        let mut loads = Loads::default();
        let got = forward.run(chunk, &mut kv, Outputs::All, &mut loads).unwrap();
        let first = at * 5 * n_vocab;
        let error = relative(got, &wanted[first..first + got.len()]);
        assert!(error <= 1e-4, "chunk {at} in {budget}: {error}");
        assert!(gpu.arena().used() <= budget, "chunk {at}: {} of {budget}", gpu.arena().used());
        let rows = |(_, cpu_bytes, bus_bytes): &(usize, u64, u64)| *cpu_bytes == 0 && *bus_bytes > 0;
        streamed += usize::from(loads.0.iter().any(rows));
    }
    assert!(streamed > 8, "of 40 chunks {streamed} had rows that were streamed");
}

#[test]
fn device_loss_during_streaming_is_an_error() {
    let model = model(POWERINFER);
    let least = least(&model);
    let placement = placement(&model, 1, true, |_, n| (0..n as u32 / 4).collect());
    let ids = ids(&model, 20);
    for point in [FaultPoint::Submit, FaultPoint::Readback] {
        let n = lost_at_every(point, |gpu| {
            let load = GpuLoad { chunk: 8, ..GpuLoad::default() };
            let mut go_on = |_, _| ControlFlow::Continue(());
            let mut processor = HybridProcessor::load(gpu, cpu(), &model, &placement, &load, &mut go_on)?;
            processor.stream(&model, Streaming::Always, least)?;
            let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
            let mut kv = forward.kv_cache(ids.len(), KvType::F16)?;
            forward.run(&ids, &mut kv, Outputs::Last, &mut Heard::default())?;
            Ok(())
        });
        assert!(n > if point == FaultPoint::Submit { 10 } else { 2 }, "{point:?}: passed {n} times");
    }
}

/// If the buffer cannot be allocated, the engine works without it or reports an error. No memory is
/// leaked.
#[test]
fn failed_allocation_of_the_streaming_buffer_leaves_nothing() {
    let model = model(POWERINFER);
    let some = placement(&model, 0, true, |_, n| (0..n as u32 / 2).collect());
    let ids = ids(&model, 12);
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let wanted = logits(&mut scalar, &ids, 0);
    let run = |gpu: &Gpu| {
        let load = GpuLoad { chunk: 8, ..GpuLoad::default() };
        let mut go_on = |_, _| ControlFlow::Continue(());
        let mut processor = HybridProcessor::load(gpu, cpu(), &model, &some, &load, &mut go_on)?;
        let before = gpu.arena().made();
        processor.stream(&model, Streaming::Always, PLENTY)?;
        let buffer = before..gpu.arena().made();
        let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
        let mut kv = forward.kv_cache(ids.len(), KvType::F32)?;
        let got = forward.run(&ids, &mut kv, Outputs::All, &mut ())?;
        Ok::<_, Error>((buffer, relative(got, &wanted)))
    };
    let (buffer, _) = run(&open(GpuOptions::default())).unwrap();
    assert!(buffer.end - buffer.start >= 4, "weights, biases, and two loads");
    for n in buffer.start.saturating_sub(2)..=buffer.end {
        let faults = Faults(Some((FaultPoint::Allocation, n)));
        let gpu = open(GpuOptions { faults, ..GpuOptions::default() });
        let empty = gpu.arena().used();
        match run(&gpu) {
            Ok((_, error)) => assert!(error <= 1e-4, "{n}: {error}"),
            Err(error) => {
                assert!(!(buffer.start + 1..=buffer.end).contains(&n), "{n} of {buffer:?}: {error}");
                assert!(matches!(error, Error::Memory { .. }), "{n}: {error}");
            }
        }
        assert_eq!(gpu.arena().used(), empty, "{n}: something stayed");
    }
}
