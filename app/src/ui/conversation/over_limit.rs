//! The question asked about a message for which the context has no room, and the line where a chat begins that the model still has in mind.

use egui::{Frame, Margin, Stroke, Ui};
use thermocline_engine::{runtime::CacheBytes, session::Engine};

use super::context_room::{ForgottenLine, Tokens};
use crate::{
    ui::{
        theme::{Palette, RADIUS},
        widgets::{primary_button, small},
    },
    units::bytes,
};

/// An answer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverLimitAnswer {
    /// The message is changed.
    Shorten,
    /// The beginning of the chat is forgotten.
    Forget,
    /// The model is opened again with a context of so many tokens.
    Enlarge(usize),
}

/// A context that has room for the message, if the model knows one that long.
fn larger(tokens: Tokens, context: usize, trained: usize) -> Option<usize> {
    let larger = tokens.wanted().min(trained);
    (larger > context && !tokens.exceed(larger)).then_some(larger)
}

/// Asks; `stops`: answers are to stop when the context is full, so that nothing is forgotten.
pub fn ask(ui: &mut Ui, engine: &Engine, tokens: Tokens, stops: bool) -> Option<OverLimitAnswer> {
    let (palette, context) = (Palette::of(ui), engine.context());
    let larger = larger(tokens, context, engine.config().context_length);
    let mut answer = None;
    let frame = Frame::new()
        .fill(palette.panel)
        .stroke(Stroke::new(1.0, palette.amber))
        .corner_radius(RADIUS)
        .inner_margin(Margin::symmetric(16, 12));
    frame.show(ui, |ui| {
        ui.set_width(ui.available_width());
        let Tokens { draft, all, .. } = tokens;
        let alone = tokens.cannot_fit(context);
        ui.label(format!(
            "This message has {draft} tokens, the chat with it {all}. The model keeps {context} in mind, the answer among them."
        ));
        ui.horizontal_wrapped(|ui| {
            if primary_button(ui, "Shorten the message", true).clicked() {
                answer = Some(OverLimitAnswer::Shorten);
            }
            if let Some(larger) = larger {
                let of = |tokens| CacheBytes::of(engine.config(), tokens, engine.kv_type()).total();
                let more = of(larger).saturating_sub(of(context));
                let text = format!("Keep {larger} tokens in mind ({} more memory)", bytes(more));
                let hint = "The model is opened again, then the message is sent";
                if ui.button(text).on_hover_text(hint).clicked() {
                    answer = Some(OverLimitAnswer::Enlarge(larger));
                }
            }
            if !stops && !alone {
                let hint = "The oldest questions and their answers are left out, the system prompt is not; a line shows where memory begins";
                if ui.button("Send it and forget the beginning").on_hover_text(hint).clicked() {
                    answer = Some(OverLimitAnswer::Forget);
                }
            }
        });
        if alone && !stops {
            let alone = tokens.alone;
            ui.label(small(format!("With everything above forgotten it would be {alone} tokens: it is too long by itself."), palette.muted));
        }
        if larger.is_none() {
            let trained = engine.config().context_length;
            ui.label(small(format!("The model was trained with {trained} tokens: it has no context that is long enough."), palette.muted));
        }
    });
    ui.add_space(8.0);
    answer
}

/// The line above which a chat is forgotten.
pub fn line(ui: &mut Ui, line: ForgottenLine) {
    let palette = Palette::of(ui);
    let tokens = line.tokens;
    let text = match line.within {
        true => {
            format!("Forgotten: {tokens} tokens of this answer, its beginning. The model has what is above in mind.")
        }
        false => format!(
            "Forgotten: {tokens} tokens, all of what is above but the system prompt. The model has what follows in mind."
        ),
    };
    ui.add_space(4.0);
    ui.separator();
    ui.label(small(text, palette.amber));
    ui.add_space(8.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_context_is_offered_as_far_as_the_model_was_trained() {
        let tokens = |all| Tokens { draft: 1, all, alone: 1 };
        assert_eq!(larger(tokens(700), 512, 4096), Some(1024));
        assert_eq!(larger(tokens(700), 512, 900), Some(900));
        assert_eq!(larger(tokens(700), 512, 512), None);
        assert_eq!(larger(tokens(9000), 512, 4096), None, "not even that is enough");
        assert_eq!(larger(tokens(3000), 4096, 4096), None);
    }
}
