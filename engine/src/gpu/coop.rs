//! Trial of matrix products in hardware. The extension is experimental in wgpu, and drivers differ: they are used where they agree
//! with the plain kernel on a sample and are quicker.

use std::time::{Duration, Instant};

use super::{
    Buffer, Epilogue, FallbackPart, Gpu, GpuFeature, GpuMatrix, Matmul, MatmulOutput, Purpose, ReadbackRing, Recorder,
    RiskyStep, Uploader, Usage, WeightType, tune::KernelShape,
};
use crate::{
    error::{Error, Result},
    format::{Bytes, Matrix},
    quant::{TensorType, quantise},
};

/// The sample; sizes are no multiples of a tile.
const ROWS: usize = 1000;
const COLS: usize = 1056;
const TOKENS: usize = 100;
/// Products in a measurement, and measurements of which the shortest counts.
const PRODUCTS: usize = 4;
const ROUNDS: usize = 3;
/// Largest difference, relative to the root of the mean square: halves carry eleven bits.
const TOLERANCE: f32 = 0.01;

/// True if the device computes the kernel of its tiles, correctly, and faster than `gemm`. Any failure but the loss of the device means false.
pub(super) fn usable(gpu: &Gpu) -> Result<bool> {
    let Some(tile) = KernelShape::tiles(gpu.caps()) else { return Ok(false) };
    let what = FallbackPart::Feature(GpuFeature::CooperativeMatrices);
    let marker = gpu.mark(RiskyStep::Trial, what, "in a trial of them");
    let outcome = compare(gpu);
    drop(marker);
    gpu.check_trial(tile.kernel(), Some(WeightType::Q8_0))?;
    let (usable, why) = match outcome {
        Ok((false, ..)) => {
            let why = "their sums are wrong";
            gpu.give_up(GpuFeature::CooperativeMatrices, why);
            (false, why.to_owned())
        }
        Ok((true, plain, cooperative)) => {
            (cooperative < plain, format!("they take {cooperative:?}, plain ones {plain:?}"))
        }
        Err(error) => (false, error.to_string()),
    };
    tracing::info!(adapter = gpu.report().name, usable, why, "matrix products in hardware");
    Ok(usable)
}

/// True if both kernels agree; the times of the plain and of the cooperative one.
fn compare(gpu: &Gpu) -> Result<(bool, Duration, Duration)> {
    let sample = Sample::new(gpu)?;
    let (expected, plain) = sample.run(gpu, false)?;
    let (got, cooperative) = sample.run(gpu, true)?;
    Ok((agree(&got, &expected), plain, cooperative))
}

fn agree(got: &[f32], expected: &[f32]) -> bool {
    let mean = expected.iter().map(|value| value * value).sum::<f32>() / expected.len() as f32;
    let most = TOLERANCE * mean.sqrt();
    got.len() == expected.len() && got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() <= most)
}

/// A matrix and activations.
struct Sample {
    matrix: GpuMatrix,
    x: Buffer,
    y: Buffer,
}

impl Sample {
    fn new(gpu: &Gpu) -> Result<Self> {
        let mut state = 1_u32;
        let mut noise = |len: usize| -> Vec<f32> {
            let next = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            (0..len).map(next).collect()
        };
        let mut data = Vec::new();
        quantise(TensorType::Q8_0, &noise(ROWS * COLS), &mut data)?;
        let file = Matrix::new(TensorType::Q8_0, ROWS, COLS, Bytes::new(data));
        let file = file.ok_or_else(|| Error::invalid("a sample matrix", "whole rows", COLS))?;
        let mut progress = |_, _| std::ops::ControlFlow::Continue(());
        let mut uploader = Uploader::new(gpu, &mut progress)?;
        let matrix = uploader.matrix(Purpose::Scratch, "sample", &[&file])?;
        let x = uploader.vector(Purpose::Scratch, "sample", &noise(TOKENS * COLS))?;
        uploader.finish()?;
        let y = gpu.arena().buffer(Purpose::Scratch, "sample", (TOKENS * ROWS * 4) as u64, Usage::Storage)?;
        Ok(Sample { matrix, x, y })
    }

    /// The sums and the shortest time.
    fn run(&self, gpu: &Gpu, cooperative: bool) -> Result<(Vec<f32>, Duration)> {
        let output = MatmulOutput { buffer: &self.y, pitch: ROWS, offset: 0, epilogue: Epilogue::Store };
        let shape = KernelShape { cooperative, ..KernelShape::DEFAULT };
        let matmul = Matmul::shaped(gpu, &self.matrix, &self.x, None, &output, shape)?;
        let record = |products: usize| {
            let mut recorder = Recorder::new(gpu);
            (0..products).for_each(|_| matmul.record(&mut recorder, TOKENS));
            recorder
        };
        let mut ring = ReadbackRing::new(gpu, 1, self.y.bytes())?;
        let pieces = [(&self.y, 0, self.y.bytes())];
        let sums = ring.read(record(1), &pieces, || (), bytemuck::pod_collect_to_vec)?;
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let recorder = record(PRODUCTS);
            let started = Instant::now();
            recorder.submit()?;
            gpu.idle()?;
            best = best.min(started.elapsed());
        }
        Ok((sums, best))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{AdapterChoice, GpuOptions};

    #[test]
    fn agree_accepts_equal_sums_only() {
        let expected = [1.0, -2.0, 3.0, 0.0];
        assert!(agree(&[1.005, -2.01, 3.0, 0.002], &expected));
        for wrong in [[1.0, -2.0, 3.0, 1.0], [1.0, -2.0, f32::NAN, 0.0], [0.0; 4]] {
            assert!(!agree(&wrong, &expected), "{wrong:?}");
        }
        assert!(!agree(&expected[..3], &expected));
    }

    #[test]
    fn usable_is_false_where_the_kernel_does_not_compile() {
        let gpu = Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() }).unwrap();
        assert!(gpu.caps().cooperative.is_none(), "the tests' driver has none");
        assert!(!usable(&gpu).unwrap());
        // The kernel needs a feature the device has not.
        let sample = Sample::new(&gpu).unwrap();
        let (sums, _) = sample.run(&gpu, false).unwrap();
        assert!(sums.len() == TOKENS * ROWS && sums.iter().any(|sum| *sum != 0.0));
        assert!(matches!(sample.run(&gpu, true), Err(Error::Gpu { reason, .. }) if reason.contains("gemm_coop")));
        assert!(gpu.lost().is_none());
        assert!(agree(&sample.run(&gpu, false).unwrap().0, &sums));
    }
}
