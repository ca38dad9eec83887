//! Sums of scaled rows, for the down projection of neuron-major matrices.

use std::arch::x86_64::*;

use super::{blocks, codes::heads, load_ps, load128, load256, load512, prefetch, prefetch_part, store_ps};
use crate::simd::{AXPY_ROWS, ScaledRow, part, part_mut, portable};
use thermocline_formats::quant::{BlockType, FloatType, UNPACK_STEP as STEP, UnpackedMut, WeightType, f16_at};

/// `acc += a * w`, row after row.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
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
                floats::<64>(ty, row, a, ahead, acc, |w| _mm512_castsi512_ps(load512(w)))
            }
            WeightType::Float(ty @ FloatType::F16) => {
                floats::<32>(ty, row, a, ahead, acc, |w| _mm512_cvtph_ps(load256(w)))
            }
            WeightType::Float(ty @ FloatType::BF16) => floats::<32>(ty, row, a, ahead, acc, |w| {
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load256(w))))
            }),
            WeightType::Blocks(ty) => any_blocks(ty, row, a, ahead, acc),
        }
    }
}

/// Adds one row of floats. Sixteen floats are `BYTES` long.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn floats<const BYTES: usize>(
    ty: FloatType,
    row: &[u8],
    a: f32,
    ahead: isize,
    acc: &mut [f32],
    widen: impl Fn(&[u8; BYTES]) -> __m512,
) {
    let factor = _mm512_set1_ps(a);
    let ((ws, w_rest), (accs, acc_rest)) = (row.as_chunks::<BYTES>(), acc.as_chunks_mut::<16>());
    for (w, acc) in ws.iter().zip(accs) {
        prefetch(w, ahead);
        store_ps(acc, _mm512_fmadd_ps(widen(w), factor, load_ps(acc)));
    }
    portable::axpy_floats(ty, w_rest, a, acc_rest);
}

/// Adds several rows with one read and write of `acc`. A register is the look-up table of the
/// codes' values.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn q4_0<const ROWS: usize>(rows: &[ScaledRow<'_>; ROWS], acc: &mut [f32]) {
    let values = _mm512_set_ps(7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0);
    let add = |sums: [__m512; 2], block: &[u8; 18], scale: f32| {
        let [_, _, quants @ ..] = block;
        let scale = _mm512_set1_ps(scale);
        // The look-up uses only the lowest four bits of an index.
        let low = _mm512_cvtepu8_epi32(load128::<u8, 16>(quants));
        let high = _mm512_srli_epi32::<4>(low);
        [
            _mm512_fmadd_ps(_mm512_permutexvar_ps(low, values), scale, sums[0]),
            _mm512_fmadd_ps(_mm512_permutexvar_ps(high, values), scale, sums[1]),
        ]
    };
    let (accs, acc_rest) = acc.as_chunks_mut::<512>();
    let lines = rows.each_ref().map(|of| of.row.as_chunks::<18>().0.as_chunks::<16>());
    for (line, acc) in accs.iter_mut().enumerate() {
        let blocks = lines.each_ref().map(|(lines, _)| &lines[line]);
        let mut scales = [[0.0; 16]; ROWS];
        for ((scales, of), blocks) in scales.iter_mut().zip(rows).zip(blocks) {
            store_ps(scales, _mm512_mul_ps(heads(blocks), _mm512_set1_ps(of.a)));
        }
        // Everything here must be inlined, because it runs for every 32 elements.
        for (i, acc) in acc.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let mut sums = [load_ps(part(acc, 0)), load_ps(part(acc, 16))];
            for row in 0..ROWS {
                prefetch_part(blocks[row], i, 16, rows[row].ahead);
                sums = add(sums, &blocks[row][i], scales[row][i]);
            }
            store_ps(part_mut(acc, 0), sums[0]);
            store_ps(part_mut(acc, 16), sums[1]);
        }
    }
    for (i, acc) in acc_rest.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let mut sums = [load_ps(part(acc, 0)), load_ps(part(acc, 16))];
        for row in 0..ROWS {
            let block = &lines[row].1[i];
            sums = add(sums, block, rows[row].a * f16_at(block, 0));
        }
        store_ps(part_mut(acc, 0), sums[0]);
        store_ps(part_mut(acc, 16), sums[1]);
    }
}

/// Adds a row of any block type, after decoding it to codes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn any_blocks(ty: BlockType, row: &[u8], a: f32, ahead: isize, acc: &mut [f32]) {
    let format = ty.format();
    let grouping = format.grouping;
    let step_bytes = STEP / format.len * format.bytes;
    let (mut codes, mut scales, mut mins) = ([0i8; STEP], [0f32; 16], [0f32; 16]);
    for (src, acc) in row.chunks(step_bytes).zip(acc.chunks_mut(STEP)) {
        if ahead != 0 {
            src.chunks(64).for_each(|line| prefetch(&line[0], ahead));
        }
        let to = UnpackedMut { codes: &mut codes[..acc.len()], scales: &mut scales, mins: &mut mins };
        blocks::unpack(ty, src, to);
        for (at, acc) in acc.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let group = at * 16 / grouping.len;
            let code = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128::<i8, 16>(part(&codes, at * 16))));
            let mut sum = _mm512_fmadd_ps(code, _mm512_set1_ps(a * scales[group]), load_ps(acc));
            if grouping.minima {
                sum = _mm512_add_ps(sum, _mm512_set1_ps(a * mins[group]));
            }
            store_ps(acc, sum);
        }
    }
}
