//! Timed loops that return structs.

mod bandwidth;
mod kernels;

pub use bandwidth::read_bandwidth;
pub use kernels::{KernelSpeed, kernel_speed};
