//! The path of several tokens with quantised weights. [`PANEL_ROWS`] rows are decoded, a line at a
//! time, into a panel that stays in the first-level cache. The panel is multiplied with all tokens,
//! tile by tile, and then overwritten.

use smallvec::SmallVec;

use super::{
    Cpu, RowsJob, ThreadPool,
    matmul::{RowBlock, rows_of},
    product_input::QuantisedInputBuffer,
    scratch::AlignedBuffer,
    simd::{Kernels, LINE, MOST_TILE_TOKENS, PANEL_ROWS, PanelSums, RowPanel, TokenChunk, TokenTile, prefetch_range},
};
use thermocline_formats::quant::BlockType;

/// Panels that a worker processes together if there are several tiles, so that inputs are read from
/// the first-level cache.
const PANELS: usize = 4;

/// Most tokens for which panels are faster than [tiles](super::gemm), if an instruction set has
/// both.
pub(super) const LESS_THAN_TILES: usize = 32;

/// `[tokens, n]` activations rounded to 8 bits, in tiles of up to [`MOST_TILE_TOKENS`] tokens.
/// Tiles are as equal in size as possible.
#[derive(Debug, Default)]
pub(super) struct TokenTiles {
    tokens: usize,
    n: usize,
    /// `[n / 32, tokens]` for each tile.
    chunks: AlignedBuffer<TokenChunk>,
}

impl TokenTiles {
    /// Rounds `x`, `[tokens, n]` with `n` a multiple of 32.
    pub fn fill(&mut self, kernels: &Kernels, pool: &ThreadPool, x: &[f32], n: usize) {
        (self.tokens, self.n) = (x.len() / n, n);
        let of_tile = self.of_tile();
        let chunks = self.chunks.take(x.len() / 32).chunks_mut(of_tile * n / 32);
        let mut tiles: Vec<_> = x.chunks(of_tile * n).zip(chunks).collect();
        pool.for_each(&mut tiles, |_, (x, chunks)| {
            let tokens = x.len() / n;
            let mut row = QuantisedInputBuffer::default();
            for (token, x) in x.chunks_exact(n).enumerate() {
                row.fill(kernels, x);
                let row = row.row();
                let of_token = chunks[token..].iter_mut().step_by(tokens);
                of_token.enumerate().for_each(|(at, chunk)| *chunk = TokenChunk::of(&row, at));
            }
        });
    }

    /// Number of tokens in each tile but the last.
    fn of_tile(&self) -> usize {
        self.tokens.div_ceil(self.tokens.div_ceil(MOST_TILE_TOKENS))
    }

    /// Columns `first..first + len`, multiples of 32, of the tile whose first token is `token`.
    fn tile(&self, token: usize, first: usize, len: usize) -> TokenTile<'_> {
        let tokens = self.of_tile().min(self.tokens - token);
        let start = token * self.n / 32 + first / 32 * tokens;
        let end = start + len / 32 * tokens;
        TokenTile { tokens, chunks: &self.chunks.get(end)[start..] }
    }
}

/// Scratch memory of one worker.
#[derive(Debug, Default)]
pub(super) struct CodePanelScratch {
    panel: RowPanel,
    /// `[panels, tokens]`
    sums: Vec<PanelSums>,
}

/// Computes [`Cpu::matmul_rows`] for jobs with quantised weights.
pub(super) fn matmul(cpu: &Cpu, jobs: &mut [RowsJob<'_>], x: &[f32], tokens: usize) {
    let cols = x.len() / tokens;
    cpu.scratch.with(|scratch| {
        scratch.token_tiles.fill(cpu.kernels, cpu.pool(), x, cols);
        let tiles = &scratch.token_tiles;
        let chunk = cpu.chunk_of_jobs(jobs);
        let mut blocks = RowBlock::split(jobs, |weight| rows_of(chunk, weight).next_multiple_of(PANEL_ROWS));
        cpu.pool().for_each(&mut blocks, |_, block| {
            let Some(ty) = cpu.codes_of(block.weight) else { return };
            cpu.code_panels.with(|scratch| block.multiply(cpu.kernels, ty, tiles, scratch));
        });
    });
}

impl RowBlock<'_> {
    /// Offsets of the rows of panel `panel`. If the panel has fewer rows, the last row is repeated.
    fn starts(&self, panel: usize) -> [usize; PANEL_ROWS] {
        let last = self.out.width() - 1;
        let row = |at: usize| self.selection.get(self.first + (panel * PANEL_ROWS + at).min(last));
        std::array::from_fn(|at| row(at) * self.weight.stride())
    }

    fn multiply(&mut self, kernels: &Kernels, ty: BlockType, tiles: &TokenTiles, scratch: &mut CodePanelScratch) {
        let (format, data) = (ty.format(), self.weight.data());
        let (cols, row_bytes, line_bytes) =
            (self.weight.cols(), self.weight.row_bytes(), LINE / format.len * format.bytes);
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
            for (line, column) in (0..cols).step_by(LINE).enumerate() {
                let len = LINE.min(cols - column);
                let (from, to) = (line * line_bytes, row_bytes.min((line + 1) * line_bytes));
                for (panel, sums) in sums.chunks_exact_mut(tiles.tokens).enumerate() {
                    let mut rows = [&data[..0]; PANEL_ROWS];
                    for (row, start) in rows.iter_mut().zip(starts[panel]) {
                        *row = &data[start + from..start + to];
                    }
                    // Prefetches the next line of the rows. After their last line, prefetches the
                    // first line of the next panels' rows.
                    if to == row_bytes
                        && let Some(next) = next.get(panel)
                    {
                        next.iter().for_each(|start| prefetch_range(&data[*start..start + to - from]));
                    }
                    (kernels.decode_panel)(ty, &rows, to - from, decoded);
                    for (tile, sums) in sums.chunks_mut(tiles.of_tile()).enumerate() {
                        (kernels.panel_products)(decoded, tiles.tile(tile * tiles.of_tile(), column, len), sums);
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
            self.out.row_mut(token)[start..end].copy_from_slice(&sums.total[..end - start]);
            self.finish(token, start..end);
        }
    }
}
