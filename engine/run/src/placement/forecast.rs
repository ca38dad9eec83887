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
    /// Device bytes of the whole model with its caches. The plan may use fewer bytes even if there
    /// is room, because it leaves parts on the CPU that the CPU computes as fast.
    pub everything: u64,
    /// Expected tokens per second. `None` until this machine has been measured or an answer has
    /// shown its speed.
    pub tokens_per_second: Option<f64>,
    /// True if the rate is corrected by a measured rate: an answer of this engine has shown the
    /// time model's error.
    pub corrected: bool,
    /// Expected tokens per second without any VRAM.
    pub cpu_tokens_per_second: Option<f64>,
    /// Bytes to upload from the current placement.
    pub arriving: u64,
    /// Bytes to free from the current placement.
    pub leaving: u64,
    /// The reason why nothing would be resident. `None` if something would be, or if no GPU was
    /// requested.
    pub reason: Option<Arc<Error>>,
}

impl Forecast {
    /// The smallest budget that holds the whole model with its caches.
    pub fn enough(&self) -> u64 {
        budget_for(self.everything)
    }

    /// Makes the forecast of the plan `planned` for `budget` bytes. If `planned` is an error, the
    /// forecast is the CPU's plan with the error as the reason. `now` is resident now, and `rate`
    /// returns the tokens per second expected of a plan.
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

    /// Number of hot units, and of all units: neurons, or experts in MoE layers.
    pub fn units(&self) -> (usize, usize) {
        self.plan.units()
    }

    /// Fraction of all firings that hot units would account for, from 0 to 1.
    pub fn hot_fraction(&self) -> f64 {
        self.plan.hot_fraction()
    }

    /// Indices of the layers that the device would compute entirely.
    pub fn whole_layers(&self) -> impl Iterator<Item = usize> + '_ {
        let layers = self.plan.layers.iter().enumerate();
        layers.filter(|(_, layer)| layer.resident && layer.hot == layer.units).map(|(at, _)| at)
    }
}
