//! The window's handle to the engine. None of its calls block. An [`EngineHandle`] opens and closes
//! models in the background. An [`Answer`] collects the events of a generation until the window
//! takes them. Every failure, even a panic of the engine, becomes a state with a reason. The handle
//! can then open the next model.

mod answer;
mod error_message;
mod handle;
mod session_start;

pub use answer::{Answer, AnswerEnd, AnswerUpdate, BATCH_INTERVAL, EndSignal};
pub use error_message::{error_message, without_folder};
pub use handle::{EngineHandle, ModelFailure, ModelOpening, ModelState};
