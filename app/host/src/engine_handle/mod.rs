//! The window's handle on the engine; none of its calls block. An [`EngineHandle`] opens and closes models in the background;
//! an [`Answer`] collects the events of a generation until the window takes them. Every failure, a panic of the engine
//! included, becomes a state with a reason, and the handle can open the next model.

mod answer;
mod error_message;
mod handle;

pub use answer::{Answer, AnswerEnd, AnswerUpdate, BATCH_INTERVAL, EndSignal};
pub use error_message::{error_message, without_folder};
pub use handle::{EngineHandle, ModelFailure, ModelOpening, ModelState};
