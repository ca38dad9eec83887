//! Compares predicted with measured times of prompts of a mixture of experts on a GPU. The experts
//! are streamed to the GPU over buses of several speeds, or the CPU multiplies them:
//! `cargo run --release -p thermocline-engine --example streamed_prompts MODEL GPU BUSES PROMPTS`
//!
//! MODEL is a file of `thermocline synth`, GPU a number of `thermocline devices`, BUSES are GB per
//! second like `1,8`, and PROMPTS are numbers of tokens like `512,2048`. No expert is resident. All
//! else is on the GPU and takes the same time either way. It is measured, not predicted.

use std::{env, iter, ops::ControlFlow, path::Path, sync::Arc, time::Instant};

use thermocline_engine::{
    Error, Result,
    calibration::{MeasureEffort, measure_machine},
    cpu::{Cpu, CpuOptions},
    device::GpuLoad,
    gpu::{AdapterChoice, Clock, FaultPoint, Faults, Gpu, GpuOptions, SubmissionWork, Tier, WorkKind},
    hybrid::HybridProcessor,
    model::{Ffn, LoadOptions, Model},
    placement::{ExpertSeconds, ExpertStreamCost, Machine, Placement, PlanInputs, StreamedChunk, Streaming},
    runtime::{Forward, KvType, Outputs, Sparsity},
    session::planner,
};

/// Tokens of a chunk and bytes of a streaming buffer, as on a card with 8 GiB.
const CHUNK: usize = 2048;
const BUFFER: u64 = 256 << 20;
/// Tokens of the prompt that compares the tiers.
const SHORT: usize = 96;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().collect();
    let [_, model, adapter, buses, prompts] = &arguments[..] else {
        panic!("expected a model, a GPU, speeds of buses, and lengths of prompts")
    };
    let model = Arc::new(Model::open(Path::new(model), &LoadOptions::default())?);
    let adapter = AdapterChoice::Index(number(adapter)? as usize);
    compare_tiers(&model, &adapter)?;
    println!(
        "\n| prompt | bus | all else | CPU predicted | measured | streamed predicted | measured | faster: predicted | measured |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---|---|");
    for prompt in prompts.split(',') {
        let prompt = number(prompt)? as usize;
        for bus in buses.split(',') {
            compare(&model, &adapter, prompt, number(bus)?)?;
        }
    }
    Ok(())
}

fn number(text: &str) -> Result<f64> {
    text.parse().map_err(|_| Error::invalid("argument", "a number", text))
}

/// Opens the GPU. It passes for a card behind a bus of `bus` bytes per second, whose submissions
/// may be long.
fn open(adapter: &AdapterChoice, tier: Option<Tier>, bus: Option<u64>) -> Result<Gpu> {
    let gpu = Gpu::open(&GpuOptions {
        adapter: adapter.clone(),
        tier,
        slow_bus: bus,
        faults: Faults(Some((FaultPoint::WorkClock, 0))),
        ..GpuOptions::default()
    })?;
    for kind in [WorkKind::Token, WorkKind::Prompt, WorkKind::Scores].into_iter().cycle().take(12) {
        let mut work = SubmissionWork::new(CHUNK);
        work.add(kind, 1 << 40, None);
        gpu.pace().note(&work, Some(0.0));
    }
    Ok(gpu)
}

/// Loads everything but the experts on `gpu`.
fn load(model: &Arc<Model>, gpu: &Gpu, streaming: Streaming) -> Result<Forward> {
    let hot = vec![Vec::new(); model.config.n_layer()];
    let placement = Placement { first_resident: 0, hot, head: false };
    let load = GpuLoad { chunk: CHUNK, ..GpuLoad::default() };
    let (cpu, mut go_on) = (Cpu::new(&CpuOptions::default())?, |_, _| ControlFlow::Continue(()));
    let mut processor = HybridProcessor::load(gpu, cpu, model, &placement, &load, &mut go_on)?;
    processor.stream(model, streaming, BUFFER)?;
    let mut forward = Forward::on(Arc::clone(model), Box::new(processor));
    forward.set_chunk(CHUNK);
    Ok(forward)
}

/// Computes a prompt of `tokens` tokens. Returns the logits of its last token, and the seconds.
fn run(forward: &mut Forward, tokens: usize) -> Result<(Vec<f32>, f64)> {
    let n_vocab = forward.model().config.n_vocab as u32;
    let ids: Vec<u32> =
        iter::successors(Some(1_u32), |id| Some(id.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)))
            .map(|id| (id >> 8) % n_vocab)
            .take(tokens)
            .collect();
    let mut kv = forward.kv_cache(tokens, KvType::F16)?;
    let started = Instant::now();
    let logits = forward.run(&ids, &mut kv, Outputs::Last, &mut ())?.to_vec();
    Ok((logits, started.elapsed().as_secs_f64()))
}

