//! Splits a token's time into parts: as the current plan expects them, and as measured for the
//! latest tokens.

use super::{DeviceStatus, Engine, step_times::TimedToken};
use thermocline_base::error::Result;
use thermocline_run::placement::{Placement, Plan, TokenTime};

/// The time of a token in the current mode and placement, by part.
#[derive(Debug, Clone, PartialEq)]
pub struct Breakdown {
    /// Times from the time model and this machine's speeds; `None` if the device's speeds are
    /// unknown.
    pub planned: Option<TokenTime>,
    /// True if those speeds are published or typical figures, because nothing was measured on this
    /// machine.
    pub assumed: bool,
    /// Measured times of the latest tokens; `None` until an answer was long enough.
    pub measured: Option<MeasuredTime>,
    /// True if a device computes a part of the model.
    pub on_device: bool,
}

/// Measured times of tokens, by part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredTime {
    /// Mean over the tokens. The device's clock is read once per layer, so its time is split
    /// between attention and FFN in the plan's ratio. The device's head gets its planned time, at
    /// most the time that the engine waited for results.
    pub time: TokenTime,
    /// Tokens that were timed.
    pub tokens: usize,
    /// Seconds per timed token. Timing every step takes time itself, so `time` is scaled to the
    /// rate of untimed tokens.
    pub timed_seconds: f64,
    /// True if the device reported its times, or no device computes. Otherwise the device's time is
    /// part of `waiting`.
    pub has_device_times: bool,
}

impl Engine {
    /// Returns the planned and the measured time of a token. The first call after a change of
    /// context, mode or device solves for new plans, which takes a while.
    ///
    /// # Errors
    /// As [`Engine::forecast`].
    pub fn breakdown(&self) -> Result<Breakdown> {
        let state = self.state();
        let planner = state.planner.planner(&state.model)?;
        let resident = self.resident().filter(|_| matches!(self.device(), DeviceStatus::Gpu(_)));
        let placement = match resident {
            Some(resident) => Placement::from_resident(&resident, planner.profile()),
            None => Placement::cpu(planner.profile().layers.len()),
        };
        let plan = planner.price(placement);
        let planned = Some(TokenTime::of_plan(&plan)).filter(|time| time.total().is_finite());
        let tokens = state.figures.timed_tokens.under(&state.decode_conditions(self.sparsity().mode));
        Ok(Breakdown {
            planned,
            assumed: planner.inputs().machine.assumed,
            measured: MeasuredTime::of(&tokens, &plan).map(|time| time.scaled_to(self.observed_rate())),
            on_device: plan.placement.any_resident(),
        })
    }
}

impl MeasuredTime {
    /// The mean time of `tokens`, computed under the placement of `plan`.
    fn of(tokens: &[TimedToken], plan: &Plan) -> Option<Self> {
        let count = tokens.len() as f64;
        let sum: TokenTime = tokens.iter().map(|token| measured(token, plan)).sum();
        let time = TokenTime {
            attention: sum.attention / count,
            hot: sum.hot / count,
            cold: sum.cold / count,
            head: sum.head / count,
            waiting: sum.waiting / count,
        };
        let told = |token: &TimedToken| token.times.layers.iter().any(|layer| !layer.device.is_zero());
        let has_device_times = !plan.placement.any_resident() || tokens.iter().any(told);
        let timed_seconds = time.total();
        (!tokens.is_empty()).then_some(MeasuredTime { time, tokens: tokens.len(), timed_seconds, has_device_times })
    }

    /// Scales the parts to the time of a token at `rate` tokens per second, if that time is
    /// shorter.
    fn scaled_to(self, rate: Option<f64>) -> Self {
        let seconds = rate.filter(|rate| *rate > 0.0).map(|rate| 1.0 / rate).filter(|it| *it < self.timed_seconds);
        let Some(factor) = seconds.map(|seconds| seconds / self.timed_seconds) else { return self };
        let TokenTime { attention, hot, cold, head, waiting } = self.time;
        let [attention, hot, cold, head, waiting] = [attention, hot, cold, head, waiting].map(|it| it * factor);
        MeasuredTime { time: TokenTime { attention, hot, cold, head, waiting }, ..self }
    }
}

/// The time of one token by part. If both processors compute a layer, the slower one gets the FFN's
/// time, as in plans.
fn measured(token: &TimedToken, plan: &Plan) -> TokenTime {
    let mut time = TokenTime::default();
    for (layer, times) in plan.layers.iter().zip(&token.times.layers) {
        if !layer.resident {
            time.attention += times.mixer.as_secs_f64();
            time.cold += times.ffn.as_secs_f64();
            continue;
        }
        let (device, cold) = (times.device.as_secs_f64(), times.cold.as_secs_f64());
        let fraction = layer.time.attention / layer.time.gpu;
        let attention = if fraction.is_finite() { device * fraction.clamp(0.0, 1.0) } else { 0.0 };
        let hot = device - attention;
        time.attention += attention;
        *time.ffn_side(cold >= hot) += cold.max(hot);
    }
    let head = token.times.head.as_secs_f64();
    time.head = if plan.placement.head { head.min(plan.head_seconds) } else { head };
    time.within(token.total.as_secs_f64())
}

#[cfg(test)]
mod tests;
