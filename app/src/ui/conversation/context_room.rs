//! How much of the context a chat takes with the message that is being written, and what the model has forgotten of it. Counting may
//! take longer than a frame, so that it is done beside it.

use std::hash::{DefaultHasher, Hash, Hasher};

use egui::Context;
use serde_json::Value;
use thermocline_engine::session::{ChatOptions, Engine, Message as Turn, Prompt, Role};

use crate::{
    chat::{branch_turns, given::tokens},
    store::{Message, MessageId},
    ui::background::Background,
};

/// Messages that are shorter than this are counted at once, in bytes.
const SHORT: usize = 4096;

/// Tokens that an answer needs at the least, and the fraction of the context that is enough.
const ANSWER: usize = 128;
const ANSWER_FRACTION: usize = 8;

/// Tokens of a chat and of the message being written.
#[derive(Debug, Default)]
pub struct ContextRoom {
    /// Tokens of the chat without the message, and what they were counted of; `None` for one that the template refuses.
    chat: Option<(u64, Option<usize>)>,
    counting_chat: Background<(u64, Option<usize>)>,
    /// Tokens of the message, likewise.
    draft: Option<(u64, usize)>,
    counting_draft: Background<(u64, usize)>,
}

/// Tokens that the next prompt will have, as far as they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    /// Those of the message being written.
    pub draft: usize,
    /// Those of the chat with it.
    pub all: usize,
}

impl Tokens {
    /// True if a context of so many tokens has no room for them and an answer.
    pub fn exceed(&self, context: usize) -> bool {
        self.all + ANSWER.min(context / ANSWER_FRACTION) > context
    }

    /// A context that has room for them and an answer: a power of two.
    pub fn wanted(&self) -> usize {
        (self.all + self.all / 4 + ANSWER).next_power_of_two()
    }
}

/// The parts of the next prompt, files excepted.
#[derive(Debug, Clone, Copy)]
pub struct NextPrompt<'a> {
    /// The chat's messages so far.
    pub branch: &'a [Message],
    /// Its system prompt.
    pub system: &'a str,
    /// Number of tools that are offered.
    pub tools: usize,
    /// The message being written.
    pub draft: &'a str,
}

fn number(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

impl ContextRoom {
    /// True while something is being counted.
    pub fn is_counting(&self) -> bool {
        self.counting_chat.is_busy() || self.counting_draft.is_busy()
    }

    /// Counts the next prompt. `None` until that is done. `definitions` are those of the tools, `files` is a number of what the model is
    /// given of files, and `texts` are the messages with them.
    pub fn count(
        &mut self,
        ctx: &Context,
        engine: &Engine,
        prompt: NextPrompt<'_>,
        definitions: impl FnOnce() -> Vec<Value>,
        files: impl Hash,
        texts: impl FnOnce() -> Vec<String>,
    ) -> Option<Tokens> {
        let NextPrompt { branch, system, tools, draft } = prompt;
        let model = std::sync::Arc::as_ptr(engine.model()) as usize;
        let lengths: Vec<(MessageId, usize)> =
            branch.iter().map(|message| (message.id, message.content.len())).collect();
        let of_chat = number((model, &lengths, system, tools, files));
        if let Some(counted) = self.counting_chat.take() {
            self.chat = Some(counted);
        }
        if self.chat.is_none_or(|(of, _)| of != of_chat) && !self.counting_chat.is_busy() {
            let (engine, turns, tools) = (engine.clone(), turns(branch, texts(), system), definitions());
            // Without a thread nothing is counted.
            let _ = self.counting_chat.start(ctx, move || {
                // One word stands for the message, which templates want.
                let prompt = Prompt::Chat([turns, vec![Turn::new(Role::User, "x")]].concat());
                let count = engine.prompt_tokens(prompt, &ChatOptions { tools, ..ChatOptions::default() });
                (of_chat, count.ok().map(|tokens| tokens.len().saturating_sub(1)))
            });
        }
        let of_draft = number((model, draft));
        if let Some(counted) = self.counting_draft.take() {
            self.draft = Some(counted);
        }
        if self.draft.is_none_or(|(of, _)| of != of_draft) {
            if draft.len() < SHORT {
                self.draft = Some((of_draft, tokens(engine, draft)));
            } else if !self.counting_draft.is_busy() {
                let (engine, draft) = (engine.clone(), draft.to_owned());
                let _ = self.counting_draft.start(ctx, move || (of_draft, tokens(&engine, &draft)));
            }
        }
        let chat = self.chat.filter(|(of, _)| *of == of_chat)?.1?;
        let draft = self.draft.filter(|(of, _)| *of == of_draft)?.1;
        Some(Tokens { draft, all: chat + draft })
    }
}

fn turns(branch: &[Message], texts: Vec<String>, system: &str) -> Vec<Turn> {
    let branch: Vec<&Message> = branch.iter().collect();
    let system = (!system.trim().is_empty()).then(|| Turn::new(Role::System, system));
    system.into_iter().chain(branch_turns(&branch, texts)).collect()
}

/// The place in a chat up to which the model has forgotten it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForgottenLine {
    /// The first message that is not forgotten as a whole.
    pub before: MessageId,
    /// True if its beginning is.
    pub partly: bool,
    /// Tokens that are forgotten.
    pub tokens: usize,
}

