//! The table of kernels.

use crate::{Tier, include};

/// One kernel: a file with one entry point of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// Name of the file (without `.wgsl`) and of its entry point.
    pub name: &'static str,
    /// Bytes of its `Params`, set as immediates.
    pub params_bytes: u32,
    text: &'static str,
}

/// Every kernel there is.
pub const KERNELS: [Kernel; 4] = [
    Kernel { name: "activation", params_bytes: 8, text: include_str!("../wgsl/activation.wgsl") },
    Kernel { name: "gemv_f16", params_bytes: 12, text: include_str!("../wgsl/gemv_f16.wgsl") },
    Kernel { name: "norm", params_bytes: 12, text: include_str!("../wgsl/norm.wgsl") },
    Kernel { name: "rope", params_bytes: 12, text: include_str!("../wgsl/rope.wgsl") },
];

impl Kernel {
    /// WGSL text for an adapter of `tier`.
    ///
    /// # Errors
    /// A mistake in the file's directives, with file and line; tests make sure no kernel has one.
    pub fn source(&self, tier: Tier) -> Result<String, String> {
        include::expand(self.name, self.text, tier)
    }
}
