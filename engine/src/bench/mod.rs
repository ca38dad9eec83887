//! Timed loops that return structs: [`run`] gives llama-bench's rows for a model, [`compare`] runs a llama-bench binary
//! in turns with it, [`profile_kernels`] tells where a GPU's time goes; [`read_bandwidth`]
//! and [`kernel_speed`] measure the machine and its matrix products alone, [`gpu_speed`] and [`gpu_kernel_speed`] an adapter and its.
//!
//! A caller prints: [`Record`] and [`Comparison`] serialise to JSON under llama-bench's field names;
//! [`Record::test_name`], `avg_ts` and `stddev_ts` make its table.

mod device;
mod limit;
mod measured;
mod peer;
mod placed;
mod profile;
mod reads;
mod record;
mod run;

pub use limit::Limit;
pub use peer::{Comparison, Peer, compare};
pub use profile::{ModelProfile, TestProfile, profile_kernels};
pub(crate) use reads::{always_read, dense_ffns};
pub use record::{Extra, Percentiles, Record};
pub use run::{BenchOptions, Progress, Test, run};

pub use crate::sparsity::measure::{
    GpuEffort, GpuSpeed, HandOver, KernelSpeed, gpu_kernel_speed, gpu_speed, kernel_speed, read_bandwidth,
};
