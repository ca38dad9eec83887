//! A product with difficult inputs and its exact sums, to check a driver's products before they are
//! trusted.

use std::ops::ControlFlow;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use thermocline_shaders::WeightType;

use super::{
    Buffer, Epilogue, Gpu, GpuMatrix, Matmul, MatmulOutput, Purpose, ReadbackRing, Recorder, Uploader, Usage, pitch,
    tune::KernelShape,
};
use thermocline_base::error::{Error, Result};
use thermocline_formats::{
    format::{Bytes, Matrix},
    quant::{TensorType, sample::random_weights},
};

/// Most multiply-adds of the CPU's exact sums. For larger products only some rows are checked.
const MOST_MACS: usize = 1 << 21;
/// Chunks per chunk whose activations exceed the range of 16-bit floats.
const CHUNKS_PER_OUTLIER: usize = 16;
/// Largest error of a 32-bit float sum, relative to the sum of the products' magnitudes.
const TOLERANCE: f64 = 1e-5;
/// Largest error of a sum of 16-bit float products (11 bits), relative to the square root of the
/// sum of the products' squares.
const HALVES_TOLERANCE: f64 = 0.01;

/// Shape of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleSize {
    /// Rows of the weights.
    pub rows: usize,
    /// Columns, a multiple of every block size.
    pub cols: usize,
    /// Rows of activations.
    pub tokens: usize,
    /// True if some activations are larger than 65504, the largest 16-bit float.
    pub outliers: bool,
}

impl SampleSize {
    /// Sizes that every product kernel is checked with. One has rows and tokens that do not fill a
    /// tile, the other has sums of 16384 products with outliers.
    pub const ALL: [SampleSize; 2] = [
        SampleSize { rows: 69, cols: 768, tokens: 33, outliers: false },
        SampleSize { rows: 5, cols: 1 << 14, tokens: 17, outliers: true },
    ];
}

/// Largest error of a product, and its tolerance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LargestError {
    /// Largest error, relative as the tolerance is. Not finite if a result is not finite.
    pub largest: f64,
    /// Largest error that rounding explains.
    pub tolerance: f64,
}

impl LargestError {
    /// True if rounding explains the error.
    pub fn is_right(&self) -> bool {
        self.largest <= self.tolerance
    }

    /// Returns the worse of the two errors, relative to their tolerances.
    pub fn or_worse(self, other: LargestError) -> LargestError {
        let times = |it: &LargestError| match it.largest {
            0.0 => 0.0,
            largest if largest.is_nan() => f64::INFINITY,
            largest => largest / it.tolerance,
        };
        if times(&other) > times(&self) { other } else { self }
    }
}

/// Sum of products in f64, and the values that its error is relative to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ExactSum {
    pub sum: f64,
    /// Sum of the products' magnitudes.
    pub magnitude: f64,
    /// Sum of the products' squares.
    pub squares: f64,
}

impl ExactSum {
    /// Computes the sum for a decoded row of weights and a row of activations.
    pub fn new(weights: &[f32], x: &[f32]) -> Self {
        let (mut sum, mut magnitude, mut squares) = (0.0, 0.0, 0.0);
        for (w, x) in weights.iter().zip(x) {
            let product = f64::from(*w) * f64::from(*x);
            sum += product;
            magnitude += product.abs();
            squares += product * product;
        }
        ExactSum { sum, magnitude, squares }
    }

    /// Returns the error of `got`. `halves` selects the tolerance of 16-bit float products.
    pub fn difference(&self, got: f32, halves: bool) -> LargestError {
        let error = (f64::from(got) - self.sum).abs();
        let error = if error.is_nan() { f64::INFINITY } else { error };
        match halves {
            true => LargestError { largest: error / self.squares.sqrt().max(1e-9), tolerance: HALVES_TOLERANCE },
            false => LargestError { largest: error / (self.magnitude + 1.0), tolerance: TOLERANCE },
        }
    }
}

