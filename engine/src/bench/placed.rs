//! A model of which as much as fits is on a GPU, for benchmarks: placed as an engine would place it, or layer by layer.

use std::{ops::ControlFlow, sync::Arc};

use super::run::BenchOptions;
use crate::{
    cpu::Cpu,
    error::Result,
    gpu::{Gpu, GpuOptions},
    model::{Forward, Model, Sparsity},
    session::{PlaceOptions, SplitReport, Terms, place},
    sparsity::{
        measure::{GpuSpeed, gpu_speed},
        placement::{Granularity, Split},
    },
};

/// What a record says of where the model is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Where {
    pub granularity: Granularity,
    /// Of the CPU.
    pub threads: usize,
    /// Layers whose attention is on the GPU.
    pub layers: usize,
    /// Share of all neurons that are.
    pub hot: f64,
    /// How far a split is followed, if one is.
    pub split: Option<SplitReport>,
}

/// Brings of `model` to the GPU what its budget is best used for, in the pieces asked for.
pub(super) fn open(
    model: Model,
    gpu: &GpuOptions,
    granularity: Granularity,
    options: &BenchOptions,
) -> Result<(Forward, Gpu, GpuSpeed, Where)> {
    // Measured and given back before the model takes the budget.
    let speed = gpu_speed(&Gpu::open(gpu)?, &options.effort)?;
    let cpu = Cpu::new(&options.cpu)?;
    let threads = cpu.pool().threads();
    let by_neurons = granularity == Granularity::Neurons || options.sparsity != Sparsity::Dense;
    let model = match by_neurons {
        true => model.neuron_major(cpu.pool(), &mut |_, _| ControlFlow::Continue(()))?.0,
        false => model,
    };
    let model = Arc::new(model);
    let longest = options.tests.iter().map(|test| test.depth + test.prompt + test.generate).max();
    let mut terms =
        Terms::new(options.sparsity, longest.unwrap_or(1), options.kv_type).streaming(options.stream_prompts);
    if let Some(path) = &options.split {
        let split = Split::open(path)?;
        split.check(&model)?;
        terms = terms.following(split);
    }
    let terms = Arc::new(terms);
    let how = PlaceOptions {
        gpu: gpu.clone(),
        cpu: options.cpu.clone(),
        workers: Some(cpu.workers()),
        chunk: options.chunk,
        granularity,
        only_if_quicker: false,
        speeds: options.speeds.clone(),
    };
    let (processor, gpu) = place(&model, &how, &terms, &mut |_, _| ControlFlow::Continue(()))?;
    let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
    forward.set_sparsity(options.sparsity);
    // What the mode wants beside weights comes after them.
    while forward.settle(&mut [])? {}
    let resident = forward.resident().unwrap_or_default();
    let n_layer = model.config.n_layer();
    let hot: usize = (0..n_layer).map(|layer| resident.count(layer)).sum();
    // A mixture's are its experts.
    let all = n_layer * model.config.experts.as_ref().map_or(model.config.n_ff, |experts| experts.count);
    let at = Where {
        granularity,
        threads,
        layers: n_layer - resident.first_layer.min(n_layer),
        hot: hot as f64 / all.max(1) as f64,
        split: terms.split().map(|split| SplitReport::new(split, &resident)),
    };
    Ok((forward, gpu, speed, at))
}
