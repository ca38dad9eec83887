//! Input-major matrices: `y = W x` that does not read the weights of inputs of zero. For products behind a ReLU.
//!
//! Nothing is rounded anew: the codes and scales are those of the file's blocks in another order, so that a product is the one
//! of the file's matrix.

use smallvec::SmallVec;

use super::{
    Cpu, InputPrecision, ThreadPool,
    simd::{INPUTS, InputBlock, OUTPUTS, position_in_line},
};
use crate::{
    error::{Error, Result},
    format::{Bytes, Matrix, anonymous},
    quant::TensorType,
};

/// Tiles of outputs per worker. Few, so that the codes of an input are a long run; more than one, so that workers finish together.
const TILES: usize = 2;
/// Fewest outputs of a tile.
const LEAST_TILE: usize = 4 * OUTPUTS;
/// Bytes of a block of the file, the first two of which are its scale.
const BLOCK: usize = 18;

/// An input-major `[rows, cols]` matrix.
#[derive(Debug, Clone)]
pub struct InputMajor {
    rows: usize,
    cols: usize,
    /// Outputs of a tile.
    tile: usize,
    /// `[tiles][cols / INPUTS]`: the scales of a tile's outputs (f16), then a row of codes for each input.
    data: Bytes,
}

impl InputMajor {
    /// Bytes of `weight` in this form; `None` if it has none: only Q4_0 with a multiple of 128 rows does.
    pub fn bytes(weight: &Matrix) -> Option<u64> {
        let takes = weight.ty() == TensorType::Q4_0 && weight.rows().is_multiple_of(OUTPUTS);
        Some(weight.data().len() as u64).filter(|bytes| takes && *bytes > 0)
    }

    /// `weight` in this form; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room.
    pub fn new(pool: &ThreadPool, weight: &Matrix) -> Result<Option<Self>> {
        const WHAT: &str = "a matrix stored input by input";
        let (rows, cols) = (weight.rows(), weight.cols());
        if Self::bytes(weight).is_none() {
            return Ok(None);
        }
        let (bytes, outputs) = (weight.data().len(), rows.div_ceil(TILES * pool.threads()));
        let tile = outputs.next_multiple_of(OUTPUTS).max(LEAST_TILE);
        let mut memory = anonymous(bytes, WHAT)?;
        let mut tiles: Vec<_> = memory.chunks_mut(tile * weight.row_bytes()).enumerate().collect();
        pool.for_each(&mut tiles, |_, (at, to)| fill(weight, *at * tile, to));
        let memory = memory.make_read_only();
        let memory = memory.map_err(|_| Error::Memory { what: WHAT, wanted: bytes as u64, available: 0 })?;
        Ok(Some(InputMajor { rows, cols, tile, data: Bytes::new(memory) }))
    }

    /// Scales and codes of inputs `INPUTS * block..` in tile `at`, if there is such a tile.
    fn block(&self, at: usize, block: usize) -> Option<(&[u8], &[u8])> {
        let outputs = self.tile.min(self.rows.checked_sub(at * self.tile).filter(|left| *left > 0)?);
        let bytes = outputs / INPUTS * BLOCK * INPUTS;
        let first = at * self.tile * (self.cols / INPUTS) * BLOCK + block * bytes;
        Some(self.data[first..first + bytes].split_at(2 * outputs))
    }
}

/// Fills `tile` with the scales and codes of `weight`'s rows from `first` on.
fn fill(weight: &Matrix, first: usize, tile: &mut [u8]) {
    let outputs = tile.len() / weight.row_bytes();
    let blocks = tile.chunks_exact_mut(outputs * BLOCK);
    for (block, to) in blocks.enumerate() {
        let (scales, codes) = to.split_at_mut(2 * outputs);
        for (output, scale) in scales.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let row = weight.row(first + output);
            let [low, high, quants @ ..]: [u8; BLOCK] = row.as_chunks().0[block];
            *scale = [low, high];
            let (place, shift) = position_in_line(output % OUTPUTS);
            let place = output / OUTPUTS * (OUTPUTS / 2) + place;
            let (left, right) = codes.split_at_mut(codes.len() / 2);
            for (input, quants) in quants.iter().enumerate() {
                let at = input * (outputs / 2) + place;
                left[at] |= (quants & 15) << shift;
                right[at] |= (quants >> 4) << shift;
            }
        }
    }
}

