//! From logits to a token. [`Sampler`] runs the chain of [`super::Sampling`]: logit bias,
//! penalties, DRY, top-k, typical, top-p, min-p, temperature, draw. It works on the remaining
//! candidates and never sorts more of a vocabulary than a filter needs. It allocates nothing once
//! its buffers have grown.
//!
//! The same logits, history, settings and seed give the same token on every platform, with any
//! number of threads. The generator is ChaCha12, ties go to the lower id, and sums have a fixed
//! order. The exponential is computed here, because the system's differs between platforms.
//! [`Grammar`]s apply first and ban the tokens that may not follow. (Logits themselves are only
//! guaranteed to be equal on the same instruction set.)

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
