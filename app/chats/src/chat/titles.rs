//! Titles of chats, written by the model. After the first answer of a chat, when nothing else is
//! being computed, the open model writes a few words. A short session generates them and gives way
//! to answers. The neuron map does not record it. A title set by the user stays.

use std::{collections::VecDeque, sync::Arc};

use thermocline_engine::{
    session::{
        ChatOptions, Engine, Message, Priority, Prompt, Request, Role, Sampling, Session, SessionOptions,
        SpeculationMode, StopReason,
    },
    tokenizer::reasoning::AnswerPart,
};

use super::{
    controller::{drop_in_background, is_removed},
    prompt::said,
};
use crate::store::{ChatId, MessageState, Speaker, Store, StoreError, StoredMessage, title};
use thermocline_host::{
    engine_handle::{Answer, AnswerEnd, EngineHandle, ModelState},
    library::ModelId,
};

/// Length of a title in tokens.
const TOKENS: usize = 12;

/// Context of the session that writes a title, in tokens.
const CONTEXT: usize = 1024;

/// Number of characters of the question, and of the answer, that the model reads.
const EXCERPT: usize = 400;

/// Marks around a title that are not part of the title.
const MARKS: &[char] = &['"', '\'', '`', '*', '#', '_', '“', '”', '„', '‘', '’', '«', '»', '.', ':', ',', ';', ' '];

/// Chats that need a title, and the title that is being written.
#[derive(Debug, Default)]
pub(super) struct Titles {
    wanted: VecDeque<ChatId>,
    writing: Option<TitleWriting>,
}

#[derive(Debug)]
struct TitleWriting {
    chat: ChatId,
    answer: Answer,
    session: Arc<Session>,
    text: String,
}

impl Titles {
    /// True if no chat needs a title and none is being written.
    #[cfg(any(test, feature = "test-hooks"))]
    pub fn is_idle(&self) -> bool {
        self.wanted.is_empty() && self.writing.is_none()
    }

    /// Queues a chat for a title after an answer, if it was the first answer and the title is still
    /// the question.
    pub fn answered(&mut self, store: &Store, state: &ModelState, chat: ChatId) -> Result<(), StoreError> {
        if !matches!(state, ModelState::Ready { model, .. } if *model != ModelId::Builtin) {
            return Ok(());
        }
        let Some(FirstExchange { question, .. }) = FirstExchange::first(store, chat)? else { return Ok(()) };
        let untitled = !store.is_titled(chat)? && store.chat(chat)?.title == title(&question);
        if untitled && !self.wanted.contains(&chat) {
            self.wanted.push_back(chat);
        }
        Ok(())
    }

    /// Stops the current title to give way to an answer, and queues it again.
    pub fn give_way(&mut self) {
        if let Some(writing) = self.writing.take() {
            self.wanted.push_front(writing.chat);
            writing.leave();
        }
    }

    /// Drops all titles so that the model can be closed.
    pub fn clear(&mut self) {
        self.wanted.clear();
        self.writing.take().into_iter().for_each(TitleWriting::leave);
    }

    /// Starts a title, or reads the words of one. Call it only while no answer is being generated.
    /// Returns true if a chat got a new title.
    pub fn poll(
        &mut self,
        store: &mut Store,
        engine_handle: &EngineHandle,
        state: &ModelState,
    ) -> Result<bool, StoreError> {
        if let Some(writing) = &mut self.writing {
            let Some(words) = writing.take() else { return Ok(false) };
            let Some(writing) = self.writing.take() else { return Ok(false) };
            let chat = writing.chat;
            writing.leave();
            if words.is_empty() {
                return Ok(false);
            }
            return match store.suggest_title(chat, &title(&words)) {
                Err(error) if is_removed(&error) => Ok(false),
                suggested => suggested.map(|()| true),
            };
        }
        let ModelState::Ready { model, engine } = state else { return Ok(false) };
        let Some(chat) = self.wanted.pop_front().filter(|_| *model != ModelId::Builtin) else { return Ok(false) };
        let exchange = match FirstExchange::first(store, chat) {
            Ok(Some(exchange)) => exchange,
            Err(error) if !is_removed(&error) => return Err(error),
            Ok(None) | Err(_) => return Ok(false),
        };
        self.writing = TitleWriting::begin(engine_handle, engine, chat, &exchange);
        Ok(false)
    }
}

/// The first question of a chat and its answer.
struct FirstExchange {
    question: String,
    answer: String,
}

