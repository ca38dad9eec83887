//! Tokens of the context that a chat takes with the message that is being written, and what the model has forgotten of it.
//! Counting may take longer than a frame, so that it is done beside it.

use std::hash::{DefaultHasher, Hash, Hasher};

use egui::Context;
use serde_json::Value;
use thermocline_engine::session::{Engine, Message, Role};

use thermocline_chats::{
    chat::{
        chat_turns,
        given::{chat_tokens, tokens},
    },
    store::{MessageId, MessageState, Speaker, StoredMessage},
};
use thermocline_host::answer_stats::AnswerStats;
use thermocline_rich_text::background::Background;

/// Messages that are shorter than this are counted at once, in bytes.
const SHORT: usize = 4096;

/// Tokens that an answer needs at the least, and the fraction of the context that is enough.
const ANSWER: usize = 128;
const ANSWER_FRACTION: usize = 8;

/// Tokens of a chat and of the message being written.
#[derive(Debug, Default)]
pub struct ContextRoom {
    /// Tokens of the chat without the message, and what they were counted of; `None` for one that the template refuses.
    chat: Option<(u64, Option<ChatTokens>)>,
    counting_chat: Background<(u64, Option<ChatTokens>)>,
    /// Tokens of the message, likewise.
    draft: Option<(u64, usize)>,
    counting_draft: Background<(u64, usize)>,
}

/// Tokens of a chat without the message being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ChatTokens {
    all: usize,
    /// Those that are never forgotten: system prompt, tools and role marks.
    kept: usize,
}

/// Tokens that the next prompt will have, as far as they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptTokens {
    /// Those of the message being written.
    pub draft: usize,
    /// Those of the chat with it.
    pub all: usize,
    /// Those of the chat that the model has forgotten already.
    pub forgotten: usize,
    /// Those of the message with the system prompt, once all of the chat above is forgotten.
    pub alone: usize,
}

impl PromptTokens {
    /// Tokens that the model will have in its context.
    pub fn used(&self) -> usize {
        self.all.saturating_sub(self.forgotten).max(self.alone)
    }

    /// True if a context of so many tokens has no room for them and an answer.
    pub fn exceed(&self, context: usize) -> bool {
        self.used() + ANSWER.min(context / ANSWER_FRACTION) > context
    }

    /// True if the message is too long for a context of so many tokens, whatever is forgotten.
    pub fn cannot_fit(&self, context: usize) -> bool {
        self.alone > context
    }

    /// A context that has room for all of them and an answer: a power of two.
    pub fn wanted(&self) -> usize {
        (self.all + self.all / 4 + ANSWER).next_power_of_two()
    }
}

/// The parts of the next prompt, files excepted.
#[derive(Debug, Clone, Copy)]
pub struct NextPrompt<'a> {
    /// The chat's messages so far.
    pub branch: &'a [StoredMessage],
    /// Its system prompt.
    pub system: &'a str,
    /// Number of tools that are offered.
    pub tools: usize,
    /// The message being written.
    pub draft: &'a str,
}

/// A number that stands for what it is made of.
pub(super) fn number(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

impl ContextRoom {
    /// True while something is being counted.
    pub fn is_counting(&self) -> bool {
        self.counting_chat.is_busy() || self.counting_draft.is_busy()
    }

    /// Counts the message being written. `None` until that is done.
    pub fn count_draft(&mut self, ctx: &Context, engine: &Engine, draft: &str) -> Option<usize> {
        let of_draft = number((std::sync::Arc::as_ptr(engine.model()) as usize, draft));
        if let Some(counted) = self.counting_draft.take() {
            self.draft = Some(counted);
        }
        if self.draft.is_none_or(|(of, _)| of != of_draft) {
            if draft.len() < SHORT {
                self.draft = Some((of_draft, tokens(engine, draft)));
            } else if !self.counting_draft.is_busy() {
                let (engine, draft) = (engine.clone(), draft.to_owned());
                // Without a thread nothing is counted.
                let _ = self.counting_draft.start(ctx, move || (of_draft, tokens(&engine, &draft)));
            }
        }
        self.draft.filter(|(of, _)| *of == of_draft).map(|(_, tokens)| tokens)
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
    ) -> Option<PromptTokens> {
        let NextPrompt { branch, system, tools, draft } = prompt;
        let model = std::sync::Arc::as_ptr(engine.model()) as usize;
        let lengths: Vec<(MessageId, usize)> =
            branch.iter().map(|message| (message.id, message.content.len())).collect();
        let of_chat = number((model, &lengths, system, tools, files));
        if let Some(counted) = self.counting_chat.take() {
            self.chat = Some(counted);
        }
        if self.chat.is_none_or(|(of, _)| of != of_chat) && !self.counting_chat.is_busy() {
            let branch: Vec<&StoredMessage> = branch.iter().collect();
            let (engine, turns, tools) = (engine.clone(), chat_turns(system, &branch, texts()), definitions());
            // Without a thread nothing is counted.
            let _ = self.counting_chat.start(ctx, move || {
                let count = |turns: &[Message]| chat_tokens(&engine, turns, &tools);
                let system = turns.iter().take_while(|turn| turn.role == Role::System).count();
                let counted = count(&turns).zip(count(&turns[..system]));
                (of_chat, counted.map(|(all, kept)| ChatTokens { all, kept }))
            });
        }
        let draft = self.count_draft(ctx, engine, draft);
        let chat = self.chat.filter(|(of, _)| *of == of_chat)?.1?;
        let (draft, forgotten) = (draft?, forgotten_tokens(branch, engine.context()));
        Some(PromptTokens { draft, all: chat.all + draft, forgotten, alone: chat.kept + draft })
    }
}

/// Tokens of a chat that a model with so long a context has forgotten, as the latest answer with
/// figures says. What was forgotten in another context says nothing about this one.
fn forgotten_tokens(branch: &[StoredMessage], context: usize) -> usize {
    let figures = branch.iter().rev().filter_map(|message| AnswerStats::from_json(message.stats.as_deref()));
    let latest = figures.filter(|figures| figures.context_length > 0).take(1);
    latest.filter(|figures| figures.context_length == context).map(|figures| figures.forgotten_tokens).sum()
}

/// The place in a chat up to which the model has forgotten it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForgottenLine {
    /// The first message that is not forgotten, or the answer whose own beginning is.
    pub before: MessageId,
    /// True if all messages are remembered, and a part of the answer is not.
    pub within: bool,
    /// Tokens that are forgotten.
    pub tokens: usize,
}

