//! WGSL kernels of Thermocline: one folder per operation under `ops/`, the table of kernels
//! ([`KERNELS`]), and the include step ([`Kernel::source`]), which turns a file into the text for
//! one [`Tier`]. Numbers are `override`s, set when a pipeline is created. Only types and the kind
//! of reduction change the text, so there is one file per kernel, not one per device. Each folder
//! also has the operation's equation as scalar code and the cases that prove the kernel
//! ([`KernelCase`]). Tests translate every kernel in every tier to SPIR-V, MSL, HLSL and, if its
//! features allow, GLSL. They therefore cover Metal and DX12 on machines without either.
//! [`DRAWINGS`] are the shaders that draw the window.

mod attention;
mod case;
mod drawing;
mod features;
mod include;
mod kernels;
pub mod limits;
mod ops;
pub mod params;
mod token_positions;

pub use attention::{DecodeGrid, decode_heads, head_pitch};
pub use case::{CaseRequest, CaseValues, ExpectedResult, Extent, KernelCase, WorstElement};
pub use drawing::{DRAWINGS, Drawing, MapParams, NEURON_MAP, PLAIN_FILL};
pub use kernels::{Access, Kernel};
pub use ops::KERNELS;
pub use thermocline_base::{KernelFeatures, Tier};
pub use thermocline_formats::quant::WeightType;
