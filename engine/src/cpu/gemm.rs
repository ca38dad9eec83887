//! The path of many tokens: a panel of rows is unpacked and interleaved once into a scratch that stays in the cache,
//! and multiplied with all tokens, tile by tile. Nothing unpacked outlives its panel.

use super::{
    Cpu, MatmulJob,
    activations::{CodeTiles, Columns, FloatTiles},
    pool::{ColumnsMut, split_columns},
    scratch::Buffer,
    simd::{CodePanel, Grouping, Kernels, TILE_TOKENS},
};
use crate::format::Matrix;

/// Columns of a panel of codes: 32 rows of 512 are 16 KiB, a third of a first-level cache.
const CODE_COLUMNS: usize = 512;
/// Columns of a panel of floats: 32 rows of 128 are 16 KiB.
const FLOAT_COLUMNS: usize = 128;

/// What a worker needs for a panel.
#[derive(Debug, Default)]
pub(super) struct PanelScratch {
    /// `[rows, columns]`
    pub unpacked: Buffer<i8>,
    pub codes: Buffer<i8>,
    pub scales: Buffer<f32>,
    pub mins: Buffer<f32>,
    pub bias: Buffer<i32>,
    /// Scales and minima of one row.
    pub row_scales: Buffer<f32>,
    pub row_mins: Buffer<f32>,
    /// One row of floats.
    pub widened: Buffer<f32>,
    pub floats: Buffer<f32>,
    /// `[tiles, tile_tokens, rows]`
    pub acc: Buffer<f32>,
}

/// Rows of one job that make a panel.
struct Panel<'a> {
    weight: &'a Matrix,
    bias: Option<&'a [f32]>,
    first: usize,
    out: ColumnsMut<'a>,
}