impl ForgottenLine {
    /// The line in `branch`, of which the latest answer with figures has forgotten `turns` turns and `tokens` tokens in all;
    /// `None` where nothing is forgotten.
    pub fn of(branch: &[StoredMessage], turns: usize, tokens: usize) -> Option<Self> {
        if tokens == 0 {
            return None;
        }
        let of_user = |message: &&StoredMessage| message.speaker == Speaker::User;
        let before = match turns {
            0 => branch.iter().rfind(|message| message.stats.is_some() || message.state == MessageState::Streaming),
            _ => branch.iter().filter(of_user).nth(turns),
        };
        before.map(|message| ForgottenLine { before: message.id, within: turns == 0, tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_chats::store::{NewMessage, Store};

    #[test]
    fn line_is_before_the_first_turn_that_is_not_forgotten() {
        let (mut store, chat) = Store::with_chat();
        let mut parent = None;
        for text in ["one", "two", "three"] {
            let asked = store.add_message(chat, parent, &NewMessage::user(text)).unwrap();
            let answer = NewMessage::assistant("Well.");
            parent = Some(store.add_message(chat, Some(asked), &answer).unwrap());
        }
        let branch = store.branch(chat).unwrap();
        let line = |turns, tokens| ForgottenLine::of(&branch, turns, tokens);
        let before = |at: usize, tokens| Some(ForgottenLine { before: branch[at].id, within: false, tokens });
        assert_eq!((line(1, 20), line(2, 45)), (before(2, 20), before(4, 45)));
        assert_eq!((line(0, 0), line(3, 60)), (None, None), "nothing is forgotten, or nothing is left");
        // The beginning of the answer itself.
        let mut branch = branch;
        branch[5].stats = Some("{}".to_owned());
        let within = ForgottenLine { before: branch[5].id, within: true, tokens: 9 };
        assert_eq!(ForgottenLine::of(&branch, 0, 9), Some(within));
    }

    #[test]
    fn tokens_leave_room_for_an_answer() {
        let tokens = |all| PromptTokens { draft: 1, all, forgotten: 0, alone: 448 };
        assert!(!tokens(449).cannot_fit(448) && tokens(449).cannot_fit(447));
        assert!(!tokens(448).exceed(512) && tokens(449).exceed(512));
        assert!(!tokens(3968).exceed(4096) && tokens(3969).exceed(4096));
        assert_eq!((tokens(449).wanted(), tokens(700).wanted()), (1024, 1024));
        assert!(!tokens(700).exceed(tokens(700).wanted()));
        // What is forgotten takes no room, but would in a larger context.
        let long = PromptTokens { forgotten: 586, ..tokens(854) };
        assert_eq!((long.used(), long.wanted()), (448, tokens(854).wanted()));
        assert!(!long.exceed(512) && PromptTokens { alone: 12, ..long }.used() == 268);
    }

    #[test]
    fn latest_answer_says_what_is_forgotten_in_its_own_context() {
        let (mut store, chat) = Store::with_chat();
        let answer = NewMessage::assistant("Well.");
        let first = store.add_message(chat, None, &answer).unwrap();
        store.add_message(chat, Some(first), &answer).unwrap();
        let mut branch = store.branch(chat).unwrap();
        let figures = |forgotten_tokens, context_length| {
            let figures = AnswerStats { forgotten_tokens, context_length, ..AnswerStats::default() };
            Some(serde_json::to_string(&figures).unwrap())
        };
        assert_eq!(forgotten_tokens(&branch, 512), 0);
        branch[0].stats = figures(586, 512);
        assert_eq!((forgotten_tokens(&branch, 512), forgotten_tokens(&branch, 1024)), (586, 0));
        branch[1].stats = serde_json::to_string(&AnswerStats::failed("No model is open.".to_owned())).ok();
        assert_eq!(forgotten_tokens(&branch, 512), 586, "a failed answer has forgotten nothing");
        branch[1].stats = figures(0, 1024);
        assert_eq!(forgotten_tokens(&branch, 512), 0, "read with a larger context since");
    }
}
