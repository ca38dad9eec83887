//! Products of eight rows of weights with the tokens of a tile. Each weight is decoded once for all
//! tokens, so that another token costs only its multiplications. [`RowPanel`] has the decoded rows,
//! [`TokenTile`] the tokens' rounded inputs.
//!
//! Sums follow [`sum_order`](super::sum_order), so that a token's product has the bits of the token
//! alone.

use super::{
    QuantisedInput, part, prefetch_behind,
    sum_order::{LANES, LINE, LineSums},
};
use thermocline_formats::quant::{BlockType, Grouping, UnpackedMut};

/// Rows of a [`RowPanel`].
pub(crate) const PANEL_ROWS: usize = 8;

/// Most tokens of a [`TokenTile`].
pub(crate) const MOST_TILE_TOKENS: usize = 32;

/// Columns of a chunk of a panel. They match one block of inputs.
pub(super) const CHUNK: usize = 32;

/// Sums of one token for the rows of a panel.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(32))]
pub(crate) struct PanelSums {
    /// Sums of the previous lines.
    pub total: [f32; PANEL_ROWS],
    /// Sums of the current line, as in [`LineSums`].
    pub lanes: [[f32; PANEL_ROWS]; LANES],
}

/// A line of [`PANEL_ROWS`] rows, or the part of a line before the end of the rows: `w = scale *
/// code + min`.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct RowPanel {
    pub(super) grouping: Grouping,
    /// Number of chunks in use.
    pub(super) chunks: usize,
    /// For each chunk, eight quads: the codes of four columns of each row. If [`CodeWidth::of`]
    /// says unsigned, the type's lowest code is subtracted.
    pub(super) codes: [[[i8; CHUNK]; CHUNK / 4]; LINE / CHUNK],
    /// Scales of each group.
    pub(super) scales: [[f32; PANEL_ROWS]; LINE / 16],
    pub(super) mins: [[f32; PANEL_ROWS]; LINE / 16],
    /// The rows one by one, during decoding.
    rows: [DecodedRow; PANEL_ROWS],
}

/// A decoded line of one row.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(super) struct DecodedRow {
    pub codes: [i8; LINE],
    pub scales: [f32; LINE / 16],
    pub mins: [f32; LINE / 16],
}

impl Default for RowPanel {
    fn default() -> Self {
        let row = DecodedRow { codes: [0; LINE], scales: [0.0; LINE / 16], mins: [0.0; LINE / 16] };
        RowPanel {
            grouping: Grouping { len: CHUNK, minima: false, lowest: 0, highest: 0 },
            chunks: 0,
            codes: [[[0; CHUNK]; CHUNK / 4]; LINE / CHUNK],
            scales: [[0.0; PANEL_ROWS]; LINE / 16],
            mins: [[0.0; PANEL_ROWS]; LINE / 16],
            rows: [row; PANEL_ROWS],
        }
    }
}

/// Range of the codes of a type. It decides how their products are summed without overflow. Only
/// x86 multiplies unsigned bytes by signed bytes. Elsewhere codes are [`CodeWidth::Signed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CodeWidth {
    /// Codes minus the lowest code are unsigned. The products of this many quads fit a 16-bit sum:
    /// 8, 4, 2 or 1.
    Quads(usize),
    /// Codes are signed, and the products of one quad fit a 16-bit sum.
    Signed,
}

impl CodeWidth {
    /// Returns the width of a type's codes.
    pub(super) const fn of(grouping: &Grouping) -> Self {
        if !cfg!(target_arch = "x86_64") {
            return CodeWidth::Signed;
        }
        // A lane of 16 bits sums two products of a quad. An activation's code is at most 127.
        let largest = (grouping.highest as i32 - grouping.lowest as i32) * 2 * 127;
        let fit = if largest == 0 { 8 } else { i16::MAX as i32 / largest };
        match fit {
            8.. => CodeWidth::Quads(8),
            4.. => CodeWidth::Quads(4),
            2.. => CodeWidth::Quads(2),
            1 => CodeWidth::Quads(1),
            _ => CodeWidth::Signed,
        }
    }

