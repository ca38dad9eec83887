//! Codes of blocks in registers, 64 at a time. Rounding of activations to blocks. Interleaving of
//! panels.

use std::arch::x86_64::*;

use super::{ROWS, load_ps, load128, load256, load512, store128, store512};
use crate::simd::{QuantisedInputMut, avx2, part, part_mut, portable};
use thermocline_formats::quant::FloatType;

/// Codes of two Q4_0 blocks, with 8 added.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn q4_0(a: &[u8; 18], b: &[u8; 18]) -> __m512i {
    nibbles(part(a, 2), part(b, 2))
}

/// The low nibbles of `a`, its high nibbles, the low nibbles of `b`, its high nibbles.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn nibbles(a: &[u8; 16], b: &[u8; 16]) -> __m512i {
    let shifts = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
    _mm512_and_si512(_mm512_srlv_epi64(twice(a, b), shifts), _mm512_set1_epi8(15))
}

/// Loads `a` twice, then `b` twice.
///
/// Uses two loads. Compilers turn intrinsics for this into four loads of eight bytes and five
/// shuffles, which take longer than all other work on a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn twice(a: &[u8; 16], b: &[u8; 16]) -> __m512i {
    let both;
    // SAFETY: the features are enabled, and 16 bytes are readable at either address. The loads need
    // no alignment.
    unsafe {
        std::arch::asm!(
            "vbroadcasti32x4 {both}, xmmword ptr [{a}]",
            "vbroadcasti32x4 {both}{{{upper}}}, xmmword ptr [{b}]",
            a = in(reg) a.as_ptr(),
            b = in(reg) b.as_ptr(),
            upper = in(kreg) 0xff00_u16,
            both = out(zmm_reg) both,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    both
}

/// Looks up the entries of `values` for `codes`, with `offset` added to each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn look_up(values: &[i8; 16], offset: u8, codes: __m512i) -> __m512i {
    let table = _mm_add_epi8(load128(values), _mm_set1_epi8(offset as i8));
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes)
}

/// Codes of two Q8_0 blocks, signed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn q8_0(a: &[u8; 34], b: &[u8; 34]) -> __m512i {
    let (a, b) = (load256::<u8, 32>(part(a, 2)), load256::<u8, 32>(part(b, 2)));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b)
}

/// Codes of sub-blocks `2i` and `2i + 1` of a Q4_K block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn q4_k(block: &[u8; 144], i: usize) -> __m512i {
    low_and_high(part(block, 16 + 32 * i))
}

/// The eight scales, then the eight minima, of a Q4_K or Q5_K block, from its first 16 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn k_factors(head: &[u8; 16]) -> __m512 {
    // The words of the head are d and dmin, a, b, c. The low six bits of the bytes of a and b are
    // factors 0 to 3. The nibbles of c are the low bits of factors 4 to 7. The remaining bits of a
    // and b are their high bits.
    let head = load128(head);
    let low = _mm_srlv_epi32(_mm_shuffle_epi32::<0b11_10_11_01>(head), _mm_set_epi32(4, 0, 0, 0));
    let low = _mm_and_si128(low, _mm_set_epi32(0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f));
    let high = _mm_srli_epi32::<2>(_mm_shuffle_epi32::<0b10_10_01_01>(head));
    let packed = _mm_or_si128(low, _mm_and_si128(high, _mm_set_epi32(0x3030_3030, 0, 0x3030_3030, 0)));
    let spread = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    let d = _mm512_permutexvar_ps(spread, _mm512_castps128_ps512(_mm_cvtph_ps(head)));
    _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(packed)), d)
}

/// The low nibbles of 32 bytes, then the high nibbles.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn low_and_high(bytes: &[u8; 32]) -> __m512i {
    let shifts = _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0);
    let both = _mm512_broadcast_i64x4(load256(bytes));
    _mm512_and_si512(_mm512_srlv_epi64(both, shifts), _mm512_set1_epi8(15))
}

