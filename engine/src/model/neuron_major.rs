//! Down projections with neurons as rows. A GGUF file stores `[d, n_ff]`: what a neuron adds is a column, spread over the whole
//! matrix, so skipping neurons saves nothing. Turned to `[n_ff, d]` a neuron is a row.
//!
//! Floats stay what they are. Quantised blocks lie along the rows, so turning means quantising anew, which loses a little once
//! more; the cheapest type is taken that adds little to what the file's own type has lost.

use std::ops::ControlFlow;

use super::{Down, Ffn, Linear, Model, Weights};
use crate::{
    cpu::ThreadPool,
    error::{Error, Result},
    format::{Bytes, Matrix, TensorType, anonymous, blocks},
};

/// Columns of the file's matrix turned at a time, a whole number of any type's blocks.
const TILE: usize = 256;
/// Rows decoded before they are turned: a cache line of each turned row.
const ROWS: usize = 16;
/// Types a turned matrix may have: those whose rows are summed by kernels made for them, on every instruction set. The others
/// of as many bits are several times as slow.
const TYPES: [TensorType; 5] =
    [TensorType::Q4_0, TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K, TensorType::Q8_0];
/// Neurons from which the type is chosen.
const SAMPLE: usize = 24;
/// An error that is small whatever the file's type: about what 8 bits lose.
const SMALL_ERROR: f64 = 0.01;
/// The error allowed for a file type that this engine does not write, all of which have about 4 bits or fewer.
const COARSE_ERROR: f64 = 0.045;

/// What turning a model's down projections came to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NeuronMajorReport {
    /// Matrices turned.
    pub matrices: usize,
    /// Bytes of memory they take.
    pub bytes: u64,
    /// Largest error of one that was quantised anew: root of the mean squared difference from the file's weights, as a share of
    /// their root mean square.
    pub error: f64,
}

