//! The controller of chats. It holds the active answers, and starts and ends them. [`generation`]
//! continues them.

mod generation;

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use thermocline_engine::{model::Model, session::Session};

use super::{
    PendingCall, ToolDecision,
    active_answer::{ActiveAnswer, AnswerProgress, StopCause},
    meaning::MeaningSearch,
    titles::Titles,
    tool_round::ToolRound,
    word_keeper::WordKeeper,
};
use crate::{
    store::{AttachmentId, ChatId, MessageId, NewMessage, Store, StoreError, StoredMessage, StreamingMessage, title},
    tools::Toolbox,
};
use thermocline_host::{
    engine_handle::{EngineHandle, ModelState},
    library::ModelId,
};

/// Starts and ends the answers of chats. Holds the active answers and the last session.
#[derive(Debug)]
pub struct ChatController {
    engine_handle: EngineHandle,
    answers: HashMap<ChatId, ActiveAnswer>,
    /// Tool calls that must end before the next answer, by chat.
    rounds: HashMap<ChatId, ToolRound>,
    /// The tools; `None`: models get no tools.
    tools: Option<Toolbox>,
    /// The chat answered last and its session. The tokens in its KV cache need not be computed
    /// again.
    idle: Option<(ChatId, Arc<Session>)>,
    /// Titles that the model writes.
    titles: Titles,
    /// Words at which neurons fire, across chats.
    words: WordKeeper,
    /// Ranks passages of files by meaning.
    meaning: MeaningSearch,
    /// Answers that wait for vectors, by chat.
    unranked: HashMap<ChatId, UnrankedFiles>,
    /// The model that the sessions belong to.
    model: Weak<Model>,
    revision: u64,
    /// Errors that the next [`ChatController::poll`] returns.
    errors: Vec<StoreError>,
    /// `true` if answers start only with the next poll.
    deferred: bool,
    /// `true` if an answer was cut off because its model was closed, until
    /// [`ChatController::take_broken_off`] reports it.
    broken_off: bool,
}

/// Files whose passages have to be ranked before an answer starts.
#[derive(Debug)]
struct UnrankedFiles {
    files: Vec<AttachmentId>,
    question: String,
    /// When the answer began to wait.
    since: Instant,
}

impl ChatController {
    /// A controller without answers. Answers come from the model of `engine_handle`.
    pub fn new(engine_handle: EngineHandle) -> Self {
        ChatController {
            meaning: MeaningSearch::new(engine_handle.clone()),
            unranked: HashMap::new(),
            engine_handle,
            answers: HashMap::new(),
            rounds: HashMap::new(),
            tools: None,
            idle: None,
            titles: Titles::default(),
            words: WordKeeper::default(),
            model: Weak::new(),
            revision: 0,
            errors: Vec::new(),
            deferred: false,
            broken_off: false,
        }
    }

    /// Number that changes when messages were added or an answer has ended.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// `true` if an answer was cut off since the last call because its model was closed.
    pub fn take_broken_off(&mut self) -> bool {
        std::mem::take(&mut self.broken_off)
    }

    /// `true` while any chat is being answered or waits for a tool.
    pub fn is_busy(&self) -> bool {
        self.busy_chats() > 0
    }

    /// Number of chats that are being answered or wait for a tool.
    pub fn busy_chats(&self) -> usize {
        let answers =
            self.answers.iter().filter(|(chat, answer)| !answer.is_ended() && !self.rounds.contains_key(*chat));
        answers.count() + self.rounds.len()
    }

    /// `true` while this chat is being answered or waits for a tool.
    pub fn is_answering(&self, chat: ChatId) -> bool {
        self.rounds.contains_key(&chat) || self.answers.get(&chat).is_some_and(|answer| !answer.is_ended())
    }

    /// Ranks passages of attached files by meaning, if an embedding model is chosen.
    pub fn meaning(&self) -> &MeaningSearch {
        &self.meaning
    }

    /// Turns the recording of words at which neurons fire on or off.
    pub fn set_keeps_words(&mut self, on: bool) {
        self.words.set_on(on);
    }

    /// Drops recorded words that are not saved yet. Saved words are then read again.
    pub fn forget_words(&mut self) {
        self.words.forget();
    }

    /// Number that changes when such words were saved.
    pub fn kept_words_revision(&self) -> u64 {
        self.words.revision()
    }