impl Cpu {
    /// True if [`Cpu::matmul_inputs`] computes what [`Cpu::matmul`] would: activations are rounded to 8 bits.
    pub fn takes_inputs(&self) -> bool {
        self.activations == InputPrecision::Int8
    }

    /// `out = W x` for one token, `x` `[cols]` and `out` `[rows]`; the weights of inputs of zero are not read.
    /// Returns how many bytes were read. The result does not depend on the number of threads.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn matmul_inputs(&self, weight: &InputMajor, x: &[f32], out: &mut [f32]) -> u64 {
        assert_eq!(x.len(), weight.cols, "activations of {} columns", weight.cols);
        assert_eq!(out.len(), weight.rows, "outputs of {} rows", weight.rows);
        self.scratch.with(|scratch| {
            let (codes, active) = (&mut scratch.rows, &mut scratch.active);
            codes.resize_with(codes.len().max(1), Default::default);
            codes[0].fill(self.kernels, x);
            let row = codes[0].row();
            active.clear();
            // Of blocks with any input that is not zero: which, and where their inputs end in the list.
            let mut blocks: SmallVec<[(usize, usize); 64]> = SmallVec::new();
            for (block, codes) in row.codes.as_chunks::<INPUTS>().0.iter().enumerate() {
                let before = active.len();
                active.extend((0..).zip(codes).filter(|(_, code)| **code != 0).map(|(input, _)| input));
                if active.len() > before {
                    blocks.push((block, active.len()));
                }
            }
            let inputs = |tile: usize, at: usize| {
                let (block, end) = *blocks.get(at)?;
                let start = at.checked_sub(1).map_or(0, |before| blocks[before].1);
                let (scales, codes) = weight.block(tile, block)?;
                let (x, scale, sum) = (part(row.codes, block), row.scales[block], row.sums[block]);
                Some(InputBlock { scales, codes, active: &active[start..end], x, scale, sum })
            };
            let mut tiles: Vec<_> = out.chunks_mut(weight.tile).enumerate().collect();
            self.pool().for_each(&mut tiles, |_, (tile, out)| {
                out.fill(0.0);
                let mut current = inputs(*tile, 0);
                for at in 0..blocks.len() {
                    let next = inputs(*tile, at + 1).or_else(|| inputs(*tile + 1, 0));
                    if let Some(current) = &current {
                        self.kernels.add_inputs(current, next.as_ref(), out);
                    }
                    current = next;
                }
            });
            (blocks.len() * 2 * weight.rows + active.len() * weight.rows / 2) as u64
        })
    }
}

