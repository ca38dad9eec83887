//! What a budget would give, told before it is set.

use std::sync::Arc;

use crate::{
    error::Error,
    model::Resident,
    sparsity::placement::{Demand, Plan},
};

/// What is to be expected of a VRAM budget, with the model, the context, the sparsity mode and the speeds that an engine has
/// now. It comes from the plan that the engine would follow.
#[derive(Debug, Clone)]
pub struct Forecast {
    /// The budget, in bytes.
    pub budget: u64,
    /// What would be resident, what it takes by purpose, and the time of every layer.
    pub plan: Plan,
    /// Tokens per second without any VRAM.
    pub cpu_tokens_per_second: f64,
    /// Bytes to bring up from where things are now.
    pub arriving: u64,
    /// Bytes to give up.
    pub leaving: u64,
    /// Why nothing would be resident; `None` where something would be, or no GPU was asked for.
    pub reason: Option<Arc<Error>>,
}

impl Forecast {
    pub(super) fn new(
        budget: u64,
        plan: Plan,
        cpu: &Plan,
        demand: &Demand,
        now: Option<&Resident>,
        reason: Option<Arc<Error>>,
    ) -> Self {
        let (arriving, leaving) = plan.placement.moves(demand, now);
        Forecast { budget, plan, cpu_tokens_per_second: cpu.tokens_per_second(), arriving, leaving, reason }
    }

    /// Tokens per second.
    pub fn tokens_per_second(&self) -> f64 {
        self.plan.tokens_per_second()
    }

    /// Hot neurons (experts, of mixtures), and all there are.
    pub fn neurons(&self) -> (usize, usize) {
        let layers = &self.plan.layers;
        (layers.iter().map(|layer| layer.hot).sum(), layers.iter().map(|layer| layer.neurons).sum())
    }

    /// Share of the firings that hot neurons would have, from 0 to 1.
    pub fn hot_share(&self) -> f64 {
        self.plan.hot_share()
    }

    /// Layers of which nothing would be left to the CPU.
    pub fn whole_layers(&self) -> impl Iterator<Item = usize> + '_ {
        let layers = self.plan.layers.iter().enumerate();
        layers.filter(|(_, layer)| layer.resident && layer.hot == layer.neurons).map(|(at, _)| at)
    }
}
