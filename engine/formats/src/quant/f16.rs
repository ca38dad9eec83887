//! F16: IEEE 754 half precision, little endian, one element per "block".

use half::{f16, slice::HalfFloatSliceExt};

pub(super) fn dequantise(src: &[u8], dst: &mut [f32]) {
    let (groups, rest) = src.as_chunks::<32>();
    let (outs, out_rest) = dst.as_chunks_mut::<16>();
    for (group, out) in groups.iter().zip(outs) {
        // In groups of sixteen numbers, so that the hardware conversion is selected once per group.
        let halves: [f16; 16] = std::array::from_fn(|i| f16::from_le_bytes([group[2 * i], group[2 * i + 1]]));
        halves.convert_to_f32_slice(out);
    }
    for (bytes, out) in rest.as_chunks::<2>().0.iter().zip(out_rest) {
        *out = f16::from_le_bytes(*bytes).to_f32();
    }
}

pub(super) fn quantise(src: &[f32], dst: &mut Vec<u8>) {
    let mut halves = [f16::ZERO; 16];
    for group in src.chunks(16) {
        let halves = &mut halves[..group.len()];
        halves.convert_from_f32_slice(group);
        halves.iter().for_each(|half| dst.extend_from_slice(&half.to_le_bytes()));
    }
}
