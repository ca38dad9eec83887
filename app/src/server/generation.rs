//! One generation of the engine for one request.

use std::sync::Arc;

use thermocline_engine::session::{AnswerText, GenerationStats, Request, StopReason};
use tokio::sync::Notify;

use super::{context::ServerContext, error::ApiError, queue::SessionPermit};
use crate::engine_handle::{Answer, AnswerEnd, AnswerUpdate};

/// A running generation; dropping it cancels it. (The answer is dropped before the permit: cancelling later would end the next
/// request's generation.)
#[derive(Debug)]
pub struct Generation {
    answer: Answer,
    notify: Arc<Notify>,
    context: Arc<ServerContext>,
    _permit: SessionPermit,
}

/// Text and end that arrived since the previous update.
#[derive(Debug)]
pub struct GenerationUpdate {
    /// New text.
    pub text: AnswerText,
    /// The end, with its reason.
    pub end: Option<Result<(StopReason, GenerationStats), ApiError>>,
}

impl Generation {
    /// Waits for the session and starts. `name` is the model that `request` was parsed for: another one may be open by then.
    pub async fn start(context: &Arc<ServerContext>, name: &str, request: Request) -> Result<Self, ApiError> {
        let permit = context.queue.acquire().await?;
        let model = context.model()?;
        if model.name != name {
            return Err(ApiError::model_not_found(name, &model.name));
        }
        let session = context.queue.session(&model.engine).map_err(|error| ApiError::from(&error))?;
        let notify = Arc::new(Notify::new());
        let wake = Arc::clone(&notify);
        let answer = Answer::start(move || wake.notify_one(), session, request);
        context.record_start(answer.end_signal());
        Ok(Generation { answer, notify, context: Arc::clone(context), _permit: permit })
    }

    /// Waits until the engine has accepted the request: the prompt is being computed.
    pub async fn started(&mut self) -> Result<GenerationUpdate, ApiError> {
        match self.next_update().await {
            GenerationUpdate { end: Some(Err(error)), .. } => Err(error),
            update => Ok(update),
        }
    }

    /// Waits for tokens, progress of the prompt, or the end.
    pub async fn next_update(&mut self) -> GenerationUpdate {
        loop {
            let update = self.answer.take_update();
            if update.prompt.is_some() || !update.tokens.is_empty() || update.end.is_some() {
                return self.convert(update);
            }
            self.notify.notified().await;
        }
    }

    fn convert(&self, update: AnswerUpdate) -> GenerationUpdate {
        update.device.iter().for_each(|event| self.context.record_device(event));
        let end = update.end.map(|end| match end {
            AnswerEnd::Done(StopReason::Cancelled, _) => Err(ApiError::cancelled()),
            AnswerEnd::Done(reason, stats) => {
                self.context.record_answer(&stats, &reason);
                Ok((reason, stats))
            }
            AnswerEnd::Failed(error) => Err(ApiError::from(&error)),
        });
        GenerationUpdate { text: update.text, end }
    }
}
