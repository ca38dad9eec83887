//! Passages ranked by meaning. A thread of its own runs an embedding model on the CPU, which turns
//! passages and questions into vectors. The store keeps the vectors of passages, so that a later
//! question needs only its own vector.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fs,
    ops::ControlFlow,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    time::{Duration, UNIX_EPOCH},
};

use thermocline_engine::{
    Error, Result,
    model::LoadOptions,
    session::{DeviceChoice, EmbeddingPrompts, Engine, EngineOptions, Prompt, Session, SessionOptions, StateReading},
};

use super::side_thread::{SideThread, SideWork, ThreadState};
use crate::store::{AttachmentId, PassageId, PassageRanking, Store, StoreError};
use thermocline_host::{
    engine_handle::EngineHandle,
    library::{ModelId, embeds},
};

/// Longest time that an answer waits for vectors. Words then rank its passages. Vectors that come
/// later serve the next question.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Time after which an unused model is closed.
const IDLE: Duration = Duration::from_secs(60);

/// Number of questions whose vectors are kept.
const QUESTIONS: usize = 16;

/// Number of passages whose vectors are stored at once.
const BATCH: usize = 16;

/// The vector of a question, or why there is none.
#[derive(Debug, Clone, PartialEq)]
pub enum QuestionMeaning {
    /// The vectors are being computed.
    Waits,
    /// All passages and the question have vectors.
    Known {
        /// Key of the vectors.
        key: String,
        /// The ranking that they allow.
        ranking: PassageRanking,
        /// Vector of the question.
        vector: Vec<f32>,
    },
    /// Words rank the passages.
    Words(PassageRanking),
}

/// A text to embed.
enum EmbeddingJob {
    Passages(Vec<(PassageId, String)>),
    Question(String),
}

/// Results that the window's thread has not taken yet.
#[derive(Debug, Default)]
struct Embedded {
    passages: Vec<(PassageId, Vec<f32>)>,
    questions: Vec<(String, Vec<f32>)>,
    /// Number of finished jobs.
    done: usize,
    failure: Option<String>,
}

impl ThreadState for Embedded {
    fn fail(&mut self, why: String) {
        self.failure = Some(why);
    }
}

/// The thread of an embedding model.
#[derive(Debug)]
struct EmbeddingThread {
    jobs: Sender<EmbeddingJob>,
    embedded: SideThread<Embedded>,
    /// Number of jobs that were sent.
    sent: usize,
    /// The latest question that was sent.
    question: Option<String>,
    /// Number of jobs done when they were last counted.
    done: usize,
}

/// Finds passages by meaning if an embedding model is chosen.
#[derive(Debug)]
pub struct MeaningSearch {
    engine_handle: EngineHandle,
    state: RefCell<MeaningState>,
}

#[derive(Debug, Default)]
struct MeaningState {
    /// The embedding model and the key of its vectors.
    model: Option<(ModelId, String)>,
    thread: Option<EmbeddingThread>,
    /// Vectors of the latest questions.
    questions: VecDeque<(String, Vec<f32>)>,
    /// The question whose vectors failed, and the reason.
    failed: Option<(String, String)>,
}

impl MeaningSearch {
    /// A search without an embedding model.
    pub fn new(engine_handle: EngineHandle) -> Self {
        MeaningSearch { engine_handle, state: RefCell::default() }
    }

    /// Chooses the embedding model. `None`: words rank passages.
    pub fn set_model(&self, model: Option<&ModelId>) {
        let mut state = self.state.borrow_mut();
        if state.model.as_ref().map(|(id, _)| id) != model {
            *state = MeaningState { model: model.map(|id| (id.clone(), vector_key(id))), ..MeaningState::default() };
        }
    }

    /// How passages would be ranked now.
    pub fn ranking(&self) -> PassageRanking {
        let state = self.state.borrow();
        let Some((id, _)) = &state.model else { return PassageRanking::default() };
        match &state.failed {
            Some((_, why)) => PassageRanking { model: None, failure: Some(format!("{id} failed: {why}")) },
            None => PassageRanking { model: Some(id.to_string()), failure: None },
        }
    }

