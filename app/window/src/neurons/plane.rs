//! The plane: one byte per neuron in the display order of its layer, in rows of a texture. A shader
//! folds the bytes of a dot into its level. Without a shader, [`Plane::levels`] does the same.

use std::{ops::Range, sync::Arc};

use thermocline_engine::telemetry::neurons::NeuronShape;

use super::{
    grid::Grid,
    layer_values::{Fold, LayerValues},
};

/// Maximum number of neurons in a row of the texture. Every adapter supports textures of this
/// width.
const ROW: usize = 4096;

/// Maximum number of neurons of a layer. A dot then has at most a sixteenth of them, and the shader
/// can sum the squares of their bytes in 32 bits.
const WIDEST: usize = 1 << 20;

/// The bytes of all layers.
#[derive(Debug, Clone, Default)]
pub struct Plane {
    row: usize,
    /// Number of neurons of the widest layer.
    widest: usize,
    /// Rows of each layer, `[layers]`.
    rows: Vec<Range<usize>>,
    /// The bytes, row by row.
    pub bytes: Arc<Vec<u8>>,
    version: u64,
    /// Rows that changed in this version.
    fresh: Range<usize>,
}

impl Plane {
    /// Creates an empty plane.
    pub fn new(shape: &NeuronShape) -> Self {
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
        Plane { row, widest: shape.widest(), rows, bytes, version: 1, fresh: 0..end }
    }

    /// True if a texture with at most `limit` texels per side can hold the plane and the shader can
    /// sum its dots.
    pub fn fits_texture(&self, limit: usize) -> bool {
        let [columns, rows] = self.size();
        rows > 0 && rows <= limit && columns <= limit && self.widest <= WIDEST
    }

    /// Begins a new version.
    pub fn begin(&mut self) {
        self.version += 1;
        self.fresh = 0..0;
    }

    /// Writes the values of a layer. `ranks` are the neurons' places.
    pub fn write(&mut self, layer: usize, ranks: &[u32], values: &LayerValues<'_>) {
        let Some(rows) = self.rows.get(layer).filter(|rows| !rows.is_empty()) else { return };
        let (from, to) = (rows.start * self.row, rows.end * self.row);
        // The bytes are copied only if a frame that was not drawn still holds them.
        if let Some(into) = Arc::make_mut(&mut self.bytes).get_mut(from..to) {
            values.write(ranks, into);
            self.fresh = match self.fresh.is_empty() {
                true => rows.clone(),
                false => self.fresh.start.min(rows.start)..self.fresh.end.max(rows.end),
            };
        }
    }

    /// Width and height of the texture.
    pub fn size(&self) -> [usize; 2] {
        [self.row, self.bytes.len() / self.row.max(1)]
    }

    /// The version of the bytes, and the rows that changed in it.
    pub fn version(&self) -> (u64, Range<usize>) {
        (self.version, self.fresh.clone())
    }

    /// First row of a layer.
    pub fn first_row(&self, layer: usize) -> usize {
        self.rows.get(layer).map_or(0, |rows| rows.start)
    }

    /// The levels of a layer's dots for the neurons at `ranks`, `[lines, columns]`, equal to the
    /// shader's result.
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
    use thermocline_engine::telemetry::neurons::Difference;

    use super::*;
    use crate::neurons::{layer_values::code, order::NeuronOrder};

    #[test]
    fn plane_version_covers_written_rows_and_levels_fold_ranks() {
        let shape = NeuronShape::new([5000, 0, 3]);
        let mut plane = Plane::new(&shape);
        assert_eq!((plane.size(), plane.first_row(2), plane.version()), ([4096, 3], 2, (1, 0..3)));
        plane.begin();
        assert_eq!(plane.version(), (2, 0..0));
        let ranks: Vec<u32> = (0..5000).rev().collect();
        plane.write(2, &[2, 0, 1], &LayerValues::Fired(&[0b001]));
        plane.write(1, &[], &LayerValues::Fired(&[]));
        assert_eq!((&plane.bytes[2 * 4096..][..4], plane.version()), (&[0, 0, 1, 0][..], (2, 2..3)));
        plane.write(0, &ranks, &LayerValues::Fired(&[0b101]));
        assert_eq!((plane.bytes[4999], plane.bytes[4998], plane.bytes[4997]), (1, 0, 1));
        assert_eq!(plane.version(), (2, 0..3));
        let grid = Grid { columns: 3, lines: 1 };
        assert_eq!(plane.levels(2, 0..3, grid, Fold::Fraction), [0, 0, 255]);
        assert_eq!(plane.levels(2, 1..3, grid, Fold::Fraction), [0, 255, 0]);
        assert_eq!(plane.levels(0, 0..5000, Grid { columns: 1, lines: 1 }, Fold::Fraction), [5]);
    }

