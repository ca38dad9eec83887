//! AVX-512 F/BW/VL/DQ with VNNI: 512-bit kernels.
//!
//! Everything here is compiled with the features on; [`Avx512`] is only made on a machine that has them.

mod axpy;
mod blocks;
mod codes;
mod dot;
mod inputs;
mod tile;

use std::arch::x86_64::*;

use super::{
    BlockWork, CodePanel, CodeTile, CodeTileKernels, DOT_ROWS, GatheredRow, InputBlock, InputMinima, Kernels,
    QuantisedInput, QuantisedInputMut, ScaledRow, decoded, one_by_one, prefetch_weights, takes_gathered_rows,
};
use crate::Isa;
use thermocline_formats::quant::{BlockType, Encoding, UnpackedMut};

const ROWS: usize = 32;
const FLOAT_TOKENS: usize = 12;

/// Proof that this machine has the features.
#[derive(Debug)]
pub(super) struct Avx512(());

/// The table, if this machine can run it.
pub(super) fn table() -> Option<&'static dyn Kernels> {
    static TABLE: Avx512 = Avx512(());
    Isa::available().contains(&Isa::Avx512).then_some(&TABLE as &dyn Kernels)
}

/// 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn load512<T: Copy, const N: usize>(from: &[T; N]) -> __m512i {
    const { assert!(N * size_of::<T>() == 64) };
    // SAFETY: 64 bytes are readable there, and the load asks for no alignment.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

/// Prefetches the lines `ahead` bytes behind `at`, as many as `at` spans: the processor's own prefetcher stops at page boundaries.
/// See [`prefetch_weights`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn prefetch<T>(at: &T, ahead: isize) {
    prefetch_part(at, 0, 1, ahead);
}

/// The lines of [`prefetch`] that fall to `step` of `steps`: gathered rows come the more slowly the more of their lines are on their
/// way at once.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn prefetch_part<T>(at: &T, step: usize, steps: usize, ahead: isize) {
    let lines = size_of::<T>().div_ceil(64);
    let [from, to] = [step, step + 1].map(|step| (step * lines).div_ceil(steps));
    prefetch_weights([std::ptr::from_ref(at).cast::<i8>().wrapping_offset(ahead).wrapping_add(64 * from)], to - from);
}

/// 32 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn load256<T: Copy, const N: usize>(from: &[T; N]) -> __m256i {
    const { assert!(N * size_of::<T>() == 32) };
    // SAFETY: 32 bytes are readable there, and the load asks for no alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

/// 16 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn load128<T: Copy, const N: usize>(from: &[T; N]) -> __m128i {
    const { assert!(N * size_of::<T>() == 16) };
    // SAFETY: 16 bytes are readable there, and the load asks for no alignment.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// Sixteen floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn load_ps(from: &[f32; 16]) -> __m512 {
    _mm512_castsi512_ps(load512(from))
}

/// The first `n` (at most 16) floats of `from`, zero behind them.
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
    // SAFETY: 64 bytes are writable there, any bits are a `T` (integers and floats), and the store asks for no
    // alignment.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), v) }
}

/// Writes 32 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn store256<T: Copy, const N: usize>(to: &mut [T; N], v: __m256i) {
    const { assert!(N * size_of::<T>() == 32) };
    // SAFETY: 32 bytes are writable there, any bits are a `T` (integers and floats), and the store asks for no
    // alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), v) }
}

/// Writes 16 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn store128<T: Copy, const N: usize>(to: &mut [T; N], v: __m128i) {
    const { assert!(N * size_of::<T>() == 16) };
    // SAFETY: 16 bytes are writable there, any bits are a `T` (integers and floats), and the store asks for no
    // alignment.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), v) }
}

/// Writes sixteen floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn store_ps(to: &mut [f32; 16], v: __m512) {
    store512(to, _mm512_castps_si512(v));
}