/// Finds the [`ForgottenLine`] of a chat.
#[derive(Debug, Default)]
pub struct Forgotten {
    line: Option<(u64, Option<ForgottenLine>)>,
    looking: Background<(u64, Option<ForgottenLine>)>,
}

impl Forgotten {
    /// The line in `branch`, of whose oldest tokens `forgotten` are gone; `None` while it is not known, or where there is none.
    pub fn line(
        &mut self,
        ctx: &Context,
        engine: &Engine,
        branch: &[Message],
        forgotten: usize,
    ) -> Option<ForgottenLine> {
        if forgotten == 0 {
            return None;
        }
        let of = number((branch.last().map(|message| message.id), branch.len(), forgotten));
        if let Some(found) = self.looking.take() {
            self.line = Some(found);
        }
        if self.line.is_none_or(|(known, _)| known != of) && !self.looking.is_busy() {
            let engine = engine.clone();
            let said: Vec<(MessageId, String)> =
                branch.iter().map(|message| (message.id, message.content.clone())).collect();
            let count = move |text: &str| tokens(&engine, text);
            // Without a thread there is no line.
            let _ = self.looking.start(ctx, move || (of, place(&said, forgotten, count)));
        }
        self.line.filter(|(known, _)| *known == of).and_then(|(_, line)| line)
    }
}

/// Tokens that a template puts around a message, about.
const AROUND: usize = 4;

fn place(said: &[(MessageId, String)], forgotten: usize, count: impl Fn(&str) -> usize) -> Option<ForgottenLine> {
    let mut before = 0;
    for (id, text) in said {
        let end = before + count(text) + AROUND;
        if end > forgotten {
            return Some(ForgottenLine { before: *id, partly: before < forgotten, tokens: forgotten });
        }
        before = end;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{NewMessage, Store};

    #[test]
    fn line_is_before_the_first_message_that_is_not_forgotten() {
        let mut store = Store::in_memory().unwrap();
        let chat = store.add_chat(None, "").unwrap();
        let mut parent = None;
        let said: Vec<(MessageId, String)> = ["a b c d e f", "g h", "i j k l m n"]
            .into_iter()
            .map(|text| {
                let id = store.add_message(chat, parent, &NewMessage::user(text)).unwrap();
                parent = Some(id);
                (id, text.to_owned())
            })
            .collect();
        let words = |text: &str| text.split(' ').count();
        let line = |forgotten| place(&said, forgotten, words);
        let at = |at: usize, partly, tokens| Some(ForgottenLine { before: said[at].0, partly, tokens });
        // Ten tokens, six, ten.
        assert_eq!((line(1), line(9)), (at(0, true, 1), at(0, true, 9)));
        assert_eq!((line(10), line(12), line(16)), (at(1, false, 10), at(1, true, 12), at(2, false, 16)));
        assert_eq!(line(26), None, "nothing is left");
    }

    #[test]
    fn tokens_leave_room_for_an_answer() {
        let tokens = |all| Tokens { draft: 1, all };
        assert!(!tokens(448).exceed(512) && tokens(449).exceed(512));
        assert!(!tokens(3968).exceed(4096) && tokens(3969).exceed(4096));
        assert_eq!((tokens(449).wanted(), tokens(700).wanted()), (1024, 1024));
        assert!(!tokens(700).exceed(tokens(700).wanted()));
    }
}
