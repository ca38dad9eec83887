//! The GPU through wgpu: which adapters there are ([`adapters`]), a device of the engine's own ([`Gpu`]) with what it can
//! do ([`Caps`]), the accountant every allocation goes through ([`Arena`]), pipelines made once ([`Pipelines`]), prepared
//! dispatches ([`Op`]) recorded into one submission per segment ([`Recorder`]), and the rings that carry data up and down
//! ([`UploadRing`], [`ReadbackRing`]). Weights are repacked ([`layout`]) on their way up ([`Uploader`]) into a [`GpuMatrix`],
//! which [`Matmul`] multiplies. [`Profile`] tells where the time went, kernel by kernel, [`Laps`] part by part while nothing
//! waits for it, and [`VramReading`] what the system says about memory. It knows weight formats but no models: what is computed
//! in which order is [`crate::model`]'s business.

mod adapter;
mod arena;
mod caps;
mod coop;
mod device;
mod experts;
mod faults;
mod health;
mod laps;
pub mod layout;
mod matmul;
mod matrix;
mod op;
mod pipeline_cache;
mod pipelines;
mod profile;
mod raw;
mod recorder;
mod row_stream;
mod stamps;
mod transfer;
mod tune;
mod uploader;
mod vram;
mod work;

pub use adapter::{AdapterChoice, AdapterKind, AdapterReport, adapters};
pub use arena::{Arena, Buffer, Purpose, Usage};
pub use caps::Caps;
pub use device::{Gpu, GpuOptions};
pub use experts::{ExpertGroups, ExpertInput, ExpertMatmul};
pub use faults::{FaultPoint, Faults};
pub use laps::Laps;
pub use matmul::{Epilogue, Matmul, MatmulOutput};
pub use matrix::{GpuMatrix, MatrixPart};
pub use op::{Binding, Op, grid, pitch};
pub use pipelines::{Pipeline, Pipelines};
pub use profile::{Clock, KernelTimes, Profile};
pub use recorder::Recorder;
pub use row_stream::{RowLoad, RowStream};
pub use thermocline_shaders::{Tier, WeightType, params};
pub use transfer::{Coming, ReadbackRing, UploadRing};
pub use uploader::{RowOf, Uploader};
pub use vram::{VramReading, VramSource};
/// What was submitted, to wait for.
pub use wgpu::SubmissionIndex as Submission;
pub use work::Work;
