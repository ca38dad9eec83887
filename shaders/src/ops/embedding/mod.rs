//! Rows of the embedding: `out[t] = scale * W[ids[t]]` for the weights `W`, of which rows
//! `first_row .. first_row + rows` are bound. Output rows of other ids stay unchanged. Rows of `W`
//! may be longer than output rows.

use crate::{
    Access::{Read, Write},
    Kernel, WeightType,
    case::{CLOSE, CaseRequest, KernelCase, SampleWeights, sizes, wide},
    params::params,
};

params! {
    /// `embedding`
    Embedding {
        /// The first bound row.
        first_row: u32,
        /// Number of bound rows.
        rows: u32,
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Rows of the output.
        tokens: u32,
        /// Elements from one row of the output to the next; a multiple of 32.
        pitch: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Factor on every element.
        scale: f32,
    }
}

/// The kernel `embedding`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<Embedding>("embedding", &[Read, Read, Read, Write], include_str!("embedding.wgsl"), cases)
        .of_weights(&WeightType::ALL);

/// An output row.
fn oracle(row: &[f64], scale: f32) -> impl Iterator<Item = f64> {
    row.iter().map(move |weight| weight * f64::from(scale))
}

/// Rows of odd and even numbers of blocks, and output rows of a part of a block. They also prove
/// that a type's codec, its layout in device memory and its WGSL decoder agree.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let block = request.ty.block();
    let shapes = [(3, 3 * block), (1, 32), (4, 4 * block)];
    request.pick(&shapes, 1).iter().map(|(blocks, pitch)| case(request.ty, *blocks, *pitch)).collect()
}

/// The first and the last bound row, rows outside, and one row twice.
fn case(ty: WeightType, blocks: usize, pitch: usize) -> KernelCase {
    let (rows, first_row, scale, ids) = (23, 100, 2.5, [100_u32, 122, 111, 99, 123, 0, 100]);
    let weights = SampleWeights::new(ty, rows, blocks * ty.block(), 3);
    let before = vec![7.0; (ids.len() + 1) * pitch];
    let mut out = wide(&before);
    for (id, out) in ids.iter().zip(out.chunks_exact_mut(pitch)) {
        let bound = id.checked_sub(first_row).map(|row| row as usize).filter(|row| *row < rows);
        let values = bound.into_iter().flat_map(|row| oracle(weights.row(row), scale));
        out.iter_mut().zip(values).for_each(|(out, value)| *out = value);
    }
    let [rows, chunks, tokens, pitch32] = sizes([rows, weights.cols / 32, ids.len(), pitch]);
    let stride = 192;
    let params = Embedding { first_row, rows, chunks, tokens, pitch: pitch32, stride, scale };
    KernelCase::new("embedding", 64, params, [3, (tokens * pitch32 / 8).div_ceil(stride), 1])
        .named(format!("{blocks} blocks, {pitch} columns of output"))
        .matrix(&weights)
        .input(&ids)
        .input(&before)
        .becomes(&out, CLOSE)
}
