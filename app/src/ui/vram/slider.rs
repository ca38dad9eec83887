//! The budget under one's thumb, and what it would give.

use egui::{Context, RichText, Slider, Ui};
use thermocline_engine::session::{Engine, Forecast};

use crate::{
    host,
    library::ModelId,
    settings::Budget,
    ui::{background::Background, shell::Shell, theme::Palette, widgets},
    units::{bytes, parse_bytes},
};

/// What a slider is about.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// The most that makes sense: all of the device, or all that the model can use.
    pub most: u64,
    /// What can be had now, ours included.
    pub can_have: u64,
}

impl Range {
    /// Bytes between two positions.
    fn step(most: u64) -> u64 {
        (most / 512).next_power_of_two().max(4096)
    }
}

/// The slider's state.
#[derive(Debug, Default)]
pub struct BudgetSlider {
    /// The choice while it is dragged.
    drag: Option<Budget>,
    asking: Background<Option<Forecast>>,
    forecast: Option<Forecast>,
    /// The budget the latest question was about, and what else the answer depends on.
    asked: Option<(u64, String)>,
}

impl BudgetSlider {
    /// The budget to draw the line at: the one that is dragged, or in force.
    pub fn line(&self, range: Range, now: u64) -> u64 {
        self.drag.map_or(now, |choice| choice.limit(range.can_have, 0))
    }

    /// Both readings and the slider. `now` is the budget in force.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell, model: &ModelId, engine: &Engine, range: Range, now: u64) {
        let kept = shell.model_settings(model).budget.unwrap_or(Budget::AtMost(now.min(range.most)));
        let mut choice = self.drag.unwrap_or(kept);
        ui.horizontal(|ui| {
            let most = matches!(choice, Budget::AtMost(_));
            let limit = choice.limit(range.can_have, 0);
            if ui.selectable_label(most, "Use at most").clicked() && !most {
                choice = Budget::AtMost(limit.min(range.most));
                commit(shell, model, engine, choice, range);
            }
            if ui.selectable_label(!most, "Leave free").clicked() && most {
                choice = Budget::LeaveFree(range.can_have.saturating_sub(limit));
                commit(shell, model, engine, choice, range);
            }
        });
        let (name, start, end, value) = match choice {
            Budget::AtMost(value) => ("VRAM to use at most", 0, range.most, value),
            Budget::LeaveFree(value) => {
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
            let label = ui.add(slider).on_hover_text(name);
            let moved = match choice {
                Budget::AtMost(_) => Budget::AtMost(position as u64),
                Budget::LeaveFree(_) => Budget::LeaveFree(position as u64),
            };
            if label.dragged() {
                self.drag = Some(moved);
            } else if label.changed() || self.drag.take().is_some() {
                self.drag = None;
                commit(shell, model, engine, moved, range);
            }
        });
        shell.dragged = self.drag;
        self.foretell(ui, engine, self.line(range, now));
        self.words(ui);
    }

    /// Asks for a forecast where the one at hand is about something else.
    pub fn foretell(&mut self, ctx: &Context, engine: &Engine, budget: u64) {
        if let Some(answer) = self.asking.take() {
            self.forecast = answer;
        }
        let memory = engine.telemetry();
        // In steps of a twentieth: it changes with every token.
        let seen = engine.observed_rate().map(|rate| (20.0 * rate.ln()).round());
        let mode = engine.sparsity().mode.name();
        let terms = format!("{mode} {} {} {seen:?}", memory.kv_bytes, engine.context());
        let question = Some((budget, terms));
        if self.asking.is_busy() || self.asked == question {
            return;
        }
        self.asked = question;
        let engine = engine.clone();
        // Without a thread nothing is foretold.
        let _ = self.asking.start(ctx, move || engine.forecast(budget).ok());
    }

    fn words(&self, ui: &mut Ui) {
        let Some(forecast) = &self.forecast else {
            widgets::muted(ui, "Reckoning …");
            return;
        };
        let palette = Palette::of(ui);
        ui.label(RichText::new(sentence(forecast)).size(12.0).color(palette.muted));
        if let Some(reason) = &forecast.reason {
            widgets::muted(ui, widgets::sentence(host::reason(reason)));
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

fn sentence(forecast: &Forecast) -> String {
    let (hot, all) = forecast.neurons();
    let share = 100.0 * hot as f64 / all.max(1) as f64;
    let at = format!("At {}: {}", bytes(forecast.budget), speed(forecast.tokens_per_second));
    if hot == 0 {
        return format!("{at}, all of it by the CPU.");
    }
    let work = 100.0 * forecast.hot_share();
    let what = if forecast.plan.layers.iter().all(|layer| layer.experts) { "experts" } else { "neurons" };
    format!("{at}, {share:.0} % of the {what} hot, {work:.0} % of their work.")
}

/// A rate in words.
pub fn speed(rate: Option<f64>) -> String {
    match rate {
        None => "speed known after the first answer".to_owned(),
        Some(rate) if rate < 10.0 => format!("about {rate:.1} tok/s"),
        Some(rate) => format!("about {rate:.0} tok/s"),
    }
}

/// Keeps a choice and has the engine follow it.
fn commit(shell: &mut Shell, model: &ModelId, engine: &Engine, choice: Budget, range: Range) {
    shell.model_settings(model).budget = Some(choice);
    let set = engine.set_vram_budget(choice.limit(range.can_have, 0));
    shell.hear(set);
}
