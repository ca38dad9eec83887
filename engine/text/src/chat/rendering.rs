//! Renders conversations without losing content. Content that a template drops, or attributes to
//! the assistant, is passed to it in another form.
//!
//! Probes show what a template writes: the conversation is rendered with a number in each text in
//! question. A search for the texts themselves would find short ones anywhere.

use minijinja::{Value, context, value::Serde};

use super::{
    ChatTemplate,
    conversation::{ArgumentsForm, LastPlace, TemplateConversation, TemplateMessage},
    mending, tool_text,
};
use thermocline_base::error::{Error, Result};

/// Largest number of turns of a conversation that are rewritten as plain text.
const MOST_TURNS_IN_WORDS: usize = 8;

/// A conversation in a form that a template writes completely, and its text.
struct Rendering {
    conversation: TemplateConversation,
    text: String,
}

impl ChatTemplate {
    /// Renders `conversation`. If a template drops or refuses a system message or attributes it to
    /// the assistant, the message moves before the next user message. If it refuses a turn with
    /// calls, that turn is [mended](mending). If it drops tool definitions, calls or results, or
    /// attributes results to the assistant, they are written as [text](tool_text).
    pub(super) fn render_conversation(&self, conversation: TemplateConversation) -> Result<String> {
        if !conversation.is_about_tools() {
            return Ok(self.render_with_systems(conversation)?.text);
        }
        let failure = match self.render_with_systems(conversation.clone()) {
            Ok(native) => match self.writes_tools(&native.conversation) {
                Written::All => return Ok(native.text),
                Written::NotAllCalls => {
                    if let Some(text) = self.native_text(conversation.with_calls_apart()) {
                        return Ok(text);
                    }
                    None
                }
                Written::NotAll => None,
            },
            Err(error) => match self.mended_text(&conversation) {
                Some(text) => return Ok(text),
                None => Some(error.to_string()),
            },
        };
        if let Some(failure) = failure {
            tracing::warn!(failure, "the chat template refuses these tool calls, so all are written as plain text");
        }
        Ok(self.render_with_systems(tool_text::as_text(&conversation))?.text)
    }

    /// The rendering of a conversation, if the template writes all its tools.
    fn native_text(&self, conversation: TemplateConversation) -> Option<String> {
        let native = self.render_with_systems(conversation).ok()?;
        (self.writes_tools(&native.conversation) == Written::All).then_some(native.text)
    }

    /// The rendering of a refused conversation, after the fewest changes that make the template
    /// accept it.
    fn mended_text(&self, conversation: &TemplateConversation) -> Option<String> {
        if let Some(text) = mending::mended(conversation).into_iter().find_map(|mended| self.native_text(mended)) {
            return Some(text);
        }
        let mut mended = conversation.clone();
        for _ in 0..MOST_TURNS_IN_WORDS {
            mended = mending::with_turn_as_words(&mended, self.refused_message(&mended)?)?;
            if let Some(text) = self.native_text(mended.clone()) {
                tracing::warn!("the chat template refuses a turn with tool calls, which is written as plain text");
                return Some(text);
            }
        }
        None
    }

    /// Index of the message at which the template starts to refuse the conversation.
    fn refused_message(&self, conversation: &TemplateConversation) -> Option<usize> {
        let is_refused = |count: usize| {
            let messages = conversation.messages[..count].to_vec();
            self.render_with_systems(TemplateConversation { messages, ..conversation.clone() }).is_err()
        };
        let (mut accepted, mut refused) = (0, conversation.messages.len());
        if !is_refused(refused) {
            return None;
        }
        while accepted + 1 < refused {
            let middle = accepted.midpoint(refused);
            if is_refused(middle) { refused = middle } else { accepted = middle }
        }
        refused.checked_sub(1)
    }

