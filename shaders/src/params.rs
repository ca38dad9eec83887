//! Parameters of a dispatch, in the layout of a kernel's `var<immediate>`. Every number has four
//! bytes, so that Rust and WGSL use the same layout. A struct within the parameters has a multiple
//! of 16 bytes and begins at such a multiple, so that every shading language uses that layout. The
//! structs in WGSL are made from these fields (`params.wgsl` in a text), and a test compares their
//! offsets and sizes.

use bytemuck::Pod;

/// Immediates of a kernel.
pub trait Params: Pod {
    /// The fields.
    const FIELDS: &'static [ParamField];
}

/// A field of a kernel's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamField {
    /// Name in Rust and WGSL.
    pub name: &'static str,
    /// Type in Rust and WGSL.
    pub ty: &'static str,
    /// Offset in bytes.
    pub offset: usize,
}

/// Defines parameter structs and the list of their fields.
macro_rules! params {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $ty,)* }

        impl $crate::params::Params for $name {
            const FIELDS: &'static [$crate::params::ParamField] = &[$($crate::params::ParamField {
                name: stringify!($field),
                ty: stringify!($ty),
                offset: std::mem::offset_of!($name, $field),
            },)*];
        }
    )* };
}

pub(crate) use params;

pub use crate::ops::{
    activation::Activation,
    active_mask::ActiveMask,
    add::Elements,
    altup::Streams,
    attention::{Attention, AttentionMerge},
    combine::Combine,
    delta_inputs::DeltaInputs,
    delta_net::DeltaNet,
    embedding::Embedding,
    expert_gate_up::ExpertGateUp,
    expert_matmul::ExpertMatmul,
    gate_excess::GateExcess,
    gate_heads::GateHeads,
    gated_input::GatedInput,
    gated_norm::GatedNorm,
    group_slots::GroupSlots,
    half_scale::HalfScale,
    latent_append::LatentAppend,
    limit_values::LimitValues,
    mamba2_scan::Mamba2Scan,
    matmul::Matmul,
    norm::Norm,
    quantise_q8::Quantise,
    read_bandwidth::Stream,
    rope_append::RopeAppend,
    route::Route,
    scale::Scale,
    short_conv::ShortConv,
    slot_list::SlotList,
    soft_cap::SoftCap,
    sparse_down::SparseDown,
    sparse_gate_up::SparseGateUp,
    subgroup_trial::SubgroupTrial,
    sum_splits::SumSplits,
    top_k::TopK,
};
pub use crate::token_positions::TokenPositions;
