//! Instruction sets and the choice between them.

use std::{fmt, str::FromStr};

use crate::error::{Error, Result};

/// An instruction set kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust: the oracle.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX2 with AVX-VNNI: products of 8-bit codes in half the instructions.
    AvxVnni,
    /// AVX-512 F/BW/VL/DQ with VNNI.
    Avx512,
}

impl Isa {
    /// Those this machine has, slowest first.
    pub fn available() -> Vec<Isa> {
        let mut isas = vec![Isa::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vnni");
            if avx2 {
                isas.push(Isa::Avx2);
            }
            if avx2 && is_x86_feature_detected!("avxvnni") {
                isas.push(Isa::AvxVnni);
            }
            if avx512 {
                isas.push(Isa::Avx512);
            }
        }
        isas
    }

    /// `wanted` if the machine has it, else the best there is.
    pub fn choose(wanted: Option<Isa>) -> Result<Isa> {
        let available = Self::available();
        match wanted {
            None => Ok(available.last().copied().unwrap_or(Isa::Scalar)),
            Some(isa) if available.contains(&isa) => Ok(isa),
            Some(isa) => Err(Error::Unsupported {
                what: "instruction set",
                got: isa.to_string(),
                supported: available.iter().map(Isa::to_string).collect::<Vec<_>>().join(", "),
            }),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
        })
    }
}

impl FromStr for Isa {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Isa::Scalar, Isa::Avx2, Isa::AvxVnni, Isa::Avx512].into_iter().find(|isa| isa.to_string() == text).ok_or_else(
            || Error::Unsupported {
                what: "instruction set",
                got: text.to_owned(),
                supported: "scalar, avx2, avxvnni, avx512".to_owned(),
            },
        )
    }
}
