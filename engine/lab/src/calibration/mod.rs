//! Measures the speeds of this machine with the operations of decoding. On the CPU: sequential and
//! scattered memory reads, and products of every weight type. On a GPU: the same products without
//! waits and in bursts, copies, uploads, downloads, and GPU-CPU synchronisation. Of a disk: large
//! reads. [`cached_machine`] keeps the speeds that plans use as prices on disk. Benchmarks show the
//! results of the same loops.

mod bursts;
mod cpu;
mod cpu_products;
mod disk;
mod effort;
mod gpu;
mod gpu_products;
mod measured_machine;
mod memory;
mod prompts;
mod turns;

pub use cpu::{KernelSpeed, kernel_speed};
pub use disk::disk_rate;
pub use effort::MeasureEffort;
pub use gpu::{GpuEffort, GpuSpeed, HandOverTimes, gpu_speed};
pub use gpu_products::gpu_kernel_speed;
pub use measured_machine::{KeepGoing, MachineOptions, cached_machine, cpu_name, known_machine, measure_machine};
pub use memory::{MemoryKind, ReadProbe, read_bandwidth};