pub(super) fn matmul(cpu: &Cpu, jobs: &mut [MatmulJob<'_>], x: &[f32], tokens: usize) {
    let cols = x.len() / tokens;
    let kernels = cpu.kernels;
    cpu.scratch.with(|scratch| {
        let any_codes = jobs.iter().any(|job| Grouping::of(job.weight.ty()).is_some());
        let any_floats = jobs.iter().any(|job| Grouping::of(job.weight.ty()).is_none());
        if any_codes {
            scratch.code_tiles.fill(kernels, cpu.pool(), x, cols);
        }
        if any_floats {
            scratch.float_tiles.fill(kernels, cpu.pool(), x, cols, Columns::All);
        }
        let width = kernels.panel_rows();
        let mut panels = Vec::new();
        for job in jobs {
            let rows = job.weight.rows();
            if rows == 0 {
                continue;
            }
            let columns = split_columns(job.out, rows, width).into_iter().enumerate();
            panels.extend(columns.map(|(at, out)| Panel {
                weight: job.weight,
                bias: job.bias,
                first: at * width,
                out,
            }));
        }
        let (code_tiles, float_tiles) = (&scratch.code_tiles, &scratch.float_tiles);
        cpu.pool().for_each(&mut panels, |_, panel| {
            cpu.panels.with(|scratch| match Grouping::of(panel.weight.ty()) {
                Some(grouping) => codes(kernels, panel, grouping, code_tiles, tokens, scratch),
                None => floats(kernels, panel, float_tiles, tokens, scratch),
            });
        });
    });
}

/// One panel of a quantised type.
fn codes(
    kernels: &dyn Kernels,
    panel: &mut Panel<'_>,
    grouping: Grouping,
    tiles: &CodeTiles,
    tokens: usize,
    scratch: &mut PanelScratch,
) {
    let width = kernels.panel_rows();
    let (weight, rows) = (panel.weight, panel.out.width());
    let n_tiles = tokens.div_ceil(TILE_TOKENS);
    let acc = scratch.acc.take(n_tiles * TILE_TOKENS * width);
    acc.fill(0.0);
    for first in (0..weight.cols()).step_by(CODE_COLUMNS) {
        let len = CODE_COLUMNS.min(weight.cols() - first);
        let groups = len / grouping.len;
        let minima = if grouping.minima { groups } else { 0 };
        let unpacked = scratch.unpacked.take(width * len);
        let scales = scratch.scales.take(width * groups);
        let mins = scratch.mins.take(width * minima);
        let bias = scratch.bias.take(width * groups);
        for row in 0..width {
            let codes = &mut unpacked[row * len..][..len];
            if row >= rows {
                codes.fill(0);
                for group in 0..groups {
                    scales[group * width + row] = 0.0;
                    bias[group * width + row] = 0;
                }
                (0..minima).for_each(|group| mins[group * width + row] = 0.0);
                continue;
            }
            let block = |column: usize| column / weight.ty().block_len() * weight.ty().block_bytes();
            let src = &weight.row(panel.first + row)[block(first)..block(first + len)];
            let row_scales = scratch.row_scales.take(groups);
            let row_mins = scratch.row_mins.take(minima);
            kernels.unpack(weight.ty(), src, codes, row_scales, row_mins);
            for (group, codes) in codes.chunks_exact(grouping.len).enumerate() {
                let sum: i32 = codes.iter().map(|code| i32::from(*code)).sum();
                scales[group * width + row] = row_scales[group];
                bias[group * width + row] = -128 * sum;
            }
            row_mins.iter().enumerate().for_each(|(group, min)| mins[group * width + row] = *min);
        }
        let interleaved = scratch.codes.take(width * len);
        kernels.interleave(unpacked, interleaved);
        let packed = CodePanel { grouping, codes: interleaved, scales, mins, bias };
        for (tile, acc) in acc.chunks_exact_mut(TILE_TOKENS * width).enumerate() {
            kernels.tile_codes(packed, tiles.tile(tile, first, len), acc);
        }
    }
    write_out(panel, acc, width, tokens);
}

/// One panel of a float type.
fn floats(kernels: &dyn Kernels, panel: &mut Panel<'_>, tiles: &FloatTiles, tokens: usize, scratch: &mut PanelScratch) {
    let (width, tile_tokens) = (kernels.panel_rows(), kernels.float_tokens());
    let (weight, rows) = (panel.weight, panel.out.width());
    let n_tiles = tokens.div_ceil(tile_tokens);
    let acc = scratch.acc.take(n_tiles * tile_tokens * width);
    acc.fill(0.0);
    for first in (0..weight.cols()).step_by(FLOAT_COLUMNS) {
        let len = FLOAT_COLUMNS.min(weight.cols() - first);
        let packed = scratch.floats.take(width * len);
        let bytes = weight.ty().block_bytes();
        for row in 0..width {
            let slots = packed.iter_mut().skip(row).step_by(width);
            if row >= rows {
                slots.for_each(|slot| *slot = 0.0);
                continue;
            }
            let widened = scratch.widened.take(len);
            kernels.widen(weight.ty(), &weight.row(panel.first + row)[first * bytes..(first + len) * bytes], widened);
            slots.zip(widened).for_each(|(slot, v)| *slot = *v);
        }
        for (tile, acc) in acc.chunks_exact_mut(tile_tokens * width).enumerate() {
            kernels.tile_floats(packed, tiles.tile(tile, first, len), acc);
        }
    }
    write_out(panel, acc, width, tokens);
}

/// Copies what was accumulated to the panel's columns of the output.
fn write_out(panel: &mut Panel<'_>, acc: &[f32], width: usize, tokens: usize) {
    let rows = panel.out.width();
    let bias = panel.bias.map(|bias| &bias[panel.first..][..rows]);
    for (token, acc) in acc.chunks_exact(width).take(tokens).enumerate() {
        let out = panel.out.row_mut(token);
        match bias {
            None => out.copy_from_slice(&acc[..rows]),
            Some(bias) => {
                for ((out, acc), bias) in out.iter_mut().zip(acc).zip(bias) {
                    *out = acc + bias;
                }
            }
        }
    }
}
