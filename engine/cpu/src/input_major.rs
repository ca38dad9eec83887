//! Input-major matrices: `y = W x` that does not read the weights of zero inputs. For products
//! after a ReLU, or with small inputs set to zero.
//!
//! No weight is rounded again. The codes and scales of the file's blocks are only reordered, so
//! that a product equals the product of the file's matrix.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    Cpu, InputPrecision, Scratch, ThreadPool,
    pool::{ColumnsMut, split_columns},
    simd::{self, INPUTS, InputBlock, InputMinima, OUTPUTS, QuantisedInput, position_in_line},
};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_formats::{
    format::{Bytes, Matrix, anonymous},
    quant::{TensorType, k_scales},
};

/// Tiles of outputs per worker. Few, so that the codes of an input are a long run. More than one,
/// so that workers finish at about the same time.
const TILES: usize = 2;
/// Fewest outputs of a tile.
const LEAST_TILE: usize = 4 * OUTPUTS;

/// Weight types that have an input-major form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputMajorForm {
    /// A scale and nibbles, 8 too large.
    Q4_0,
    /// A scale and bytes.
    Q8_0,
    /// For eight blocks, a scale and a scale of minima. For each block, a factor, a minimum and
    /// nibbles. The 6-bit factors and minima take a byte each, 3 % more than in the file.
    Q4K,
}

impl InputMajorForm {
    fn of(ty: TensorType) -> Option<Self> {
        match ty {
            TensorType::Q4_0 => Some(InputMajorForm::Q4_0),
            TensorType::Q8_0 => Some(InputMajorForm::Q8_0),
            TensorType::Q4_K => Some(InputMajorForm::Q4K),
            _ => None,
        }
    }

    /// Blocks of inputs that share a head.
    const fn blocks(self) -> usize {
        if matches!(self, InputMajorForm::Q4K) { 8 } else { 1 }
    }

    /// Bytes for one output: of a head, of a block's parts besides codes, and of a block's codes.
    const fn sizes(self) -> (usize, usize, usize) {
        match self {
            InputMajorForm::Q4_0 => (2, 0, INPUTS / 2),
            InputMajorForm::Q8_0 => (2, 0, INPUTS),
            InputMajorForm::Q4K => (4, 2, INPUTS / 2),
        }
    }

    /// Bytes of all blocks that share a head, for one output.
    const fn group_bytes(self) -> usize {
        let (head, part, codes) = self.sizes();
        head + self.blocks() * (part + codes)
    }
}

/// An input-major `[rows, cols]` matrix.
#[derive(Debug, Clone)]
pub struct InputMajor {
    rows: usize,
    cols: usize,
    /// Outputs of a tile.
    tile: usize,
    /// Factor of all weights.
    factor: f32,
    form: InputMajorForm,
    /// `[tiles][groups of blocks]`: the heads of a tile's outputs, then for each block its parts
    /// and a row of codes per input.
    data: Bytes,
}

impl InputMajor {
    /// Bytes of `weight` in this form. `None` if it has no such form: only Q4_0, Q8_0 and Q4_K with
    /// a multiple of 128 rows do.
    pub fn bytes(weight: &Matrix) -> Option<u64> {
        let form = InputMajorForm::of(weight.ty()).filter(|_| weight.rows().is_multiple_of(OUTPUTS))?;
        let groups = weight.rows() * weight.cols() / (form.blocks() * INPUTS);
        Some((groups * form.group_bytes()) as u64).filter(|bytes| *bytes > 0)
    }

    /// Bytes of codes among [`InputMajor::bytes`]. Only codes belong to single inputs.
    pub fn bytes_of_inputs(weight: &Matrix) -> u64 {
        let form = InputMajorForm::of(weight.ty()).filter(|_| Self::bytes(weight).is_some());
        form.map_or(0, |form| (weight.rows() * weight.cols() / INPUTS * form.sizes().2) as u64)
    }

