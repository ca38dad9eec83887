//! Models on a GPU under a budget: how much of a model goes there, decided by what the plan expects of it.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    adapt::Adapt,
    prospect::{Basis, Prospect},
};
use crate::{
    cpu::{Cpu, CpuOptions, ThreadPool},
    error::{Error, Result},
    gpu::{Gpu, GpuOptions},
    model::{GpuLoad, KvType, Model, Sparsity},
    sparsity::{
        executor::{HybridProcessor, Planner},
        measure::known_machine,
        placement::{Granularity, Machine, Placement, Plan, Split, Streaming},
    },
};

/// What plans depend on beside the model, as it is now: written by whoever runs the model, read by planners and forecasts.
#[derive(Debug)]
pub struct Terms {
    basis: Mutex<Basis>,
    /// The plans on that basis, or on an earlier one.
    prospect: Mutex<Option<Arc<Prospect>>>,
    /// Least of the tokens to reckon with.
    least: usize,
    /// Bytes of the budget that plans have turned out to need beside what they expected.
    reserve: AtomicU64,
    /// Whether the speeds were given, and are not to be looked up.
    given: bool,
    /// What is to be resident, where that is not for plans to find out.
    split: Option<Arc<Split>>,
    pub(super) adapt: Adapt,
}

impl Terms {
    /// For caches of so many tokens altogether, on a usual desktop.
    pub fn new(sparsity: Sparsity, tokens: usize, kv_type: KvType) -> Self {
        let machine = Arc::new(Machine::typical());
        let (chunk, stream_prompts) = (GpuLoad::default().chunk, None);
        let basis = Basis { sparsity, tokens, kv_type, chunk, caps: None, machine, stream_prompts };
        Terms {
            basis: Mutex::new(basis),
            prospect: Mutex::default(),
            least: tokens,
            reserve: AtomicU64::new(0),
            given: false,
            split: None,
            adapt: Adapt::default(),
        }
    }

    /// The same on a machine of these speeds.
    #[must_use]
    pub fn on(mut self, machine: Machine) -> Self {
        self.set_machine(machine);
        self.given = true;
        self
    }

    /// The same with these neurons resident instead of the best ones, as far as budgets have room.
    #[must_use]
    pub fn following(mut self, split: Split) -> Self {
        self.split = Some(Arc::new(split));
        self
    }

    /// The same with cold rows of prompts sent to the device always or never, instead of where that is expected to be quicker.
    #[must_use]
    pub fn streaming(self, prompts: Option<bool>) -> Self {
        self.basis().stream_prompts = prompts;
        self
    }

    /// The split that is followed.
    pub fn split(&self) -> Option<&Split> {
        self.split.as_deref()
    }

    /// The machine has turned out to be of these speeds.
    pub(super) fn set_machine(&self, machine: Machine) {
        self.basis().machine = Arc::new(machine);
    }

    /// Takes the speeds that are kept of these processors, unless some were given. Where none are, those of other processors
    /// do not stay.
    pub(super) fn look_up(&self, options: &PlaceOptions, gpu: Option<&Gpu>) {
        if self.given {
            return;
        }
        let known = options.speeds.as_ref().and_then(|folder| {
            let cpu = options.open_cpu().ok()?;
            known_machine(&cpu, gpu.map(Gpu::report), folder)
        });
        let mut basis = self.basis();
        let is_of = |machine: &Machine| match (&machine.gpu, gpu.map(Gpu::report)) {
            (Some(rates), Some(report)) => rates.adapter == report.name && rates.driver == report.driver,
            (_, report) => report.is_none(),
        };
        match known {
            Some(known) => basis.machine = Arc::new(known),
            None if !is_of(&basis.machine) => basis.machine = Arc::new(Machine::typical()),
            None => {}
        }
    }

    fn basis(&self) -> MutexGuard<'_, Basis> {
        self.basis.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_sparsity(&self, mode: Sparsity) {
        self.basis().sparsity = mode;
    }

    pub(super) fn set_tokens(&self, tokens: usize) {
        self.basis().tokens = tokens.max(self.least);
    }

    /// Prompts are computed so many tokens at a time, as far as a device should.
    pub(super) fn set_chunk(&self, tokens: usize) {
        self.basis().chunk = device_chunk(tokens);
    }

    /// Plans are to leave `bytes` more of the budget alone.
    pub(super) fn reserve_more(&self, bytes: u64) {
        self.reserve.fetch_add(bytes, Relaxed);
    }

    /// Another budget, another plan.
    pub(super) fn reserve_nothing(&self) {
        self.reserve.store(0, Relaxed);
    }

    /// Bytes that plans leave alone.
    pub(super) fn reserved(&self) -> u64 {
        self.reserve.load(Relaxed)
    }

    /// What `budget` bytes are used for: what the split says, or what they are best used for ([`Prospect::plan`]).
    ///
    /// # Errors
    /// As [`Prospect::plan`] and [`Prospect::following`].
    pub(super) fn plan(&self, prospect: &Prospect, budget: u64, only_if_quicker: bool) -> Result<Plan> {
        match &self.split {
            Some(split) => prospect.following(split, budget),
            None => prospect.plan(budget, only_if_quicker),
        }
    }

