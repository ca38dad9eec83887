//! Decides which parts of a model are resident in VRAM, and computes what that costs and saves. The
//! module is pure: it maps sizes, frequencies and measured rates to plans, and uses no processor
//! and no device.
//!
//! [`PlanInputs`] describe how the model is used and how fast the [`Machine`] is. A [`CostProfile`]
//! holds the bytes and reads of every part of the model. The time model prices a layer by its
//! resident parts, and a [`Frontier`] finds the best [`Plan`]s for all budgets. A
//! [`PlacementSolver`] combines these for engines, `thermocline plan` and benchmarks.
//! [`PlacementSolver::forecast`] predicts the effect of a budget, and [`TokenTime`] divides the
//! time of a plan's token into parts. A [`PublishedMachine`] describes a PC that is not at hand.
//! [`RamShortage`] prices the reads from the disk of a plan that does not fit into RAM.
//! [`TowerTime`] is the time of a picture.
//!
//! ```
//! use thermocline_model::{LoadOptions, Model};
//! use thermocline_run::{
//!     device::{caps_of, device_bytes},
//!     placement::{GpuUse, Machine, PlanInputs, PlacementSolver},
//!     runtime::{KvType, Sparsity},
//! };
//!
//! # fn main() -> thermocline_base::Result<()> {
//! let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models/llama-relu");
//! let model = Model::open(path.as_ref(), &LoadOptions::default())?;
//! let inputs = PlanInputs::new(Sparsity::Exact, 64, KvType::F16);
//! let caps = caps_of(Machine::typical_limits());
//! let bytes = device_bytes(&caps, &model, inputs.chunk, inputs.kv_type)?;
//! let planner = PlacementSolver::new(&model, &bytes, inputs)?;
//!
//! let budget = planner.everything() * 3 / 4;
//! let plan = planner.plan(budget, GpuUse::Always)?;
//! assert!(plan.bytes.total() <= budget);
//! assert_eq!(planner.on_cpu().bytes.total(), 0);
//! # Ok(())
//! # }
//! ```

mod cost_profile;
mod cpu_reads;
mod device_bytes;
mod expert_streaming;
mod forecast;
mod frontier;
mod inputs;
mod layer_costs;
mod machine;
mod plan;
mod powerinfer_split;
mod published;
mod ram;
mod resident_parts;
mod skipped_rows;
mod solver;
mod streaming;
#[cfg(test)]
mod tests;
mod time_model;
mod token_time;
mod tower_time;

pub use cost_profile::{CostProfile, HeadCosts};
pub use cpu_reads::{CpuReads, DiskReads, DiskSeconds};
pub use device_bytes::{DeviceBytes, LayerBytes};
pub use expert_streaming::{ExpertSeconds, ExpertStreamCost};
pub use forecast::Forecast;
pub use frontier::{Frontier, budget_for, solve, usable};
pub use inputs::{GpuUse, PlanInputs};
pub use layer_costs::{BLOCK, LayerCosts, ReadBytes};
pub use machine::{
    BurstFractions, CpuRates, DeviceClocks, GpuRates, Limits, Machine, ProductRate, PromptRates, Rates, SharedMemory,
};
pub use plan::{Assumption, Bottleneck, LayerPlan, Plan, PlanBytes, WORTHWHILE_EXPERTS};
pub use powerinfer_split::{PowerInferSplit, SplitReport};
pub use published::{PublishedCpu, PublishedGpu, PublishedMachine};
pub use ram::{MemorySizes, RamNeed, RamShortage, WeightLimit};
pub use resident_parts::{Granularity, Placement};
pub use skipped_rows::SkippedRows;
pub use solver::PlacementSolver;
pub use streaming::{StreamCost, StreamedChunk, Streaming, StreamingBufferSize};
pub use time_model::LayerTime;
pub use token_time::{TokenPart, TokenTime};
pub use tower_time::TowerTime;

pub use thermocline_model::Resident;
