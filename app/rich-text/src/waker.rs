//! Requests for frames from other threads.

use std::{sync::Arc, time::Duration};

use egui::{Context, Id};
use parking_lot::Mutex;

use crate::frame_pace;

/// The context that draws the window now, if it is not the first. All wakers of a window share it.
#[derive(Debug, Clone, Default)]
struct Successor(Arc<Mutex<Option<Context>>>);

impl Successor {
    fn of(ctx: &Context) -> Self {
        ctx.data_mut(|data| data.get_temp_mut_or_default::<Successor>(Id::unique("successor of this context")).clone())
    }
}

/// Requests frames of the window from any thread; may be cloned. If the GPU device is lost, the
/// window gets another egui context. Frames are then requested from the new context.
#[derive(Debug, Clone)]
pub struct Waker {
    ctx: Context,
    successor: Successor,
}

impl Waker {
    /// A waker for the window of `ctx`.
    pub fn of(ctx: &Context) -> Self {
        Waker { ctx: ctx.clone(), successor: Successor::of(ctx) }
    }

    /// Makes all wakers of this window wake the new context `ctx` from now on.
    pub fn move_to(&self, ctx: &Context) {
        let id = Id::unique("successor of this context");
        ctx.data_mut(|data| data.insert_temp(id, self.successor.clone()));
        *self.successor.0.lock() = Some(ctx.clone());
        ctx.request_repaint();
    }

    /// The context that draws the window now.
    pub fn context(&self) -> Context {
        self.successor.0.lock().clone().unwrap_or_else(|| self.ctx.clone())
    }

    /// Requests a frame at once.
    pub fn now(&self) {
        self.context().request_repaint();
    }

    /// Requests a frame as soon as the frame pace of the window allows.
    pub fn in_time(&self) {
        let ctx = self.context();
        ctx.request_repaint_after(frame_pace::pace(&ctx));
    }

    /// Requests a frame after `delay`.
    pub fn after(&self, delay: Duration) {
        self.context().request_repaint_after(delay);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_waker_of_a_window_wakes_what_draws_it_now() {
        let [first, second, third] = [(); 3].map(|()| Context::default());
        let (old, other) = (Waker::of(&first), Waker::of(&first));
        assert_eq!(old.context(), first);
        old.move_to(&second);
        assert_eq!([old.context(), other.context(), Waker::of(&second).context()], [(); 3].map(|()| second.clone()));
        // A waker made in between moves, too.
        let between = Waker::of(&second);
        other.move_to(&third);
        assert_eq!([old, other, between].map(|waker| waker.context()), [(); 3].map(|()| third.clone()));
        assert_eq!(Waker::of(&Context::default()).successor.0.lock().as_ref(), None);
    }
}
