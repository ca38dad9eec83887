//! Bundles of a layer: for each neuron a record with its up row, its down column and, in layers
//! with a predictor, its gate row. If the weights are on a disk, one read serves a neuron.

use thermocline_base::error::Result;
use thermocline_formats::{
    format::{Bytes, Matrix, RecordPart},
    quant::TensorType,
};
use thermocline_model::FfnWeights;

/// Bytes of the pages in which disks are read.
pub(super) const PAGE: usize = 4096;
/// Rows in a record begin at a multiple of this number of bytes.
const ALIGNMENT: usize = 32;
/// A record is padded to whole pages if the padding is at most a quarter of its rows.
const PADDING: usize = 4;
/// Approximate number of bytes that are written at a time.
const WRITTEN: usize = 1 << 20;

/// Rows that a layer's bundles contain beside the rows of its down projection.
#[derive(Debug, Clone)]
pub struct PreparedBundles {
    /// `[n_ff, d]`, the model's weights.
    pub up: Matrix,
    /// `[n_ff, d]`, the model's weights. `None` if a gate is read before it is known whether the
    /// other rows are needed.
    pub gate: Option<Matrix>,
}

impl PreparedBundles {
    /// Returns the rows to bundle with those of the neuron-major `down`. `predicted` is true if the
    /// layer has a predictor. `None` if bundles save no reads: without gates, the up rows of all
    /// neurons are read. `None` too for types whose matrices have a factor.
    pub fn of(ffn: &FfnWeights, down: &Matrix, predicted: bool) -> Option<Self> {
        let (up, gate) = (&ffn.up.weight, &ffn.gate.as_ref()?.weight);
        let is_plain = [up, gate, down].iter().all(|matrix| matrix.factor() == 1.0);
        is_plain.then(|| PreparedBundles { up: up.clone(), gate: predicted.then(|| gate.clone()) })
    }

    /// Returns all rows of the bundles, with those of the neuron-major `down`.
    pub(super) fn with(&self, down: &Matrix) -> BundleRows {
        BundleRows { up: self.up.clone(), down: down.clone(), gate: self.gate.clone() }
    }
}

/// Places of the rows in a record, and its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BundleLayout {
    starts: Vec<usize>,
    /// Bytes of a record.
    pub record: usize,
}

impl BundleLayout {
    /// Places rows of `d` columns, in the order up, down and gate. `None` if they are not whole
    /// blocks, or too large.
    pub fn new(types: &[TensorType], d: usize) -> Option<Self> {
        let (mut starts, mut end) = (Vec::with_capacity(types.len()), 0usize);
        for ty in types {
            starts.push(end);
            end = end.checked_add(ty.row_bytes(d)?)?.checked_next_multiple_of(ALIGNMENT)?;
        }
        let padded = if end < PAGE { end.next_power_of_two() } else { end.checked_next_multiple_of(PAGE)? };
        let record = if padded - end <= end / PADDING { padded } else { end };
        Some(BundleLayout { starts, record })
    }

    /// The place of row `at` of a record.
    fn part(&self, at: usize) -> Option<RecordPart> {
        Some(RecordPart { record: self.record, start: *self.starts.get(at)? })
    }
}

/// All rows of a layer's bundles.
#[derive(Debug, Clone)]
pub(super) struct BundleRows {
    /// `[n_ff, d]`
    pub up: Matrix,
    /// `[n_ff, d]`
    pub down: Matrix,
    /// `[n_ff, d]`
    pub gate: Option<Matrix>,
}

impl BundleRows {
    /// Finds rows of `d` columns and of `types` in `records`. `None` if a type is not a weight
    /// type, or there are not two or three types.
    pub fn find(types: &[TensorType], d: usize, layout: &BundleLayout, records: &Bytes) -> Option<Self> {
        let rows = |at: usize| Matrix::in_records(*types.get(at)?, d, layout.part(at)?, records);
        let gate = rows(2);
        let is_whole = types.len() == 2 || (types.len() == 3 && gate.is_some());
        is_whole.then_some(BundleRows { up: rows(0)?, down: rows(1)?, gate })
    }

