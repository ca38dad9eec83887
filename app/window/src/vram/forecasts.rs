//! Forecasts for the open model's budgets. The slider, the model's card and the device's chip show
//! the same forecast.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use egui::Context;
use thermocline_engine::{
    placement::Forecast,
    session::{DeviceStatus, Engine},
};

use thermocline_host::library::ModelId;
use thermocline_rich_text::background::Background;

/// Age at which a forecast is requested again, because speeds may have been measured.
const AGAIN: Duration = Duration::from_secs(10);

/// Time for which the previous forecast is shown while the next one is computed.
const LATE: Duration = Duration::from_millis(150);

/// The inputs of a forecast.
#[derive(Debug, Clone, PartialEq)]
struct BudgetQuestion {
    model: ModelId,
    budget: u64,
    /// The device in use.
    device: Option<String>,
    /// All other inputs, as text.
    terms: String,
}

/// The latest forecast and the one being computed.
#[derive(Debug, Default)]
pub struct BudgetForecasts {
    asking: Background<Option<Forecast>>,
    /// The latest request and its time.
    asked: Option<(BudgetQuestion, Instant)>,
    /// The latest forecast and its inputs.
    forecast: Option<(BudgetQuestion, Arc<Forecast>)>,
    /// Minimum budget that holds all of a model, from its latest forecast on a device.
    enough: Option<(ModelId, u64)>,
}

impl BudgetForecasts {
    /// The forecast for `budget` bytes. `None` until a background thread has computed one. While
    /// the slider moves (`moves`), the forecast for its previous position may be returned.
    /// [`Forecast::budget`] is its budget.
    pub fn about(
        &mut self,
        ctx: &Context,
        model: &ModelId,
        engine: &Engine,
        budget: u64,
        moves: bool,
    ) -> Option<Arc<Forecast>> {
        self.foretell(ctx, model, engine, budget);
        if moves {
            self.reckon(engine, budget);
        }
        let known = self.known(budget)?;
        if known.budget != budget {
            ctx.request_repaint_after(LATE);
        }
        Some(known)
    }

    /// Minimum budget that holds all of the model, as a forecast has counted it. It stays valid
    /// while the CPU computes because the budget is too small for the device.
    pub fn enough(&self, model: &ModelId) -> Option<u64> {
        self.enough.as_ref().filter(|(counted, _)| counted == model).map(|(_, bytes)| *bytes)
    }

    fn keep(&mut self, question: BudgetQuestion, forecast: Forecast) {
        if question.device.is_some() {
            self.enough = Some((question.model.clone(), forecast.enough()));
        }
        self.forecast = Some((question, Arc::new(forecast)));
    }

    /// Requests a forecast if the latest one has other inputs or is old.
    fn foretell(&mut self, ctx: &Context, model: &ModelId, engine: &Engine, budget: u64) {
        if let Some(answer) = self.asking.take() {
            self.forecast = None;
            if let (Some((question, _)), Some(forecast)) = (self.asked.clone(), answer) {
                self.keep(question, forecast);
            }
        }
        let device = match engine.device() {
            DeviceStatus::Gpu(memory) => Some(memory.adapter),
            _ => None,
        };
        let memory = engine.telemetry();
        // Rounded to steps of 5 %, because the rate changes with every token.
        let seen = engine.observed_rate().map(|rate| (20.0 * rate.ln()).round());
        let mode = engine.sparsity().mode.name();
        let terms = format!("{} {mode} {} {} {seen:?}", model.key(), memory.kv_bytes, engine.context());
        let question = BudgetQuestion { model: model.clone(), budget, device, terms };
        if self.asking.is_busy()
            || self.asked.as_ref().is_some_and(|(asked, when)| *asked == question && when.elapsed() < AGAIN)
        {
            return;
        }
        self.asked = Some((question, Instant::now()));
        let engine = engine.clone();
        // If no thread can start, there is no forecast.
        let _ = self.asking.start(ctx, move || engine.forecast(budget).ok());
    }

    /// Computes the forecast for the slider's exact position at once, while it moves. After the
    /// first forecast, others with the same inputs are table lookups.
    fn reckon(&mut self, engine: &Engine, budget: u64) {
        let (Some((asked, _)), Some((answered, _))) = (&self.asked, &self.forecast) else { return };
        let same = answered.device == asked.device && answered.terms == asked.terms;
        if same
            && answered.budget != budget
            && let Ok(forecast) = engine.forecast(budget)
        {
            self.keep(BudgetQuestion { budget, ..asked.clone() }, forecast);
        }
    }

    /// The forecast for `budget`, or briefly the previous one.
    fn known(&self, budget: u64) -> Option<Arc<Forecast>> {
        let ((asked, when), (answered, forecast)) = self.asked.as_ref().zip(self.forecast.as_ref())?;
        let fits = answered.budget == budget || when.elapsed() < LATE;
        (fits && answered.device == asked.device).then(|| Arc::clone(forecast))
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::{model::LoadOptions, session::EngineOptions};

    use super::*;

    impl BudgetForecasts {
        /// Sets the time of the latest request back.
        pub fn grow_old(&mut self) {
            if let Some((_, when)) = &mut self.asked {
                *when = when.checked_sub(AGAIN).unwrap_or(*when);
            }
        }
    }

    #[test]
    fn forecast_is_valid_for_its_device_and_briefly_for_a_new_budget() {
        let model = ModelId::Builtin.open(&LoadOptions::default()).unwrap();
        let forecast = Engine::from_model(model, EngineOptions::default()).unwrap().forecast(7).unwrap();
        let question = |budget, device: &str| BudgetQuestion {
            model: ModelId::Builtin,
            budget,
            device: Some(device.to_owned()),
            terms: String::new(),
        };
        // Ages count from an hour in the future, so no request is late.
        let now = Instant::now() + Duration::from_secs(3600);
        let known = Some((question(7, "card"), Arc::new(forecast)));
        let mut forecasts = BudgetForecasts { forecast: known, ..BudgetForecasts::default() };
        assert!(forecasts.known(7).is_none(), "not asked for");
        forecasts.asked = Some((question(8, "card"), now));
        assert!(forecasts.known(7).is_some() && forecasts.known(8).is_some());
        forecasts.asked = Instant::now().checked_sub(2 * LATE).map(|when| (question(8, "card"), when));
        assert!(forecasts.known(7).is_some() && forecasts.known(8).is_none());
        forecasts.asked = Some((question(7, "other"), now));
        assert!(forecasts.known(7).is_none() && forecasts.known(8).is_none());
        // The slider keeps its end while the budget is too small for the device.
        assert_eq!(forecasts.enough(&ModelId::Builtin), None);
        let again = || Forecast::clone(&forecasts.forecast.as_ref().unwrap().1);
        let (on_device, on_cpu) = (again(), again());
        let enough = on_device.enough();
        forecasts.keep(question(7, "card"), on_device);
        forecasts.keep(BudgetQuestion { device: None, ..question(7, "") }, on_cpu);
        assert_eq!(forecasts.enough(&ModelId::Builtin), Some(enough));
        assert_eq!(forecasts.enough(&ModelId::Path("other".into())), None);
    }
}
