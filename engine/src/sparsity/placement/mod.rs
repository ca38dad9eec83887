//! What is resident in VRAM, and what that costs and saves. Pure: sizes, frequencies and measured rates go in, a
//! [`Placement`] comes out.
//!
//! [`Demand`] is what a model asks for, [`Machine`] how fast the processors are. `cost` prices a layer by how much of it is
//! where; [`solve`] finds the best [`Plan`] for a budget, a [`Frontier`] those for all budgets. A split of PowerInfer's becomes a
//! placement, too ([`Split`]).

mod cost;
mod demand;
mod gpu_index;
mod machine;
mod place;
mod plan;
mod slab;
mod solve;
mod streaming;
#[cfg(test)]
mod tests;

pub use cost::LayerTime;
pub use demand::{Assumption, BLOCK, Demand, DemandOptions, HeadDemand, LayerDemand, Reads, Skips};
pub use gpu_index::Split;
pub use machine::{CpuRates, Figures, GpuRates, Limits, Machine, Rate, Rates, Together};
pub use place::{Granularity, Placement};
pub use plan::{Bottleneck, LayerPlan, Plan, PlanBytes};
pub use slab::Slab;
pub use solve::{Frontier, solve, usable};
pub use streaming::{StreamCost, Streaming};
