//! The twelve bytes in which Q4_K and Q5_K keep eight 6-bit scales and eight 6-bit mins.
//!
//! Sub-blocks 0..4: scale in the low six bits of byte `j`, min in those of byte `j + 4`. Sub-blocks 4..8: low four bits
//! in the two nibbles of byte `j + 4` (scale low, min high), top two bits in the spare bits of bytes `j - 4` and `j`.

/// Scales and mins of the eight sub-blocks.
pub fn unpack(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for j in 0..4 {
        scales[j] = packed[j] & 63;
        mins[j] = packed[j + 4] & 63;
        scales[j + 4] = packed[j + 8] & 15 | packed[j] >> 6 << 4;
        mins[j + 4] = packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4;
    }
    (scales, mins)
}

/// The inverse of [`unpack`]; values are below 64.
pub(super) fn pack(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
        packed[j + 4] = mins[j] | mins[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 15 | (mins[j + 4] & 15) << 4;
    }
    packed
}

/// The twelve bytes at 4..16 of a Q4_K or Q5_K block, unpacked.
pub(super) fn of_block(block: &[u8]) -> ([u8; 8], [u8; 8]) {
    let mut packed = [0; 12];
    packed.copy_from_slice(&block[4..16]);
    unpack(&packed)
}
