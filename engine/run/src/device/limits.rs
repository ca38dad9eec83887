//! A device's limits, as plans use them and as the GPU reports them.

use thermocline_gpu::Caps;

use crate::placement::Limits;

/// The limits of an adapter that decide how much memory a model takes.
pub fn limits_of(caps: &Caps) -> Limits {
    let Caps { max_buffer, max_binding, binding_alignment, .. } = *caps;
    Limits { max_buffer, max_binding, binding_alignment }
}

/// Capabilities with these limits, the fewest workgroups that any device allows, and no optional
/// features.
pub fn caps_of(limits: Limits) -> Caps {
    let Limits { max_buffer, max_binding, binding_alignment } = limits;
    let (max_groups, max_workgroup) = ((1 << 16) - 1, 256);
    Caps { max_buffer, max_binding, binding_alignment, max_groups, max_workgroup, ..Caps::default() }
}
