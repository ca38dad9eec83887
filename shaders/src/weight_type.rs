//! How weights lie in device memory.

use std::fmt;

/// Encodings the kernels read. A matrix is two streams, `main` (in elements of 16 bytes) and `aux` (in words of 4), each
/// row after row. A row is a whole number of *chunks* of 32 columns, zero past the matrix's columns; most types have blocks of
/// several chunks, *super-blocks* of 8. Per chunk, unless it says otherwise:
///
/// | type | `main` | `aux` |
/// |---|---|---|
/// | F32 | 128 bytes: the values | none |
/// | F16, BF16 | 64 bytes: pairs of values | none |
/// | Q8_0 | 32 bytes: codes, four to a word | an f16 scale |
/// | Q4_0, IQ4_NL | nibbles | an f16 scale |
/// | Q4_1 | nibbles | f16 scale and min |
/// | Q5_0 | low nibbles | a row's words of high bits, one per chunk, then its f16 scales |
/// | Q5_1 | low nibbles | a word of high bits, f16 scale and min |
/// | MXFP4 | nibbles | a byte `e`, the scale being `2^(e - 128)` (0 for `e` below 2) |
/// | NVFP4 | nibbles | a row's factor in F32, then per chunk two E4M3 bytes, scales of the halves |
/// | Q4_K | nibbles | per super-block 4 words: d and dmin, low nibbles of the eight scales, of the minima, high bit pairs of both |
/// | Q5_K | low nibbles | per super-block 12 words: as Q4_K, then 8 words of high bits, one per chunk |
/// | Q6_K | low nibbles | per super-block 21 words: 16 of high bit pairs, two per chunk, 4 of i8 scales, d |
/// | IQ4_XS | nibbles | per super-block 2 words: d, high bit pairs of the scales in the upper half; low nibbles of the scales |
/// | Q2_K | bit pairs | per super-block 5 words: d and dmin, then per half of a chunk a byte, scale low and min high |
/// | Q3_K | low bit pairs | per super-block 11 words: 8 of high bits, 2 of low nibbles of the scales, 1 of their high bit pairs; d |
/// | Q1_0 | a word of signs, set for + | per four chunks an f16 scale |
/// | Q2_0 | 16 codes in a word | per two chunks an f16 scale |
/// | TQ1_0 | columns 0 to 19: digits of a word | per super-block 5 words, whose digits are columns 20 to 31 of its chunks; d |
/// | TQ2_0 | 16 codes in a word | per super-block only d |
/// | I2_S | 16 codes in a word | a row's factor in F32 |
/// | IQ1_S | a byte per point | per super-block 4 words: two bytes per chunk, high bits of points, scale, shift; d |
/// | IQ1_M | a byte per point | per super-block 6 words: two bytes per chunk, high bits and shifts of points; then scales and d |
/// | IQ2_XXS | a byte per point | per super-block 8 words, one per chunk: signs and scale; d |
/// | IQ2_XS | two bytes per point, which has its signs | per super-block 2 words of scales; d |
/// | IQ2_S | a byte per point | per super-block 12 words: 8 of signs, 2 of high bit pairs of points, 2 of scales; d |
/// | IQ3_XXS | a byte per point | per super-block 8 words, one per chunk: signs and scale; d |
/// | IQ3_S | a byte per point | per super-block 11 words: 2 of high bits of points, 8 of signs, 1 of scales; d |
///
/// Nibbles, 16 bytes: byte `j` of a chunk holds column `j` low and column `j + 16` high, whatever the file's order was. High bits:
/// bit `j` of the word is column `j`. Bit pairs, 8 bytes: bits `2j, 2j + 1` of the first word are column `j`, of the second column
/// `16 + j`. Scales of 16 bits lie two to a word, bytes four to a word, a row padded to whole words; `d` at the end of a super-block is an
/// f16 scale behind all the row's words. Digits: digit `n` of the four bytes of a word are four neighbouring columns, next come those of
/// digit `n + 1`; of a byte `b` it is `3 (3^n b mod 256) / 256`. A point is an entry of the type's [code book](WeightType::code_book), eight
/// columns or, of IQ3, four; its bits, signs and scales are packed as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, non_camel_case_types)] // GGML's names
pub enum WeightType {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q1_0,
    Q2_0,
    TQ1_0,
    TQ2_0,
    I2_S,
    MXFP4,
    NVFP4,
    IQ4_NL,
    IQ4_XS,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
}

impl WeightType {
    /// Every type.
    pub const ALL: [WeightType; 29] = {
        use WeightType::*;
        [
            F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q1_0, Q2_0, TQ1_0, TQ2_0, I2_S,
            MXFP4, NVFP4, IQ4_NL, IQ4_XS, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S,
        ]
    };