    /// Converts `weight` to this form. `None` if it has no such form.
    ///
    /// # Errors
    /// [`Error::Memory`] if memory cannot be allocated.
    pub fn new(pool: &ThreadPool, weight: &Matrix) -> Result<Option<Self>> {
        const WHAT: &str = "input-major copy of a matrix";
        let (rows, cols) = (weight.rows(), weight.cols());
        let (Some(form), Some(bytes)) = (InputMajorForm::of(weight.ty()), Self::bytes(weight)) else { return Ok(None) };
        let (bytes, outputs) = (bytes as usize, rows.div_ceil(TILES * pool.threads()));
        let tile = outputs.next_multiple_of(OUTPUTS).max(LEAST_TILE);
        let mut memory = anonymous(bytes, WHAT)?;
        let mut tiles: Vec<_> = memory.chunks_mut(tile * (bytes / rows)).enumerate().collect();
        pool.for_each(&mut tiles, |_, (at, to)| form.fill(weight, *at * tile, to));
        let memory = memory.make_read_only();
        let memory = memory.map_err(|_| Error::memory(ScarceMemory::Ram, WHAT, bytes as u64, 0))?;
        Ok(Some(InputMajor { rows, cols, tile, factor: weight.factor(), form, data: Bytes::new(memory) }))
    }

    /// Bytes that a product reads for these inputs.
    fn read_bytes(&self, inputs: &[ActiveInputs]) -> u64 {
        let (head, part, codes) = self.form.sizes();
        let groups = inputs.chunk_by(|a, b| a.0 / self.form.blocks() == b.0 / self.form.blocks()).count();
        let active: usize = inputs.iter().map(|(_, of_block)| of_block.count_ones() as usize).sum();
        (self.rows * (groups * head + inputs.len() * part) + active * codes * self.rows / INPUTS) as u64
    }

    /// Head, parts and codes of block `block` in tile `at`, if the tile exists. The block contains
    /// [`INPUTS`] inputs.
    fn block(&self, at: usize, block: usize) -> Option<[&[u8]; 3]> {
        let outputs = self.tile.min(self.rows.checked_sub(at * self.tile).filter(|left| *left > 0)?);
        let form = self.form;
        let ((head, part, codes), groups) = (form.sizes(), self.cols / (INPUTS * form.blocks()));
        let group = (at * self.tile * groups + block / form.blocks() * outputs) * form.group_bytes();
        let first = group + outputs * (head + block % form.blocks() * (part + codes));
        let parts = first + outputs * part;
        let data = &self.data;
        Some([&data[group..group + outputs * head], &data[first..parts], &data[parts..parts + outputs * codes]])
    }
}

/// One product among several that share their input.
#[derive(Debug)]
pub struct InputsJob<'a> {
    /// `[rows, cols]` weights.
    pub weight: &'a InputMajor,
    /// `[tokens, rows]`; overwritten.
    pub out: &'a mut [f32],
}

/// A tile of a job's weights, and its outputs.
struct Tile<'a> {
    weight: &'a InputMajor,
    at: usize,
    out: ColumnsMut<'a>,
}

