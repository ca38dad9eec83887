//! Q3_K: 256 elements in 110 bytes, sixteen sub-blocks of 16. `x = d * (scale - 32) * (q - 4)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | bit 2 of `q`: bit `b` of byte `l` belongs to element `32 b + l` |
//! | 32..96 | bits 0..2 of `q`: each half of 128 elements has 32 bytes; bits `2s..2s+2` of byte `l` belong to element `32 s + l` |
//! | 96..108 | scales, 6 bits, see [`unpack_scales`] |
//! | 108..110 | `d`, F16 |

use super::f16_at;

pub(super) fn dequantise(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = f16_at(block, 108);
    let mut packed = [0; 12];
    packed.copy_from_slice(&block[96..108]);
    let scales = unpack_scales(&packed);
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[sub]);
        let (half, shift, start) = (sub / 8, sub % 8 / 2 * 2, sub % 2 * 16);
        let low = &block[32 + half * 32 + start..][..16];
        let high = &block[start..][..16];
        for ((low, high), out) in low.iter().zip(high).zip(out) {
            let q = (low >> shift & 3) | (high >> (sub / 2) & 1) << 2;
            *out = scale * f32::from(q as i8 - 4);
        }
    }
}

/// The sixteen scales of a block, 32 already subtracted. Scale `j` has its low four bits in nibble `j / 8` of byte
/// `j % 8` and its high two bits in bits `2 (j / 4)..` of byte `8 + j % 4`.
pub fn unpack_scales(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|j| {
        let low = packed[j % 8] >> (j / 8 * 4) & 15;
        let high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}