    /// Those for which there are kernels with integer products.
    pub const PACKED: [WeightType; 23] = {
        use WeightType::*;
        [
            Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q2_0, TQ1_0, TQ2_0, I2_S, IQ4_NL, IQ4_XS,
            IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S,
        ]
    };

    /// GGML's name.
    pub const fn name(self) -> &'static str {
        match self {
            WeightType::F32 => "F32",
            WeightType::F16 => "F16",
            WeightType::BF16 => "BF16",
            WeightType::Q8_0 => "Q8_0",
            WeightType::Q4_0 => "Q4_0",
            WeightType::Q4_1 => "Q4_1",
            WeightType::Q5_0 => "Q5_0",
            WeightType::Q5_1 => "Q5_1",
            WeightType::Q2_K => "Q2_K",
            WeightType::Q3_K => "Q3_K",
            WeightType::Q4_K => "Q4_K",
            WeightType::Q5_K => "Q5_K",
            WeightType::Q6_K => "Q6_K",
            WeightType::Q1_0 => "Q1_0",
            WeightType::Q2_0 => "Q2_0",
            WeightType::TQ1_0 => "TQ1_0",
            WeightType::TQ2_0 => "TQ2_0",
            WeightType::I2_S => "I2_S",
            WeightType::MXFP4 => "MXFP4",
            WeightType::NVFP4 => "NVFP4",
            WeightType::IQ4_NL => "IQ4_NL",
            WeightType::IQ4_XS => "IQ4_XS",
            WeightType::IQ1_S => "IQ1_S",
            WeightType::IQ1_M => "IQ1_M",
            WeightType::IQ2_XXS => "IQ2_XXS",
            WeightType::IQ2_XS => "IQ2_XS",
            WeightType::IQ2_S => "IQ2_S",
            WeightType::IQ3_XXS => "IQ3_XXS",
            WeightType::IQ3_S => "IQ3_S",
        }
    }

    /// Columns a row is padded to a multiple of.
    pub const fn block(self) -> usize {
        use WeightType::*;
        match self {
            F32 | F16 | BF16 | Q8_0 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | MXFP4 | NVFP4 | IQ4_NL => 32,
            Q2_0 => 64,
            Q1_0 | I2_S => 128,
            Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_XS | TQ1_0 | TQ2_0 => 256,
            IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S => 256,
        }
    }

    /// Words of `main` in a chunk.
    pub(crate) const fn chunk_words(self) -> usize {
        use WeightType::*;
        match self {
            F32 => 32,
            F16 | BF16 => 16,
            Q8_0 => 8,
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q4_K | Q5_K | Q6_K | MXFP4 | NVFP4 | IQ4_NL | IQ4_XS => 4,
            Q2_K | Q3_K | Q2_0 | TQ2_0 | I2_S | IQ2_XS | IQ3_XXS | IQ3_S => 2,
            Q1_0 | TQ1_0 | IQ1_S | IQ1_M | IQ2_XXS | IQ2_S => 1,
        }
    }

    /// Times eight columns of a chunk that lie in 16 bytes of `main`, at most the four there are: what an invocation of `gemv` takes at
    /// once.
    pub const fn parts(self) -> usize {
        match self.chunk_words() {
            ..=4 => 4,
            5..=8 => 2,
            _ => 1,
        }
    }

    /// 16-byte elements of `main` in a row of `cols` columns.
    pub const fn main_len(self, cols: usize) -> usize {
        cols.div_ceil(self.block()) * (self.block() / 32) * self.chunk_words() / 4
    }

    /// Words of `aux` in a row of `cols` columns.
    pub const fn aux_len(self, cols: usize) -> usize {
        use WeightType::*;
        let blocks = cols.div_ceil(self.block());
        // Words of a block, and whether a scale of 16 bits follows.
        let (words, scale) = match self {
            F32 | F16 | BF16 => (0, false),
            MXFP4 => return blocks.div_ceil(4),
            NVFP4 => return 1 + blocks.div_ceil(2),
            I2_S => return 1,
            Q8_0 | Q4_0 | IQ4_NL | Q1_0 | Q2_0 | TQ2_0 => (0, true),
            Q5_0 => (1, true),
            Q4_1 => (1, false),
            Q5_1 | IQ4_XS => (2, false),
            IQ2_XS => (2, true),
            Q4_K => (4, false),
            IQ1_S => (4, true),
            Q2_K => (5, false),
            TQ1_0 => (5, true),
            IQ1_M => (6, false),
            IQ2_XXS | IQ3_XXS => (8, true),
            Q3_K | IQ3_S => (11, true),
            IQ2_S => (12, true),
            Q5_K => (12, false),
            Q6_K => (21, false),
        };
        blocks * words + if scale { blocks.div_ceil(2) } else { 0 }
    }

    /// True if the first word of a row of `aux` is a factor of the whole row, in F32.
    pub const fn has_row_factor(self) -> bool {
        matches!(self, WeightType::NVFP4 | WeightType::I2_S)
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