/// Codes of sub-blocks `2i` and `2i + 1` of a Q5_K block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn q5_k(block: &[u8; 176], i: usize) -> __m512i {
    // Rotating right by j - 4 moves bit j of every byte to bit 4.
    let rotations = _mm512_set_epi64(61, 61, 61, 61, 60, 60, 60, 60);
    let rotations = _mm512_add_epi64(rotations, _mm512_set1_epi64(2 * i as i64));
    let high = _mm512_rorv_epi64(_mm512_broadcast_i64x4(load256::<u8, 32>(part(block, 16))), rotations);
    _mm512_or_si512(low_and_high(part(block, 48 + 32 * i)), _mm512_and_si512(high, _mm512_set1_epi8(16)))
}

/// Codes of sub-blocks `4i` to `4i + 3` of a Q6_K block, with 32 added.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn q6_k(block: &[u8; 210], i: usize) -> __m512i {
    // Rotating right by s - 4 moves bits s and s + 1 of every byte to bits 4 and 5.
    let rotations = _mm512_set_epi64(62, 62, 62, 62, 60, 60, 60, 60);
    let rotations = _mm512_add_epi64(rotations, _mm512_set1_epi64(4 * (i % 2) as i64));
    let low = load512::<u8, 64>(part(block, 64 * (i / 2)));
    let low = if i.is_multiple_of(2) { low } else { _mm512_srli_epi16::<4>(low) };
    let high = _mm512_broadcast_i64x4(load256::<u8, 32>(part(block, 128 + 32 * (i / 2))));
    let high = _mm512_and_si512(_mm512_rorv_epi64(high, rotations), _mm512_set1_epi8(0x30));
    _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi8(15)), high)
}

/// The sixteen scales of a Q6_K block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn q6_k_scales(block: &[u8; 210]) -> __m512 {
    let d = _mm512_cvtph_ps(_mm256_set1_epi16(i16::from_le_bytes([block[208], block[209]])));
    _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128::<u8, 16>(part(block, 192)))), d)
}

/// The f16 scales at the beginning of sixteen blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn heads<const BYTES: usize>(blocks: &[[u8; BYTES]; 16]) -> __m512 {
    let eight = |at: usize| eight_heads::<BYTES>(part(blocks, at));
    _mm512_insertf32x8::<1>(_mm512_castps256_ps512(eight(0)), eight(8))
}

/// The f16 scales at the beginning of eight blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn eight_heads<const BYTES: usize>(blocks: &[[u8; BYTES]; 8]) -> __m256 {
    if BYTES != 18 {
        return avx2::heads::<BYTES, 0>(blocks);
    }
    // Four blocks begin in the 64 bytes from the first block on. `words` has the indices of their
    // scales in these 64 bytes, and of the next four scales in another 64 bytes.
    let words = _mm512_castsi128_si512(_mm_set_epi16(59, 50, 41, 32, 27, 18, 9, 0));
    let line = |block: usize| load512::<u8, 64>(part(blocks.as_flattened(), block * BYTES));
    _mm256_cvtph_ps(_mm512_castsi512_si128(_mm512_permutex2var_epi16(line(0), words, line(4))))
}

/// See [`Kernels::quantise`](crate::simd::Kernels::quantise).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn quantise(x: &[f32], mut row: QuantisedInputMut<'_>) {
    let (blocks, rest) = x.as_chunks::<32>();
    assert!(rest.is_empty() && row.codes.len() == x.len(), "{} activations", x.len());
    let ones = _mm256_set1_epi8(1);
    for (at, x) in blocks.iter().enumerate() {
        let codes = &mut row.codes.as_chunks_mut::<32>().0[at];
        let (a, b) = (load_ps(part(x, 0)), load_ps(part(x, 16)));
        let largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
        let inverse = _mm512_set1_ps(if largest > 1e-30 { 127.0 / largest } else { 0.0 });
        let a = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(a, inverse)));
        let b = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(b, inverse)));
        store128(part_mut::<i8, 16>(codes, 0), a);
        store128(part_mut::<i8, 16>(codes, 16), b);
        let sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), ones, _mm256_set_m128i(b, a));
        let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b1011_0001>(sums));
        let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b0100_1110>(sums));
        row.set(at, largest / 127.0, [_mm256_extract_epi32::<0>(sums), _mm256_extract_epi32::<4>(sums)]);
    }
}

