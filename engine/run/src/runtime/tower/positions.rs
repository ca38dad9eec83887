//! Positions of patches: learned embeddings that are interpolated to the picture's grid, and
//! rotations by row and column.

use super::patches::{PatchOrder, PatchPlace};
use thermocline_cpu::ops::{RopeRows, RopeTable};
use thermocline_model::{PatchPositions, TowerRope};

/// Two neighbours on one side of the learned square, with the weight of the second.
#[derive(Debug, Clone, Copy)]
struct Neighbours {
    first: usize,
    second: usize,
    weight: f32,
}

impl Neighbours {
    /// The neighbours of place `at` of `count`. The first and last places are the ends of the side.
    fn of(at: usize, count: usize, side: usize) -> Self {
        let source = at as f32 * (side - 1) as f32 / (count - 1).max(1) as f32;
        let first = (source as usize).min(side - 1);
        Neighbours { first, second: (first + 1).min(side - 1), weight: source - first as f32 }
    }
}

/// Adds the embeddings of the places of patches `first..` to `x`, `[patches, width]`.
pub(super) fn add(learned: &PatchPositions, order: &PatchOrder, first: usize, width: usize, x: &mut [f32]) {
    for (place, x) in order.places[first..].iter().zip(x.chunks_exact_mut(width)) {
        match learned {
            PatchPositions::Square { side, table } => add_interpolated(table, *side, order, *place, x),
            PatchPositions::Stretched { side, table } => {
                let (row, col) = (place.row * side / order.rows(), place.col * side / order.cols());
                let embedding = &table[(row * side + col) * width..][..width];
                x.iter_mut().zip(embedding).for_each(|(x, value)| *x += value);
            }
            PatchPositions::Sides { length, table } => {
                for (side, at) in [place.col, place.row].into_iter().enumerate() {
                    let at = side * length + at.min(length - 1);
                    x.iter_mut().zip(&table[at * width..][..width]).for_each(|(x, value)| *x += value);
                }
            }
        }
    }
}

/// Adds the embedding of one place, interpolated between those of a square.
fn add_interpolated(table: &[f32], side: usize, order: &PatchOrder, place: PatchPlace, x: &mut [f32]) {
    let (rows, cols) = (Neighbours::of(place.row, order.rows(), side), Neighbours::of(place.col, order.cols(), side));
    for (row, of_row) in [(rows.first, 1.0 - rows.weight), (rows.second, rows.weight)] {
        for (col, of_col) in [(cols.first, 1.0 - cols.weight), (cols.second, cols.weight)] {
            let weight = of_row * of_col;
            let embedding = &table[(row * side + col) * x.len()..][..x.len()];
            x.iter_mut().zip(embedding).for_each(|(x, value)| *x += weight * value);
        }
    }
}

/// Returns the rotations of all patches.
pub(super) fn rotations(head_dim: usize, rope: TowerRope, order: &PatchOrder) -> RopeRows {
    let mut rows = RopeRows::default();
    rows.fill(&rope_table(head_dim, rope), order.positions());
    rows
}

/// Returns the frequencies of the pairs of a head. The first half of the pairs rotates by the row,
/// the second half by the column.
pub(crate) fn rope_table(head_dim: usize, rope: TowerRope) -> RopeTable {
    let each = head_dim / 4;
    let frequency = |pair: usize| {
        let odd = if rope.alternating && pair >= each { 0.5 } else { 0.0 };
        rope.base.powf(-((pair % each) as f64 + odd) / each as f64)
    };
    RopeTable {
        frequencies: (0..2 * each).map(frequency).collect(),
        axes: (0..2 * each).map(|pair| if (pair < each) == rope.columns_first { 2 } else { 1 }).collect(),
        magnitude: 1.0,
        interleaved: rope.interleaved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_model::PictureGrid;

    /// On a grid of the learned size, each patch gets its own embedding.
    #[test]
    fn positions_of_the_learned_grid_are_not_interpolated() {
        let learned = PatchPositions::Square { side: 4, table: (0..16).map(|at| at as f32).collect() };
        let order = PatchOrder::new(PictureGrid { rows: 2, cols: 2 }, 2, None);
        let mut x = vec![0.0; 16];
        add(&learned, &order, 0, 1, &mut x);
        for (PatchPlace { row, col }, x) in order.places.iter().zip(&x) {
            assert_eq!(*x, (row * 4 + col) as f32);
        }
    }

    /// A patch has the embedding of the place where it begins.
    #[test]
    fn positions_are_stretched_to_other_grids() {
        let learned = PatchPositions::Stretched { side: 3, table: (0..9).map(|at| at as f32).collect() };
        let order = PatchOrder::new(PictureGrid { rows: 2, cols: 5 }, 1, None);
        let mut x = vec![0.0; 10];
        add(&learned, &order, 0, 1, &mut x);
        assert_eq!(x, [0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0]);
    }

    /// A wider grid interpolates between the ends of the learned one.
    #[test]
    fn positions_of_other_grids_keep_their_ends() {
        let learned = PatchPositions::Square { side: 2, table: vec![0.0, 3.0, 0.0, 3.0] };
        let order = PatchOrder::new(PictureGrid { rows: 1, cols: 2 }, 2, None);
        let mut x = vec![0.0; 8];
        add(&learned, &order, 0, 1, &mut x);
        for (place, x) in order.places.iter().zip(&x) {
            assert!((x - place.col as f32).abs() < 1e-6, "{place:?}: {x}");
        }
    }
}
