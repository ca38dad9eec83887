//! Types of tensors, with GGUF's ids, and the subset of weight types: floats, and blocks of codes.
//! The rows of the table are in [`mod`](super).

use std::{fmt, str::FromStr};

use super::{FloatType, TensorType, WeightType};
use thermocline_base::error::{Error, Result};

/// Defines the types of tensors from a table: the name in GGUF, its id, and either the bytes of a
/// number or the module with the page of a block type.
macro_rules! tensor_types {
    (
        floats { $($float:ident = $float_id:literal, $float_bytes:literal bytes;)* }
        blocks { $($block:ident = $block_id:literal, $page:ident;)* }
        numbers { $($number:ident = $number_id:literal, $number_bytes:literal bytes;)* }
    ) => {
        /// Encoding of a tensor's elements. Discriminants are GGUF's `ggml_type` ids.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum TensorType {
            $($float = $float_id,)*
            $($block = $block_id,)*
            $($number = $number_id,)*
        }

        /// Float types of weights.
        #[allow(missing_docs)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum FloatType {
            $($float,)*
        }

        /// Block-quantised types of weights. [`BlockType::format`] describes each.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum BlockType {
            $($block,)*
        }

        #[allow(missing_docs)]
        impl WeightType {
            $(pub const $float: WeightType = WeightType::Float(FloatType::$float);)*
            $(pub const $block: WeightType = WeightType::Blocks(BlockType::$block);)*
        }

        impl WeightType {
            /// Every type of weights, floats first.
            pub const ALL: [WeightType; TensorType::WEIGHTS.len()] =
                [$(WeightType::$float,)* $(WeightType::$block,)*];
        }

        impl TensorType {
            /// Every type of weights, floats first.
            pub const WEIGHTS: [TensorType; [$($float_id,)* $($block_id,)*].len()] =
                [$(TensorType::$float,)* $(TensorType::$block,)*];

            /// Every type: the types of weights, then types of numbers that only occur in tables.
            pub const ALL: [TensorType; [$($float_id,)* $($block_id,)* $($number_id,)*].len()] =
                [$(TensorType::$float,)* $(TensorType::$block,)* $(TensorType::$number,)*];

            /// The type of weights. `None` for integers and F64, which only occur in tables.
            #[inline]
            pub const fn weight_type(self) -> Option<WeightType> {
                match self {
                    $(TensorType::$float => Some(WeightType::$float),)*
                    $(TensorType::$block => Some(WeightType::$block),)*
                    $(TensorType::$number => None,)*
                }
            }

            /// Bytes per block, or per element for types without blocks.
            #[inline]
            pub const fn block_bytes(self) -> usize {
                match self {
                    $(TensorType::$float => $float_bytes,)*
                    $(TensorType::$block => $page::FORMAT.bytes,)*
                    $(TensorType::$number => $number_bytes,)*
                }
            }

            /// Upper-case name, as printed by llama.cpp.
            #[inline]
            pub const fn name(self) -> &'static str {
                match self {
                    $(TensorType::$float => stringify!($float),)*
                    $(TensorType::$block => stringify!($block),)*
                    $(TensorType::$number => stringify!($number),)*
                }
            }
        }

        impl WeightType {
            /// The type as a type of tensors.
            #[inline]
            pub const fn tensor_type(self) -> TensorType {
                match self {
                    $(WeightType::Float(FloatType::$float) => TensorType::$float,)*
                    $(WeightType::Blocks(BlockType::$block) => TensorType::$block,)*
                }
            }
        }

        impl BlockType {
            /// Layout, codes and GPU encoding of the type, from its page.
            #[inline]
            pub const fn format(self) -> &'static BlockFormat {
                match self {
                    $(BlockType::$block => &$page::FORMAT,)*
                }
            }
        }
    };
}
pub(super) use tensor_types;

impl TensorType {
    /// The type with this GGUF id. `None` if this engine does not read it.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| *ty as u32 == id)
    }

    /// The type on the GPU. Integers and F64, which no matrix uses, count as F32.
    pub const fn device_type(self) -> WeightType {
        match self.weight_type() {
            Some(ty) => ty,
            None => WeightType::F32,
        }
    }

    /// True for types of weights.
    #[inline]
    pub const fn is_weight(self) -> bool {
        self.weight_type().is_some()
    }

    /// Elements per block. 1 for types without blocks.
    #[inline]
    pub const fn block_len(self) -> usize {
        match self.weight_type() {
            Some(WeightType::Blocks(ty)) => ty.format().len,
            Some(WeightType::Float(_)) | None => 1,
        }
    }

    /// Bytes of one row of `cols` elements, or `None` if `cols` is not a whole number of blocks (or
    /// overflows).
    #[inline]
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Bytes after the last row of a tensor that is not empty. I2_S stores its factor there, padded
    /// to 32 bytes.
    #[inline]
    pub const fn trailer_bytes(self) -> usize {
        match self {
            TensorType::I2_S => super::i2_s::TRAILER,
            _ => 0,
        }
    }
}

impl WeightType {
    /// Bytes of one row of `cols` elements in a file, or `None` if `cols` is not a whole number of
    /// blocks (or overflows).
    #[inline]
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        self.tensor_type().row_bytes(cols)
    }

    /// The name in GGML.
    #[inline]
    pub const fn name(self) -> &'static str {
        self.tensor_type().name()
    }
}

impl FloatType {
    /// Bytes of an element.
    #[inline]
    pub const fn bytes(self) -> usize {
        WeightType::Float(self).tensor_type().block_bytes()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for WeightType {
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
