//! Decodes eight rows into a [`RowPanel`]. Rows of the most common types are decoded side by side,
//! in registers with four columns of each row. Rows of other types are decoded one by one.

use std::arch::x86_64::*;

use super::{blocks, codes::head, dot::scales_k, load64, load128, powers, store_ps, store256, sums::load4};
use crate::simd::{
    BlockWork, PANEL_ROWS, RowPanel,
    panel::{CHUNK, DecodedRow},
    part, prefetch_behind,
};
use thermocline_formats::quant::{BlockType, iq4_nl, iq4_xs, mxfp4};

/// The input of [`decode`].
#[derive(Clone, Copy)]
struct Line<'a> {
    ty: BlockType,
    rows: &'a [&'a [u8]; PANEL_ROWS],
    ahead: usize,
}

/// One block of each row, at the same position.
type RowBlocks<'a, const BYTES: usize> = [&'a [u8; BYTES]; PANEL_ROWS];

/// The first `n` blocks of each row.
#[inline(always)]
fn blocks_of<'a, const BYTES: usize>(rows: &[&'a [u8]; PANEL_ROWS], n: usize) -> [&'a [[u8; BYTES]]; PANEL_ROWS] {
    let mut blocks = [&[][..]; PANEL_ROWS];
    for row in 0..PANEL_ROWS {
        blocks[row] = &rows[row].as_chunks().0[..n];
    }
    blocks
}

/// Block `at` of each row.
#[inline(always)]
fn blocks_at<'a, const BYTES: usize>(rows: &[&'a [[u8; BYTES]]; PANEL_ROWS], at: usize) -> RowBlocks<'a, BYTES> {
    let mut blocks = [&[0; BYTES]; PANEL_ROWS];
    for row in 0..PANEL_ROWS {
        blocks[row] = &rows[row][at];
    }
    blocks
}

/// Codes of 32 columns of each row, with four columns in each register.
type ChunkQuads = [__m256i; CHUNK / 4];

/// Decodes a line of `rows`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn decode(ty: BlockType, rows: &[&[u8]; PANEL_ROWS], ahead: usize, panel: &mut RowPanel) {
    let line = Line { ty, rows, ahead };
    match ty {
        BlockType::Q4_0 => {
            blocks32::<18>(line, panel, |blocks| nibbles::<_, 2>(blocks), |blocks| heads::<_, 0>(blocks))
        }
        BlockType::Q4_1 => {
            blocks32::<20>(line, panel, |blocks| nibbles::<_, 4>(blocks), |blocks| heads::<_, 0>(blocks));
            minima32::<20>(line, panel, |blocks| heads::<_, 2>(blocks));
        }
        BlockType::Q8_0 => {
            let codes = |blocks: &RowBlocks<'_, 34>| words32(|row| part(blocks[row], 2));
            blocks32::<34>(line, panel, codes, |blocks| heads::<_, 0>(blocks));
        }
        BlockType::IQ4_NL => {
            let values = |nibbles| look_up(&iq4_nl::VALUES, 0, nibbles);
            blocks32::<18>(line, panel, |blocks| values(nibbles::<_, 2>(blocks)), |blocks| heads::<_, 0>(blocks));
        }
        BlockType::MXFP4 => {
            let values = |nibbles| look_up(&mxfp4::VALUES, 12, nibbles);
            blocks32::<17>(line, panel, |blocks| values(nibbles::<_, 1>(blocks)), |blocks| powers(blocks));
        }
        BlockType::IQ4_XS => blocks256::<136, 8>(
            line,
            panel,
            |block, scales, _| *scales = iq4_xs::unpack_scales(block),
            |blocks, codes| {
                for (at, codes) in codes.iter_mut().enumerate() {
                    let nibbles = split(words16(|row| &blocks[row][8..].as_chunks::<16>().0[at]));
                    store(codes, look_up(&iq4_nl::VALUES, 0, nibbles));
                }
            },
        ),
        BlockType::Q4_K => blocks256::<144, 8>(
            line,
            panel,
            |block, scales, mins| store_scales_k(block, scales, mins),
            |blocks, codes| q4_k(blocks, codes),
        ),
        BlockType::Q5_K => blocks256::<176, 8>(
            line,
            panel,
            |block, scales, mins| store_scales_k(block, scales, mins),
            |blocks, codes| q5_k(blocks, codes),
        ),
        BlockType::Q6_K => blocks256::<210, 16>(
            line,
            panel,
            |block, scales, _| scales_q6_k(block, scales),
            |blocks, codes| q6_k(blocks, codes),
        ),
        _ => panel.decode(
            |src, to| blocks::run(ty, BlockWork::Unpack { src, to }),
            ty,
            rows,
            ahead,
            |rows, at, offset, codes| interleave(rows, at, offset, codes),
        ),
    }
}

