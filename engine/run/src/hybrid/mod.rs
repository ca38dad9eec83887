//! The forward pass on two sides. The first layers are the CPU's, the others the device's, as a
//! [`Placement`](crate::placement::Placement) says; in a layer of the device's the CPU computes the cold neurons while the device
//! computes the hot ones. A neuron's three rows are always on one side, so all that crosses the bus for a layer is its FFN's
//! input, the predictor's mask and one partial sum, each `[d_model]` (or a bit per neuron).
//!
//! One token's way through a split layer:
//! 1. [`HybridProcessor`] (`processor`) gets the layer's steps from the forward driver, and sends each to the side that the layer
//!    is on. On the device, `device_step` has norms and attention recorded, and the predictor behind the FFN's norm; of an FFN it
//!    says which part is resident and which is cold.
//! 2. `split_layer` submits the commands recorded so far, with a copy of the FFN's input and of the predictor's mask behind them,
//!    then the resident neurons (or experts): a [`ResidentPass`](crate::device::resident_pass::ResidentPass).
//! 3. While the device computes those, `cold_side` computes the layer's cold neurons by `runtime::cpu`: `[d_model]` f32.
//! 4. `split_layer` uploads that as one more partial sum, and records the sum of all of them into `Out`.
//!
//! An FFN of which nothing is resident goes the same way; its observer is `deferred_firing`, so that layers are reported in
//! order. For the chunks of a prompt, `streaming` may send cold neurons to the device instead. `transition` moves what is
//! resident towards a placement between two tokens; when, and to which placement, is a [`Planner`]'s decision.

mod cold_side;
mod deferred_firing;
mod device_step;
mod planner;
mod processor;
mod split_layer;
mod streaming;
mod transition;

pub use planner::{Moved, Planner};
pub use processor::HybridProcessor;
