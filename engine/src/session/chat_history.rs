//! Fits a chat that may be longer than the context: whole turns are forgotten, oldest first, but
//! never the system prompt.

use super::{ChatOptions, Message, Prompt, Role, encoded_prompt::encode, engine_state::EngineState};
use thermocline_base::error::{Error, Result};
use thermocline_text::EncodeOptions;

/// Reciprocal of the fraction of the context that forgetting turns frees for an answer.
const ANSWER_FRACTION: usize = 8;

/// Reciprocal of the fraction of the context that one step of forgetting frees. Between two steps a
/// growing chat keeps its beginning, so that only its end is computed.
const STEP_FRACTION: usize = 4;

/// The messages of a prompt, whose oldest turns may be forgotten. A turn is a user message and all
/// messages up to the next user message. The chat template renders the remaining messages, so that
/// every role mark is present.
#[derive(Debug)]
pub(super) struct ChatHistory<'a> {
    state: &'a EngineState,
    options: ChatOptions,
    messages: Vec<Message>,
    /// True if the last message is an answer to continue.
    continues: bool,
    /// Number of system messages at the beginning.
    system: usize,
    /// Index of the first message of each turn.
    turns: Vec<usize>,
    /// Number of forgotten turns.
    pub forgotten: usize,
    /// Number of prompt tokens if nothing is forgotten.
    whole: usize,
    /// Token ids of the prompt without the forgotten turns.
    prompt: Vec<u32>,
}

impl<'a> ChatHistory<'a> {
    /// The history of a prompt, with nothing forgotten yet; `None` if the prompt is not a chat.
    pub fn new(state: &'a EngineState, prompt: &Prompt, options: &ChatOptions) -> Option<Self> {
        let (messages, continues) = match prompt {
            Prompt::Chat(messages) => (messages.clone(), false),
            Prompt::Continue(messages) => (messages.clone(), true),
            Prompt::Text(_) | Prompt::Tokens(_) | Prompt::Pair { .. } => return None,
        };
        let system = messages.iter().take_while(|message| message.role == Role::System).count();
        let starts = messages.iter().enumerate().filter(|(_, message)| message.role == Role::User);
        let turns = starts.map(|(at, _)| at).collect();
        let (options, prompt) = (options.clone(), Vec::new());
        Some(ChatHistory { state, options, messages, continues, system, turns, forgotten: 0, whole: 0, prompt })
    }

    /// Returns the token ids `prompt` of all messages, without the oldest turns if a context of
    /// `capacity` tokens is too small.
    ///
    /// # Errors
    /// [`Error::ContextFull`] if the last turn does not fit.
    pub fn fit(&mut self, prompt: Vec<u32>, capacity: usize) -> Result<Vec<u32>> {
        (self.whole, self.prompt) = (prompt.len(), prompt);
        if self.prompt.len() > capacity {
            self.forget_turns(0, capacity)?;
        }
        if self.prompt.len() > capacity {
            let question = self.question()?;
            if !self.continues || !has_answer_room(question, capacity) {
                return Err(Error::ContextFull { wanted: self.prompt.len(), at_least: false, available: capacity });
            }
            // The answer to continue is too long, so only its end is kept.
            let last = (capacity - question).div_ceil(2);
            self.prompt.drain(question..self.prompt.len() - last);
        }
        Ok(self.prompt.clone())
    }

    /// Returns the token ids that a full context must hold instead of `held`, a prompt and an
    /// answer. They lack the oldest turns. If only the last turn remains, they lack the older half
    /// of the answer. `None` if the last turn leaves no room for an answer.
    pub fn make_room(&mut self, held: &[u32], capacity: usize) -> Result<Option<Vec<u32>>> {
        let answer = held.get(self.prompt.len()..).unwrap_or_default();
        if self.forget_turns(answer.len(), capacity)? {
            return Ok(Some([&self.prompt, answer].concat()));
        }
        let question = self.question()?;
        if !has_answer_room(question, capacity) || question >= held.len() {
            return Ok(None);
        }
        let older = (held.len() - question).div_ceil(2);
        Ok(Some([&held[..question], &held[question + older..]].concat()))
    }

    /// Forgets at least one more turn, and as many as a prompt with `answer` more tokens needs, but
    /// never the last turn. False if no turn can be forgotten.
    fn forget_turns(&mut self, answer: usize, capacity: usize) -> Result<bool> {
        let step = (capacity / STEP_FRACTION).max(1);
        let excess = (self.whole + answer + capacity / ANSWER_FRACTION).saturating_sub(capacity);
        let wanted = excess.div_ceil(step) * step;
        let (mut least, mut most) = (self.forgotten + 1, self.turns.len().saturating_sub(1));
        if least > most {
            return Ok(false);
        }
        while least < most {
            let middle = least.midpoint(most);
            if self.whole.saturating_sub(self.prompt_without(middle)?.len()) >= wanted {
                most = middle;
            } else {
                least = middle + 1;
            }
        }
        let prompt = self.prompt_without(most)?;
        let shorter = prompt.len() < self.prompt.len();
        if shorter {
            (self.forgotten, self.prompt) = (most, prompt);
        }
        Ok(shorter)
    }

    /// The messages without the first `turns` turns.
    fn messages_without(&self, turns: usize) -> Vec<Message> {
        let from = if turns == 0 { self.system } else { self.turns.get(turns).copied().unwrap_or(self.system) };
        [&self.messages[..self.system], &self.messages[from..]].concat()
    }

    /// Token ids of the prompt without the first `turns` turns.
    fn prompt_without(&self, turns: usize) -> Result<Vec<u32>> {
        let messages = self.messages_without(turns);
        let prompt = if self.continues { Prompt::Continue(messages) } else { Prompt::Chat(messages) };
        Ok(encode(self.state, prompt, &self.options, EncodeOptions::CHAT, None)?.tokens)
    }

    /// Number of prompt tokens before the answer begins.
    fn question(&self) -> Result<usize> {
        if !self.continues {
            return Ok(self.prompt.len());
        }
        let mut messages = self.messages_without(self.forgotten);
        messages.pop();
        let question = encode(self.state, Prompt::Chat(messages), &self.options, EncodeOptions::CHAT, None)?.tokens;
        Ok(question.iter().zip(&self.prompt).take_while(|(question, prompt)| question == prompt).count())
    }
}

/// True if a context of `capacity` tokens has room for an answer after the first `question` tokens.
fn has_answer_room(question: usize, capacity: usize) -> bool {
    capacity.saturating_sub(question) >= (capacity / ANSWER_FRACTION).max(2)
}

#[cfg(test)]
mod tests;
