//! Multiples of rows added up: the down projection where a neuron is a row.

use std::arch::x86_64::*;

use super::{load_ps, load128, prefetch, store_ps};
use crate::{
    cpu::simd::{AXPY_ROWS, Multiple, portable, unpack::half},
    format::TensorType,
};

/// `acc += a * w`, row after row.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn rows(ty: TensorType, rows: &[Multiple<'_>], acc: &mut [f32]) {
    let (groups, rest) = if ty == TensorType::Q4_0 { rows.as_chunks::<AXPY_ROWS>() } else { (&[][..], rows) };
    for group in groups {
        q4_0(group, acc);
    }
    for of in rest {
        prefetch(of.row, of.ahead);
        portable::axpy(ty, of.row, of.a, acc);
    }
}

/// Several rows for each look at `acc`.
#[target_feature(enable = "avx2,fma,f16c")]
fn q4_0(rows: &[Multiple<'_>; AXPY_ROWS], acc: &mut [f32]) {
    for of in rows {
        assert_eq!(Some(of.row.len()), TensorType::Q4_0.row_bytes(acc.len()), "Q4_0 row of {}", acc.len());
        prefetch(of.row, of.ahead);
    }
    let rows = rows.map(|of| (of.row.as_chunks::<18>().0, of.a));
    let (mask, offset) = (_mm_set1_epi8(15), _mm_set1_epi8(8));
    for (at, acc) in acc.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let acc = acc.as_chunks_mut::<8>().0;
        let mut sums = [load_ps(&acc[0]), load_ps(&acc[1]), load_ps(&acc[2]), load_ps(&acc[3])];
        for (blocks, a) in rows {
            let [low, high, quants @ ..] = &blocks[at];
            let scale = _mm256_set1_ps(a * half([*low, *high]));
            let quants = load128::<u8, 16>(quants);
            let low = _mm_sub_epi8(_mm_and_si128(quants, mask), offset);
            let high = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16::<4>(quants), mask), offset);
            let codes = [low, _mm_unpackhi_epi64(low, low), high, _mm_unpackhi_epi64(high, high)];
            for (sum, codes) in sums.iter_mut().zip(codes) {
                *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), scale, *sum);
            }
        }
        for (to, sum) in acc.iter_mut().zip(sums) {
            store_ps(to, sum);
        }
    }
}
