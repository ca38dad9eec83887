//! The CPU as a [`Processor`](super::Processor): every operation from RAM, in the file's types. [`CpuFfn`] computes an FFN, or the
//! part of one that some of its neurons make up, and skips what a [`Sparsity`](super::Sparsity) mode says; a hybrid of CPU and
//! device calls it for the neurons that are not on the device.

mod expert_firing;
mod experts;
mod ffn;
mod layer_ffn;
mod processor;
mod products;
mod routing;
mod task;
#[cfg(test)]
pub(super) mod tests;

pub use ffn::CpuFfn;
#[cfg(test)]
pub(super) use layer_ffn::LayerFfn;
use layer_ffn::LayerTask;
pub use processor::CpuProcessor;
pub use routing::Routing;
pub use task::{FfnBlock, FfnTask, FfnWork, Guess};

/// What a failed reservation was for.
const WHAT: &str = "scratch memory";
