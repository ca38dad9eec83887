//! Types of tensors, with GGUF's ids, and the subset of weight types: floats, and blocks of codes.

use std::{fmt, str::FromStr};

use super::{BlockFormat, device_type};
use thermocline_base::error::{Error, Result};

/// Encoding of a tensor's elements. Discriminants are GGUF's `ggml_type` ids.
#[allow(non_camel_case_types, missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum TensorType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    /// Microsoft's BitNet.
    I2_S = 36,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
}

/// Encoding of weights. Kernels have separate arithmetic for each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Every element is a separate number.
    Float(FloatType),
    /// Small integers in blocks with shared scales.
    Blocks(BlockType),
}

/// Float types of weights.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FloatType {
    F32,
    F16,
    BF16,
}

/// Block-quantised types of weights. [`BlockType::format`] describes each.
#[allow(non_camel_case_types, missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ2_XXS,
    IQ2_XS,
    IQ3_XXS,
    IQ1_S,
    IQ4_NL,
    IQ3_S,
    IQ2_S,
    IQ4_XS,
    IQ1_M,
    TQ1_0,
    TQ2_0,
    I2_S,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
}

impl TensorType {
    /// Every type, in GGUF's order.
    pub const ALL: [TensorType; 34] = {
        use TensorType::*;
        [
            F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S,
            IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, I8, I16, I32, I64, F64, IQ1_M, BF16, TQ1_0, TQ2_0, I2_S, MXFP4, NVFP4, Q1_0,
            Q2_0,
        ]
    };

    /// The type with this GGUF id. `None` if this engine does not read it.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| *ty as u32 == id)
    }

    /// Encoding as weights. `None` for integers and F64, which only occur in tables.
    pub const fn encoding(self) -> Option<Encoding> {
        use Encoding::{Blocks, Float};
        Some(match self {
            TensorType::F32 => Float(FloatType::F32),
            TensorType::F16 => Float(FloatType::F16),
            TensorType::BF16 => Float(FloatType::BF16),
            TensorType::Q4_0 => Blocks(BlockType::Q4_0),
            TensorType::Q4_1 => Blocks(BlockType::Q4_1),
            TensorType::Q5_0 => Blocks(BlockType::Q5_0),
            TensorType::Q5_1 => Blocks(BlockType::Q5_1),
            TensorType::Q8_0 => Blocks(BlockType::Q8_0),
            TensorType::Q2_K => Blocks(BlockType::Q2_K),
            TensorType::Q3_K => Blocks(BlockType::Q3_K),
            TensorType::Q4_K => Blocks(BlockType::Q4_K),
            TensorType::Q5_K => Blocks(BlockType::Q5_K),
            TensorType::Q6_K => Blocks(BlockType::Q6_K),
            TensorType::IQ2_XXS => Blocks(BlockType::IQ2_XXS),
            TensorType::IQ2_XS => Blocks(BlockType::IQ2_XS),
            TensorType::IQ3_XXS => Blocks(BlockType::IQ3_XXS),
            TensorType::IQ1_S => Blocks(BlockType::IQ1_S),
            TensorType::IQ4_NL => Blocks(BlockType::IQ4_NL),
            TensorType::IQ3_S => Blocks(BlockType::IQ3_S),
            TensorType::IQ2_S => Blocks(BlockType::IQ2_S),
            TensorType::IQ4_XS => Blocks(BlockType::IQ4_XS),
            TensorType::IQ1_M => Blocks(BlockType::IQ1_M),
            TensorType::TQ1_0 => Blocks(BlockType::TQ1_0),
            TensorType::TQ2_0 => Blocks(BlockType::TQ2_0),
            TensorType::I2_S => Blocks(BlockType::I2_S),
            TensorType::MXFP4 => Blocks(BlockType::MXFP4),
            TensorType::NVFP4 => Blocks(BlockType::NVFP4),
            TensorType::Q1_0 => Blocks(BlockType::Q1_0),
            TensorType::Q2_0 => Blocks(BlockType::Q2_0),
            TensorType::I8 | TensorType::I16 | TensorType::I32 | TensorType::I64 | TensorType::F64 => return None,
        })
    }

    /// True for types of weights.
    pub const fn is_weight(self) -> bool {
        self.encoding().is_some()
    }

    /// Elements per block. 1 for types without blocks.
    pub const fn block_len(self) -> usize {
        match self.encoding() {
            Some(Encoding::Blocks(ty)) => ty.format().len,
            Some(Encoding::Float(_)) | None => 1,
        }
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        match (self.encoding(), self) {
            (Some(Encoding::Blocks(ty)), _) => ty.format().bytes,
            (Some(Encoding::Float(ty)), _) => ty.bytes(),
            (None, TensorType::I8) => 1,
            (None, TensorType::I16) => 2,
            (None, TensorType::I32) => 4,
            (None, _) => 8,
        }
    }

    /// Bytes of one row of `cols` elements, or `None` if `cols` is not a whole number of blocks (or
    /// overflows).
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Bytes after the last row of a tensor that is not empty. I2_S stores its factor there, padded
    /// to 32 bytes.
    pub const fn trailer_bytes(self) -> usize {
        match self {
            TensorType::I2_S => super::i2_s::TRAILER,
            _ => 0,
        }
    }

    /// Upper-case name, as printed by llama.cpp. For types of weights it is the name of the
    /// encoding on the GPU.
    pub const fn name(self) -> &'static str {
        match self {
            TensorType::F64 => "F64",
            TensorType::I8 => "I8",
            TensorType::I16 => "I16",
            TensorType::I32 => "I32",
            TensorType::I64 => "I64",
            weight => device_type(weight).name(),
        }
    }
}