/// Transposes a square of 16 x 16 32-bit words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
    // Transposes words within the 128-bit lanes, then pairs of words, then twice the lanes
    // themselves.
    let mut pairs = rows;
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    let mut fours = pairs;
    for i in 0..4 {
        for k in 0..2 {
            let (a, b) = (pairs[4 * i + k], pairs[4 * i + k + 2]);
            fours[4 * i + 2 * k] = _mm512_unpacklo_epi64(a, b);
            fours[4 * i + 2 * k + 1] = _mm512_unpackhi_epi64(a, b);
        }
    }
    let mut transposed = fours;
    for k in 0..4 {
        let [a, b, c, d] = [fours[k], fours[k + 4], fours[k + 8], fours[k + 12]];
        let (ab_even, ab_odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (cd_even, cd_odd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        transposed[k] = _mm512_shuffle_i32x4::<0x88>(ab_even, cd_even);
        transposed[k + 4] = _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd);
        transposed[k + 8] = _mm512_shuffle_i32x4::<0xdd>(ab_even, cd_even);
        transposed[k + 12] = _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd);
    }
    transposed
}

/// Reorders `[ROWS, n]` to `[n / WORD, ROWS, WORD]`. `WORD` elements are 32 bits, and `LINE`
/// elements are 512 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn interleave<T: Copy, const WORD: usize, const LINE: usize>(rows: &[T], out: &mut [T]) {
    let n = rows.len() / ROWS;
    assert!(rows.len() == n * ROWS && out.len() == rows.len() && n.is_multiple_of(WORD));
    let whole = n / LINE * LINE;
    for side in 0..ROWS / 16 {
        for at in (0..whole).step_by(LINE) {
            let square = std::array::from_fn(|r| load512::<T, LINE>(part(rows, (16 * side + r) * n + at)));
            for (i, line) in transpose(square).into_iter().enumerate() {
                store512::<T, LINE>(part_mut(out, ((at / WORD + i) * ROWS + 16 * side) * WORD), line);
            }
        }
    }
    for row in 0..ROWS {
        for at in (whole..n).step_by(WORD) {
            out[(at / WORD * ROWS + row) * WORD..][..WORD].copy_from_slice(&rows[row * n + at..][..WORD]);
        }
    }
}

/// See [`CodeTileKernels::bias`](crate::simd::CodeTileKernels::bias).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn bias(codes: &[i8], len: usize, bias: &mut [i32]) {
    let all = _mm512_set1_epi8(-128);
    let groups = codes.chunks_exact(len * ROWS).zip(bias.chunks_exact_mut(ROWS));
    for (codes, bias) in groups {
        let mut sums = [_mm512_setzero_si512(); ROWS / 16];
        for quads in codes.as_chunks::<64>().0.as_chunks::<{ ROWS / 16 }>().0 {
            for (sum, quads) in sums.iter_mut().zip(quads) {
                *sum = _mm512_dpbusd_epi32(*sum, all, load512(quads));
            }
        }
        for (bias, sum) in bias.as_chunks_mut::<16>().0.iter_mut().zip(sums) {
            store512(bias, _mm512_sub_epi32(_mm512_setzero_si512(), sum));
        }
    }
}

/// See [`Kernels::widen`](crate::simd::Kernels::widen).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn widen(ty: FloatType, src: &[u8], dst: &mut [f32]) {
    if ty != FloatType::F16 {
        return portable::widen(ty, src, dst);
    }
    let ((lines, rest), (to, to_rest)) = (src.as_chunks::<32>(), dst.as_chunks_mut::<16>());
    for (line, to) in lines.iter().zip(to) {
        store512(to, _mm512_castps_si512(_mm512_cvtph_ps(load256(line))));
    }
    portable::widen(ty, rest, to_rest);
}
