//! The engine at work for one request.

use std::sync::Arc;

use thermocline_engine::session::{GenerationStats, Request, StopReason};
use tokio::sync::Notify;

use super::{error::ApiError, queue::Turn, running::Shared};
use crate::host::{Answer, End, Update};

/// A generation under way; dropping it ends it. (The answer before the turn: ending it would end the next one's, too.)
#[derive(Debug)]
pub struct Generation {
    answer: Answer,
    news: Arc<Notify>,
    shared: Arc<Shared>,
    _turn: Turn,
}

/// What is new.
#[derive(Debug)]
pub struct News {
    /// More text.
    pub text: String,
    /// The end.
    pub end: Option<Result<(StopReason, GenerationStats), ApiError>>,
}

impl Generation {
    /// Waits for a turn and begins. `name` is the model that `request` is for: another may be open by then.
    pub async fn begin(shared: &Arc<Shared>, name: &str, request: Request) -> Result<Self, ApiError> {
        let turn = shared.queue.turn().await?;
        let offer = shared.offer()?;
        if offer.name != name {
            return Err(ApiError::model(name, &offer.name));
        }
        let session = shared.queue.session(&offer.engine).map_err(|error| ApiError::from(&error))?;
        let news = Arc::new(Notify::new());
        let notify = Arc::clone(&news);
        let answer = Answer::begin(move || notify.notify_one(), session, request);
        shared.begun(answer.ending());
        Ok(Generation { answer, news, shared: Arc::clone(shared), _turn: turn })
    }

    /// Waits until it is clear that the request can be carried out: the prompt is being read.
    pub async fn begun(&mut self) -> Result<News, ApiError> {
        match self.next().await {
            News { end: Some(Err(error)), .. } => Err(error),
            news => Ok(news),
        }
    }

    /// Waits for news.
    pub async fn next(&mut self) -> News {
        loop {
            let update = self.answer.take();
            if update.prompt.is_some() || !update.tokens.is_empty() || update.end.is_some() {
                return self.heard(update);
            }
            self.news.notified().await;
        }
    }

    fn heard(&self, update: Update) -> News {
        update.device.iter().for_each(|event| self.shared.device(event));
        let end = update.end.map(|end| match end {
            End::Done(StopReason::Cancelled, _) => Err(ApiError::ended()),
            End::Done(reason, stats) => {
                self.shared.answered(&stats, &reason);
                Ok((reason, stats))
            }
            End::Failed(error) => Err(ApiError::from(&error)),
        });
        News { text: update.text, end }
    }
}