/// Input codes of block `block`, `[INPUTS]`.
fn part(codes: &[i8], block: usize) -> &[i8; INPUTS] {
    &codes.as_chunks().0[block]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::cpu::{
        Isa, MatmulJob,
        matmul::tests::{every_cpu, random_matrix},
        simd::tests::random_activations,
    };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn matmul_inputs_equals_matmul(
            chunks in 1usize..12, blocks in 1usize..9, density in prop_oneof![Just(0.0), Just(1.0), 0.0..1.0], seed: u64,
        ) {
            let rng = &mut StdRng::seed_from_u64(seed);
            let (rows, cols) = (chunks * OUTPUTS, blocks * INPUTS);
            let weight = random_matrix(TensorType::Q4_0, rows, cols, rng);
            let mut x = random_activations(cols, rng);
            x.iter_mut().for_each(|x| *x = if rng.random_bool(density) { *x } else { 0.0 });
            let mut first: Option<(Isa, Vec<f32>)> = None;
            for cpu in every_cpu().into_iter().filter(Cpu::takes_inputs) {
                let input_major = InputMajor::new(cpu.pool(), &weight).unwrap().unwrap();
                let (mut wanted, mut got) = (vec![f32::NAN; rows], vec![f32::NAN; rows]);
                cpu.matmul(&mut [MatmulJob { weight: &weight, bias: None, out: &mut wanted }], &x, 1);
                let read = cpu.matmul_inputs(&input_major, &x, &mut got);
                prop_assert!(read <= weight.data().len() as u64);
                if density == 0.0 {
                    prop_assert_eq!(read, 0);
                }
                let size = wanted.iter().fold(1e-6f32, |size, x| size.max(x.abs()));
                for (row, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                    prop_assert!((got - wanted).abs() <= 2e-5 * size, "{} row {}: {} is not {}", cpu.isa(), row, got, wanted);
                }
                match &first {
                    Some((isa, other)) if *isa == cpu.isa() => prop_assert_eq!(&got, other, "threads matter"),
                    _ => first = Some((cpu.isa(), got)),
                }
            }
        }
    }

    /// Weights and activations with the largest codes, whose sums are the farthest from zero.
    #[test]
    fn matmul_inputs_holds_the_largest_sums() {
        for (quants, x) in [(0xff, 1.0), (0xff, -1.0), (0x00, 1.0), (0x0f, -1.0)] {
            let mut block = [quants; BLOCK];
            block[..2].copy_from_slice(&half::f16::ONE.to_le_bytes());
            let weight =
                Matrix::new(TensorType::Q4_0, OUTPUTS, 2 * INPUTS, Bytes::new(block.repeat(2 * OUTPUTS))).unwrap();
            let code = |shift: u8| f32::from(quants >> shift & 15) - 8.0;
            let wanted = x * INPUTS as f32 * (code(0) + code(4));
            for cpu in every_cpu().into_iter().filter(Cpu::takes_inputs) {
                let input_major = InputMajor::new(cpu.pool(), &weight).unwrap().unwrap();
                let mut out = vec![f32::NAN; OUTPUTS];
                cpu.matmul_inputs(&input_major, &[x; 2 * INPUTS], &mut out);
                assert!(out.iter().all(|y| (y - wanted).abs() < 0.01), "{}: {out:?} are not {wanted}", cpu.isa());
            }
        }
    }

    #[test]
    fn matmul_inputs_counts_bytes_of_active_inputs() {
        let rng = &mut StdRng::seed_from_u64(3);
        let cpu = &every_cpu()[0];
        let weight = random_matrix(TensorType::Q4_0, 256, 96, rng);
        let input_major = InputMajor::new(cpu.pool(), &weight).unwrap().unwrap();
        let mut x = vec![0.0; 96];
        let mut read = |at: usize| {
            x[at] = 1.0;
            cpu.matmul_inputs(&input_major, &x, &mut [0.0; 256])
        };
        // Bytes read: the scales of a block, and the codes of each active input.
        assert_eq!(read(0), 512 + 128);
        assert_eq!(read(31), 512 + 2 * 128);
        assert_eq!(read(95), 2 * 512 + 3 * 128);
    }

    #[test]
    fn input_major_refuses_other_types_and_shapes() {
        let rng = &mut StdRng::seed_from_u64(4);
        let pool = ThreadPool::new(Some(1));
        for (ty, rows) in
            [(TensorType::Q8_0, 128), (TensorType::F16, 128), (TensorType::Q4_0, 64), (TensorType::Q4_0, 200)]
        {
            assert!(
                InputMajor::new(&pool, &random_matrix(ty, rows, 64, rng)).unwrap().is_none(),
                "{ty} of {rows} rows"
            );
        }
    }
}