impl InputMajorForm {
    /// Fills `tile` with the rows of `weight` from `first` on.
    fn fill(self, weight: &Matrix, first: usize, tile: &mut [u8]) {
        let groups = weight.cols() / (INPUTS * self.blocks());
        let outputs = tile.len() / (groups * self.group_bytes());
        let (head, part, codes) = self.sizes();
        for (group, to) in tile.chunks_exact_mut(outputs * self.group_bytes()).enumerate() {
            let (heads, blocks) = to.split_at_mut(outputs * head);
            for output in 0..outputs {
                let row = weight.row(first + output);
                match self {
                    InputMajorForm::Q4_0 => {
                        let [low, high, quants @ ..]: [u8; 18] = row.as_chunks().0[group];
                        heads.as_chunks_mut().0[output] = [low, high];
                        nibbles(output, outputs, &quants, blocks);
                    }
                    InputMajorForm::Q8_0 => {
                        let [low, high, quants @ ..]: [u8; 34] = row.as_chunks().0[group];
                        heads.as_chunks_mut().0[output] = [low, high];
                        quants.iter().enumerate().for_each(|(input, quant)| blocks[input * outputs + output] = *quant);
                    }
                    InputMajorForm::Q4K => {
                        let block: &[u8; 144] = &row.as_chunks().0[group];
                        // All scales, then the scales of all minima.
                        let (scales, minima) = heads.as_chunks_mut::<2>().0.split_at_mut(outputs);
                        (scales[output], minima[output]) = ([block[0], block[1]], [block[2], block[3]]);
                        let (factors, least) = k_scales::unpack(simd::part(block, 4));
                        for pair in 0..4 {
                            let quants: &[u8; 32] = simd::part(block, 16 + 32 * pair);
                            for (half, at) in [2 * pair, 2 * pair + 1].into_iter().enumerate() {
                                let (of, to) = blocks[at * outputs * (part + codes)..].split_at_mut(outputs * part);
                                (of[output], of[outputs + output]) = (factors[at], least[at]);
                                let quants = quants.map(|byte| byte >> (4 * half) & 15);
                                let both: [u8; INPUTS / 2] = std::array::from_fn(|i| quants[i] | quants[i + 16] << 4);
                                nibbles(output, outputs, &both, to);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Writes an output's nibbles for inputs `i` (low) and `i + 16` (high) into rows of codes of
/// `outputs` outputs. The rows contain zeros there.
fn nibbles(output: usize, outputs: usize, quants: &[u8; INPUTS / 2], codes: &mut [u8]) {
    let (place, shift) = position_in_line(output % OUTPUTS);
    let place = output / OUTPUTS * (OUTPUTS / 2) + place;
    for (input, quants) in quants.iter().enumerate() {
        codes[input * (outputs / 2) + place] |= (quants & 15) << shift;
        codes[(input + INPUTS / 2) * (outputs / 2) + place] |= (quants >> 4) << shift;
    }
}

impl Cpu {
    /// True if [`Cpu::matmul_inputs`] computes the same as [`Cpu::matmul`], because activations are
    /// rounded to 8 bits.
    pub fn takes_inputs(&self) -> bool {
        self.activations == InputPrecision::Int8
    }

    /// `out = W x` for every job, with one `x`, `[tokens, cols]`, for all jobs. The weights of
    /// inputs that are zero for all tokens are not read. Returns the number of bytes read. A
    /// token's result is bit-identical alone and in a batch, for any number of threads. A block of
    /// inputs is multiplied with one token after the other while it is in the cache.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn matmul_inputs(&self, jobs: &mut [InputsJob<'_>], x: &[f32], tokens: usize) -> u64 {
        for InputsJob { weight, out } in &*jobs {
            assert_eq!(x.len(), tokens * weight.cols, "activations of {tokens} tokens, {} columns", weight.cols);
            assert_eq!(out.len(), tokens * weight.rows, "outputs of {tokens} tokens, {} rows", weight.rows);
        }
        if x.is_empty() {
            return 0;
        }
        self.scratch.with(|Scratch { rows: codes, active, .. }| {
            codes.resize_with(codes.len().max(tokens), Default::default);
            codes.iter_mut().zip(x.chunks_exact(x.len() / tokens)).for_each(|(codes, x)| codes.fill(self.kernels, x));
            let rows: SmallVec<[QuantisedInput<'_>; 16]> = codes[..tokens].iter().map(|codes| codes.row()).collect();
            let (blocks, inputs) = active_blocks(&rows, active);
            let bytes = jobs.iter().map(|job| job.weight.read_bytes(&inputs)).sum();
            let mut tiles: SmallVec<[Tile<'_>; 24]> = SmallVec::new();
            for InputsJob { weight, out } in jobs {
                let columns = split_columns(out, weight.rows, weight.tile).into_iter().enumerate();
                tiles.extend(columns.map(|(at, out)| Tile { weight, at, out }));
            }
            self.pool().for_each(&mut tiles, |_, Tile { weight, at: tile, out }| {
                let weight: &InputMajor = weight;
                let block = |tile: usize, at: usize| {
                    let ActiveBlock { block, token, inputs } = blocks.get(at)?;
                    let row = &rows[*token];
                    let [head, parts, codes] = weight.block(tile, *block)?;
                    let (scales, of_minima) = head.split_at(head.len() * 2 / weight.form.sizes().0);
                    let (x, scale, sum) = (simd::part(row.codes, INPUTS * block), row.scales[*block], row.sums[*block]);
                    let inputs = InputBlock { scales, codes, active: &active[inputs.clone()], x, scale, sum };
                    let (factors, minima) = parts.split_at(parts.len() / 2);
                    Some((inputs, InputMinima { factors, minima, scales: of_minima }))
                };
                (0..tokens).for_each(|token| out.row_mut(token).fill(0.0));
                let mut current = block(*tile, 0);
                for (at, ActiveBlock { token, .. }) in blocks.iter().enumerate() {
                    let next = block(*tile, at + 1).or_else(|| block(*tile + 1, 0));
                    let (ahead, out) = (next.as_ref().map(|(inputs, _)| inputs), out.row_mut(*token));
                    if let Some((inputs, minima)) = &current {
                        match weight.form {
                            InputMajorForm::Q4_0 => (self.kernels.add_inputs)(inputs, ahead, out),
                            InputMajorForm::Q8_0 => (self.kernels.add_byte_inputs)(inputs, ahead, out),
                            InputMajorForm::Q4K => (self.kernels.add_inputs_with_minima)(inputs, minima, ahead, out),
                        }
                    }
                    current = next;
                }
                if weight.factor != 1.0 {
                    let scale = |out: &mut [f32]| out.iter_mut().for_each(|out| *out *= weight.factor);
                    (0..tokens).for_each(|token| scale(out.row_mut(token)));
                }
            });
            bytes
        })
    }
}

/// A block of inputs with non-zero inputs for a token.
struct ActiveBlock {
    block: usize,
    token: usize,
    /// Range of the indices of these inputs.
    inputs: Range<usize>,
}

/// Index of a block, and a bit mask of its inputs that are not zero for some token.
type ActiveInputs = (usize, u32);

/// Returns the blocks with non-zero inputs, token by token within a block, and the active inputs of
/// all tokens. Writes the inputs' indices within their block to `active`.
fn active_blocks(
    rows: &[QuantisedInput<'_>],
    active: &mut Vec<u32>,
) -> (SmallVec<[ActiveBlock; 64]>, SmallVec<[ActiveInputs; 64]>) {
    let (mut blocks, mut inputs) = (SmallVec::new(), SmallVec::new());
    active.clear();
    for block in 0..rows.first().map_or(0, |row| row.codes.len() / INPUTS) {
        let mut any = 0;
        for (token, row) in rows.iter().enumerate() {
            let start = active.len();
            let codes = (0..).zip(simd::part::<_, INPUTS>(row.codes, INPUTS * block));
            active.extend(codes.filter(|(_, code)| **code != 0).map(|(input, _): (u32, _)| input));
            if active.len() > start {
                any |= active[start..].iter().fold(0, |any, input| any | 1 << input);
                blocks.push(ActiveBlock { block, token, inputs: start..active.len() });
            }
        }
        if any != 0 {
            inputs.push((block, any));
        }
    }
    (blocks, inputs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::{
        MatmulJob,
        matmul::tests::{every_cpu, random_matrix, same_for_threads},
        simd::tests::random_activations,
    };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn matmul_inputs_equals_matmul(
            ty in prop_oneof![Just(TensorType::Q4_0), Just(TensorType::Q8_0), Just(TensorType::Q4_K)],
            chunks in 1usize..12, blocks in 1usize..9, density in prop_oneof![Just(0.0), Just(1.0), 0.0..1.0], seed: u64,
        ) {
            let rng = &mut StdRng::seed_from_u64(seed);
            let (rows, cols) = (chunks * OUTPUTS, blocks * ty.block_len());
            let weight = random_matrix(ty, rows, cols, rng);
            let mut x = random_activations(cols, rng);
            x.iter_mut().for_each(|x| *x = if rng.random_bool(density) { *x } else { 0.0 });
            let mut first = None;
            for cpu in every_cpu().into_iter().filter(Cpu::takes_inputs) {
                let input_major = InputMajor::new(cpu.pool(), &weight).unwrap().unwrap();
                let (mut wanted, mut got) = (vec![f32::NAN; rows], vec![f32::NAN; rows]);
                cpu.matmul(&mut [MatmulJob { weight: &weight, bias: None, out: &mut wanted }], &x, 1);
                let read = cpu.matmul_inputs(&mut [InputsJob { weight: &input_major, out: &mut got }], &x, 1);
                prop_assert!(read <= InputMajor::bytes(&weight).unwrap());
                if density == 0.0 {
                    prop_assert_eq!(read, 0);
                }
                let size = wanted.iter().fold(1e-6f32, |size, x| size.max(x.abs()));
                for (row, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                    prop_assert!((got - wanted).abs() <= 5e-5 * size, "{} row {}: {} is not {}", cpu.isa(), row, got, wanted);
                }
                same_for_threads(&mut first, &cpu, got)?;
            }
        }
    }

    /// Weights and activations with the largest codes, whose sums are farthest from zero.
    #[test]
    fn matmul_inputs_holds_the_largest_sums() {
        for (quants, x) in [(0xff, 1.0), (0xff, -1.0), (0x00, 1.0), (0x0f, -1.0)] {
            let mut block = [quants; 18];
            block[..2].copy_from_slice(&half::f16::ONE.to_le_bytes());
            let weight =
                Matrix::new(TensorType::Q4_0, OUTPUTS, 2 * INPUTS, Bytes::new(block.repeat(2 * OUTPUTS))).unwrap();
            let code = |shift: u8| f32::from(quants >> shift & 15) - 8.0;
            let wanted = x * INPUTS as f32 * (code(0) + code(4));
            for cpu in every_cpu().into_iter().filter(Cpu::takes_inputs) {
                let input_major = InputMajor::new(cpu.pool(), &weight).unwrap().unwrap();
                let mut out = vec![f32::NAN; OUTPUTS];
                cpu.matmul_inputs(&mut [InputsJob { weight: &input_major, out: &mut out }], &[x; 2 * INPUTS], 1);
                assert!(out.iter().all(|y| (y - wanted).abs() < 0.01), "{}: {out:?} are not {wanted}", cpu.isa());
            }
        }
    }

    /// Tokens in a pass, each with other zero inputs, have the bits that they have alone.
    #[test]
    fn tokens_have_the_bits_that_they_have_alone() {
        let rng = &mut StdRng::seed_from_u64(5);
        const TOKENS: usize = 9;
        for ty in [TensorType::Q4_0, TensorType::Q8_0, TensorType::Q4_K] {
            let (rows, cols) = (5 * OUTPUTS, 512);
            let weight = random_matrix(ty, rows, cols, rng).with_factor(0.75);
            let mut x = random_activations(TOKENS * cols, rng);
            for (token, x) in x.chunks_exact_mut(cols).enumerate() {
                x.iter_mut().for_each(|x| *x = if rng.random_bool(token as f64 / 8.0) { *x } else { 0.0 });
            }
            for cpu in every_cpu().into_iter().filter(Cpu::takes_inputs) {
                let input_major = InputMajor::new(cpu.pool(), &weight).unwrap().unwrap();
                let product = |x: &[f32], tokens: usize| {
                    let mut out = vec![f32::NAN; tokens * rows];
                    cpu.matmul_inputs(&mut [InputsJob { weight: &input_major, out: &mut out }], x, tokens);
                    out
                };
                let alone: Vec<f32> = x.chunks_exact(cols).flat_map(|x| product(x, 1)).collect();
                assert!(product(&x, TOKENS) == alone, "{ty} {}", cpu.isa());
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
            cpu.matmul_inputs(&mut [InputsJob { weight: &input_major, out: &mut [0.0; 256] }], &x, 1)
        };
        // Bytes read: the scales of a block, and the codes of each active input.
        assert_eq!(read(0), 512 + 128);
        assert_eq!(read(31), 512 + 2 * 128);
        assert_eq!(read(95), 2 * 512 + 3 * 128);
    }

    #[test]
    fn input_major_takes_the_bytes_of_the_file_or_a_little_more() {
        let rng = &mut StdRng::seed_from_u64(3);
        for (ty, more) in [(TensorType::Q4_0, 0), (TensorType::Q8_0, 0), (TensorType::Q4_K, 4)] {
            let weight = random_matrix(ty, 128, 512, rng);
            let blocks = weight.data().len() / ty.block_bytes();
            assert_eq!(InputMajor::bytes(&weight), Some((weight.data().len() + more * blocks) as u64), "{ty}");
            assert!(InputMajor::bytes_of_inputs(&weight) < weight.data().len() as u64);
        }
    }

    #[test]
    fn input_major_refuses_other_types_and_shapes() {
        let rng = &mut StdRng::seed_from_u64(4);
        let pool = ThreadPool::new(Some(1));
        for (ty, rows) in
            [(TensorType::Q6_K, 128), (TensorType::F16, 128), (TensorType::Q4_0, 64), (TensorType::Q8_0, 200)]
        {
            assert!(
                InputMajor::new(&pool, &random_matrix(ty, rows, 256, rng)).unwrap().is_none(),
                "{ty} of {rows} rows"
            );
        }
    }
}
