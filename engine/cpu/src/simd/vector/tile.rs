//! The two register-tiled products of attention: queries times keys, and probabilities times
//! values. Plain loops fill the registers: the compiler does not always inline the calls of
//! `array::from_fn`, and a call among the multiplications stores and loads all sums.
#![allow(unsafe_code)]

use super::Vector;

/// Keys (and values) in a tile.
pub const TILE: usize = 64;

/// `scores[m, j] = q[m] . k[j]` for `m < rows` and `j < keys`. `q` is `[rows, width]`, `k` is
/// `[keys rounded up to 4, width]`, `scores` is `[rows, TILE]`. Up to three columns past `keys` are
/// overwritten with the products of the rows that follow in `k`.
///
/// # Panics
/// If a buffer is too short, or `width` is not a multiple of 16.
#[inline(always)]
pub(crate) fn query_key<V: Vector>(
    v: V,
    q: &[f32],
    k: &[f32],
    width: usize,
    rows: usize,
    keys: usize,
    scores: &mut [f32],
) {
    let columns = keys.next_multiple_of(4);
    assert!(width.is_multiple_of(16) && columns <= TILE);
    assert!(q.len() >= rows * width && k.len() >= columns * width && scores.len() >= rows * TILE);
    let mut m = 0;
    if V::TILE_ROWS >= 4 {
        while m + 4 <= rows {
            query_key_rows::<V, 4>(v, &q[m * width..], k, width, columns, &mut scores[m * TILE..]);
            m += 4;
        }
    }
    if V::TILE_ROWS >= 2 {
        while m + 2 <= rows {
            query_key_rows::<V, 2>(v, &q[m * width..], k, width, columns, &mut scores[m * TILE..]);
            m += 2;
        }
    }
    while m < rows {
        query_key_rows::<V, 1>(v, &q[m * width..], k, width, columns, &mut scores[m * TILE..]);
        m += 1;
    }
}

#[inline(always)]
fn query_key_rows<V: Vector, const ROWS: usize>(
    v: V,
    q: &[f32],
    k: &[f32],
    width: usize,
    columns: usize,
    scores: &mut [f32],
) {
    assert!(q.len() >= ROWS * width && k.len() >= columns * width && columns.is_multiple_of(4));
    let (q, k) = (q.as_ptr(), k.as_ptr());
    for j in (0..columns).step_by(4) {
        let mut sums = [[v.splat(0.0); 4]; ROWS];
        for c in (0..width).step_by(V::LANES) {
            // SAFETY: `width` is a multiple of LANES, so `c + LANES <= width`. The assertion above
            // ensures that rows `m < ROWS` of q and `j + i < columns` of k are inside the slices.
            unsafe {
                let mut key = [v.splat(0.0); 4];
                for i in 0..4 {
                    key[i] = v.load_ptr(k.add((j + i) * width + c));
                }
                for m in 0..ROWS {
                    let query = v.load_ptr(q.add(m * width + c));
                    for i in 0..4 {
                        sums[m][i] = v.mul_add(query, key[i], sums[m][i]);
                    }
                }
            }
        }
        for m in 0..ROWS {
            scores[m * TILE + j..][..4].copy_from_slice(&v.sum4(sums[m]));
        }
    }
}

/// `out[m] += sum over j of p[m, j] value[j]` for `m < rows` and `j < keys`. `p` is `[rows, TILE]`,
/// `value` is `[keys, width]`, `out` is `[rows, width]`.
///
/// # Panics
/// If a buffer is too short, or `width` is not a multiple of 16.
#[inline(always)]
pub(crate) fn weigh<V: Vector>(
    v: V,
    p: &[f32],
    value: &[f32],
    width: usize,
    rows: usize,
    keys: usize,
    out: &mut [f32],
) {
    assert!(width.is_multiple_of(16) && keys <= TILE);
    assert!(p.len() >= rows * TILE && value.len() >= keys * width && out.len() >= rows * width);
    let vectors = width / V::LANES;
    let mut m = 0;
    while m + 4 <= rows {
        let (p, out) = (&p[m * TILE..], &mut out[m * width..]);
        for c in 0..vectors / 2 {
            weigh_columns::<V, 4, 2>(v, p, value, width, c * 2 * V::LANES, keys, out);
        }
        if vectors % 2 == 1 {
            weigh_columns::<V, 4, 1>(v, p, value, width, (vectors - 1) * V::LANES, keys, out);
        }
        m += 4;
    }
    while m < rows {
        let (p, out) = (&p[m * TILE..], &mut out[m * width..]);
        for c in 0..vectors / 4 {
            weigh_columns::<V, 1, 4>(v, p, value, width, c * 4 * V::LANES, keys, out);
        }
        for c in vectors / 4 * 4..vectors {
            weigh_columns::<V, 1, 1>(v, p, value, width, c * V::LANES, keys, out);
        }
        m += 1;
    }
}

#[inline(always)]
fn weigh_columns<V: Vector, const ROWS: usize, const VECTORS: usize>(
    v: V,
    p: &[f32],
    value: &[f32],
    width: usize,
    column: usize,
    keys: usize,
    out: &mut [f32],
) {
    assert!(column + VECTORS * V::LANES <= width && value.len() >= keys * width);
    assert!(out.len() >= ROWS * width && p.len() >= (ROWS - 1) * TILE + keys);
    let mut sums = [[v.splat(0.0); VECTORS]; ROWS];
    for m in 0..ROWS {
        for c in 0..VECTORS {
            sums[m][c] = v.load(&out[m * width + column + c * V::LANES..]);
        }
    }
    let (value, p) = (value.as_ptr(), p.as_ptr());
    for j in 0..keys {
        // SAFETY: row `j < keys` of value has `width` elements, of which `column + VECTORS * LANES`
        // are read; `p` has `keys` elements in each of its ROWS rows. Both are asserted above.
        unsafe {
            let mut row = [v.splat(0.0); VECTORS];
            for c in 0..VECTORS {
                row[c] = v.load_ptr(value.add(j * width + column + c * V::LANES));
            }
            for m in 0..ROWS {
                let weight = v.splat(*p.add(m * TILE + j));
                for c in 0..VECTORS {
                    sums[m][c] = v.mul_add(weight, row[c], sums[m][c]);
                }
            }
        }
    }
    for m in 0..ROWS {
        for c in 0..VECTORS {
            v.store(&mut out[m * width + column + c * V::LANES..], sums[m][c]);
        }
    }
}
