//! Neuron-major down projections. A GGUF file stores `[d, n_ff]`. Each neuron is a column, spread
//! over the whole matrix, so that skipping neurons saves no reads. Transposed to `[n_ff, d]`, each
//! neuron is a row.
//!
//! Floats are copied. Quantised blocks run along the rows, so transposing quantises again and adds
//! an error. The cheapest type is chosen whose error is small relative to that of the file's own
//! type.

use std::ops::ControlFlow;

use super::{Down, Ffn, Model, Weights};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_cpu::ThreadPool;
use thermocline_formats::{
    format::{Bytes, Matrix, anonymous},
    quant,
    quant::TensorType,
};

/// Columns of the file's matrix that are transposed at a time: a whole number of blocks of any
/// type.
const TILE: usize = 256;
/// Rows that are decoded before they are transposed: a cache line of each neuron's row.
const ROWS: usize = 16;
/// Types that a neuron-major matrix may have: the types with row-summing kernels on every
/// instruction set. Other types of as many bits are several times slower.
const TYPES: [TensorType; 5] =
    [TensorType::Q4_0, TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K, TensorType::Q8_0];
/// Number of neurons from which the type is selected.
const SAMPLE: usize = 24;
/// Relative error that counts as small for any file type: about the error of 8 bits.
const SMALL_ERROR: f64 = 0.01;
/// Relative error allowed for file types that this engine cannot encode. All of them have about 4
/// bits or fewer.
const COARSE_ERROR: f64 = 0.045;

/// Result of transposing a model's down projections.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NeuronMajorReport {
    /// Number of matrices transposed.
    pub matrices: usize,
    /// Bytes of memory that the transposed matrices take.
    pub bytes: u64,
    /// Largest relative error of a requantised matrix: root mean square of the difference from the
    /// file's weights, relative to the weights.
    pub error: f64,
}

