//! F32, F16, BF16: rows as they are in the file, padded with zeros.

pub(super) fn copy(row: &[u8], main: &mut [u8]) {
    let (values, padding) = main.split_at_mut(row.len());
    values.copy_from_slice(row);
    padding.fill(0);
}
