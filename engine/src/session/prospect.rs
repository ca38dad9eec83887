//! What budgets would give: a model's plans on this machine, solved once for all budgets.

use std::sync::{Arc, OnceLock};

use crate::{
    error::{Error, Result},
    gpu::Caps,
    model::{DeviceBytes, KvType, Model, Sparsity},
    sparsity::{
        measure::caps_of,
        placement::{Demand, DemandOptions, Frontier, LayerDemand, Machine, Placement, Plan, Split, usable},
    },
};

/// What plans depend on beside the model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Basis {
    pub sparsity: Sparsity,
    /// Whether the model is not open yet, and will get a row per neuron in its down projections when it is.
    pub turned: bool,
    /// Tokens that caches have to have room for.
    pub tokens: usize,
    pub kv_type: KvType,
    /// Tokens of a prompt computed at a time.
    pub chunk: usize,
    /// Limits of the device; `None`: not opened yet, so those of the machine's.
    pub caps: Option<Caps>,
    pub machine: Arc<Machine>,
}

/// All plans on one basis.
#[derive(Debug)]
pub(super) struct Prospect {
    basis: Basis,
    demand: Demand,
    frontier: Frontier,
    /// The plans where whatever fits is done on the device, if it is the slower of the two.
    eager: OnceLock<Frontier>,
}

impl Prospect {
    /// Solves for every budget.
    ///
    /// # Errors
    /// As [`DeviceBytes::of`] and [`Demand::of`].
    pub fn new(model: &Model, basis: Basis) -> Result<Self> {
        let limits = basis.machine.gpu.as_ref().map_or(Machine::typical_limits(), |gpu| gpu.limits);
        let caps = basis.caps.unwrap_or_else(|| caps_of(limits));
        let Basis { sparsity, turned, tokens, kv_type, .. } = basis;
        let bytes = DeviceBytes::of(&caps, model, basis.chunk, kv_type)?;
        let options = DemandOptions { context: tokens, sessions: 1, kv_type, sparsity, turned, filled: None };
        let demand = Demand::of(model, &bytes, &options)?;
        let frontier = Frontier::new(&demand, &basis.machine);
        Ok(Prospect { basis, demand, frontier, eager: OnceLock::new() })
    }

    /// What they depend on.
    pub fn basis(&self) -> &Basis {
        &self.basis
    }

    /// What the model asks for.
    pub fn demand(&self) -> &Demand {
        &self.demand
    }

    /// With nothing on a device.
    pub fn on_cpu(&self) -> Plan {
        self.price(Placement::cpu(self.demand.layers.len()))
    }

    /// Bytes that the whole model takes on a device, with its caches.
    pub fn everything(&self) -> u64 {
        self.price(Placement::all(&self.demand)).bytes.total()
    }

    /// What is expected of `placement`.
    pub fn price(&self, placement: Placement) -> Plan {
        Plan::of(&self.demand, &self.basis.machine, placement)
    }

    /// What `budget` bytes are best used for. Where that is nothing, though something would fit, the device is used all the same
    /// unless it is wanted `only_if_quicker`.
    ///
    /// # Errors
    /// [`Error::Memory`] if nothing useful fits, [`Error::SlowGpu`] if the CPU alone is expected to be quicker and that is asked.
    pub fn plan(&self, budget: u64, only_if_quicker: bool) -> Result<Plan> {
        let (demand, machine) = (&self.demand, &self.basis.machine);
        let plan = self.frontier.plan(demand, machine, budget);
        let nothing = |plan: &Plan| plan.placement.first_resident >= demand.layers.len();
        if !nothing(&plan) {
            return Ok(plan);
        }
        let least =
            demand.scratch + demand.staging + demand.layers.last().map_or(0, |layer| layer.base() + layer.neuron);
        if least > budget {
            return Err(Error::Memory { what: "the least of the model in VRAM", wanted: least, available: budget });
        }
        if only_if_quicker {
            return Err(Error::SlowGpu);
        }
        let eager = eager();
        let plan = self.eager.get_or_init(|| Frontier::new(demand, &eager)).plan(demand, &eager, budget);
        if nothing(&plan) {
            let wanted = least.max(budget.saturating_add(1));
            return Err(Error::Memory { what: "the least of the model in VRAM", wanted, available: budget });
        }
        Ok(self.price(plan.placement))
    }

    /// As many layers as `budget` has room for, each with all it has.
    ///
    /// # Errors
    /// [`Error::Memory`] if that is none.
    pub fn layers(&self, budget: u64) -> Result<Plan> {
        let whole = |layer: &LayerDemand| layer.base() + layer.neurons() as u64 * layer.neuron;
        self.resident(Placement::of_layers(&self.demand, budget), budget, "one whole layer in VRAM", whole)
    }

    /// The neurons of `split`, as far as `budget` has room.
    ///
    /// # Errors
    /// [`Error::Memory`] if that is not even one layer's attention, [`Error::Malformed`] if it is another model's.
    pub fn following(&self, split: &Split, budget: u64) -> Result<Plan> {
        let placement = split.placement(&self.demand)?.fitting(&self.demand, budget);
        self.resident(placement, budget, "the least of the model in VRAM", LayerDemand::base)
    }

    /// The plan of `placement`, unless nothing is resident, where the last layer takes so much `of` it at least.
    fn resident(
        &self,
        placement: Placement,
        budget: u64,
        what: &'static str,
        of: impl Fn(&LayerDemand) -> u64,
    ) -> Result<Plan> {
        let demand = &self.demand;
        if placement.first_resident >= demand.layers.len() {
            let wanted = demand.scratch + demand.staging + demand.layers.last().map_or(0, of);
            return Err(Error::Memory { what, wanted, available: usable(budget) });
        }
        Ok(self.price(placement))
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
