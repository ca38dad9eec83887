//! Where the processor that computes the model draws the window, too, they take turns: what is drawn while the model speaks is
//! taken from the answer itself. A short story of the built-in model is told in the time of three frames.

use std::time::{Duration, Instant};

use crate::{chat::ChatController, engine_handle::EngineHandle, server::ServerSwitch};

/// Between two frames while the model speaks, and between the beginning of an answer and the first of them.
const SPEECH: Duration = Duration::from_millis(100);

/// Whose turn it is.
pub struct Turns {
    /// Waits until what was drawn is on the screen.
    drawn: Box<dyn Fn()>,
    /// When a frame, or an answer, was begun last.
    begun: Instant,
}

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turns").field("begun", &self.begun).finish_non_exhaustive()
    }
}

impl Turns {
    /// `drawn` waits until all that was asked of whatever draws the window is done.
    pub fn new(drawn: impl Fn() + 'static) -> Self {
        Turns { drawn: Box::new(drawn), begun: Instant::now() }
    }

    /// To be called before anything that begins answers: one that was asked for begins when the frame in which that happened is
    /// on the screen.
    pub fn before_answers(&mut self, chat_controller: &ChatController, engine_handle: &EngineHandle) {
        if chat_controller.will_start_answer(engine_handle) {
            (self.drawn)();
            self.begun = Instant::now();
        }
    }

    /// To be called before a frame. While the model speaks, in the window or to another program, it waits for the window's turn,
    /// which comes with the end of the answer at the latest. Returns whether it has waited: then there is news.
    pub fn before_frame(&mut self, chat_controller: &ChatController, serving: &ServerSwitch) -> bool {
        let rest = SPEECH.saturating_sub(self.begun.elapsed());
        let (here, there) = (chat_controller.is_generating(), serving.active_answer());
        let waits = !rest.is_zero() && (here || there.is_some());
        if waits {
            let began = Instant::now();
            if here {
                chat_controller.wait_until_idle(rest);
            }
            if let Some(ending) = there {
                ending.wait(rest.saturating_sub(began.elapsed()));
            }
        }
        self.begun = Instant::now();
        waits
    }
}