    #[test]
    fn plane_fits_a_texture_within_its_row_limit() {
        let plane = |widths: &[usize]| Plane::new(&NeuronShape::new(widths.iter().copied()));
        assert!(!plane(&[4096; 100]).fits_texture(99) && plane(&[4096; 100]).fits_texture(4096));
        assert!(!plane(&[(1 << 20) + 1]).fits_texture(8192) && !plane(&[0, 0]).fits_texture(8192));
        assert_eq!(plane(&[28_672; 80]).size(), [4096, 560]);
    }

    /// The levels of two dots of two neurons each. The hot neurons 1 and 3 are in the first dot.
    fn dots(values: &LayerValues<'_>, fold: Fold) -> Vec<u8> {
        let order = NeuronOrder::by_frequency(4, &[], &[0b1010]);
        let mut plane = Plane::new(&NeuronShape::new([4]));
        plane.write(0, &order.ranks, values);
        plane.levels(0, 0..4, Grid { columns: 2, lines: 1 }, fold)
    }

    #[test]
    fn plane_levels_fold_the_neurons_of_each_dot() {
        assert_eq!(dots(&LayerValues::Fired(&[0b1011]), Fold::Fraction), [255, 180]);
        assert_eq!(dots(&LayerValues::Places(&[0b1010]), Fold::Placement), [255, 1]);
        assert_eq!(dots(&LayerValues::Strength(&[10, 0, 30, 40]), Fold::Most), [40, 30]);
        assert_eq!(dots(&LayerValues::Prediction(&[0b1011], &[0b0110]), Fold::Prediction), [code::MISS, code::MISS]);
        assert_eq!(
            dots(&LayerValues::Prediction(&[0b1010], &[0b1111]), Fold::Prediction),
            [code::HIT, code::FALSE_ALARM]
        );
        let change = Difference { began: vec![0b1001], ended: vec![0b0100] };
        assert_eq!(dots(&LayerValues::Changes(change), Fold::Union), [code::BEGAN, code::BOTH]);
        assert_eq!(dots(&LayerValues::Frequency(&[0.25, 1.0, 0.25, 1.0]), Fold::Mean), [255, 128]);
        assert_eq!(dots(&LayerValues::Ages(&[None, Some(0), None, Some(50)]), Fold::Most), [255, 0]);
        assert_eq!(dots(&LayerValues::Nothing, Fold::Fraction), [0, 0]);
    }

    #[test]
    fn plane_levels_do_not_overflow_with_many_neurons() {
        let neurons = 1 << 18;
        let (order, shape) = (NeuronOrder::of_model(neurons), NeuronShape::new([neurons]));
        let (all, none) = (vec![u32::MAX; neurons / 32], vec![0; neurons / 32]);
        let few: Vec<u32> = (0..neurons / 32).map(|word| u32::from(word % 2 == 0)).collect();
        let rest: Vec<u32> = few.iter().map(|word| !word).collect();
        let mut plane = Plane::new(&shape);
        let mut levels = |values: LayerValues<'_>, fold| {
            plane.write(0, &order.ranks, &values);
            plane.levels(0, 0..neurons, Grid { columns: 2, lines: 1 }, fold)
        };
        assert_eq!(levels(LayerValues::Prediction(&all, &all), Fold::Prediction), [code::HIT; 2]);
        assert_eq!(levels(LayerValues::Prediction(&none, &all), Fold::Prediction), [code::FALSE_ALARM; 2]);
        assert_eq!(levels(LayerValues::Prediction(&few, &all), Fold::Prediction), [code::FALSE_ALARM; 2]);
        assert_eq!(levels(LayerValues::Prediction(&rest, &all), Fold::Prediction), [code::HIT; 2]);
        assert_eq!(levels(LayerValues::Prediction(&none, &none), Fold::Prediction), [0; 2]);
        assert_eq!(levels(LayerValues::Fired(&all), Fold::Fraction), [255; 2]);
        assert_eq!(levels(LayerValues::Places(&all), Fold::Placement), [255; 2]);
        assert_eq!(levels(LayerValues::Frequency(&vec![1.0; neurons]), Fold::Mean), [255; 2]);
    }

    #[test]
    fn neurons_outside_the_view_have_no_dots() {
        let (order, mut plane) = (NeuronOrder::of_model(64), Plane::new(&NeuronShape::new([64])));
        plane.write(0, &order.ranks, &LayerValues::Fired(&[u32::MAX, 0b10]));
        let levels = plane.levels(0, 32..40, Grid { columns: 4, lines: 2 }, Fold::Fraction);
        // The second neuron is in the first column, on the second line.
        assert_eq!(levels, [0, 0, 0, 0, 255, 0, 0, 0]);
    }
}
