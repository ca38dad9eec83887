//! Inputs of products in the layouts of the kernels: one quantised vector for dot kernels, tiles of
//! tokens for tile kernels.

use std::{fmt, str::FromStr};

use super::{
    ThreadPool,
    row_selection::RowSelection,
    scratch::AlignedBuffer,
    simd::{CodeTile, Kernels, LANE_COLUMNS, LaneChunk, QuantisedInput, QuantisedInputMut, TILE_TOKENS},
};
use thermocline_base::error::{Error, Result};

/// Precision of the inputs of products with quantised weights. Float weights always use f32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InputPrecision {
    /// Rounded to 8 bits in blocks of 32, for integer products. The fastest choice.
    #[default]
    Int8,
    /// f32, as on a GPU. CPU and GPU then write the same text.
    Float,
}

impl fmt::Display for InputPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            InputPrecision::Int8 => "int8",
            InputPrecision::Float => "float",
        })
    }
}

impl FromStr for InputPrecision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = [InputPrecision::Int8, InputPrecision::Float].into_iter().find(|it| it.to_string() == text);
        known.ok_or_else(|| Error::invalid("activations", "int8 or float", text))
    }
}

/// Owned memory of a [`QuantisedInput`]: `[n]` activations rounded to 8 bits.
#[derive(Debug, Default)]
pub(super) struct QuantisedInputBuffer {
    n: usize,
    codes: AlignedBuffer<i8>,
    scales: AlignedBuffer<f32>,
    sums: AlignedBuffer<f32>,
    half_sums: AlignedBuffer<f32>,
    code_sums: AlignedBuffer<i32>,
    half_code_sums: AlignedBuffer<i32>,
    /// Empty unless the kernels sum in lanes, and the vector is for dot kernels.
    lanes: Vec<LaneChunk>,
}

impl QuantisedInputBuffer {
    /// Rounds `x`, whose length is a multiple of 32, for dot kernels.
    pub fn fill_for_dots(&mut self, kernels: &Kernels, x: &[f32]) {
        self.fill(kernels, x);
        if kernels.lanes.is_some() {
            let mut lanes = std::mem::take(&mut self.lanes);
            lanes.extend((0..self.n.div_ceil(LANE_COLUMNS)).map(|at| LaneChunk::of(&self.row(), at)));
            self.lanes = lanes;
        }
    }

    /// Rounds `x`, whose length is a multiple of 32, for other kernels.
    pub fn fill(&mut self, kernels: &Kernels, x: &[f32]) {
        self.n = x.len();
        let row = QuantisedInputMut {
            codes: self.codes.take(self.n),
            scales: self.scales.take(self.n / 32),
            sums: self.sums.take(self.n / 32),
            half_sums: self.half_sums.take(self.n / 16),
            code_sums: self.code_sums.take(self.n / 32),
            half_code_sums: self.half_code_sums.take(self.n / 16),
        };
        (kernels.quantise)(x, row);
        self.lanes.clear();
    }

    /// The most recently rounded vector.
    pub fn row(&self) -> QuantisedInput<'_> {
        QuantisedInput {
            codes: self.codes.get(self.n),
            scales: self.scales.get(self.n / 32),
            sums: self.sums.get(self.n / 32),
            half_sums: self.half_sums.get(self.n / 16),
            code_sums: self.code_sums.get(self.n / 32),
            half_code_sums: self.half_code_sums.get(self.n / 16),
            lanes: &self.lanes,
        }
    }
}

/// `[tokens, n]` activations rounded to 8 bits, in tiles of [`TILE_TOKENS`]. The last tile is
/// padded with zeros.
#[derive(Debug, Default)]
pub(super) struct CodeTiles {
    n: usize,
    codes: AlignedBuffer<u32>,
    scales: AlignedBuffer<f32>,
    sums: AlignedBuffer<f32>,
    half_sums: AlignedBuffer<f32>,
}

