//! The question about a message that does not fit into the context, and the line below which the
//! model still remembers the chat.

use egui::{Margin, Ui};
use thermocline_engine::{runtime::CacheBytes, session::Engine};

use super::context_room::{ForgottenLine, PromptTokens};
use thermocline_host::units::bytes;
use thermocline_rich_text::{
    theme::Palette,
    widgets::{outlined, primary_button, small, wide},
};

/// The user's answer to the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverLimitAnswer {
    /// Edit the message.
    Shorten,
    /// Send it. The model forgets the beginning of the chat.
    Forget,
    /// Send it as the first message of a new chat.
    NewChat,
    /// Reopen the model with a context of this many tokens.
    Enlarge(usize),
}

/// A context length with room for the message, if the model was trained for one that long.
fn larger(tokens: PromptTokens, context: usize, trained: usize) -> Option<usize> {
    let larger = tokens.wanted().min(trained);
    // A larger context would hold the tokens that are forgotten now.
    let tokens = PromptTokens { forgotten: 0, ..tokens };
    (larger > context && !tokens.exceed(larger)).then_some(larger)
}

/// The remedies available for a message that is too long.
#[derive(Debug, Clone, Copy)]
pub struct Remedies {
    /// True if answers stop when the context is full, so that nothing is forgotten.
    pub stops: bool,
    /// True if the message can begin a new chat: the chat has messages, and the draft has no files.
    pub moves: bool,
}

/// Asks the question. The primary button is the first remedy that helps.
pub fn ask(ui: &mut Ui, engine: &Engine, tokens: PromptTokens, remedies: Remedies) -> Option<OverLimitAnswer> {
    let (palette, context) = (Palette::of(ui), engine.context());
    let larger = larger(tokens, context, engine.config().context_length);
    let mut answer = None;
    wide(ui, outlined(palette.panel, palette.amber, Margin::symmetric(16, 12)), |ui| {
        let Remedies { stops, moves } = remedies;
        let (draft, used, alone) = (tokens.draft, tokens.used(), tokens.cannot_fit(context));
        ui.label(format!(
            "This message has {draft} tokens, and the whole chat has {used}. The model's context is {context} tokens, \
            including its answer."
        ));
        ui.horizontal_wrapped(|ui| {
            // Offered only if the message cannot be sent in another way.
            if (alone || (stops && !moves)) && primary_button(ui, "Shorten the message", true).clicked() {
                answer = Some(OverLimitAnswer::Shorten);
            }
            if !stops && !alone {
                let hint = "The model will no longer see the oldest questions and answers, except the system prompt. The \
                    chat keeps them.";
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
                let hint = "Reopens the model, then sends the message";
                if ui.button(text).on_hover_text(hint).clicked() {
                    answer = Some(OverLimitAnswer::Enlarge(larger));
                }
            }
        });
        if alone && !stops {
            let alone = tokens.alone;
            ui.label(small(
                format!("The message is too long even without the earlier messages ({alone} of {context} tokens)."),
                palette.muted,
            ));
        }
        if larger.is_none() {
            let trained = engine.config().context_length;
            ui.label(small(format!("This model supports at most {trained} tokens of context."), palette.muted));
        }
    });
    ui.add_space(8.0);
    answer
}

/// Shows the line above which the model has forgotten the chat.
pub fn line(ui: &mut Ui, line: ForgottenLine) {
    let palette = Palette::of(ui);
    let tokens = line.tokens;
    let text = match line.within {
        true => format!(
            "The model no longer sees the beginning of this answer ({tokens} tokens). It sees the messages above it."
        ),
        false => format!(
            "The model no longer sees the messages above this line ({tokens} tokens), except the system prompt."
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
