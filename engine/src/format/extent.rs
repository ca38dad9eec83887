//! Sizes and positions in a file, computed so that nothing wraps.
//!
//! Every count, dimension and offset a file declares is an arbitrary 64-bit number until it has been through here.
//! Results are `None` instead of wrapped, and alignment is applied *before* a range is compared with the file: an
//! aligned-up size that wrapped to zero would pass any later check.

#![deny(clippy::arithmetic_side_effects)]

use std::ops::Range;

use super::TensorType;

/// A half-open range of bytes `[start, end)` in a file, with `start <= end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    start: u64,
    end: u64,
}

impl Extent {
    /// `len` bytes from `start`; `None` if the end is past 2^64.
    pub fn new(start: u64, len: u64) -> Option<Self> {
        Some(Extent { start, end: start.checked_add(len)? })
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

    /// Whether there are no bytes in it.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The same bytes, counted from a point `by` bytes earlier.
    pub fn shifted(self, by: u64) -> Option<Self> {
        Some(Extent { start: self.start.checked_add(by)?, end: self.end.checked_add(by)? })
    }

    /// Whether the two have a byte in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.start.max(other.start) < self.end.min(other.end)
    }

    /// As an index into a slice; `None` where addresses are too short for it.
    pub fn range(self) -> Option<Range<usize>> {
        Some(self.start.try_into().ok()?..self.end.try_into().ok()?)
    }
}

/// The least multiple of `alignment` that is not below `at`; `None` if that is past 2^64 or `alignment` is 0.
pub fn align_up(at: u64, alignment: u64) -> Option<u64> {
    at.checked_next_multiple_of(alignment)
}

/// Bytes of `count` items of `size` bytes each.
pub fn array_bytes(count: u64, size: u64) -> Option<u64> {
    count.checked_mul(size)
}

/// Bytes of a tensor of type `ty` whose dimensions are `dims`, innermost **last**.
///
/// `None` if there is no dimension, the innermost one is not a whole number of blocks, or either the number of
/// elements or the number of bytes does not fit in 64 bits and in this machine's addresses. Dimensions of zero give
/// zero bytes, and still must not hide a product of the others that overflows.
pub fn tensor_bytes(ty: TensorType, dims: &[u64]) -> Option<u64> {
    let &cols = dims.last()?;
    let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim.max(1)))?;
    usize::try_from(elements).ok()?;
    let row = u64::try_from(ty.row_bytes(usize::try_from(cols).ok()?)?).ok()?;
    let bytes = dims.split_last()?.1.iter().try_fold(row, |product, &dim| array_bytes(product, dim))?;
    usize::try_from(bytes).ok()?;
    Some(bytes)
}
