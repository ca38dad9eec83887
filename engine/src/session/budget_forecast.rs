//! Forecasts the effect of VRAM budgets, for open and unopened models. Measured decoding rates
//! correct the forecasts.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{
    DeviceStatus, Engine, EngineOptions, SparsityReport, WeightRoom,
    live_planner::{device_chunk, planner},
};
use thermocline_base::{
    error::{Error, Result},
    telemetry::Rate,
};
use thermocline_cpu::Cpu;
use thermocline_gpu::AdapterReport;
use thermocline_lab::calibration::known_machine;
use thermocline_model::{Model, Resident};
use thermocline_run::{
    device::device_support,
    placement::{Forecast, GpuUse, Machine, Placement, PlacementSolver, Plan, PlanInputs},
    runtime::Sparsity,
};

/// Number of tokens after which a rate is used. The first tokens are slower, because they touch
/// memory for the first time.
const ENOUGH_TOKENS: usize = 8;

/// Largest plausible factor between a measured and an expected rate. A larger factor means that
/// something disturbed the measurement.
const MAX_CORRECTION: f64 = 1e4;

/// The planner that an engine would use for `model` (with its sidecar attached), `options` and
/// `gpu`; `None` plans for the CPU alone. It uses the speeds given in the options or kept in their
/// folder, and reads no weights.
///
/// # Errors
/// As [`planner`].
pub fn unopened_planner(
    model: &Model,
    options: &EngineOptions,
    gpu: Option<&AdapterReport>,
) -> Result<PlacementSolver> {
    let known = match (&options.machine, &options.speeds) {
        (Some(given), _) => Some(given.clone()),
        (None, Some(folder)) => known_machine(&Cpu::new(&options.cpu)?, gpu, folder),
        (None, None) => None,
    };
    let room = WeightRoom::of(options, model, None, None);
    let opened = options.sparsity.neuron_major_outline(model, options.split.is_some(), room);
    let model = opened.as_ref().map_or(model, |(opened, _)| opened);
    let mode = SparsityReport::new(options.sparsity, model, options.recall).mode;
    let mut machine = known.unwrap_or_else(Machine::typical);
    if device_support(model).is_err() {
        machine.gpu = None;
    }
    let inputs = PlanInputs {
        chunk: device_chunk(options.chunk),
        stream_prompts: options.stream_prompts,
        ram: room.limit(model),
        machine: Arc::new(machine),
        ..PlanInputs::new(mode, options.context_of(&model.config), options.kv_type)
    };
    planner(model, gpu.map(|gpu| gpu.caps), inputs)
}

impl Engine {
    /// Forecasts speed, memory by purpose, hot neurons and bytes to move for a budget of `bytes`.
    /// It assumes the current model, context and sparsity mode, and changes nothing. Any thread may
    /// call it while the engine works, even for every frame of a slider. The first call after a
    /// change of context, mode or device solves again; later calls are lookups.
    ///
    /// Without a GPU, or if none is chosen, the forecast is the CPU's, for any budget.
    ///
    /// # Errors
    /// [`Error::Memory`] if the device's limits are too small for one row of the model's weights;
    /// [`Error::Invalid`] if its sidecar does not have exactly one frequency per neuron.
    pub fn forecast(&self, bytes: u64) -> Result<Forecast> {
        let state = self.state();
        let planner = state.planner.planner(&state.model)?;
        let gpu_use = state.device.choice.lock().gpu_use();
        let (reserved, no_gpu) = match self.device() {
            DeviceStatus::Cpu { reason } => {
                let none = |reason: &Arc<Error>| matches!(**reason, Error::NoGpu { .. } | Error::Unsupported { .. });
                (0, reason.filter(none))
            }
            // The current plan may have needed more memory than expected.
            DeviceStatus::Gpu(memory) if memory.budget == Some(bytes) => (state.planner.reserved(), None),
            _ => (0, None),
        };
        let planned = match no_gpu.filter(|_| gpu_use != GpuUse::Never) {
            Some(reason) => Err(reason),
            None => state.planner.plan(&planner, bytes.saturating_sub(reserved), gpu_use).map_err(Arc::new),
        };
        let rate = |plan: &Plan| state.figures.decode_rates.corrected_rate(&planner, plan);
        let mut forecast = Forecast::new(&planner, bytes, planned, self.resident().as_deref(), rate);
        forecast.corrected = state.figures.decode_rates.correction(&planner, &forecast.plan).is_some();
        Ok(forecast)
    }

    /// Tokens per second of the latest answer, if the mode, the device and its budget have not
    /// changed since. Does not wait.
    pub fn observed_rate(&self) -> Option<f64> {
        let state = self.state();
        state.figures.decode_rates.measured_rate(&state.decode_conditions(self.sparsity().mode))
    }
}