impl Model {
    /// The same model with a row per neuron in every down projection, made in memory where the file has none; everything else
    /// is shared. `progress` is told how many layers are done, of how many.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if `progress` says so, [`Error::Memory`] if there is no room, [`Error::Invalid`] for weights that
    /// are no numbers.
    pub fn neuron_major(
        &self,
        pool: &ThreadPool,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<(Model, NeuronMajorReport)> {
        let mut report = NeuronMajorReport::default();
        let mut turn = |down: &Matrix| {
            let (weight, error) = neuron_major(pool, down)?;
            report.matrices += 1;
            report.bytes += weight.data().len() as u64;
            report.error = report.error.max(error);
            Ok(weight)
        };
        let model = self.with_downs(&mut turn, progress)?;
        Ok((model, report))
    }

    /// The same model with what `turn` makes of each down projection that has no row per neuron.
    ///
    /// # Errors
    /// Those of `turn`, [`Error::Cancelled`] if `progress` says so.
    pub(super) fn with_downs(
        &self,
        turn: &mut dyn FnMut(&Matrix) -> Result<Matrix>,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Model> {
        let mut turned = |down: &Down| match down {
            Down::Outputs(down) => turn(&down.weight).map(Some),
            Down::Neurons(_) => Ok(None),
        };
        let mut weights: Weights = self.weights.clone();
        let layers = weights.layers.len();
        for (done, layer) in weights.layers.iter_mut().enumerate() {
            if progress(done, layers).is_break() {
                return Err(Error::Cancelled);
            }
            match &mut layer.ffn {
                Ffn::Dense(ffn) => {
                    if let Some(weight) = turned(&ffn.down)? {
                        let (Down::Outputs(old) | Down::Neurons(old)) = &mut ffn.down;
                        ffn.down = Down::Neurons(Linear { weight, bias: old.bias.take() });
                    }
                }
                Ffn::Experts(mixture) => {
                    let all = mixture.downs().map(&mut turned).collect::<Result<Vec<_>>>()?;
                    mixture.turn(all);
                }
            }
        }
        Ok(Model { config: self.config.clone(), weights, checkpoint: self.checkpoint.clone() })
    }
}

/// `down` `[d, n_ff]` as `[n_ff, d]`, and the error made: root of the mean squared difference, as a share of the weights' root
/// mean square; 0 for floats.
///
/// # Errors
/// [`Error::Memory`] if there is no room, [`Error::Invalid`] for weights that are no numbers.
pub fn neuron_major(pool: &ThreadPool, down: &Matrix) -> Result<(Matrix, f64)> {
    let (d, n_ff) = (down.rows(), down.cols());
    let ty = choose(pool, down)?;
    let Some(row_bytes) = ty.row_bytes(d) else {
        return Err(Error::invalid("rows of a down projection", format!("whole blocks of {ty}"), d));
    };
    let bytes = row_bytes.saturating_mul(n_ff);
    if bytes == 0 {
        let empty = Matrix::new(ty, n_ff, d, Bytes::new(Vec::new()));
        return empty.map(|empty| (empty, 0.0)).ok_or_else(|| no_matrix(ty, n_ff, d));
    }
    let mut memory = anonymous(bytes, "down projection with a row per neuron")?;
    let tiles = memory.chunks_mut(TILE * row_bytes).enumerate();
    let mut tiles: Vec<_> = tiles.map(|(at, out)| (at, out, Ok((0.0, 0.0)))).collect();
    pool.for_each(&mut tiles, |_, (at, out, done)| *done = encode_tile(down, ty, *at, out));
    let (mut error, mut square) = (0.0, 0.0);
    for (_, _, done) in tiles {
        let (tile_error, tile_square) = done?;
        error += tile_error;
        square += tile_square;
    }
    let memory = memory.make_read_only().map_err(|_| Error::Memory {
        what: "down projection with a row per neuron",
        wanted: bytes as u64,
        available: 0,
    })?;
    let turned = Matrix::new(ty, n_ff, d, Bytes::new(memory)).ok_or_else(|| no_matrix(ty, n_ff, d))?;
    Ok((turned, relative(error, square)))
}

pub(super) fn no_matrix(ty: TensorType, n_ff: usize, d: usize) -> Error {
    Error::invalid("down projection", format!("whole rows of {ty}"), format!("[{d}, {n_ff}]"))
}

/// Encodes the neurons of tile `at` into `out`; gives the sums of squared errors and of squares.
fn encode_tile(down: &Matrix, ty: TensorType, at: usize, out: &mut [u8]) -> Result<(f64, f64)> {
    let d = down.rows();
    let first = at * TILE;
    let neurons = TILE.min(down.cols() - first);
    let values = decode(down, first, neurons);
    let (mut row, mut error, mut square) = (Vec::new(), 0.0, 0.0);
    let mut back = vec![0.0; d];
    for (values, out) in values.chunks_exact(d).zip(out.chunks_exact_mut(out.len() / neurons)) {
        row.clear();
        blocks::quantise(ty, values, &mut row)?;
        out.copy_from_slice(&row);
        if ty.block_len() > 1 {
            blocks::dequantise(ty, &row, &mut back);
            error += squared_distance(values, &back);
            square += values.iter().map(|x| f64::from(x * x)).sum::<f64>();
        }
    }
    Ok((error, square))
}

/// Columns `first..first + neurons` of `down` as rows, `[neurons, d]`; both are multiples of a block, but at the end.
fn decode(down: &Matrix, first: usize, neurons: usize) -> Vec<f32> {
    let (d, ty) = (down.rows(), down.ty());
    let at = |column: usize| column / ty.block_len() * ty.block_bytes();
    let mut values = vec![0.0; neurons * d];
    let mut decoded = vec![0.0; ROWS * neurons];
    for start in (0..d).step_by(ROWS) {
        let rows = ROWS.min(d - start);
        for (row, decoded) in decoded.chunks_exact_mut(neurons).take(rows).enumerate() {
            blocks::dequantise(ty, &down.row(start + row)[at(first)..at(first + neurons)], decoded);
        }
        for (neuron, values) in values.chunks_exact_mut(d).enumerate() {
            for (row, value) in values[start..start + rows].iter_mut().enumerate() {
                *value = decoded[row * neurons + neuron];
            }
        }
    }
    values
}

/// The type for `down` turned.
fn choose(pool: &ThreadPool, down: &Matrix) -> Result<TensorType> {
    let (d, own) = (down.rows(), down.ty());
    if own.block_len() == 1 {
        return Ok(own);
    }
    // A few neurons from here and there; a tile begins with a block.
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

/// The type for some neurons of `d` values, `sample`, that have blocks of type `own` the other way.
pub(super) fn cheapest(pool: &ThreadPool, own: TensorType, d: usize, sample: &[f32]) -> Result<TensorType> {
    let mut types: Vec<(TensorType, Result<f64>)> =
        TYPES.into_iter().filter(|ty| ty.row_bytes(d).is_some()).map(|ty| (ty, Ok(0.0))).collect();
    types.sort_by_key(|(ty, _)| (ty.block_bytes() * 256 / ty.block_len(), *ty));
    if blocks::QUANTISABLE.contains(&own) && !TYPES.contains(&own) && own.row_bytes(d).is_some() {
        // Not to be chosen, but to be known.
        types.push((own, Ok(0.0)));
    }
    pool.for_each(&mut types, |_, (ty, error)| *error = sample_error(*ty, sample));
    let mut errors = Vec::with_capacity(types.len());
    for (ty, error) in types {
        errors.push((ty, error?));
    }
    // As the blocks now lie the other way, the file's type loses about as much as it did when the file was made; half of that
    // adds an eighth to the noise.
    let lost = errors.iter().find(|(ty, _)| *ty == own).map_or(2.0 * COARSE_ERROR, |(_, error)| *error);
    let allowed = (lost / 2.0).max(SMALL_ERROR);
    let cheapest = errors.into_iter().find(|(ty, error)| TYPES.contains(ty) && *error <= allowed);
    Ok(cheapest.map_or(TensorType::F16, |(ty, _)| ty))
}

/// Relative error of `values`, some rows, as `ty`.
fn sample_error(ty: TensorType, values: &[f32]) -> Result<f64> {
    let mut bytes = Vec::new();
    blocks::quantise(ty, values, &mut bytes)?;
    let mut back = vec![0.0; values.len()];
    blocks::dequantise(ty, &bytes, &mut back);
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
    use crate::model::outline::normal;

    fn matrix(ty: TensorType, rows: usize, cols: usize) -> Matrix {
        let mut bytes = Vec::new();
        blocks::quantise(ty, &normal(rows * cols), &mut bytes).unwrap();
        Matrix::new(ty, rows, cols, Bytes::new(bytes)).unwrap()
    }

    /// Largest difference of any weight from where it was.
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
    fn floats_are_only_moved() {
        let pool = ThreadPool::new(Some(2));
        for ty in [TensorType::F32, TensorType::F16, TensorType::BF16] {
            for (d, n_ff) in [(1, 1), (33, 300), (64, 512), (17, 3)] {
                let down = matrix(ty, d, n_ff);
                let (turned, error) = neuron_major(&pool, &down).unwrap();
                assert_eq!((turned.ty(), turned.rows(), turned.cols(), error), (ty, n_ff, d, 0.0));
                assert_eq!(moved(&down, &turned), 0.0, "{ty} [{d}, {n_ff}]");
            }
        }
    }

    #[test]
    fn quantised_weights_lose_less_than_they_had_lost() {
        let pool = ThreadPool::new(Some(2));
        // A file type, more bits than the turned one may take, and the error that may be.
        let cases = [
            (TensorType::Q4_0, 6.6, 0.05),
            (TensorType::Q4_K, 6.6, 0.045),
            (TensorType::Q6_K, 8.5, 0.01),
            (TensorType::Q8_0, 8.5, 0.01),
        ];
        for (ty, bits, allowed) in cases {
            let down = matrix(ty, 512, 768);
            let (turned, error) = neuron_major(&pool, &down).unwrap();
            let used = (turned.ty().block_bytes() * 8) as f64 / turned.ty().block_len() as f64;
            assert!(used <= bits && error > 0.0 && error <= allowed, "{ty} -> {} with {error}", turned.ty());
            assert!(moved(&down, &turned) < 0.2, "{ty} -> {}", turned.ty());
        }
        // Rows that are no whole blocks.
        let down = matrix(TensorType::Q8_0, 24, 64);
        let (turned, error) = neuron_major(&pool, &down).unwrap();
        assert_eq!((turned.ty(), error), (TensorType::F16, 0.0));
        assert!(moved(&down, &turned) < 2e-3);
    }

    #[test]
    fn the_number_of_threads_does_not_matter() {
        let down = matrix(TensorType::Q5_0, 96, 600 / 32 * 32);
        let [one, three] = [1, 3].map(|threads| neuron_major(&ThreadPool::new(Some(threads)), &down).unwrap());
        assert_eq!((one.0.ty(), one.0.data(), one.1), (three.0.ty(), three.0.data(), three.1));
    }
}
