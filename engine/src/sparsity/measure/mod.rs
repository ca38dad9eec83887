//! How fast this machine is, found out by doing what decoding does: memory read in order and here and there, products of every
//! type of weights on either processor, copies, the bus, hand-overs. [`cached_machine`] keeps what placements are priced
//! with on disk; the benchmarks show the same loops' figures.

mod cpu;
mod gpu;
mod machine;
mod memory;
mod prompts;

pub use cpu::{KernelSpeed, kernel_speed};
pub use gpu::{GpuEffort, GpuSpeed, HandOver, gpu_kernel_speed, gpu_speed};
pub use machine::{
    GoOn, MachineOptions, MeasureEffort, cached_machine, caps_of, cpu_name, known_machine, limits_of, measure_machine,
};
pub use memory::{MemoryKind, ReadProbe, read_bandwidth};
