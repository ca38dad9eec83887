//! The path of a few tokens without panels: a group of rows is multiplied with one token after the other while it is in the
//! first-level cache, by the kernels of one token. Passes of up to [`MOST`] tokens with float weights take this path, and those
//! with quantised weights where the instruction set has no [panels](super::code_panels). So do passes of any number of tokens
//! where a float matrix is small, because its tiles would sum in another order.

use super::{
    Cpu, InputPrecision, RowsJob,
    matmul::rows_of,
    pool::{ColumnsMut, split_columns},
    row_selection::{AHEAD, RowSelection},
};
use crate::{format::Matrix, quant::Encoding};

/// Most tokens of this path with quantised weights; tiles of unpacked rows are faster from there on.
pub(super) const MOST: usize = 8;

/// Most tokens of a pass that keeps the order of single tokens in every product, where the instruction set lets it.
pub const FEW_TOKENS: usize = 32;

/// Most rows of a float matrix that takes this path whatever the number of tokens: routers and gates, which are a small part of a
/// prompt. A choice between experts is then the same in a prompt and in one token.
const SMALL_ROWS: usize = 512;

/// Bytes of rows that all tokens are multiplied with before the next rows: half a first-level cache.
const GROUP_BYTES: usize = 16 << 10;
/// Rows of a group are a multiple of this: kernels take several at once.
const GROUP_ROWS: usize = 4;

/// Rows of one job that a worker takes at a time.
struct Block<'a> {
    weight: &'a Matrix,
    bias: Option<&'a [f32]>,
    selection: RowSelection<'a>,
    first: usize,
    out: ColumnsMut<'a>,
}

/// True if products with `weight` come this way whatever the number of tokens.
pub(super) fn takes_any(cpu: &Cpu, weight: &Matrix) -> bool {
    matches!(weight.encoding(), Encoding::Float(_))
        && weight.rows() <= SMALL_ROWS
        && cpu.activations == InputPrecision::Int8
}

/// As [`Cpu::matmul_rows`], of at most [`MOST`] tokens unless [`takes_any`] says so.
pub(super) fn matmul(cpu: &Cpu, jobs: &mut [RowsJob<'_>], x: &[f32], tokens: usize) {
    let cols = x.len() / tokens;
    cpu.scratch.with(|scratch| {
        let codes = &mut scratch.rows;
        codes.resize_with(codes.len().max(tokens), Default::default);
        if jobs.iter().any(|job| cpu.codes_of(job.weight).is_some()) {
            codes.iter_mut().zip(x.chunks_exact(cols)).for_each(|(codes, x)| codes.fill(cpu.kernels, x));
        }
        let codes = &*codes;
        let bytes = |job: &RowsJob<'_>| job.selection().len(job.weight.rows()) * job.weight.row_bytes();
        let chunk = cpu.chunk_of(jobs.iter().map(bytes).sum());
        let mut blocks = Vec::new();
        for RowsJob { weight, bias, rows, out } in jobs {
            let selection = rows.map_or(RowSelection::All, RowSelection::Listed);
            let (rows, width) = (selection.len(weight.rows()), rows_of(chunk, weight));
            if rows > 0 {
                let columns = split_columns(out, rows, width).into_iter().enumerate();
                blocks.extend(columns.map(|(at, out)| Block {
                    weight,
                    bias: *bias,
                    selection,
                    first: at * width,
                    out,
                }));
            }
        }
        cpu.pool().for_each(&mut blocks, |_, Block { weight, bias, selection, first, out }| {
            let row_bytes = weight.row_bytes();
            let group = (GROUP_BYTES / row_bytes.max(1)).next_multiple_of(GROUP_ROWS);
            for start in (0..out.width()).step_by(group) {
                let end = out.width().min(start + group);
                let at = *first + start;
                for token in 0..tokens {
                    let out = &mut out.row_mut(token)[start..end];
                    // The first token's reads come from memory, the others' from the cache.
                    let ahead = if token == 0 { AHEAD as isize } else { 0 };
                    let dot = |weights: &[u8], out: &mut [f32]| match cpu.codes_of(weight) {
                        Some(ty) => cpu.kernels.dot_codes(ty, weights, codes[token].row(), ahead, out),
                        None => {
                            let x = &x[token * cols..][..cols];
                            cpu.kernels.dot_floats(weight.encoding(), weights, x, ahead, out);
                        }
                    };
                    match selection {
                        RowSelection::All => dot(&weight.data()[at * row_bytes..][..out.len() * row_bytes], out),
                        RowSelection::Listed(list) => {
                            let rows = list[at..].iter().map(|row| weight.row(*row as usize));
                            rows.zip(&mut *out).for_each(|(row, out)| dot(row, std::slice::from_mut(out)));
                        }
                    }
                    weight.scale(out);
                    if let Some(bias) = bias {
                        (at..).zip(out).for_each(|(at, out)| *out += bias[selection.get(at)]);
                    }
                }
            }
        });
    });
}
