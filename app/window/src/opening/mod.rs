//! Opening the window. A computer has several graphics [`backend`]s, any of which may be broken: one that has no adapter, cannot
//! open a device, or loses it before the first frame is on the screen is given up for the next. [`backend_order`] says which are tried
//! and in which order, and walks along; an [`attempt`] is a window of eframe's with one backend, from its event loop to its
//! end; [`watch`] is what is seen of it from outside. [`panics`] keeps those of graphics libraries to one attempt. [`losses`] counts the
//! devices that were lost later: the window is opened again for the same contents, and soon with another backend.

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