/// Enters a function compiled with the features.
macro_rules! with_features {
    ($($call:tt)*) => {
        // SAFETY: an `Avx512` is only reachable through `table`, which checked that this machine has the features.
        unsafe { $($call)* }
    };
}

impl Kernels for Avx512 {
    fn code_tiles(&self) -> Option<&dyn CodeTileKernels> {
        Some(self)
    }

    fn panel_rows(&self) -> usize {
        ROWS
    }

    fn float_tokens(&self) -> usize {
        FLOAT_TOKENS
    }

    fn quantise(&self, x: &[f32], row: QuantisedInputMut<'_>) {
        with_features!(codes::quantise(x, row))
    }

    fn dot_codes(&self, ty: BlockType, weights: &[u8], x: QuantisedInput<'_>, ahead: isize, out: &mut [f32]) {
        with_features!(blocks::run(ty, BlockWork::Dot { weights, x, ahead, out }))
    }

    fn dot_gathered(
        &self,
        ty: BlockType,
        rows: &[GatheredRow<'_>; DOT_ROWS],
        x: QuantisedInput<'_>,
        out: &mut [f32; DOT_ROWS],
    ) {
        match takes_gathered_rows(ty, rows, x) {
            true => *out = with_features!(dot::q4_0(*rows, x)),
            false => one_by_one(self, ty, rows, x, out),
        }
    }

    fn dot_floats(&self, ty: Encoding, weights: &[u8], x: &[f32], ahead: isize, out: &mut [f32]) {
        match ty {
            Encoding::Blocks(ty) => decoded::dot(Isa::Avx512, self, ty, weights, x, ahead, out),
            Encoding::Float(ty) => with_features!(dot::floats(ty, weights, x, ahead, out)),
        }
    }

    fn unpack(&self, ty: BlockType, src: &[u8], to: UnpackedMut<'_>) {
        with_features!(blocks::run(ty, BlockWork::Unpack { src, to }))
    }

    fn interleave_floats(&self, rows: &[f32], out: &mut [f32]) {
        with_features!(codes::interleave::<f32, 1, 16>(rows, out))
    }

    fn widen(&self, ty: Encoding, src: &[u8], dst: &mut [f32]) {
        match ty {
            Encoding::Blocks(ty) => decoded::widen(Isa::Avx512, self, ty, src, dst),
            Encoding::Float(ty) => with_features!(codes::widen(ty, src, dst)),
        }
    }

    fn tile_floats(&self, panel: &[f32], x: &[f32], acc: &mut [f32]) {
        with_features!(tile::floats(panel, x, acc))
    }

    fn add_inputs(&self, inputs: &InputBlock<'_>, next: Option<&InputBlock<'_>>, acc: &mut [f32]) {
        with_features!(inputs::add(inputs, next, acc))
    }

    fn add_byte_inputs(&self, inputs: &InputBlock<'_>, next: Option<&InputBlock<'_>>, acc: &mut [f32]) {
        with_features!(super::avx2::inputs::add_bytes(inputs, next, acc))
    }

    fn add_inputs_with_minima(
        &self,
        inputs: &InputBlock<'_>,
        minima: &InputMinima<'_>,
        next: Option<&InputBlock<'_>>,
        acc: &mut [f32],
    ) {
        with_features!(super::avx2::inputs::add_with_minima(inputs, minima, next, acc))
    }

    fn axpy(&self, ty: Encoding, rows: &[ScaledRow<'_>], acc: &mut [f32]) {
        with_features!(axpy::rows(ty, rows, acc))
    }
}

impl CodeTileKernels for Avx512 {
    fn interleave(&self, codes: &[i8], out: &mut [i8]) {
        with_features!(codes::interleave::<i8, 4, 64>(codes, out))
    }

    fn bias(&self, codes: &[i8], len: usize, bias: &mut [i32]) {
        with_features!(codes::bias(codes, len, bias))
    }

    fn tile_codes(&self, panel: CodePanel<'_>, x: CodeTile<'_>, acc: &mut [f32]) {
        with_features!(tile::codes(panel, x, acc))
    }
}
