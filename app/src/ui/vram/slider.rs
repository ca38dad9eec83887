//! The budget under one's thumb, and what it would give.

use std::time::{Duration, Instant};

use egui::{Context, RichText, Slider, Ui};
use thermocline_engine::{
    placement::Forecast,
    session::{DeviceStatus, Engine},
};

use super::bar;
use crate::{
    engine_handle,
    library::ModelId,
    settings::VramBudget,
    ui::{background::Background, shell::Shell, theme::Palette, widgets},
    units::{bytes, parse_bytes, rate},
};

/// After this time a forecast without measured speeds is asked for again.
const AGAIN: Duration = Duration::from_secs(10);

/// A forecast that takes longer is waited for.
const LATE: Duration = Duration::from_millis(150);

/// Inputs of a slider.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// The most that makes sense: all of the device, or all that the model can use.
    pub most: u64,
    /// Bytes available now, those this program holds included.
    pub can_have: u64,
    /// True if `most` is all of the device, not all that the model can use.
    pub whole: bool,
}

impl Range {
    /// Meaning of its greatest value, as a sentence about it ends.
    pub fn end(&self) -> &'static str {
        if self.whole { "is all of the card" } else { "is all this model can use" }
    }

    /// Bytes between two positions.
    fn step(most: u64) -> u64 {
        (most / 512).next_power_of_two().max(4096)
    }
}

/// The question a forecast answers.
#[derive(Debug, Clone, PartialEq)]
struct Question {
    budget: u64,
    /// The device in use.
    device: Option<String>,
    /// Everything else the answer depends on.
    terms: String,
}

/// The slider's state.
#[derive(Debug, Default)]
pub struct BudgetSlider {
    /// The choice while it is dragged.
    drag: Option<VramBudget>,
    asking: Background<Option<Forecast>>,
    /// The latest question, and when it was asked.
    asked: Option<(Question, Instant)>,
    /// The latest answer, and what it answers.
    forecast: Option<(Question, Forecast)>,
}

impl BudgetSlider {
    /// The budget to draw the line at: the one that is dragged, or in force, as far as the model can use it.
    pub fn line(&self, range: Range, now: u64) -> u64 {
        self.drag.map_or(now, |choice| choice.limit(range.can_have, 0)).min(range.most)
    }

