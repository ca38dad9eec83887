//! Sums of neuron-major rows for a chunk of tokens, over the neurons that fired for each token.
//! Rows are decoded once for all tokens, into panels that stay in the first-level cache. No row is
//! multiplied by zero. If few neurons fire, this takes less arithmetic than a product with all
//! neurons, in floats as well as in integers.

use std::ops::Range;

use super::{
    Cpu, Isa,
    pool::{ColumnsMut, split_columns},
    row_selection::RowSelection,
    scratch::{AlignedBuffer, LINE},
    simd::{
        prefetch,
        vector::{Vector, VectorKernel, dispatch},
    },
};
use thermocline_formats::format::Matrix;

/// Floats of a panel: 32 KiB, two thirds of a first-level cache.
const PANEL_FLOATS: usize = 8 << 10;
/// Columns that are decoded at a time, unless the blocks of the type are longer: eight of the
/// widest vectors.
const COLUMNS: usize = 128;
/// Floats of a worker's sums, for all tokens: 256 KiB. The sums then stay in a second-level cache
/// beside the rows.
const SUM_FLOATS: usize = 64 << 10;
/// Vectors of sums that are kept in registers: enough to hide the latency of a multiplication.
const SUMS: usize = 8;
/// The fraction of pairs of a token and a neuron above which a product with all neurons takes fewer
/// instructions. A list entry costs about twice as many instructions as a pair in a tile.
const MOST_FIRING: f64 = 0.5;

/// A neuron that fired for a token.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FiredNeuron {
    /// Its index among the neurons that fired for any token of the chunk.
    at: u32,
    /// Its hidden value, times the factor of the matrix.
    a: f32,
}

/// The neurons that fired for each token of a chunk, ascending. Its buffers grow to the largest
/// chunk and are kept.
#[derive(Debug, Default)]
pub(super) struct FiringLists {
    /// Neurons of all tokens, one token after the other.
    firing: AlignedBuffer<FiredNeuron>,
    /// First entry of each token, and the number of all entries, `[tokens + 1]`.
    starts: Vec<usize>,
    /// `[neurons]`: the index of each fired neuron among the fired neurons of the chunk.
    /// Meaningless for other neurons.
    places: Vec<u32>,
    /// Indices of the neurons that fired for any token, ascending.
    active: Vec<u32>,
    /// `[tokens, panels]`: for each token and each panel of rows, the number of the token's neurons
    /// up to the panel's end.
    ends: Vec<u32>,
}

impl FiringLists {
    /// Counts the neurons that fire in `a`, `[tokens, n]`, and finds their indices.
    pub fn count(&mut self, isa: Isa, a: &[f32], n: usize) {
        let FiringLists { starts, places, active, .. } = self;
        places.clear();
        places.resize(n, 0);
        starts.clear();
        starts.push(0);
        let mut all = 0;
        for a in a.chunks_exact(n) {
            all += dispatch(isa, CountFiring { a, fires: places }) as usize;
            starts.push(all);
        }
        active.clear();
        active.extend((0..).zip(&*places).filter(|(_, fires)| **fires != 0).map(|(neuron, _)| neuron));
        (0..).zip(&*active).for_each(|(at, neuron)| places[*neuron as usize] = at);
    }

    /// Indices of the neurons that fired for any token, ascending.
    pub fn active(&self) -> &[u32] {
        &self.active
    }

    /// True if so few neurons fire for a token that lists are faster than a product with all of
    /// [`FiringLists::active`].
    pub fn are_short(&self) -> bool {
        let (tokens, pairs) = (self.starts.len() - 1, self.starts.last().copied().unwrap_or(0));
        (pairs as f64) < MOST_FIRING * (tokens * self.active.len()) as f64
    }

