//! AVX2 with FMA and F16C: 256-bit kernels. If the machine has AVX-VNNI, prompts use it.
//!
//! This module is compiled with these features enabled. [`kernels`](super::kernels) gives its
//! tables only to machines that have them.

mod axpy;
pub(super) mod blocks;
mod codes;
mod dot;
mod inputs;
pub(super) mod panel;
mod panel_decode;
mod points;
mod sums;
mod tile;

use std::arch::x86_64::*;

use super::{BlockWork, Kernels, QuantisedInputMut, portable, prefetch_weights};
use crate::Isa;
use thermocline_formats::quant::FloatType;

const ROWS: usize = 16;
const FLOAT_TOKENS: usize = 6;

/// Loads 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load256<T: Copy, const N: usize>(from: &[T; N]) -> __m256i {
    const { assert!(N * size_of::<T>() == 32) };
    // SAFETY: 32 bytes are readable there, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

/// Loads 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load128<T: Copy, const N: usize>(from: &[T; N]) -> __m128i {
    const { assert!(N * size_of::<T>() == 16) };
    // SAFETY: 16 bytes are readable there, and the load needs no alignment.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// Writes 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn store256<T: Copy, const N: usize>(to: &mut [T; N], v: __m256i) {
    const { assert!(N * size_of::<T>() == 32) };
    // SAFETY: 32 bytes are writable there, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), v) }
}

/// Loads eight bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load64<T: Copy, const N: usize>(from: &[T; N]) -> __m128i {
    const { assert!(N * size_of::<T>() == 8) };
    // SAFETY: 8 bytes are readable there, and the load needs no alignment.
    unsafe { _mm_loadl_epi64(from.as_ptr().cast()) }
}

/// The f16 at byte `AT` of each of eight blocks. They are combined in whole registers. Inserting
/// them into a vector one by one would wait for the previous contents of its register.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn heads<const BYTES: usize, const AT: usize>(blocks: &[[u8; BYTES]; 8]) -> __m256 {
    let four = |at: usize| {
        let one = |i: usize| u64::from(u16::from_le_bytes([blocks[at + i][AT], blocks[at + i][AT + 1]])) << (16 * i);
        (one(0) | one(1) | one(2) | one(3)) as i64
    };
    _mm256_cvtph_ps(_mm_set_epi64x(four(4), four(0)))
}

/// The scales of eight MXFP4 blocks: the powers of two `2^(e - 128)`, for codes that are twice the
/// value.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn powers<B: AsRef<[u8]>>(blocks: &[B; 8]) -> __m256 {
    let mut bytes = 0;
    for (i, block) in blocks.iter().enumerate() {
        bytes |= u64::from(block.as_ref()[0]) << (8 * i);
    }
    let (e, one) = (_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64)), _mm256_set1_epi32(1));
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, one));
    let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
    _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, _mm256_cmpgt_epi32(e, one)))
}

/// Prefetches the lines `ahead` bytes after those of `row`. See [`prefetch_weights`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn prefetch(row: &[u8], ahead: isize) {
    if ahead != 0 {
        prefetch_weights([row.as_ptr().cast::<i8>().wrapping_offset(ahead)], row.len().div_ceil(64));
    }
}

/// Loads eight floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load_ps(from: &[f32; 8]) -> __m256 {
    _mm256_castsi256_ps(load256(from))
}

/// Writes eight floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_ps(to: &mut [f32; 8], v: __m256) {
    // SAFETY: 32 bytes are writable there, and the store needs no alignment.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), v) }
}

/// Sum of the lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn reduce(v: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// The table of AVX2.
pub(super) const TABLE: Kernels = Kernels {
    isa: Isa::Avx2,
    panel_rows: ROWS,
    float_tokens: FLOAT_TOKENS,
    quantise: |x, row| with_features!(quantise(x, row)),
    dot_codes: |ty, weights, x, ahead, out| {
        with_features!(blocks::run(ty, BlockWork::Dot { weights, x, ahead, out }));
    },
    gathered_q4_0: Some(|rows, x| with_features!(dot::q4_0(*rows, x))),
    dot_float_rows: |ty, weights, x, ahead, out| {
        with_features!(dot::floats(ty, weights, [x], ahead, out.as_chunks_mut::<1>().0));
    },
    dot_float_tokens: Some(|ty, weights, x, ahead, out| {
        with_features!(dot::floats_tokens(ty, weights, x, ahead, out));
    }),
    unpack: |ty, src, to| with_features!(blocks::run(ty, BlockWork::Unpack { src, to })),
    lanes: None,
    code_tiles: None,
    decode_panel: |ty, rows, ahead, panel| with_features!(panel_decode::decode(ty, rows, ahead, panel)),
    panel_products: |panel, x, sums| with_features!(panel::products(panel, x, sums)),
    interleave_floats: |rows, out| with_features!(interleave_floats(rows, out)),
    widen_floats: |ty, src, dst| with_features!(widen(ty, src, dst)),
    tile_floats: |panel, x, acc| with_features!(tile::floats(panel, x, acc)),
    axpy_rows: |ty, rows, acc| with_features!(axpy::rows(ty, rows, acc)),
    add_inputs: |inputs, next, acc| with_features!(inputs::add(inputs, next, acc)),
    add_byte_inputs: |inputs, next, acc| with_features!(inputs::add_bytes(inputs, next, acc)),
    add_inputs_with_minima: |inputs, minima, next, acc| {
        with_features!(inputs::add_with_minima(inputs, minima, next, acc));
    },
};

/// The table of AVX2 with AVX-VNNI.
pub(super) const VNNI_TABLE: Kernels = Kernels {
    isa: Isa::AvxVnni,
    panel_products: |panel, x, sums| with_features!(panel::products_vnni(panel, x, sums)),
    ..TABLE
};

#[target_feature(enable = "avx2,fma,f16c")]
fn quantise(x: &[f32], row: QuantisedInputMut<'_>) {
    portable::quantise(x, row);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn interleave_floats(rows: &[f32], out: &mut [f32]) {
    portable::interleave::<f32, 1, ROWS>(rows, out);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn widen(ty: FloatType, src: &[u8], dst: &mut [f32]) {
    portable::widen(ty, src, dst);
}
