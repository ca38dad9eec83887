//! AVX-512 F/BW/VL/DQ with VNNI: 512-bit kernels.
//!
//! This module is compiled with these features enabled. [`kernels`](super::kernels) gives its table
//! only to machines that have them.

mod axpy;
mod blocks;
mod codes;
mod dot;
mod inputs;
mod lanes;
mod tile;

use std::arch::x86_64::*;

use super::{
    CodeTileKernels, Kernels, LaneKernels,
    avx2::{self, load128, load256, store256},
    prefetch_weights,
};
use crate::Isa;

const ROWS: usize = 32;
const FLOAT_TOKENS: usize = 12;

/// Loads 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn load512<T: Copy, const N: usize>(from: &[T; N]) -> __m512i {
    const { assert!(N * size_of::<T>() == 64) };
    // SAFETY: 64 bytes are readable there, and the load needs no alignment.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

/// Prefetches as many lines as `at` spans, `ahead` bytes after `at`. The processor's own prefetcher
/// stops at page boundaries. See [`prefetch_weights`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn prefetch<T>(at: &T, ahead: isize) {
    prefetch_part(at, 0, 1, ahead);
}

/// Prefetches the lines of [`prefetch`] that belong to `step` of `steps`. Gathered rows arrive more
/// slowly if more of their lines are in flight at once.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn prefetch_part<T>(at: &T, step: usize, steps: usize, ahead: isize) {
    let lines = size_of::<T>().div_ceil(64);
    let [from, to] = [step, step + 1].map(|step| (step * lines).div_ceil(steps));
    prefetch_weights([std::ptr::from_ref(at).cast::<i8>().wrapping_offset(ahead).wrapping_add(64 * from)], to - from);
}

/// Loads sixteen floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn load_ps(from: &[f32; 16]) -> __m512 {
    _mm512_castsi512_ps(load512(from))
}

/// Loads the first `n` (at most 16) floats of `from`, followed by zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn load_some(from: &[f32]) -> __m512 {
    let mut lanes = [0f32; 16];
    let n = from.len().min(16);
    lanes[..n].copy_from_slice(&from[..n]);
    load_ps(&lanes)
}

/// Writes 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn store512<T: Copy, const N: usize>(to: &mut [T; N], v: __m512i) {
    const { assert!(N * size_of::<T>() == 64) };
    // SAFETY: 64 bytes are writable there, any bits are a valid `T` (integers and floats), and the
    // store needs no alignment.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), v) }
}

/// Writes 16 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn store128<T: Copy, const N: usize>(to: &mut [T; N], v: __m128i) {
    const { assert!(N * size_of::<T>() == 16) };
    // SAFETY: 16 bytes are writable there, any bits are a valid `T` (integers and floats), and the
    // store needs no alignment.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), v) }
}

/// Writes sixteen floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn store_ps(to: &mut [f32; 16], v: __m512) {
    store512(to, _mm512_castps_si512(v));
}

/// The table of AVX-512.
pub(super) const TABLE: Kernels = Kernels {
    isa: Isa::Avx512,
    panel_rows: ROWS,
    float_tokens: FLOAT_TOKENS,
    quantise: |x, row| with_features!(codes::quantise(x, row)),
    dot_codes: |ty, weights, x, ahead, out| {
        if !dot::has_kernels(ty) {
            return (avx2::TABLE.dot_codes)(ty, weights, x, ahead, out);
        }
        with_features!(dot::code_rows(ty, weights, [x], ahead, out.as_chunks_mut::<1>().0));
    },
    lanes: Some(LaneKernels {
        has: dot::has_kernels,
        dot_tokens: |ty, weights, x, ahead, out| {
            with_features!(dot::code_rows_tokens(ty, weights, x, ahead, out));
        },
        dot_tile: |ty, weights, x, out| with_features!(dot::code_tile(ty, weights, x, out)),
    }),
    gathered_q4_0: Some(|rows, x| with_features!(dot::q4_0(*rows, x))),
    dot_float_rows: |ty, weights, x, ahead, out| {
        with_features!(dot::floats(ty, weights, [x], ahead, out.as_chunks_mut::<1>().0));
    },
    dot_float_tokens: Some(|ty, weights, x, ahead, out| {
        with_features!(dot::floats_tokens(ty, weights, x, ahead, out));
    }),
    unpack: |ty, src, to| with_features!(blocks::unpack(ty, src, to)),
    code_tiles: Some(CodeTileKernels {
        interleave: |codes, out| with_features!(codes::interleave::<i8, 4, 64>(codes, out)),
        bias: |codes, len, bias| with_features!(codes::bias(codes, len, bias)),
        tile_codes: |panel, x, acc| with_features!(tile::codes(panel, x, acc)),
    }),
    decode_panel: avx2::TABLE.decode_panel,
    panel_products: |panel, x, sums| with_features!(avx2::panel::products_avx512(panel, x, sums)),
    interleave_floats: |rows, out| with_features!(codes::interleave::<f32, 1, 16>(rows, out)),
    widen_floats: |ty, src, dst| with_features!(codes::widen(ty, src, dst)),
    tile_floats: |panel, x, acc| with_features!(tile::floats(panel, x, acc)),
    axpy_rows: |ty, rows, acc| with_features!(axpy::rows(ty, rows, acc)),
    add_inputs: |inputs, next, acc| with_features!(inputs::add(inputs, next, acc)),
    add_byte_inputs: avx2::TABLE.add_byte_inputs,
    add_inputs_with_minima: avx2::TABLE.add_inputs_with_minima,
};
