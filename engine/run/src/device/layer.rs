//! One layer of a model on a device, without its FFN: the prepared steps.

use super::{
    attention::AttentionOps,
    ffn::DenseFfn,
    loader::GpuLoader,
    recurrent::RecurrentOps,
    step::{GpuStep, LayerBuffers},
};
use thermocline_base::error::Result;
use thermocline_model::Model;

/// The prepared steps of one layer, in the order of its program.
#[derive(Debug)]
pub(crate) struct GpuLayer {
    pub steps: Vec<GpuStep>,
}

impl GpuLayer {
    /// Uploads `layer` of `model` and prepares its steps.
    pub fn new(loader: &mut GpuLoader<'_, '_>, buffers: LayerBuffers<'_>, model: &Model, layer: usize) -> Result<Self> {
        let mut steps = Vec::new();
        for step in model.steps(layer) {
            let prepared = GpuStep::new(loader, buffers, &step?, &steps)?;
            steps.push(prepared);
        }
        Ok(GpuLayer { steps })
    }

    /// Attention, if the layer has one.
    pub fn attention(&self) -> Option<&AttentionOps> {
        self.steps.iter().find_map(|step| match step {
            GpuStep::Attention(ops) => Some(&**ops),
            _ => None,
        })
    }

    /// The recurrent mixer, if the layer has one.
    pub fn recurrent(&self) -> Option<&RecurrentOps> {
        self.steps.iter().find_map(|step| match step {
            GpuStep::Recurrent(ops) => Some(&**ops),
            _ => None,
        })
    }

    /// The dense FFN beside experts, if the layer has one.
    pub fn dense(&self) -> Option<&DenseFfn> {
        self.steps.iter().find_map(|step| match step {
            GpuStep::DenseFfn(ffn) => Some(&**ffn),
            _ => None,
        })
    }
}
