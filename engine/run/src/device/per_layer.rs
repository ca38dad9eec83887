//! Per-layer inputs, beside the residual stream, on the device.

use super::{
    elementwise::{WORKGROUP, flat_grid, overrides},
    loader::GpuLoader,
    product::Product,
};
use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, BufferRows, Gpu, MemoryUse, Op, Purpose, Recorder, params, pitch};
use thermocline_model::PerLayerWeights;

/// Buffers that all layers share.
#[derive(Debug)]
pub(crate) struct PerLayerBuffers {
    /// `[layers, tokens, w]`, for the layers on the device.
    pub inputs: Buffer,
    /// `[chunk, pitch(w)]`: gates, and then the products of gates and inputs.
    gate: Buffer,
    hidden: Buffer,
    width: usize,
}

/// How one layer uses its input: `output (activation(gate x) * input)`.
#[derive(Debug)]
pub(crate) struct PerLayerOps {
    gate: Product,
    gated: Op,
    output: Product,
    width: usize,
}

impl PerLayerBuffers {
    /// Returns `None` for a model without per-layer inputs.
    pub fn new(loader: &GpuLoader<'_, '_>) -> Result<Option<Self>> {
        let Some(width) = loader.config.per_layer_input else { return Ok(None) };
        let rows = |what, floats| loader.scratch(what, loader.chunk * floats);
        Ok(Some(PerLayerBuffers {
            inputs: rows("per-layer inputs", loader.config.per_layer_inputs())?,
            gate: rows("per-layer input gates", pitch(width))?,
            hidden: rows("gated per-layer inputs", pitch(width))?,
            width,
        }))
    }
}

impl PerLayerOps {
    /// Uploads `weights`; `x` is the residual stream.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        buffers: &PerLayerBuffers,
        weights: &PerLayerWeights,
        x: &Buffer,
        out: BufferRows<'_>,
    ) -> Result<Self> {
        let what = MemoryUse { purpose: Purpose::Attention, what: "per-layer input weights" };
        let row = BufferRows { buffer: &buffers.gate, pitch: pitch(buffers.width) };
        let gate = Product::new(loader, what, &[&weights.gate], x, row)?;
        let overrides = overrides(loader.config.activation.into());
        let of = [&buffers.gate, &buffers.inputs, &buffers.hidden];
        let gated = Op::of(loader.gpu, "gated_input", WORKGROUP, &overrides, &of)?;
        let output = Product::new(loader, what, &[&weights.output], &buffers.hidden, out)?;
        Ok(PerLayerOps { gate, gated, output, width: buffers.width })
    }

    /// Records the layer's use of its input for `tokens` tokens; `at` is the index of the layer
    /// among those on the device.
    pub fn record(&self, gpu: &Gpu, recorder: &mut Recorder, tokens: usize, at: usize) {
        self.gate.record(recorder, tokens);
        let (groups, stride) = flat_grid(gpu, tokens * self.width, WORKGROUP);
        let [cols, pitch, rows, first] =
            [self.width, pitch(self.width), tokens, at * tokens * self.width].map(|n| n as u32);
        recorder.dispatch(&self.gated, &params::GatedInput { cols, pitch, rows, stride, first }, groups);
        self.output.record(recorder, tokens);
    }

    /// Multiply-adds per token.
    pub fn work(&self) -> u64 {
        self.gate.work + self.output.work
    }
}
