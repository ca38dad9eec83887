//! Rotary position embedding (Su et al. 2021). Pairs of a head's elements are rotated by angles
//! that grow with the position. Angles are computed in f64, once per position and chunk, and all
//! layers share them.

use crate::{
    Cpu, Isa,
    simd::vector::{Vector, VectorKernel, dispatch},
};

/// Number of axes of a position.
pub const ROPE_AXES: usize = 3;

/// The position of a token for its rotation: time, row and column. All three are equal for tokens
/// of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RopePosition {
    /// Time, row and column.
    pub axes: [usize; ROPE_AXES],
}

impl RopePosition {
    /// The position of a token of text.
    pub const fn text(position: usize) -> Self {
        RopePosition { axes: [position; ROPE_AXES] }
    }
}

/// Constants of a rotary embedding: frequencies and layout of the pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Radians per position for each pair, `[dims / 2]`.
    pub frequencies: Vec<f64>,
    /// The axis of positions by which each pair rotates, `[dims / 2]`. Empty if all pairs rotate by
    /// the first axis.
    pub axes: Vec<usize>,
    /// Factor of cosines and sines.
    pub magnitude: f32,
    /// True if pair `i` is elements `(2i, 2i + 1)`. Otherwise it is `(i, i + dims / 2)`.
    pub interleaved: bool,
}

impl RopeTable {
    /// Number of elements of a head that are rotated.
    pub fn dims(&self) -> usize {
        self.frequencies.len() * 2
    }

    /// Appends the cosine and sine of every pair at each of `positions`: `[positions, dims / 2,
    /// 2]`.
    pub fn extend_rotations(&self, positions: impl IntoIterator<Item = RopePosition>, rotations: &mut Vec<f32>) {
        for position in positions {
            rotations.extend(self.angles(position).flat_map(|angle| cos_sin(angle, self.magnitude)));
        }
    }

    /// The angle of every pair at `position`, in radians.
    fn angles(&self, position: RopePosition) -> impl Iterator<Item = f64> {
        let axes = self.axes.iter().copied().chain(std::iter::repeat(0));
        self.frequencies.iter().zip(axes).map(move |(frequency, axis)| position.axes[axis] as f64 * frequency)
    }
}

/// Cosine and sine of an angle, times `magnitude`.
fn cos_sin(angle: f64, magnitude: f32) -> [f32; 2] {
    let (sin, cos) = angle.sin_cos();
    let magnitude = f64::from(magnitude);
    [(cos * magnitude) as f32, (sin * magnitude) as f32]
}

/// Cosines and sines of a list of positions.
#[derive(Debug, Clone, Default)]
pub struct RopeRows {
    dims: usize,
    interleaved: bool,
    /// `[positions, dims]`: factor of each element.
    cos: Vec<f32>,
    /// `[positions, dims]`: factor of each element's partner.
    sin: Vec<f32>,
}

impl RopeRows {
    /// Fills in `positions` of `table`, and reuses the buffers.
    pub fn fill(&mut self, table: &RopeTable, positions: impl IntoIterator<Item = RopePosition>) {
        self.clear(table);
        for position in positions {
            self.push(table.angles(position), table);
        }
    }

    /// The rotation back by `distance` positions of every axis, without the magnitude. It moves a
    /// key that is already rotated.
    pub fn shift(table: &RopeTable, distance: usize) -> Self {
        let mut rows = RopeRows::default();
        rows.clear(table);
        let back = table.frequencies.iter().map(|frequency| -(distance as f64) * frequency);
        rows.push(back, &RopeTable { magnitude: 1.0, ..table.clone() });
        rows
    }

    /// Rotates one head by the position with index `index`.
    ///
    /// # Panics
    /// If the position does not exist, or the head is shorter than the rotated part.
    pub fn rotate(&self, isa: Isa, index: usize, head: &mut [f32]) {
        let head_dim = head.len();
        self.rotate_heads(isa, index, head, head_dim);
    }

    fn rotate_heads(&self, isa: Isa, index: usize, heads: &mut [f32], head_dim: usize) {
        let (cos, sin) = (&self.cos[index * self.dims..][..self.dims], &self.sin[index * self.dims..][..self.dims]);
        dispatch(isa, Rotate { heads, head_dim, interleaved: self.interleaved, cos, sin });
    }

    fn clear(&mut self, table: &RopeTable) {
        (self.dims, self.interleaved) = (table.dims(), table.interleaved);
        self.cos.clear();
        self.sin.clear();
    }

    /// Appends a position with the angles of its pairs.
    fn push(&mut self, angles: impl Iterator<Item = f64>, table: &RopeTable) {
        let at = self.cos.len();
        self.cos.resize(at + self.dims, 0.0);
        self.sin.resize(at + self.dims, 0.0);
        for (i, angle) in angles.enumerate() {
            let [cos, sin] = cos_sin(angle, table.magnitude);
            let (a, b) = if table.interleaved { (2 * i, 2 * i + 1) } else { (i, i + self.dims / 2) };
            self.cos[at + a] = cos;
            self.cos[at + b] = cos;
            self.sin[at + a] = -sin;
            self.sin[at + b] = sin;
        }
    }
}

struct Rotate<'a> {
    /// `[heads, head_dim]`
    heads: &'a mut [f32],
    head_dim: usize,
    interleaved: bool,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl VectorKernel for Rotate<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let dims = self.cos.len();
        for head in self.heads.chunks_exact_mut(self.head_dim) {
            let head = &mut head[..dims];
            if self.interleaved {
                interleaved(v, head, self.cos, self.sin);
            } else {
                halves(v, head, self.cos, self.sin);
            }
        }
    }
}

