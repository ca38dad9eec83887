//! Code books of the IQ types. A code is the number of a point, whose four or eight coordinates are the weights' values or
//! magnitudes. The tables hold the points packed, in ascending order, the first coordinate in the lowest bits, each coordinate
//! as its index into the few values that it may have: two bits of eight coordinates, or three bits of four.
//!
//! Where codes are magnitudes, signs follow: a bit per weight, or seven for eight weights, of which an even number is negative.

mod iq1;
mod iq2;
mod iq3;

pub(crate) use iq1::IQ1;
pub(crate) use iq2::{IQ2_S, IQ2_XS, IQ2_XXS};
pub(crate) use iq3::{IQ3_S, IQ3_XXS};

/// Points of eight coordinates, two bits each in `packed`.
const fn points8<const N: usize>(packed: &[u16; N], values: [i8; 4]) -> [[i8; 8]; N] {
    let (mut points, mut at) = ([[0; 8]; N], 0);
    while at < 8 * N {
        points[at / 8][at % 8] = values[(packed[at / 8] >> (2 * (at % 8)) & 3) as usize];
        at += 1;
    }
    points
}

/// Points of four coordinates, three bits each in `packed`.
const fn points4<const N: usize>(packed: &[u16; N], values: [i8; 8]) -> [[i8; 4]; N] {
    let (mut points, mut at) = ([[0; 4]; N], 0);
    while at < 4 * N {
        points[at / 4][at % 4] = values[(packed[at / 4] >> (3 * (at % 4)) & 7) as usize];
        at += 1;
    }
    points
}

/// Eight signs of seven bits: the eighth makes their number even.
#[inline(always)]
pub(crate) fn even_signs(seven: u32) -> u8 {
    EVEN_SIGNS[(seven & 127) as usize]
}

static EVEN_SIGNS: [u8; 128] = {
    let (mut signs, mut seven) = ([0; 128], 0u8);
    while seven < 128 {
        signs[seven as usize] = seven | ((seven.count_ones() & 1) << 7) as u8;
        seven += 1;
    }
    signs
};

/// Writes magnitudes with their signs: bit `j` of `signs` is set where code `j` is negative.
#[inline(always)]
pub(super) fn store_signed<const N: usize>(codes: &mut [i8], magnitudes: &[i8; N], signs: u8) {
    for (j, (code, magnitude)) in codes.iter_mut().zip(magnitudes).enumerate() {
        *code = if signs >> j & 1 == 1 { -magnitude } else { *magnitude };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_signs_are_even_in_number() {
        for seven in 0..128 {
            let signs = even_signs(seven);
            assert!(signs.count_ones().is_multiple_of(2) && u32::from(signs) & 127 == seven);
        }
    }

    #[test]
    fn points_are_distinct() {
        fn distinct<const N: usize>(points: &[[i8; N]]) -> bool {
            points.iter().collect::<std::collections::HashSet<_>>().len() == points.len()
        }
        assert!(distinct(&IQ1) && distinct(&IQ2_XXS) && distinct(&IQ2_XS) && distinct(&IQ2_S));
        assert!(distinct(&IQ3_XXS) && distinct(&IQ3_S));
    }
}
