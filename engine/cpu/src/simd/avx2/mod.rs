//! AVX2 with FMA and F16C: 256-bit kernels. Where the machine has AVX-VNNI, prompts use that.
//!
//! Everything here is compiled with the features on; [`Avx2`] is only made on a machine that has them.

mod axpy;
pub(super) mod blocks;
mod codes;
mod dot;
pub(super) mod inputs;
mod panel;
mod panel_decode;
mod points;
mod sums;
mod tile;

use std::arch::x86_64::*;

use super::{
    BlockWork, DOT_ROWS, DOT_TOKENS, GatheredRow, InputBlock, InputMinima, Kernels, PANEL_ROWS, PanelSums,
    QuantisedInput, QuantisedInputMut, RowPanel, ScaledRow, TokenTile, check_row, decoded, one_by_one, portable,
    prefetch_weights, takes_gathered_rows,
};
use crate::Isa;
use thermocline_formats::quant::{BlockType, Encoding, FloatType, UnpackedMut};

const ROWS: usize = 16;
const FLOAT_TOKENS: usize = 6;

/// Proof that this machine has the features, and whether it has AVX-VNNI as well.
#[derive(Debug)]
pub(super) struct Avx2 {
    vnni: bool,
}

/// The table of `isa`, with or without AVX-VNNI, if this machine can run it.
pub(super) fn table(isa: Isa) -> Option<&'static dyn Kernels> {
    static TABLES: [Avx2; 2] = [Avx2 { vnni: false }, Avx2 { vnni: true }];
    let table: &dyn Kernels = &TABLES[usize::from(isa == Isa::AvxVnni)];
    Isa::available().contains(&isa).then_some(table)
}

/// 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load256<T: Copy, const N: usize>(from: &[T; N]) -> __m256i {
    const { assert!(N * size_of::<T>() == 32) };
    // SAFETY: 32 bytes are readable there, and the load asks for no alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

/// 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load128<T: Copy, const N: usize>(from: &[T; N]) -> __m128i {
    const { assert!(N * size_of::<T>() == 16) };
    // SAFETY: 16 bytes are readable there, and the load asks for no alignment.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// Writes 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store256<T: Copy, const N: usize>(to: &mut [T; N], v: __m256i) {
    const { assert!(N * size_of::<T>() == 32) };
    // SAFETY: 32 bytes are writable there, and the store asks for no alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), v) }
}

/// Eight bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load64<T: Copy, const N: usize>(from: &[T; N]) -> __m128i {
    const { assert!(N * size_of::<T>() == 8) };
    // SAFETY: 8 bytes are readable there, and the load asks for no alignment.
    unsafe { _mm_loadl_epi64(from.as_ptr().cast()) }
}

/// The f16 at byte `AT` of each of eight blocks. Put together in whole registers: inserted into a vector one by one they would wait
/// for whatever that register held before.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn heads<const BYTES: usize, const AT: usize>(blocks: &[[u8; BYTES]; 8]) -> __m256 {
    let four = |at: usize| {
        let one = |i: usize| u64::from(u16::from_le_bytes([blocks[at + i][AT], blocks[at + i][AT + 1]])) << (16 * i);
        (one(0) | one(1) | one(2) | one(3)) as i64
    };
    _mm256_cvtph_ps(_mm_set_epi64x(four(4), four(0)))
}

/// The powers of two that are scales of eight MXFP4 blocks whose codes are twice the value: `2^(e - 128)`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn powers<B: AsRef<[u8]>>(blocks: &[B; 8]) -> __m256 {
    let mut bytes = 0;
    for (i, block) in blocks.iter().enumerate() {
        bytes |= u64::from(block.as_ref()[0]) << (8 * i);
    }
    let (e, one) = (_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64)), _mm256_set1_epi32(1));
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, one));
    let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
    _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, _mm256_cmpgt_epi32(e, one)))
}

/// Prefetches the lines `ahead` bytes behind those of `row`: see [`prefetch_weights`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn prefetch(row: &[u8], ahead: isize) {
    if ahead != 0 {
        prefetch_weights([row.as_ptr().cast::<i8>().wrapping_offset(ahead)], row.len().div_ceil(64));
    }
}

