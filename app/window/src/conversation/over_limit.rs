//! The question asked about a message for which the context has no room, and the line where a chat begins that the model still has in mind.

use egui::{Margin, Ui};
use thermocline_engine::{runtime::CacheBytes, session::Engine};

use super::context_room::{ForgottenLine, PromptTokens};
use thermocline_host::units::bytes;
use thermocline_rich_text::{
    theme::Palette,
    widgets::{outlined, primary_button, small, wide},
};

/// An answer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverLimitAnswer {
    /// The message is changed.
    Shorten,
    /// The beginning of the chat is forgotten.
    Forget,
    /// The message begins a new chat.
    NewChat,
    /// The model is opened again with a context of so many tokens.
    Enlarge(usize),
}

/// A context that has room for the message, if the model knows one that long.
fn larger(tokens: PromptTokens, context: usize, trained: usize) -> Option<usize> {
    let larger = tokens.wanted().min(trained);
    // What is forgotten now would not be.
    let tokens = PromptTokens { forgotten: 0, ..tokens };
    (larger > context && !tokens.exceed(larger)).then_some(larger)
}

/// Remedies for a message that is too long.
#[derive(Debug, Clone, Copy)]
pub struct Remedies {
    /// True if answers are to stop when the context is full, so that nothing is forgotten.
    pub stops: bool,
    /// True if the message can begin a new chat: there is one above it, and no files go with it.
    pub moves: bool,
}

/// Asks. The button that matters most is the first one that helps.
pub fn ask(ui: &mut Ui, engine: &Engine, tokens: PromptTokens, remedies: Remedies) -> Option<OverLimitAnswer> {
    let (palette, context) = (Palette::of(ui), engine.context());
    let larger = larger(tokens, context, engine.config().context_length);
    let mut answer = None;
    wide(ui, outlined(palette.panel, palette.amber, Margin::symmetric(16, 12)), |ui| {
        let Remedies { stops, moves } = remedies;
        let (draft, used, alone) = (tokens.draft, tokens.used(), tokens.cannot_fit(context));
        ui.label(format!(
            "This message has {draft} tokens, the chat with it {used}. This model's context is {context} tokens, including its answer."
        ));
        ui.horizontal_wrapped(|ui| {
            // Only what cannot be sent in another way must be shortened.
            if (alone || (stops && !moves)) && primary_button(ui, "Shorten the message", true).clicked() {
                answer = Some(OverLimitAnswer::Shorten);
            }
            if !stops && !alone {
                let hint = "The model no longer sees the oldest questions and answers. It still has the system prompt, and the chat keeps all.";
                if primary_button(ui, "Send it and forget the beginning", true).on_hover_text(hint).clicked() {
                    answer = Some(OverLimitAnswer::Forget);
                }
            }
            if moves && !alone {
                let (text, hint) = ("New chat", "The message is sent in a new chat.");
                let button = if stops { primary_button(ui, text, true) } else { ui.button(text) };
                if button.accessible_name("Send it in a new chat").on_hover_text(hint).clicked() {
                    answer = Some(OverLimitAnswer::NewChat);
                }
            }
            if let Some(larger) = larger {
                let of = |tokens| CacheBytes::of(engine.config(), tokens, engine.kv_type()).total();
                let more = of(larger).saturating_sub(of(context));
                let text = format!("Use a context of {larger} tokens ({} more memory)", bytes(more));
                let hint = "The model is opened again, then the message is sent";
                if ui.button(text).on_hover_text(hint).clicked() {
                    answer = Some(OverLimitAnswer::Enlarge(larger));
                }
            }
        });
        if alone && !stops {
            let alone = tokens.alone;
            ui.label(small(
                format!("Even without the earlier messages it is too long ({alone} of {context} tokens)."),
                palette.muted,
            ));
        }
        if larger.is_none() {
            let trained = engine.config().context_length;
            ui.label(small(format!("This model cannot take a longer context than {trained} tokens."), palette.muted));
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
        true => format!(
            "The model no longer sees the beginning of this answer ({tokens} tokens). It sees the messages above it."
        ),
        false => format!(
            "The model no longer sees the messages above this line ({tokens} tokens). It still has the system prompt."
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
        let tokens = |all| PromptTokens { draft: 1, all, forgotten: 0, alone: 1 };
        assert_eq!(larger(tokens(700), 512, 4096), Some(1024));
        assert_eq!(larger(tokens(700), 512, 900), Some(900));
        assert_eq!(larger(tokens(700), 512, 512), None);
        assert_eq!(larger(tokens(9000), 512, 4096), None, "not even that is enough");
        assert_eq!(larger(tokens(3000), 4096, 4096), None);
    }
}