    /// Starts to compute the missing vectors of passages of these files.
    pub fn prepare(&self, store: &Store, files: &[AttachmentId]) {
        let mut state = self.state.borrow_mut();
        if state.model.is_some() && state.failed.is_none() {
            // An error appears when a question needs the vectors.
            let _ = state.send_passages(&self.engine_handle, store, files);
        }
    }

    /// Stores the vectors that were computed since the last call.
    ///
    /// # Errors
    /// The store's error. Words then rank the passages.
    pub fn poll(&self, store: &mut Store) -> Result<(), StoreError> {
        let mut state = self.state.borrow_mut();
        let MeaningState { model: Some((_, key)), thread: Some(thread), questions, failed } = &mut *state else {
            return Ok(());
        };
        let (passages, new, failure) = {
            let mut embedded = thread.embedded.lock();
            thread.done = embedded.done;
            (std::mem::take(&mut embedded.passages), std::mem::take(&mut embedded.questions), embedded.failure.take())
        };
        questions.extend(new);
        while questions.len() > QUESTIONS {
            questions.pop_front();
        }
        let stored = if passages.is_empty() { Ok(()) } else { store.set_passage_vectors(key, &passages) };
        let failure = failure.or_else(|| Some(stored.as_ref().err()?.to_string()));
        if let Some(why) = failure {
            *failed = Some((thread.question.clone().unwrap_or_default(), why));
            state.thread = None;
        }
        stored
    }

    /// The vector of `question`, if all passages of `files` have vectors, too. Starts to compute
    /// what is missing. Words rank the passages meanwhile unless the caller `may_wait`.
    pub fn question(&self, store: &Store, files: &[AttachmentId], question: &str, may_wait: bool) -> QuestionMeaning {
        let mut state = self.state.borrow_mut();
        let Some((id, key)) = state.model.clone() else { return QuestionMeaning::Words(PassageRanking::default()) };
        let words = |why: String| QuestionMeaning::Words(PassageRanking { model: None, failure: Some(why) });
        if let Some((of, why)) = &state.failed {
            if of.is_empty() || of == question {
                let why = why.clone();
                // The next question tries again.
                state.failed = Some((question.to_owned(), why.clone()));
                return words(format!("{id} failed: {why}"));
            }
            state.failed = None;
        }
        let unknown = || match may_wait {
            true => QuestionMeaning::Waits,
            false => words(format!("{id} is still reading the files")),
        };
        match state.send_passages(&self.engine_handle, store, files) {
            Ok(false) => {}
            Ok(true) => return unknown(),
            Err(error) => return words(error.to_string()),
        }
        let known = state.questions.iter().find(|(of, _)| of == question).map(|(_, vector)| vector.clone());
        let Some(vector) = known else {
            state.send(&self.engine_handle, EmbeddingJob::Question(question.to_owned()));
            return unknown();
        };
        let ranking = PassageRanking { model: Some(id.to_string()), failure: None };
        QuestionMeaning::Known { key, ranking, vector }
    }
}

impl MeaningState {
    /// Sends the passages of `files` without vectors to the thread, unless it is busy. True if it
    /// is busy then.
    fn send_passages(
        &mut self,
        engine_handle: &EngineHandle,
        store: &Store,
        files: &[AttachmentId],
    ) -> Result<bool, StoreError> {
        if self.thread.as_ref().is_some_and(|thread| thread.sent > thread.done) {
            return Ok(true);
        }
        let Some((_, key)) = &self.model else { return Ok(false) };
        let missing = store.passages_without_vector(files, key)?;
        let any = !missing.is_empty();
        if any {
            self.send(engine_handle, EmbeddingJob::Passages(missing));
        }
        Ok(any)
    }