/// Writes chunk `at` of decoded rows by quads, with `offset` added.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn interleave(rows: &[DecodedRow; PANEL_ROWS], at: usize, offset: i8, codes: &mut [[i8; CHUNK]; CHUNK / 4]) {
    let offset = _mm256_set1_epi8(offset);
    let mut quads = words32(|row| &rows[row].codes.as_chunks::<CHUNK>().0[at]);
    for quad in &mut quads {
        *quad = _mm256_add_epi8(*quad, offset);
    }
    store(codes, quads);
}

/// Decodes blocks of 32. `codes` and `scales` decode one block of each row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn blocks32<const BYTES: usize>(
    line: Line<'_>,
    panel: &mut RowPanel,
    codes: impl Fn(&RowBlocks<'_, BYTES>) -> ChunkQuads,
    scales: impl Fn(&RowBlocks<'_, BYTES>) -> __m256,
) {
    panel.begin(line.ty, line.rows, BYTES, 32);
    // The processor's own prefetcher is as fast for these types.
    let rows = blocks_of(line.rows, panel.chunks);
    for at in 0..panel.chunks {
        let blocks = blocks_at(&rows, at);
        store(&mut panel.codes[at], codes(&blocks));
        store_ps(&mut panel.scales[at], scales(&blocks));
    }
}

/// Decodes the minima of blocks of 32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn minima32<const BYTES: usize>(
    line: Line<'_>,
    panel: &mut RowPanel,
    minima: impl Fn(&RowBlocks<'_, BYTES>) -> __m256,
) {
    let rows = blocks_of(line.rows, panel.chunks);
    for at in 0..panel.chunks {
        store_ps(&mut panel.mins[at], minima(&blocks_at(&rows, at)));
    }
}

/// Decodes blocks of 256 with `GROUPS` scales. `scales` decodes the scales and minima of one block,
/// `codes` the codes of one block of each row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn blocks256<const BYTES: usize, const GROUPS: usize>(
    line: Line<'_>,
    panel: &mut RowPanel,
    scales: impl Fn(&[u8; BYTES], &mut [f32; GROUPS], &mut [f32; GROUPS]),
    codes: impl Fn(&RowBlocks<'_, BYTES>, &mut [[[i8; CHUNK]; CHUNK / 4]; 8]),
) {
    panel.begin(line.ty, line.rows, BYTES, 256);
    let mut factors = [[[0.0; GROUPS]; PANEL_ROWS]; 2];
    let rows = blocks_of(line.rows, panel.chunks / 8);
    for at in 0..panel.chunks / 8 {
        let blocks = blocks_at(&rows, at);
        prefetch_behind(blocks.map(<[u8; BYTES]>::as_slice), line.ahead);
        let [of_codes, minima] = &mut factors;
        for row in 0..PANEL_ROWS {
            scales(blocks[row], &mut of_codes[row], &mut minima[row]);
        }
        by_group(of_codes, &mut panel.scales[at * GROUPS..][..GROUPS]);
        if panel.grouping.minima {
            by_group(minima, &mut panel.mins[at * GROUPS..][..GROUPS]);
        }
        if let Some(to) = panel.codes[8 * at..].first_chunk_mut() {
            codes(&blocks, to);
        }
    }
}

/// Writes the scales and minima of a block of Q4_K or Q5_K.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_scales_k(block: &[u8], scales: &mut [f32; 8], mins: &mut [f32; 8]) {
    let (of_codes, minima) = scales_k(part(block, 0));
    store_ps(scales, of_codes);
    store_ps(mins, minima);
}

