//! The drafter on a device. A drafter is loaded only if the device has room for all of it and for
//! all of the model. A token of such a model is fast, so a draft has to be faster.

use std::ops::ControlFlow;

use super::{DeviceLoadOptions, LivePlanner, live_planner::planner};
use thermocline_base::error::Result;
use thermocline_gpu::Gpu;
use thermocline_model::Model;
use thermocline_run::{device::GpuLoad, hybrid::HybridProcessor, placement::PlanInputs, runtime::Processor};

/// Tokens that a drafter computes at a time. Prompts are computed by the model, and the drafter
/// follows in small chunks, which need little memory.
const CHUNK: usize = 32;

/// A drafter that is loaded on a device.
#[derive(Debug)]
pub(super) struct DeviceDrafter {
    pub processor: Box<dyn Processor>,
    /// Bytes of the budget that the model and the drafter take as a whole. Under a smaller budget
    /// the drafter has to leave the device.
    pub least_budget: u64,
}

/// Loads `drafter` on the device of `model`, if both fit there as a whole.
///
/// # Errors
/// As [`HybridProcessor::load_whole`], and those of plans.
pub(super) fn load_drafter(
    gpu: &Gpu,
    model: &HybridProcessor,
    of: &Model,
    drafter: &Model,
    options: &DeviceLoadOptions,
    live: &LivePlanner,
) -> Result<Option<DeviceDrafter>> {
    // Assistants have no GPU kernels.
    if drafter.config.reads_other_keys {
        return Ok(None);
    }
    let solved = live.planner(of)?;
    let inputs = PlanInputs { chunk: CHUNK, ..solved.inputs().clone() };
    let least_budget = solved.everything().saturating_add(planner(drafter, Some(*gpu.caps()), inputs)?.everything());
    if !model.places_all_of(of) || least_budget > gpu.arena().budget() {
        return Ok(None);
    }
    let load = GpuLoad { chunk: CHUNK, streaming_buffer: 0, ..GpuLoad::default() };
    let cpu = options.open_cpu()?;
    let loaded = HybridProcessor::load_whole(gpu, cpu, drafter, &load, &mut |_, _| ControlFlow::Continue(()))?;
    Ok(Some(DeviceDrafter { processor: Box::new(loaded), least_budget }))
}
