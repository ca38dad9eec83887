//! Sums of neuron-major rows for a chunk of tokens, each over the neurons that fired for it. Rows are decoded once for all tokens, a
//! panel at a time that stays in the first-level cache, and nothing is multiplied by a zero: where few neurons fire this takes less
//! arithmetic than a product with all of them, in floats as well as in integers.

use super::{
    Cpu,
    pool::{ColumnsMut, split_columns},
    row_selection::RowSelection,
    scratch::AlignedBuffer,
    simd::{
        prefetch,
        vector::{Kernel, Vector, dispatch},
    },
};
use crate::format::Matrix;

/// Floats of a panel: 32 KiB, two thirds of a first-level cache.
const PANEL_FLOATS: usize = 8 << 10;
/// Columns that a worker takes at a time, where the blocks of the type are shorter: eight of the widest vectors.
const COLUMNS: usize = 128;
/// Rows from one that is decoded to the one that is prefetched: parts of rows lie a row apart, which the processor's own prefetcher
/// does not follow.
const AHEAD: usize = 16;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Vectors of sums that are held in registers: as many as hide the latency of a multiplication.
const SUMS: usize = 8;
/// From this share of pairs of a token and a neuron on, products with all of them are quicker.
const MOST_FIRING: f64 = 0.5;

/// A neuron that fired for a token.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Firing {
    /// Its place among the neurons that fired for any token of the chunk.
    at: u32,
    /// Its hidden value, times the factor of the matrix.
    a: f32,
}

/// The neurons that fired for each token of a chunk, ascending. Its buffers grow to the largest chunk and stay.
#[derive(Debug, Default)]
pub(super) struct FiringLists {
    /// Of all tokens, one after the other.
    firing: AlignedBuffer<Firing>,
    /// First entry of each token, and the number of all entries, `[tokens + 1]`.
    starts: Vec<usize>,
    /// For each neuron of the chunk, its place among those that fired; meaningless for others, `[neurons]`.
    places: Vec<u32>,
    /// Numbers of the neurons that fired for any token, ascending.
    active: Vec<u32>,
}

impl FiringLists {
    /// Counts what fires in `a`, `[tokens, n]`: the neurons of the lists, and their places.
    pub fn count(&mut self, a: &[f32], n: usize) {
        let FiringLists { starts, places, active, .. } = self;
        places.clear();
        places.resize(n, 0);
        starts.clear();
        starts.push(0);
        let mut all = 0;
        for a in a.chunks_exact(n) {
            all += a.iter().filter(|a| **a != 0.0).count();
            starts.push(all);
            places.iter_mut().zip(a).for_each(|(fires, a)| *fires |= u32::from(*a != 0.0));
        }
        active.clear();
        active.extend((0..).zip(&*places).filter(|(_, fires)| **fires != 0).map(|(neuron, _)| neuron));
        (0..).zip(&*active).for_each(|(at, neuron)| places[*neuron as usize] = at);
    }

    /// Numbers of the neurons that fired for any token, ascending.
    pub fn active(&self) -> &[u32] {
        &self.active
    }

    /// True if so few neurons fire for a token that lists are quicker than a product with all of [`FiringLists::active`].
    pub fn are_short(&self) -> bool {
        let (tokens, pairs) = (self.starts.len() - 1, self.starts.last().copied().unwrap_or(0));
        (pairs as f64) < MOST_FIRING * (tokens * self.active.len()) as f64
    }

    /// Lists what [`FiringLists::count`] counted, its values times `factor`.
    fn fill(&mut self, cpu: &Cpu, a: &[f32], n: usize, factor: f32) {
        let FiringLists { firing, starts, places, .. } = self;
        let mut rest = firing.take(starts.last().copied().unwrap_or(0));
        let mut tokens = Vec::with_capacity(starts.len());
        for (a, ends) in a.chunks_exact(n).zip(starts.windows(2)) {
            let of_token;
            (of_token, rest) = rest.split_at_mut(ends[1] - ends[0]);
            tokens.push((a, of_token));
        }
        cpu.pool().for_each(&mut tokens, |_, (a, firing)| {
            let fired = a.iter().zip(&*places).filter(|(a, _)| **a != 0.0);
            firing.iter_mut().zip(fired).for_each(|(to, (a, at))| *to = Firing { at: *at, a: factor * a });
        });
    }

    /// What fired for each token.
    fn of_tokens(&self) -> impl Iterator<Item = &[Firing]> {
        let firing = self.firing.get(self.starts.last().copied().unwrap_or(0));
        self.starts.windows(2).map(|ends| &firing[ends[0]..ends[1]])
    }
}

