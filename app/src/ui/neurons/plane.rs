//! A byte per neuron for the shader, each layer's in the order in which they are shown, folded into rows of a texture.

use std::{ops::Range, sync::Arc};

use thermocline_engine::telemetry::neurons::NeuronShape;

use super::{
    grid::Grid,
    told::{Fold, Told},
};

/// Most neurons in a row of the texture. Every adapter has textures of this side.
const ROW: usize = 4096;

/// Most neurons of a layer: a sixteenth of them in one dot is as much as the shader can add up, squares of bytes in 32 bits.
const WIDEST: usize = 1 << 20;

/// The bytes of all layers.
#[derive(Debug)]
pub struct Plane {
    row: usize,
    /// `[layers]`: rows of each.
    rows: Vec<Range<usize>>,
    bytes: Arc<Vec<u8>>,
    version: u64,
    /// Rows that are different from the version before.
    fresh: Range<usize>,
}

impl Plane {
    /// An empty one for textures of at most `limit` texels a side; `None` for a model that does not fit one.
    pub fn new(shape: &NeuronShape, limit: usize) -> Option<Self> {
        let row = shape.widest().clamp(1, ROW);
        let mut end = 0;
        let rows: Vec<Range<usize>> = (0..shape.layers())
            .map(|layer| {
                let start = end;
                end += shape.neurons(layer).div_ceil(row);
                start..end
            })
            .collect();
        let bytes = Arc::new(vec![0; row * end]);
        let fits = end > 0 && end <= limit && row <= limit && shape.widest() <= WIDEST;
        fits.then_some(Plane { row, rows, bytes, version: 1, fresh: 0..end })
    }

    /// Begins a version.
    pub fn begin(&mut self) {
        self.version += 1;
        self.fresh = 0..0;
    }

    /// Writes what is told of a layer, whose neurons stand at `ranks`.
    pub fn write(&mut self, layer: usize, ranks: &[u32], told: &Told<'_>) {
        let Some(rows) = self.rows.get(layer).filter(|rows| !rows.is_empty()) else { return };
        let (from, to) = (rows.start * self.row, rows.end * self.row);
        // Nobody else holds them but a frame that was not drawn.
        if let Some(into) = Arc::make_mut(&mut self.bytes).get_mut(from..to) {
            told.write(ranks, into);
            self.fresh = match self.fresh.is_empty() {
                true => rows.clone(),
                false => self.fresh.start.min(rows.start)..self.fresh.end.max(rows.end),
            };
        }
    }

    /// The bytes, row by row.
    pub fn bytes(&self) -> &Arc<Vec<u8>> {
        &self.bytes
    }

    /// Width and height of the texture.
    pub fn size(&self) -> [usize; 2] {
        [self.row, self.bytes.len() / self.row]
    }

    /// Which version this is, and which rows are new in it.
    pub fn version(&self) -> (u64, Range<usize>) {
        (self.version, self.fresh.clone())
    }

    /// First row of a layer.
    pub fn first_row(&self, layer: usize) -> usize {
        self.rows.get(layer).map_or(0, |rows| rows.start)
    }

    /// What the shader makes of a layer's neurons at `ranks`: the levels of its dots, line by line.
    pub fn levels(&self, layer: usize, ranks: Range<usize>, grid: Grid, fold: Fold) -> Vec<u8> {
        let first = self.first_row(layer) * self.row + ranks.start;
        let mut levels = vec![0; grid.dots()];
        for dot in 0..grid.dots() {
            let some = grid.neurons(dot, ranks.len());
            let bytes = self.bytes.get(first + some.start..first + some.end).unwrap_or_default();
            levels[grid.texel(dot)] = fold.level(bytes);
        }
        levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_folded_and_only_what_changed_is_fresh() {
        let shape = NeuronShape::new([5000, 0, 3]);
        let mut plane = Plane::new(&shape, 8192).unwrap();
        assert_eq!((plane.size(), plane.first_row(2), plane.version()), ([4096, 3], 2, (1, 0..3)));
        plane.begin();
        assert_eq!(plane.version(), (2, 0..0));
        let ranks: Vec<u32> = (0..5000).rev().collect();
        plane.write(2, &[2, 0, 1], &Told::Fired(&[0b001]));
        plane.write(1, &[], &Told::Fired(&[]));
        assert_eq!((&plane.bytes()[2 * 4096..][..4], plane.version()), (&[0, 0, 1, 0][..], (2, 2..3)));
        plane.write(0, &ranks, &Told::Fired(&[0b101]));
        assert_eq!((plane.bytes()[4999], plane.bytes()[4998], plane.bytes()[4997]), (1, 0, 1));
        assert_eq!(plane.version(), (2, 0..3));
        let grid = Grid { columns: 3, lines: 1 };
        assert_eq!(plane.levels(2, 0..3, grid, Fold::Share), [0, 0, 255]);
        assert_eq!(plane.levels(2, 1..3, grid, Fold::Share), [0, 255, 0]);
        assert_eq!(plane.levels(0, 0..5000, Grid { columns: 1, lines: 1 }, Fold::Share), [5]);
    }

    #[test]
    fn what_does_not_fit_a_texture_is_left_to_the_picture() {
        assert!(Plane::new(&NeuronShape::new([4096; 100]), 99).is_none());
        assert!(Plane::new(&NeuronShape::new([(1 << 20) + 1]), 8192).is_none());
        assert!(Plane::new(&NeuronShape::new([0, 0]), 8192).is_none());
        assert_eq!(Plane::new(&NeuronShape::new([28_672; 80]), 8192).map(|plane| plane.size()), Some([4096, 560]));
    }
}
