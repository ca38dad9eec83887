//! Matrices with the same input that write side by side.

use super::loader::GpuLoader;
use thermocline_base::error::Result;
use thermocline_formats::format::Matrix;
use thermocline_gpu::{Buffer, BufferRows, GpuMatrix, Matmul, MemoryUse, Recorder};
use thermocline_model::Linear;

/// `y[t] = [W0 x[t] + b0 | W1 x[t] + b1 | ..]`
#[derive(Debug)]
pub(crate) struct Product {
    matmuls: Vec<Matmul>,
    /// The uploaded matrices with their biases.
    pub matrices: Vec<GpuMatrix>,
    pub biases: Vec<Option<Buffer>>,
    /// Multiply-adds per token.
    pub work: u64,
}

impl Product {
    /// Uploads `linears`, as one matrix if their types are equal, and prepares their product from
    /// `x` into `y`.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        what: MemoryUse,
        linears: &[&Linear],
        x: &Buffer,
        y: BufferRows<'_>,
    ) -> Result<Self> {
        let ty = |linear: &Linear| linear.weight.ty().device_type();
        let (mut matmuls, mut uploaded, mut biases) = (Vec::new(), Vec::new(), Vec::new());
        let (mut offset, mut work) = (0, 0);
        for stack in linears.chunk_by(|a, b| ty(a) == ty(b)) {
            let matrices: Vec<&Matrix> = stack.iter().map(|linear| &linear.weight).collect();
            let matrix = loader.uploader.matrix(what.purpose, what.what, &matrices)?;
            let bias = Self::stacked_bias(stack).map(|bias| loader.vector("a bias", &bias)).transpose()?;
            matmuls.push(Matmul::new(loader.gpu, &matrix, x, bias.as_ref(), y.buffer, y.pitch, offset)?);
            offset += matrix.rows();
            work += (matrix.rows() * matrix.cols()) as u64;
            uploaded.push(matrix);
            biases.push(bias);
        }
        Ok(Product { matmuls, matrices: uploaded, biases, work })
    }

    /// See [`Matmul::set_x_pitch`].
    pub fn set_x_pitch(&mut self, pitch: usize) {
        self.matmuls.iter_mut().for_each(|matmul| matmul.set_x_pitch(pitch));
    }

    /// Records the product for the first `tokens` rows.
    pub fn record(&self, recorder: &mut Recorder, tokens: usize) {
        self.matmuls.iter().for_each(|matmul| matmul.record(recorder, tokens));
    }

    /// The stacked biases of `stack`, with zeros for matrices without a bias.
    pub fn stacked_bias(stack: &[&Linear]) -> Option<Vec<f32>> {
        if stack.iter().all(|linear| linear.bias.is_none()) {
            return None;
        }
        let mut all = Vec::new();
        for linear in stack {
            let end = all.len() + linear.weight.rows();
            all.extend(linear.bias.iter().flatten());
            all.resize(end, 0.0);
        }
        Some(all)
    }
}