    /// Sets the tools of chats whose models may call tools.
    pub fn set_tools(&mut self, tools: Toolbox) {
        self.tools = Some(tools);
    }

    /// The tools.
    pub fn tools(&mut self) -> Option<&mut Toolbox> {
        self.tools.as_mut()
    }

    /// The call of a chat that waits for the user's consent or runs.
    pub fn pending_call(&self, chat: ChatId) -> Option<PendingCall<'_>> {
        self.rounds.get(&chat)?.pending()
    }

    /// Runs the tool calls of an answer that the controller did not generate.
    #[cfg(any(test, feature = "test-hooks"))]
    pub fn begin_calls(&mut self, chat: ChatId, answer: &StoredMessage) {
        self.rounds.insert(chat, ToolRound::new(answer.id, answer.calls()));
    }

    /// Applies the user's decision on the pending call of a chat.
    pub fn decide_call(&mut self, chat: ChatId, decision: ToolDecision) {
        if let (Some(round), Some(tools)) = (self.rounds.get_mut(&chat), &self.tools) {
            round.decide(tools, decision);
        }
    }

    /// If `so`, answers start with the next [`ChatController::poll`] instead of at once, so that
    /// the caller can finish other work first.
    pub fn set_deferred(&mut self, so: bool) {
        self.deferred = so;
    }

    /// `true` if the next [`ChatController::poll`] starts an answer.
    pub fn will_start_answer(&self) -> bool {
        let waits = |answer: &ActiveAnswer| !answer.is_started() && !answer.is_ended();
        self.answers.values().any(waits)
            && matches!(self.engine_handle.state(), ModelState::Ready { .. } | ModelState::Remote { .. })
    }

    /// The chat whose answers this session generates or generated last.
    pub fn chat_of(&self, session: u64) -> Option<ChatId> {
        let idle = self.idle.iter().map(|(chat, idle)| (*chat, idle.id()));
        let active = self.answers.iter().filter_map(|(chat, answer)| Some((*chat, answer.session()?.id())));
        active.chain(idle).find(|(_, id)| *id == session).map(|(chat, _)| chat)
    }

    /// `true` while the model computes a prompt or an answer of any chat.
    pub fn is_generating(&self) -> bool {
        self.answers.values().any(ActiveAnswer::is_started)
    }

    /// Waits until every started answer has ended, but at most `longest`.
    pub fn wait_until_idle(&self, longest: Duration) {
        let until = Instant::now() + longest;
        for answer in self.answers.values() {
            answer.wait(until.saturating_duration_since(Instant::now()));
        }
    }

    /// `true` if the text of an answer could not be saved. [`ChatController::poll`] tries again.
    pub fn has_unsaved_text(&self) -> bool {
        self.answers.values().any(ActiveAnswer::has_unsaved_text)
    }

    /// Progress of the answer that is being generated or saved in a chat.
    pub fn progress(&self, chat: ChatId) -> Option<AnswerProgress<'_>> {
        self.answers.get(&chat).map(ActiveAnswer::progress)
    }

    /// Adds the user's message below `parent`, with the waiting attachments, and starts its answer.
    /// The first message gives the chat its title.
    ///
    /// # Errors
    /// The store's error.
    pub fn send_message(
        &mut self,
        store: &mut Store,
        chat: ChatId,
        parent: Option<MessageId>,
        text: &str,
    ) -> Result<(), StoreError> {
        self.end(store, chat, StopCause::User)?;
        let message = store.add_message(chat, parent, &NewMessage::user(text))?;
        store.send_attachments(chat, message)?;
        if parent.is_none() {
            store.suggest_title(chat, &title(text))?;
        }
        self.start_answer(store, chat, Some(message))
    }

    /// Adds another version of the user's message `of` with the same attachments, and starts its
    /// answer.
    ///
    /// # Errors
    /// The store's error.
    pub fn change_message(
        &mut self,
        store: &mut Store,
        chat: ChatId,
        of: &StoredMessage,
        text: &str,
    ) -> Result<(), StoreError> {
        self.end(store, chat, StopCause::User)?;
        let message = store.add_message(chat, of.parent, &NewMessage::user(text))?;
        store.copy_attachments(of.id, message)?;
        self.start_answer(store, chat, Some(message))
    }

    /// Starts an answer to `parent`. If there is an answer already, the new one is another version.
    ///
    /// # Errors
    /// The store's error.
    pub fn start_answer(
        &mut self,
        store: &mut Store,
        chat: ChatId,
        parent: Option<MessageId>,
    ) -> Result<(), StoreError> {
        self.end(store, chat, StopCause::User)?;
        let model = self.engine_handle.state().model();
        store.set_chat_model(chat, model.as_ref().map(ModelId::key).as_deref())?;
        let name = model.map(|model| model.to_string());
        let streaming = StreamingMessage::begin(store, chat, parent, name.as_deref())?;
        self.begin(store, chat, streaming)
    }

    /// Continues an answer that ended too early.
    ///
    /// # Errors
    /// The store's error.
    pub fn resume_answer(&mut self, store: &mut Store, chat: ChatId, message: MessageId) -> Result<(), StoreError> {
        self.end(store, chat, StopCause::User)?;
        let streaming = StreamingMessage::resume(store, message)?;
        self.begin(store, chat, streaming)
    }

    fn begin(&mut self, store: &mut Store, chat: ChatId, streaming: StreamingMessage) -> Result<(), StoreError> {
        self.answers.insert(chat, ActiveAnswer::new(streaming));
        self.titles.give_way();
        self.revision += 1;
        if self.deferred {
            return Ok(());
        }
        let errors = self.poll(store);
        self.errors.extend(errors);
        Ok(())
    }

    /// Stops the answer of a chat after the current token.
    pub fn stop_answer(&mut self, chat: ChatId) {
        if let Some(active_answer) = self.answers.get_mut(&chat) {
            active_answer.stop();
        }
        if self.rounds.remove(&chat).is_some() {
            self.revision += 1;
        }
    }

    /// Ends the answer of a chat at once; its text stays.
    fn end(&mut self, store: &mut Store, chat: ChatId, cause: StopCause) -> Result<(), StoreError> {
        self.rounds.remove(&chat);
        self.unranked.remove(&chat);
        let Some(mut active_answer) = self.answers.remove(&chat) else { return Ok(()) };
        if !active_answer.is_ended() {
            generation::keep_map(store, chat, &active_answer);
            let session = active_answer.break_off(cause);
            drop_in_background(session.map(|session| (chat, session)));
        }
        let finished = self.finish(store, chat, active_answer);
        // Drop its tool calls, too.
        self.rounds.remove(&chat);
        finished
    }

    /// Saves an answer that has ended. If that fails, the answer stays active: it remains visible,
    /// and saving is tried again.
    fn finish(&mut self, store: &mut Store, chat: ChatId, mut active_answer: ActiveAnswer) -> Result<(), StoreError> {
        self.revision += 1;
        let saved = active_answer.finish(store);
        if saved.is_ok() && !active_answer.calls().is_empty() {
            self.rounds.insert(chat, ToolRound::new(active_answer.id(), active_answer.calls()));
        }
        if matches!(&saved, Err(error) if !is_removed(error)) {
            self.answers.insert(chat, active_answer);
        }
        saved
    }

    /// Ends all answers at once and releases the model so that it can be closed. The texts stay.
    pub fn release_model(&mut self, store: &mut Store, cause: StopCause) -> Vec<StoreError> {
        self.broken_off |= cause == StopCause::ModelClosed && self.is_busy();
        let chats: Vec<ChatId> = self.answers.keys().copied().collect();
        self.rounds.clear();
        let errors = chats.into_iter().filter_map(|chat| self.end(store, chat, cause).err()).collect();
        drop_in_background(self.idle.take());
        self.titles.clear();
        self.model = Weak::new();
        errors
    }
}

/// `true` if the message was removed, so that nothing remains to be saved.
pub(super) fn is_removed(error: &StoreError) -> bool {
    matches!(error, StoreError::Missing { .. })
}

/// Drops a session on a separate thread. It may be the last one that holds the engine, which takes
/// time to end.
pub(super) fn drop_in_background(session: Option<(ChatId, Arc<Session>)>) {
    if session.is_some() {
        // Without a thread, the session is dropped here.
        let _ = thread::Builder::new().name("close-session".to_owned()).spawn(move || drop(session));
    }
}

#[cfg(test)]
mod tests;
