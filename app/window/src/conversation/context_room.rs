//! Counts the tokens of a chat with its draft, and the tokens that the model has forgotten.
//! Counting may take longer than a frame, so a background thread does it.

use std::hash::{DefaultHasher, Hash, Hasher};

use egui::Context;
use serde_json::Value;
use thermocline_engine::session::{Engine, Message, Role};

use thermocline_chats::{
    chat::{
        chat_turns,
        given::{MessageContent, chat_tokens, tokens},
    },
    store::{MessageId, MessageState, Speaker, StoredMessage},
};
use thermocline_host::answer_stats::AnswerStats;
use thermocline_rich_text::background::Background;

/// Drafts below this number of bytes are counted at once.
const SHORT: usize = 4096;

/// Tokens reserved for an answer: `ANSWER`, but at most 1 / `ANSWER_FRACTION` of the context.
const ANSWER: usize = 128;
const ANSWER_FRACTION: usize = 8;

/// Tokens of a chat and of its draft.
#[derive(Debug, Default)]
pub struct ContextRoom {
    /// Fingerprint and tokens of the chat without the draft. The tokens are `None` if the template
    /// refuses the chat.
    chat: Option<(u64, Option<ChatTokens>)>,
    counting_chat: Background<(u64, Option<ChatTokens>)>,
    /// Fingerprint and tokens of the draft.
    draft: Option<(u64, usize)>,
    counting_draft: Background<(u64, usize)>,
}

/// Tokens of a chat without its draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ChatTokens {
    all: usize,
    /// Tokens that are never forgotten: system prompt, tools and role marks.
    kept: usize,
}

/// Tokens of the next prompt, as far as they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptTokens {
    /// Tokens of the draft.
    pub draft: usize,
    /// Tokens of the chat with the draft.
    pub all: usize,
    /// Tokens of the chat that the model has already forgotten.
    pub forgotten: usize,
    /// Tokens of the draft with the system prompt: the prompt after the whole chat above is
    /// forgotten.
    pub alone: usize,
}

impl PromptTokens {
    /// Tokens that the context will hold.
    pub fn used(&self) -> usize {
        self.all.saturating_sub(self.forgotten).max(self.alone)
    }

    /// True if the prompt and an answer do not fit into a context of this many tokens.
    pub fn exceed(&self, context: usize) -> bool {
        self.used() + ANSWER.min(context / ANSWER_FRACTION) > context
    }

    /// True if the draft does not fit into a context of this many tokens, whatever is forgotten.
    pub fn cannot_fit(&self, context: usize) -> bool {
        self.alone > context
    }

    /// A context length (a power of two) with room for the whole chat and an answer.
    pub fn wanted(&self) -> usize {
        (self.all + self.all / 4 + ANSWER).next_power_of_two()
    }
}

/// The parts of the next prompt, except files.
#[derive(Debug, Clone, Copy)]
pub struct NextPrompt<'a> {
    /// The chat's messages so far.
    pub branch: &'a [StoredMessage],
    /// The chat's system prompt.
    pub system: &'a str,
    /// Number of tools offered to the model.
    pub tools: usize,
    /// The draft.
    pub draft: &'a str,
}

/// Hashes a value into a fingerprint.
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

    /// Counts the draft. `None` until it is counted.
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
                // If no thread can start, nothing is counted.
                let _ = self.counting_draft.start(ctx, move || (of_draft, tokens(&engine, &draft)));
            }
        }
        self.draft.filter(|(of, _)| *of == of_draft).map(|(_, tokens)| tokens)
    }

    /// Counts the next prompt. `None` until it is counted. `definitions` are the tools'
    /// definitions. `files` identifies what the model is given of files. `contents` are the
    /// messages with their files.
    pub fn count(
        &mut self,
        ctx: &Context,
        engine: &Engine,
        prompt: NextPrompt<'_>,
        definitions: impl FnOnce() -> Vec<Value>,
        files: impl Hash,
        contents: impl FnOnce() -> Vec<MessageContent>,
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
            let (engine, turns, tools) = (engine.clone(), chat_turns(system, &branch, contents()), definitions());
            // If no thread can start, nothing is counted.
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

/// Tokens of a chat that a model with this context length has forgotten, from the latest answer
/// with statistics. Zero if that answer had another context length.
fn forgotten_tokens(branch: &[StoredMessage], context: usize) -> usize {
    let figures = branch.iter().rev().filter_map(|message| AnswerStats::from_json(message.stats.as_deref()));
    let latest = figures.filter(|figures| figures.context_length > 0).take(1);
    latest.filter(|figures| figures.context_length == context).map(|figures| figures.forgotten_tokens).sum()
}

/// The place in a chat above which the model has forgotten everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForgottenLine {
    /// The first remembered message, or the answer whose own beginning is forgotten.
    pub before: MessageId,
    /// True if all messages are remembered, but only part of the answer.
    pub within: bool,
    /// Number of forgotten tokens.
    pub tokens: usize,
}

impl ForgottenLine {
    /// Finds the line in `branch`. The latest answer with statistics has forgotten `turns` turns
    /// and `tokens` tokens in all. `None` if nothing is forgotten.
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
        // The beginning of the answer itself is forgotten.
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
        // Forgotten tokens take no room now, but would in a larger context.
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