    /// Fills the lists that [`FiringLists::count`] counted, for panels of `rows` rows. Values are
    /// multiplied by `factor`.
    fn fill(&mut self, cpu: &Cpu, a: &[f32], n: usize, factor: f32, rows: usize) {
        let FiringLists { firing, starts, places, active, ends } = self;
        let panels = active.len().div_ceil(rows).max(1);
        ends.clear();
        ends.resize((starts.len() - 1) * panels, 0);
        let mut rest = firing.take(starts.last().copied().unwrap_or(0));
        let mut tokens = Vec::with_capacity(starts.len());
        for ((a, ends), range) in a.chunks_exact(n).zip(ends.chunks_exact_mut(panels)).zip(starts.windows(2)) {
            let firing;
            (firing, rest) = rest.split_at_mut(range[1] - range[0]);
            tokens.push(TokenList { a, firing, ends });
        }
        cpu.pool().for_each(&mut tokens, |_, TokenList { a, firing, ends }| {
            let fired = a.iter().zip(&*places).filter(|(a, _)| **a != 0.0);
            firing.iter_mut().zip(fired).for_each(|(to, (a, at))| *to = FiredNeuron { at: *at, a: factor * a });
            let mut done = 0;
            for (panel, end) in ends.iter_mut().enumerate() {
                let left = &firing[done..firing.len().min(done + rows)];
                done += left.partition_point(|firing| (firing.at as usize) < (panel + 1) * rows);
                *end = done as u32;
            }
        });
    }

    /// Neurons of panel `panel` that fired, for each token.
    fn of_panel(&self, panel: usize) -> impl Iterator<Item = &[FiredNeuron]> {
        let firing = self.firing.get(self.starts.last().copied().unwrap_or(0));
        let panels = self.ends.len() / (self.starts.len() - 1);
        self.starts.iter().zip(self.ends.chunks_exact(panels)).map(move |(start, ends)| {
            let from = if panel == 0 { 0 } else { ends[panel - 1] };
            &firing[start + from as usize..start + ends[panel] as usize]
        })
    }
}

/// Marks the neurons that fire for a token, and counts them.
struct CountFiring<'a> {
    a: &'a [f32],
    /// Not zero for neurons that fire for any token.
    fires: &'a mut [u32],
}

impl VectorKernel<u32> for CountFiring<'_> {
    /// Has no explicit vectors, because the compiler vectorises it for every instruction set.
    #[inline(always)]
    fn run<V: Vector>(self, _: V) -> u32 {
        let mut all = 0;
        for (fires, a) in self.fires.iter_mut().zip(self.a) {
            let one = u32::from(*a != 0.0);
            *fires |= one;
            all += one;
        }
        all
    }
}

/// The list of one token during [`FiringLists::fill`].
struct TokenList<'a> {
    /// Values of all neurons.
    a: &'a [f32],
    firing: &'a mut [FiredNeuron],
    ends: &'a mut [u32],
}

impl Cpu {
    /// `out[t] += sum of a[t, i] W[selection[i]]` over the neurons `i` that fired for token `t`.
    /// `out` is `[tokens, d]`. `a` is `[tokens, n]`, and `lists` has counted it. The result does
    /// not depend on the number of threads.
    pub(super) fn add_firing(
        &self,
        weight: &Matrix,
        selection: RowSelection<'_>,
        a: &[f32],
        lists: &mut FiringLists,
        out: &mut [f32],
    ) {
        let (n, d) = (selection.len(weight.rows()), weight.cols());
        let unit = COLUMNS.max(weight.ty().block_len());
        lists.fill(self, a, n, weight.factor(), PANEL_FLOATS / unit);
        let rows = FiredRows { weight, selection, lists };
        // Many tokens need narrow columns, because their sums fill the cache. Few tokens take wide
        // columns, to read memory in order.
        let most = (SUM_FLOATS / (out.len() / d)).min(d.div_ceil(self.pool().threads()));
        let width = (most / unit).max(1) * unit;
        let mut columns: Vec<_> = split_columns(out, d, width).into_iter().enumerate().collect();
        self.pool().for_each(&mut columns, |_, (at, out)| rows.add_range(self, *at * width, unit, out));
    }
}

/// Rows of the neurons that fired for a chunk.
struct FiredRows<'a> {
    weight: &'a Matrix,
    selection: RowSelection<'a>,
    lists: &'a FiringLists,
}

