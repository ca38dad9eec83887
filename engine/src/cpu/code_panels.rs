//! The path of several tokens with quantised weights: [`PANEL_ROWS`] rows are decoded, a line at a time, into a panel that stays in
//! the first-level cache, and multiplied with all tokens, tile by tile. Nothing decoded outlives its panel.

use smallvec::SmallVec;

use super::{
    Cpu, RowsJob, ThreadPool,
    matmul::rows_of,
    pool::{ColumnsMut, split_columns},
    product_input::QuantisedInputBuffer,
    row_selection::RowSelection,
    scratch::AlignedBuffer,
    simd::{Kernels, LINE, MOST_TILE_TOKENS, PANEL_ROWS, PanelSums, RowPanel, TokenTile, prefetch_range},
};
use crate::{format::Matrix, quant::BlockType};

/// Panels whose rows a worker goes through together where there is more than one tile, so that inputs come from the first-level cache.
const PANELS: usize = 4;

/// `[tokens, n]` activations rounded to 8 bits, in tiles of up to [`MOST_TILE_TOKENS`] tokens that are as equal as can be.
#[derive(Debug, Default)]
pub(super) struct TokenTiles {
    tokens: usize,
    n: usize,
    codes: AlignedBuffer<[i8; 32]>,
    scales: AlignedBuffer<f32>,
    sums: AlignedBuffer<f32>,
    half_sums: AlignedBuffer<[f32; 2]>,
    code_sums: AlignedBuffer<i32>,
    half_code_sums: AlignedBuffer<[i32; 2]>,
}

/// A tile while it is filled.
struct TileMut<'a> {
    tokens: usize,
    x: &'a [f32],
    codes: &'a mut [[i8; 32]],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
    half_sums: &'a mut [[f32; 2]],
    code_sums: &'a mut [i32],
    half_code_sums: &'a mut [[i32; 2]],
}

impl TileMut<'_> {
    fn fill(&mut self, kernels: &dyn Kernels, n: usize) {
        let mut row = QuantisedInputBuffer::default();
        for (t, x) in self.x.chunks_exact(n).enumerate() {
            row.fill(kernels, x);
            let row = row.row();
            let halves = row.half_sums.as_chunks::<2>().0.iter().zip(row.half_code_sums.as_chunks::<2>().0);
            for (block, (half_sums, half_code_sums)) in halves.enumerate() {
                let at = block * self.tokens + t;
                self.codes[at] = row.codes.as_chunks::<32>().0[block];
                self.scales[at] = row.scales[block];
                (self.sums[at], self.code_sums[at]) = (row.sums[block], row.code_sums[block]);
                (self.half_sums[at], self.half_code_sums[at]) = (*half_sums, *half_code_sums);
            }
        }
    }
}

impl TokenTiles {
    /// Rounds `x`, `[tokens, n]` with `n` a multiple of 32.
    pub fn fill(&mut self, kernels: &dyn Kernels, pool: &ThreadPool, x: &[f32], n: usize) {
        (self.tokens, self.n) = (x.len() / n, n);
        let all = x.len() / 32;
        let mut left = (
            self.codes.take(all),
            self.scales.take(all),
            self.sums.take(all),
            self.half_sums.take(all),
            self.code_sums.take(all),
            self.half_code_sums.take(all),
        );
        let of_tile = tile_tokens(x.len() / n);
        let mut tiles: Vec<TileMut<'_>> = Vec::with_capacity(x.len().div_ceil(of_tile * n));
        for x in x.chunks(of_tile * n) {
            let len = x.len() / 32;
            tiles.push(TileMut {
                tokens: x.len() / n,
                x,
                codes: left.0.split_off_mut(..len).unwrap_or_default(),
                scales: left.1.split_off_mut(..len).unwrap_or_default(),
                sums: left.2.split_off_mut(..len).unwrap_or_default(),
                half_sums: left.3.split_off_mut(..len).unwrap_or_default(),
                code_sums: left.4.split_off_mut(..len).unwrap_or_default(),
                half_code_sums: left.5.split_off_mut(..len).unwrap_or_default(),
            });
        }
        pool.for_each(&mut tiles, |_, tile| tile.fill(kernels, n));
    }

    /// The number of tokens of each tile but the last.
    fn of_tile(&self) -> usize {
        tile_tokens(self.tokens)
    }

    /// Columns `first..first + len`, multiples of 32, of the tile that begins with token `token`.
    fn tile(&self, token: usize, first: usize, len: usize) -> TokenTile<'_> {
        let tokens = self.of_tile().min(self.tokens - token);
        let start = token * self.n / 32 + first / 32 * tokens;
        let range = start..start + len / 32 * tokens;
        TokenTile {
            tokens,
            codes: &self.codes.get(range.end)[range.clone()],
            scales: &self.scales.get(range.end)[range.clone()],
            sums: &self.sums.get(range.end)[range.clone()],
            half_sums: &self.half_sums.get(range.end)[range.clone()],
            code_sums: &self.code_sums.get(range.end)[range.clone()],
            half_code_sums: &self.half_code_sums.get(range.end)[range],
        }
    }
}