/// Writes the scales of a block of Q6_K.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales_q6_k(block: &[u8; 210], scales: &mut [f32; 16]) {
    let d = _mm256_set1_ps(head(part(block, 208)));
    for (at, scales) in scales.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let bytes = _mm256_cvtepi8_epi32(load64::<u8, 8>(part(block, 192 + 8 * at)));
        store_ps(scales, _mm256_mul_ps(_mm256_cvtepi32_ps(bytes), d));
    }
}

/// Transposes the factors of rows into groups.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn by_group<const GROUPS: usize>(rows: &[[f32; GROUPS]; PANEL_ROWS], to: &mut [[f32; PANEL_ROWS]]) {
    for (first, to) in to.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let four = |row: usize| load4(part(&rows[row], 4 * first));
        let mut both = [_mm256_setzero_si256(); 4];
        for row in 0..4 {
            let pair = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(four(row)), four(4 + row));
            both[row] = _mm256_castps_si256(pair);
        }
        let groups = transpose(both);
        for at in 0..4 {
            store_ps(&mut to[at], _mm256_castsi256_ps(groups[at]));
        }
    }
}

/// Transposes the words of four registers, within each half.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let [first, second] = [_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d)];
    let [third, fourth] = [_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d)];
    [
        _mm256_unpacklo_epi64(first, second),
        _mm256_unpackhi_epi64(first, second),
        _mm256_unpacklo_epi64(third, fourth),
        _mm256_unpackhi_epi64(third, fourth),
    ]
}

/// Sixteen bytes of each row, transposed by words.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn words16<'a, T: Copy + 'a>(row: impl Fn(usize) -> &'a [T; 16]) -> [__m256i; 4] {
    let mut both = [_mm256_setzero_si256(); 4];
    for at in 0..4 {
        both[at] = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(load128(row(at))), load128(row(4 + at)));
    }
    transpose(both)
}

/// 32 bytes of each row, transposed by words.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn words32<'a, T: Copy + 'a>(row: impl Fn(usize) -> &'a [T; 32]) -> ChunkQuads {
    both(words16(|at| part(row(at), 0)), words16(|at| part(row(at), 16)))
}

/// Joins the quads of two times 16 columns to quads of 32 columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn both([a, b, c, d]: [__m256i; 4], [e, f, g, h]: [__m256i; 4]) -> ChunkQuads {
    [a, b, c, d, e, f, g, h]
}

/// The low nibbles of words, then the high nibbles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn split(words: [__m256i; 4]) -> ChunkQuads {
    let mask = _mm256_set1_epi8(15);
    let mut quads = both(words, words);
    for at in 0..4 {
        quads[at] = _mm256_and_si256(words[at], mask);
        quads[4 + at] = _mm256_and_si256(_mm256_srli_epi16::<4>(words[at]), mask);
    }
    quads
}

/// Nibbles of blocks of 32, from byte `AT` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles<const BYTES: usize, const AT: usize>(blocks: &RowBlocks<'_, BYTES>) -> ChunkQuads {
    split(words16(|row| part(blocks[row], AT)))
}

/// Looks up the values of nibbles, with `offset` added.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn look_up(values: &[i8; 16], offset: i8, mut nibbles: ChunkQuads) -> ChunkQuads {
    let values = _mm256_broadcastsi128_si256(_mm_add_epi8(load128(values), _mm_set1_epi8(offset)));
    for quad in &mut nibbles {
        *quad = _mm256_shuffle_epi8(values, *quad);
    }
    nibbles
}

