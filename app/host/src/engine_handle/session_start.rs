//! Starts a generation on a session. The engine needs the hashes of a request's pictures. The
//! answer's own thread computes them before, because decoding pixels on the engine's thread would
//! stall all other answers.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
    mpsc::Receiver,
};

use thermocline_engine::{
    pictures::Picture,
    session::{Event, Request, Session},
};

/// A generation that has started, or a request whose pictures must be hashed before.
pub(super) enum SessionStart {
    Running(Receiver<Event>),
    Unhashed(Arc<Session>, Box<Request>),
}

impl SessionStart {
    /// Starts the generation if the hashes of all pictures are known.
    pub fn new(session: &Arc<Session>, request: Request) -> Self {
        let hashed = request.prompt.pictures().all(Picture::has_hash);
        if hashed {
            SessionStart::Running(session.generate(request))
        } else {
            SessionStart::Unhashed(Arc::clone(session), Box::new(request))
        }
    }

    /// Hashes the pictures, which may take seconds, and returns the events of the generation. The
    /// generation is cancelled if `stopped` is set. The caller that sets `stopped` cancels the
    /// session's requests afterwards.
    pub fn events(self, stopped: &AtomicBool) -> Receiver<Event> {
        let (session, request) = match self {
            SessionStart::Running(events) => return events,
            SessionStart::Unhashed(session, request) => (session, request),
        };
        // The engine reports a damaged picture.
        request.prompt.pictures().for_each(|picture| drop(picture.hash()));
        let events = session.generate(*request);
        if stopped.load(SeqCst) {
            session.cancel();
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::session::{
        ContextPolicy, EngineOptions, Message, Prompt, Role, SessionOptions, StopReason,
    };

    use super::*;
    use crate::{
        engine_handle::{EngineHandle, ModelState},
        library::ModelId,
        testing::eventually,
    };

    #[test]
    fn pictures_are_hashed_before_the_engine_gets_them_and_a_stop_meanwhile_counts() {
        let handle = EngineHandle::new(|| ());
        handle.open(ModelId::Builtin, EngineOptions::default());
        eventually("a model", || matches!(handle.state(), ModelState::Ready { .. }));
        let session = Arc::new(handle.session(SessionOptions::default()).unwrap());

        let picture = Picture::from_rgb(2, 1, vec![9; 6]).unwrap();
        let message = Message { pictures: vec![picture.clone()], ..Message::new(Role::User, "Look.") };
        let request = Request::new(Prompt::Chat(vec![message]));
        let start = SessionStart::new(&session, request.clone());
        assert!(matches!(start, SessionStart::Unhashed(..)) && !picture.has_hash());
        let last = start.events(&AtomicBool::new(false)).into_iter().last();
        assert!(picture.has_hash());
        assert!(matches!(last, Some(Event::Error(_))), "the model has no vision tower: {last:?}");
        assert!(matches!(SessionStart::new(&session, request), SessionStart::Running(_)));

        let on_full = ContextPolicy::Shift { keep: 1 };
        let endless = Request { ignore_eos: true, on_full, ..Request::new(Prompt::Text("Once".to_owned())) };
        let start = SessionStart::Unhashed(session, Box::new(endless));
        let last = start.events(&AtomicBool::new(true)).into_iter().last();
        assert!(matches!(last, Some(Event::Done { reason: StopReason::Cancelled, .. })), "{last:?}");
    }
}