impl CodeTiles {
    /// Rounds `x`, `[tokens, n]` with `n` a multiple of 32.
    pub fn fill(&mut self, kernels: &Kernels, pool: &ThreadPool, x: &[f32], n: usize) {
        self.n = n;
        let tokens = x.len() / n;
        let tiles = tokens.div_ceil(TILE_TOKENS);
        let of_tile = n * TILE_TOKENS;
        let codes = self.codes.take(tiles * of_tile / 4).chunks_exact_mut(of_tile / 4);
        let scales = self.scales.take(tiles * of_tile / 32).chunks_exact_mut(of_tile / 32);
        let sums = self.sums.take(tiles * of_tile / 32).chunks_exact_mut(of_tile / 32);
        let half_sums = self.half_sums.take(tiles * of_tile / 16).chunks_exact_mut(of_tile / 16);
        let mut jobs: Vec<_> = codes.zip(scales).zip(sums.zip(half_sums)).enumerate().collect();
        pool.for_each(&mut jobs, |_, (tile, ((codes, scales), (sums, half_sums)))| {
            let mut row = QuantisedInputBuffer::default();
            for lane in 0..TILE_TOKENS {
                let token = *tile * TILE_TOKENS + lane;
                if token >= tokens {
                    codes.iter_mut().skip(lane).step_by(TILE_TOKENS).for_each(|code| *code = 0x8080_8080);
                    for array in [&mut **scales, &mut **sums, &mut **half_sums] {
                        array.iter_mut().skip(lane).step_by(TILE_TOKENS).for_each(|v| *v = 0.0);
                    }
                    continue;
                }
                row.fill(kernels, &x[token * n..][..n]);
                let row = row.row();
                let quads = codes.iter_mut().skip(lane).step_by(TILE_TOKENS);
                for (quad, codes) in quads.zip(row.codes.as_chunks::<4>().0) {
                    *quad = u32::from_le_bytes(codes.map(|code| code as u8)) ^ 0x8080_8080;
                }
                for (to, from) in
                    [(&mut **scales, row.scales), (&mut **sums, row.sums), (&mut **half_sums, row.half_sums)]
                {
                    to.iter_mut().skip(lane).step_by(TILE_TOKENS).zip(from).for_each(|(to, from)| *to = *from);
                }
            }
        });
    }

    /// Columns `first..first + len` of tile `tile`, both multiples of 32.
    pub fn tile(&self, tile: usize, first: usize, len: usize) -> CodeTile<'_> {
        let start = tile * self.n + first;
        let part = |per: usize| start / per * TILE_TOKENS..(start + len) / per * TILE_TOKENS;
        let end = (start + len) * TILE_TOKENS;
        CodeTile {
            codes: &self.codes.get(end / 4)[part(4)],
            scales: &self.scales.get(end / 32)[part(32)],
            sums: &self.sums.get(end / 32)[part(32)],
            half_sums: &self.half_sums.get(end / 16)[part(16)],
        }
    }
}

/// `[tokens, n]` f32 activations in tiles, `[tiles, n, tile_tokens]`. The last tile is padded with
/// zeros.
#[derive(Debug, Default)]
pub(super) struct FloatTiles {
    n: usize,
    tokens: usize,
    values: AlignedBuffer<f32>,
}

impl FloatTiles {
    /// Copies columns `columns` of `x`, `[tokens, stride]`, into tiles.
    pub fn fill(&mut self, kernels: &Kernels, pool: &ThreadPool, x: &[f32], stride: usize, columns: RowSelection<'_>) {
        self.n = columns.len(stride);
        self.tokens = kernels.float_tokens;
        let (n, tile_tokens) = (self.n, self.tokens);
        let tokens = x.len() / stride;
        let tiles = tokens.div_ceil(tile_tokens);
        let values = self.values.take(tiles * n * tile_tokens);
        let mut jobs: Vec<_> = values.chunks_exact_mut((n * tile_tokens).max(1)).enumerate().collect();
        pool.for_each(&mut jobs, |_, (tile, values)| {
            for lane in 0..tile_tokens {
                let token = *tile * tile_tokens + lane;
                let to = values.iter_mut().skip(lane).step_by(tile_tokens);
                if token >= tokens {
                    to.for_each(|v| *v = 0.0);
                    continue;
                }
                let row = &x[token * stride..][..stride];
                match columns {
                    RowSelection::All => to.zip(row).for_each(|(to, from)| *to = *from),
                    RowSelection::Listed(list) => to.zip(list).for_each(|(to, at)| *to = row[*at as usize]),
                }
            }
        });
    }

    /// Columns `first..first + len` of tile `tile`, among the columns that were copied.
    pub fn tile(&self, tile: usize, first: usize, len: usize) -> &[f32] {
        let start = (tile * self.n + first) * self.tokens;
        let end = start + len * self.tokens;
        &self.values.get(end)[start..end]
    }
}
