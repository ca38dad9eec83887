//! Embedding rows on the device, if the embedding matrix is there anyway as the head. Token ids are
//! then uploaded instead of rows.

use std::sync::Arc;

use super::{
    elementwise::{WORKGROUP, flat_grid},
    loader::GpuLoader,
};
use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, Gpu, GpuMatrix, Op, Recorder, params, pitch};
use thermocline_model::{Position, Weights};

/// `to[t] = scale * W[ids[t]]`
#[derive(Debug, Clone)]
pub(crate) struct Embedding {
    gpu: Gpu,
    /// `[chunk]`
    pub ids: Buffer,
    parts: Arc<[(params::Embedding, Op)]>,
}

impl Embedding {
    /// Prepares the embedding from `head`, the head's matrix. Returns `None` if the head's matrix
    /// is not the embedding. Also returns `None` if the model has position embeddings, because
    /// their rows would have to be uploaded anyway.
    pub fn new(loader: &GpuLoader<'_, '_>, weights: &Weights, head: &GpuMatrix, to: &Buffer) -> Result<Option<Self>> {
        let (gpu, config) = (loader.gpu, loader.config);
        let rotates = config.position == Position::Rotary;
        if !(weights.tied && rotates) {
            return Ok(None);
        }
        let ids = loader.scratch("tokens", loader.chunk)?;
        let pipeline = gpu.pipelines().get("embedding", Some(head.ty()), WORKGROUP, &[])?;
        let parts = head.parts().iter().map(|part| {
            let bindings = [part.main(), part.aux(gpu.nothing()), (&ids).into(), to.into()];
            let params = params::Embedding {
                first_row: part.rows().start as u32,
                rows: part.rows().len() as u32,
                chunks: head.chunks() as u32,
                tokens: 0,
                pitch: pitch(head.cols()) as u32,
                stride: 0,
                scale: config.embedding_scale,
            };
            Ok((params, Op::new(gpu, &pipeline, &bindings)?))
        });
        let parts = parts.collect::<Result<_>>()?;
        Ok(Some(Embedding { gpu: gpu.clone(), ids, parts }))
    }

    /// Records the rows of `tokens` token ids.
    pub fn record(&self, recorder: &mut Recorder, tokens: usize) {
        for (params, op) in &*self.parts {
            let items = tokens * params.pitch as usize / 8;
            let (grid, stride) = flat_grid(&self.gpu, items, op.pipeline().workgroup());
            recorder.dispatch(op, &params::Embedding { tokens: tokens as u32, stride, ..*params }, grid);
        }
    }
}
