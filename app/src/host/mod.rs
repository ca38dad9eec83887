//! The engine as the window sees it: nothing here makes a caller wait. A [`Host`] opens and closes models in the background;
//! an [`Answer`] collects what a generation says until the window comes to take it. Whatever fails, a panic of the engine
//! included, is a state with a reason, and the host goes on to open the next model.

mod answer;
mod model;
mod reason;

pub use answer::{Answer, End, Ending, GATHERED, Update};
pub use model::{Host, HostState, Opening};
pub use reason::reason;
