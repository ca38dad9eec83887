//! WGSL kernels of Thermocline: one `.wgsl` file per operation under `wgsl/`, the table of kernels
//! ([`KERNELS`]), and the include step ([`Kernel::source`]), which turns a file into the text for
//! one [`Tier`]. Numbers are `override`s, set when a pipeline is created. Only types and the kind
//! of reduction change the text, so there is one file per kernel, not one per device. Tests
//! translate every kernel in every tier to SPIR-V, MSL, HLSL and, if its features allow, GLSL. They
//! therefore cover Metal and DX12 on machines without either. [`DRAWINGS`] are the shaders that
//! draw the window.

mod attention;
pub mod code_books;
mod drawing;
mod features;
mod include;
mod kernels;
pub mod limits;
pub mod params;
mod tier;
mod weight_type;
mod weight_values;

pub use attention::{DecodeGrid, decode_heads, head_pitch};
pub use drawing::{DRAWINGS, Drawing, MapParams, NEURON_MAP, PLAIN_FILL};
pub use features::KernelFeatures;
pub use kernels::{Access, KERNELS, Kernel};
pub use tier::Tier;
pub use weight_type::WeightType;
pub use weight_values::WeightRow;
