//! The CPU as a [`Processor`](super::Processor), which computes every operation from RAM in the
//! file's types. [`CpuFfn`] computes an FFN or some of its neurons, and skips the neurons that a
//! [`Sparsity`](super::Sparsity) mode allows. A hybrid processor uses it for the neurons that are
//! not on the device.

mod altup;
mod attention;
mod expert_firing;
mod experts;
mod ffn;
mod ffn_values;
mod inputs;
mod latent;
mod layer_ffn;
pub(super) mod norm;
mod paged_reads;
mod per_layer;
mod processor;
mod products;
mod recurrent;
mod router;
mod same_bits;
mod skipped_inputs;
mod sparse_rows;
mod state_inputs;
mod task;
#[cfg(test)]
pub(crate) mod tests;

pub use ffn::CpuFfn;
pub use inputs::{ChosenExperts, LayerInputs, TokenInputs};
#[cfg(test)]
pub(crate) use layer_ffn::LayerFfn;
use layer_ffn::LayerTask;
pub use processor::CpuProcessor;
pub use router::{RouterInputs, Routing};
pub use task::{FfnBlock, FfnTask, FfnWork, HiddenNorm, PredictionSource};

/// The purpose of scratch memory, in errors.
const WHAT: &str = "scratch memory";
