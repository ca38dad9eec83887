//! The GPU through wgpu. [`adapters`] lists the adapters. [`Gpu`] is an open device with its
//! [`Caps`] and its [`Fallbacks`], the parts that are disabled after a driver's failure.
//!
//! [`Arena`] counts every allocation. [`Pipelines`] compiles each kernel once. An [`Op`] is a
//! prepared dispatch, and a [`Recorder`] records the dispatches of a segment into one submission.
//! [`UploadRing`] and [`ReadbackRing`] transfer data to and from the device.
//!
//! [`Uploader`] repacks weights ([`thermocline_formats::quant::repack`]) into a [`GpuMatrix`],
//! which [`Matmul`] multiplies. [`GpuTimestamps`] measures the times of kernels ([`GpuProfile`])
//! and of layers. [`VramReading`] is the system's view of memory. [`DevicePace`] limits the work of
//! a submission. [`Gpu::counting`] simulates a device and counts the bytes that a real device would
//! allocate.
//!
//! This crate implements weight formats but no models. `model` decides which kernels run in which
//! order.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod activations;
mod adapter;
mod arena;
mod caps;
mod coop;
mod counting;
mod device;
mod enumeration;
mod expert_gate_up;
mod experts;
mod feature;
mod gpu_profile;
mod matmul;
mod matrix;
mod op;
mod pace;
mod pipeline_cache;
mod pipelines;
mod product_sample;
mod raw;
mod recorder;
mod row_stream;
mod sparse_down;
mod subgroups;
#[cfg(any(test, feature = "test-hooks"))]
mod test_counts;
mod timestamps;
mod token_bits;
mod transfer;
mod trust;
mod tune;
mod uploader;
mod vram;
mod work;

pub use adapter::{AdapterChoice, AdapterKind, AdapterReport};
pub use arena::{Arena, Buffer, MemoryUse, Purpose, Usage};
pub use caps::{Caps, CooperativeTile};
pub use device::{Gpu, GpuOptions};
pub use enumeration::adapters;
pub use expert_gate_up::{ExpertGateUp, GateFirst};
pub use experts::{ExpertInput, ExpertMatmul, ExpertPairs};
pub use feature::GpuFeature;
pub use gpu_profile::{Clock, GpuProfile, KernelTimes};
pub use matmul::{Epilogue, FEW_TOKENS, Matmul, MatmulOutput};
pub use matrix::{GpuMatrix, MatrixLayout, MatrixPart};
pub use op::{Binding, BufferRows, Op, grid, pitch};
pub use pace::{DevicePace, SubmissionTime, SubmissionWork, WorkKind, tokens_within, work_of};
pub use pipelines::{Pipeline, Pipelines};
pub use product_sample::{LargestError, ProductSample, SampleSize};
pub use recorder::Recorder;
pub use row_stream::{NumberLoad, RowLoad, RowStream};
pub use sparse_down::SparseDownVariant;
pub use thermocline_shaders::{KernelFeatures, Tier, WeightType, params};
pub use timestamps::GpuTimestamps;
pub use transfer::{Coming, ReadbackRing, UploadRing};
pub use trust::{
    AdapterId, AwaitedFrame, CaseBench, CaseDifference, CrashSentinel, CreationLock, Fallback, FallbackPart, Fallbacks,
    FaultPoint, Faults, KernelMutation, KernelOutcome, KernelVerdict, RiskyStep, SelfTest, self_test,
    withdraw_sentinels,
};
pub use tune::KernelShape;
pub use uploader::{RowOf, Uploader};
pub use vram::{VramReading, VramSource};
/// Index of a submission, for waiting.
pub use wgpu::SubmissionIndex as Submission;
pub use work::Work;
