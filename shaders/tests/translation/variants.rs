//! Variants: the override values with which the engine creates kernels, if loops and conditions
//! depend on them.

use thermocline_shaders::{KERNELS, Kernel};

/// Override values of a variant.
pub type Numbers = &'static [(&'static str, f64)];

/// Kernel, name of the variant in tables, and its override values. Kernels that are not listed have
/// one variant with default values.
const VARIANTS: &[(&str, &str, Numbers)] = &[
    ("activation", "relu", &[("KIND", 0.0)]),
    ("activation", "scaled", &[("KIND", 2.0), ("SCALED", 1.0)]),
    ("activation", "gelu", &[("KIND", 4.0)]),
    ("active_mask", "scores", &[("TEST", 0.0)]),
    ("active_mask", "fired", &[("TEST", 1.0)]),
    ("attention_decode", "d64h1", &[("HEAD_DIM", 64.0), ("HEADS", 1.0), ("WORKGROUP_SIZE", 128.0)]),
    ("attention_decode", "d64h8", &[("HEAD_DIM", 64.0), ("HEADS", 8.0), ("WORKGROUP_SIZE", 128.0)]),
    ("attention_decode", "d128h1", &[("HEAD_DIM", 128.0), ("HEADS", 1.0), ("WORKGROUP_SIZE", 128.0)]),
    ("attention_decode", "d128h4", &[("HEAD_DIM", 128.0), ("HEADS", 4.0), ("WORKGROUP_SIZE", 128.0)]),
    ("attention_decode", "d128h7", &[("HEAD_DIM", 128.0), ("HEADS", 7.0), ("WORKGROUP_SIZE", 128.0)]),
    ("attention_decode", "d256h4", &[("HEAD_DIM", 256.0), ("HEADS", 4.0), ("WORKGROUP_SIZE", 128.0)]),
    ("attention_merge", "d64", &[("HEAD_DIM", 64.0)]),
    ("attention_merge", "d256", &[("HEAD_DIM", 256.0)]),
    ("attention_prompt", "d64", &[("HEAD_DIM", 64.0)]),
    ("attention_prompt", "d128", &[("HEAD_DIM", 128.0)]),
    ("attention_prompt", "d256", &[("HEAD_DIM", 256.0)]),
    ("gemm_coop", "w256", &[("WORKGROUP_SIZE", 256.0)]),
    ("gemm_coop_8", "w256", &[("WORKGROUP_SIZE", 256.0)]),
    ("gemv", "w128r4", &[("ROWS", 4.0), ("TOKENS", 1.0), ("WORKGROUP_SIZE", 128.0)]),
    ("gemv", "w64r8", &[("ROWS", 8.0), ("TOKENS", 1.0), ("WORKGROUP_SIZE", 64.0)]),
    ("gemv", "w256r2", &[("ROWS", 2.0), ("TOKENS", 1.0), ("WORKGROUP_SIZE", 256.0)]),
    ("gemv", "w128r4t2", &[("ROWS", 4.0), ("TOKENS", 2.0), ("WORKGROUP_SIZE", 128.0)]),
    ("gemv", "w128r4t4", &[("ROWS", 4.0), ("TOKENS", 4.0), ("WORKGROUP_SIZE", 128.0)]),
    ("gemv_dot", "w128r4", &[("ROWS", 4.0), ("WORKGROUP_SIZE", 128.0)]),
    ("gemv_dot", "w64r8", &[("ROWS", 8.0), ("WORKGROUP_SIZE", 64.0)]),
    ("gemv_dot", "w128r4t4", &[("ROWS", 4.0), ("TOKENS", 4.0), ("WORKGROUP_SIZE", 128.0)]),
    ("norm", "w256", &[("WORKGROUP_SIZE", 256.0)]),
    ("norm", "w1024", &[("WORKGROUP_SIZE", 1024.0)]),
    ("slot_list", "w256", &[("BLOCKS", 16.0), ("WORKGROUP_SIZE", 256.0)]),
    ("sparse_gate_up", "dense", &[("GATED", 1.0), ("GATE_FIRST", 0.0)]),
    ("sparse_gate_up", "exact", &[("GATED", 1.0), ("GATE_FIRST", 1.0)]),
    ("sparse_gate_up", "scaled", &[("GATED", 1.0), ("GATE_FIRST", 1.0), ("SCALED", 1.0)]),
    ("sparse_down", "all", &[("SKIP", 0.0), ("TOKENS", 1.0)]),
    ("sparse_down", "fired", &[("SKIP", 1.0), ("TOKENS", 1.0)]),
    ("sparse_down", "t4", &[("SKIP", 0.0), ("TOKENS", 4.0)]),
];

/// The variants of a kernel: names (empty if there is only one) and override values.
pub fn of(kernel: &Kernel) -> Vec<(&'static str, Numbers)> {
    for (name, ..) in VARIANTS {
        assert!(KERNELS.iter().any(|kernel| kernel.name == *name), "no kernel {name}");
    }
    let chosen = VARIANTS.iter().filter(|(name, ..)| *name == kernel.name);
    let chosen: Vec<_> = chosen.map(|(_, variant, numbers)| (*variant, *numbers)).collect();
    if chosen.is_empty() { vec![("", &[])] } else { chosen }
}