impl FiredRows<'_> {
    /// Bytes of columns `columns`, whole blocks, of a neuron's row.
    fn part(&self, neuron: u32, columns: Range<usize>) -> &[u8] {
        let (len, bytes) = (self.weight.ty().block_len(), self.weight.ty().block_bytes());
        &self.weight.row(self.selection.get(neuron as usize))[columns.start / len * bytes..columns.end / len * bytes]
    }

    /// Adds all sums to a worker's columns, `unit` columns at a time, from column `first` of the
    /// rows on. Decodes the rows of a panel piece by piece. Meanwhile it prefetches the rows of the
    /// next panel from end to end, because memory is fastest in order.
    fn add_range(&self, cpu: &Cpu, first: usize, unit: usize, out: &mut ColumnsMut<'_>) {
        let rows = PANEL_FLOATS / unit;
        let pieces: Vec<_> = (0..out.width()).step_by(unit).map(|from| from..out.width().min(from + unit)).collect();
        let of_row = |columns: &Range<usize>| first + columns.start..first + columns.end;
        let tokens = self.lists.starts.len() - 1;
        let mut firing: Vec<&[FiredNeuron]> = Vec::with_capacity(tokens);
        cpu.panels.with(|scratch| {
            let panel = scratch.widened.take(rows * unit);
            // By piece, then by token. Tokens of `out` may be so far apart that they compete for
            // cache sets.
            let of_piece = tokens * unit;
            let acc = scratch.acc.take(pieces.len() * of_piece);
            acc.fill(0.0);
            for (at, neurons) in self.lists.active.chunks(rows).enumerate() {
                let place = at * rows;
                firing.clear();
                firing.extend(self.lists.of_panel(at));
                let next = &self.lists.active[place + neurons.len()..];
                for (piece, (columns, acc)) in pieces.iter().zip(acc.chunks_exact_mut(of_piece)).enumerate() {
                    let width = columns.len();
                    for (i, (neuron, to)) in neurons.iter().zip(panel.chunks_exact_mut(width)).enumerate() {
                        let ahead = piece * rows + i;
                        if let Some(later) = next.get(ahead / pieces.len()) {
                            let later = self.part(*later, of_row(&pieces[ahead % pieces.len()]));
                            later.chunks(LINE).for_each(|line| prefetch(line.as_ptr()));
                        }
                        cpu.kernels.widen(self.weight.weight_type(), self.part(*neuron, of_row(columns)), to);
                    }
                    let rows = PanelRows { panel: &panel[..neurons.len() * width], width, first: place };
                    dispatch(cpu.isa, AddPanel { rows, firing: &firing, acc });
                }
            }
            for (columns, acc) in pieces.into_iter().zip(acc.chunks_exact(of_piece)) {
                for (token, acc) in acc.chunks_exact(columns.len()).take(tokens).enumerate() {
                    let out = &mut out.row_mut(token)[columns.clone()];
                    out.iter_mut().zip(acc).for_each(|(out, acc)| *out += acc);
                }
            }
        });
    }
}

/// Adds up the rows of a panel.
struct AddPanel<'a> {
    rows: PanelRows<'a>,
    /// Neurons of the panel that fired for each token.
    firing: &'a [&'a [FiredNeuron]],
    /// `[tokens, width]` sums of every token, and spare room.
    acc: &'a mut [f32],
}

impl VectorKernel for AddPanel<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let AddPanel { rows, firing, acc } = self;
        let width = rows.width;
        for (firing, acc) in firing.iter().zip(acc.chunks_exact_mut(width)).filter(|(firing, _)| !firing.is_empty()) {
            let mut col = 0;
            while col + SUMS * V::LANES <= width {
                rows.add::<V, SUMS>(v, firing, col, acc);
                col += SUMS * V::LANES;
            }
            while col + V::LANES <= width {
                rows.add::<V, 1>(v, firing, col, acc);
                col += V::LANES;
            }
            for (col, acc) in acc.iter_mut().enumerate().skip(col) {
                firing.iter().for_each(|of| *acc += of.a * rows.panel[(of.at as usize - rows.first) * width + col]);
            }
        }
    }
}

/// Decoded rows. The first has index `first` among the fired neurons.
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
    fn add<V: Vector, const N: usize>(self, v: V, firing: &[FiredNeuron], col: usize, out: &mut [f32]) {
        let out = &mut out[col..][..N * V::LANES];
        let mut sums: [V::F; N] = std::array::from_fn(|i| v.load(&out[i * V::LANES..]));
        for FiredNeuron { at, a } in firing {
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