/// Tokens of the tiles of so many.
fn tile_tokens(tokens: usize) -> usize {
    tokens.div_ceil(tokens.div_ceil(MOST_TILE_TOKENS))
}

/// Scratch memory of a worker.
#[derive(Debug, Default)]
pub(super) struct CodePanelScratch {
    panel: RowPanel,
    /// `[panels, tokens]`
    sums: Vec<PanelSums>,
}

/// Rows of one job that a worker takes at a time.
struct Block<'a> {
    weight: &'a Matrix,
    ty: BlockType,
    bias: Option<&'a [f32]>,
    selection: RowSelection<'a>,
    first: usize,
    out: ColumnsMut<'a>,
}

/// As [`Cpu::matmul_rows`], of jobs with quantised weights.
pub(super) fn matmul(cpu: &Cpu, jobs: &mut [RowsJob<'_>], x: &[f32], tokens: usize) {
    let cols = x.len() / tokens;
    cpu.scratch.with(|scratch| {
        scratch.token_tiles.fill(cpu.kernels, cpu.pool(), x, cols);
        let tiles = &scratch.token_tiles;
        let bytes = |job: &RowsJob<'_>| job.selection().len(job.weight.rows()) * job.weight.row_bytes();
        let chunk = cpu.chunk_of(jobs.iter().map(bytes).sum());
        let mut blocks = Vec::new();
        for RowsJob { weight, bias, rows, out } in jobs {
            let Some(ty) = cpu.codes_of(weight) else { continue };
            let selection = rows.map_or(RowSelection::All, RowSelection::Listed);
            let (rows, width) = (selection.len(weight.rows()), rows_of(chunk, weight).next_multiple_of(PANEL_ROWS));
            if rows > 0 {
                let columns = split_columns(out, rows, width).into_iter().enumerate();
                blocks.extend(columns.map(|(at, out)| Block {
                    weight,
                    ty,
                    bias: *bias,
                    selection,
                    first: at * width,
                    out,
                }));
            }
        }
        cpu.pool().for_each(&mut blocks, |_, block| {
            cpu.code_panels.with(|scratch| block.multiply(cpu.kernels, tiles, scratch));
        });
    });
}

impl Block<'_> {
    /// First bytes of the rows of panel `panel`; of the last row again where there are fewer.
    fn starts(&self, panel: usize) -> [usize; PANEL_ROWS] {
        let last = self.out.width() - 1;
        let row = |at: usize| self.selection.get(self.first + (panel * PANEL_ROWS + at).min(last));
        std::array::from_fn(|at| row(at) * self.weight.row_bytes())
    }

    fn multiply(&mut self, kernels: &dyn Kernels, tiles: &TokenTiles, scratch: &mut CodePanelScratch) {
        let (format, data) = (self.ty.format(), self.weight.data());
        let all = self.out.width().div_ceil(PANEL_ROWS);
        let together = if tiles.tokens > tiles.of_tile() { PANELS } else { 1 };
        let CodePanelScratch { panel: decoded, sums } = scratch;
        for first in (0..all).step_by(together) {
            let last = all.min(first + together);
            let starts: SmallVec<[_; 2 * PANELS]> =
                (first..all.min(last + together)).map(|panel| self.starts(panel)).collect();
            let (starts, next) = starts.split_at(last - first);
            sums.clear();
            sums.resize(starts.len() * tiles.tokens, PanelSums::default());
            for column in (0..self.weight.cols()).step_by(LINE) {
                let len = LINE.min(self.weight.cols() - column);
                let (from, to) = (column / format.len * format.bytes, (column + len) / format.len * format.bytes);
                for (panel, sums) in sums.chunks_exact_mut(tiles.tokens).enumerate() {
                    if let Some(next) = next.get(panel) {
                        next.iter().for_each(|start| prefetch_range(&data[start + from..start + to]));
                    }
                    let mut rows = [&data[..0]; PANEL_ROWS];
                    for (row, start) in rows.iter_mut().zip(starts[panel]) {
                        *row = &data[start + from..start + to];
                    }
                    kernels.decode_panel(self.ty, &rows, decoded);
                    for (tile, sums) in sums.chunks_mut(tiles.of_tile()).enumerate() {
                        kernels.panel_products(decoded, tiles.tile(tile * tiles.of_tile(), column, len), sums);
                    }
                }
            }
            for (panel, sums) in (first..last).zip(sums.chunks_exact(tiles.tokens)) {
                self.write_out(panel, sums);
            }
        }
    }

    /// Copies a panel's sums to the output.
    fn write_out(&mut self, panel: usize, sums: &[PanelSums]) {
        let (start, end) = (panel * PANEL_ROWS, self.out.width().min((panel + 1) * PANEL_ROWS));
        for (token, sums) in sums.iter().enumerate() {
            let out = &mut self.out.row_mut(token)[start..end];
            out.copy_from_slice(&sums.total[..end - start]);
            self.weight.scale(out);
            if let Some(bias) = self.bias {
                let rows = self.first + start..;
                out.iter_mut().zip(rows).for_each(|(out, at)| *out += bias[self.selection.get(at)]);
            }
        }
    }
}