/// Prints how much the logits of streamed prompts differ from those of the CPU's experts, in every
/// tier of kernels that the GPU has.
fn compare_tiers(model: &Arc<Model>, adapter: &AdapterChoice) -> Result<()> {
    println!("| tier | largest logit | largest difference |\n|---|---:|---:|");
    let full = Gpu::open(&GpuOptions { adapter: adapter.clone(), ..GpuOptions::default() })?.caps().tier;
    let lacks = |tier: &Tier| (tier.subgroups && !full.subgroups) || (tier.f16 && !full.f16);
    for tier in Tier::ALL.into_iter().filter(|tier| !lacks(tier)) {
        let logits = |streaming| run(&mut load(model, &open(adapter, Some(tier), None)?, streaming)?, SHORT);
        let ((split, _), (streamed, _)) = (logits(Streaming::Never)?, logits(Streaming::Always)?);
        let largest = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0_f32, |most, value| value.abs().max(most));
        let differences = &mut split.iter().zip(&streamed).map(|(a, b)| a - b);
        println!("| {tier} | {:.4} | {:.6} |", largest(&mut split.iter().copied()), largest(differences));
    }
    Ok(())
}

/// Prints a row of the table for a prompt of `tokens` tokens over a bus of `bus` GB per second.
fn compare(model: &Arc<Model>, adapter: &AdapterChoice, tokens: usize, bus: f64) -> Result<()> {
    let gpu = open(adapter, None, Some((bus * 1e9) as u64))?;
    let machine = measured_machine(model, &gpu, tokens)?;
    let mut forward = load(model, &gpu, Streaming::Never)?;
    // Compiles kernels.
    run(&mut forward, SHORT)?;
    gpu.start_profile(Clock::Timestamps);
    let profiled = run(&mut forward, tokens);
    let on_gpu = gpu.take_profile().nanoseconds() / 1e9;
    profiled?;
    let (_, on_cpu) = run(&mut forward, tokens)?;
    drop(forward);
    let mut forward = load(model, &gpu, Streaming::Always)?;
    run(&mut forward, SHORT)?;
    let (_, streamed) = run(&mut forward, tokens)?;
    let predicted = predicted(model, &machine, tokens)?;
    let all_else = on_gpu - predicted.shared;
    let [cpu, streams] = [predicted.experts.split, predicted.experts.streamed].map(|experts| all_else + experts);
    let faster = |cpu: f64, streams: f64| if streams < cpu { "streamed" } else { "CPU" };
    println!(
        "| {tokens} | {bus} GB/s | {all_else:.2} s | {cpu:.2} s | {on_cpu:.2} s | {streams:.2} s | {streamed:.2} s | {} | {} |",
        faster(cpu, streams),
        faster(on_cpu, streamed)
    );
    Ok(())
}

/// Measures the speeds of the CPU, and of `gpu` with its bus, for the weight types of `model`.
fn measured_machine(model: &Arc<Model>, gpu: &Gpu, context: usize) -> Result<Machine> {
    let inputs = PlanInputs::new(Sparsity::Dense, context, KvType::F16);
    let types = planner(model, Some(*gpu.caps()), inputs)?.profile().weight_types();
    let cpu = Cpu::new(&CpuOptions::default())?;
    measure_machine(&cpu, Some(gpu), &types, &MeasureEffort::default(), &mut || ControlFlow::Continue(()))
}

/// Predicted seconds of the experts of a prompt.
struct Predicted {
    experts: ExpertSeconds,
    /// The GPU's part for shared experts, on both ways.
    shared: f64,
}

fn predicted(model: &Model, machine: &Machine, tokens: usize) -> Result<Predicted> {
    let used = model.config.experts.map_or(0, |experts| experts.used);
    let mut sum = Predicted { experts: ExpertSeconds { split: 0.0, streamed: 0.0 }, shared: 0.0 };
    for layer in &model.weights.layers {
        let Ffn::Experts(weights) = &layer.ffn else { continue };
        let cost = ExpertStreamCost::new(weights, machine);
        let cost = cost.ok_or_else(|| Error::invalid("model", "experts that can be streamed", "others"))?;
        for done in (0..tokens).step_by(CHUNK) {
            let tokens = CHUNK.min(tokens - done);
            let of_chunk = cost.seconds(StreamedChunk { tokens, used, hot: 0, cold: weights.experts.len() });
            sum.experts.split += of_chunk.split;
            sum.experts.streamed += of_chunk.streamed;
            sum.shared += tokens as f64 * cost.shared;
        }
    }
    Ok(sum)
}
