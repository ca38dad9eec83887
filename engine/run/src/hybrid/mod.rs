//! The forward pass on two sides. A [`Placement`](crate::placement::Placement) assigns the first
//! layers to the CPU and the others to the device. In the device's layers the CPU computes the cold
//! neurons while the device computes the hot ones. A neuron's three rows are always on one side.
//! The data that crosses the bus for a layer is therefore its FFN's input, the predictor's mask and
//! one partial sum. Each is `[d_model]`, or one bit per neuron.
//!
//! How a split layer computes one token:
//! 1. [`HybridProcessor`] (`processor`) receives the layer's steps from the forward driver and
//!    sends each step to the side of its layer. On the device, `device_step` records norms and
//!    attention, and the predictor after the FFN's norm. It also determines the resident and the
//!    cold part of an FFN.
//! 2. `split_layer` submits the commands recorded so far, followed by a copy of the FFN's input and
//!    of the predictor's mask. It then submits the resident neurons (or experts): a
//!    [`ResidentPass`](crate::device::resident_pass::ResidentPass).
//! 3. While the device computes, `cpu_share` computes the layer's cold neurons with `runtime::cpu`:
//!    `[d_model]` f32.
//! 4. `split_layer` uploads the CPU's result as one more partial sum, and records the sum of all
//!    partial sums into `Out`.
//!
//! An FFN without resident parts takes the same steps. Its observer is `deferred_firing`, so that
//! layers are reported in order. For the chunks of a prompt, `streaming` may send cold neurons to
//! the device instead. `transition` moves the resident parts towards a placement between two
//! tokens. A [`Planner`] decides when, and towards which placement. A [`PictureProcessor`] computes
//! pictures on one of the sides.

mod cpu_share;
mod deferred_firing;
mod device_step;
mod pictures;
mod planner;
mod processor;
mod same_bits;
mod split_layer;
mod streaming;
mod transition;

pub use pictures::{PictureDevice, PictureProcessor};
pub use planner::{Moved, Planner};
pub use processor::HybridProcessor;
