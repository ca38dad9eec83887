//! The sending end of a generation's events.

use std::sync::{
    Arc, OnceLock,
    mpsc::{self, Receiver, Sender},
};

use super::Event;
use crate::error::Error;

/// Why the engine stopped, once it has.
pub(super) type Stopped = Arc<OnceLock<String>>;

/// Sends events, and makes sure that the last one is an end: dropped without one, by a panic or with a queue, it reports
/// that the engine stopped.
#[derive(Debug)]
pub(super) struct Outbox {
    sender: Option<Sender<Event>>,
    stopped: Stopped,
}

impl Outbox {
    pub fn new(stopped: &Stopped) -> (Self, Receiver<Event>) {
        let (sender, receiver) = mpsc::channel();
        (Outbox { sender: Some(sender), stopped: Arc::clone(stopped) }, receiver)
    }

    /// Whether anybody still listens.
    #[must_use]
    pub fn send(&self, event: Event) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.send(event).is_ok())
    }

    /// Sends the end.
    pub fn finish(mut self, event: Event) {
        if let Some(sender) = self.sender.take() {
            // Nobody needs to listen to the end.
            let _ = sender.send(event);
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            let _ = sender.send(Event::Error(stopped_error(&self.stopped)));
        }
    }
}

/// The error of an engine that has stopped.
pub(super) fn stopped_error(stopped: &Stopped) -> Error {
    Error::Stopped(stopped.get().cloned().unwrap_or_else(|| "it was closed".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{GenerationStats, StopReason};

    #[test]
    fn a_dropped_outbox_reports_the_stop() {
        let stopped = Stopped::default();
        let (outbox, events) = Outbox::new(&stopped);
        stopped.set("out of luck".to_owned()).unwrap();
        drop(outbox);
        let end: Vec<Event> = events.iter().collect();
        assert!(matches!(&end[..], [Event::Error(Error::Stopped(why))] if why == "out of luck"));
    }

    #[test]
    fn a_finished_one_is_silent_and_a_deaf_receiver_is_noticed() {
        let (outbox, events) = Outbox::new(&Stopped::default());
        assert!(outbox.send(Event::Prompt { done: 0, total: 1 }));
        let stats = GenerationStats::default();
        outbox.finish(Event::Done { reason: StopReason::MaxTokens, stats });
        assert_eq!(events.iter().count(), 2);
        let (outbox, events) = Outbox::new(&Stopped::default());
        drop(events);
        assert!(!outbox.send(Event::Prompt { done: 0, total: 1 }));
    }
}
