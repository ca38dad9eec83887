//! Features of a device that can be disabled one by one.

use serde::{Deserialize, Serialize};
use thermocline_shaders::KernelFeatures;

/// Feature of a device that makes products faster and that kernels can do without. If a driver
/// fails with a feature, disabling that feature is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuFeature {
    /// Matrix products in hardware.
    CooperativeMatrices,
    /// Dot products of four 8-bit integers.
    PackedDot,
    /// 16-bit float arithmetic.
    F16,
    /// Operations among the lanes of a subgroup.
    Subgroups,
}

impl GpuFeature {
    /// All features, in the order in which they are disabled.
    pub const ALL: [GpuFeature; 4] =
        [GpuFeature::CooperativeMatrices, GpuFeature::PackedDot, GpuFeature::F16, GpuFeature::Subgroups];

    /// Returns the name, as shown and printed.
    pub const fn name(self) -> &'static str {
        match self {
            GpuFeature::CooperativeMatrices => "cooperative matrices",
            GpuFeature::PackedDot => "packed dot products",
            GpuFeature::F16 => "f16",
            GpuFeature::Subgroups => "subgroups",
        }
    }

    /// True if `used` contains this feature.
    pub(super) fn is_in(self, used: KernelFeatures) -> bool {
        match self {
            GpuFeature::CooperativeMatrices => used.cooperative,
            GpuFeature::PackedDot => used.packed,
            GpuFeature::F16 => used.tier.f16,
            GpuFeature::Subgroups => used.tier.subgroups,
        }
    }
}
