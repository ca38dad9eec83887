//! Signs of magnitudes: one bit per weight, or seven bits for eight weights, an even number of
//! which is negative.

/// Expands seven sign bits to eight. The eighth makes the number of set bits even.
#[inline(always)]
pub fn even_signs(seven: u32) -> u8 {
    EVEN_SIGNS[(seven & 127) as usize]
}

/// The signs of 32 elements. `word` has seven sign bits for every eight elements.
#[inline(always)]
pub fn signs_of(word: u32) -> u32 {
    u32::from_le_bytes([0, 7, 14, 21].map(|shift| even_signs(word >> shift)))
}

static EVEN_SIGNS: [u8; 128] = {
    let (mut signs, mut seven) = ([0; 128], 0u8);
    while seven < 128 {
        signs[seven as usize] = seven | ((seven.count_ones() & 1) << 7) as u8;
        seven += 1;
    }
    signs
};

/// Writes magnitudes with their signs. Bit `j` of `signs` is set if code `j` is negative.
#[inline(always)]
pub(in crate::quant) fn store_signed<const N: usize>(codes: &mut [i8], magnitudes: &[i8; N], signs: u8) {
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
}
