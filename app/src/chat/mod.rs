//! Generation of answers in chats. [`ChatController`] starts answers on the engine's sessions, or on a server, and moves their text into
//! the store; [`AnswerStats`] are the statistics stored with an answer, [`SamplingOverrides`] the user's sampling settings;
//! [`given`] decides what of attached files the model reads, [`remembered`] keeps the neurons of a chat's last tokens,
//! and [`word_keeper`] the words of neurons across chats. An
//! [`Explanation`] says which neurons made a word, [`NeuronWords`] which words a neuron speaks for,
//! a [`FoundNeuron`] is one that a word was searched with, and a [`Comparison`] has an
//! answer written once more by two models, one after the other. Tools that an answer calls are run by a [`tool_round`], with
//! the user's consent, and the chat goes on with another answer. [`titles`] are written when there is nothing else to do.
//! Nothing here depends on a window, and nothing blocks.

mod active_answer;
mod answer_stats;
mod call_reader;
mod comparison;
mod explanation;
mod found_neuron;
pub mod given;
mod neuron_words;
mod prompt;
pub mod remembered;
mod sampling_overrides;
mod side_answer;
mod titles;
mod tool_round;
mod word_firing;
mod word_keeper;

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use active_answer::ActiveAnswer;
pub use active_answer::AnswerProgress;
pub use answer_stats::AnswerStats;
use call_reader::CallReader;
pub use comparison::{Comparison, Side, SideState, SideText};
pub use explanation::{Explained, ExplainedNeuron, Explanation, ExplanationProgress, SwitchedOff};
pub use found_neuron::{FoundNeuron, NeuronQuery};
use given::Measure;
pub use neuron_words::NeuronWords;
use prompt::ChatPrompt;
pub use prompt::{branch_turns, prompt_before};
pub use sampling_overrides::SamplingOverrides;
pub use side_answer::SideModel;
use thermocline_engine::{
    model::Model,
    session::{Engine, Request, Session, SessionOptions},
};

use titles::Titles;
use tool_round::{MOST_ROUNDS, ToolRound};
pub use tool_round::{PendingCall, ToolDecision};
use word_keeper::WordKeeper;

use crate::{
    engine_handle::{Answer, EngineHandle, ModelState, error_message},
    library::ModelId,
    store::{ChatId, Message, MessageId, MessageState, NewMessage, Store, StoreError, StreamingMessage, title},
    tools::Toolbox,
};

/// A generation that has begun, the session if it is here and not on a server, and the reader of calls if the model was told of tools.
type Started = (Answer, Option<Arc<Session>>, Option<CallReader>);

/// The active answers, and the session used last.
#[derive(Debug, Default)]
pub struct ChatController {
    answers: HashMap<ChatId, ActiveAnswer>,
    /// Calls of tools that are waited for before the next answer.
    rounds: HashMap<ChatId, ToolRound>,
    /// The tools; `None`: no model is told of any.
    tools: Option<Toolbox>,
    /// The chat answered last, with its session: the tokens in its KV cache need not be computed again.
    idle: Option<(ChatId, Arc<Session>)>,
    /// Titles that the model writes.
    titles: Titles,
    /// Words of neurons across chats.
    words: WordKeeper,
    /// The model that the sessions belong to.
    model: Weak<Model>,
    revision: u64,
    /// Errors that the next [`ChatController::poll`] returns.
    errors: Vec<StoreError>,
    /// `true` if answers start with the next poll only.
    deferred: bool,
}

impl ChatController {
    /// Number that changes whenever messages were added or an answer has ended.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// `true` while any chat is being answered, or waits for a tool.
    pub fn is_busy(&self) -> bool {
        !self.rounds.is_empty() || self.answers.values().any(|answer| !answer.is_ended())
    }

    /// `true` while this chat is being answered, or waits for a tool.
    pub fn is_answering(&self, chat: ChatId) -> bool {
        self.rounds.contains_key(&chat) || self.answers.get(&chat).is_some_and(|answer| !answer.is_ended())
    }

    /// Keeps the words of answers at which neurons fire, or no longer.
    pub fn set_keeps_words(&mut self, on: bool) {
        self.words.set_on(on);
    }

    /// Forgets those that were not kept yet, and has those that were read again.
    pub fn forget_words(&mut self) {
        self.words.forget();
    }

