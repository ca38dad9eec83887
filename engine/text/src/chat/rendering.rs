//! Renderings in which nothing is lost: what a template leaves out or takes for the assistant's words is given to it in another form.
//!
//! Probes tell what a template writes: the same conversation is rendered with a number in each text that is asked about. A search for the
//! texts themselves would find short ones anywhere.

use minijinja::{Value, context, value::Serde};

use super::{
    ChatTemplate,
    conversation::{ArgumentsForm, LastPlace, TemplateConversation, TemplateMessage},
    mending, tool_text,
};
use thermocline_base::error::{Error, Result};

/// Most turns of a conversation that are told in words alone.
const MOST_TURNS_IN_WORDS: usize = 8;

/// A conversation in the form in which a template writes all of it, and its text.
struct Rendering {
    conversation: TemplateConversation,
    text: String,
}

impl ChatTemplate {
    /// The text of `conversation`. A template that leaves out a system message, refuses it or has the assistant say it gets it in front
    /// of the next message of the user. One that refuses a turn with calls gets that turn [mended](mending). One that leaves out
    /// definitions, calls or results of tools, or has the assistant say results, gets messages in which they are [text](tool_text).
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
            tracing::warn!(failure, "the chat template refuses these calls of tools; all of them are told in words");
        }
        Ok(self.render_with_systems(tool_text::as_text(&conversation))?.text)
    }

    /// The text of a conversation all of whose tools the template writes.
    fn native_text(&self, conversation: TemplateConversation) -> Option<String> {
        let native = self.render_with_systems(conversation).ok()?;
        (self.writes_tools(&native.conversation) == Written::All).then_some(native.text)
    }

    /// The text of a conversation that the template refuses, with the fewest changes that it does not refuse.
    fn mended_text(&self, conversation: &TemplateConversation) -> Option<String> {
        if let Some(text) = mending::mended(conversation).into_iter().find_map(|mended| self.native_text(mended)) {
            return Some(text);
        }
        let mut mended = conversation.clone();
        for _ in 0..MOST_TURNS_IN_WORDS {
            mended = mending::with_turn_as_words(&mended, self.refused_message(&mended)?)?;
            if let Some(text) = self.native_text(mended.clone()) {
                tracing::warn!("the chat template refuses a turn with calls of tools, which is told in words");
                return Some(text);
            }
        }
        None
    }

    /// Index of the first message with which the template refuses the conversation.
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

    /// The text with all system messages in it, if there is a way to have the template write them.
    fn render_with_systems(&self, conversation: TemplateConversation) -> Result<Rendering> {
        let plain = self.render_as_is(&conversation);
        let all: Vec<usize> = (0..conversation.messages.len()).filter(|&at| conversation.is(at, "system")).collect();
        let first = match &plain {
            Ok(_) => self.lost_systems(&conversation),
            // Many templates accept one at the beginning alone.
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

    /// Indices of the system messages that are not in the text of `conversation`, or in it as the assistant's.
    fn lost_systems(&self, conversation: &TemplateConversation) -> Vec<usize> {
        let (probed, probes) = conversation.probed_systems();
        if probes.is_empty() {
            return Vec::new();
        }
        // A template that fails on the probes alone looks at what is said: nothing is known.
        let Ok(text) = self.render_as_is(&probed) else { return Vec::new() };
        let lost: Vec<usize> = probes.iter().filter(|(_, probe)| !text.contains(probe)).map(|&(at, _)| at).collect();
        let all = || probes.iter().map(|&(at, _)| at).collect();
        if lost.is_empty() && self.has_assistant_say(&probed, "system", &text) { all() } else { lost }
    }

    /// The parts of its tools that the text of `conversation` has.
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

    /// True if messages of `role` are to the template what the assistant's are: their `text` is the same, and not the user's.
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
            let TemplateMessage { role, content, thinking, fields, text_fields } = message;
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

/// The parts of a conversation's tools that a text has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// Everything.
    All,
    /// Definitions and results, and not every call.
    NotAllCalls,
    /// Less.
    NotAll,
}

#[cfg(test)]
mod tests;
