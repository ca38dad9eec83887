//! Opens a model for a benchmark, placed under a budget as an engine would place it, or layer by
//! layer.

use std::{ops::ControlFlow, sync::Arc};

use super::{BenchOptions, device::PlacedModel};
use crate::session::{DeviceLoadOptions, LivePlanner, load_on_device};
use thermocline_base::error::Result;
use thermocline_cpu::Cpu;
use thermocline_gpu::{Gpu, GpuOptions};
use thermocline_lab::calibration::{GpuSpeed, gpu_speed};
use thermocline_model::Model;
use thermocline_run::{
    placement::{GpuUse, Granularity, PlanInputs, PowerInferSplit, Resident, SplitReport},
    runtime::{Forward, Sparsity},
};

/// Loads the part of `model` that makes the best use of the GPU's budget, at this granularity.
pub(super) fn open(
    model: Model,
    gpu: &GpuOptions,
    granularity: Granularity,
    options: &BenchOptions,
) -> Result<(Forward, Gpu, GpuSpeed, PlacedModel)> {
    // The measurement frees its memory before the model takes the budget.
    let speed = gpu_speed(&Gpu::open(gpu)?, &options.effort)?;
    let cpu = Cpu::new(&options.cpu)?;
    let threads = cpu.pool().threads();
    let by_neurons = granularity != Granularity::Layers || options.sparsity != Sparsity::Dense;
    let model = match by_neurons {
        true => model.neuron_major(cpu.pool(), &mut |_, _| ControlFlow::Continue(()))?.0,
        false => model,
    };
    let model = Arc::new(model);
    let longest = options.tests.iter().map(|test| test.depth + test.prompt + test.generate).max();
    let inputs = PlanInputs {
        stream_prompts: options.stream_prompts,
        ..PlanInputs::new(options.sparsity, longest.unwrap_or(1), options.kv_type)
    };
    let mut planner = LivePlanner::new(inputs);
    if let Some(path) = &options.split {
        let split = PowerInferSplit::open(path)?;
        split.check(&model)?;
        planner = planner.following(split);
    }
    let planner = Arc::new(planner);
    let load = DeviceLoadOptions {
        gpu: gpu.clone(),
        cpu: options.cpu.clone(),
        workers: Some(cpu.workers()),
        chunk: options.chunk,
        granularity,
        gpu_use: GpuUse::Always,
        speeds: options.speeds.clone(),
    };
    let (processor, gpu) = load_on_device(&model, &load, &planner, &mut |_| ControlFlow::Continue(()))?;
    let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
    forward.set_sparsity(options.sparsity);
    forward.set_routes(options.routes);
    // Predictors and other small tensors are uploaded after the weights.
    let mut resident = Resident::default();
    if let Some((model, residency)) = forward.residency() {
        while residency.settle(model, &mut [])? {}
        resident = residency.resident(model).unwrap_or_default();
    }
    let n_layer = model.config.n_layer();
    let hot: usize = (0..n_layer).map(|layer| resident.count(layer)).sum();
    // MoE layers count experts instead of neurons.
    let all = n_layer * model.config.experts.as_ref().map_or(model.config.n_ff, |experts| experts.count);
    let placed = PlacedModel {
        granularity,
        threads,
        layers: n_layer - resident.first_layer.min(n_layer),
        hot: hot as f64 / all.max(1) as f64,
        split: planner.split().map(|split| SplitReport::new(split, &resident)),
    };
    Ok((forward, gpu, speed, placed))
}
