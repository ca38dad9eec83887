//! Models on other machines: a client of any server that speaks OpenAI's protocol (vLLM, SGLang, llama-server, another Thermocline).
//!
//! A [`ServerAddress`] is a server's base URL, a [`RemoteModel`] one of its models; a [`RemoteClient`] asks it: for its models, and for answers that arrive in pieces
//! ([`RemoteEvent`]) and can be cancelled ([`Cancel`]). [`SecretKey`] is what a server wants to be shown; the [`KeyStore`] keeps it in the
//! system's keychain, or in a file of the user's own. Nothing here runs an engine or draws a window. No error and no log has a key in it.

mod address;
mod answer;
mod cancel;
mod client;
mod error;
mod events;
mod key;
mod key_store;
mod model;
mod request;

pub use address::ServerAddress;
pub use answer::{FinishReason, RemoteAnswer, RemoteEvent, RemoteToolCall, RemoteUsage};
pub use cancel::Cancel;
pub use client::{RemoteClient, RemoteTimeouts};
pub use error::RemoteError;
pub use key::SecretKey;
pub use key_store::{KeyError, KeyPlace, KeyStore};
pub use model::RemoteModel;
pub use request::RemoteRequest;

#[cfg(test)]
pub mod tests;
