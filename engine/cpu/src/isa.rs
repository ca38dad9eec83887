//! Instruction sets, and the choice of one.

use std::{fmt, str::FromStr};

use thermocline_base::error::{Error, Result};

/// An instruction set with kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust, the oracle of the tests.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX2 with AVX-VNNI: products of 8-bit codes in half the instructions.
    AvxVnni,
    /// AVX-512 F/BW/VL/DQ with VNNI.
    Avx512,
    /// NEON, which every 64-bit Arm processor has.
    Neon,
    /// NEON with dot products of 8-bit codes.
    NeonDot,
    /// NEON with dot products and products of small matrices of 8-bit codes.
    NeonI8mm,
}

/// All instruction sets, with the names that users see.
const NAMES: [(Isa, &str); 7] = [
    (Isa::Scalar, "scalar"),
    (Isa::Avx2, "avx2"),
    (Isa::AvxVnni, "avxvnni"),
    (Isa::Avx512, "avx512"),
    (Isa::Neon, "neon"),
    (Isa::NeonDot, "neon-dotprod"),
    (Isa::NeonI8mm, "neon-i8mm"),
];

impl Isa {
    /// The names of all instruction sets, independent of this machine.
    pub fn names() -> [&'static str; NAMES.len()] {
        NAMES.map(|(_, name)| name)
    }

    /// True for plain Rust, which is several times slower than the processor's vector instructions.
    pub const fn is_portable(self) -> bool {
        matches!(self, Isa::Scalar)
    }

    /// The instruction sets of this machine, slowest first.
    pub fn available() -> Vec<Isa> {
        #[cfg(target_arch = "x86_64")]
        let found = {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vnni");
            let vnni = avx2 && is_x86_feature_detected!("avxvnni");
            [(Isa::Avx2, avx2), (Isa::AvxVnni, vnni), (Isa::Avx512, avx512)]
        };
        #[cfg(target_arch = "aarch64")]
        let found = {
            let dot = std::arch::is_aarch64_feature_detected!("dotprod");
            let matrix = dot && std::arch::is_aarch64_feature_detected!("i8mm");
            [(Isa::Neon, true), (Isa::NeonDot, dot), (Isa::NeonI8mm, matrix)]
        };
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let found = [];
        let found = found.into_iter().filter(|(_, has): &(Isa, bool)| *has).map(|(isa, _)| isa);
        std::iter::once(Isa::Scalar).chain(found).collect()
    }

    /// Returns `wanted`, or an error if this machine lacks it. `None` chooses the best instruction
    /// set of this machine.
    pub fn choose(wanted: Option<Isa>) -> Result<Isa> {
        let available = Self::available();
        match wanted {
            None => Ok(available.last().copied().unwrap_or(Isa::Scalar)),
            Some(isa) if available.contains(&isa) => Ok(isa),
            Some(isa) => Err(Error::unsupported(
                "instruction set",
                isa,
                available.iter().map(Isa::to_string).collect::<Vec<_>>().join(", "),
            )),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(NAMES.iter().find(|(isa, _)| isa == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for Isa {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        NAMES
            .iter()
            .find(|(_, name)| *name == text)
            .map(|(isa, _)| *isa)
            .ok_or_else(|| Error::unsupported("instruction set", text, Self::names().join(", ")))
    }
}
