//! The figures of *Why this speed?*. A background thread computes them, repeatedly while they are
//! shown.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use egui::Context;
use thermocline_engine::{
    placement::Forecast,
    session::{Breakdown, Engine},
};

use thermocline_rich_text::background::Background;

/// Interval at which visible figures are computed again.
const AGAIN: Duration = Duration::from_secs(1);

/// The inputs of the figures.
#[derive(Debug, Clone, PartialEq)]
pub struct ReasonsQuestion {
    /// Larger budgets, in bytes.
    pub budgets: Vec<u64>,
    /// All other inputs, as text: model, mode, device.
    pub terms: String,
}

/// The figures.
#[derive(Debug)]
pub struct Reasons {
    /// The parts of a token's time.
    pub breakdown: Breakdown,
    /// Forecasts for the larger budgets.
    pub more: Vec<Forecast>,
}

impl Reasons {
    fn of(engine: &Engine, budgets: &[u64]) -> Option<Self> {
        let forecast = |budget: &u64| engine.forecast(*budget).ok();
        Some(Reasons { breakdown: engine.breakdown().ok()?, more: budgets.iter().filter_map(forecast).collect() })
    }
}

/// The latest figures and the ones being computed.
#[derive(Debug, Default)]
pub struct SpeedReasons {
    asking: Background<Option<Reasons>>,
    asked: Option<(ReasonsQuestion, Instant)>,
    known: Option<Arc<Reasons>>,
}

impl SpeedReasons {
    /// The figures for `question`, as far as they are known.
    pub fn about(&mut self, ctx: &Context, engine: &Engine, question: ReasonsQuestion) -> Option<Arc<Reasons>> {
        if let Some(reasons) = self.asking.take() {
            self.known = reasons.map(Arc::new);
        }
        let asked = self.asked.as_ref().filter(|(asked, _)| *asked == question);
        if asked.is_none() {
            self.known = None;
        }
        let is_old = asked.is_none_or(|(_, when)| when.elapsed() >= AGAIN);
        if is_old && !self.asking.is_busy() {
            let (engine, budgets) = (engine.clone(), question.budgets.clone());
            self.asked = Some((question, Instant::now()));
            // If no thread can start, there are no figures.
            let _ = self.asking.start(ctx, move || Reasons::of(&engine, &budgets));
        }
        self.known.clone()
    }
}
