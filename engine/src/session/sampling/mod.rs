//! From logits to a token. [`Sampler`] runs the chain of [`super::Sampling`]: logit bias, penalties, DRY, top-k, typical,
//! top-p, min-p, temperature, draw. It works on the candidates that are left, never sorts more of a vocabulary than a
//! filter asks for, and allocates nothing once its buffers have grown.
//!
//! The same logits, history, settings and seed give the same token on every platform: the generator is ChaCha12, ties
//! go to the lower id, sums have a fixed order, and the exponential is computed here, since the system's
//! differs between platforms. Threads play no part here. [`Grammar`]s come before all of it: they ban the tokens that may not follow.
//! (Logits themselves are only promised to be equal
//! on the same instruction set.)

mod candidates;
mod gbnf;
mod grammar;
mod json_schema;
mod number_length;
mod pattern;
mod penalties;
mod sampler;
mod schema_reader;

pub use grammar::{Grammar, GrammarCompiler, GrammarState};
pub use json_schema::{CallSchema, JsonSchema};
pub use penalties::Breakers;
pub use sampler::{Sampler, argmax};
