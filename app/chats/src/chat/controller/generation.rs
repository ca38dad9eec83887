//! Answers in progress: saves their text, runs their tool calls, and starts waiting answers.

use std::{
    sync::{Arc, Weak},
    time::Instant,
};

use thermocline_engine::session::{ChatOptions, Engine, Request, Session, SessionOptions};

use super::{ChatController, UnrankedFiles, drop_in_background, is_removed};
use crate::{
    chat::{
        StopCause,
        active_answer::ActiveAnswer,
        call_reader::CallReader,
        given::{self, Measure, PassageDecision},
        meaning::{PATIENCE, QuestionMeaning},
        prompt::{self, ChatPrompt},
        remembered,
        tool_round::{self, MOST_ROUNDS},
    },
    store::{ChatId, MessageId, MessageState, Store, StoreError},
};
use thermocline_host::{
    answer_stats::AnswerStats,
    engine_handle::{Answer, ModelFailure, ModelState, error_message},
    library::ModelId,
};

/// A started generation: the session is `None` on a server, the reader is `None` if the model was
/// given no tools.
type Started = (Answer, Option<Arc<Session>>, Option<CallReader>);

impl ChatController {
    /// Moves new text into the store. Call it regularly while there are answers, visible or not.
    pub fn poll(&mut self, store: &mut Store) -> Vec<StoreError> {
        let state = self.engine_handle.state();
        let mut errors = std::mem::take(&mut self.errors);
        if !self.model.ptr_eq(&Weak::new()) {
            let same = matches!(&state, ModelState::Ready { engine, .. }
                if std::ptr::eq(Arc::as_ptr(engine.model()), self.model.as_ptr()));
            // If the model closed by itself, its answers end with its error.
            let ends = matches!(&state, ModelState::Failed { failure: ModelFailure::Closed, .. })
                && self.answers.values().any(|answer| answer.is_started() && !answer.is_ended());
            if !same && !ends {
                errors.append(&mut self.release_model(store, StopCause::ModelClosed));
            }
        }
        let chats: Vec<ChatId> = self.answers.keys().copied().collect();
        errors.extend(chats.into_iter().filter_map(|chat| self.advance(store, &state, chat).err()));
        let chats: Vec<ChatId> = self.rounds.keys().copied().collect();
        errors.extend(chats.into_iter().filter_map(|chat| self.advance_round(store, &state, chat).err()));
        errors.extend(self.words.poll(store, &self.engine_handle).err());
        errors.extend(self.meaning.poll(store).err());
        if !self.is_busy() {
            match self.titles.poll(store, &self.engine_handle, &state) {
                Ok(named) => self.revision += u64::from(named),
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    /// Advances the tool calls of an answer, and starts the next answer after their results.
    fn advance_round(&mut self, store: &mut Store, state: &ModelState, chat: ChatId) -> Result<(), StoreError> {
        let (Some(mut round), Some(tools)) = (self.rounds.remove(&chat), &self.tools) else { return Ok(()) };
        // Half of the context, at about three bytes per token.
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
            Ok(Some(last)) => self.start_answer(store, chat, Some(last)),
            Ok(None) => {
                self.rounds.insert(chat, round);
                Ok(())
            }
            // Drop a result that cannot be saved and return the error. The answer with its calls is
            // in the store.
            Err(error) => {
                self.revision += 1;
                Err(error)
            }
        }
    }

    fn advance(&mut self, store: &mut Store, state: &ModelState, chat: ChatId) -> Result<(), StoreError> {
        let Some(mut active_answer) = self.answers.remove(&chat) else { return Ok(()) };
        // Report only the first of consecutive failures.
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
        } else if active_answer.stopped {
            Some((MessageState::Stopped, None))
        } else {
            match state {
                ModelState::Opening(_) => None,
                ModelState::Empty => Some(failed("No model is open.".to_owned())),
                ModelState::Failed { model, failure, reason } => Some(failed(format!("{model} {failure}: {reason}"))),
                // Wait for the tools, because they change the answer. Connecting has a time limit.
                ModelState::Ready { .. } | ModelState::Remote { .. }
                    if self.waits_for_tools(store, chat) || self.waits_for_meaning(store, chat) =>
                {
                    None
                }
                ModelState::Ready { .. } | ModelState::Remote { .. } => {
                    match self.generate(store, state, chat, active_answer.id()) {
                        Ok(Some((answer, session, reader))) => {
                            active_answer.start(answer, session, reader, state.model());
                            None
                        }
                        Ok(None) => None,
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
            if active_answer.is_map_due() {
                keep_map(store, chat, &active_answer);
            }
            self.answers.insert(chat, active_answer);
            return once(saved);
        };
        keep_map(store, chat, &active_answer);
        if let Some(session) = active_answer.end(state, figures) {
            self.words.answered(session.engine(), session.id(), &self.engine_handle);
            drop_in_background(self.idle.replace((chat, session)));
        }
        let finished = self.finish(store, chat, active_answer);
        if finished.is_ok() && !self.is_answering(chat) {
            match self.titles.answered(store, &self.engine_handle.state(), chat) {
                Err(error) if !is_removed(&error) => return Err(error),
                _ => {}
            }
        }
        once(finished)
    }

    /// True if no chat needs a title and none is being written.
    #[cfg(any(test, feature = "test-hooks"))]
    pub fn has_no_titles_to_write(&self) -> bool {
        self.titles.is_idle()
    }

    /// Starts the generation of message `id` on a session or on a server. `None` if it waits for
    /// vectors of passages.
    fn generate(
        &mut self,
        store: &mut Store,
        state: &ModelState,
        chat: ChatId,
        id: MessageId,
    ) -> Result<Option<Started>, String> {
        let key = match state {
            ModelState::Ready { model, engine } => given::counting_key(&model.key(), engine),
            _ => String::new(),
        };
        let tools = self.definitions(store, chat, id).map_err(|error| error.to_string())?;
        let measure = match state {
            ModelState::Ready { engine, .. } => Measure::engine(engine, &key, &tools),
            _ => Measure::server(),
        };
        let sees_pictures = measure.sees_pictures();
        // The time counts for all questions of the answer together.
        let since = self.unranked.remove(&chat).map_or_else(Instant::now, |unranked| unranked.since);
        let may_wait = since.elapsed() < PATIENCE;
        let decided = ChatPrompt::decide(store, chat, id, &measure.with_meaning(&self.meaning, may_wait));
        if let PassageDecision::Waits(files, question) = decided.map_err(|error| error.to_string())? {
            self.unranked.insert(chat, UnrankedFiles { files, question, since });
            return Ok(None);
        }
        let prompt = ChatPrompt::read(store, chat, id, sees_pictures);
        let mut prompt = prompt.map_err(|error| error.to_string())?;
        prompt.tools.clone_from(&tools);
        let told = !prompt.tools.is_empty();
        let engine_handle = self.engine_handle.clone();
        let notify = move || engine_handle.notify();
        match state {
            ModelState::Ready { engine, model } => {
                self.model = Arc::downgrade(engine.model());
                let session = self.session(chat)?;
                let format = engine.chat_template().tools();
                let reader = told.then(|| CallReader::new(id, Some(format), &prompt.tools));
                let request = prompt.request(session.context(), model);
                Ok(Some((Answer::start(notify, Arc::clone(&session), request), Some(session), reader)))
            }
            ModelState::Remote { model, client } => {
                let reader = told.then(|| CallReader::new(id, None, &[]));
                let remote = prompt.remote_request(&model.name);
                Ok(Some((Answer::start_remote(notify, client.clone(), remote), None, reader)))
            }
            _ => Err("No model is open.".to_owned()),
        }
    }

    /// The request that message `id` answered, with the seed of that answer. The error is a
    /// sentence.
    pub fn repeated_request(
        &self,
        store: &Store,
        engine: &Engine,
        model: &ModelId,
        chat: ChatId,
        id: MessageId,
    ) -> Result<Request, String> {
        let mut prompt =
            ChatPrompt::repeated(store, chat, id, engine.tower().is_some()).map_err(|error| error.to_string())?;
        prompt.tools = self.definitions(store, chat, id).map_err(|error| error.to_string())?;
        Ok(prompt.request(engine.context(), model))
    }

    /// The tools and variables that the template of message `id` gets in addition to the messages.
    ///
    /// # Errors
    /// The store's error.
    pub fn chat_options(&self, store: &Store, chat: ChatId, id: MessageId) -> Result<ChatOptions, StoreError> {
        Ok(ChatOptions { tools: self.definitions(store, chat, id)?, ..ChatOptions::default() })
    }

    /// `true` while the chat may call tools and a tool server is still connecting.
    fn waits_for_tools(&self, store: &Store, chat: ChatId) -> bool {
        let connecting = self.tools.as_ref().is_some_and(|tools| tools.hub().is_connecting());
        connecting && store.chat(chat).is_ok_and(|chat| chat.tools)
    }

    /// `true` while the answer of a chat waits for vectors of passages.
    fn waits_for_meaning(&self, store: &Store, chat: ChatId) -> bool {
        let Some(UnrankedFiles { files, question, since }) = self.unranked.get(&chat) else { return false };
        let may_wait = since.elapsed() < PATIENCE;
        self.meaning.question(store, files, question, may_wait) == QuestionMeaning::Waits
    }

    /// Definitions of the tools given to the model of answer `id`. None if the chat has no tools,
    /// or after [`MOST_ROUNDS`] answers with calls.
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

    /// The chat's session, or a new one. The idle session of another chat is dropped first, because
    /// each session allocates memory for its context.
    fn session(&mut self, chat: ChatId) -> Result<Arc<Session>, String> {
        match self.idle.take() {
            Some((last, session)) if last == chat => Ok(session),
            other => {
                drop_in_background(other);
                let session = self.engine_handle.session(SessionOptions::default());
                session.map(Arc::new).map_err(|error| error_message(&error))
            }
        }
    }
}

/// Saves the neurons of the last tokens of a chat that is being answered. If this fails, the map
/// starts empty next time.
pub(super) fn keep_map(store: &mut Store, chat: ChatId, answer: &ActiveAnswer) {
    let (Some(session), Some(model)) = (answer.session(), answer.model()) else { return };
    let map = remembered::write(session.engine().neurons(), session.id());
    if !map.is_empty()
        && let Err(error) = store.set_neuron_map(chat, model, &map)
    {
        tracing::warn!(%error, "the map of the chat is not kept");
    }
}