/// The f16 at byte `AT` of each block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn heads<const BYTES: usize, const AT: usize>(blocks: &RowBlocks<'_, BYTES>) -> __m256 {
    let one = |row: usize| i32::from(u16::from_le_bytes(*part(blocks[row], AT)));
    let four = |at: usize| {
        let first = _mm_cvtsi32_si128(one(at));
        let two = _mm_insert_epi16::<1>(first, one(at + 1));
        _mm_insert_epi16::<3>(_mm_insert_epi16::<2>(two, one(at + 2)), one(at + 3))
    };
    _mm256_cvtph_ps(_mm_unpacklo_epi64(four(0), four(4)))
}

/// Writes the codes of a chunk.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store(codes: &mut [[i8; CHUNK]; CHUNK / 4], quads: ChunkQuads) {
    for at in 0..CHUNK / 4 {
        store256(&mut codes[at], quads[at]);
    }
}

/// Decodes the codes of Q4_K.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q4_k(blocks: &RowBlocks<'_, 144>, codes: &mut [[[i8; CHUNK]; CHUNK / 4]; 8]) {
    let mask = _mm256_set1_epi8(15);
    for (i, codes) in codes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let words = words32(|row| &blocks[row][16..].as_chunks::<32>().0[i]);
        for quad in 0..CHUNK / 4 {
            store256(&mut codes[0][quad], _mm256_and_si256(words[quad], mask));
            store256(&mut codes[1][quad], _mm256_and_si256(_mm256_srli_epi16::<4>(words[quad]), mask));
        }
    }
}

/// Decodes the codes of Q5_K: see [`codes::q5_k`](super::codes::q5_k).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q5_k(blocks: &RowBlocks<'_, 176>, codes: &mut [[[i8; CHUNK]; CHUNK / 4]; 8]) {
    let (mask, fifth) = (_mm256_set1_epi8(15), _mm256_set1_epi8(16));
    let bits = words32(|row| part(blocks[row], 16));
    for (i, codes) in codes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let words = words32(|row| &blocks[row][48..].as_chunks::<32>().0[i]);
        let shift = _mm_cvtsi32_si128(2 * i as i32);
        for quad in 0..CHUNK / 4 {
            let bits = _mm256_srl_epi16(bits[quad], shift);
            let low = _mm256_and_si256(words[quad], mask);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(words[quad]), mask);
            let of_low = _mm256_and_si256(_mm256_slli_epi16::<4>(bits), fifth);
            let of_high = _mm256_and_si256(_mm256_slli_epi16::<3>(bits), fifth);
            store256(&mut codes[0][quad], _mm256_or_si256(low, of_low));
            store256(&mut codes[1][quad], _mm256_or_si256(high, of_high));
        }
    }
}

/// Decodes the codes of Q6_K, with 32 added: see [`codes::q6_k`](super::codes::q6_k).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn q6_k(blocks: &RowBlocks<'_, 210>, codes: &mut [[[i8; CHUNK]; CHUNK / 4]; 8]) {
    let (mask, upper) = (_mm256_set1_epi8(15), _mm256_set1_epi8(48));
    for (half, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let a = words32(|row| &blocks[row].as_chunks::<32>().0[2 * half]);
        let b = words32(|row| &blocks[row].as_chunks::<32>().0[2 * half + 1]);
        let bits = words32(|row| &blocks[row][128..].as_chunks::<32>().0[half]);
        for quad in 0..CHUNK / 4 {
            let bits = bits[quad];
            let upper2 =
                [_mm256_slli_epi16::<4>(bits), _mm256_slli_epi16::<2>(bits), bits, _mm256_srli_epi16::<2>(bits)];
            let high = [_mm256_srli_epi16::<4>(a[quad]), _mm256_srli_epi16::<4>(b[quad])];
            let lower4 = [a[quad], b[quad], high[0], high[1]];
            for at in 0..4 {
                let low = _mm256_and_si256(lower4[at], mask);
                store256(&mut codes[at][quad], _mm256_or_si256(low, _mm256_and_si256(upper2[at], upper)));
            }
        }
    }
}
