//! What a budget would give, told before it is set.

use std::sync::{Arc, PoisonError};

use super::{DeviceChoice, DeviceStatus, Engine, observed::Observed, prospect::Prospect};
use crate::{
    error::{Error, Result},
    model::Resident,
    sparsity::placement::Plan,
};

/// What is to be expected of a VRAM budget, with the model, the context, the sparsity mode and the speeds that an engine has
/// now. It comes from the plan that the engine would follow.
#[derive(Debug, Clone)]
pub struct Forecast {
    /// The budget, in bytes.
    pub budget: u64,
    /// What would be resident, what it takes by purpose, and the time of every layer.
    pub plan: Plan,
    /// Bytes that the whole model takes on a device, with its caches. A plan may use fewer though there is room: what the CPU
    /// does as quickly stays there.
    pub everything: u64,
    /// Tokens per second to be expected: what the plan says, corrected by what was observed when the engine decoded last.
    /// `None` as long as nobody has measured the speeds of this machine and no answer has shown them.
    pub tokens_per_second: Option<f64>,
    /// The same without any VRAM.
    pub cpu_tokens_per_second: Option<f64>,
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
        prospect: &Prospect,
        observed: &Observed,
        now: Option<&Resident>,
        reason: Option<Arc<Error>>,
    ) -> Self {
        let (arriving, leaving) = plan.placement.moves(prospect.demand(), now);
        let tokens_per_second = observed.tokens_per_second(prospect, &plan);
        let cpu_tokens_per_second = observed.tokens_per_second(prospect, &prospect.on_cpu());
        let everything = prospect.everything();
        Forecast { budget, plan, everything, tokens_per_second, cpu_tokens_per_second, arriving, leaving, reason }
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

impl Engine {
    /// What a budget of `bytes` would give, with the model, the context and the mode as they are: speed, memory by purpose,
    /// hot neurons, bytes to move. Nothing happens. May be called from any thread while the engine works, for every picture of
    /// a slider: the first call after a change of context, mode or device takes some time, the others next to none.
    ///
    /// Where there is no GPU, or none was asked for, it is what the CPU gives, for any budget.
    ///
    /// # Errors
    /// [`Error::Memory`] if the device's limits are too narrow for a row of the model's weights, [`Error::Invalid`] if its
    /// sidecar has not one frequency per neuron.
    pub fn forecast(&self, bytes: u64) -> Result<Forecast> {
        let shared = self.shared();
        let prospect = shared.terms.prospect(&shared.model)?;
        let only_if_quicker = match *shared.choice.lock().unwrap_or_else(PoisonError::into_inner) {
            DeviceChoice::Cpu => None,
            DeviceChoice::Auto(_) => Some(true),
            DeviceChoice::Gpu(_) => Some(false),
        };
        let (reserved, absent) = match self.device() {
            DeviceStatus::Cpu { reason } => (0, reason.filter(|why| is_absence(why))),
            // Its plan may have turned out to need more than expected.
            DeviceStatus::Gpu(memory) if memory.budget == Some(bytes) => (shared.terms.reserved(), None),
            _ => (0, None),
        };
        let (plan, reason) = match (only_if_quicker, absent) {
            (None, _) => (prospect.on_cpu(), None),
            (_, Some(reason)) => (prospect.on_cpu(), Some(reason)),
            (Some(quicker), None) => match shared.terms.plan(&prospect, bytes.saturating_sub(reserved), quicker) {
                Ok(plan) => (plan, None),
                Err(error) => (prospect.on_cpu(), Some(Arc::new(error))),
            },
        };
        Ok(Forecast::new(bytes, plan, &prospect, &shared.observed, self.placement().as_deref(), reason))
    }

    /// Tokens per second of the latest answer, if the mode, the device and its budget are still as they were then. Never waits.
    pub fn observed_rate(&self) -> Option<f64> {
        let shared = self.shared();
        shared.observed.rate(&shared.state(self.sparsity().mode))
    }
}

/// Whether a device is not in use because there is none.
fn is_absence(reason: &Error) -> bool {
    matches!(reason, Error::NoGpu { .. })
}
