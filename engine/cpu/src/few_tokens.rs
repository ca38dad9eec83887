//! The path of a few tokens without panels. A group of rows is multiplied with a few tokens at
//! once, then with the next tokens while it is in the first-level cache.
//!
//! Three kinds of passes take this path:
//!
//! - passes of up to [`FEW_TOKENS`] tokens with products of floats (AVX-512: 16, NEON: 8),
//! - passes of up to [`FEW_TOKENS`] tokens with quantised weights whose products are summed in
//!   lanes (AVX-512),
//! - passes of any length with a small float matrix, because its tiles would sum in another order.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    Cpu, InputPrecision, Isa, RowsJob,
    matmul::{RowBlock, rows_of},
    product_input::QuantisedInputBuffer,
    row_selection::AHEAD,
    simd::{CODE_TOKENS, DOT_TOKENS, LANE_ROWS, LANE_TOKENS, LaneKernels, LaneTile},
};
use thermocline_formats::{
    format::Matrix,
    quant::{BlockType, WeightType},
};

/// Most tokens of a pass in which every product keeps the summation order of single tokens, on
/// instruction sets whose kernels do so.
pub const FEW_TOKENS: usize = 32;

const _: () = assert!(FEW_TOKENS <= LANE_TOKENS, "a tile has all tokens of this path");

/// Most tokens of this path with AVX-512 and floats. Tiles are faster for more tokens.
const AVX512_FLOAT_TOKENS: usize = 16;
/// Most tokens of this path with NEON. Panels and tiles are faster for more tokens.
const NEON_TOKENS: usize = 8;

/// Most rows of a float matrix that takes this path for any number of tokens. These are routers and
/// gates, a small part of a prompt's work. The choice of experts is then the same in a prompt and
/// for a single token.
const SMALL_ROWS: usize = 512;

/// Bytes of rows that are multiplied with all tokens before the next rows: half a first-level
/// cache.
const GROUP_BYTES: usize = 16 << 10;
/// The number of rows of a group is a multiple of this, because kernels take several rows at once.
const GROUP_ROWS: usize = LANE_ROWS;
/// Rows of codes per call of the kernel for several tokens.
const CODE_ROWS_AT_ONCE: usize = 16;
/// Rows of floats per call of the kernel for several tokens.
const DOT_ROWS_AT_ONCE: usize = 16;

/// True if products with `weight` take this path for any number of tokens.
pub(super) fn takes_any(cpu: &Cpu, weight: &Matrix) -> bool {
    matches!(weight.weight_type(), WeightType::Float(_))
        && weight.rows() <= SMALL_ROWS
        && cpu.activations == InputPrecision::Int8
}

/// Most tokens of this path. For more tokens, panels and tiles are faster, but sum in another
/// order.
pub(super) fn most(cpu: &Cpu, weight: &Matrix) -> usize {
    match cpu.isa {
        Isa::Avx512 if cpu.codes_of(weight).is_none() => AVX512_FLOAT_TOKENS,
        Isa::Scalar | Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 => FEW_TOKENS,
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => NEON_TOKENS,
    }
}

