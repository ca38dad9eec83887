//! Background work, for tasks that would delay a frame.

use std::{
    sync::mpsc::{self, Receiver, TryRecvError},
    thread,
    time::{Duration, Instant},
};

use egui::Context;

use crate::waker::Waker;

/// Tasks that take longer than this are shown to the user.
pub const SLOW: Duration = Duration::from_millis(200);

/// One background task at a time, and its result.
#[derive(Debug)]
pub struct Background<T>(Option<BackgroundTask<T>>);

#[derive(Debug)]
struct BackgroundTask<T> {
    receiver: Receiver<T>,
    began: Instant,
}

impl<T> Default for Background<T> {
    fn default() -> Self {
        Background(None)
    }
}

impl<T: Send + 'static> Background<T> {
    /// True while a task runs, or its result has not been taken.
    pub fn is_busy(&self) -> bool {
        self.0.is_some()
    }

    /// True while a task has been running for longer than [`SLOW`].
    pub fn is_slow(&self) -> bool {
        self.0.as_ref().is_some_and(|task| task.began.elapsed() >= SLOW)
    }

    /// Starts `work` on a thread and requests a frame at its end. The result of an earlier task is
    /// dropped.
    ///
    /// # Errors
    /// A sentence if the system cannot start a thread.
    pub fn start(&mut self, ctx: &Context, work: impl FnOnce() -> T + Send + 'static) -> Result<(), String> {
        let (sender, receiver) = mpsc::channel();
        let waker = Waker::of(ctx);
        let work = move || {
            // The receiver may have been dropped.
            let _ = sender.send(work());
            waker.now();
        };
        thread::Builder::new()
            .name("background".to_owned())
            .spawn(work)
            .map_err(|error| format!("no thread to work with: {error}"))?;
        self.0 = Some(BackgroundTask { receiver, began: Instant::now() });
        Ok(())
    }

    /// Waits until a task that must not outlive the caller has ended, but at most `most`.
    pub fn wait(&mut self, most: Duration) {
        if let Some(task) = self.0.take() {
            // The task may have panicked without a result.
            let _ = task.receiver.recv_timeout(most);
        }
    }

    /// The result, returned once.
    pub fn take(&mut self) -> Option<T> {
        let found = match self.0.as_ref()?.receiver.try_recv() {
            Ok(found) => Some(found),
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => None,
        };
        self.0 = None;
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use super::*;
    use thermocline_host::testing::{PATIENCE, until};

    #[test]
    fn a_task_is_waited_for_but_not_for_ever() {
        let (ctx, mut background, ended) =
            (Context::default(), Background::default(), Arc::new(AtomicBool::new(false)));
        let end = Arc::clone(&ended);
        let work = move || {
            thread::sleep(Duration::from_millis(30));
            end.store(true, Ordering::SeqCst);
        };
        background.start(&ctx, work).unwrap();
        background.wait(PATIENCE);
        assert!(ended.load(Ordering::SeqCst) && !background.is_busy());
        let (hold, held) = mpsc::channel::<()>();
        background.start(&ctx, move || _ = held.recv()).unwrap();
        background.wait(Duration::from_millis(1));
        assert!(!background.is_busy());
        drop(hold);
        background.wait(PATIENCE);
    }

    #[test]
    fn background_result_arrives_once_and_a_panic_ends_the_wait() {
        let (ctx, mut background) = (Context::default(), Background::default());
        assert!(!background.is_busy() && background.take().is_none());
        background.start(&ctx, || thread::sleep(Duration::from_millis(1))).unwrap();
        let wait = |background: &mut Background<()>| {
            until("an end", || {
                let found = background.take();
                (found.is_some() || !background.is_busy()).then_some(found)
            })
        };
        assert_eq!(wait(&mut background), Some(()));
        assert!(!background.is_busy() && background.take().is_none());
        background.start(&ctx, || panic!("on purpose")).unwrap();
        assert_eq!(wait(&mut background), None);
    }
}
