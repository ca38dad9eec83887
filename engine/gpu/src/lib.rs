//! The GPU through wgpu: which adapters there are ([`adapters`]), a device of the engine's own ([`Gpu`]) with what it can do
//! ([`Caps`]) and what is done without after its driver has failed ([`Fallbacks`]), the accountant every allocation goes
//! through ([`Arena`]), pipelines made once ([`Pipelines`]), prepared dispatches ([`Op`]) recorded into one submission per
//! segment ([`Recorder`]), and the rings that carry data up and down ([`UploadRing`], [`ReadbackRing`]). Weights are repacked
//! ([`thermocline_formats::quant::repack`]) on their way up ([`Uploader`]) into a [`GpuMatrix`], which [`Matmul`] multiplies.
//! [`GpuTimestamps`] is its timer, behind the times of kernels ([`GpuProfile`]) and of layers; [`VramReading`] is the system's
//! view of memory. [`DevicePace`] says how much work its submissions may hold. [`Gpu::counting`] is a device that is not there
//! and counts the bytes that a real one would hold. It knows weight formats but no models: what is computed in which order is
//! `model`'s business.

// They panic where nobody reads.
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
mod subgroups;
#[cfg(any(test, feature = "test-hooks"))]
mod test_counts;
mod timestamps;
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
pub use matmul::{Epilogue, Matmul, MatmulOutput};
pub use matrix::{GpuMatrix, MatrixLayout, MatrixPart};
pub use op::{Binding, BufferRows, Op, grid, pitch};
pub use pace::{DevicePace, SubmissionTime, SubmissionWork, WorkKind, tokens_within, work_of};
pub use pipelines::{Pipeline, Pipelines};
pub use product_sample::{LargestError, ProductSample, SampleSize};
pub use recorder::Recorder;
pub use row_stream::{RowLoad, RowStream};
pub use thermocline_shaders::{KernelFeatures, Tier, WeightType, params};
pub use timestamps::GpuTimestamps;
pub use transfer::{Coming, ReadbackRing, UploadRing};
pub use trust::{
    AdapterId, AwaitedFrame, CrashSentinel, CreationLock, Fallback, FallbackPart, Fallbacks, FaultPoint, Faults,
    KernelMutation, RiskyStep, withdraw_sentinels,
};
pub use tune::KernelShape;
pub use uploader::{RowOf, Uploader};
pub use vram::{VramReading, VramSource};
/// Index of a submission, to wait for.
pub use wgpu::SubmissionIndex as Submission;
pub use work::Work;
