//! What is being said: which chats are answered now, by which session of the engine. [`Talk`] begins answers and moves
//! their news into the store; [`Figures`] is what is kept about an answer, [`Choices`] how the user wants tokens chosen.
//! Nothing here knows a window, and nothing waits.

mod choices;
mod figures;
mod under_way;

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use thermocline_engine::{
    model::Model,
    session::{ContextPolicy, Message as Turn, Prompt, Request, Role, Session, SessionOptions},
    tokenizer::ChatMessage,
};

use crate::{
    host::{Answer, Host, HostState, reason},
    store::{ChatId, Message, MessageId, MessageState, NewMessage, Speaker, Store, StoreError, Streaming, title},
};

pub use choices::Choices;
pub use figures::Figures;
pub use under_way::Progress;

use under_way::UnderWay;

/// Answers under way, and the session that spoke last.
#[derive(Debug, Default)]
pub struct Talk {
    answers: HashMap<ChatId, UnderWay>,
    /// The chat that was answered last: what its session has read need not be read again.
    idle: Option<(ChatId, Arc<Session>)>,
    /// The model that the sessions belong to.
    model: Weak<Model>,
    revision: u64,
    /// To be told with the next tick.
    errors: Vec<StoreError>,
    /// Whether answers begin with the next tick only.
    patient: bool,
}

impl Talk {
    /// Changes whenever messages have come, or an answer has ended.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether any chat is being answered.
    pub fn is_busy(&self) -> bool {
        self.answers.values().any(|answer| !answer.is_ended())
    }

    /// Answers begin with the next [`Talk::tick`] from now on, and not at once: so that whoever asks can finish something before.
    pub fn set_patient(&mut self) {
        self.patient = true;
    }

    /// Whether the next [`Talk::tick`] begins an answer.
    pub fn begins(&self, host: &Host) -> bool {
        let waits = |answer: &UnderWay| !answer.is_begun() && !answer.is_ended();
        self.answers.values().any(waits) && matches!(host.state(), HostState::Ready { .. })
    }

    /// Whether the model reads or answers in any chat.
    pub fn is_speaking(&self) -> bool {
        self.answers.values().any(UnderWay::is_begun)
    }

