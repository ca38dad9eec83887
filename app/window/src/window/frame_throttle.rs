//! Throttles the window's frames while the model answers, if the processor that computes the model
//! also draws the window. Every frame takes time from the answer. A short story of the built-in
//! model takes as long as three frames.

use std::time::{Duration, Instant};

use thermocline_chats::{chat::ChatController, server_switch::ServerSwitch};

/// Minimum time between two frames during an answer, and between the start of the answer and its
/// first frame.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);

/// Delays frames during an answer. Delays the start of an answer until the frame before it is on
/// the screen.
pub struct FrameThrottle {
    /// Waits until the submitted frame is on the screen.
    drawn: Box<dyn Fn()>,
    /// Start of the latest frame or answer.
    latest_start: Instant,
}

impl FrameThrottle {
    /// Creates a throttle. `drawn` waits until the graphics device has finished all submitted work.
    pub fn new(drawn: impl Fn() + 'static) -> Self {
        FrameThrottle { drawn: Box::new(drawn), latest_start: Instant::now() }
    }

    /// Call this before anything that starts answers. A requested answer starts after the frame of
    /// its request is on the screen.
    pub fn before_answers(&mut self, chat_controller: &ChatController) {
        if chat_controller.will_start_answer() {
            (self.drawn)();
            self.latest_start = Instant::now();
        }
    }

    /// Call this before a frame. During an answer, in the window or to another program, it waits
    /// until the interval or the answer has ended. Returns true if it has waited, because there may
    /// be new text.
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