    /// Sends a job to the thread, which it starts if necessary.
    fn send(&mut self, engine_handle: &EngineHandle, job: EmbeddingJob) {
        let Some((id, _)) = &self.model else { return };
        let thread = self.thread.get_or_insert_with(|| {
            let (jobs, inbox) = mpsc::channel();
            let id = id.clone();
            let work = move |work: &SideWork<Embedded>| serve(&id, &inbox, work);
            let embedded = SideThread::start(engine_handle, "embed-passages", Embedded::default(), work);
            EmbeddingThread { jobs, embedded, sent: 0, question: None, done: 0 }
        });
        if let EmbeddingJob::Question(question) = &job {
            thread.question = Some(question.clone());
        }
        thread.sent += 1;
        // A thread that has ended has left its failure.
        let _ = thread.jobs.send(job);
    }
}

/// Key of a model's vectors. Another file at the same path has another key.
fn vector_key(id: &ModelId) -> String {
    let ModelId::Path(path) = id else { return id.key() };
    let about = fs::metadata(path).ok();
    let changed = about.as_ref().and_then(|about| about.modified().ok()?.duration_since(UNIX_EPOCH).ok());
    let len = about.map_or(0, |about| about.len());
    format!("{}:{len}:{}", id.key(), changed.map_or(0, |time| time.as_nanos()))
}

/// An open embedding model.
struct Embedder {
    session: Session,
    /// Texts in front of passages and of questions.
    before: [String; 2],
}

impl Embedder {
    fn open(id: &ModelId) -> Result<Self> {
        let model = id.open(&LoadOptions::default())?;
        if !embeds(&model) {
            return Err(Error::unsupported("search by meaning", id, "an embedding model"));
        }
        let prompts = EmbeddingPrompts::of(&model.checkpoint.metadata);
        let before = [prompts.text(Some("document"))?.to_owned(), prompts.text(Some("query"))?.to_owned()];
        let engine =
            Engine::from_model(model, EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() })?;
        Ok(Embedder { session: engine.session(SessionOptions::default())?, before })
    }

    /// The vector of a text, or of its beginning if it is longer than the model's context.
    fn vector(&self, before: &str, text: &str) -> Result<Vec<f32>> {
        let mut text = text;
        loop {
            let prompt = Prompt::Text(format!("{before}{text}"));
            match self.session.read_states(prompt, StateReading::Embedding(None)) {
                Err(Error::ContextFull { .. }) if text.len() > 1 => {
                    text = &text[..text.floor_char_boundary(text.len() / 2)];
                }
                vector => return vector,
            }
        }
    }
}

/// Computes jobs until the other end is dropped.
fn serve(id: &ModelId, inbox: &Receiver<EmbeddingJob>, work: &SideWork<Embedded>) -> Result<()> {
    let mut open: Option<Embedder> = None;
    loop {
        let job = match inbox.recv_timeout(IDLE) {
            Ok(job) => job,
            Err(RecvTimeoutError::Timeout) => {
                open = None;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        if open.is_none() {
            open = Some(Embedder::open(id)?);
        }
        let Some(embedder) = &open else { continue };
        let [document, query] = &embedder.before;
        match job {
            EmbeddingJob::Question(question) => {
                let vector = embedder.vector(query, &question)?;
                work.publish(|embedded| embedded.questions.push((question, vector)));
            }
            EmbeddingJob::Passages(passages) => {
                for passages in passages.chunks(BATCH) {
                    let vectors = passages.iter().map(|(id, text)| Ok((*id, embedder.vector(document, text)?)));
                    let vectors = vectors.collect::<Result<Vec<_>>>()?;
                    work.publish(|embedded| embedded.passages.extend(vectors));
                    if work.proceed() == ControlFlow::Break(()) {
                        return Ok(());
                    }
                }
            }
        }
        work.publish(|embedded| embedded.done += 1);
    }
}

#[cfg(test)]
mod tests;
