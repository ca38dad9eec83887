//! A layer of a tower on a device.

use std::{ops::Range, slice};

use super::{
    super::{
        elementwise::{ActivationOp, GateUpRows},
        norm::NormOp,
        segment::Segment,
    },
    added::AddedProducts,
    attention::{TowerAttention, TowerAttentionWeights},
    buffers::PictureBuffers,
    part::TowerLoader,
    products::TowerProducts,
};
use thermocline_base::error::Result;
use thermocline_gpu::{BufferRows, WorkKind, pitch, work_of};
use thermocline_model::{ActivationForm, TowerLayer, TowerLinear};

/// A [`TowerLayer`], prepared, without its merger and without its join.
#[derive(Debug)]
pub(super) struct LayerOps {
    attention: TowerAttention,
    ffn_norm: NormOp,
    gate_up: TowerProducts,
    activation: ActivationOp,
    n_ff: usize,
    down: AddedProducts,
    /// True if patches attend only within their window.
    windowed: bool,
}

impl LayerOps {
    /// Uploads `layer`.
    ///
    /// # Errors
    /// As [`TowerAttention::new`].
    pub fn new(loader: &mut TowerLoader<'_, '_>, buffers: &PictureBuffers, layer: &TowerLayer) -> Result<Self> {
        let (gpu, config) = (loader.gpu, loader.config);
        let (stream, normed) = (&buffers.stream.part, buffers.normed());
        let attention = TowerAttentionWeights {
            norm: &layer.attention_norm,
            qkv: &layer.qkv,
            head_norms: layer.head_norms.as_ref(),
            output: &layer.output,
            post_norm: layer.post_attention_norm.as_ref(),
        };
        let attention = TowerAttention::new(loader, buffers, attention)?;
        let ffn_norm = loader.norm(&layer.ffn_norm, stream, normed.buffer)?.with_pitch(config.width);
        let gated = layer.gate.is_some();
        let row = pitch(config.n_ff);
        let gate_up = BufferRows { buffer: &buffers.gate_up, pitch: if gated { 2 * row } else { row } };
        let maps: Vec<&TowerLinear> = layer.gate.iter().chain([&layer.up]).collect();
        let products = TowerProducts::new(loader, buffers, &maps, normed, gate_up)?;
        let form = ActivationForm { activation: config.activation, limit: None };
        let rows = GateUpRows { buffer: gate_up.buffer, gated, interleaved: false };
        let activation = ActivationOp::new(gpu, form, rows, &buffers.hidden, row)?;
        let hidden = BufferRows { buffer: &buffers.hidden, pitch: row };
        let down = AddedProducts::new(loader, buffers, &layer.down, hidden)?;
        let down = down.normed(loader, buffers, layer.post_ffn_norm.as_ref())?;
        let (n_ff, windowed) = (config.n_ff, layer.windowed);
        Ok(LayerOps { attention, ffn_norm, gate_up: products, activation, n_ff, down, windowed })
    }

    /// Records queries, keys and values of the patches of `chunk`.
    ///
    /// # Errors
    /// As [`TowerAttention::record_inputs`].
    pub fn record_inputs(&self, segment: &mut Segment, buffers: &PictureBuffers, chunk: &Range<usize>) -> Result<()> {
        self.attention.record_inputs(segment, buffers, chunk)
    }

    /// Records attention and FFN of the patches of `chunk`, after the inputs of all `patches`.
    /// `windows` are the patches of each window.
    ///
    /// # Errors
    /// As [`TowerAttention::record_outputs`].
    pub fn record_outputs(
        &self,
        segment: &mut Segment,
        buffers: &PictureBuffers,
        chunk: &Range<usize>,
        patches: usize,
        windows: &[Range<usize>],
    ) -> Result<()> {
        let rows = chunk.len();
        let picture = 0..patches;
        let windows = if self.windowed { windows } else { slice::from_ref(&picture) };
        self.attention.record_outputs(segment, buffers, chunk, windows)?;
        segment.expect(WorkKind::of(rows), work_of(self.gate_up.work + self.down.work(), rows))?;
        let recorder = segment.recorder();
        self.ffn_norm.record(recorder, rows, false);
        self.gate_up.record(recorder, rows);
        self.activation.record(recorder, rows, self.n_ff, None);
        self.down.record(recorder, rows);
        buffers.stream.store(recorder, chunk);
        Ok(())
    }
}
