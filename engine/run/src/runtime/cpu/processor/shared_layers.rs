//! Layers that the CPU shares with another processor. Registers are handed over in the middle of a
//! chunk, and the CPU computes FFNs or some experts of layers whose attention is elsewhere.

use std::ops::Range;

use super::CpuProcessor;
use crate::runtime::{
    Pass,
    cpu::{ChosenExperts, FfnWork, LayerInputs, LayerTask, TokenInputs},
};
use thermocline_base::error::Result;
use thermocline_model::{BoundFfn, ExpertWeights, Model, Register};

impl CpuProcessor {
    /// Sets `Residual = residual`, `[tokens, d_model]`, for the head of a chunk whose layers were
    /// computed elsewhere.
    pub fn take_residual(&mut self, model: &Model, residual: &[f32], tokens: usize) -> Result<()> {
        self.fit(&model.config, tokens)?;
        self.registers[Register::Residual as usize][..residual.len()].copy_from_slice(residual);
        Ok(())
    }

    /// Sets all streams of a model with several, `[streams, tokens, d_model]`.
    pub(crate) fn take_streams(&mut self, model: &Model, streams: &[f32], tokens: usize) -> Result<()> {
        self.fit(&model.config, tokens)?;
        self.altup.take(streams, tokens, model.config.d_model)
    }

    /// The residual stream, or all streams of a model with several, `[streams, tokens, d_model]`.
    pub(crate) fn current_streams(&self, pass: &Pass<'_>) -> &[f32] {
        match self.altup.all() {
            [] => self.current_residual(pass),
            streams => streams,
        }
    }

    /// Merges the streams of `tokens` for the head, `[tokens.len(), d_model]`.
    pub(crate) fn merged_streams(&mut self, model: &Model, tokens: Range<usize>) -> Result<&[f32]> {
        let d = model.config.d_model;
        let x = &mut self.registers[Register::Residual as usize][tokens.start * d..tokens.end * d];
        if let Some(table) = &model.weights.altup {
            self.altup.merge(&self.cpu, table, tokens, x)?;
        }
        Ok(x)
    }

    /// The residual stream, `[tokens, d_model]`.
    pub fn current_residual(&self, pass: &Pass<'_>) -> &[f32] {
        &self.registers[Register::Residual as usize][..pass.register_len()]
    }

    /// The per-layer inputs of `layers` for the current chunk, `[layers, tokens, w]`; empty if the
    /// model has none.
    pub(crate) fn per_layer_inputs(&self, layers: Range<usize>) -> &[f32] {
        self.per_layer.of(layers)
    }

    /// `out = ffn(x)` for a layer whose other steps are computed elsewhere, both
    /// `[tokens, d_model]`.
    pub(crate) fn ffn_of(
        &mut self,
        pass: &mut Pass<'_>,
        ffn: &BoundFfn<'_>,
        inputs: LayerInputs<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        let task = LayerTask { preference: self.preferences.of(pass, ffn.layer), ..self.task(pass, ffn, inputs) };
        self.ffn.run(&self.cpu, &task, out, pass.probe)
    }

    /// Chooses experts by `x`, `[tokens, d_model]`, for [`CpuProcessor::ffn_of`], in a layer whose
    /// other steps are computed elsewhere.
    pub(crate) fn route_of(
        &mut self,
        pass: &Pass<'_>,
        ffn: &BoundFfn<'_>,
        experts: &ExpertWeights,
        x: &[f32],
    ) -> Result<()> {
        let inputs = LayerInputs { x, residual: None, tokens: pass.tokens.len() };
        let task = LayerTask { preference: self.preferences.of(pass, ffn.layer), ..self.task(pass, ffn, inputs) };
        self.ffn.moe.route(&self.cpu, &task, experts)?;
        self.preferences.add_ranges(pass, ffn.layer, self.ffn.moe.ranges());
        Ok(())
    }

    /// Sets `out` to the weighted sum of an MoE layer's experts that were chosen elsewhere. Ids
    /// past the last expert are skipped. `out` and the inputs are `[tokens, d_model]`. Fired
    /// neurons are added to `fired`, `[tokens, words(neurons)]`.
    pub(crate) fn experts_of(
        &mut self,
        pass: &Pass<'_>,
        ffn: &BoundFfn<'_>,
        TokenInputs { x, tokens }: TokenInputs<'_>,
        chosen: ChosenExperts<'_>,
        out: &mut [f32],
        fired: Option<&mut [u32]>,
    ) -> Result<FfnWork> {
        let task = self.task(pass, ffn, LayerInputs { x, residual: None, tokens });
        self.ffn.experts(&self.cpu, &task, chosen, out, fired)
    }
}
