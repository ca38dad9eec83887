//! The use of an adapter: the features that kernels may have there.

use thermocline_shaders::{KERNELS, KernelFeatures, Tier};

use super::{AdapterId, Caps, GpuFeature};

/// An adapter and the features that kernels may use on it.
#[derive(Debug)]
pub(super) struct AdapterUse {
    pub adapter: AdapterId,
    pub caps: Caps,
    /// True if packed dot products may be among them.
    pub packed: bool,
}

impl AdapterUse {
    /// Features that some kernel uses there.
    pub fn features(&self) -> KernelFeatures {
        let mut all = KernelFeatures { cooperative: self.caps.cooperative.is_some(), ..KernelFeatures::default() };
        for kernel in KERNELS {
            if (kernel.cooperative && self.caps.cooperative.is_none()) || (kernel.packed && !self.packed) {
                continue;
            }
            let uses = kernel.features(self.caps.tier, kernel.weights.first().copied());
            let (subgroups, f16) = (all.tier.subgroups | uses.tier.subgroups, all.tier.f16 | uses.tier.f16);
            all = KernelFeatures { packed: all.packed | uses.packed, tier: Tier { subgroups, f16 }, ..all };
        }
        all
    }
}

impl GpuFeature {
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