/// Eight floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_ps(from: &[f32; 8]) -> __m256 {
    _mm256_castsi256_ps(load256(from))
}

/// Writes eight floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_ps(to: &mut [f32; 8], v: __m256) {
    // SAFETY: 32 bytes are writable there, and the store asks for no alignment.
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

/// Enters a function compiled with the features.
macro_rules! with_features {
    ($($call:tt)*) => {
        // SAFETY: an `Avx2` is only reachable through `table`, which checked that this machine has the features.
        unsafe { $($call)* }
    };
}

impl Kernels for Avx2 {
    fn panel_rows(&self) -> usize {
        ROWS
    }

    fn float_tokens(&self) -> usize {
        FLOAT_TOKENS
    }

    fn quantise(&self, x: &[f32], row: QuantisedInputMut<'_>) {
        with_features!(quantise(x, row))
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
            Encoding::Blocks(ty) => decoded::dot(Isa::Avx2, self, ty, weights, x, ahead, out),
            Encoding::Float(of) => {
                for (row, out) in portable::rows(ty, weights, x.len(), out) {
                    [*out] = with_features!(dot::floats(of, row, [x], ahead));
                }
            }
        }
    }

    fn dot_floats_tokens(&self, ty: Encoding, row: &[u8], x: [&[f32]; DOT_TOKENS], ahead: isize) -> [f32; DOT_TOKENS] {
        check_row(ty, row, &x);
        match ty {
            Encoding::Blocks(ty) => decoded::dot_tokens(Isa::Avx2, self, ty, row, x, ahead),
            Encoding::Float(ty) => with_features!(dot::floats(ty, row, x, ahead)),
        }
    }

    fn unpack(&self, ty: BlockType, src: &[u8], to: UnpackedMut<'_>) {
        with_features!(blocks::run(ty, BlockWork::Unpack { src, to }))
    }

    fn decode_panel(&self, ty: BlockType, rows: &[&[u8]; PANEL_ROWS], ahead: usize, panel: &mut RowPanel) {
        with_features!(panel_decode::decode(self, ty, rows, ahead, panel))
    }

    fn panel_products(&self, panel: &RowPanel, x: TokenTile<'_>, sums: &mut [PanelSums]) {
        match self.vnni {
            true => with_features!(panel::products_vnni(panel, x, sums)),
            false => with_features!(panel::products(panel, x, sums)),
        }
    }

    fn interleave_floats(&self, rows: &[f32], out: &mut [f32]) {
        with_features!(interleave_floats(rows, out))
    }

    fn widen(&self, ty: Encoding, src: &[u8], dst: &mut [f32]) {
        match ty {
            Encoding::Blocks(ty) => decoded::widen(Isa::Avx2, self, ty, src, dst),
            Encoding::Float(ty) => with_features!(widen(ty, src, dst)),
        }
    }

    fn tile_floats(&self, panel: &[f32], x: &[f32], acc: &mut [f32]) {
        with_features!(tile::floats(panel, x, acc))
    }

    fn add_inputs(&self, inputs: &InputBlock<'_>, next: Option<&InputBlock<'_>>, acc: &mut [f32]) {
        with_features!(inputs::add(inputs, next, acc))
    }

    fn add_byte_inputs(&self, inputs: &InputBlock<'_>, next: Option<&InputBlock<'_>>, acc: &mut [f32]) {
        with_features!(inputs::add_bytes(inputs, next, acc))
    }

    fn add_inputs_with_minima(
        &self,
        inputs: &InputBlock<'_>,
        minima: &InputMinima<'_>,
        next: Option<&InputBlock<'_>>,
        acc: &mut [f32],
    ) {
        with_features!(inputs::add_with_minima(inputs, minima, next, acc))
    }

    fn axpy(&self, ty: Encoding, rows: &[ScaledRow<'_>], acc: &mut [f32]) {
        with_features!(axpy::rows(ty, rows, acc))
    }
}

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