impl FirstExchange {
    /// `None` unless the branch of the chat is one question and one answer, and the answer ended
    /// well.
    fn first(store: &Store, chat: ChatId) -> Result<Option<Self>, StoreError> {
        let branch = store.branch(chat)?;
        let [question, answer] = &branch[..] else { return Ok(None) };
        let ended = |message: &StoredMessage| matches!(message.state, MessageState::Complete | MessageState::Truncated);
        if question.speaker != Speaker::User || answer.speaker != Speaker::Assistant || !ended(answer) {
            return Ok(None);
        }
        let answer = said(&answer.content).to_owned();
        Ok((!answer.is_empty()).then(|| FirstExchange { question: question.content.clone(), answer }))
    }

    /// The request for a title.
    fn request(&self) -> Request {
        let excerpt = |text: &str| text.trim().chars().take(EXCERPT).collect::<String>();
        let text = format!(
            "Question: {}\n\nAnswer: {}\n\nGive this conversation a title of at most six words, in its language. \
             Write the title and nothing else.",
            excerpt(&self.question),
            excerpt(&self.answer)
        );
        let variables = [("enable_thinking".to_owned(), false.into())].into_iter().collect();
        Request {
            sampling: Sampling::greedy(),
            max_tokens: Some(TOKENS),
            chat: ChatOptions { variables, ..ChatOptions::default() },
            thought_budget: Some(0),
            speculation: SpeculationMode::Off,
            recorded: false,
            ..Request::new(Prompt::Chat(vec![Message::new(Role::User, text)]))
        }
    }
}

impl TitleWriting {
    /// `None` if there is no memory for a session: the chat keeps its title.
    fn begin(engine_handle: &EngineHandle, engine: &Engine, chat: ChatId, exchange: &FirstExchange) -> Option<Self> {
        let context = Some(CONTEXT.min(engine.context()));
        let options = SessionOptions { context, priority: Priority::Background, ..SessionOptions::default() };
        let session = match engine_handle.session(options) {
            Ok(session) => Arc::new(session),
            Err(error) => {
                tracing::warn!(%error, "no title is written");
                return None;
            }
        };
        let handle = engine_handle.clone();
        let answer = Answer::start(move || handle.notify(), Arc::clone(&session), exchange.request());
        Some(TitleWriting { chat, answer, session, text: String::new() })
    }

    /// Takes new words. Returns the title at the end, or an empty text if there is no title.
    fn take(&mut self) -> Option<String> {
        let update = self.answer.take_update();
        for (part, piece) in update.text.pieces() {
            if part == AnswerPart::Answer {
                self.text.push_str(piece);
            }
        }
        Some(match update.end? {
            AnswerEnd::Done(reason, _) => cleaned(&self.text, reason == StopReason::MaxTokens),
            AnswerEnd::Failed(error) => {
                tracing::warn!(%error, "no title is written");
                String::new()
            }
            AnswerEnd::Refused(_) => String::new(),
        })
    }

    /// Ends the title. Its session may be the last one that holds the engine.
    fn leave(self) {
        let TitleWriting { chat, answer, session, .. } = self;
        drop(answer);
        drop_in_background(Some((chat, session)));
    }
}

/// Cleans a title: the first line of the model's text, without the marks around it. If the text was
/// cut off, its last word may be incomplete.
fn cleaned(text: &str, is_unended: bool) -> String {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let Some(line) = lines.next() else { return String::new() };
    let line = line.strip_prefix("Title:").unwrap_or(line).trim_matches(MARKS);
    let whole = match line.rfind(' ').filter(|_| is_unended && lines.next().is_none()) {
        Some(space) => line[..space].trim_matches(MARKS),
        None => line,
    };
    if whole.chars().any(char::is_alphanumeric) { whole.to_owned() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_is_the_first_line_without_marks_and_half_words() {
        assert_eq!(cleaned("\n**A Frog in the Rain**\n\nMore", false), "A Frog in the Rain");
        assert_eq!(cleaned("Title: \"Penguins in winter.\"", false), "Penguins in winter");
        assert_eq!(cleaned("One day a frog jum", true), "One day a frog");
        assert_eq!(cleaned("A frog\nOne day", true), "A frog", "the line was ended");
        assert_eq!(cleaned("青蛙的故事", true), "青蛙的故事");
        for nothing in ["", " \n ", "\"\"", "***", "…"] {
            assert_eq!(cleaned(nothing, false), "", "{nothing}");
        }
    }
}
