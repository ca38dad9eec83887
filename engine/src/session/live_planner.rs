//! The planner of a running model, whose plans follow the current inputs.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;

use super::{neurons::HotSetAdaptation, streamed_chunk::streamed_chunk};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_gpu::{AdapterReport, Caps};
use thermocline_lab::calibration::known_machine;
use thermocline_model::Model;
use thermocline_run::{
    device::{caps_of, device_bytes},
    placement::{DeviceBytes, GpuUse, Machine, PlacementSolver, Plan, PlanInputs, PowerInferSplit},
    runtime::Sparsity,
};

/// The planner of `model` on a device with the limits `caps`; `None` uses the limits of the GPU in
/// `inputs.machine`.
///
/// # Errors
/// [`Error::Memory`] if the limits are too small for one row of the model's weights;
/// [`Error::Invalid`] if its sidecar does not have exactly one frequency per neuron.
pub fn planner(model: &Model, caps: Option<Caps>, inputs: PlanInputs) -> Result<PlacementSolver> {
    PlacementSolver::new(model, &bytes_on_device(model, caps, &inputs)?, inputs)
}

/// The bytes of `model` on a device with the limits `caps`; `None` uses the limits of the GPU in
/// `inputs.machine`.
///
/// # Errors
/// As [`planner`].
pub(super) fn bytes_on_device(model: &Model, caps: Option<Caps>, inputs: &PlanInputs) -> Result<DeviceBytes> {
    let caps = caps.unwrap_or_else(|| caps_of(inputs.limits()));
    match device_bytes(&caps, model, inputs.chunk, inputs.kv_type) {
        // Only CPU plans remain. Loading the device reports why.
        Err(Error::Unsupported { .. }) => Ok(DeviceBytes::none(model.config.n_layer())),
        bytes => bytes,
    }
}

/// The inputs of the plans of a running model.
#[derive(Debug, Clone, PartialEq)]
struct LiveInputs {
    plan: PlanInputs,
    /// Limits of the device; `None` until a device is opened.
    caps: Option<Caps>,
}

/// The planner of a running model. The engine thread and loaders change its inputs. The device's
/// processor, forecasts and calibration read its plans, which are solved again only after an input
/// has changed.
#[derive(Debug)]
pub struct LivePlanner {
    inputs: Mutex<LiveInputs>,
    /// The latest planner and the inputs that it was solved for.
    solved: Mutex<Option<(LiveInputs, Arc<PlacementSolver>)>>,
    /// Smallest number of tokens to plan for, over all contexts together.
    least_context: usize,
    /// Fewest tokens of a chunk on a device: the tokens of a picture that is computed at once.
    least_chunk: usize,
    /// Bytes of the budget that plans must leave free.
    reserved: AtomicU64,
    /// True if the machine's speeds were given, so that no saved speeds are looked up.
    machine_given: bool,
    /// A PowerInfer split that replaces the best plan.
    split: Option<Arc<PowerInferSplit>>,
    pub(super) adaptation: HotSetAdaptation,
}

impl LivePlanner {
    /// A planner that starts with these inputs. Its context never gets shorter.
    pub fn new(inputs: PlanInputs) -> Self {
        LivePlanner {
            least_context: inputs.context,
            least_chunk: 0,
            inputs: Mutex::new(LiveInputs { plan: inputs, caps: None }),
            solved: Mutex::default(),
            reserved: AtomicU64::new(0),
            machine_given: false,
            split: None,
            adaptation: HotSetAdaptation::default(),
        }
    }

    /// Uses these speeds and never looks up saved ones.
    #[must_use]
    pub fn with_machine(mut self, machine: Machine) -> Self {
        self.set_machine(machine);
        self.machine_given = true;
        self
    }

    /// Makes the neurons of `split` resident instead of the best neurons, as far as budgets allow.
    #[must_use]
    pub fn following(mut self, split: PowerInferSplit) -> Self {
        self.split = Some(Arc::new(split));
        self
    }

    /// Plans for chunks of at least `tokens` tokens on a device.
    #[must_use]
    pub fn with_least_chunk(mut self, tokens: usize) -> Self {
        self.least_chunk = tokens;
        let chunk = &mut self.inputs.get_mut().plan.chunk;
        *chunk = tokens.max(*chunk);
        self
    }

    /// The split that plans follow, if any.
    pub fn split(&self) -> Option<&PowerInferSplit> {
        self.split.as_deref()
    }

    /// The speeds that price plans.
    pub(super) fn machine(&self) -> Arc<Machine> {
        Arc::clone(&self.inputs.lock().plan.machine)
    }

    pub(super) fn set_machine(&self, machine: Machine) {
        self.inputs.lock().plan.machine = Arc::new(machine);
    }

