//! Sums of scaled rows, for the down projection of neuron-major matrices.

use std::arch::x86_64::*;

use super::{blocks, codes::head, heads, load_ps, load64, load128, load256, prefetch, store_ps};
use crate::simd::{AXPY_ROWS, BlockWork, ScaledRow, part, part_mut, portable};
use thermocline_formats::quant::{BlockType, FloatType, UNPACK_STEP as STEP, UnpackedMut, WeightType};

/// `acc += a * w`, row after row.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn rows(ty: WeightType, rows: &[ScaledRow<'_>], acc: &mut [f32]) {
    if ty == WeightType::Blocks(BlockType::Q4_0) {
        let (groups, rest) = rows.as_chunks::<AXPY_ROWS>();
        groups.iter().for_each(|group| q4_0(group, acc));
        rest.iter().for_each(|of| q4_0(std::array::from_ref(of), acc));
        return;
    }
    for ScaledRow { row, a, ahead } in rows.iter().copied() {
        match ty {
            WeightType::Float(ty @ FloatType::F32) => {
                floats::<32>(ty, row, a, ahead, acc, |w| _mm256_castsi256_ps(load256(w)))
            }
            WeightType::Float(ty @ FloatType::F16) => {
                floats::<16>(ty, row, a, ahead, acc, |w| _mm256_cvtph_ps(load128(w)))
            }
            WeightType::Float(ty @ FloatType::BF16) => floats::<16>(ty, row, a, ahead, acc, |w| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load128(w))))
            }),
            WeightType::Blocks(ty) => any_blocks(ty, row, a, ahead, acc),
        }
    }
}

/// Adds one row of floats. Eight floats are `BYTES` long.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn floats<const BYTES: usize>(
    ty: FloatType,
    row: &[u8],
    a: f32,
    ahead: isize,
    acc: &mut [f32],
    widen: impl Fn(&[u8; BYTES]) -> __m256,
) {
    let factor = _mm256_set1_ps(a);
    let ((w4, w_rest), (acc4, acc_rest)) = (row.as_chunks::<BYTES>().0.as_chunks::<4>(), acc.as_chunks_mut::<8>());
    let (acc4, acc1) = acc4.as_chunks_mut::<4>();
    for (w, acc) in w4.iter().zip(acc4) {
        prefetch(w.as_flattened(), ahead);
        for i in 0..4 {
            let sum = _mm256_fmadd_ps(widen(&w[i]), factor, load_ps(&acc[i]));
            store_ps(&mut acc[i], sum);
        }
    }
    for (w, acc) in w_rest.iter().zip(acc1) {
        store_ps(acc, _mm256_fmadd_ps(widen(w), factor, load_ps(acc)));
    }
    portable::axpy_floats(ty, row.as_chunks::<BYTES>().1, a, acc_rest);
}

/// Adds several rows with one read and write of `acc`.
#[target_feature(enable = "avx2,fma,f16c")]
fn q4_0<const ROWS: usize>(rows: &[ScaledRow<'_>; ROWS], acc: &mut [f32]) {
    let lines = rows.each_ref().map(|of| of.row.as_chunks::<18>().0.as_chunks::<8>());
    let (accs, acc_rest) = acc.as_chunks_mut::<256>();
    for (line, acc) in accs.iter_mut().enumerate() {
        let blocks = lines.each_ref().map(|(lines, _)| &lines[line]);
        let mut scales = [[0.0; 8]; ROWS];
        for ((scales, of), blocks) in scales.iter_mut().zip(rows).zip(blocks) {
            prefetch(blocks.as_flattened(), of.ahead);
            store_ps(scales, _mm256_mul_ps(heads::<18, 0>(blocks), _mm256_set1_ps(of.a)));
        }
        for (i, acc) in acc.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            add(blocks.map(|blocks| &blocks[i]), scales.map(|scales| scales[i]), acc);
        }
    }
    for (i, acc) in acc_rest.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let blocks = lines.each_ref().map(|(_, rest)| &rest[i]);
        let scales = std::array::from_fn(|row| rows[row].a * head(part(blocks[row], 0)));
        add(blocks, scales, acc);
    }
}

/// Adds a block of each row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add<const ROWS: usize>(blocks: [&[u8; 18]; ROWS], scales: [f32; ROWS], acc: &mut [f32; 32]) {
    let mask = _mm256_set1_epi32(15);
    // Codes are stored with 8 added.
    let offset = _mm256_set1_ps(-8.0 * scales.iter().sum::<f32>());
    let mut sums: [_; 4] = std::array::from_fn(|i| _mm256_add_ps(load_ps(part(acc, 8 * i)), offset));
    for (block, scale) in blocks.into_iter().zip(scales) {
        let scale = _mm256_set1_ps(scale);
        for i in 0..2 {
            let bytes = _mm256_cvtepu8_epi32(load64::<u8, 8>(part(block, 2 + 8 * i)));
            let (low, high) = (_mm256_and_si256(bytes, mask), _mm256_srli_epi32::<4>(bytes));
            sums[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(low), scale, sums[i]);
            sums[2 + i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), scale, sums[2 + i]);
        }
    }
    for (i, sum) in sums.into_iter().enumerate() {
        store_ps(part_mut(acc, 8 * i), sum);
    }
}

/// Adds a row of any block type, after decoding it to codes.
#[target_feature(enable = "avx2,fma,f16c")]
fn any_blocks(ty: BlockType, row: &[u8], a: f32, ahead: isize, acc: &mut [f32]) {
    let format = ty.format();
    let grouping = format.grouping;
    let step_bytes = STEP / format.len * format.bytes;
    let (mut codes, mut scales, mut mins) = ([0i8; STEP], [0f32; 16], [0f32; 16]);
    for (src, acc) in row.chunks(step_bytes).zip(acc.chunks_mut(STEP)) {
        prefetch(src, ahead);
        let to = UnpackedMut { codes: &mut codes[..acc.len()], scales: &mut scales, mins: &mut mins };
        blocks::run(ty, BlockWork::Unpack { src, to });
        for (at, acc) in acc.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let group = at * 8 / grouping.len;
            let code = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load64::<i8, 8>(part(&codes, at * 8))));
            let mut sum = _mm256_fmadd_ps(code, _mm256_set1_ps(a * scales[group]), load_ps(acc));
            if grouping.minima {
                sum = _mm256_add_ps(sum, _mm256_set1_ps(a * mins[group]));
            }
            store_ps(acc, sum);
        }
    }
}
