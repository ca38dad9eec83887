//! The path of many tokens with float weights. Quantised weights take it too if the instruction set
//! has no [panels of codes](super::code_panels). A panel of rows is unpacked and interleaved once,
//! into scratch memory that stays in the first-level cache. The panel is multiplied with all
//! tokens, tile by tile, and then overwritten. A worker takes a few panels at a time and processes
//! their columns together. Activations are then read from the second-level cache.

use super::{
    Cpu, RowsJob,
    matmul::RowBlock,
    product_input::{CodeTiles, FloatTiles},
    row_selection::RowSelection,
    scratch::AlignedBuffer,
    simd::{CodePanel, CodeTileKernels, Kernels, LINE, TILE_TOKENS},
};
use thermocline_formats::quant::{BlockType, UnpackedMut};

/// Columns of a panel of floats, unless the type's blocks are longer: 32 rows of 128 are 16 KiB.
const FLOAT_COLUMNS: usize = 128;
/// Most panels a worker takes at a time.
const PANELS: usize = 4;

/// Scratch memory of a worker for its panels.
#[derive(Debug, Default)]
pub(super) struct PanelScratch {
    /// `[rows, columns]`
    pub unpacked: AlignedBuffer<i8>,
    /// `[columns / 4, rows, 4]`
    pub codes: AlignedBuffer<i8>,
    /// `[groups, rows]`, like minima and biases.
    pub scales: AlignedBuffer<f32>,
    pub mins: AlignedBuffer<f32>,
    pub bias: AlignedBuffer<i32>,
    /// Scales and minima of one row.
    pub row_scales: AlignedBuffer<f32>,
    pub row_mins: AlignedBuffer<f32>,
    /// `[rows, columns]`
    pub widened: AlignedBuffer<f32>,
    /// `[columns, rows]`
    pub floats: AlignedBuffer<f32>,
    /// `[panels, tiles, tile_tokens, rows]`
    pub acc: AlignedBuffer<f32>,
}

impl RowBlock<'_> {
    /// Row `at` of the block, encoded.
    fn row(&self, at: usize) -> &[u8] {
        self.weight.row(self.selection.get(self.first + at))
    }
}

