//! Layout of weights in device memory.

use std::fmt;

/// Weight types that the kernels read. A matrix is two streams of rows, `main` (16-byte elements)
/// and `aux` (4-byte words). A row is a whole number of *chunks* of 32 columns, padded with zeros.
/// Most types have blocks of several chunks, *super-blocks* of 8. The table shows the contents per
/// chunk, or per super-block after "S:".
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
/// | Q4_K | nibbles | S: 4 words: d, dmin; low nibbles of scales; of mins; high bit pairs of both |
/// | Q5_K | low nibbles | S: 12 words: as Q4_K, then 8 words of high bits, one per chunk |
/// | Q6_K | low nibbles | S: 21 words: 16 of high bit pairs, two per chunk, 4 of i8 scales, d |
/// | IQ4_XS | nibbles | S: 2 words: d, scales' high bit pairs in upper half; their low nibbles |
/// | Q2_K | bit pairs | S: 5 words: d, dmin, then per half chunk a byte, scale low and min high |
/// | Q3_K | low bit pairs | S: 11 words: 8 of high bits; scales: 2 of nibbles, 1 of high pairs; d |
/// | Q1_0 | a word of signs, set for + | per four chunks an f16 scale |
/// | Q2_0 | 16 codes in a word | per two chunks an f16 scale |
/// | TQ1_0 | digits of columns 0-19, a word | S: 5 words: digits of columns 20-31 of chunks; d |
/// | TQ2_0 | 16 codes in a word | S: only d |
/// | I2_S | 16 codes in a word | a row's factor in F32 |
/// | IQ1_S | a byte per point | S: 4 words: two bytes per chunk, high bits, scale, shift; d |
/// | IQ1_M | a byte per point | S: 6 words: two bytes per chunk, high bits, shifts; scales and d |
/// | IQ2_XXS | a byte per point | S: 8 words, one per chunk: signs and scale; d |
/// | IQ2_XS | two bytes per point, with its signs | S: 2 words of scales; d |
/// | IQ2_S | a byte per point | S: 12 words: 8 of signs, 2 of high bit pairs, 2 of scales; d |
/// | IQ3_XXS | a byte per point | S: 8 words, one per chunk: signs and scale; d |
/// | IQ3_S | a byte per point | S: 11 words: 2 of high bits of points, 8 of signs, 1 of scales; d |
///
/// Nibbles, 16 bytes: byte `j` of a chunk holds column `j` in its low and column `j + 16` in its
/// high nibble, whatever the order in the file. High bits: bit `j` of the word is column `j`. Bit
/// pairs, 8 bytes: bits `2j, 2j + 1` of the first word are column `j`, of the second word column
/// `16 + j`. 16-bit scales are stored two per word and bytes four per word, with each row padded to
/// whole words. A `d` at the end of a super-block is an f16 scale after all other words of the row.
/// Digits: digit `n` of the four bytes of a word gives four adjacent columns, digit `n + 1` the
/// next four. Digit `n` of a byte `b` is `3 (3^n b mod 256) / 256`. A point is an entry of the
/// type's [code book](WeightType::code_book): eight columns, or four for IQ3. Its bits, signs and
/// scales are packed as in the file.
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
    /// All weight types.
    pub const ALL: [WeightType; 29] = {
        use WeightType::*;
        [
            F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q1_0, Q2_0, TQ1_0, TQ2_0, I2_S,
            MXFP4, NVFP4, IQ4_NL, IQ4_XS, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S,
        ]
    };

    /// Weight types with integer-product kernels.
    pub const PACKED: [WeightType; 23] = {
        use WeightType::*;
        [
            Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q2_0, TQ1_0, TQ2_0, I2_S, IQ4_NL, IQ4_XS,
            IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S,
        ]
    };

    /// The name in GGML.
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

    /// A row is padded to a multiple of this many columns.
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

    /// Number of 8-column parts of a chunk in 16 bytes of `main`, at most 4. An invocation of
    /// `gemv` takes this many parts at once.
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
        // Words per block, and whether a 16-bit scale follows.
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

    /// True if the first word of each `aux` row is an F32 factor of the whole row.
    pub const fn has_row_factor(self) -> bool {
        matches!(self, WeightType::NVFP4 | WeightType::I2_S)
    }

    /// Bytes of a row of `cols` columns in both streams.
    pub const fn row_bytes(self, cols: usize) -> usize {
        self.main_len(cols) * 16 + self.aux_len(cols) * 4
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
