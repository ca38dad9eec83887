//! Timed loops that return structs. [`run`] measures llama-bench's rows for a model, and
//! [`compare`] alternates them with a llama-bench binary. [`run_streams`] measures several streams
//! of one engine at once. [`profile_kernels`] times each kernel of a GPU. [`read_bandwidth`] and
//! [`kernel_speed`] measure the CPU's memory and matrix products alone. [`gpu_speed`] and
//! [`gpu_kernel_speed`] measure a GPU's.
//!
//! The caller prints. [`Record`] and [`Comparison`] serialise to JSON under llama-bench's field
//! names. [`Record::test_name`], `avg_ts` and `stddev_ts` make its table.

mod device;
mod limit;
mod measured;
mod model_profile;
mod options;
mod peer;
mod placed;
mod reads;
mod record;
mod run;
mod streams;

pub use limit::BandwidthLimit;
pub use model_profile::{ModelProfile, TestProfile, profile_kernels};
pub use options::{BenchOptions, Progress, Test};
pub use peer::{Comparison, Peer, compare};
pub use record::{Extra, LatencyPercentiles, LongestSubmission, Record};
pub use run::run;
pub use streams::{StreamsOptions, StreamsRecord, run_streams};

pub use thermocline_lab::calibration::{
    GpuEffort, GpuSpeed, HandOverTimes, KernelSpeed, gpu_kernel_speed, gpu_speed, kernel_speed, read_bandwidth,
};