    /// Loads the saved speeds of `cpu` and `gpu` from `folder`, unless speeds were given. If none
    /// are saved, typical speeds replace the speeds of other processors.
    pub(super) fn look_up_machine(
        &self,
        folder: Option<&Path>,
        cpu: impl FnOnce() -> Result<Cpu>,
        gpu: Option<&AdapterReport>,
    ) {
        if self.machine_given {
            return;
        }
        let known = folder.and_then(|folder| known_machine(&cpu().ok()?, gpu, folder));
        let mut inputs = self.inputs.lock();
        let is_of = |machine: &Machine| match (&machine.gpu, gpu) {
            (Some(rates), Some(report)) => rates.adapter == report.name && rates.driver == report.driver,
            (_, report) => report.is_none(),
        };
        match known {
            Some(known) => inputs.plan.machine = Arc::new(known),
            None if !is_of(&inputs.plan.machine) => inputs.plan.machine = Arc::new(Machine::typical()),
            None => {}
        }
    }

    pub(super) fn set_sparsity(&self, mode: Sparsity) {
        self.inputs.lock().plan.sparsity = mode;
    }

    /// Plans for `contexts` contexts of `tokens` tokens altogether. Each context has keys and
    /// values for its tokens, and recurrent states regardless of its length.
    pub(super) fn set_contexts(&self, tokens: usize, contexts: usize) {
        let contexts = contexts.max(1);
        let plan = &mut self.inputs.lock().plan;
        (plan.context, plan.sessions) = (tokens.max(self.least_context).div_ceil(contexts), contexts);
    }

    /// Plans for prompts computed in chunks of `tokens` tokens, or fewer if a device should
    /// not compute that many.
    pub(super) fn set_chunk(&self, tokens: usize) {
        self.inputs.lock().plan.chunk = device_chunk(tokens).max(self.least_chunk);
    }

    /// Tokens of a prompt's chunk on a device.
    pub(super) fn chunk(&self) -> usize {
        self.inputs.lock().plan.chunk
    }

    /// Plans for a device with these limits and a budget of `budget` bytes. Returns the tokens of a
    /// chunk.
    ///
    /// # Errors
    /// As [`planner`].
    pub(super) fn set_device(&self, model: &Model, caps: Caps, budget: u64) -> Result<usize> {
        let inputs = self.inputs.lock().plan.clone();
        let chunk = streamed_chunk(model, Some(caps), &inputs, budget)?;
        let mut inputs = self.inputs.lock();
        (inputs.caps, inputs.plan.chunk) = (Some(caps), chunk);
        Ok(chunk)
    }

    /// Leaves `bytes` more of the budget free.
    pub(super) fn reserve_more(&self, bytes: u64) {
        self.reserved.fetch_add(bytes, Relaxed);
    }

    /// Leaves nothing of the budget free.
    pub(super) fn clear_reserve(&self) {
        self.reserved.store(0, Relaxed);
    }

    /// Bytes of the budget that plans leave free.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved.load(Relaxed)
    }

    /// The plan for `budget` bytes: the split's plan, or the fastest ([`PlacementSolver::plan`]).
    ///
    /// # Errors
    /// As [`PlacementSolver::plan`] and [`PlacementSolver::following`].
    pub(super) fn plan(&self, planner: &PlacementSolver, budget: u64, gpu: GpuUse) -> Result<Plan> {
        match &self.split {
            Some(split) if gpu != GpuUse::Never => planner.following(split, budget),
            _ => planner.plan(budget, gpu),
        }
    }

    /// The planner for the current inputs, solved again only if an input has changed.
    ///
    /// # Errors
    /// As [`planner`].
    pub(super) fn planner(&self, model: &Model) -> Result<Arc<PlacementSolver>> {
        let mut solved = self.solved.lock();
        let inputs = self.inputs.lock().clone();
        if let Some((_, planner)) = solved.as_ref().filter(|(of, _)| *of == inputs) {
            return Ok(Arc::clone(planner));
        }
        let planner = Arc::new(planner(model, inputs.caps, inputs.plan.clone())?);
        *solved = Some((inputs, Arc::clone(&planner)));
        Ok(planner)
    }
}

/// Number of prompt tokens that a device computes at a time if `tokens` are requested.
pub(super) fn device_chunk(tokens: usize) -> usize {
    tokens.clamp(1, PlanInputs::MAX_CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_model::{LayerConfig, LoadOptions};
    use thermocline_run::{device::GpuState, runtime::KvType};

    #[test]
    fn every_context_of_a_recurrent_model_is_planned_with_states_of_its_own() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/qwen3-next");
        let model = Model::open(&path, &LoadOptions::default()).unwrap();
        let live = LivePlanner::new(PlanInputs::new(Sparsity::Dense, 64, KvType::F32));
        let kv = |tokens: usize, contexts: usize| {
            live.set_contexts(tokens, contexts);
            let planner = live.planner(&model).unwrap();
            planner.plan(u64::MAX, GpuUse::Always).unwrap().bytes.kv
        };
        let states: u64 = model.config.layers.iter().filter_map(LayerConfig::state).map(GpuState::bytes_of).sum();
        let one = kv(0, 0);
        assert!(states > 0 && one == kv(64, 1), "{states} {one}");
        assert_eq!(kv(128, 1) - one, one - states);
        assert_eq!((kv(128, 2), kv(192, 3)), (2 * one, 3 * one));
    }
}
