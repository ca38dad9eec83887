//! An [`Engine`] owns a model and one thread; a [`Session`] is one conversation with its own KV cache. Requests go in,
//! [`Event`]s come out of a channel, and any request can be cancelled within one token.
//!
//! Inside, the thread ([`worker`]) gives every session with work a step in turn. A step of a [`generation`] computes a
//! chunk of tokens in a [`context`] (a KV cache and the tokens it holds), has [`sampling`] choose one from the logits, and
//! passes it through [`text`] (whole characters, no stop strings) into the [`outbox`].
//!
//! The forward pass may live on a GPU: [`residence`] has a [`loader`] bring the model there, or as much of it as [`place`] finds
//! the budget best used for, moves back to the CPU when the
//! [`device`] is lost, and tries it again. Contexts follow with their keys and values, or by computing their tokens anew, and
//! generations go on from the token they were at. What callers ask of a running engine (the budget in VRAM, which neurons are
//! skipped) is a [`wish`], taken up between two tokens. What a budget would give is a [`forecast`], corrected by what was [`observed`]; a
//! [`survey`] measures the machine while nobody wants anything of it. [`adapt`] lets the hot neurons follow what is said.

mod adapt;
mod context;
mod device;
mod engine;
mod event;
mod forecast;
mod frequencies;
mod generation;
mod handle;
mod loader;
mod observed;
mod observer;
mod options;
mod outbox;
mod outlook;
mod place;
mod prospect;
mod request;
mod residence;
pub mod sampling;
mod sparsity;
mod split;
mod stop;
mod survey;
mod text;
mod wish;
mod worker;

pub use device::{DeviceChoice, DeviceEvent, DeviceMemory, DeviceStatus};
pub use engine::{Engine, MemoryReport};
pub use event::{Event, GenerationStats, StopReason};
pub use forecast::Forecast;
pub use frequencies::{Frequencies, Origin};
pub use handle::Session;
pub use options::{EngineOptions, SessionOptions};
pub use outlook::{Expectation, Outlook};
pub use place::{PlaceOptions, Terms, place};
pub use request::{ContextPolicy, Message, Prompt, Request, Role, Sampling};
pub use sparsity::{SparsityChoice, SparsityReport};
pub use split::SplitReport;
pub use survey::SurveyOptions;
