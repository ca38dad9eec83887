//! The start view of an empty chat: the first thing a new user sees.

use egui::{Align, FontId, Label, RichText, TextFormat, Ui, text::LayoutJob};

use crate::{
    engine_handle::EngineState,
    library::ModelId,
    ui::{
        theme::{Palette, strong},
        widgets::muted,
    },
};

/// Requests that suit the built-in model.
pub const STORIES: [&str; 3] = [
    "Tell me a story about a cat and a boat.",
    "Tell me a story about a dragon who was cold.",
    "Tell me a story about a girl, a bird and the rain.",
];

/// Requests that suit any other.
const QUESTIONS: [&str; 3] = [
    "Why is the sky blue? Explain it to a child.",
    "Give me five ideas for a rainy Sunday.",
    "Write a short poem about warm and cold water.",
];

/// An action in the start view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// To say this.
    Say(&'static str),
    /// To see what models there are.
    Models,
}

/// Shows it, for the model there is.
pub fn show(ui: &mut Ui, state: &EngineState) -> Option<Choice> {
    let (model, ready) = match state {
        EngineState::Ready { model, .. } => (model, true),
        EngineState::Opening(opening) => (&opening.model, false),
        EngineState::Failed { model, reason } => {
            let why = format!("{model} could not be opened: {reason}");
            return without(ui, RichText::new(why).color(Palette::of(ui).bad));
        }
        EngineState::Empty => return without(ui, RichText::new("No model is open.")),
    };
    let title = if ready { format!("{model} is ready") } else { format!("{model} is being opened …") };
    let suggestions = if *model == ModelId::Builtin { &STORIES } else { &QUESTIONS };
    let mut choice = None;
    ui.vertical_centered(|ui| {
        ui.add_space((ui.available_height() * 0.5 - 160.0).max(24.0));
        ui.label(RichText::new(title).font(strong(24.0)));
        ui.add_space(4.0);
        muted(ui, if ready { "Begin with one of these, or write your own." } else { "You can write already." });
        ui.add_space(16.0);
        for suggestion in suggestions {
            if ui.add(egui::Button::new(*suggestion).min_size(egui::vec2(360.0, 40.0))).clicked() {
                choice = Some(Choice::Say(suggestion));
            }
        }
        ui.add_space(24.0);
        ui.set_max_width(520.0);
        ui.add(Label::new(hot_and_cold(Palette::of(ui))).wrap());
    });
    choice
}

/// The reason why no model can answer.
fn without(ui: &mut Ui, why: RichText) -> Option<Choice> {
    let asked = ui.vertical_centered(|ui| {
        ui.add_space(24.0);
        ui.label(why);
        ui.button("Choose a model").clicked()
    });
    asked.inner.then_some(Choice::Models)
}

/// Explanation of hot and cold.
fn hot_and_cold(palette: Palette) -> LayoutJob {
    let mut words = LayoutJob { halign: Align::Center, ..LayoutJob::default() };
    for (text, color) in [
        ("Hot", palette.hot),
        (" neurons fire for almost every token and live in the GPU's memory; ", palette.muted),
        ("cold", palette.cold),
        (" ones fire now and then and stay in RAM for the CPU.", palette.muted),
    ] {
        words.append(text, 0.0, TextFormat { font_id: FontId::proportional(12.0), color, ..TextFormat::default() });
    }
    words
}
