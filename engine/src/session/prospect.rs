//! What budgets would give: a model's plans on this machine, solved once for all budgets.

use std::sync::{Arc, OnceLock};

use crate::{
    error::{Error, Result},
    gpu::Caps,
    model::{DeviceBytes, KvType, Model, Sparsity},
    sparsity::{
        measure::caps_of,
        placement::{
            Demand, DemandOptions, Frontier, LayerDemand, Machine, Placement, Plan, Slab, Split, Streaming, usable,
        },
    },
};

/// What plans depend on beside the model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Basis {
    pub sparsity: Sparsity,
    /// Tokens that caches have to have room for.
    pub tokens: usize,
    pub kv_type: KvType,
    /// Tokens of a prompt computed at a time.
    pub chunk: usize,
    /// Limits of the device; `None`: not opened yet, so those of the machine's.
    pub caps: Option<Caps>,
    pub machine: Arc<Machine>,
    /// Whether cold rows of prompts are sent to the device; `None`: where that is expected to be quicker.
    pub stream_prompts: Option<bool>,
}

impl Basis {
    /// Where the cold neurons' part of prompts is computed.
    pub fn streaming(&self) -> Streaming {
        match self.stream_prompts {
            Some(true) => Streaming::Always,
            Some(false) => Streaming::Never,
            None => Streaming::Priced(Arc::clone(&self.machine)),
        }
    }
}

/// All plans on one basis.
#[derive(Debug)]
pub(super) struct Prospect {
    basis: Basis,
    demand: Demand,
    frontier: Frontier,
    /// What carries cold rows of prompts to the device.
    slab: Slab,
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
        let Basis { sparsity, tokens, kv_type, .. } = basis;
        let bytes = DeviceBytes::of(&caps, model, basis.chunk, kv_type)?;
        let options = DemandOptions { context: tokens, sessions: 1, kv_type, sparsity, filled: None };
        let demand = Demand::of(model, &bytes, &options)?;
        let frontier = Frontier::new(&demand, &basis.machine);
        let slab = Slab::of(model, &bytes, &demand, &basis.streaming());
        Ok(Prospect { basis, demand, frontier, slab, eager: OnceLock::new() })
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

    /// Bytes of `budget` that what carries cold rows of prompts to the device may take; none where nothing is cold.
    pub fn slab_within(&self, budget: u64) -> u64 {
        self.slab.within(budget)
    }

    /// What `budget` bytes are best used for. Where that is nothing, though something would fit, the device is used all the same
    /// unless it is wanted `only_if_quicker`.
    ///
    /// # Errors
    /// [`Error::Memory`] if nothing useful fits, [`Error::SlowGpu`] if the CPU alone is expected to be quicker and that is asked.
    pub fn plan(&self, budget: u64, only_if_quicker: bool) -> Result<Plan> {
        self.slab.beside(&self.demand, budget, |budget| self.best(budget, only_if_quicker))
    }

    fn best(&self, budget: u64, only_if_quicker: bool) -> Result<Plan> {
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
        let placement = split.placement(&self.demand)?;
        self.slab.beside(&self.demand, budget, |budget| {
            let placement = placement.clone().fitting(&self.demand, budget);
            self.resident(placement, budget, "the least of the model in VRAM", LayerDemand::base)
        })
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

#[cfg(test)]
mod tests {
    use std::{ops::ControlFlow, path::Path};

    use super::*;
    use crate::{cpu::ThreadPool, model::LoadOptions};

    #[test]
    fn plans_leave_a_share_to_the_slab_where_it_pays() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama-relu");
        let model = Model::open(&path, &LoadOptions::default()).unwrap();
        let pool = ThreadPool::new(Some(1));
        let (model, _) = model.neuron_major(&pool, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let prospect = |stream_prompts, machine: Machine, chunk| {
            let (sparsity, kv_type, machine) = (Sparsity::Exact, KvType::F16, Arc::new(machine));
            let basis = Basis { sparsity, tokens: 64, kv_type, chunk, caps: None, machine, stream_prompts };
            Prospect::new(&model, basis).unwrap()
        };
        let mut slow_bus = Machine::typical();
        slow_bus.gpu.iter_mut().flat_map(|gpu| gpu.streams.values_mut()).for_each(|rate| *rate = 1e6);
        let never = prospect(Some(false), Machine::typical(), 256);
        for (with, share) in [
            (prospect(None, Machine::typical(), 256), 32),
            (prospect(Some(true), slow_bus.clone(), 256), 4),
            (prospect(None, slow_bus, 256), u64::MAX),
            (prospect(None, Machine::typical(), 2), u64::MAX),
        ] {
            let (everything, mut split) = (with.everything(), 0);
            for budget in (0..=20).map(|twentieth| everything * 2 * twentieth / 20) {
                let slab = with.slab_within(budget);
                assert!(slab <= budget / share && never.slab_within(budget) == 0);
                assert!(usable(budget) < everything || slab == 0, "everything fits");
                let Ok(plan) = with.plan(budget, false) else { continue };
                assert!(plan.bytes.total() <= budget, "{} of {budget}, {slab} a slab", plan.bytes.total());
                let without = with.price(plan.placement.clone()).bytes.total();
                let layers = plan.placement.hot.iter().zip(&with.demand.layers).skip(plan.placement.first_resident);
                let is_split = layers.into_iter().any(|(hot, layer)| hot.len() < layer.neurons());
                let added = plan.bytes.total() - without;
                // Where there is not even room for one layer beside it, it is left out.
                assert!(added == 0 || (is_split && added == slab), "{added} bytes of a slab of {slab}");
                assert_eq!(plan.bytes.slab, added);
                split += usize::from(added > 0);
            }
            assert_eq!(split > 0, share < u64::MAX, "{split} plans had a slab");
        }
    }
}
