//! Q4_0: codes in the file's order, scales apart from them.

pub(super) fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) {
    let blocks = row.as_chunks::<18>().0;
    // A row's last word of scales may have only one.
    aux[2 * blocks.len()..].fill(0);
    let out = main.as_chunks_mut::<16>().0.iter_mut().zip(aux.as_chunks_mut::<2>().0);
    for (block, (codes, scale)) in blocks.iter().zip(out) {
        scale.copy_from_slice(&block[..2]);
        codes.copy_from_slice(&block[2..]);
    }
}