impl Encoding {
    /// The encoding as a type of tensors.
    pub const fn tensor_type(self) -> TensorType {
        match self {
            Encoding::Float(FloatType::F32) => TensorType::F32,
            Encoding::Float(FloatType::F16) => TensorType::F16,
            Encoding::Float(FloatType::BF16) => TensorType::BF16,
            Encoding::Blocks(ty) => ty.format().ty,
        }
    }

    /// Bytes of one row of `cols` elements, or `None` if `cols` is not a whole number of blocks (or
    /// overflows).
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        self.tensor_type().row_bytes(cols)
    }
}

impl FloatType {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            FloatType::F32 => 4,
            FloatType::F16 | FloatType::BF16 => 2,
        }
    }
}

impl BlockType {
    /// Layout, codes and GPU encoding of the type, from its file.
    pub const fn format(self) -> &'static BlockFormat {
        match self {
            BlockType::Q4_0 => &super::q4_0::FORMAT,
            BlockType::Q4_1 => &super::q4_1::FORMAT,
            BlockType::Q5_0 => &super::q5_0::FORMAT,
            BlockType::Q5_1 => &super::q5_1::FORMAT,
            BlockType::Q8_0 => &super::q8_0::FORMAT,
            BlockType::Q2_K => &super::q2_k::FORMAT,
            BlockType::Q3_K => &super::q3_k::FORMAT,
            BlockType::Q4_K => &super::q4_k::FORMAT,
            BlockType::Q5_K => &super::q5_k::FORMAT,
            BlockType::Q6_K => &super::q6_k::FORMAT,
            BlockType::IQ2_XXS => &super::iq2_xxs::FORMAT,
            BlockType::IQ2_XS => &super::iq2_xs::FORMAT,
            BlockType::IQ3_XXS => &super::iq3_xxs::FORMAT,
            BlockType::IQ1_S => &super::iq1_s::FORMAT,
            BlockType::IQ4_NL => &super::iq4_nl::FORMAT,
            BlockType::IQ3_S => &super::iq3_s::FORMAT,
            BlockType::IQ2_S => &super::iq2_s::FORMAT,
            BlockType::IQ4_XS => &super::iq4_xs::FORMAT,
            BlockType::IQ1_M => &super::iq1_m::FORMAT,
            BlockType::TQ1_0 => &super::tq1_0::FORMAT,
            BlockType::TQ2_0 => &super::tq2_0::FORMAT,
            BlockType::I2_S => &super::i2_s::FORMAT,
            BlockType::MXFP4 => &super::mxfp4::FORMAT,
            BlockType::NVFP4 => &super::nvfp4::FORMAT,
            BlockType::Q1_0 => &super::q1_0::FORMAT,
            BlockType::Q2_0 => &super::q2_0::FORMAT,
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tensor_type().fmt(f)
    }
}

impl FromStr for TensorType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|ty| ty.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
            Error::unsupported("tensor type", text, Self::ALL.iter().map(|ty| ty.name()).collect::<Vec<_>>().join(", "))
        })
    }
}
