//! Q2_0: 64 two-bit elements in 18 bytes. `x = d * (q - 1)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..18 | `q`: bits `2s..2s+2` of byte `i` belong to element `4 i + s` |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk 16 codes in a
//! word. `aux` has per two chunks an f16 scale.

use super::{
    BlockFormat, DeviceFormat, Grouping, TensorType, bits::f16_at, bits::put_f16, block_format::unpack_chunks, device,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::Q2_0,
    len: 64,
    bytes: 18,
    grouping: Grouping { len: 32, minima: false, lowest: -1, highest: 2 },
    unpack: |src, to| unpack_chunks(src, to, unpack),
    quantise: None,
    device: DeviceFormat {
        main_words: 2,
        aux_bytes: 2,
        wgsl: include_str!("q2_0.wgsl"),
        repack: device::split_fields::<18, 16, 0>,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 0, random(-1.0, 1.0)),
};

#[inline(always)]
fn unpack(block: &[u8; 18], codes: &mut [i8; 64], scales: &mut [f32; 2]) {
    *scales = [f16_at(block, 0); 2];
    for (at, code) in codes.iter_mut().enumerate() {
        *code = (block[2 + at / 4] >> (2 * (at % 4)) & 3) as i8 - 1;
    }
}
