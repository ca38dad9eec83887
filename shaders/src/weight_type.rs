//! How weights lie in device memory.

use std::fmt;

/// Encodings the kernels read. A matrix is two streams, `main` (in elements of 16 bytes) and `aux` (in words of 4), each
/// row after row. A row is a whole number of *chunks* of 32 columns, zero past the matrix's columns; K types have
/// *super-blocks* of 8 chunks. Per chunk, unless it says otherwise:
///
/// | type | `main` | `aux` |
/// |---|---|---|
/// | F32 | 8: the values | none |
/// | F16, BF16 | 4: pairs of values | none |
/// | Q8_0 | 2: codes, four to a word | an f16 scale; two to a word, a row padded to whole words |
/// | Q4_0 | 1: nibbles | the same |
/// | MXFP4 | 1: nibbles | a byte `e`, the scale being `2^(e - 128)` (0 for `e` below 2); four to a word, a row padded to whole words |
/// | Q4_K | 1: nibbles | per super-block 4 words: d and dmin, low nibbles of the eight scales, of the minima, high bit pairs of both |
/// | Q5_K | 1: low nibbles | per super-block 12 words: as Q4_K, then 8 words of high bits, one per chunk |
/// | Q6_K | 1: low nibbles | per super-block 21 words: 16 of high bit pairs, two per chunk, 4 of i8 scales, d |
///
/// Nibbles: byte `j` of a chunk holds column `j` low and column `j + 16` high, whatever the file's order was. High bits: bit
/// `j` of the word is column `j`. High bit pairs: bits `2j, 2j + 1` of the first word are column `j`, of the second column
/// `16 + j`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, non_camel_case_types)] // GGML's names
pub enum WeightType {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_K,
    Q5_K,
    Q6_K,
    MXFP4,
}

impl WeightType {
    /// Every type.
    pub const ALL: [WeightType; 9] = {
        use WeightType::*;
        [F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, MXFP4]
    };

    /// Those of small integers, for which there are kernels with integer products.
    pub const PACKED: [WeightType; 5] = {
        use WeightType::*;
        [Q8_0, Q4_0, Q4_K, Q5_K, Q6_K]
    };

    /// GGML's name.
    pub const fn name(self) -> &'static str {
        match self {
            WeightType::F32 => "F32",
            WeightType::F16 => "F16",
            WeightType::BF16 => "BF16",
            WeightType::Q8_0 => "Q8_0",
            WeightType::Q4_0 => "Q4_0",
            WeightType::Q4_K => "Q4_K",
            WeightType::Q5_K => "Q5_K",
            WeightType::Q6_K => "Q6_K",
            WeightType::MXFP4 => "MXFP4",
        }
    }

    /// Columns a row is padded to a multiple of.
    pub const fn block(self) -> usize {
        match self {
            WeightType::Q4_K | WeightType::Q5_K | WeightType::Q6_K => 256,
            _ => 32,
        }
    }

    /// 16-byte elements of `main` in a row of `cols` columns.
    pub const fn main_len(self, cols: usize) -> usize {
        let chunks = cols.div_ceil(self.block()) * (self.block() / 32);
        match self {
            WeightType::F32 => chunks * 8,
            WeightType::F16 | WeightType::BF16 => chunks * 4,
            WeightType::Q8_0 => chunks * 2,
            _ => chunks,
        }
    }

    /// Words of `aux` in a row of `cols` columns.
    pub const fn aux_len(self, cols: usize) -> usize {
        let blocks = cols.div_ceil(self.block());
        match self {
            WeightType::F32 | WeightType::F16 | WeightType::BF16 => 0,
            WeightType::Q8_0 | WeightType::Q4_0 => blocks.div_ceil(2),
            WeightType::MXFP4 => blocks.div_ceil(4),
            WeightType::Q4_K => blocks * 4,
            WeightType::Q5_K => blocks * 12,
            WeightType::Q6_K => blocks * 21,
        }
    }

    /// Bytes of a row of `cols` columns, both streams.
    pub const fn row_bytes(self, cols: usize) -> usize {
        self.main_len(cols) * 16 + self.aux_len(cols) * 4
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
