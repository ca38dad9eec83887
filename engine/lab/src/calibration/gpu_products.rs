//! Products of weights on a GPU. They alternate between copies of a matrix, so that no weight is in
//! a cache.

use std::ops::ControlFlow;

use super::{
    cpu::{KernelSpeed, matrix_of_repeated_rows},
    gpu::{GpuEffort, rate},
};
use thermocline_base::error::Result;
use thermocline_formats::quant::TensorType;
use thermocline_gpu::{Buffer, FEW_TOKENS, Gpu, GpuMatrix, Matmul, Purpose, Recorder, Uploader, Usage, pitch};

/// Products `W x` of equal `[rows, cols]` matrices on a device, with shared inputs and results.
pub(super) struct GpuProducts {
    tokens: usize,
    matrices: Vec<GpuMatrix>,
    products: Vec<Matmul>,
    /// `[tokens, rows]` floats, written by every product.
    results: Buffer,
    /// `[tokens, cols]` floats, kept for the products that read them.
    _x: Buffer,
}

impl GpuProducts {
    /// Prepares products of matrices of file type `ty` with `tokens` tokens. With few tokens,
    /// `effort.bytes` limits the number of copies.
    ///
    /// # Errors
    /// As [`super::kernel_speed`]. [`Error::Memory`](thermocline_base::error::Error::Memory) if the
    /// budget has no room for one copy. [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the
    /// device is lost.
    pub fn new(gpu: &Gpu, ty: TensorType, rows: usize, cols: usize, tokens: usize, effort: &GpuEffort) -> Result<Self> {
        let weight = matrix_of_repeated_rows(ty, rows, cols)?;
        let mut progress = |_, _| ControlFlow::Continue(());
        let mut uploader = Uploader::new(gpu, &mut progress)?;
        let first = uploader.matrix(Purpose::Ffn, "benchmark", &[&weight])?;
        let bytes = first.bytes();
        // Arithmetic limits products with many tokens, so one copy is enough. A submission of many
        // such products would take long.
        let room = if tokens > FEW_TOKENS { 0 } else { effort.bytes.min(gpu.arena().available() / 2) };
        let mut matrices = vec![first];
        while (matrices.len() as u64 + 1) * bytes <= room {
            matrices.push(uploader.matrix(Purpose::Ffn, "benchmark", &[&weight])?);
        }
        uploader.finish()?;
        let register = |width: usize| {
            gpu.arena().buffer(Purpose::Scratch, "benchmark", (tokens * pitch(width)) as u64 * 4, Usage::Storage)
        };
        let (x, results) = (register(cols)?, register(rows)?);
        let products = matrices.iter().map(|matrix| Matmul::new(gpu, matrix, &x, None, &results, pitch(rows), 0));
        let products = products.collect::<Result<Vec<_>>>()?;
        Ok(GpuProducts { tokens, matrices, products, results, _x: x })
    }

    /// Returns the bytes of weights that one product reads.
    pub fn bytes(&self) -> u64 {
        self.matrices.first().map_or(0, GpuMatrix::bytes)
    }

    /// Returns the results of the last product.
    pub fn results(&self) -> &Buffer {
        &self.results
    }

    /// Records `count` products, beginning with the matrix of index `first`. After the last matrix,
    /// the first follows again.
    pub fn record(&self, recorder: &mut Recorder, first: usize, count: usize) {
        let after = self.products.iter().cycle().skip(first % self.products.len().max(1));
        after.take(count).for_each(|product| product.record(recorder, self.tokens));
    }

    /// Returns the bytes of weights read per second by products back to back.
    ///
    /// # Errors
    /// [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost.
    pub fn sustained(&self, gpu: &Gpu, effort: &GpuEffort) -> Result<f64> {
        let all = self.products.len();
        rate(gpu, effort, self.bytes() * all as u64, |recorder| self.record(recorder, 0, all))
    }
}

/// Measures `W x` on `gpu` for a `[rows, cols]` matrix of file type `ty` and `tokens` tokens. With
/// few tokens, products alternate between as many copies as `effort.bytes` holds, so that no weight
/// is in a cache.
///
/// # Errors
/// As [`super::kernel_speed`]. [`Error::Memory`](thermocline_base::error::Error::Memory) if the
/// budget has no room for one copy. [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the
/// device is lost.
pub fn gpu_kernel_speed(
    gpu: &Gpu,
    ty: TensorType,
    rows: usize,
    cols: usize,
    tokens: usize,
    effort: &GpuEffort,
) -> Result<KernelSpeed> {
    let products = GpuProducts::new(gpu, ty, rows, cols, tokens, effort)?;
    let all = products.sustained(gpu, effort)?;
    let seconds = products.bytes() as f64 / all;
    Ok(KernelSpeed {
        weight_type: ty.to_string(),
        tokens,
        seconds,
        bytes_per_second: all,
        macs_per_second: (rows * cols * tokens) as f64 / seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_gpu::{AdapterChoice, GpuOptions};

    #[test]
    fn gpu_kernel_speed_measures_products() {
        let (adapter, budget) = (AdapterChoice::Index(0), Some(64 << 20));
        let options = GpuOptions { adapter, budget, max_binding: Some(1 << 20), ..GpuOptions::default() };
        let gpu = Gpu::open(&options).unwrap();
        let little = GpuEffort { bytes: 5 << 20, seconds: 0.002, hand_overs: 20 };
        for (ty, tokens) in [(TensorType::Q4_0, 1), (TensorType::Q6_K, 3)] {
            let speed = gpu_kernel_speed(&gpu, ty, 128, 512, tokens, &little).unwrap();
            assert_eq!((speed.weight_type, speed.tokens), (ty.to_string(), tokens));
            let ratio = speed.macs_per_second / speed.bytes_per_second;
            let bits = 128.0 * 512.0 * tokens as f64 / ratio * 8.0 / (128.0 * 512.0);
            assert!(speed.seconds > 0.0 && (4.0..9.0).contains(&bits), "{ty}: {bits} bits per weight");
        }
        assert!(gpu_kernel_speed(&gpu, TensorType::Q4_0, 128, 33, 1, &little).is_err());
    }
}
