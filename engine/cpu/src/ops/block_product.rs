//! Small matrix products on the vectors of one instruction set, for the product forms of scans. All
//! data fit in the first-level cache.

use crate::simd::vector::Vector;

/// A matrix with arbitrary strides of rows and columns.
#[derive(Clone, Copy)]
pub(super) struct Strided<'a> {
    /// Elements, from the matrix's first one on.
    pub data: &'a [f32],
    /// Elements from one row to the next.
    pub row: usize,
    /// Elements from one column to the next.
    pub col: usize,
}

impl Strided<'_> {
    #[inline(always)]
    fn at(&self, row: usize, col: usize) -> f32 {
        self.data[row * self.row + col * self.col]
    }
}

/// Sizes of a product.
#[derive(Clone, Copy)]
pub(super) struct ProductSizes {
    pub rows: usize,
    /// Terms of each sum.
    pub depth: usize,
    pub cols: usize,
}

/// Returns the sizes of a product.
#[inline(always)]
pub(super) fn sizes(rows: usize, depth: usize, cols: usize) -> ProductSizes {
    ProductSizes { rows, depth, cols }
}

/// A writable matrix. `data` starts at its first element.
pub(super) struct RowsMut<'a> {
    pub data: &'a mut [f32],
    /// Elements from one row to the next.
    pub row: usize,
}

/// A writable matrix with rows of `cols` elements.
#[inline(always)]
pub(super) fn rows_mut(data: &mut [f32], cols: usize) -> RowsMut<'_> {
    RowsMut { data, row: cols }
}

/// A matrix with rows of `cols` elements.
pub(super) fn rows(data: &[f32], cols: usize) -> Strided<'_> {
    Strided { data, row: cols, col: 1 }
}

/// Rows of a register tile, and vectors per row.
const TILE_ROWS: usize = 4;
const TILE_VECTORS: usize = 2;

/// `out = scale * out + a b`. `a` is `[rows, depth]`, `b` is `[depth, cols]` with contiguous rows,
/// `out` is `[rows, cols]`. Without a `scale`, `out` is overwritten.
#[inline(always)]
pub(super) fn multiply<V: Vector>(
    v: V,
    ProductSizes { rows, depth, cols }: ProductSizes,
    a: Strided<'_>,
    Strided { data: b, row: b_row, .. }: Strided<'_>,
    RowsMut { data: out, row: out_row }: RowsMut<'_>,
    scale: Option<f32>,
) {
    let wide = TILE_VECTORS * V::LANES;
    let keep = scale.unwrap_or(0.0);
    for first in (0..rows).step_by(TILE_ROWS) {
        let count = TILE_ROWS.min(rows - first);
        let mut col = 0;
        while col + wide <= cols {
            let mut sums = [[v.splat(0.0); TILE_VECTORS]; TILE_ROWS];
            for d in 0..depth {
                let b = &b[d * b_row + col..][..wide];
                let b = [v.load(b), v.load(&b[V::LANES..])];
                for (r, sums) in sums.iter_mut().enumerate() {
                    // Rows past the last repeat it, and their results are not stored.
                    let a = v.splat(a.at(first + r.min(count - 1), d));
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = v.mul_add(a, b, *sum);
                    }
                }
            }
            for (r, sums) in sums.into_iter().enumerate().take(count) {
                let out = &mut out[(first + r) * out_row + col..][..wide];
                for (i, sum) in sums.into_iter().enumerate() {
                    let out = &mut out[i * V::LANES..];
                    let sum = if scale.is_some() { v.mul_add(v.load(out), v.splat(keep), sum) } else { sum };
                    v.store(out, sum);
                }
            }
            col += wide;
        }
        for col in col..cols {
            for r in first..first + count {
                let sum: f32 = (0..depth).map(|d| a.at(r, d) * b[d * b_row + col]).sum();
                let out = &mut out[r * out_row + col];
                *out = if scale.is_some() { *out * keep + sum } else { sum };
            }
        }
    }
}
