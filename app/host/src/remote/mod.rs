//! Models on other machines: a client of any server that speaks OpenAI's protocol (vLLM, SGLang,
//! llama-server, another Thermocline).
//!
//! A [`ServerAddress`] is a server's base URL, and a [`RemoteModel`] is one of its models. A
//! [`RemoteClient`] lists the models and requests answers. Answers arrive in pieces
//! ([`RemoteEvent`]) and can be cancelled ([`Cancel`]). A [`SecretKey`] is a server's API key. The
//! [`KeyStore`] keeps keys in the system's keychain, or in a file that only the user can read.
//! Nothing here runs an engine or draws a window. No error or log contains a key.

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
pub use request::{RemoteRequest, picture_part};

#[cfg(test)]
pub mod tests;