/// A matrix of random codes, and activations that 8 bits represent exactly, so that integer
/// products and float products have equal sums.
pub struct ProductSample {
    size: SampleSize,
    matrix: GpuMatrix,
    x: Buffer,
    y: Buffer,
    /// Exact sums of every `step`th row, by row and then by token.
    sums: Vec<ExactSum>,
    step: usize,
}

impl ProductSample {
    /// Creates a sample with weights of type `ty`.
    ///
    /// # Errors
    /// [`Error::Memory`] if the sample does not fit the budget, [`Error::Gpu`] if the device is
    /// lost.
    pub fn new(gpu: &Gpu, ty: TensorType, size: SampleSize) -> Result<Self> {
        let SampleSize { rows, cols, tokens, .. } = size;
        let random = &mut ChaCha8Rng::seed_from_u64(7);
        let file = Matrix::new(ty, rows, cols, Bytes::new(random_weights(ty, rows * cols, random)));
        let file = file.ok_or_else(|| Error::invalid("columns of a sample", format!("whole blocks of {ty}"), cols))?;
        let x = activations(size, random);
        let mut progress = |_, _| ControlFlow::Continue(());
        let mut uploader = Uploader::new(gpu, &mut progress)?;
        let matrix = uploader.matrix(Purpose::Scratch, "sample", &[&file])?;
        let on_device = uploader.vector(Purpose::Scratch, "sample", &x)?;
        uploader.finish()?;
        let y = gpu.arena().buffer(Purpose::Scratch, "sample", (tokens * rows * 4) as u64, Usage::Storage)?;
        // An odd step reaches every row index within a tile.
        let step = (rows * cols * tokens).div_ceil(MOST_MACS) | 1;
        let mut decoded = vec![0.0; cols];
        let mut sums = Vec::new();
        for row in (0..rows).step_by(step) {
            file.dequantise_row(row, &mut decoded);
            sums.extend(x.chunks_exact(pitch(cols)).map(|x| ExactSum::new(&decoded, x)));
        }
        Ok(ProductSample { size, matrix, x: on_device, y, sums, step })
    }

    /// Creates a sample with weights whose type on the device is `ty`.
    ///
    /// # Errors
    /// As [`ProductSample::new`].
    pub fn of_device_type(gpu: &Gpu, ty: WeightType, size: SampleSize) -> Result<Self> {
        Self::new(gpu, ty.tensor_type(), size)
    }

    /// Prepares the product in `shape`.
    ///
    /// # Errors
    /// [`Error::Gpu`] if a kernel does not compile or the device is lost, [`Error::Memory`].
    pub fn product(&self, gpu: &Gpu, shape: KernelShape) -> Result<Matmul> {
        let output = MatmulOutput { buffer: &self.y, pitch: self.size.rows, offset: 0, epilogue: Epilogue::Store };
        Matmul::shaped(gpu, &self.matrix, &self.x, None, &output, shape)
    }

    /// Returns the largest error of `matmul`, a product of this sample, for the first `tokens`
    /// tokens. Set `halves` if the kernel multiplies 16-bit floats.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn difference(&self, gpu: &Gpu, matmul: &Matmul, tokens: usize, halves: bool) -> Result<LargestError> {
        let (rows, tokens) = (self.size.rows, tokens.min(self.size.tokens));
        let bytes = (tokens * rows * 4) as u64;
        let mut recorder = Recorder::new(gpu);
        matmul.record(&mut recorder, tokens);
        let mut ring = ReadbackRing::new(gpu, 1, bytes)?;
        let got: Vec<f32> = ring.read(recorder, &[(&self.y, 0, bytes)], || (), bytemuck::pod_collect_to_vec)?;
        let all = self.sums.chunks_exact(self.size.tokens).zip((0..rows).step_by(self.step));
        let differences = all.flat_map(|(sums, row)| {
            let got = got.iter().skip(row).step_by(rows);
            sums.iter().zip(got).map(|(sum, got)| sum.difference(*got, halves))
        });
        let none = LargestError { largest: 0.0, tolerance: if halves { HALVES_TOLERANCE } else { TOLERANCE } };
        Ok(differences.fold(none, LargestError::or_worse))
    }

    /// Returns the largest error of the product in `shape` for `tokens` tokens: 1, or more than the
    /// kernel for few tokens takes.
    ///
    /// # Errors
    /// As [`ProductSample::product`].
    pub fn check(&self, gpu: &Gpu, shape: KernelShape, tokens: usize) -> Result<LargestError> {
        self.difference(gpu, &self.product(gpu, shape)?, tokens, shape.cooperative && tokens > 1)
    }
}