    /// Waits until every answer that was begun has ended, but no longer than `longest`.
    pub fn wait(&self, longest: Duration) {
        let until = Instant::now() + longest;
        for answer in self.answers.values() {
            answer.wait(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Whether there is an answer that the disk has refused: [`Talk::tick`] tries again.
    pub fn is_unkept(&self) -> bool {
        self.answers.values().any(UnderWay::is_unkept)
    }

    /// The answer that is being written in a chat, or waits for the disk.
    pub fn progress(&self, chat: ChatId) -> Option<Progress<'_>> {
        self.answers.get(&chat).map(UnderWay::progress)
    }

    /// The user says something after `parent`, and is answered. The chat is named after its first message.
    ///
    /// # Errors
    /// What the store says.
    pub fn say(
        &mut self,
        store: &mut Store,
        host: &Host,
        chat: ChatId,
        parent: Option<MessageId>,
        text: &str,
    ) -> Result<(), StoreError> {
        self.end(store, chat)?;
        let message = store.add_message(chat, parent, &NewMessage::user(text))?;
        if parent.is_none() {
            store.suggest_title(chat, &title(text))?;
        }
        self.answer(store, host, chat, Some(message))
    }

    /// Answers `parent`, as a further version if there is an answer.
    ///
    /// # Errors
    /// What the store says.
    pub fn answer(
        &mut self,
        store: &mut Store,
        host: &Host,
        chat: ChatId,
        parent: Option<MessageId>,
    ) -> Result<(), StoreError> {
        self.end(store, chat)?;
        let (name, key) = match host.state() {
            HostState::Ready { model, .. } | HostState::Failed { model, .. } => {
                (Some(model.to_string()), Some(model.key()))
            }
            HostState::Opening(opening) => (Some(opening.model.to_string()), Some(opening.model.key())),
            HostState::Empty => (None, None),
        };
        store.set_chat_model(chat, key.as_deref())?;
        let streaming = Streaming::begin(store, chat, parent, name.as_deref())?;
        self.begin(store, host, chat, streaming)
    }

    /// Goes on with an answer that ended too early.
    ///
    /// # Errors
    /// What the store says.
    pub fn resume(
        &mut self,
        store: &mut Store,
        host: &Host,
        chat: ChatId,
        message: MessageId,
    ) -> Result<(), StoreError> {
        self.end(store, chat)?;
        let streaming = Streaming::resume(store, message)?;
        self.begin(store, host, chat, streaming)
    }

    fn begin(&mut self, store: &mut Store, host: &Host, chat: ChatId, streaming: Streaming) -> Result<(), StoreError> {
        self.answers.insert(chat, UnderWay::new(streaming));
        self.revision += 1;
        if self.patient {
            return Ok(());
        }
        let errors = self.tick(store, host);
        self.errors.extend(errors);
        Ok(())
    }

    /// Ends the answer of a chat after the token being computed.
    pub fn stop(&mut self, chat: ChatId) {
        if let Some(under_way) = self.answers.get_mut(&chat) {
            under_way.stop();
        }
    }

    /// Ends the answer of a chat at once; what was said stands.
    fn end(&mut self, store: &mut Store, chat: ChatId) -> Result<(), StoreError> {
        let Some(mut under_way) = self.answers.remove(&chat) else { return Ok(()) };
        if !under_way.is_ended() {
            let session = under_way.end(MessageState::Stopped, None);
            let_go(session.map(|session| (chat, session)));
        }
        self.finish(store, chat, under_way)
    }

    /// Keeps an answer that has ended. One that cannot be kept stays, so that it is seen and tried again.
    fn finish(&mut self, store: &mut Store, chat: ChatId, mut under_way: UnderWay) -> Result<(), StoreError> {
        self.revision += 1;
        let kept = under_way.finish(store);
        if matches!(&kept, Err(error) if !is_gone(error)) {
            self.answers.insert(chat, under_way);
        }
        kept
    }

    /// Ends all answers at once and lets go of the model, so that it can be closed. What was said stands.
    pub fn leave(&mut self, store: &mut Store) -> Vec<StoreError> {
        let chats: Vec<ChatId> = self.answers.keys().copied().collect();
        let errors = chats.into_iter().filter_map(|chat| self.end(store, chat).err()).collect();
        let_go(self.idle.take());
        self.model = Weak::new();
        errors
    }

    /// Moves news into the store. To be called while there are answers, whether or not they are seen.
    pub fn tick(&mut self, store: &mut Store, host: &Host) -> Vec<StoreError> {
        let state = host.state();
        let mut errors = std::mem::take(&mut self.errors);
        if !self.model.ptr_eq(&Weak::new()) {
            let same = matches!(&state, HostState::Ready { engine, .. }
                if std::ptr::eq(Arc::as_ptr(engine.model()), self.model.as_ptr()));
            if !same {
                errors.append(&mut self.leave(store));
            }
        }
        let chats: Vec<ChatId> = self.answers.keys().copied().collect();
        for chat in chats {
            if let Err(error) = self.advance(store, host, &state, chat) {
                errors.push(error);
            }
        }
        errors
    }

    fn advance(&mut self, store: &mut Store, host: &Host, state: &HostState, chat: ChatId) -> Result<(), StoreError> {
        let Some(mut under_way) = self.answers.remove(&chat) else { return Ok(()) };
        // Of failures in a row one is told.
        let told = under_way.is_unkept();
        let once = |kept: Result<(), StoreError>| if told { Ok(()) } else { kept };
        if under_way.is_ended() {
            if under_way.is_due() {
                return once(self.finish(store, chat, under_way));
            }
            self.answers.insert(chat, under_way);
            return Ok(());
        }
        let failed = |sentence: String| (MessageState::Failed, Some(Figures::failed(sentence)));
        let end = if under_way.is_begun() {
            under_way.listen()
        } else if under_way.is_stopped() {
            Some((MessageState::Stopped, None))
        } else {
            match state {
                HostState::Opening(_) => None,
                HostState::Empty => Some(failed("No model is open.".to_owned())),
                HostState::Failed { model, reason } => Some(failed(format!("{model} could not be opened: {reason}"))),
                HostState::Ready { engine, model } => {
                    self.model = Arc::downgrade(engine.model());
                    let begun = self.session(host, chat).and_then(|session| {
                        let request = request(store, chat, under_way.id(), &session, model)?;
                        let host = host.clone();
                        Ok((Answer::begin(move || host.notify(), Arc::clone(&session), request), session))
                    });
                    match begun {
                        Ok((answer, session)) => {
                            under_way.begun(answer, session);
                            None
                        }
                        Err(sentence) => Some(failed(sentence)),
                    }
                }
            }
        };
        let Some((state, figures)) = end else {
            let kept = under_way.write(store);
            if matches!(&kept, Err(error) if is_gone(error)) {
                self.revision += 1;
                return kept;
            }
            self.answers.insert(chat, under_way);
            return once(kept);
        };
        if let Some(session) = under_way.end(state, figures) {
            let_go(self.idle.replace((chat, session)));
        }
        once(self.finish(store, chat, under_way))
    }

    /// The session that knows the chat, or a new one in place of the idle one: each takes memory for its context.
    fn session(&mut self, host: &Host, chat: ChatId) -> Result<Arc<Session>, String> {
        match self.idle.take() {
            Some((last, session)) if last == chat => Ok(session),
            other => {
                let_go(other);
                host.session(SessionOptions::default()).map(Arc::new).map_err(|error| reason(&error))
            }
        }
    }
}

/// Whether the message was removed, so that there is nothing to keep any more.
fn is_gone(error: &StoreError) -> bool {
    matches!(error, StoreError::Missing { .. })
}

/// Drops a session where it may take its time: it may be the last that holds the engine.
fn let_go(session: Option<(ChatId, Arc<Session>)>) {
    if session.is_some() {
        // Without a thread for it, it is dropped here.
        let _ = thread::Builder::new().name("close-session".to_owned()).spawn(move || drop(session));
    }
}

/// Everything said before message `id`, to be answered; or, if it has words already, to be gone on with.
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
    let choices = Choices::of(about.sampling.as_deref());
    let mut turns = Vec::new();
    if !about.system_prompt.trim().is_empty() {
        turns.push(Turn { role: Role::System, content: about.system_prompt });
    }
    turns.extend(before.into_iter().map(turn));
    let begun = own.map_or("", |message| &message.content);
    let version = own.map_or(1, |message| message.version.0);
    let (prompt, stop) = if begun.is_empty() {
        (Prompt::Chat(turns), Vec::new())
    } else {
        let template = session.engine().chat_template();
        let messages: Vec<ChatMessage<'_>> = turns.iter().map(message).collect();
        let text = template.render(&messages, true).map_err(|error| error.to_string())?;
        (Prompt::Text(text + begun), template.stop_strings().iter().map(|&stop| stop.to_owned()).collect())
    };
    let mut sampling = choices.over(Choices::base(model));
    // A fixed seed would give the same answer again.
    sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(version as u64 - 1));
    let on_full = if choices.stop_when_full { ContextPolicy::Stop } else { ContextPolicy::Shift { keep: 1 } };
    // What has forgotten its own beginning seldom finds an end.
    let most = choices.max_tokens.unwrap_or_else(|| session.context());
    Ok(Request { sampling, max_tokens: Some(most), stop, on_full, ..Request::new(prompt) })
}

fn turn(message: &Message) -> Turn {
    let role = match message.speaker {
        Speaker::User => Role::User,
        Speaker::Assistant => Role::Assistant,
    };
    Turn { role, content: message.content.clone() }
}

fn message(turn: &Turn) -> ChatMessage<'_> {
    let role = match turn.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    ChatMessage { role, content: &turn.content }
}

#[cfg(test)]
mod tests;