    /// Both readings and the slider. `now` is the budget in force.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine, range: Range, now: u64) {
        let kept = shell.model_settings(model).budget.unwrap_or(VramBudget::AtMost(now.min(range.most)));
        let mut choice = self.drag.unwrap_or(kept);
        ui.horizontal(|ui| {
            let most = matches!(choice, VramBudget::AtMost(_));
            let limit = choice.limit(range.can_have, 0);
            if ui.selectable_label(most, "Use at most").clicked() && !most {
                choice = VramBudget::AtMost(limit.min(range.most));
                commit(shell, model, engine, choice, range);
            }
            if ui.selectable_label(!most, "Leave free").clicked() && most {
                choice = VramBudget::LeaveFree(range.can_have.saturating_sub(limit));
                commit(shell, model, engine, choice, range);
            }
        });
        let (name, start, end, value) = match choice {
            VramBudget::AtMost(value) => ("VRAM to use at most", 0, range.most, value),
            VramBudget::LeaveFree(value) => {
                // Leaving less than this free gives the model nothing more.
                let start = range.can_have.saturating_sub(range.most);
                ("VRAM to leave free", start.min(value), range.can_have, value)
            }
        };
        // On the grid from the first frame on: otherwise the slider puts itself there, which looks as if it had been moved.
        let step = Range::step(range.most);
        let start = start / step * step;
        let end = end.max(1).checked_next_multiple_of(step).unwrap_or(end);
        let mut position = ((value.clamp(start, end) + step / 2) / step * step) as f64;
        ui.horizontal(|ui| {
            ui.spacing_mut().slider_width = (ui.available_width() - 112.0).max(80.0);
            let slider = Slider::new(&mut position, start as f64..=end as f64)
                .step_by(step as f64)
                .custom_formatter(|value, _| bytes(value as u64))
                .custom_parser(|text| parse_bytes(text.trim()).ok().map(|bytes| bytes as f64))
                .update_while_editing(false);
            // Without words under the pointer: they would cover what the budget would give.
            let label = ui.add(slider).accessible_name(name);
            let moved = match choice {
                VramBudget::AtMost(_) => VramBudget::AtMost(position as u64),
                VramBudget::LeaveFree(_) => VramBudget::LeaveFree(position as u64),
            };
            if label.dragged() {
                self.drag = Some(moved);
            } else if label.changed() || self.drag.take().is_some() {
                self.drag = None;
                commit(shell, model, engine, moved, range);
            }
        });
        let (least, greatest) = (bytes(start), bytes(end));
        match choice {
            VramBudget::AtMost(_) => bar::ends(ui, &least, &format!("{greatest} {}", range.end())),
            VramBudget::LeaveFree(_) => {
                bar::ends(ui, &least, &format!("{greatest} is all there is: nothing for the model"))
            }
        }
        shell.dragged = self.drag;
        let budget = self.line(range, now);
        self.foretell(ui, engine, budget);
        self.reckon(engine, budget);
        // As the slider says it, which stands on a grid.
        let at = if matches!(choice, VramBudget::AtMost(_)) { position as u64 } else { budget };
        self.words(ui, budget, at);
    }

    /// Asks for a forecast where the one at hand is about something else, or old.
    fn foretell(&mut self, ctx: &Context, engine: &Engine, budget: u64) {
        if let Some(answer) = self.asking.take() {
            self.forecast = self.asked.clone().and_then(|(question, _)| Some((question, answer?)));
        }
        let device = match engine.device() {
            DeviceStatus::Gpu(memory) => Some(memory.adapter),
            _ => None,
        };
        let memory = engine.telemetry();
        // In steps of a twentieth: it changes with every token.
        let seen = engine.observed_rate().map(|rate| (20.0 * rate.ln()).round());
        let mode = engine.sparsity().mode.name();
        let terms = format!("{mode} {} {} {seen:?}", memory.kv_bytes, engine.context());
        let question = Question { budget, device, terms };
        if self.asking.is_busy()
            || self.asked.as_ref().is_some_and(|(asked, when)| *asked == question && when.elapsed() < AGAIN)
        {
            return;
        }
        self.asked = Some((question, Instant::now()));
        let engine = engine.clone();
        // Without a thread nothing is foretold.
        let _ = self.asking.start(ctx, move || engine.forecast(budget).ok());
    }

    /// While the handle moves: the forecast for exactly where it is. Once a forecast was made, others under the same terms are looked up.
    fn reckon(&mut self, engine: &Engine, budget: u64) {
        let Some((asked, _)) = self.asked.as_ref().filter(|_| self.drag.is_some()) else { return };
        let Some((answered, _)) = &self.forecast else { return };
        let same = answered.device == asked.device && answered.terms == asked.terms;
        if same
            && answered.budget != budget
            && let Ok(forecast) = engine.forecast(budget)
        {
            self.forecast = Some((Question { budget, ..asked.clone() }, forecast));
        }
    }

    /// The forecast for `budget`. While the handle moves, a forecast for where it was just now stands for the next one.
    fn known(&self, budget: u64) -> Option<&Forecast> {
        let ((asked, when), (answered, forecast)) = self.asked.as_ref().zip(self.forecast.as_ref())?;
        let fits = answered.budget == budget || when.elapsed() < LATE;
        (fits && answered.device == asked.device).then_some(forecast)
    }

    /// Says what `budget` would give, for a slider that stands `at` as good as that.
    fn words(&self, ui: &mut Ui, budget: u64, at: u64) {
        let Some(forecast) = self.known(budget) else {
            widgets::muted(ui, format!("At {}: reckoning …", bytes(at)));
            return;
        };
        let at = if forecast.budget == budget {
            at
        } else {
            ui.request_repaint_after(LATE);
            forecast.budget
        };
        let palette = Palette::of(ui);
        ui.label(RichText::new(sentence(forecast, at)).size(12.0).color(palette.muted));
        if let Some(reason) = &forecast.reason {
            widgets::muted(ui, widgets::sentence(engine_handle::error_message(reason)));
        } else if self.drag.is_some() {
            let moves = match (forecast.arriving, forecast.leaving) {
                (0, 0) => "Nothing moves.".to_owned(),
                (come, 0) => format!("{} move to VRAM.", bytes(come)),
                (0, go) => format!("{} leave VRAM.", bytes(go)),
                (come, go) => format!("{} move to VRAM, {} leave it.", bytes(come), bytes(go)),
            };
            widgets::muted(ui, moves);
        }
    }
}