/// The conditions under which a decoding rate is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DecodeConditions {
    pub mode: Sparsity,
    /// The adapter and its budget in bytes; `None` if the CPU computes alone.
    pub device: Option<(String, Option<u64>)>,
}

/// Consecutive tokens decoded under the same conditions.
#[derive(Debug, Clone)]
struct DecodeRun {
    conditions: DecodeConditions,
    /// The parts of the model that were on the device.
    resident: Option<Arc<Resident>>,
    rate: Rate,
    tokens: usize,
    /// The measured rate divided by the expected rate, and the machine speeds behind the expected
    /// rate.
    correction: Option<(Arc<Machine>, f64)>,
}

#[derive(Debug, Default)]
struct DecodeRuns {
    /// The run that the latest token belongs to.
    latest: Option<DecodeRun>,
    /// The latest run with enough tokens, on the CPU alone (`cpu`) and with a device (`device`).
    cpu: Option<DecodeRun>,
    device: Option<DecodeRun>,
}

/// Measured decoding rates of the latest answers. Their ratios to the expected rates correct every
/// forecast.
#[derive(Debug, Default)]
pub(super) struct DecodeRates(Mutex<DecodeRuns>);

impl DecodeRates {
    /// Records a token that was decoded in `time`, while no weights moved.
    pub fn record_token(&self, conditions: DecodeConditions, resident: Option<&Arc<Resident>>, time: Duration) {
        let mut runs = self.0.lock();
        if runs.latest.as_ref().is_none_or(|run| run.conditions != conditions) {
            let (rate, correction) = (Rate::default(), None);
            runs.latest = Some(DecodeRun { conditions, resident: None, rate, tokens: 0, correction });
        }
        let Some(run) = &mut runs.latest else { return };
        run.rate.add(1, time);
        run.tokens += 1;
        if run.tokens < ENOUGH_TOKENS {
            return;
        }
        run.resident = resident.cloned();
        let run = run.clone();
        match run.conditions.device {
            Some(_) => runs.device = Some(run),
            None => runs.cpu = Some(run),
        }
    }

    /// Forgets the rates of the device, because another device will compute.
    pub fn forget_device(&self) {
        let mut runs = self.0.lock();
        (runs.latest, runs.device) = (None, None);
    }

    /// Tokens per second of the latest answer under `conditions`.
    pub fn measured_rate(&self, conditions: &DecodeConditions) -> Option<f64> {
        let runs = self.0.lock();
        let run = if conditions.device.is_some() { &runs.device } else { &runs.cpu };
        run.as_ref().filter(|run| run.conditions == *conditions).map(|run| run.rate.get()).filter(|rate| *rate > 0.0)
    }

    /// Expected tokens per second of `plan`, corrected by the measured rates. `None` if this
    /// machine's speeds were not measured and no answer has shown the rate.
    pub fn corrected_rate(&self, planner: &PlacementSolver, plan: &Plan) -> Option<f64> {
        match self.correction(planner, plan) {
            Some(correction) => Some(correction / planned_seconds(planner, plan)),
            None => planner.expected_rate(plan),
        }
    }

    /// The measured rate divided by the expected rate, on the processors that `plan` uses; `None`
    /// until an answer has shown it.
    fn correction(&self, planner: &PlacementSolver, plan: &Plan) -> Option<f64> {
        let mut runs = self.0.lock();
        let run = if plan.placement.any_resident() { &mut runs.device } else { &mut runs.cpu };
        run.as_mut().and_then(|run| run.correction(planner))
    }
}

/// Seconds of a token by `plan`. They include its reads from the disk if the speed of the disk is
/// known.
fn planned_seconds(planner: &PlacementSolver, plan: &Plan) -> f64 {
    planner.seconds(plan).unwrap_or(plan.seconds)
}

impl DecodeRun {
    fn correction(&mut self, planner: &PlacementSolver) -> Option<f64> {
        let inputs = planner.inputs();
        if let Some((machine, correction)) = &self.correction
            && *machine == inputs.machine
        {
            return Some(*correction);
        }
        // The expected rate of another mode is no longer known.
        if self.conditions.mode != inputs.sparsity {
            return None;
        }
        let placement = match (&self.conditions.device, &self.resident) {
            (Some(_), Some(resident)) => Placement::from_resident(resident, planner.profile()),
            (Some(_), None) => return None,
            (None, _) => Placement::cpu(planner.profile().layers.len()),
        };
        let expected = 1.0 / planned_seconds(planner, &planner.price(placement));
        let correction = self.rate.get() / expected;
        if !(1.0 / MAX_CORRECTION..=MAX_CORRECTION).contains(&correction) {
            return None;
        }
        self.correction = Some((Arc::clone(&inputs.machine), correction));
        Some(correction)
    }
}

#[cfg(test)]
mod tests;