#[inline(always)]
fn interleaved<V: Vector>(v: V, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let whole = x.len() / V::LANES * V::LANES;
    for i in (0..whole).step_by(V::LANES) {
        let it = v.load(&x[i..]);
        let rotated = v.mul_add(it, v.load(&cos[i..]), v.mul(v.swap_pairs(it), v.load(&sin[i..])));
        v.store(&mut x[i..], rotated);
    }
    for i in (whole..x.len()).step_by(2) {
        let (a, b) = (x[i], x[i + 1]);
        x[i] = a * cos[i] + b * sin[i];
        x[i + 1] = b * cos[i + 1] + a * sin[i + 1];
    }
}

#[inline(always)]
fn halves<V: Vector>(v: V, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = x.len() / 2;
    let (low, high) = x.split_at_mut(half);
    let sin = &sin[half..];
    let whole = half / V::LANES * V::LANES;
    for i in (0..whole).step_by(V::LANES) {
        let (a, b) = (v.load(&low[i..]), v.load(&high[i..]));
        let (c, s) = (v.load(&cos[i..]), v.load(&sin[i..]));
        v.store(&mut low[i..], v.sub(v.mul(a, c), v.mul(b, s)));
        v.store(&mut high[i..], v.mul_add(b, c, v.mul(a, s)));
    }
    for i in whole..half {
        let (a, b) = (low[i], high[i]);
        low[i] = a * cos[i] - b * sin[i];
        high[i] = b * cos[i] + a * sin[i];
    }
}

impl Cpu {
    /// Rotates every head of `x`, `[tokens, row]`, with heads `head_dim` apart. Token `t` is
    /// rotated by the position with index `t` in `rows`.
    ///
    /// # Panics
    /// If a row is not a whole number of heads, heads are shorter than the rotated part, or `rows`
    /// has fewer positions.
    pub fn rope(&self, x: &mut [f32], row: usize, head_dim: usize, rows: &RopeRows) {
        assert!(row.is_multiple_of(head_dim) && rows.dims <= head_dim);
        self.for_each_chunk(x, row, 2, |t, heads| rows.rotate_heads(self.isa(), t, heads, head_dim));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ops::tests::each_cpu;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn rope_agrees_with_f64(
            pairs in 1usize..40,
            unrotated in 0usize..9,
            heads in 1usize..4,
            tokens in 1usize..4,
            first in 0usize..5000,
            interleaved: bool,
            sections: bool,
            values in prop::collection::vec(-3f32..3.0, 4 * 4 * 96),
        ) {
            let head_dim = pairs * 2 + unrotated;
            let frequencies: Vec<f64> = (0..pairs).map(|i| 10_000f64.powf(-(i as f64) / pairs as f64)).collect();
            let axes = if sections { (0..pairs).map(|i| (i * 7 + 1) % 3).collect() } else { Vec::new() };
            let table = RopeTable { frequencies, axes, magnitude: 1.5, interleaved };
            let position = |t: usize| RopePosition { axes: [first + t, first + 3 * t, first / (t + 1)] };
            let mut rows = RopeRows::default();
            rows.fill(&table, (0..tokens).map(position));
            let mut pairs_of_device = Vec::new();
            table.extend_rotations((0..tokens).map(position), &mut pairs_of_device);
            let x = &values[..tokens * heads * head_dim];
            for cpu in each_cpu() {
                let mut out = x.to_vec();
                cpu.rope(&mut out, heads * head_dim, head_dim, &rows);
                for (h, (out, x)) in out.chunks(head_dim).zip(x.chunks(head_dim)).enumerate() {
                    let mut wanted: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                    for i in 0..pairs {
                        let axis = if sections { (i * 7 + 1) % 3 } else { 0 };
                        let angle = position(h / heads).axes[axis] as f64 * table.frequencies[i];
                        let on_device = pairs_of_device[h / heads * 2 * pairs + 2 * i];
                        prop_assert!((f64::from(on_device) - 1.5 * angle.cos()).abs() < 1e-6);
                        let (a, b) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + pairs) };
                        wanted[a] = 1.5 * (f64::from(x[a]) * angle.cos() - f64::from(x[b]) * angle.sin());
                        wanted[b] = 1.5 * (f64::from(x[b]) * angle.cos() + f64::from(x[a]) * angle.sin());
                    }
                    for i in 0..head_dim {
                        prop_assert!((f64::from(out[i]) - wanted[i]).abs() < 3e-6, "element {i}");
                    }
                }
            }
        }

        #[test]
        fn rope_shift_equals_the_difference_of_two_rotations(from in 0usize..4000, distance in 0usize..4000, interleaved: bool) {
            let table = RopeTable { frequencies: vec![1.0, 0.1, 0.01], axes: vec![0, 2, 1], magnitude: 1.2, interleaved };
            let at = |first: usize| RopePosition { axes: [first, first + 5, first + 9] };
            let (from, to) = (from + distance, from);
            let x = [1.0, -2.0, 0.5, 3.0, -0.25, 4.0];
            let mut rows = RopeRows::default();
            for cpu in each_cpu() {
                let (mut moved, mut direct) = (x, x);
                rows.fill(&table, [at(from)]);
                cpu.rope(&mut moved, 6, 6, &rows);
                RopeRows::shift(&table, distance).rotate(cpu.isa(), 0, &mut moved);
                rows.fill(&table, [at(to)]);
                cpu.rope(&mut direct, 6, 6, &rows);
                for (a, b) in moved.iter().zip(direct) {
                    prop_assert!((a - b).abs() < 1e-5);
                }
            }
        }
    }
}
