//! Models on a GPU under a budget: how much of a model goes there, decided by what the plan expects of it.

use std::{
    ops::ControlFlow,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use super::adapt::Adapt;
use crate::{
    cpu::{Cpu, CpuOptions},
    error::{Error, Result},
    gpu::{Gpu, GpuOptions},
    model::{DeviceBytes, GpuLoad, KvType, Model, Sparsity},
    sparsity::{
        executor::{HybridProcessor, Planner},
        placement::{Demand, DemandOptions, Frontier, Machine, Placement, Plan},
    },
};

/// What plans depend on beside model and machine, as it is now. Written by whoever runs the model, read by planners.
#[derive(Debug)]
pub struct Terms {
    sparsity: Mutex<Sparsity>,
    /// Tokens that caches have to have room for, and the least of them to reckon with.
    tokens: AtomicUsize,
    least: usize,
    /// Bytes of the budget that plans have turned out to need beside what they expected.
    reserve: AtomicU64,
    kv_type: KvType,
    pub(super) adapt: Adapt,
}

impl Terms {
    /// For caches of so many tokens altogether.
    pub fn new(sparsity: Sparsity, tokens: usize, kv_type: KvType) -> Self {
        let (least, tokens) = (tokens, AtomicUsize::new(tokens));
        let (sparsity, reserve) = (Mutex::new(sparsity), AtomicU64::new(0));
        Terms { sparsity, tokens, least, reserve, kv_type, adapt: Adapt::default() }
    }

    fn sparsity(&self) -> Sparsity {
        *self.sparsity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_sparsity(&self, mode: Sparsity) {
        *self.sparsity.lock().unwrap_or_else(PoisonError::into_inner) = mode;
    }

    /// Plans are to leave `bytes` more of the budget alone.
    pub(super) fn reserve_more(&self, bytes: u64) {
        self.reserve.fetch_add(bytes, Relaxed);
    }

    /// Another budget, another plan.
    pub(super) fn reserve_nothing(&self) {
        self.reserve.store(0, Relaxed);
    }

    pub(super) fn set_tokens(&self, tokens: usize) {
        self.tokens.store(tokens.max(self.least), Relaxed);
    }
}

/// How to bring a model to a GPU.
#[derive(Debug, Clone, Default)]
pub struct PlaceOptions {
    /// Which GPU, and how many bytes of it.
    pub gpu: GpuOptions,
    /// The CPU for what is not there.
    pub cpu: CpuOptions,
    /// Tokens of a prompt computed at a time.
    pub chunk: usize,
    /// Whether the CPU alone will do where that is expected to be quicker. Otherwise the GPU is used for whatever fits.
    pub only_if_quicker: bool,
    /// Measured speeds; without them those of a typical desktop.
    pub machine: Option<Machine>,
}

/// How often a load is tried with less, where what a plan takes turns out to be more than it expected.
const ATTEMPTS: usize = 4;

/// Opens the GPU and brings there what of `model` its budget is best used for. `progress` hears how many bytes are up and how
/// many there are; it may cancel.
///
/// # Errors
/// [`Error::Memory`] if nothing useful fits, [`Error::Unsupported`] if there is no such GPU or the CPU alone is expected to be
/// quicker and that is asked, [`Error::Gpu`] if the device is lost, [`Error::Cancelled`].
pub fn place(
    model: &Model,
    options: &PlaceOptions,
    terms: &Arc<Terms>,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(HybridProcessor, Gpu)> {
    let gpu = Gpu::open(&options.gpu)?;
    // A longer chunk costs memory and keeps a desktop waiting.
    let chunk = options.chunk.clamp(1, GpuLoad::default().chunk);
    let load = GpuLoad { chunk, predictors: false, ..GpuLoad::default() };
    let mut planner = BudgetPlanner::new(model, &gpu, options, Arc::clone(terms), chunk)?;
    let mut target = gpu.arena().budget();
    for attempt in 1.. {
        let placement = planner.placement(model, target)?;
        match HybridProcessor::load(&gpu, Cpu::new(&options.cpu)?, model, &placement, &load, progress) {
            Ok(processor) => return Ok((processor.with_planner(Box::new(planner)), gpu)),
            Err(Error::Memory { .. }) if attempt < ATTEMPTS && target < u64::MAX => target -= target / 8,
            Err(error) => return Err(error),
        }
    }
    Err(Error::Cancelled)
}

/// Solves for every budget, and lets neurons change places under one.
#[derive(Debug)]
struct BudgetPlanner {
    machine: Machine,
    bytes: DeviceBytes,
    terms: Arc<Terms>,
    only_if_quicker: bool,
    /// What was solved, and on which terms.
    solved: Option<((Sparsity, usize), Demand, Frontier)>,
}

impl BudgetPlanner {
    fn new(model: &Model, gpu: &Gpu, options: &PlaceOptions, terms: Arc<Terms>, chunk: usize) -> Result<Self> {
        let bytes = DeviceBytes::of(gpu.caps(), model, chunk, terms.kv_type)?;
        let machine = options.machine.clone().unwrap_or_else(Machine::typical);
        Ok(BudgetPlanner { machine, bytes, terms, only_if_quicker: options.only_if_quicker, solved: None })
    }

    /// What should be resident in `budget` bytes.
    fn placement(&mut self, model: &Model, budget: u64) -> Result<Placement> {
        let now = (self.terms.sparsity(), self.terms.tokens.load(Relaxed));
        if self.solved.as_ref().is_none_or(|(terms, ..)| *terms != now) {
            let (sparsity, context) = now;
            let kv_type = self.terms.kv_type;
            let options = DemandOptions { context, sessions: 1, kv_type, sparsity, filled: None };
            let demand = Demand::of(model, &self.bytes, &options)?;
            let frontier = Frontier::new(&demand, &self.machine);
            self.solved = Some((now, demand, frontier));
        }
        let Some((_, demand, frontier)) = &self.solved else { return Ok(Placement::cpu(model.config.n_layer())) };
        let budget = budget.saturating_sub(self.terms.reserve.load(Relaxed));
        let plan = frontier.plan(demand, &self.machine, budget);
        let nothing = |plan: &Plan| plan.placement.first_resident >= demand.layers.len();
        if !nothing(&plan) {
            return Ok(plan.placement);
        }
        let least =
            demand.scratch + demand.staging + demand.layers.last().map_or(0, |layer| layer.base() + layer.neuron);
        if least > budget {
            return Err(Error::Memory { what: "the least of the model in VRAM", wanted: least, available: budget });
        }
        if self.only_if_quicker {
            return Err(Error::Unsupported {
                what: "GPU plan",
                got: format!("{:.1} tokens/s at most with it", plan.tokens_per_second()),
                supported: "a GPU that is quicker than the CPU alone".to_owned(),
            });
        }
        // Asked for by name, it is used, if it is the slower of the two.
        let eager = eager();
        let plan = Frontier::new(demand, &eager).plan(demand, &eager, budget);
        if nothing(&plan) {
            let wanted = least.max(budget.saturating_add(1));
            return Err(Error::Memory { what: "the least of the model in VRAM", wanted, available: budget });
        }
        Ok(plan.placement)
    }
}

/// A machine on which everything pays that is done on the GPU.
fn eager() -> Machine {
    let mut machine = Machine::typical();
    machine.cpu.memory /= 1e4;
    for rate in machine.cpu.rates.values_mut() {
        rate.sequential /= 1e4;
        rate.scattered /= 1e4;
    }
    if let Some(gpu) = &mut machine.gpu {
        (gpu.dispatch, gpu.hand_over) = (0.0, 0.0);
    }
    machine
}

impl Planner for BudgetPlanner {
    fn plan(&mut self, model: &Model, budget: u64) -> Result<Placement> {
        self.placement(model, budget)
    }

    fn revise(&mut self, _: &Model, now: &Placement) -> Result<Option<Placement>> {
        Ok(self.terms.adapt.revise(now))
    }
}
