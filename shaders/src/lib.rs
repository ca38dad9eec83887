//! WGSL kernels of Thermocline: one `.wgsl` file per operation under `wgsl/`, the table that names them ([`KERNELS`]),
//! and the include step ([`Kernel::source`]) that turns a file into the text of one [`Tier`]. Numbers are `override`s and
//! are set when a pipeline is made; only types and the kind of reduction need text, so there is one file per kernel and
//! not one per device. Tests translate every kernel in every tier to SPIR-V, MSL, HLSL and, where its features allow,
//! GLSL: that keeps Metal and DX12 honest on machines that have neither. What the window draws itself is in [`DRAWINGS`].

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
