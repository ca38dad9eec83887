//! Features of adapters beyond plain WGSL: the tier of an adapter, and what a kernel's text uses.

use std::fmt;

/// Optional features that a kernel's text may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tier {
    /// Subgroup operations, for subgroups of any size from 4 to 128.
    pub subgroups: bool,
    /// 16-bit floats in shaders.
    pub f16: bool,
}

impl Tier {
    /// The tier that runs on every adapter.
    pub const PORTABLE: Tier = Tier { subgroups: false, f16: false };

    /// All tiers, plainest first.
    pub const ALL: [Tier; 4] = [
        Tier::PORTABLE,
        Tier { subgroups: false, f16: true },
        Tier { subgroups: true, f16: false },
        Tier { subgroups: true, f16: true },
    ];

    /// True if the tier has the feature `name`, as used in `#if`; `None` if there is no feature
    /// with this name.
    pub fn has(self, name: &str) -> Option<bool> {
        match name {
            "subgroups" => Some(self.subgroups),
            "f16" => Some(self.f16),
            _ => None,
        }
    }
}

/// Device features used by a kernel's text. If a driver fails with such a feature, the feature can
/// be disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelFeatures {
    /// Hardware matrix products (cooperative matrices), or the scaling of activations for them.
    pub cooperative: bool,
    /// Products of packed 8-bit integers, or the rounding of activations for them.
    pub packed: bool,
    /// Subgroups and 16-bit floats.
    pub tier: Tier,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match (self.subgroups, self.f16) {
            (false, false) => "portable",
            (false, true) => "f16",
            (true, false) => "subgroups",
            (true, true) => "subgroups+f16",
        })
    }
}
