//! Q4_K and Q5_K: 6-bit scales and minima sorted so that a kernel gets a chunk's with a few shifts, codes chunk by chunk.

use super::nibbles;
use crate::format::blocks::unpack_k_scales;

/// `d` and `dmin` as they are, then the scales' low nibbles, the minima's, and the high bit pairs of both.
fn header(block: &[u8]) -> [u8; 16] {
    let mut packed = [0; 12];
    packed.copy_from_slice(&block[4..16]);
    let (scales, mins) = unpack_k_scales(&packed);
    let mut words = [u32::from_le_bytes([block[0], block[1], block[2], block[3]]), 0, 0, 0];
    for (chunk, (scale, min)) in scales.into_iter().zip(mins).enumerate() {
        words[1] |= u32::from(scale & 15) << (4 * chunk);
        words[2] |= u32::from(min & 15) << (4 * chunk);
        words[3] |= u32::from(scale >> 4) << (2 * chunk) | u32::from(min >> 4) << (2 * chunk + 16);
    }
    let mut bytes = [0; 16];
    bytes.as_chunks_mut::<4>().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
    bytes
}

/// Nibbles of both types: each group of 64 elements has 32 bytes, byte `l` holds element `l` (low) and `l + 32` (high).
fn low_nibbles(codes: &[u8], main: &mut [u8; 128]) {
    for (chunk, out) in main.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let group = &codes[chunk / 2 * 32..][..32];
        *out = nibbles(&std::array::from_fn(|j| group[j] >> (chunk % 2 * 4) & 15));
    }
}

pub(super) fn repack_q4(row: &[u8], main: &mut [u8], aux: &mut [u8]) {
    let out = main.as_chunks_mut().0.iter_mut().zip(aux.as_chunks_mut::<16>().0);
    for (block, (main, aux)) in row.as_chunks::<144>().0.iter().zip(out) {
        *aux = header(block);
        low_nibbles(&block[16..], main);
    }
}

pub(super) fn repack_q5(row: &[u8], main: &mut [u8], aux: &mut [u8]) {
    let out = main.as_chunks_mut().0.iter_mut().zip(aux.as_chunks_mut::<48>().0);
    for (block, (main, aux)) in row.as_chunks::<176>().0.iter().zip(out) {
        let (head, fifths) = aux.split_at_mut(16);
        head.copy_from_slice(&header(block));
        // Bit `chunk` of byte `l` becomes bit `l` of word `chunk`.
        for (chunk, out) in fifths.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let bits = block[16..48].iter().enumerate();
            *out = bits.fold(0, |word, (l, byte)| word | u32::from(byte >> chunk & 1) << l).to_le_bytes();
        }
        low_nibbles(&block[48..], main);
    }
}