    /// Renders all system messages, if some form of them makes the template write them.
    fn render_with_systems(&self, conversation: TemplateConversation) -> Result<Rendering> {
        let plain = self.render_as_is(&conversation);
        let all: Vec<usize> = (0..conversation.messages.len()).filter(|&at| conversation.is(at, "system")).collect();
        let first = match &plain {
            Ok(_) => self.lost_systems(&conversation),
            // Many templates accept a system message only at the beginning.
            Err(_) => all.iter().copied().filter(|&at| at > 0).collect(),
        };
        let complete = plain.is_ok() && first.is_empty();
        let mut best = plain.map(|text| Rendering { conversation: conversation.clone(), text });
        if complete || all.is_empty() {
            return best;
        }
        for moved in [first, all].into_iter().filter(|moved| !moved.is_empty()) {
            for last in [LastPlace::Own, LastPlace::Previous] {
                let conversation = conversation.with_systems_moved(&moved, last);
                let Ok(text) = self.render_as_is(&conversation) else { continue };
                let complete = self.lost_systems(&conversation).is_empty();
                best = Ok(Rendering { conversation, text });
                if complete {
                    return best;
                }
            }
        }
        best
    }

    /// Indices of the system messages that the rendering of `conversation` drops or attributes to
    /// the assistant.
    fn lost_systems(&self, conversation: &TemplateConversation) -> Vec<usize> {
        let (probed, probes) = conversation.probed_systems();
        if probes.is_empty() {
            return Vec::new();
        }
        // A template that fails only on the probes inspects the contents, so nothing can be
        // concluded.
        let Ok(text) = self.render_as_is(&probed) else { return Vec::new() };
        let lost: Vec<usize> = probes.iter().filter(|(_, probe)| !text.contains(probe)).map(|&(at, _)| at).collect();
        let all = || probes.iter().map(|&(at, _)| at).collect();
        if lost.is_empty() && self.has_assistant_say(&probed, "system", &text) { all() } else { lost }
    }

    /// The parts of the conversation's tools that its rendering contains.
    fn writes_tools(&self, conversation: &TemplateConversation) -> Written {
        let (probed, probes) = conversation.probed_tools();
        let Ok(text) = self.render_as_is(&probed) else { return Written::NotAll };
        let has_all = |probes: &[String]| probes.iter().all(|probe| text.contains(probe));
        if !has_all(&probes.others) || self.has_assistant_say(&probed, "tool", &text) {
            Written::NotAll
        } else if has_all(&probes.calls) {
            Written::All
        } else {
            Written::NotAllCalls
        }
    }

    /// True if the template treats messages of `role` as the assistant's. The rendering `text` then
    /// stays the same with the role `assistant`, but not with `user`.
    fn has_assistant_say(&self, conversation: &TemplateConversation, role: &str, text: &str) -> bool {
        let is_same = |other: &str| self.render_as_is(&conversation.with_role(role, other)).is_ok_and(|it| it == text);
        conversation.has(role) && is_same("assistant") && !is_same("user")
    }

    fn render_as_is(&self, conversation: &TemplateConversation) -> Result<String> {
        let rendered = self.render_in_form(conversation, ArgumentsForm::Objects);
        if rendered.is_err() && conversation.messages.iter().any(|message| message.text_fields.is_some()) {
            return self.render_in_form(conversation, ArgumentsForm::Texts).or(rendered);
        }
        rendered
    }

    fn render_in_form(&self, conversation: &TemplateConversation, form: ArgumentsForm) -> Result<String> {
        let value = |message: &TemplateMessage| {
            let TemplateMessage { role, thinking, fields, text_fields, .. } = message;
            let content = message.parts();
            let base = match thinking {
                Some(thinking) => context! { role, content, reasoning_content => thinking, thinking },
                None => context! { role, content },
            };
            match text_fields.as_ref().filter(|_| form == ArgumentsForm::Texts).unwrap_or(fields) {
                fields if fields.is_empty() => base,
                fields => context! { ..base, ..Value::from(Serde(fields)) },
            }
        };
        let messages: Vec<Value> = conversation.messages.iter().map(value).collect();
        let TemplateConversation { tools, variables, add_generation_prompt, .. } = conversation;
        let tokens = self.special_texts();
        let context = context! {
            messages,
            add_generation_prompt,
            bos_token => tokens.bos.as_str(),
            eos_token => tokens.eos.as_str(),
            pad_token => tokens.padding.as_str(),
            tools => if tools.is_empty() { Value::from(()) } else { Value::from(Serde(tools)) },
            documents => Value::from(()),
            ..Value::from(Serde(variables)),
        };
        self.program().render(&context, conversation.size()).map_err(Error::Template)
    }
}

/// The parts of a conversation's tools that a rendering contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// Everything.
    All,
    /// Definitions and results, but not every call.
    NotAllCalls,
    /// Not even all definitions and results.
    NotAll,
}

#[cfg(test)]
mod tests;