    /// Number that changes when such words were kept.
    pub fn kept_words_revision(&self) -> u64 {
        self.words.revision()
    }

    /// Gives models of chats that may call tools these.
    pub fn set_tools(&mut self, tools: Toolbox) {
        self.tools = Some(tools);
    }

    /// The tools.
    pub fn tools(&mut self) -> Option<&mut Toolbox> {
        self.tools.as_mut()
    }

    /// The call in a chat that the user is asked about, or that runs.
    pub fn pending_call(&self, chat: ChatId) -> Option<PendingCall<'_>> {
        self.rounds.get(&chat)?.pending()
    }

    /// Has the calls of an answer done that was not written here.
    #[cfg(test)]
    pub fn begin_calls(&mut self, chat: ChatId, answer: &Message) {
        self.rounds.insert(chat, ToolRound::new(answer.id, answer.calls()));
    }

    /// Carries out the user's decision on the call that a chat asks about.
    pub fn decide_call(&mut self, chat: ChatId, decision: ToolDecision) {
        if let (Some(round), Some(tools)) = (self.rounds.get_mut(&chat), &self.tools) {
            round.decide(tools, decision);
        }
    }

    /// Has answers start with the next [`ChatController::poll`] instead of at once, so that the caller can finish other work first.
    pub fn set_deferred(&mut self) {
        self.deferred = true;
    }

    /// `true` if the next [`ChatController::poll`] starts an answer.
    pub fn will_start_answer(&self, engine_handle: &EngineHandle) -> bool {
        let waits = |answer: &ActiveAnswer| !answer.is_started() && !answer.is_ended();
        self.answers.values().any(waits)
            && matches!(engine_handle.state(), ModelState::Ready { .. } | ModelState::Remote { .. })
    }

    /// `true` while the model computes a prompt or an answer in any chat.
    pub fn is_generating(&self) -> bool {
        self.answers.values().any(ActiveAnswer::is_started)
    }

    /// Waits until every started answer has ended, but no longer than `longest`.
    pub fn wait_until_idle(&self, longest: Duration) {
        let until = Instant::now() + longest;
        for answer in self.answers.values() {
            answer.wait(until.saturating_duration_since(Instant::now()));
        }
    }

    /// `true` if the text of an answer could not be saved; [`ChatController::poll`] tries again.
    pub fn has_unsaved_text(&self) -> bool {
        self.answers.values().any(ActiveAnswer::has_unsaved_text)
    }

    /// Progress of the answer that is being generated or saved in a chat.
    pub fn progress(&self, chat: ChatId) -> Option<AnswerProgress<'_>> {
        self.answers.get(&chat).map(ActiveAnswer::progress)
    }

    /// Adds the user's message below `parent`, with the files that wait for it, and starts its answer. The chat is named after its first
    /// message.
    ///
    /// # Errors
    /// The store's error.
    pub fn send_message(
        &mut self,
        store: &mut Store,
        engine_handle: &EngineHandle,
        chat: ChatId,
        parent: Option<MessageId>,
        text: &str,
    ) -> Result<(), StoreError> {
        self.end(store, chat)?;
        let message = store.add_message(chat, parent, &NewMessage::user(text))?;
        store.send_attachments(chat, message)?;
        if parent.is_none() {
            store.suggest_title(chat, &title(text))?;
        }
        self.start_answer(store, engine_handle, chat, Some(message))
    }

    /// Adds another version of the user's message `of`, with the same files, and starts its answer.
    ///
    /// # Errors
    /// The store's error.
    pub fn change_message(
        &mut self,
        store: &mut Store,
        engine_handle: &EngineHandle,
        chat: ChatId,
        of: &Message,
        text: &str,
    ) -> Result<(), StoreError> {
        self.end(store, chat)?;
        let message = store.add_message(chat, of.parent, &NewMessage::user(text))?;
        store.copy_attachments(of.id, message)?;
        self.start_answer(store, engine_handle, chat, Some(message))
    }

    /// Starts an answer to `parent`, as a further version if there is one.
    ///
    /// # Errors
    /// The store's error.
    pub fn start_answer(
        &mut self,
        store: &mut Store,
        engine_handle: &EngineHandle,
        chat: ChatId,
        parent: Option<MessageId>,
    ) -> Result<(), StoreError> {
        self.end(store, chat)?;
        let (name, key) = match engine_handle.state() {
            ModelState::Ready { model, .. } | ModelState::Failed { model, .. } => {
                (Some(model.to_string()), Some(model.key()))
            }
            ModelState::Remote { model, .. } => (Some(model.to_string()), Some(model.key())),
            ModelState::Opening(opening) => (Some(opening.model.to_string()), Some(opening.model.key())),
            ModelState::Empty => (None, None),
        };
        store.set_chat_model(chat, key.as_deref())?;
        let streaming = StreamingMessage::begin(store, chat, parent, name.as_deref())?;
        self.begin(store, engine_handle, chat, streaming)
    }

    /// Continues an answer that ended too early.
    ///
    /// # Errors
    /// The store's error.
    pub fn resume_answer(
        &mut self,
        store: &mut Store,
        engine_handle: &EngineHandle,
        chat: ChatId,
        message: MessageId,
    ) -> Result<(), StoreError> {
        self.end(store, chat)?;
        let streaming = StreamingMessage::resume(store, message)?;
        self.begin(store, engine_handle, chat, streaming)
    }

    fn begin(
        &mut self,
        store: &mut Store,
        engine_handle: &EngineHandle,
        chat: ChatId,
        streaming: StreamingMessage,
    ) -> Result<(), StoreError> {
        self.answers.insert(chat, ActiveAnswer::new(streaming));
        self.titles.give_way();
        self.revision += 1;
        if self.deferred {
            return Ok(());
        }
        let errors = self.poll(store, engine_handle);
        self.errors.extend(errors);
        Ok(())
    }

    /// Stops the answer of a chat after the token being computed.
    pub fn stop_answer(&mut self, chat: ChatId) {
        if let Some(active_answer) = self.answers.get_mut(&chat) {
            active_answer.stop();
        }
        if self.rounds.remove(&chat).is_some() {
            self.revision += 1;
        }
    }

    /// Ends the answer of a chat at once; its text stays.
    fn end(&mut self, store: &mut Store, chat: ChatId) -> Result<(), StoreError> {
        self.rounds.remove(&chat);
        let Some(mut active_answer) = self.answers.remove(&chat) else { return Ok(()) };
        if !active_answer.is_ended() {
            let session = active_answer.end(MessageState::Stopped, None);
            drop_in_background(session.map(|session| (chat, session)));
        }
        let finished = self.finish(store, chat, active_answer);
        // Its calls, too, are given up.
        self.rounds.remove(&chat);
        finished
    }

    /// Saves an answer that has ended. If that fails it stays active, so that it is shown and saving is tried again.
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

    /// Ends all answers at once and releases the model, so that it can be closed. The texts stay.
    pub fn release_model(&mut self, store: &mut Store) -> Vec<StoreError> {
        let chats: Vec<ChatId> = self.answers.keys().copied().collect();
        self.rounds.clear();
        let errors = chats.into_iter().filter_map(|chat| self.end(store, chat).err()).collect();
        drop_in_background(self.idle.take());
        self.titles.clear();
        self.model = Weak::new();
        errors
    }

    /// Moves new text into the store. To be called while there are answers, visible or not.
    pub fn poll(&mut self, store: &mut Store, engine_handle: &EngineHandle) -> Vec<StoreError> {
        let state = engine_handle.state();
        let mut errors = std::mem::take(&mut self.errors);
        if !self.model.ptr_eq(&Weak::new()) {
            let same = matches!(&state, ModelState::Ready { engine, .. }
                if std::ptr::eq(Arc::as_ptr(engine.model()), self.model.as_ptr()));
            if !same {
                errors.append(&mut self.release_model(store));
            }
        }
        let chats: Vec<ChatId> = self.answers.keys().copied().collect();
        for chat in chats {
            if let Err(error) = self.advance(store, engine_handle, &state, chat) {
                errors.push(error);
            }
        }
        let chats: Vec<ChatId> = self.rounds.keys().copied().collect();
        for chat in chats {
            if let Err(error) = self.advance_round(store, engine_handle, &state, chat) {
                errors.push(error);
            }
        }
        errors.extend(self.words.poll(store, engine_handle).err());
        if !self.is_busy() {
            match self.titles.poll(store, engine_handle, &state) {
                Ok(named) => self.revision += u64::from(named),
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    /// Has the calls of an answer done, and the next answer begun behind their results.
    fn advance_round(
        &mut self,
        store: &mut Store,
        engine_handle: &EngineHandle,
        state: &ModelState,
        chat: ChatId,
    ) -> Result<(), StoreError> {
        let (Some(mut round), Some(tools)) = (self.rounds.remove(&chat), &self.tools) else { return Ok(()) };
        // Half of the context, at about three bytes a token.
        let limit = match state {
            ModelState::Ready { engine, .. } => engine.context() * 3 / 2,
            _ => usize::MAX,
        };
        let before = round.last();
        let advanced = round.advance(store, chat, tools, limit);
        if round.last() != before {
            self.revision += 1;
        }
        match advanced {
            Ok(Some(last)) => self.start_answer(store, engine_handle, chat, Some(last)),
            Ok(None) => {
                self.rounds.insert(chat, round);
                Ok(())
            }
            // What cannot be saved is given up, and the error shown: the answer with its calls is there.
            Err(error) => {
                self.revision += 1;
                Err(error)
            }
        }
    }

    fn advance(
        &mut self,
        store: &mut Store,
        engine_handle: &EngineHandle,
        state: &ModelState,
        chat: ChatId,
    ) -> Result<(), StoreError> {
        let Some(mut active_answer) = self.answers.remove(&chat) else { return Ok(()) };
        // Of consecutive failures only the first is reported.
        let reported = active_answer.has_unsaved_text();
        let once = |saved: Result<(), StoreError>| if reported { Ok(()) } else { saved };
        if active_answer.is_ended() {
            if active_answer.is_due() {
                return once(self.finish(store, chat, active_answer));
            }
            self.answers.insert(chat, active_answer);
            return Ok(());
        }
        let failed = |sentence: String| (MessageState::Failed, Some(AnswerStats::failed(sentence)));
        let end = if active_answer.is_started() {
            active_answer.take_update()
        } else if active_answer.is_stopped() {
            Some((MessageState::Stopped, None))
        } else {
            match state {
                ModelState::Opening(_) => None,
                ModelState::Empty => Some(failed("No model is open.".to_owned())),
                ModelState::Failed { model, reason } => Some(failed(format!("{model} could not be opened: {reason}"))),
                // Without its tools an answer would be another one. Connecting has a time limit.
                ModelState::Ready { .. } | ModelState::Remote { .. } if self.waits_for_tools(store, chat) => None,
                ModelState::Ready { .. } | ModelState::Remote { .. } => {
                    match self.generate(store, engine_handle, state, chat, active_answer.id()) {
                        Ok((answer, session, reader)) => {
                            active_answer.start(answer, session, reader);
                            None
                        }
                        Err(sentence) => Some(failed(sentence)),
                    }
                }
            }
        };
        let Some((state, figures)) = end else {
            let saved = active_answer.save(store);
            if matches!(&saved, Err(error) if is_removed(error)) {
                self.revision += 1;
                return saved;
            }
            self.answers.insert(chat, active_answer);
            return once(saved);
        };
        if let Some(session) = active_answer.end(state, figures) {
            remember(store, chat, engine_handle, &session);
            self.words.answered(session.engine(), session.id(), engine_handle);
            drop_in_background(self.idle.replace((chat, session)));
        }
        let finished = self.finish(store, chat, active_answer);
        if finished.is_ok() && !self.is_answering(chat) {
            match self.titles.answered(store, &engine_handle.state(), chat) {
                Err(error) if !is_removed(&error) => return Err(error),
                _ => {}
            }
        }
        once(finished)
    }

    /// True if no title is wanted and none is being written.
    #[cfg(test)]
    pub fn has_no_titles_to_write(&self) -> bool {
        self.titles.is_idle()
    }

    /// Starts the generation of message `id`, on a session or on a server.
    fn generate(
        &mut self,
        store: &mut Store,
        engine_handle: &EngineHandle,
        state: &ModelState,
        chat: ChatId,
        id: MessageId,
    ) -> Result<Started, String> {
        let key = match state {
            ModelState::Ready { model, .. } => model.key(),
            _ => String::new(),
        };
        let measure = match state {
            ModelState::Ready { engine, .. } => {
                Measure::new(engine.context(), &key, |text| given::tokens(engine, text))
            }
            _ => Measure::server(),
        };
        let mut prompt = ChatPrompt::read(store, chat, id, &measure)?;
        prompt.tools = self.definitions(store, chat, id).map_err(|error| error.to_string())?;
        let told = !prompt.tools.is_empty();
        let notify = {
            let engine_handle = engine_handle.clone();
            move || engine_handle.notify()
        };
        match state {
            ModelState::Ready { engine, model } => {
                self.model = Arc::downgrade(engine.model());
                let session = self.session(engine_handle, chat)?;
                let format = engine.chat_template().tools();
                let reader = told.then(|| CallReader::new(id, Some(format), &prompt.tools));
                let request = prompt.request(session.context(), model);
                Ok((Answer::start(notify, Arc::clone(&session), request), Some(session), reader))
            }
            ModelState::Remote { model, client } => {
                let reader = told.then(|| CallReader::new(id, None, &[]));
                Ok((Answer::start_remote(notify, client.clone(), prompt.remote_request(&model.name)), None, reader))
            }
            _ => Err("No model is open.".to_owned()),
        }
    }

    /// The request that message `id` answered, with the seed that its answer had. The error is a sentence.
    pub fn repeated_request(
        &self,
        store: &Store,
        engine: &Engine,
        model: &ModelId,
        chat: ChatId,
        id: MessageId,
    ) -> Result<Request, String> {
        let mut prompt = ChatPrompt::repeated(store, chat, id).map_err(|error| error.to_string())?;
        prompt.tools = self.definitions(store, chat, id).map_err(|error| error.to_string())?;
        Ok(prompt.request(engine.context(), model))
    }

    /// `true` while an answer that may call tools would begin without those of a server that is being connected.
    fn waits_for_tools(&self, store: &Store, chat: ChatId) -> bool {
        let connecting = self.tools.as_ref().is_some_and(|tools| tools.hub().is_connecting());
        connecting && store.chat(chat).is_ok_and(|chat| chat.tools)
    }

    /// Definitions of the tools that the model of answer `id` is told of: none if the chat has none, or once it has called enough.
    fn definitions(&self, store: &Store, chat: ChatId, id: MessageId) -> Result<Vec<serde_json::Value>, StoreError> {
        let Some(tools) = self.tools.as_ref().filter(|_| store.chat(chat).is_ok_and(|chat| chat.tools)) else {
            return Ok(Vec::new());
        };
        let all = store.messages(chat)?;
        if tool_round::rounds(&prompt::above(&all, id)) >= MOST_ROUNDS {
            return Ok(Vec::new());
        }
        Ok(tools.offered().iter().map(|offered| offered.tool.definition(&offered.name)).collect())
    }

    /// The chat's session, or a new one in place of the idle one: each allocates memory for its context.
    fn session(&mut self, engine_handle: &EngineHandle, chat: ChatId) -> Result<Arc<Session>, String> {
        match self.idle.take() {
            Some((last, session)) if last == chat => Ok(session),
            other => {
                drop_in_background(other);
                engine_handle.session(SessionOptions::default()).map(Arc::new).map_err(|error| error_message(&error))
            }
        }
    }
}

/// Keeps the neurons of the chat's last tokens. If this fails, the map begins dark next time.
fn remember(store: &mut Store, chat: ChatId, engine_handle: &EngineHandle, session: &Session) {
    let ModelState::Ready { model, .. } = engine_handle.state() else { return };
    let map = remembered::write(session.engine().neurons(), session.id());
    if !map.is_empty()
        && let Err(error) = store.set_neuron_map(chat, &model.key(), &map)
    {
        tracing::warn!(%error, "the map of the chat is not kept");
    }
}

/// `true` if the message was removed, so that there is nothing to save any more.
fn is_removed(error: &StoreError) -> bool {
    matches!(error, StoreError::Missing { .. })
}

/// Drops a session on a thread of its own: it may be the last one that holds the engine, which takes time to end.
fn drop_in_background(session: Option<(ChatId, Arc<Session>)>) {
    if session.is_some() {
        // If there is no thread, it is dropped here.
        let _ = thread::Builder::new().name("close-session".to_owned()).spawn(move || drop(session));
    }
}

#[cfg(test)]
mod tests;