impl Model {
    /// Returns the same model with neuron-major down projections. Output-major ones are transposed
    /// in memory, except I2_S. The models share everything else. `progress` receives the number of
    /// layers done and their total.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if `progress` cancels, [`Error::Memory`] if there is no room,
    /// [`Error::Invalid`] for weights that are not finite.
    pub fn neuron_major(
        &self,
        pool: &ThreadPool,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<(Model, NeuronMajorReport)> {
        let mut report = NeuronMajorReport::default();
        let mut transpose = |down: &Matrix| {
            let (weight, error) = neuron_major(pool, down)?;
            report.matrices += 1;
            report.bytes += weight.data().len() as u64;
            report.error = report.error.max(error);
            Ok(weight)
        };
        let model = self.with_downs(&mut transpose, progress)?;
        Ok((model, report))
    }

    /// Returns the same model with `transpose` applied to each output-major down projection, except
    /// I2_S.
    ///
    /// # Errors
    /// Errors of `transpose`, and [`Error::Cancelled`] if `progress` cancels.
    pub(crate) fn with_downs(
        &self,
        transpose: &mut dyn FnMut(&Matrix) -> Result<Matrix>,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Model> {
        let mut neuron_major = |down: &Down| match down {
            // Its possible types take four times the bytes, more than skipping saves.
            Down::Outputs(down) if down.weight.ty() == TensorType::I2_S => Ok(None),
            Down::Outputs(down) => transpose(&down.weight).map(Some),
            Down::Neurons(_) => Ok(None),
        };
        let mut weights: Weights = self.weights.clone();
        let layers = weights.layers.len();
        for (done, layer) in weights.layers.iter_mut().enumerate() {
            if progress(done, layers).is_break() {
                return Err(Error::Cancelled);
            }
            match &mut layer.ffn {
                Ffn::None => {}
                Ffn::Dense(ffn) => {
                    if let Some(weight) = neuron_major(&ffn.down)? {
                        ffn.down.set_neuron_major(weight);
                    }
                }
                Ffn::Experts(moe) => {
                    let downs = moe.downs().map(&mut neuron_major).collect::<Result<Vec<_>>>()?;
                    moe.set_neuron_major(downs);
                }
            }
        }
        Ok(Model { weights, ..self.clone() })
    }
}

/// Transposes `down` from `[d, n_ff]` to `[n_ff, d]`. Also returns the error: root mean square of
/// the difference, relative to the weights; 0 for floats.
///
/// # Errors
/// [`Error::Memory`] if there is no room, [`Error::Invalid`] for weights that are not finite.
pub fn neuron_major(pool: &ThreadPool, down: &Matrix) -> Result<(Matrix, f64)> {
    let (d, n_ff) = (down.rows(), down.cols());
    let ty = select_type(pool, down)?;
    let Some(row_bytes) = ty.row_bytes(d) else {
        return Err(Error::invalid("rows of a down projection", format!("whole blocks of {ty}"), d));
    };
    let bytes = row_bytes.saturating_mul(n_ff);
    if bytes == 0 {
        let empty = Matrix::new(ty, n_ff, d, Bytes::new(Vec::new()));
        return empty.map(|empty| (empty, 0.0)).ok_or_else(|| no_matrix(ty, n_ff, d));
    }
    let mut memory = anonymous(bytes, "neuron-major down projection")?;
    let tiles = memory.chunks_mut(TILE * row_bytes).enumerate();
    let mut tiles: Vec<_> = tiles.map(|(at, out)| (at, out, Ok((0.0, 0.0)))).collect();
    pool.for_each(&mut tiles, |_, (at, out, done)| *done = encode_tile(down, ty, *at, out));
    let (mut error, mut square) = (0.0, 0.0);
    for (_, _, done) in tiles {
        let (tile_error, tile_square) = done?;
        error += tile_error;
        square += tile_square;
    }
    let memory = memory
        .make_read_only()
        .map_err(|_| Error::memory(ScarceMemory::Ram, "neuron-major down projection", bytes as u64, 0))?;
    let transposed = Matrix::new(ty, n_ff, d, Bytes::new(memory)).ok_or_else(|| no_matrix(ty, n_ff, d))?;
    Ok((transposed, relative(error, square)))
}

pub(crate) fn no_matrix(ty: TensorType, n_ff: usize, d: usize) -> Error {
    Error::invalid("down projection", format!("whole rows of {ty}"), format!("[{d}, {n_ff}]"))
}

/// Encodes the neurons of tile `at` into `out`. Returns the sums of squared errors and of squared
/// weights.
fn encode_tile(down: &Matrix, ty: TensorType, at: usize, out: &mut [u8]) -> Result<(f64, f64)> {
    let d = down.rows();
    let first = at * TILE;
    let neurons = TILE.min(down.cols() - first);
    let values = decode(down, first, neurons);
    let (mut row, mut error, mut square) = (Vec::new(), 0.0, 0.0);
    let mut back = vec![0.0; d];
    for (values, out) in values.chunks_exact(d).zip(out.chunks_exact_mut(out.len() / neurons)) {
        row.clear();
        quant::quantise(ty, values, &mut row)?;
        out.copy_from_slice(&row);
        if ty.block_len() > 1 {
            quant::dequantise(ty, &row, &mut back);
            error += squared_distance(values, &back);
            square += values.iter().map(|x| f64::from(x * x)).sum::<f64>();
        }
    }
    Ok((error, square))
}

/// Returns columns `first..first + neurons` of `down` as rows, `[neurons, d]`. Except at the end of
/// the matrix, both numbers are multiples of a block.
fn decode(down: &Matrix, first: usize, neurons: usize) -> Vec<f32> {
    let (d, ty) = (down.rows(), down.ty());
    let at = |column: usize| column / ty.block_len() * ty.block_bytes();
    let mut values = vec![0.0; neurons * d];
    let mut decoded = vec![0.0; ROWS * neurons];
    for start in (0..d).step_by(ROWS) {
        let rows = ROWS.min(d - start);
        for (row, decoded) in decoded.chunks_exact_mut(neurons).take(rows).enumerate() {
            quant::dequantise(ty, &down.row(start + row)[at(first)..at(first + neurons)], decoded);
            down.scale(decoded);
        }
        for (neuron, values) in values.chunks_exact_mut(d).enumerate() {
            for (row, value) in values[start..start + rows].iter_mut().enumerate() {
                *value = decoded[row * neurons + neuron];
            }
        }
    }
    values
}

/// Selects the type of the transposed `down`.
fn select_type(pool: &ThreadPool, down: &Matrix) -> Result<TensorType> {
    let (d, own) = (down.rows(), down.ty());
    if own.block_len() == 1 {
        return Ok(own);
    }
    // Takes a few neurons from three tiles. A tile begins with a block.
    let tiles = down.cols().div_ceil(TILE);
    let picked = [0, tiles / 2, tiles.saturating_sub(1)];
    let mut sample = Vec::new();
    for tile in picked {
        let first = tile * TILE;
        let neurons = own.block_len().min(down.cols() - first);
        sample.extend_from_slice(&decode(down, first, neurons)[..neurons.min(SAMPLE / picked.len()) * d]);
    }
    cheapest(pool, own, d, &sample)
}

/// Returns the cheapest type for neurons of `d` weights, judged by a `sample` of them. `own` is the
/// file's type, whose blocks run along the other axis.
pub(crate) fn cheapest(pool: &ThreadPool, own: TensorType, d: usize, sample: &[f32]) -> Result<TensorType> {
    let mut types: Vec<(TensorType, Result<f64>)> =
        TYPES.into_iter().filter(|ty| ty.row_bytes(d).is_some()).map(|ty| (ty, Ok(0.0))).collect();
    types.sort_by_key(|(ty, _)| (ty.block_bytes() * 256 / ty.block_len(), *ty));
    if quant::QUANTISABLE.contains(&own) && !TYPES.contains(&own) && own.row_bytes(d).is_some() {
        // The file's type is no candidate, but its error is the reference.
        types.push((own, Ok(0.0)));
    }
    pool.for_each(&mut types, |_, (ty, error)| *error = sample_error(*ty, sample));
    let mut errors = Vec::with_capacity(types.len());
    for (ty, error) in types {
        errors.push((ty, error?));
    }
    // With blocks along the other axis, the file's type would have about the same error as in the
    // file. An error of half that size adds an eighth to the noise.
    let lost = errors.iter().find(|(ty, _)| *ty == own).map_or(2.0 * COARSE_ERROR, |(_, error)| *error);
    let allowed = (lost / 2.0).max(SMALL_ERROR);
    let cheapest = errors.into_iter().find(|(ty, error)| TYPES.contains(ty) && *error <= allowed);
    Ok(cheapest.map_or(TensorType::F16, |(ty, _)| ty))
}

/// Returns the relative error of `values`, some rows, in type `ty`.
fn sample_error(ty: TensorType, values: &[f32]) -> Result<f64> {
    let mut bytes = Vec::new();
    quant::quantise(ty, values, &mut bytes)?;
    let mut back = vec![0.0; values.len()];
    quant::dequantise(ty, &bytes, &mut back);
    Ok(relative(squared_distance(values, &back), values.iter().map(|x| f64::from(x * x)).sum()))
}

fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from((a - b) * (a - b))).sum()
}

