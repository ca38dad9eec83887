//! Routes of mixture-of-experts models. [`Routes`] hold which experts each token chose. They are
//! recorded while a model computes, read from a file, or generated with the locality of published
//! routes ([`synthetic`]). [`replay`] runs routes through slots of any number and [`Policy`], and
//! computes the time of hits and misses. A [`HotSetVerdict`] says whether a model's hot set should
//! follow the text.

mod bound;
mod file;
mod policy;
mod record;
mod replay;
mod slot_cache;
mod synthetic;
#[cfg(test)]
mod tests;

pub use policy::Policy;
pub use record::{RouteLayer, Routes, record};
pub use replay::{ExpertSpeeds, HotSetVerdict, Replay, replay};
pub use synthetic::{Locality, synthetic};
