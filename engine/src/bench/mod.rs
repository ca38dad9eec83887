//! Timed loops that return structs: [`run`] gives llama-bench's rows for a model, [`compare`] runs a llama-bench binary
//! in turns with it, [`read_bandwidth`] and [`kernel_speed`] measure the machine and the matrix products alone.
//!
//! A caller prints: [`Record`] and [`Comparison`] serialise to JSON under llama-bench's field names;
//! [`Record::test_name`], `avg_ts` and `stddev_ts` make its table.

mod bandwidth;
mod kernels;
mod peer;
mod record;
mod run;

pub use bandwidth::read_bandwidth;
pub use kernels::{KernelSpeed, kernel_speed};
pub use peer::{Comparison, compare};
pub use record::{Extra, Percentiles, Record};
pub use run::{BenchOptions, Progress, Test, run};
