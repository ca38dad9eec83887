//! The throttle of the window's frames while the model answers, where the processor that computes the model draws the window, too:
//! every frame takes time from the answer. A short story of the built-in model takes as long as three frames.

use std::time::{Duration, Instant};

use thermocline_chats::{chat::ChatController, server_switch::ServerSwitch};

/// Least time between two frames during an answer, and between its beginning and the first of them.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);

/// Delays frames during an answer, and an answer's beginning until the frame before it is on the screen.
pub struct FrameThrottle {
    /// Waits until what was drawn is on the screen.
    drawn: Box<dyn Fn()>,
    /// Beginning of the latest frame or answer.
    latest_start: Instant,
}

impl FrameThrottle {
    /// `drawn` waits until the graphics device has finished all submitted work.
    pub fn new(drawn: impl Fn() + 'static) -> Self {
        FrameThrottle { drawn: Box::new(drawn), latest_start: Instant::now() }
    }

    /// To be called before anything that begins answers: a requested answer begins when the frame of the request is on the screen.
    pub fn before_answers(&mut self, chat_controller: &ChatController) {
        if chat_controller.will_start_answer() {
            (self.drawn)();
            self.latest_start = Instant::now();
        }
    }

    /// To be called before a frame. During an answer, to the window or to another program, it waits until the interval is over or
    /// the answer has ended. Returns true if it has waited: then there may be new text.
    pub fn before_frame(&mut self, chat_controller: &ChatController, serving: &ServerSwitch) -> bool {
        let rest = FRAME_INTERVAL.saturating_sub(self.latest_start.elapsed());
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
        self.latest_start = Instant::now();
        waits
    }
}