impl Cpu {
    /// `out[t] += sum over what fired for t`, `[tokens, d]`: rows of `weight` that are the chunk's neurons by `selection`, whose values are `a`,
    /// `[tokens, n]`, as `lists` has counted them. The result does not depend on the number of threads.
    pub(super) fn add_firing(
        &self,
        weight: &Matrix,
        selection: RowSelection<'_>,
        a: &[f32],
        lists: &mut FiringLists,
        out: &mut [f32],
    ) {
        let (n, d) = (selection.len(weight.rows()), weight.cols());
        lists.fill(self, a, n, weight.factor());
        let lists = &*lists;
        let width = COLUMNS.max(weight.ty().block_len());
        let mut columns: Vec<_> = split_columns(out, d, width).into_iter().enumerate().collect();
        self.pool().for_each(&mut columns, |_, (at, out)| {
            let (first, width) = (*at * width, out.width());
            let (len, bytes) = (weight.ty().block_len(), weight.ty().block_bytes());
            let mut left: Vec<&[Firing]> = lists.of_tokens().collect();
            self.panels.with(|scratch| {
                let rows = PANEL_FLOATS / width;
                let panel = scratch.widened.take(rows * width);
                let part = |neuron: u32| {
                    &weight.row(selection.get(neuron as usize))[first / len * bytes..][..width / len * bytes]
                };
                for (at, neurons) in lists.active.chunks(rows).enumerate() {
                    let later = &lists.active[lists.active.len().min(at * rows + AHEAD)..];
                    let mut later = later.iter();
                    for (neuron, to) in neurons.iter().zip(panel.chunks_exact_mut(width)) {
                        if let Some(later) = later.next() {
                            part(*later).chunks(LINE).for_each(|line| prefetch(line.as_ptr()));
                        }
                        self.kernels.widen(weight.encoding(), part(*neuron), to);
                    }
                    let (first, panel) = (at * rows, &panel[..neurons.len() * width]);
                    dispatch(self.isa, PanelSums { panel, width, first, left: &mut left, out });
                }
            });
        });
    }
}

/// Sums of the rows of a panel.
struct PanelSums<'a, 'l, 'o> {
    /// `[rows, width]`
    panel: &'a [f32],
    width: usize,
    /// Place of the first row.
    first: usize,
    /// What of each token's list is left; what is added is taken off.
    left: &'a mut [&'l [Firing]],
    /// Output of every token.
    out: &'a mut ColumnsMut<'o>,
}

impl Kernel for PanelSums<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let PanelSums { panel, width, first, left, out } = self;
        let end = first + panel.len() / width;
        for (token, left) in left.iter_mut().enumerate() {
            let (firing, rest) = left.split_at(left.partition_point(|firing| (firing.at as usize) < end));
            *left = rest;
            if firing.is_empty() {
                continue;
            }
            let out = out.row_mut(token);
            let rows = PanelRows { panel, width, first };
            let mut col = 0;
            while col + SUMS * V::LANES <= width {
                rows.add::<V, SUMS>(v, firing, col, out);
                col += SUMS * V::LANES;
            }
            while col + V::LANES <= width {
                rows.add::<V, 1>(v, firing, col, out);
                col += V::LANES;
            }
            for (col, out) in out.iter_mut().enumerate().skip(col) {
                firing.iter().for_each(|of| *out += of.a * panel[(of.at as usize - first) * width + col]);
            }
        }
    }
}

/// Decoded rows, the first of which has the place `first`.
#[derive(Clone, Copy)]
struct PanelRows<'a> {
    /// `[rows, width]`
    panel: &'a [f32],
    width: usize,
    first: usize,
}

impl PanelRows<'_> {
    /// Adds the rows of `firing` to `N` vectors of `out`, from column `col` on.
    #[inline(always)]
    fn add<V: Vector, const N: usize>(self, v: V, firing: &[Firing], col: usize, out: &mut [f32]) {
        let out = &mut out[col..][..N * V::LANES];
        let mut sums: [V::F; N] = std::array::from_fn(|i| v.load(&out[i * V::LANES..]));
        for Firing { at, a } in firing {
            let row = &self.panel[(*at as usize - self.first) * self.width + col..][..N * V::LANES];
            let a = v.splat(*a);
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = v.mul_add(a, v.load(&row[i * V::LANES..]), *sum);
            }
        }
        for (i, sum) in sums.into_iter().enumerate() {
            v.store(&mut out[i * V::LANES..], sum);
        }
    }
}
