//! Code books of the IQ types. A code is the index of a point. The four or eight coordinates of the
//! point are the values or magnitudes of the weights. The tables hold packed points in ascending
//! order, with the first coordinate in the lowest bits. Each coordinate is an index into its few
//! possible values: two bits for each of eight coordinates, or three bits for each of four.
//! If the coordinates are magnitudes, `signs` has their signs.

mod iq1;
mod iq2;
mod iq3;
mod signs;

pub use iq1::IQ1;
use iq1::IQ1_PACKED;
pub use iq2::{IQ2_S, IQ2_XS, IQ2_XXS};
pub use iq3::{IQ3_S, IQ3_XXS};
pub(super) use signs::store_signed;
pub use signs::{even_signs, signs_of};

/// Words of [`IQ1`] in device memory, two packed points per word. A coordinate's 2-bit code is its
/// value plus one.
pub(super) static IQ1_WORDS: [u32; 1024] = {
    let (mut words, mut at) = ([0; 1024], 0);
    while at < words.len() {
        words[at] = IQ1_PACKED[2 * at] as u32 | (IQ1_PACKED[2 * at + 1] as u32) << 16;
        at += 1;
    }
    words
};

pub(super) static IQ2_XXS_WORDS: [u32; 512] = words8(&IQ2_XXS);
pub(super) static IQ2_XS_WORDS: [u32; 1024] = words8(&IQ2_XS);
pub(super) static IQ2_S_WORDS: [u32; 2048] = words8(&IQ2_S);
pub(super) static IQ3_XXS_WORDS: [u32; 256] = words4(&IQ3_XXS);
pub(super) static IQ3_S_WORDS: [u32; 512] = words4(&IQ3_S);

/// Unpacks points of eight 2-bit coordinates.
const fn points8<const N: usize>(packed: &[u16; N], values: [i8; 4]) -> [[i8; 8]; N] {
    let (mut points, mut at) = ([[0; 8]; N], 0);
    while at < 8 * N {
        points[at / 8][at % 8] = values[(packed[at / 8] >> (2 * (at % 8)) & 3) as usize];
        at += 1;
    }
    points
}

/// Unpacks points of four 3-bit coordinates.
const fn points4<const N: usize>(packed: &[u16; N], values: [i8; 8]) -> [[i8; 4]; N] {
    let (mut points, mut at) = ([[0; 4]; N], 0);
    while at < 4 * N {
        points[at / 4][at % 4] = values[(packed[at / 4] >> (3 * (at % 4)) & 7) as usize];
        at += 1;
    }
    points
}

/// Packs points of eight coordinates with one byte per coordinate.
const fn words8<const N: usize, const WORDS: usize>(points: &[[i8; 8]; N]) -> [u32; WORDS] {
    assert!(WORDS == 2 * N);
    let (mut words, mut at) = ([0; WORDS], 0);
    while at < 8 * N {
        words[at / 4] |= (points[at / 8][at % 8] as u8 as u32) << (8 * (at % 4));
        at += 1;
    }
    words
}

/// Packs points of four coordinates with one byte per coordinate.
const fn words4<const N: usize>(points: &[[i8; 4]; N]) -> [u32; N] {
    let (mut words, mut at) = ([0; N], 0);
    while at < 4 * N {
        words[at / 4] |= (points[at / 4][at % 4] as u8 as u32) << (8 * (at % 4));
        at += 1;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_distinct() {
        fn distinct<const N: usize>(points: &[[i8; N]]) -> bool {
            points.iter().collect::<std::collections::HashSet<_>>().len() == points.len()
        }
        assert!(distinct(&IQ1) && distinct(&IQ2_XXS) && distinct(&IQ2_XS) && distinct(&IQ2_S));
        assert!(distinct(&IQ3_XXS) && distinct(&IQ3_S));
    }

    /// Kernels negate a byte as its complement plus one, which would carry into the next byte if
    /// the byte were 0.
    #[test]
    fn magnitudes_are_not_zero() {
        let books: [&[u32]; 5] = [&IQ2_XXS_WORDS, &IQ2_XS_WORDS, &IQ2_S_WORDS, &IQ3_XXS_WORDS, &IQ3_S_WORDS];
        let bytes = books.into_iter().flatten().flat_map(|word| word.to_le_bytes());
        assert!(bytes.into_iter().all(|byte| (1..128).contains(&byte)));
    }
}