pub(super) fn matmul(cpu: &Cpu, jobs: &mut [RowsJob<'_>], x: &[f32], tokens: usize) {
    let cols = x.len() / tokens;
    let kernels = cpu.kernels;
    cpu.scratch.with(|scratch| {
        let any_codes = jobs.iter().any(|job| cpu.codes_of(job.weight).is_some());
        let any_floats = jobs.iter().any(|job| cpu.codes_of(job.weight).is_none());
        if any_codes {
            scratch.code_tiles.fill(kernels, cpu.pool(), x, cols);
        }
        if any_floats {
            scratch.float_tiles.fill(kernels, cpu.pool(), x, cols, RowSelection::All);
        }
        let rows: usize = jobs.iter().map(|job| job.selection().len(job.weight.rows())).sum();
        let panels = rows.div_ceil(kernels.panel_rows);
        let width = kernels.panel_rows * (panels / (4 * cpu.pool().threads())).clamp(1, PANELS);
        let mut blocks = RowBlock::split(jobs, |_| width);
        let (code_tiles, float_tiles) = (&scratch.code_tiles, &scratch.float_tiles);
        cpu.pool().for_each(&mut blocks, |_, block| {
            cpu.panels.with(|scratch| match (cpu.codes_of(block.weight), &kernels.code_tiles) {
                (Some(ty), Some(packed)) => codes(kernels, packed, block, ty, code_tiles, tokens, scratch),
                _ => floats(kernels, block, float_tiles, tokens, scratch),
            });
        });
    });
}

/// Multiplies a block of a quantised type as codes.
fn codes(
    kernels: &Kernels,
    of_tiles: &CodeTileKernels,
    block: &mut RowBlock<'_>,
    ty: BlockType,
    tiles: &CodeTiles,
    tokens: usize,
    scratch: &mut PanelScratch,
) {
    let width = kernels.panel_rows;
    let (weight, rows) = (block.weight, block.out.width());
    let (format, grouping) = (ty.format(), ty.format().grouping);
    let of_panel = tokens.div_ceil(TILE_TOKENS) * TILE_TOKENS * width;
    let PanelScratch { acc, unpacked, codes, scales, mins, bias, row_scales, row_mins, .. } = scratch;
    let acc = acc.take(rows.div_ceil(width) * of_panel);
    acc.fill(0.0);
    // A panel spans one line, within which rows are summed: 32 rows are 16 KiB, a third of a
    // first-level cache.
    for first in (0..weight.cols()).step_by(LINE) {
        let len = LINE.min(weight.cols() - first);
        let groups = len / grouping.len;
        let minima = if grouping.minima { groups } else { 0 };
        let unpacked = unpacked.take(width * len);
        let codes = codes.take(width * len);
        let (scales, bias) = (scales.take(width * groups), bias.take(width * groups));
        let mins = mins.take(width * minima);
        let (row_scales, row_mins) = (row_scales.take(groups), row_mins.take(minima));
        let (from, to) = (first / format.len * format.bytes, (first + len) / format.len * format.bytes);
        for (panel, acc) in acc.chunks_exact_mut(of_panel).enumerate() {
            for row in 0..width {
                let unpacked = &mut unpacked[row * len..][..len];
                if panel * width + row < rows {
                    let src = &block.row(panel * width + row)[from..to];
                    let to = UnpackedMut { codes: unpacked, scales: row_scales, mins: row_mins };
                    (kernels.unpack)(ty, src, to);
                } else {
                    unpacked.fill(0);
                    row_scales.fill(0.0);
                    row_mins.fill(0.0);
                }
                for (to, from) in [(&mut *scales, &*row_scales), (&mut *mins, &*row_mins)] {
                    to.iter_mut().skip(row).step_by(width).zip(from).for_each(|(to, from)| *to = *from);
                }
            }
            (of_tiles.interleave)(unpacked, codes);
            (of_tiles.bias)(codes, grouping.len, bias);
            let packed = CodePanel { grouping, codes, scales, mins, bias };
            for (tile, acc) in acc.chunks_exact_mut(TILE_TOKENS * width).enumerate() {
                (of_tiles.tile_codes)(packed, tiles.tile(tile, first, len), acc);
            }
        }
    }
    write_out(block, acc, of_panel, width, tokens);
}

/// Multiplies a block as floats.
fn floats(kernels: &Kernels, block: &mut RowBlock<'_>, tiles: &FloatTiles, tokens: usize, scratch: &mut PanelScratch) {
    let (width, tile_tokens) = (kernels.panel_rows, kernels.float_tokens);
    let (weight, rows) = (block.weight, block.out.width());
    let of_panel = tokens.div_ceil(tile_tokens) * tile_tokens * width;
    let PanelScratch { acc, widened, floats, .. } = scratch;
    let acc = acc.take(rows.div_ceil(width) * of_panel);
    acc.fill(0.0);
    let (block_len, block_bytes) = (weight.ty().block_len(), weight.ty().block_bytes());
    let columns = FLOAT_COLUMNS.max(block_len);
    for first in (0..weight.cols()).step_by(columns) {
        let len = columns.min(weight.cols() - first);
        let (widened, floats) = (widened.take(width * len), floats.take(width * len));
        let (from, to) = (first / block_len * block_bytes, (first + len) / block_len * block_bytes);
        for (panel, acc) in acc.chunks_exact_mut(of_panel).enumerate() {
            for (row, widened) in widened.chunks_exact_mut(len).enumerate() {
                let row = panel * width + row;
                if row < rows {
                    let src = &block.row(row)[from..to];
                    kernels.widen(weight.weight_type(), src, widened);
                } else {
                    widened.fill(0.0);
                }
            }
            (kernels.interleave_floats)(widened, floats);
            for (tile, acc) in acc.chunks_exact_mut(tile_tokens * width).enumerate() {
                (kernels.tile_floats)(floats, tiles.tile(tile, first, len), acc);
            }
        }
    }
    write_out(block, acc, of_panel, width, tokens);
}

/// Copies the accumulated sums to the block's columns of the output.
fn write_out(block: &mut RowBlock<'_>, acc: &[f32], of_panel: usize, width: usize, tokens: usize) {
    let rows = block.out.width();
    for token in 0..tokens {
        let out = block.out.row_mut(token);
        for (panel, out) in out.chunks_mut(width).enumerate() {
            out.copy_from_slice(&acc[panel * of_panel + token * width..][..out.len()]);
        }
        block.finish(token, 0..rows);
    }
}
