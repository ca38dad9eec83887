//! Routes of mixture-of-experts models: which experts each token chose ([`Routes`]), recorded while a model computes, kept in a file, or
//! made up with the locality of published ones ([`synthetic`]). [`replay`] runs them through caches of any size and policy, and prices
//! what hits and misses take.

mod file;
mod record;
mod replay;
mod synthetic;
#[cfg(test)]
mod tests;

pub use record::{RouteLayer, Routes, record};
pub use replay::{ExpertSpeeds, Policy, Replay, replay};
pub use synthetic::{Locality, synthetic};
