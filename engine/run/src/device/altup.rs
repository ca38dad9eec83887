//! The streams of a model with several (AltUp, Baykal et al. 2023) on the device. The CPU makes the
//! streams from the embeddings and merges them before the head. Between layers the device predicts
//! and corrects them, as `runtime::cpu` does.

use super::{
    elementwise::{Elementwise, WORKGROUP, flat_grid},
    loader::GpuLoader,
    norm::{NormOp, NormWeights},
    product::Product,
    registers::Registers,
};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{Buffer, BufferRows, Gpu, MemoryUse, Op, Purpose, Recorder, params, pitch};
use thermocline_model::{AltupConfig, AltupStep, AltupWeights, Linear, Register};

/// Number of streams that the kernels support.
const STREAMS: usize = 4;

/// Buffers that all layers share.
#[derive(Debug)]
pub(crate) struct AltupBuffers {
    /// `[streams, chunk, pitch(d_model)]`
    pub streams: Buffer,
    /// The predicted streams, in the same shape.
    predicted: Buffer,
    /// `[chunk, pitch(d_model)]`: the router's input.
    normed: Buffer,
    /// `[chunk, pitch(streams)]`
    modalities: Buffer,
    /// `[chunk, pitch(rank)]`: the inner rows of the low-rank path.
    low: Buffer,
}

impl AltupBuffers {
    /// Returns `None` for a model with one stream.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernels do not support this number of streams,
    /// [`Error::Memory`] if the budget is too small.
    pub fn new(loader: &GpuLoader<'_, '_>) -> Result<Option<Self>> {
        let Some(AltupConfig { streams, rank }) = loader.config.altup else { return Ok(None) };
        if streams != STREAMS {
            return Err(Error::unsupported("streams on the GPU", streams, STREAMS));
        }
        let (row, rows) = (pitch(loader.config.d_model), |what, floats| loader.scratch(what, loader.chunk * floats));
        Ok(Some(AltupBuffers {
            streams: rows("streams", streams * row)?,
            predicted: rows("predicted streams", streams * row)?,
            normed: rows("router input of the streams", row)?,
            modalities: rows("modalities", pitch(streams))?,
            low: rows("low-rank path", pitch(rank))?,
        }))
    }
}

/// The prepared steps between the streams of one layer.
#[derive(Debug)]
pub(crate) struct AltupOps {
    gpu: Gpu,
    /// Modalities of the first stream, and modalities of the layer's result.
    modalities: [(NormOp, Product); 2],
    predict: Op,
    correct: Op,
    add: Op,
    laurel: (Product, Product, NormOp, Elementwise),
    params: params::Streams,
}

impl AltupOps {
    /// Uploads a layer's weights.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        buffers: &AltupBuffers,
        weights: &AltupWeights,
        registers: &Registers,
    ) -> Result<Self> {
        let [residual, normed, normed_ffn, out] =
            [Register::Residual, Register::Normed, Register::NormedFfn, Register::Out].map(|it| registers.get(it));
        let what = MemoryUse { purpose: Purpose::Attention, what: "weights between streams" };
        let router_norm = NormWeights::new(loader, &weights.router_norm)?;
        let mut modalities = |x: &Buffer| {
            let norm = NormOp::new(loader, &router_norm, x, None, &buffers.normed)?;
            let into = BufferRows { buffer: &buffers.modalities, pitch: pitch(STREAMS) };
            Ok::<_, Error>((norm, Product::new(loader, what, &[&weights.router], &buffers.normed, into)?))
        };
        let modalities = [modalities(&buffers.streams)?, modalities(residual)?];
        let gpu = loader.gpu;
        let op = |name, of: &[&Buffer]| Op::of(gpu, name, WORKGROUP, &[], of);
        let add = op("altup_add", &[out, &buffers.streams, residual])?;
        let mut coefficients =
            |map: &Linear| loader.uploader.decoded(Purpose::Vectors, "coefficients of streams", &map.weight);
        let (of_predict, of_correct) = (coefficients(&weights.predict)?, coefficients(&weights.correct)?);
        let (first, streams, predicted) = (&buffers.modalities, &buffers.streams, &buffers.predicted);
        let predict = op("altup_predict", &[first, &of_predict, streams, predicted, residual])?;
        let scale = loader.vector("a stream's scale", &weights.scale)?;
        let correct = op("altup_correct", &[first, &of_correct, predicted, &scale, streams, residual])?;
        let [left, right] = &weights.laurel;
        let rank = pitch(left.weight.rows());
        let norm = NormWeights::new(loader, &weights.laurel_norm)?;
        let low = BufferRows { buffer: &buffers.low, pitch: rank };
        let laurel = (
            Product::new(loader, what, &[left], normed, low)?,
            Product::new(loader, what, &[right], &buffers.low, registers.rows(Register::NormedFfn))?,
            NormOp::new(loader, &norm, normed_ffn, None, normed_ffn)?,
            Elementwise::new(loader.gpu, "add", &[], &[normed_ffn, normed], registers.d_model, registers.pitch)?,
        );
        let params = params::Streams {
            cols: registers.d_model as u32,
            pitch: registers.pitch as u32,
            rows: 0,
            stride: 0,
            stream_pitch: (loader.chunk * registers.pitch) as u32,
            modalities_pitch: pitch(STREAMS) as u32,
        };
        Ok(AltupOps { gpu: loader.gpu.clone(), modalities, predict, correct, add, laurel, params })
    }

    /// Records a step for `tokens` tokens.
    pub fn record(&self, recorder: &mut Recorder, step: AltupStep, tokens: usize) {
        let (modalities, op) = match step {
            AltupStep::Laurel => {
                let (left, right, norm, add) = &self.laurel;
                left.record(recorder, tokens);
                right.record(recorder, tokens);
                norm.record(recorder, tokens, false);
                add.record(recorder, tokens);
                return;
            }
            AltupStep::Predict => (Some(&self.modalities[0]), &self.predict),
            AltupStep::Correct => (Some(&self.modalities[1]), &self.correct),
            AltupStep::AddOut => (None, &self.add),
        };
        if let Some((norm, router)) = modalities {
            norm.record(recorder, tokens, false);
            router.record(recorder, tokens);
        }
        let (groups, stride) = flat_grid(&self.gpu, tokens * self.params.cols as usize, WORKGROUP);
        recorder.dispatch(op, &params::Streams { rows: tokens as u32, stride, ..self.params }, groups);
    }

    /// Multiply-adds per token.
    pub fn work(&self) -> u64 {
        let [(_, first), (_, result)] = &self.modalities;
        first.work + result.work + self.laurel.0.work + self.laurel.1.work
    }
}
