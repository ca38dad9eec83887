//! Byte ranges of tensors in a file, their sizes and alignment, computed without overflow.
//!
//! Every count, dimension and offset in a file is an arbitrary 64-bit number until this module has
//! checked it. Results that would overflow are `None`. Alignment is applied *before* a range is
//! compared with the file. An aligned size that wrapped to zero would pass any later check.

#![deny(clippy::arithmetic_side_effects)]

use std::ops::Range;

use crate::quant::TensorType;

/// A half-open range of bytes `[start, end)` in a file, with `start <= end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRange {
    start: u64,
    end: u64,
}

impl ByteRange {
    /// `len` bytes from `start`. `None` if the end is past 2^64.
    pub fn new(start: u64, len: u64) -> Option<Self> {
        Some(ByteRange { start, end: start.checked_add(len)? })
    }

    /// First byte.
    pub fn start(self) -> u64 {
        self.start
    }

    /// One past the last byte.
    pub fn end(self) -> u64 {
        self.end
    }

    /// Number of bytes.
    pub fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// True if the range is empty.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The range relative to a point `by` bytes earlier.
    pub fn shifted(self, by: u64) -> Option<Self> {
        Some(ByteRange { start: self.start.checked_add(by)?, end: self.end.checked_add(by)? })
    }

    /// True if the ranges share a byte.
    pub fn overlaps(self, other: Self) -> bool {
        self.start.max(other.start) < self.end.min(other.end)
    }

    /// The range as an index into a slice. `None` if this machine's addresses are too short.
    pub fn indices(self) -> Option<Range<usize>> {
        Some(self.start.try_into().ok()?..self.end.try_into().ok()?)
    }
}

/// Bytes of a tensor of type `ty`, including the trailer after its last row. `dims` are its
/// dimensions, innermost **last**.
///
/// `None` if there is no dimension, or if the innermost dimension is not a whole number of blocks.
/// `None` too if the number of elements or bytes does not fit in 64 bits and in this machine's
/// addresses. Dimensions of zero give zero bytes. The product of the other dimensions must still
/// not overflow.
pub fn tensor_bytes(ty: TensorType, dims: &[u64]) -> Option<u64> {
    let block = u64::try_from(ty.block_len()).ok()?;
    let whole_blocks = dims.last()?.is_multiple_of(block);
    let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim.max(1)))?;
    usize::try_from(elements).ok()?;
    let blocks = if dims.contains(&0) { 0 } else { elements.checked_div(block)? };
    let bytes = blocks.checked_mul(u64::try_from(ty.block_bytes()).ok()?).filter(|_| whole_blocks)?;
    let bytes = if bytes == 0 { 0 } else { bytes.checked_add(u64::try_from(ty.trailer_bytes()).ok()?)? };
    usize::try_from(bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use proptest::{prelude::*, sample::select};

    use super::*;

    /// Numbers that break narrow or careless arithmetic, and arbitrary numbers.
    fn hostile() -> impl Strategy<Value = u64> {
        const EDGES: [u64; 14] = [
            0,
            1,
            31,
            32,
            256,
            (1 << 31) - 1,
            1 << 31,
            (1 << 31) + 1,
            (1 << 32) - 1,
            1 << 32,
            (1 << 32) + 1,
            1 << 63,
            u64::MAX - 31,
            u64::MAX,
        ];
        prop_oneof![3 => select(&EDGES[..]), 1 => any::<u64>()]
    }

    fn narrow(exact: u128) -> Option<u64> {
        exact.try_into().ok()
    }

    proptest! {
        #[test]
        fn byte_ranges_agree_with_wide_arithmetic(start in hostile(), len in hostile(), by in hostile()) {
            let range = ByteRange::new(start, len);
            prop_assert_eq!(range.map(ByteRange::end), narrow(u128::from(start) + u128::from(len)));
            let Some(range) = range else { return Ok(()) };
            prop_assert_eq!((range.start(), range.len()), (start, len));
            let shifted = range.shifted(by);
            prop_assert_eq!(shifted.is_some(), u128::from(range.end()) + u128::from(by) <= u64::MAX.into());
            prop_assert!(shifted.is_none_or(|shifted| shifted.len() == len && shifted.start() >= by));
        }

        #[test]
        fn overlaps_means_a_shared_byte(a in 0u64..40, a_len in 0u64..20, b in 0u64..40, b_len in 0u64..20) {
            let (first, second) = (ByteRange::new(a, a_len).unwrap(), ByteRange::new(b, b_len).unwrap());
            let shared = (a..a + a_len).any(|byte| (b..b + b_len).contains(&byte));
            prop_assert_eq!(first.overlaps(second), shared);
            prop_assert_eq!(second.overlaps(first), shared);
        }

        #[test]
        fn tensor_bytes_agree_with_wide_arithmetic(
            ty in select(&TensorType::ALL[..]),
            dims in prop::collection::vec(hostile(), 0..5),
        ) {
            let bytes = tensor_bytes(ty, &dims);
            let product =
                |dims: &[u64]| dims.iter().try_fold(1u128, |product, &dim| product.checked_mul(dim.into()));
            let at_least_one = dims.iter().map(|&dim| dim.max(1)).collect::<Vec<_>>();
            let elements = product(&at_least_one).and_then(narrow);
            let whole = dims.last().is_some_and(|cols| cols % ty.block_len() as u64 == 0);
            let exact = product(&dims)
                .map(|elements| elements / ty.block_len() as u128)
                .and_then(|blocks| blocks.checked_mul(ty.block_bytes() as u128))
                .map(|bytes| if bytes == 0 { 0 } else { bytes + ty.trailer_bytes() as u128 })
                .and_then(narrow);
            prop_assert_eq!(bytes, exact.filter(|_| whole && elements.is_some()));
        }
    }
}
