//! Q6_K, and Q3_K widened to it: codes chunk by chunk, low nibbles apart from high bit pairs.

use super::nibbles;
use crate::format::blocks::unpack_q3_k_scales;

/// Writes a super-block: 256 codes of six bits (32 stands for zero), sixteen scales, `d`.
fn store(codes: &[u8; 256], scales: [u8; 16], d: [u8; 2], main: &mut [u8; 128], aux: &mut [u8; 84]) {
    let chunks = codes.as_chunks::<32>().0;
    for ((codes, main), pairs) in
        chunks.iter().zip(main.as_chunks_mut().0).zip(aux[..64].as_chunks_mut::<8>().0.iter_mut())
    {
        *main = nibbles(codes);
        let pair = |half: usize| (0..16).fold(0, |word, j| word | u32::from(codes[16 * half + j] >> 4) << (2 * j));
        pairs[..4].copy_from_slice(&pair(0).to_le_bytes());
        pairs[4..].copy_from_slice(&pair(1).to_le_bytes());
    }
    aux[64..80].copy_from_slice(&scales);
    aux[80..].copy_from_slice(&[d[0], d[1], 0, 0]);
}

pub(super) fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) {
    let out = main.as_chunks_mut().0.iter_mut().zip(aux.as_chunks_mut().0);
    for (block, (main, aux)) in row.as_chunks::<210>().0.iter().zip(out) {
        let mut codes = [0; 256];
        for (half, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
            let (low, high) = (&block[64 * half..][..64], &block[128 + 32 * half..][..32]);
            for (j, code) in codes.iter_mut().enumerate() {
                *code = low[j % 64] >> (j / 64 * 4) & 15 | (high[j % 32] >> (j / 32 * 2) & 3) << 4;
            }
        }
        let mut scales = [0; 16];
        scales.copy_from_slice(&block[192..208]);
        store(&codes, scales, [block[208], block[209]], main, aux);
    }
}

/// Three-bit codes less 4, scales less 32.
pub(super) fn of_q3_k(row: &[u8], main: &mut [u8], aux: &mut [u8]) {
    let out = main.as_chunks_mut().0.iter_mut().zip(aux.as_chunks_mut().0);
    for (block, (main, aux)) in row.as_chunks::<110>().0.iter().zip(out) {
        let (high, low) = (&block[..32], &block[32..96]);
        let codes = std::array::from_fn(|j| {
            let low = low[j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3;
            (low | (high[j % 32] >> (j / 32) & 1) << 2) + 28
        });
        let mut packed = [0; 12];
        packed.copy_from_slice(&block[96..108]);
        let scales = unpack_q3_k_scales(&packed).map(|scale| scale as u8);
        store(&codes, scales, [block[108], block[109]], main, aux);
    }
}