    /// The number that is added to codes: minus the lowest code for unsigned codes, otherwise 0.
    pub(super) const fn offset(grouping: &Grouping) -> i8 {
        match CodeWidth::of(grouping) {
            CodeWidth::Quads(_) => -grouping.lowest,
            CodeWidth::Signed => 0,
        }
    }
}

impl RowPanel {
    /// Begins a line of `rows`, which are equally long. Every `bytes` bytes encode `columns`
    /// columns.
    #[inline(always)]
    pub(super) fn begin(&mut self, ty: BlockType, rows: &[&[u8]; PANEL_ROWS], bytes: usize, columns: usize) {
        let columns = rows[0].len() / bytes * columns;
        assert!(columns <= LINE && columns.is_multiple_of(CHUNK), "a line of {columns} columns");
        assert!(rows.iter().all(|row| row.len() == rows[0].len()), "rows of different lengths");
        (self.grouping, self.chunks) = (ty.format().grouping, columns / CHUNK);
    }

    /// A panel of `codes`, `[rows, n]`. `factors` has its scales, then its minima.
    #[cfg(test)]
    pub(super) fn of_codes(grouping: Grouping, codes: &[i8], factors: &[f32]) -> Self {
        let n = codes.len() / PANEL_ROWS;
        let mut panel = RowPanel { grouping, chunks: n / CHUNK, ..RowPanel::default() };
        for (row, codes) in panel.rows.iter_mut().zip(codes.chunks_exact(n)) {
            row.codes[..n].copy_from_slice(codes);
        }
        let (scales, mins) = factors.as_chunks::<PANEL_ROWS>().0.split_at(LINE / 16);
        panel.scales.copy_from_slice(scales);
        panel.mins.copy_from_slice(mins);
        for (at, codes) in panel.codes[..panel.chunks].iter_mut().enumerate() {
            interleave(&panel.rows, at, CodeWidth::offset(&grouping), codes);
        }
        panel
    }

    /// Decodes a line of `rows` one by one with `unpack`, as in
    /// [`Kernels::decode_panel`](super::Kernels::decode_panel). `interleave(rows, at, offset,
    /// codes)` writes chunk `at` of the codes by quads, with `offset` added.
    #[inline(always)]
    pub(super) fn decode(
        &mut self,
        unpack: impl Fn(&[u8], UnpackedMut<'_>),
        ty: BlockType,
        rows: &[&[u8]; PANEL_ROWS],
        ahead: usize,
        interleave: impl Fn(&[DecodedRow; PANEL_ROWS], usize, i8, &mut [[i8; CHUNK]; CHUNK / 4]),
    ) {
        let format = ty.format();
        self.begin(ty, rows, format.bytes, format.len);
        prefetch_behind(*rows, ahead);
        let (grouping, columns) = (self.grouping, self.chunks * CHUNK);
        let groups = columns / grouping.len;
        for (row, decoded) in rows.iter().zip(&mut self.rows) {
            let minima = if grouping.minima { groups } else { 0 };
            let to = UnpackedMut {
                codes: &mut decoded.codes[..columns],
                scales: &mut decoded.scales[..groups],
                mins: &mut decoded.mins[..minima],
            };
            unpack(row, to);
        }
        for group in 0..groups {
            self.scales[group] = self.rows.each_ref().map(|row| row.scales[group]);
        }
        if grouping.minima {
            for group in 0..groups {
                self.mins[group] = self.rows.each_ref().map(|row| row.mins[group]);
            }
        }
        for (at, codes) in self.codes[..self.chunks].iter_mut().enumerate() {
            interleave(&self.rows, at, CodeWidth::offset(&grouping), codes);
        }
    }
}

/// Writes chunk `at` of rows by quads, with `offset` added.
#[inline(always)]
pub(super) fn interleave(rows: &[DecodedRow; PANEL_ROWS], at: usize, offset: i8, codes: &mut [[i8; CHUNK]; CHUNK / 4]) {
    for (quad, codes) in codes.iter_mut().enumerate() {
        for (row, codes) in rows.iter().zip(codes.as_chunks_mut::<4>().0) {
            let from = &row.codes[at * CHUNK + 4 * quad..][..4];
            codes.iter_mut().zip(from).for_each(|(code, from)| *code = from.wrapping_add(offset));
        }
    }
}

/// The rounded inputs of one token for the columns of a chunk.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct TokenChunk {
    pub codes: [i8; CHUNK],
    pub scale: f32,
    /// `scale * sum(codes)`
    pub sum: f32,
    /// `scale * sum(codes)` of each half.
    pub half_sums: [f32; 2],
    /// `sum(codes)`, needed if the weights' codes are [unsigned](CodeWidth).
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    pub code_sum: i32,
    /// `sum(codes)` of each half.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    pub half_code_sums: [i32; 2],
}

