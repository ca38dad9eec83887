//! Sums of scaled rows, for the down projection of neuron-major matrices.

use super::{blocks, head, heads, prefetch, products::Widening, registers::*};
use crate::simd::{AXPY_ROWS, BlockWork, ScaledRow, part, part_mut, portable};
use thermocline_formats::quant::{BlockType, FloatType, UNPACK_STEP as STEP, UnpackedMut, WeightType};

/// `acc += a * w`, row after row.
pub(super) fn rows(ty: WeightType, rows: &[ScaledRow<'_>], acc: &mut [f32]) {
    let (groups, rest) =
        if ty == WeightType::Blocks(BlockType::Q4_0) { rows.as_chunks::<AXPY_ROWS>() } else { (&[][..], rows) };
    for group in groups {
        q4_0(group, acc);
    }
    for ScaledRow { row, a, ahead } in rest.iter().copied() {
        match ty {
            WeightType::Float(ty @ FloatType::F32) => floats::<16>(ty, row, a, ahead, acc, f32s),
            WeightType::Float(ty @ FloatType::F16) => floats::<8>(ty, row, a, ahead, acc, f16s),
            WeightType::Float(ty @ FloatType::BF16) => floats::<8>(ty, row, a, ahead, acc, bf16s),
            WeightType::Blocks(ty) => any_blocks(ty, row, a, ahead, acc),
        }
    }
}

/// Adds one row of floats. Four floats are `BYTES` long.
#[inline(always)]
fn floats<const BYTES: usize>(
    ty: FloatType,
    row: &[u8],
    a: f32,
    ahead: isize,
    acc: &mut [f32],
    widen: impl Fn(&[u8; BYTES]) -> float32x4_t,
) {
    let ((w8, w_rest), (acc8, acc_rest)) = (row.as_chunks::<BYTES>().0.as_chunks::<8>(), acc.as_chunks_mut::<4>());
    let (acc8, acc1) = acc8.as_chunks_mut::<8>();
    for (w, acc) in w8.iter().zip(acc8) {
        prefetch(w.as_flattened(), ahead);
        for i in 0..8 {
            let sum = vfmaq_n_f32(load_floats(&acc[i]), widen(&w[i]), a);
            store_floats(&mut acc[i], sum);
        }
    }
    for (w, acc) in w_rest.iter().zip(acc1) {
        let sum = vfmaq_n_f32(load_floats(acc), widen(w), a);
        store_floats(acc, sum);
    }
    portable::axpy_floats(ty, row.as_chunks::<BYTES>().1, a, acc_rest);
}

/// Adds several rows with one read and write of `acc`.
fn q4_0(rows: &[ScaledRow<'_>; AXPY_ROWS], acc: &mut [f32]) {
    let lines = rows.map(|of| of.row.as_chunks::<18>().0.as_chunks::<4>());
    let (accs, acc_rest) = acc.as_chunks_mut::<128>();
    for (line, acc) in accs.iter_mut().enumerate() {
        let mut scales = [[0.0; 4]; AXPY_ROWS];
        for ((scales, of), (lines, _)) in scales.iter_mut().zip(rows).zip(&lines) {
            prefetch(lines[line].as_flattened(), of.ahead);
            store_floats(scales, vmulq_n_f32(heads::<18, 0>(&lines[line]), of.a));
        }
        for (i, acc) in acc.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            add(lines.map(|(lines, _)| &lines[line][i]), scales.map(|scales| scales[i]), acc);
        }
    }
    for (i, acc) in acc_rest.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let blocks = lines.map(|(_, rest)| &rest[i]);
        let scales = std::array::from_fn(|row| rows[row].a * head(part(blocks[row], 0)));
        add(blocks, scales, acc);
    }
}

/// Adds a block of each row.
#[inline(always)]
fn add(blocks: [&[u8; 18]; AXPY_ROWS], scales: [f32; AXPY_ROWS], acc: &mut [f32; 32]) {
    // Codes are stored with 8 added.
    let offset = vdupq_n_f32(-8.0 * scales.iter().sum::<f32>());
    let mut sums = [offset; 8];
    for (i, sum) in sums.iter_mut().enumerate() {
        *sum = vaddq_f32(load_floats(part(acc, 4 * i)), offset);
    }
    for (block, scale) in blocks.into_iter().zip(scales) {
        let bytes = load_bytes(part(block, 2));
        for (half, upper) in [shift_left::<4>(bytes), vandq_u8(bytes, vdupq_n_u8(0xf0))].into_iter().enumerate() {
            let floats = [
                upper_floats::<0>(upper),
                upper_floats::<1>(upper),
                upper_floats::<2>(upper),
                upper_floats::<3>(upper),
            ];
            for (i, floats) in floats.into_iter().enumerate() {
                sums[4 * half + i] = vfmaq_n_f32(sums[4 * half + i], floats, scale);
            }
        }
    }
    for (i, sum) in sums.into_iter().enumerate() {
        store_floats(part_mut(acc, 4 * i), sum);
    }
}

/// Adds a row of any block type, after decoding it to codes.
fn any_blocks(ty: BlockType, row: &[u8], a: f32, ahead: isize, acc: &mut [f32]) {
    let format = ty.format();
    let grouping = format.grouping;
    let step_bytes = STEP / format.len * format.bytes;
    let (mut codes, mut scales, mut mins) = ([0i8; STEP], [0f32; 16], [0f32; 16]);
    for (src, acc) in row.chunks(step_bytes).zip(acc.chunks_mut(STEP)) {
        prefetch(src, ahead);
        let to = UnpackedMut { codes: &mut codes[..acc.len()], scales: &mut scales, mins: &mut mins };
        blocks::run(Widening, ty, BlockWork::Unpack { src, to });
        for (at, acc) in acc.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let group = at * 16 / grouping.len;
            let codes = load_codes(part(&codes, at * 16));
            let floats = [
                signed_floats::<0>(codes),
                signed_floats::<1>(codes),
                signed_floats::<2>(codes),
                signed_floats::<3>(codes),
            ];
            let min = vdupq_n_f32(if grouping.minima { a * mins[group] } else { 0.0 });
            for (i, floats) in floats.into_iter().enumerate() {
                let acc: &mut [f32; 4] = part_mut(acc, 4 * i);
                let sum = vfmaq_n_f32(vaddq_f32(load_floats(acc), min), floats, a * scales[group]);
                store_floats(acc, sum);
            }
        }
    }
}
