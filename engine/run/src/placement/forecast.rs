//! Forecasts: the plan and the speed that a VRAM budget would give.

use std::sync::Arc;

use super::{PlacementSolver, Plan, Resident, budget_for};
use thermocline_base::error::Error;

/// The plan that an engine would follow under a VRAM budget, and its speed.
#[derive(Debug, Clone)]
pub struct Forecast {
    /// The budget, in bytes.
    pub budget: u64,
    /// The plan: resident parts, bytes by purpose, and the time of every layer.
    pub plan: Plan,
    /// Device bytes of the whole model with its caches. The plan may use fewer though there is room: what the CPU does as
    /// quickly stays there.
    pub everything: u64,
    /// Expected tokens per second; `None` as long as neither a measurement of this machine nor an answer has shown its speed.
    pub tokens_per_second: Option<f64>,
    /// True if that rate is corrected by measured ones: an answer of this engine has shown how far the time model is off here.
    pub corrected: bool,
    /// Expected tokens per second without any VRAM.
    pub cpu_tokens_per_second: Option<f64>,
    /// Bytes to upload from where things are now.
    pub arriving: u64,
    /// Bytes to release.
    pub leaving: u64,
    /// The reason why nothing would be resident; `None` where something would be, or no GPU was asked for.
    pub reason: Option<Arc<Error>>,
}

impl Forecast {
    /// The least budget that has room for the whole model with its caches.
    pub fn enough(&self) -> u64 {
        budget_for(self.everything)
    }

    /// The forecast of what was `planned` within `budget` bytes: the CPU's plan, with the reason, where that is an error. `now` is
    /// resident now; `rate` gives the tokens per second to expect of a plan.
    pub fn new(
        planner: &PlacementSolver,
        budget: u64,
        planned: Result<Plan, Arc<Error>>,
        now: Option<&Resident>,
        rate: impl Fn(&Plan) -> Option<f64>,
    ) -> Self {
        let on_cpu = planner.on_cpu();
        let (everything, cpu_tokens_per_second) = (planner.everything(), rate(&on_cpu));
        let (plan, reason) = match planned {
            Ok(plan) => (plan, None),
            Err(reason) => (on_cpu, Some(reason)),
        };
        let (arriving, leaving) = plan.placement.moves(planner.profile(), now);
        let tokens_per_second = rate(&plan);
        Forecast {
            budget,
            plan,
            everything,
            tokens_per_second,
            corrected: false,
            cpu_tokens_per_second,
            arriving,
            leaving,
            reason,
        }
    }

    /// Hot units, and all units: neurons, or experts in MoE layers.
    pub fn units(&self) -> (usize, usize) {
        self.plan.units()
    }

    /// Fraction of all firings that would be of hot units, from 0 to 1.
    pub fn hot_fraction(&self) -> f64 {
        self.plan.hot_fraction()
    }

    /// Layers that the device would compute whole.
    pub fn whole_layers(&self) -> impl Iterator<Item = usize> + '_ {
        let layers = self.plan.layers.iter().enumerate();
        layers.filter(|(_, layer)| layer.resident && layer.hot == layer.units).map(|(at, _)| at)
    }
}