    /// What every budget would give now. Solved anew only where something has changed.
    ///
    /// # Errors
    /// As [`Prospect::new`].
    pub(super) fn prospect(&self, model: &Model) -> Result<Arc<Prospect>> {
        let mut prospect = self.prospect.lock().unwrap_or_else(PoisonError::into_inner);
        let basis = self.basis().clone();
        if let Some(known) = prospect.as_ref().filter(|known| *known.basis() == basis) {
            return Ok(Arc::clone(known));
        }
        let new = Arc::new(Prospect::new(model, basis)?);
        *prospect = Some(Arc::clone(&new));
        Ok(new)
    }
}

/// Tokens of a prompt that a device computes at a time, where `tokens` are wanted: more cost memory and keep a desktop waiting.
pub(super) fn device_chunk(tokens: usize) -> usize {
    tokens.clamp(1, GpuLoad::default().chunk)
}

/// How to bring a model to a GPU.
#[derive(Debug, Clone, Default)]
pub struct PlaceOptions {
    /// Which GPU, and how many bytes of it.
    pub gpu: GpuOptions,
    /// The CPU for what is not there.
    pub cpu: CpuOptions,
    /// Its threads, where there are some already; `None`: threads of its own.
    pub workers: Option<Arc<ThreadPool>>,
    /// Tokens of a prompt computed at a time.
    pub chunk: usize,
    /// In what pieces the model goes there.
    pub granularity: Granularity,
    /// Whether the CPU alone will do where that is expected to be quicker. Otherwise the GPU is used for whatever fits.
    pub only_if_quicker: bool,
    /// Folder in which the speeds of machines are kept ([`known_machine`]): this one's are planned with, if they are there and the
    /// terms name no others.
    pub speeds: Option<PathBuf>,
}

impl PlaceOptions {
    /// The CPU.
    ///
    /// # Errors
    /// As [`Cpu::new`].
    pub(super) fn open_cpu(&self) -> Result<Cpu> {
        match &self.workers {
            Some(workers) => Cpu::with_workers(&self.cpu, Arc::clone(workers)),
            None => Cpu::new(&self.cpu),
        }
    }
}

/// How often a load is tried with less, where what a plan takes turns out to be more than it expected.
const ATTEMPTS: usize = 4;

/// Opens the GPU and brings there what of `model` its budget is best used for. `progress` hears how many bytes are up and how
/// many there are; it may cancel.
///
/// # Errors
/// [`Error::Memory`] if nothing useful fits, [`Error::NoGpu`] if there is no such GPU, [`Error::SlowGpu`] if the CPU alone is expected to
/// be quicker and that is asked, [`Error::Gpu`] if the device is lost, [`Error::Cancelled`].
pub fn place(
    model: &Model,
    options: &PlaceOptions,
    terms: &Arc<Terms>,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(HybridProcessor, Gpu)> {
    let gpu = Gpu::open(&options.gpu).inspect_err(|_| terms.look_up(options, None))?;
    terms.look_up(options, Some(&gpu));
    terms.set_chunk(options.chunk);
    let chunk = {
        let mut basis = terms.basis();
        basis.caps = Some(*gpu.caps());
        basis.chunk
    };
    let load = GpuLoad { chunk, predictors: false, ..GpuLoad::default() };
    let mut planner = BudgetPlanner {
        terms: Arc::clone(terms),
        granularity: options.granularity,
        only_if_quicker: options.only_if_quicker,
    };
    let mut target = gpu.arena().budget();
    for attempt in 1.. {
        let placement = planner.plan(model, target)?;
        match HybridProcessor::load(&gpu, options.open_cpu()?, model, &placement, &load, progress) {
            Ok(processor) => return Ok((processor.with_planner(Box::new(planner)), gpu)),
            Err(Error::Memory { .. }) if attempt < ATTEMPTS && target < u64::MAX => target -= target / 8,
            Err(error) => return Err(error),
        }
    }
    Err(Error::Cancelled)
}

/// Plans as the terms are, and lets neurons change places under one budget.
#[derive(Debug)]
struct BudgetPlanner {
    terms: Arc<Terms>,
    granularity: Granularity,
    only_if_quicker: bool,
}

impl Planner for BudgetPlanner {
    fn plan(&mut self, model: &Model, budget: u64) -> Result<Placement> {
        let budget = budget.saturating_sub(self.terms.reserved());
        let prospect = self.terms.prospect(model)?;
        let plan = match self.granularity {
            Granularity::Neurons => self.terms.plan(&prospect, budget, self.only_if_quicker),
            Granularity::Layers => prospect.layers(budget),
        };
        Ok(plan?.placement)
    }

    fn revise(&mut self, _: &Model, now: &Placement) -> Result<Option<Placement>> {
        Ok(match self.granularity {
            Granularity::Neurons => self.terms.adapt.revise(now),
            Granularity::Layers => None,
        })
    }

    fn streaming(&mut self, model: &Model, budget: u64) -> Result<Option<(Streaming, u64)>> {
        let prospect = self.terms.prospect(model)?;
        let slab = prospect.slab_within(budget.saturating_sub(self.terms.reserved()));
        Ok(Some((prospect.basis().streaming(), slab)))
    }
}
