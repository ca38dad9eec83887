//! Device features that kernels use.

use crate::{Kernel, KernelFeatures, Tier, WeightType};

impl Kernel {
    /// Features used by the kernel's text for an adapter of `tier` and for `weights`.
    pub fn features(&self, tier: Tier, weights: Option<WeightType>) -> KernelFeatures {
        if self.cooperative {
            return KernelFeatures {
                cooperative: true,
                packed: self.packed,
                tier: Tier { subgroups: true, f16: true },
            };
        }
        let text = self.source(tier, weights);
        // A text that is the same without a feature does not use it.
        let uses = |has: bool, without: Tier| has && self.source(without, weights) != text;
        let subgroups = uses(tier.subgroups, Tier { subgroups: false, ..tier });
        let f16 = uses(tier.f16, Tier { f16: false, ..tier });
        KernelFeatures { cooperative: self.for_cooperative, packed: self.packed, tier: Tier { subgroups, f16 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_those_that_the_text_uses() {
        let full = Tier { subgroups: true, f16: true };
        let of = |name, tier| {
            let kernel = Kernel::named(name).unwrap();
            kernel.features(tier, kernel.weights.first().copied())
        };
        let subgroups = Tier { subgroups: true, f16: false };
        assert_eq!(of("gemm_coop", full), KernelFeatures { cooperative: true, packed: false, tier: full });
        assert_eq!(of("gemv", full), KernelFeatures { tier: subgroups, ..KernelFeatures::default() });
        assert_eq!(of("gemv_dot", full), KernelFeatures { packed: true, tier: subgroups, cooperative: false });
        assert_eq!(of("half_scale", full), KernelFeatures { cooperative: true, ..KernelFeatures::default() });
        assert_eq!(of("quantise_q8", Tier::PORTABLE), KernelFeatures { packed: true, ..KernelFeatures::default() });
        for portable in [of("combine", full), of("gemv", Tier::PORTABLE)] {
            assert_eq!(portable, KernelFeatures::default());
        }
    }
}
