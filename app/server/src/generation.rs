//! The engine's generations for one request, one after the other.

use std::{collections::VecDeque, sync::Arc};

use thermocline_engine::{
    Error,
    session::{AnswerText, GenerationStats, Request, Session, StopReason, TokenLogprobs},
};
use tokio::sync::Notify;

use super::{
    context::{ModelLease, ServerContext},
    error::ApiError,
    queue::SessionPermit,
    undecided_answer::{CallsOrForm, Decision, UndecidedAnswer},
};
use thermocline_host::engine_handle::{Answer, AnswerEnd, AnswerUpdate};

/// A running generation and the requests that follow it. Dropping it cancels them. It drops the
/// answer before the permit: a later cancellation would end the next request's generation.
pub struct GenerationQueue {
    answer: Option<Answer>,
    waiting: VecDeque<Request>,
    /// The tools and the grammar, if the answers may call tools or follow a grammar.
    may_be: Option<CallsOrForm>,
    /// The answer, until it is known whether it calls a tool.
    undecided: Option<UndecidedAnswer>,
    /// The answer follows the grammar.
    formed: bool,
    session: Arc<Session>,
    notify: Arc<Notify>,
    context: Arc<ServerContext>,
    _permit: SessionPermit,
    /// Keeps the model open. Released last.
    _lease: ModelLease,
}

/// Text and end that arrived since the previous update.
#[derive(Debug, Default)]
pub struct GenerationUpdate {
    /// New text.
    pub text: AnswerText,
    /// New tokens with their log probabilities, if the request wants them. The prompt's tokens come
    /// first.
    pub scored: Vec<ScoredToken>,
    /// The prompt's embedding, if the request asks for it.
    pub embedding: Option<Vec<f32>>,
    /// True if the answer follows the requested grammar and therefore calls no tools.
    pub formed: bool,
    /// How the answer ended, with its reason.
    pub end: Option<Result<(StopReason, GenerationStats), ApiError>>,
}

/// A token of a prompt or an answer, with its log probability.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredToken {
    /// Text of the token.
    pub bytes: Vec<u8>,
    /// False for special tokens, which are not part of the text.
    pub visible: bool,
    /// Log probability of the token; `None` if nothing predicts it.
    pub logprob: Option<f32>,
    /// The most likely tokens at this position: text and log probability.
    pub top: Vec<(Vec<u8>, f32)>,
}

impl GenerationQueue {
    /// Waits for a slot and starts the first of `requests`. They were parsed for the model of
    /// `lease`; another model may be open by then. With `may_be`, the answers call tools or follow
    /// a grammar.
    pub async fn start(
        context: &Arc<ServerContext>,
        lease: ModelLease,
        requests: impl IntoIterator<Item = Request>,
        may_be: Option<CallsOrForm>,
    ) -> Result<Self, ApiError> {
        let waiting: VecDeque<Request> = requests.into_iter().collect();
        let permit = context.queue.acquire(waiting.front().map(|request| &request.prompt)).await?;
        let model = lease.model(context)?;
        let session = context.queue.session(&model.engine, &permit).map_err(|error| ApiError::from(&error))?;
        let mut generation = GenerationQueue {
            answer: None,
            waiting,
            may_be,
            undecided: None,
            formed: false,
            session,
            notify: Arc::new(Notify::new()),
            context: Arc::clone(context),
            _permit: permit,
            _lease: lease,
        };
        generation.start_next();
        Ok(generation)
    }

    /// Starts the next request after the previous one has ended; `false` if there is none.
    pub fn start_next(&mut self) -> bool {
        let Some(request) = self.waiting.pop_front() else { return false };
        self.undecided = self.may_be.as_ref().map(|may_be| UndecidedAnswer::new(&request, may_be));
        self.formed = false;
        self.generate(request);
        true
    }

    /// Starts the engine's answer to `request`.
    fn generate(&mut self, request: Request) {
        // Drop the old answer first: dropping it later would cancel the new one.
        self.answer = None;
        let wake = Arc::clone(&self.notify);
        let answer = Answer::start(move || wake.notify_one(), Arc::clone(&self.session), request);
        self.context.record_start(answer.end_signal());
        self.answer = Some(answer);
    }

    /// Waits for tokens, progress of the prompt, or the end. Cancelling the wait loses nothing.
    pub async fn next_update(&mut self) -> GenerationUpdate {
        loop {
            let update = self.engine_update().await;
            let Some(undecided) = self.undecided.take() else { return update };
            match undecided.push(update) {
                Decision::Open(undecided) => self.undecided = Some(*undecided),
                Decision::Free(update) => return *update,
                Decision::Formed(request) => {
                    self.formed = true;
                    self.generate(*request);
                }
            }
        }
    }

    async fn engine_update(&mut self) -> GenerationUpdate {
        loop {
            let update = self.answer.as_ref().map(Answer::take_update).unwrap_or_default();
            let scored = !update.logprobs.is_empty();
            let embedded = update.embedding.is_some();
            if update.prompt.is_some() || !update.tokens.is_empty() || scored || embedded || update.end.is_some() {
                return self.convert(update);
            }
            self.notify.notified().await;
        }
    }

    fn convert(&self, update: AnswerUpdate) -> GenerationUpdate {
        update.device.iter().for_each(|event| self.context.record_device(event));
        let end = update.end.map(|end| match end {
            AnswerEnd::Done(StopReason::Cancelled, _) => {
                Err(ApiError::unavailable("the answer was ended because the model is being closed"))
            }
            AnswerEnd::Done(reason, stats) => {
                self.context.record_answer(&stats, &reason);
                Ok((reason, stats))
            }
            AnswerEnd::Failed(error) => Err(ApiError::from(&error)),
            // A session never refuses; only remote servers do.
            AnswerEnd::Refused(why) => Err(ApiError::from(&Error::Stopped(why))),
        });
        let scored = update.logprobs.iter().map(|token| self.scored_token(token)).collect();
        GenerationUpdate { text: update.text, scored, embedding: update.embedding, formed: self.formed, end }
    }

    fn scored_token(&self, token: &TokenLogprobs) -> ScoredToken {
        let tokenizer = self.session.engine().tokenizer();
        let bytes = |id| tokenizer.token_bytes(id).to_vec();
        ScoredToken {
            bytes: bytes(token.id),
            visible: !tokenizer.is_special(token.id),
            logprob: token.logprob,
            top: token.top.iter().map(|&(id, logprob)| (bytes(id), logprob)).collect(),
        }
    }
}