/// Returns activations `[tokens, pitch]`: 8-bit integers times a power of two. Each chunk contains
/// an integer of the largest magnitude.
fn activations(size: SampleSize, random: &mut ChaCha8Rng) -> Vec<f32> {
    let chunks = pitch(size.cols) / 32;
    let mut x = Vec::with_capacity(size.tokens * chunks * 32);
    for chunk in 0..size.tokens * chunks {
        // The outliers are in another chunk of each token.
        let outlier = size.outliers && (chunk + chunk / chunks).is_multiple_of(CHUNKS_PER_OUTLIER);
        let scale = if outlier { 1024.0 } else { 1.0 / 128.0 };
        x.extend((0..32).map(|_| scale * f32::from(random.random_range(-126_i8..=126))));
        let largest = x.len() - 1 - random.random_range(0..32_usize);
        x[largest] = scale * if random.random_range(0..2) == 0 { 127.0 } else { -127.0 };
        let first = chunk % chunks * 32;
        let from = x.len() - 32;
        x.iter_mut().skip(from).skip(size.cols.saturating_sub(first)).for_each(|padding| *padding = 0.0);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GpuOptions;

    #[test]
    fn samples_find_right_products_right_and_wrong_ones_wrong() {
        let gpu = Gpu::open(&GpuOptions::first()).unwrap();
        for (ty, size) in [TensorType::Q4_0, TensorType::Q6_K, TensorType::F32, TensorType::IQ2_S]
            .into_iter()
            .flat_map(|ty| SampleSize::ALL.map(|size| (ty, size)))
        {
            let sample = ProductSample::new(&gpu, ty, size).unwrap();
            let packed = WeightType::PACKED.contains(&ty.device_type());
            for shape in [KernelShape::DEFAULT, KernelShape { packed, ..KernelShape::DEFAULT }] {
                for tokens in [1, 5, size.tokens] {
                    let difference = sample.check(&gpu, shape, tokens).unwrap();
                    assert!(difference.is_right(), "{ty} {size:?} {shape:?} {tokens}: {difference:?}");
                }
            }
        }
        // These are activations of another sample.
        let mut sample = ProductSample::new(&gpu, TensorType::Q4_0, SampleSize::ALL[0]).unwrap();
        let size = SampleSize { outliers: true, ..SampleSize::ALL[0] };
        sample.x = ProductSample::new(&gpu, TensorType::Q4_0, size).unwrap().x;
        assert!(!sample.check(&gpu, KernelShape::DEFAULT, 1).unwrap().is_right());
    }

    #[test]
    fn an_error_is_worse_than_an_exact_result_without_tolerance() {
        let exact = LargestError { largest: 0.0, tolerance: 0.0 };
        let wrong = LargestError { largest: 1e-3, tolerance: 1e-4 };
        assert_eq!((exact.or_worse(wrong), wrong.or_worse(exact)), (wrong, wrong));
        assert!(exact.is_right() && !exact.or_worse(LargestError { largest: 1.0, tolerance: 0.0 }).is_right());
    }

    #[test]
    fn sums_that_are_no_numbers_are_wrong() {
        let exact = ExactSum::new(&[1.0, -2.0], &[3.0, 0.5]);
        assert_eq!((exact.sum, exact.magnitude, exact.squares), (2.0, 4.0, 10.0));
        for halves in [false, true] {
            assert!(exact.difference(2.0, halves).is_right() && !exact.difference(2.2, halves).is_right());
            for wrong in [f32::NAN, f32::INFINITY] {
                let wrong = exact.difference(wrong, halves);
                assert!(!wrong.is_right() && !exact.difference(2.0, halves).or_worse(wrong).is_right());
            }
        }
    }
}