    /// The matrices in the order of their rows in a record.
    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        [&self.up, &self.down].into_iter().chain(&self.gate)
    }

    /// The types of the rows.
    pub fn types(&self) -> Vec<TensorType> {
        self.matrices().map(Matrix::ty).collect()
    }

    /// `[n_ff, bytes of a record]`
    pub fn shape(&self) -> [usize; 2] {
        // The rows of a matrix are whole blocks and fit in memory.
        [self.up.rows(), BundleLayout::new(&self.types(), self.up.cols()).map_or(0, |layout| layout.record)]
    }

    /// Passes the bytes of all records to `write`, in pieces.
    ///
    /// # Errors
    /// Errors of `write`.
    pub fn write(&self, write: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let Some(layout) = BundleLayout::new(&self.types(), self.up.cols()) else { return Ok(()) };
        let at_once = (WRITTEN / layout.record.max(1)).max(1);
        let mut piece = Vec::new();
        for first in (0..self.up.rows()).step_by(at_once) {
            let neurons = first..self.up.rows().min(first + at_once);
            piece.clear();
            piece.resize(neurons.len() * layout.record, 0);
            for (neuron, record) in neurons.zip(piece.chunks_exact_mut(layout.record.max(1))) {
                for (matrix, start) in self.matrices().zip(&layout.starts) {
                    record[*start..][..matrix.row_bytes()].copy_from_slice(matrix.row(neuron));
                }
            }
            write(&piece)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_whole_pages_if_little_is_wasted() {
        use TensorType::{F16, Q4_0, Q5_K};
        let record = |types: &[TensorType], d| BundleLayout::new(types, d).unwrap().record;
        // Rows of 2304 and 2816 bytes: three rows fill two pages, and two rows do not.
        assert_eq!([record(&[Q4_0; 2], 4096), record(&[Q4_0, Q5_K, Q4_0], 4096)], [4608, 8192]);
        // Rows of 288 bytes, padded to a fraction of a page, or to a multiple of 32 bytes.
        assert_eq!([record(&[Q4_0; 3], 512), record(&[Q4_0; 2], 512)], [1024, 576]);
        let layout = BundleLayout::new(&[F16, Q4_0], 33 * 32).unwrap();
        assert_eq!((layout.starts, layout.record), (vec![0, 2112], 2720));
        assert_eq!(BundleLayout::new(&[Q4_0; 2], 33), None, "no whole blocks");
    }

    #[test]
    fn written_records_contain_the_rows_of_each_neuron() {
        let matrix = |seed: usize, ty: TensorType| {
            let bytes: Vec<u8> = (0..5 * ty.row_bytes(64).unwrap()).map(|at| (at * 7 + seed) as u8).collect();
            Matrix::new(ty, 5, 64, Bytes::new(bytes)).unwrap()
        };
        let (up, down) = (matrix(1, TensorType::Q4_0), matrix(2, TensorType::F16));
        for gate in [None, Some(matrix(3, TensorType::Q4_0))] {
            let rows = BundleRows { up: up.clone(), down: down.clone(), gate };
            let mut bytes = Vec::new();
            rows.write(&mut |piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            })
            .unwrap();
            let [neurons, record] = rows.shape();
            assert_eq!(bytes.len(), neurons * record);
            let (layout, records) = (BundleLayout::new(&rows.types(), 64).unwrap(), Bytes::new(bytes));
            let found = BundleRows::find(&rows.types(), 64, &layout, &records).unwrap();
            assert_eq!(found.gate.is_some(), rows.gate.is_some());
            for (found, wanted) in found.matrices().zip(rows.matrices()) {
                (0..5).for_each(|neuron| assert_eq!(found.row(neuron), wanted.row(neuron), "{neuron}"));
            }
            assert!(BundleRows::find(&rows.types()[..1], 64, &layout, &records).is_none());
        }
    }
}
