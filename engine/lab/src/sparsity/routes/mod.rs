//! Routes of mixture-of-experts models. [`Routes`] hold which experts each token chose. They are
//! recorded while a model computes, read from a file, or generated with the locality of published
//! routes ([`synthetic`]). [`replay`] runs routes through caches of any size and policy, and
//! computes the time of hits and misses.

mod file;
mod record;
mod replay;
mod synthetic;
#[cfg(test)]
mod tests;

pub use record::{RouteLayer, Routes, record};
pub use replay::{ExpertSpeeds, Policy, Replay, replay};
pub use synthetic::{Locality, synthetic};
