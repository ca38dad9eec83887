//! Multiples of rows added up: the down projection where a neuron is a row.

use std::arch::x86_64::*;

use super::{
    codes::{self, heads, part},
    load_ps, load128, load256, load512, prefetch, store_ps,
};
use crate::{
    cpu::simd::{
        portable,
        unpack::{Grouping, half},
    },
    format::TensorType,
};

/// Elements decoded at a time.
const STEP: usize = 256;

/// `acc += a * w`
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn row(ty: TensorType, row: &[u8], a: f32, ahead: isize, acc: &mut [f32]) {
    assert_eq!(Some(row.len()), ty.row_bytes(acc.len()), "{ty} row of {}", acc.len());
    match ty {
        TensorType::F32 => floats::<64>(ty, row, a, ahead, acc, |w| _mm512_castsi512_ps(load512(w))),
        TensorType::F16 => floats::<32>(ty, row, a, ahead, acc, |w| _mm512_cvtph_ps(load256(w))),
        TensorType::BF16 => floats::<32>(ty, row, a, ahead, acc, |w| {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load256(w))))
        }),
        TensorType::Q4_0 => q4_0(row, a, ahead, acc),
        _ => match Grouping::of(ty) {
            Some(grouping) => any(ty, grouping, row, a, ahead, acc),
            None => unreachable!("{ty} is not a weight type"),
        },
    }
}

/// One row of floats, sixteen of which are `BYTES` long.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn floats<const BYTES: usize>(
    ty: TensorType,
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
    portable::axpy(ty, w_rest, a, acc_rest);
}

/// A block's sixteen values are looked up in a table of its own.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn q4_0(row: &[u8], a: f32, ahead: isize, acc: &mut [f32]) {
    let values = _mm512_set_ps(7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0);
    let add = |block: &[u8; 18], scale: __m512, acc: &mut [f32; 32]| {
        let table = _mm512_mul_ps(scale, values);
        let [_, _, quants @ ..] = block;
        // Only the lowest four bits of an index count.
        let low = _mm512_cvtepu8_epi32(load128::<u8, 16>(quants));
        let high = _mm512_srli_epi32::<4>(low);
        if let [first, second] = acc.as_chunks_mut::<16>().0 {
            store_ps(first, _mm512_add_ps(_mm512_permutexvar_ps(low, table), load_ps(first)));
            store_ps(second, _mm512_add_ps(_mm512_permutexvar_ps(high, table), load_ps(second)));
        }
    };
    let (lines, rest) = row.as_chunks::<18>().0.as_chunks::<16>();
    let (accs, acc_rest) = acc.as_chunks_mut::<512>();
    let factor = _mm512_set1_ps(a);
    for (blocks, acc) in lines.iter().zip(accs) {
        prefetch(blocks, ahead);
        let scales = _mm512_mul_ps(heads(blocks), factor);
        for (i, (block, acc)) in blocks.iter().zip(acc.as_chunks_mut::<32>().0).enumerate() {
            add(block, _mm512_permutexvar_ps(_mm512_set1_epi32(i as i32), scales), acc);
        }
    }
    for (block, acc) in rest.iter().zip(acc_rest.as_chunks_mut::<32>().0) {
        add(block, _mm512_set1_ps(a * half([block[0], block[1]])), acc);
    }
}

/// Any quantised type, decoded to codes first.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn any(ty: TensorType, grouping: Grouping, row: &[u8], a: f32, ahead: isize, acc: &mut [f32]) {
    let step_bytes = STEP / ty.block_len() * ty.block_bytes();
    let (mut codes, mut scales, mut mins) = ([0i8; STEP], [0f32; 16], [0f32; 16]);
    for (src, acc) in row.chunks(step_bytes).zip(acc.chunks_mut(STEP)) {
        if ahead != 0 {
            src.chunks(64).for_each(|line| prefetch(&line[0], ahead));
        }
        codes::unpack(ty, src, &mut codes[..acc.len()], &mut scales, &mut mins);
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