fn sentence(forecast: &Forecast, at: u64) -> String {
    let (hot, all) = forecast.units();
    let percentage = 100.0 * hot as f64 / all.max(1) as f64;
    let at = format!("At {}: {}", bytes(at), speed(forecast.tokens_per_second));
    if hot == 0 {
        return format!("{at}, all of it by the CPU.");
    }
    let work = 100.0 * forecast.hot_fraction();
    let what = if forecast.plan.layers.iter().all(|layer| layer.experts) { "experts" } else { "neurons" };
    format!("{at}, {percentage:.0} % of the {what} hot, {work:.0} % of their work.")
}

/// A rate in words.
pub fn speed(known: Option<f64>) -> String {
    known.map_or("speed known after the first answer".to_owned(), |known| format!("about {}", rate(known)))
}

/// Keeps a choice and has the engine follow it.
fn commit(shell: &mut Shell, model: &ModelId, engine: &Engine, choice: VramBudget, range: Range) {
    shell.model_settings(model).budget = Some(choice);
    let set = engine.set_vram_budget(choice.limit(range.can_have, 0));
    shell.ok_or_show_error(set);
}

#[cfg(test)]
mod tests {
    use thermocline_engine::{model::LoadOptions, session::EngineOptions};

    use super::*;

    impl BudgetSlider {
        /// As if the latest question had been asked long ago.
        pub fn grow_old(&mut self) {
            if let Some((_, when)) = &mut self.asked {
                *when = when.checked_sub(AGAIN).unwrap_or(*when);
            }
        }
    }

    #[test]
    fn slider_forecast_is_valid_for_its_device_and_briefly_for_a_new_budget() {
        let model = ModelId::Builtin.open(&LoadOptions::default()).unwrap();
        let forecast = Engine::from_model(model, EngineOptions::default()).unwrap().forecast(7).unwrap();
        let question =
            |budget, device: &str| Question { budget, device: Some(device.to_owned()), terms: String::new() };
        // Nothing is late for an hour.
        let now = Instant::now() + Duration::from_secs(3600);
        let mut slider = BudgetSlider { forecast: Some((question(7, "card"), forecast)), ..BudgetSlider::default() };
        assert!(slider.known(7).is_none(), "not asked for");
        slider.asked = Some((question(8, "card"), now));
        assert!(slider.known(7).is_some() && slider.known(8).is_some());
        slider.asked = Instant::now().checked_sub(2 * LATE).map(|when| (question(8, "card"), when));
        assert!(slider.known(7).is_some() && slider.known(8).is_none());
        slider.asked = Some((question(7, "other"), now));
        assert!(slider.known(7).is_none() && slider.known(8).is_none());
    }

    #[test]
    fn speed_text_names_known_rates_only() {
        assert_eq!(speed(None), "speed known after the first answer");
        assert_eq!(speed(Some(12.3)), "about 12 tok/s");
        assert_eq!(speed(Some(0.04)), "about 25 s a token");
    }
}
