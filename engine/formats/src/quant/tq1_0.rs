//! TQ1_0: 256 weights of -1, 0 or 1 in 54 bytes. `x = d * (digit - 1)`. A byte has five ternary
//! digits as a fraction of 256. The first digit is the carry of `3 byte` into the ninth bit and up.
//! The next digit is the same for three times the byte, modulo 256.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | digit `n` of byte `l` is element `32 n + l` |
//! | 32..48 | digit `n` of byte `32 + l` is element `160 + 16 n + l` |
//! | 48..52 | digits 0 to 3: digit `n` of byte `48 + l` is element `240 + 4 n + l` |
//! | 52..54 | `d`, F16 |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk digits of columns
//! 0-19, a word. `aux` has per block 5 words: digits of columns 20-31 of chunks; d.

use super::{
    BlockFormat, DeviceFormat, Grouping, Result, TensorType,
    bits::f16_at,
    bits::put_f16,
    block_format::{quantise_blocks, unpack_256},
    device, tq2_0,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::TQ1_0,
    len: 256,
    bytes: 54,
    grouping: Grouping { len: 32, minima: false, lowest: -1, highest: 1 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: Some(|src, dst| quantise_blocks(src, dst, quantise)),
    device: DeviceFormat {
        main_words: 1,
        aux_bytes: 22,
        wgsl: include_str!("tq1_0.wgsl"),
        repack,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 52, random(-1.0, 1.0)),
};

/// Powers of three that move a digit to the front of its byte.
pub const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// Byte and digit of an element.
const fn place(element: usize) -> (usize, usize) {
    match element {
        0..160 => (element % 32, element / 32),
        160..240 => (32 + element % 16, (element - 160) / 16),
        _ => (48 + element % 4, (element - 240) / 4),
    }
}

#[inline(always)]
fn unpack(block: &[u8; 54], codes: &mut [i8; 256], scales: &mut [f32; 8], _: &mut [f32; 8]) {
    *scales = [f16_at(block, 52); 8];
    for (element, code) in codes.iter_mut().enumerate() {
        let (byte, digit) = place(element);
        let front = block[byte].wrapping_mul(POWERS[digit]);
        *code = ((u16::from(front) * 3) >> 8) as i8 - 1;
    }
}

fn quantise(x: &[f32; 256]) -> [u8; 54] {
    let (d, digits) = tq2_0::ternary(x);
    let mut numbers = [[0; 5]; 52];
    for (element, digit) in digits.iter().enumerate() {
        let (byte, at) = place(element);
        numbers[byte][at] = *digit;
    }
    let mut block = [0; 54];
    block.iter_mut().zip(numbers).for_each(|(byte, digits)| *byte = fraction(digits));
    block[52..].copy_from_slice(&d);
    block
}

/// Packs five digits into a byte: a number below 243, as a fraction of 256, rounded up.
fn fraction(digits: [u8; 5]) -> u8 {
    let number = digits.iter().fold(0u16, |number, digit| 3 * number + u16::from(*digit));
    (number * 256).div_ceil(243) as u8
}

fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    device::split_blocks::<54, 32, 20>(row, main, aux, |block, main, aux| {
        let mut codes = [0; 256];
        unpack(block, &mut codes, &mut [0.0; 8], &mut [0.0; 8]);
        // Four consecutive elements are one digit of the four bytes of a word. The first five
        // digits of a chunk of 32 form its word. The other three digits of each chunk follow each
        // other in the other stream.
        let digits = codes.map(|code| (code + 1) as u8);
        let mut rest = [[0; 4]; 25];
        for (chunk, (word, digits)) in
            main.as_chunks_mut::<4>().0.iter_mut().zip(digits.as_chunks::<32>().0).enumerate()
        {
            let (own, others) = digits.as_chunks::<4>().0.split_at(5);
            *word = std::array::from_fn(|l| fraction(std::array::from_fn(|n| own[n][l])));
            rest[3 * chunk..][..3].copy_from_slice(others);
        }
        for (word, fours) in aux.as_chunks_mut::<4>().0.iter_mut().zip(rest.as_chunks::<5>().0) {
            *word = std::array::from_fn(|l| fraction(std::array::from_fn(|n| fours[n][l])));
        }
        [block[52], block[53]]
    })
}
