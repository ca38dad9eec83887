//! The forward pass in two places. The first layers are the CPU's, the others the device's, as a [`Placement`] says; in a layer
//! of the device's the CPU computes the neurons that are cold, while the device is at those that are hot. A neuron's three rows
//! are always on one side, so all that crosses the bus for a layer is its FFN's input, the predictor's mask and one sum, each
//! `[d_model]` (or a bit per neuron).
//!
//! [`HybridProcessor`] is one processor made of two: it sends each step where its layer is and lends the CPU to the device's FFNs.
//! It owns the mechanism of moving what is resident; when and what to move is a [`Planner`]'s business.
//!
//! [`Placement`]: super::placement::Placement

mod boundary;
mod cold;
mod planner;
mod processor;
mod streaming;

pub use planner::{Moved, Planner};
pub use processor::HybridProcessor;
