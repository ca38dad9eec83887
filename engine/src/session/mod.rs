//! An [`Engine`] owns a model and one thread; a [`Session`] is one conversation with its own KV cache. Requests go in,
//! [`Event`]s come out of a channel, and any request can be cancelled within one token.

mod event;
mod request;
pub mod sampling;

pub use event::{Event, GenerationStats, StopReason};
pub use request::{ContextPolicy, Message, Prompt, Request, Role, Sampling};
