//! Opens the window. A computer has several graphics [`backend`]s, and any of them may be broken. A
//! backend may have no adapter, fail to open a device, or lose the device before the first frame is
//! on the screen. Then the next backend is tried.
//!
//! [`backend_order`] holds the order and tries the backends. An [`attempt`] is one eframe window
//! with one backend, from its event loop to its end. [`watch`] observes it from outside. [`panics`]
//! confines panics of graphics libraries to one attempt. [`losses`] counts devices that were lost
//! later: the window is then opened again with the same contents, and after repeated losses with
//! another backend.

mod attempt;
mod backend;
mod backend_order;
mod losses;
mod panics;
mod watch;

pub use attempt::{DesktopWindow, Ending, UntilDrawn};
pub use backend::Backend;
pub use backend_order::{BackendOrder, Chosen, NoWindow};
pub use losses::Losses;
pub use panics::{are_contained, contained, note_place};
pub use watch::{FrameWatch, Refusal};