impl TokenChunk {
    /// Chunk `at` of a rounded vector.
    pub fn of(row: &QuantisedInput<'_>, at: usize) -> Self {
        TokenChunk {
            codes: *part(row.codes, CHUNK * at),
            scale: row.scales[at],
            sum: row.sums[at],
            half_sums: *part(row.half_sums, 2 * at),
            code_sum: row.code_sums[at],
            half_code_sums: *part(row.half_code_sums, 2 * at),
        }
    }
}

/// Rounded inputs of some tokens for the columns of a line: for each chunk, the inputs of all
/// tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenTile<'a> {
    /// At most [`MOST_TILE_TOKENS`].
    pub tokens: usize,
    /// `[chunks, tokens]`
    pub chunks: &'a [TokenChunk],
}

impl TokenTile<'_> {
    /// Checks the lengths of the inputs, the panel and the sums.
    #[inline(always)]
    pub(super) fn check(&self, panel: &RowPanel, sums: &[PanelSums]) {
        assert!((1..=MOST_TILE_TOKENS).contains(&self.tokens) && sums.len() == self.tokens, "{} tokens", self.tokens);
        assert_eq!(self.chunks.len(), panel.chunks * self.tokens, "inputs of {} chunks", panel.chunks);
    }
}

/// Products of a panel with a tile in plain Rust: the oracle.
#[inline(always)]
pub(super) fn products(panel: &RowPanel, x: TokenTile<'_>, sums: &mut [PanelSums]) {
    x.check(panel, sums);
    let grouping = panel.grouping;
    let of_chunk = CHUNK / grouping.len;
    let code = |stored: i8| match CodeWidth::of(&grouping) {
        CodeWidth::Quads(_) => i32::from(stored.cast_unsigned()) + i32::from(grouping.lowest),
        CodeWidth::Signed => i32::from(stored),
    };
    for (t, sums) in sums.iter_mut().enumerate() {
        for row in 0..PANEL_ROWS {
            let mut line = LineSums::new(sums.total[row]);
            for group in 0..panel.chunks * of_chunk {
                let (chunk, half) = (group / of_chunk, group % of_chunk);
                let x = &x.chunks[chunk * x.tokens + t];
                let quads = half * grouping.len / 4..(half + 1) * grouping.len / 4;
                let mut dot = 0;
                for quad in quads {
                    let codes = &panel.codes[chunk][quad].as_chunks::<4>().0[row];
                    let products = codes.iter().zip(&x.codes[4 * quad..][..4]);
                    dot += products.map(|(w, x)| code(*w) * i32::from(*x)).sum::<i32>();
                }
                line.add(group, dot as f32, panel.scales[group][row] * x.scale);
                if grouping.minima {
                    let of_x = if of_chunk == 1 { x.sum } else { x.half_sums[half] };
                    line.add(group, panel.mins[group][row], of_x);
                }
            }
            sums.total[row] = line.total();
        }
    }
}
