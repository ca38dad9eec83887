//! The kernels. Each operation is a folder: its WGSL text, or one text per way to compute it, its
//! parameters, its equation as scalar code (the oracle), and the cases that prove it.

pub(crate) mod activation;
pub(crate) mod active_mask;
pub(crate) mod add;
pub(crate) mod altup;
pub(crate) mod attention;
pub(crate) mod combine;
pub(crate) mod delta_inputs;
pub(crate) mod delta_net;
pub(crate) mod embedding;
pub(crate) mod expert_gate_up;
pub(crate) mod expert_matmul;
pub(crate) mod gate_excess;
pub(crate) mod gate_heads;
pub(crate) mod gated_input;
pub(crate) mod gated_norm;
pub(crate) mod group_slots;
pub(crate) mod half_scale;
pub(crate) mod latent_append;
pub(crate) mod limit_values;
pub(crate) mod mamba2_scan;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod quantise_q8;
pub(crate) mod read_bandwidth;
pub(crate) mod rope_append;
pub(crate) mod route;
pub(crate) mod scale;
pub(crate) mod short_conv;
pub(crate) mod slot_list;
pub(crate) mod soft_cap;
pub(crate) mod sparse_down;
pub(crate) mod sparse_gate_up;
pub(crate) mod subgroup_trial;
pub(crate) mod sum_splits;
pub(crate) mod top_k;

use crate::Kernel;

/// All kernels.
pub const KERNELS: &[Kernel] = &[
    activation::KERNEL,
    active_mask::KERNEL,
    add::KERNEL,
    altup::ALTUP_PREDICT,
    altup::ALTUP_CORRECT,
    altup::ALTUP_ADD,
    attention::ATTENTION_DECODE,
    attention::ATTENTION_MERGE,
    attention::ATTENTION_PROMPT,
    combine::KERNEL,
    delta_inputs::KERNEL,
    delta_net::KERNEL,
    embedding::KERNEL,
    expert_gate_up::KERNEL,
    expert_matmul::EXPERT_GEMV,
    expert_matmul::EXPERT_GEMM,
    gate_excess::KERNEL,
    gate_heads::KERNEL,
    gated_input::KERNEL,
    gated_norm::KERNEL,
    group_slots::KERNEL,
    half_scale::KERNEL,
    latent_append::KERNEL,
    limit_values::KERNEL,
    mamba2_scan::KERNEL,
    matmul::GEMV,
    matmul::GEMV_DOT,
    matmul::GEMM,
    matmul::GEMM_COOP,
    matmul::GEMM_COOP_8,
    norm::KERNEL,
    quantise_q8::KERNEL,
    read_bandwidth::KERNEL,
    rope_append::KERNEL,
    route::KERNEL,
    scale::KERNEL,
    short_conv::KERNEL,
    slot_list::KERNEL,
    soft_cap::KERNEL,
    sparse_down::SPARSE_DOWN,
    sparse_down::GEMM_NEURONS,
    sparse_gate_up::KERNEL,
    subgroup_trial::KERNEL,
    sum_splits::KERNEL,
    top_k::KERNEL,
];
