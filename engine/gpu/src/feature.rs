//! Features of a device that can be given up one by one.

use serde::{Deserialize, Serialize};
use thermocline_shaders::KernelFeatures;

/// Feature of a device that makes products quicker and that they can do without: what a driver does wrong with one is no reason to
/// give up the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuFeature {
    /// Matrix products in hardware.
    CooperativeMatrices,
    /// Dot products of four integers of eight bits.
    PackedDot,
    /// Arithmetic of halves.
    F16,
    /// Operations among the lanes of a subgroup.
    Subgroups,
}

impl GpuFeature {
    /// Every feature, in the order in which they are given up.
    pub const ALL: [GpuFeature; 4] =
        [GpuFeature::CooperativeMatrices, GpuFeature::PackedDot, GpuFeature::F16, GpuFeature::Subgroups];

    /// Name, as shown and printed.
    pub const fn name(self) -> &'static str {
        match self {
            GpuFeature::CooperativeMatrices => "cooperative matrices",
            GpuFeature::PackedDot => "packed dot products",
            GpuFeature::F16 => "f16",
            GpuFeature::Subgroups => "subgroups",
        }
    }

    /// True if it is among those that a kernel uses.
    pub(super) fn is_in(self, used: KernelFeatures) -> bool {
        match self {
            GpuFeature::CooperativeMatrices => used.cooperative,
            GpuFeature::PackedDot => used.packed,
            GpuFeature::F16 => used.tier.f16,
            GpuFeature::Subgroups => used.tier.subgroups,
        }
    }
}
