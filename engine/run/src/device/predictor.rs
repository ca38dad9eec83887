//! The predictor of a layer, which selects the neurons to compute for one token.

use super::loader::GpuLoader;
use thermocline_base::error::Result;
use thermocline_formats::format::Matrix;
use thermocline_gpu::{Buffer, Epilogue, Matmul, MatmulOutput, Op, Purpose, Recorder, params, pitch};
use thermocline_model::{Predictor, PredictorInput, PredictorKind};

/// Invocations of an `active_mask` workgroup, each of which computes one word.
const MASK_WORKGROUP: u32 = 128;

/// Buffers shared by layers of equal width.
#[derive(Debug, Clone)]
pub(crate) struct MaskBuffers {
    /// `[pitch(n_ff)]`
    scores: Buffer,
    /// Bit `i % 32` of word `i / 32` for neuron `i`.
    pub mask: Buffer,
}

/// `mask = (fc2 relu(fc1 x) >= threshold)` or `(rows x + b >= threshold)`, prepared.
#[derive(Debug)]
pub(crate) struct PredictorOps {
    products: Vec<Matmul>,
    passes: Op,
    threshold: f32,
    neurons: usize,
}

impl MaskBuffers {
    pub fn new(loader: &GpuLoader<'_, '_>, neurons: usize) -> Result<Self> {
        Ok(MaskBuffers {
            scores: loader.scratch("scores of neurons", pitch(neurons))?,
            mask: loader.scratch("a mask of neurons", neurons.div_ceil(32))?,
        })
    }
}

impl PredictorOps {
    /// Uploads a predictor, which reads `residual` or `normed`.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        buffers: &MaskBuffers,
        predictor: &Predictor,
        neurons: usize,
        residual: &Buffer,
        normed: &Buffer,
    ) -> Result<Self> {
        let gpu = loader.gpu;
        let x = match predictor.input {
            PredictorInput::Residual => residual,
            PredictorInput::Normed => normed,
        };
        let upload = |loader: &mut GpuLoader<'_, '_>, matrix: &Matrix| {
            loader.uploader.matrix(Purpose::Predictor, "a predictor", &[matrix])
        };
        let into = |buffer, width, epilogue| MatmulOutput { buffer, pitch: pitch(width), offset: 0, epilogue };
        let scores = into(&buffers.scores, neurons, Epilogue::Store);
        let products = match &predictor.kind {
            PredictorKind::LowRank { fc1, fc2 } => {
                let low = loader.scratch("a predictor's hidden layer", fc1.rows().next_multiple_of(256))?;
                let (first, second) = (upload(loader, fc1)?, upload(loader, fc2)?);
                vec![
                    Matmul::with(gpu, &first, x, None, &into(&low, fc1.rows(), Epilogue::Relu))?,
                    Matmul::with(gpu, &second, &low, None, &scores)?,
                ]
            }
            PredictorKind::Rows { rows, bias } => {
                let matrix = upload(loader, rows)?;
                let bias = bias.as_ref().map(|bias| loader.uploader.vector(Purpose::Predictor, "a bias", bias));
                vec![Matmul::with(gpu, &matrix, x, bias.transpose()?.as_ref(), &scores)?]
            }
        };
        let of = [&buffers.scores, &buffers.mask];
        let passes = Op::of(gpu, "active_mask", MASK_WORKGROUP, &[("TEST", 0.0)], &of)?;
        Ok(PredictorOps { products, passes, threshold: predictor.threshold, neurons })
    }

    /// Records the predictor for one token, with `shift` added to the threshold.
    pub fn record(&self, recorder: &mut Recorder, shift: f32) {
        self.products.iter().for_each(|product| product.record(recorder, 1));
        let (neurons, pitch) = (self.neurons as u32, pitch(self.neurons) as u32);
        let groups = (neurons.div_ceil(32)).div_ceil(self.passes.pipeline().workgroup());
        let params = params::ActiveMask { neurons, pitch, threshold: self.threshold + shift };
        recorder.dispatch(&self.passes, &params, [groups, 1, 1]);
    }
}