fn relative(error: f64, square: f64) -> f64 {
    if square > 0.0 { (error / square).sqrt() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outline::normal;

    fn matrix(ty: TensorType, rows: usize, cols: usize) -> Matrix {
        let mut bytes = Vec::new();
        quant::quantise(ty, &normal(rows * cols), &mut bytes).unwrap();
        Matrix::new(ty, rows, cols, Bytes::new(bytes)).unwrap()
    }

    /// Returns the largest difference of any weight from its transposed copy.
    fn moved(from: &Matrix, to: &Matrix) -> f32 {
        let (mut row, mut column) = (vec![0.0; from.cols()], vec![0.0; to.cols()]);
        let mut all = vec![vec![0.0; from.rows()]; from.cols()];
        for r in 0..from.rows() {
            from.dequantise_row(r, &mut row);
            row.iter().enumerate().for_each(|(c, x)| all[c][r] = *x);
        }
        let mut most = 0.0_f32;
        for (n, wanted) in all.iter().enumerate() {
            to.dequantise_row(n, &mut column);
            column.iter().zip(wanted).for_each(|(a, b)| most = most.max((a - b).abs()));
        }
        most
    }

    #[test]
    fn transposed_floats_are_exact() {
        let pool = ThreadPool::new(Some(2));
        for ty in [TensorType::F32, TensorType::F16, TensorType::BF16] {
            for (d, n_ff) in [(1, 1), (33, 300), (64, 512), (17, 3)] {
                let down = matrix(ty, d, n_ff);
                let (transposed, error) = neuron_major(&pool, &down).unwrap();
                assert_eq!((transposed.ty(), transposed.rows(), transposed.cols(), error), (ty, n_ff, d, 0.0));
                assert_eq!(moved(&down, &transposed), 0.0, "{ty} [{d}, {n_ff}]");
            }
        }
    }

    #[test]
    fn requantisation_errors_are_small_beside_those_of_the_file_type() {
        let pool = ThreadPool::new(Some(2));
        // File type, most bits per weight of the neuron-major type, largest error.
        let cases = [
            (TensorType::Q4_0, 6.6, 0.05),
            (TensorType::Q4_K, 6.6, 0.045),
            (TensorType::Q6_K, 8.5, 0.01),
            (TensorType::Q8_0, 8.5, 0.01),
        ];
        for (ty, bits, allowed) in cases {
            let down = matrix(ty, 512, 768);
            let (transposed, error) = neuron_major(&pool, &down).unwrap();
            let used = (transposed.ty().block_bytes() * 8) as f64 / transposed.ty().block_len() as f64;
            assert!(used <= bits && error > 0.0 && error <= allowed, "{ty} -> {} with {error}", transposed.ty());
            assert!(moved(&down, &transposed) < 0.2, "{ty} -> {}", transposed.ty());
        }
        // Rows that are not whole blocks.
        let down = matrix(TensorType::Q8_0, 24, 64);
        let (transposed, error) = neuron_major(&pool, &down).unwrap();
        assert_eq!((transposed.ty(), error), (TensorType::F16, 0.0));
        assert!(moved(&down, &transposed) < 2e-3);
    }

    #[test]
    fn transposing_is_deterministic_at_any_thread_count() {
        let down = matrix(TensorType::Q5_0, 96, 600 / 32 * 32);
        let [one, three] = [1, 3].map(|threads| neuron_major(&ThreadPool::new(Some(threads)), &down).unwrap());
        assert_eq!((one.0.ty(), one.0.data(), one.1), (three.0.ty(), three.0.data(), three.1));
    }
}
