//! Rounded inputs in the order of the lanes of AVX-512's products.
//!
//! A register of 512 bits has sixteen lanes of four codes. If each lane belongs to one half of a
//! block of 32, the integer products of 256 columns are added up in one register. They are then
//! scaled once, and not after each 64 columns.

use super::{QuantisedInput, part};

/// Columns of a [`LaneChunk`].
pub(crate) const LANE_COLUMNS: usize = 256;

/// Most tokens of a [`LaneTile`].
pub(crate) const LANE_TOKENS: usize = 32;

/// Most rows that are multiplied with a [`LaneTile`] at once.
pub(crate) const LANE_ROWS: usize = 8;

/// The rounded inputs of at most [`LANE_TOKENS`] tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneTile<'a> {
    /// `[columns / 256 rounded up, tokens]`
    pub chunks: &'a [LaneChunk],
    pub tokens: usize,
    pub columns: usize,
}

/// The rounded inputs of one token for 256 columns: eight blocks of 32, each with two halves. Lane
/// `8 * (block / 4) + 4 * half + block % 4` of register `i` has the `i`-th four codes of a half.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(align(64))]
pub(crate) struct LaneChunk {
    /// The codes of four registers.
    pub codes: [[[i8; 4]; 16]; 4],
    /// Scale of each lane's block.
    pub scales: [f32; 16],
    /// `scale * sum(codes)` of each lane's half block.
    pub sums: [f32; 16],
    /// `-sum(codes)` of each lane's half block.
    pub negated_code_sums: [i32; 16],
}

impl LaneChunk {
    /// Copies chunk `at` of `x`. Blocks after the end of `x` are zeros.
    pub fn of(x: &QuantisedInput<'_>, at: usize) -> Self {
        let mut chunk = LaneChunk::default();
        let first = at * LANE_COLUMNS / 32;
        for block in 0..(x.scales.len() - first).min(LANE_COLUMNS / 32) {
            let from = first + block;
            for half in 0..2 {
                let lane = 8 * (block / 4) + 4 * half + block % 4;
                let codes: &[i8; 16] = part(x.codes, 32 * from + 16 * half);
                for (to, codes) in chunk.codes.iter_mut().zip(codes.as_chunks::<4>().0) {
                    to[lane] = *codes;
                }
                chunk.scales[lane] = x.scales[from];
                chunk.sums[lane] = x.half_sums[2 * from + half];
                chunk.negated_code_sums[lane] = -x.half_code_sums[2 * from + half];
            }
        }
        chunk
    }
}