/// Computes [`Cpu::matmul_rows`] for at most [`most`] tokens, or for any number if [`takes_any`] is
/// true.
pub(super) fn matmul(cpu: &Cpu, jobs: &mut [RowsJob<'_>], x: &[f32], tokens: usize) {
    let cols = x.len() / tokens;
    cpu.scratch.with(|scratch| {
        let codes = &mut scratch.rows;
        codes.resize_with(codes.len().max(tokens), Default::default);
        let lane_chunks = &mut scratch.lane_chunks;
        if jobs.iter().any(|job| cpu.codes_of(job.weight).is_some()) {
            codes.iter_mut().zip(x.chunks_exact(cols)).for_each(|(codes, x)| codes.fill_for_dots(cpu.kernels, x));
            let lanes: SmallVec<[_; FEW_TOKENS]> = codes[..tokens].iter().map(|codes| codes.row().lanes).collect();
            lane_chunks.clear();
            if tokens > CODE_TOKENS {
                (0..lanes[0].len()).for_each(|at| lane_chunks.extend(lanes.iter().map(|lanes| lanes[at])));
            }
        }
        let codes = &*codes;
        let tile = LaneTile { chunks: lane_chunks, tokens, columns: cols };
        let chunk = cpu.chunk_of_jobs(jobs);
        let mut blocks = RowBlock::split(jobs, |weight| rows_of(chunk, weight));
        cpu.pool().for_each(&mut blocks, |_, block| {
            let width = block.out.width();
            let rows = GROUP_BYTES / block.weight.row_bytes().max(1);
            let group = rows.max(1).next_multiple_of(GROUP_ROWS);
            for start in (0..width).step_by(group) {
                let rows = start..width.min(start + group);
                match (cpu.codes_of(block.weight), &cpu.kernels.lanes) {
                    (Some(ty), Some(lanes)) if tokens > CODE_TOKENS => block.tile(lanes, ty, tile, rows.clone()),
                    (Some(ty), Some(lanes)) => block.codes(lanes, ty, &codes[..tokens], rows.clone()),
                    _ => block.floats(cpu, x, tokens, rows.clone()),
                }
                (0..tokens).for_each(|token| block.finish(token, rows.clone()));
            }
        });
    });
}

/// Prefetch distance for a token's reads. The first token's rows come from memory, those of later
/// tokens from the cache.
fn ahead(token: usize) -> isize {
    if token == 0 { AHEAD as isize } else { 0 }
}

impl RowBlock<'_> {
    /// Multiplies `rows` of the block with the codes of at most [`CODE_TOKENS`] tokens.
    fn codes(&mut self, kernels: &LaneKernels, ty: BlockType, codes: &[QuantisedInputBuffer], rows: Range<usize>) {
        let x: SmallVec<[_; CODE_TOKENS]> = codes.iter().map(QuantisedInputBuffer::row).collect();
        for (rows, weights) in self.selection.runs(self.weight, self.first, rows) {
            let bytes = CODE_ROWS_AT_ONCE * self.weight.row_bytes();
            for (weights, row) in weights.chunks(bytes).zip(rows.step_by(CODE_ROWS_AT_ONCE)) {
                let mut dots = [[0.0; CODE_TOKENS]; CODE_ROWS_AT_ONCE];
                let dots = &mut dots[..weights.len() / self.weight.row_bytes()];
                (kernels.dot_tokens)(ty, weights, &x, AHEAD as isize, dots);
                for token in 0..x.len() {
                    let out = self.out.row_mut(token)[row..].iter_mut();
                    out.zip(&*dots).for_each(|(out, dots)| *out = dots[token]);
                }
            }
        }
    }

    /// Multiplies `rows` of the block with the codes of more than [`CODE_TOKENS`] tokens.
    fn tile(&mut self, kernels: &LaneKernels, ty: BlockType, x: LaneTile<'_>, rows: Range<usize>) {
        for (rows, weights) in self.selection.runs(self.weight, self.first, rows) {
            let parts = weights.chunks(LANE_ROWS * self.weight.row_bytes());
            for (weights, row) in parts.zip(rows.step_by(LANE_ROWS)) {
                let mut dots = [[0.0; LANE_TOKENS]; LANE_ROWS];
                let dots = &mut dots[..weights.len() / self.weight.row_bytes()];
                (kernels.dot_tile)(ty, weights, x, dots);
                for token in 0..x.tokens {
                    let out = self.out.row_mut(token)[row..].iter_mut();
                    out.zip(&*dots).for_each(|(out, dots)| *out = dots[token]);
                }
            }
        }
    }

    /// Multiplies `rows` of the block with floats.
    fn floats(&mut self, cpu: &Cpu, x: &[f32], tokens: usize, rows: Range<usize>) {
        let (weight, ty) = (self.weight, self.weight.weight_type());
        let x = |token: usize| &x[token * weight.cols()..][..weight.cols()];
        let groups = tokens.div_ceil(DOT_TOKENS);
        let of_group = tokens.div_ceil(groups);
        for first in (0..tokens).step_by(of_group) {
            let inputs: SmallVec<[_; DOT_TOKENS]> = (first..tokens.min(first + of_group)).map(x).collect();
            for (rows, weights) in self.selection.runs(weight, self.first, rows.clone()) {
                let mut dots = [[0.0; DOT_TOKENS]; DOT_ROWS_AT_ONCE];
                let parts = weights.chunks(DOT_ROWS_AT_ONCE * weight.row_bytes());
                for (part, row) in parts.zip(rows.step_by(DOT_ROWS_AT_ONCE)) {
                    let dots = &mut dots[..part.len() / weight.row_bytes()];
                    cpu.kernels.dot_floats_tokens(ty, part, &inputs, ahead(first), dots);
                    for token in 0..inputs.len() {
                        let out = self.out.row_mut(first + token)[row..].iter_mut();
                        out.zip(&*dots).for_each(|(out, dots)| *out = dots[token]);
                    }
                }
            }
        }
    }
}
