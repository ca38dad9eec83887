//! Generation of answers in chats. [`ChatController`] starts answers on the engine's sessions and moves
//! their text into the store; [`AnswerStats`] are the statistics stored with an answer, [`SamplingOverrides`] the user's sampling settings.
//! Nothing here depends on a window, and nothing blocks.

mod active_answer;
mod answer_stats;
mod sampling_overrides;

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use active_answer::ActiveAnswer;
pub use active_answer::AnswerProgress;
pub use answer_stats::AnswerStats;
pub use sampling_overrides::SamplingOverrides;
use thermocline_engine::{
    model::Model,
    session::{ContextPolicy, Message as Turn, Prompt, Request, Role, Session, SessionOptions},
};

use crate::{
    engine_handle::{Answer, EngineHandle, EngineState, error_message},
    store::{
        ChatId, Message, MessageId, MessageState, NewMessage, Speaker, Store, StoreError, StreamingMessage, title,
    },
};

/// The active answers, and the session used last.
#[derive(Debug, Default)]
pub struct ChatController {
    answers: HashMap<ChatId, ActiveAnswer>,
    /// The chat answered last, with its session: the tokens in its KV cache need not be computed again.
    idle: Option<(ChatId, Arc<Session>)>,
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

    /// `true` while any chat is being answered.
    pub fn is_busy(&self) -> bool {
        self.answers.values().any(|answer| !answer.is_ended())
    }

    /// Has answers start with the next [`ChatController::poll`] instead of at once, so that the caller can finish other work first.
    pub fn set_deferred(&mut self) {
        self.deferred = true;
    }

    /// `true` if the next [`ChatController::poll`] starts an answer.
    pub fn will_start_answer(&self, engine_handle: &EngineHandle) -> bool {
        let waits = |answer: &ActiveAnswer| !answer.is_started() && !answer.is_ended();
        self.answers.values().any(waits) && matches!(engine_handle.state(), EngineState::Ready { .. })
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

    /// Adds the user's message below `parent` and starts its answer. The chat is named after its first message.
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
        if parent.is_none() {
            store.suggest_title(chat, &title(text))?;
        }
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
            EngineState::Ready { model, .. } | EngineState::Failed { model, .. } => {
                (Some(model.to_string()), Some(model.key()))
            }
            EngineState::Opening(opening) => (Some(opening.model.to_string()), Some(opening.model.key())),
            EngineState::Empty => (None, None),
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
    }

    /// Ends the answer of a chat at once; its text stays.
    fn end(&mut self, store: &mut Store, chat: ChatId) -> Result<(), StoreError> {
        let Some(mut active_answer) = self.answers.remove(&chat) else { return Ok(()) };
        if !active_answer.is_ended() {
            let session = active_answer.end(MessageState::Stopped, None);
            drop_in_background(session.map(|session| (chat, session)));
        }
        self.finish(store, chat, active_answer)
    }

    /// Saves an answer that has ended. If that fails it stays active, so that it is shown and saving is tried again.
    fn finish(&mut self, store: &mut Store, chat: ChatId, mut active_answer: ActiveAnswer) -> Result<(), StoreError> {
        self.revision += 1;
        let saved = active_answer.finish(store);
        if matches!(&saved, Err(error) if !is_removed(error)) {
            self.answers.insert(chat, active_answer);
        }
        saved
    }

    /// Ends all answers at once and releases the model, so that it can be closed. The texts stay.
    pub fn release_model(&mut self, store: &mut Store) -> Vec<StoreError> {
        let chats: Vec<ChatId> = self.answers.keys().copied().collect();
        let errors = chats.into_iter().filter_map(|chat| self.end(store, chat).err()).collect();
        drop_in_background(self.idle.take());
        self.model = Weak::new();
        errors
    }

    /// Moves new text into the store. To be called while there are answers, visible or not.
    pub fn poll(&mut self, store: &mut Store, engine_handle: &EngineHandle) -> Vec<StoreError> {
        let state = engine_handle.state();
        let mut errors = std::mem::take(&mut self.errors);
        if !self.model.ptr_eq(&Weak::new()) {
            let same = matches!(&state, EngineState::Ready { engine, .. }
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
        errors
    }

    fn advance(
        &mut self,
        store: &mut Store,
        engine_handle: &EngineHandle,
        state: &EngineState,
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
                EngineState::Opening(_) => None,
                EngineState::Empty => Some(failed("No model is open.".to_owned())),
                EngineState::Failed { model, reason } => Some(failed(format!("{model} could not be opened: {reason}"))),
                EngineState::Ready { engine, model } => {
                    self.model = Arc::downgrade(engine.model());
                    let begun = self.session(engine_handle, chat).and_then(|session| {
                        let request = request(store, chat, active_answer.id(), &session, model)?;
                        let engine_handle = engine_handle.clone();
                        Ok((Answer::start(move || engine_handle.notify(), Arc::clone(&session), request), session))
                    });
                    match begun {
                        Ok((answer, session)) => {
                            active_answer.start(answer, session);
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
            drop_in_background(self.idle.replace((chat, session)));
        }
        once(self.finish(store, chat, active_answer))
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

/// The engine's request for message `id`: the messages above it, and the text to continue if it has some already.
fn request(
    store: &Store,
    chat: ChatId,
    id: MessageId,
    session: &Session,
    model: &crate::library::ModelId,
) -> Result<Request, String> {
    let read = |error: StoreError| error.to_string();
    let about = store.chat(chat).map_err(read)?;
    let all = store.messages(chat).map_err(read)?;
    let by_id: HashMap<MessageId, &Message> = all.iter().map(|message| (message.id, message)).collect();
    let own = by_id.get(&id).copied();
    let above = |message: &&Message| message.parent.and_then(|parent| by_id.get(&parent).copied());
    let mut before: Vec<&Message> = std::iter::successors(own, above).skip(1).collect();
    before.reverse();
    let choices = SamplingOverrides::from_json(about.sampling.as_deref());
    let mut turns = Vec::new();
    if !about.system_prompt.trim().is_empty() {
        turns.push(Turn::new(Role::System, about.system_prompt));
    }
    turns.extend(before.into_iter().map(turn));
    let begun = own.map_or("", |message| &message.content);
    let version = own.map_or(1, |message| message.version.0);
    let prompt = if begun.is_empty() {
        Prompt::Chat(turns)
    } else {
        turns.push(Turn::new(Role::Assistant, begun));
        Prompt::Continue(turns)
    };
    let mut sampling = choices.apply_to(SamplingOverrides::model_defaults(model));
    // The same seed would repeat the previous version.
    sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(version as u64 - 1));
    let on_full = if choices.stop_when_full { ContextPolicy::Stop } else { ContextPolicy::Shift { keep: 1 } };
    // An answer whose beginning was shifted out of the context seldom ends.
    let most = choices.max_tokens.unwrap_or_else(|| session.context());
    Ok(Request { sampling, max_tokens: Some(most), on_full, ..Request::new(prompt) })
}

fn turn(message: &Message) -> Turn {
    let role = match message.speaker {
        Speaker::User => Role::User,
        Speaker::Assistant => Role::Assistant,
    };
    Turn::new(role, message.content.clone())
}

#[cfg(test)]
mod tests;
