//! Buffers that the layers on a device share, grouped by part.

use super::{
    altup::AltupBuffers,
    attention::{self, AttentionBuffers},
    loader::GpuLoader,
    per_layer::PerLayerBuffers,
    recurrent::{self, RecurrentBuffers},
    resident_experts,
};
use thermocline_base::error::{Error, Result};
use thermocline_model::ModelConfig;

/// The buffers of every part that needs them, sized for the largest layer.
#[derive(Debug)]
pub(crate) struct PartBuffers {
    pub attention: AttentionBuffers,
    pub recurrent: RecurrentBuffers,
    /// `None` in a model without per-layer inputs.
    pub per_layer: Option<PerLayerBuffers>,
    /// `None` in a model with one stream.
    pub altup: Option<AltupBuffers>,
}

impl PartBuffers {
    /// Makes the buffers for the layers of a model.
    pub fn new(loader: &mut GpuLoader<'_, '_>) -> Result<Self> {
        Ok(PartBuffers {
            attention: AttentionBuffers::new(loader)?,
            per_layer: PerLayerBuffers::new(loader)?,
            recurrent: RecurrentBuffers::new(loader)?,
            altup: AltupBuffers::new(loader)?,
        })
    }

    /// Returns an error if a part of the model has no kernels.
    ///
    /// # Errors
    /// [`Error::Unsupported`] names what the kernels lack.
    pub fn check(config: &ModelConfig) -> Result<()> {
        config.layers.iter().filter_map(|layer| layer.recurrent.as_ref()).try_for_each(recurrent::check)?;
        config.attentions().try_for_each(attention::check)?;
        config.experts.as_ref().map_or(Ok(()), resident_experts::check)
    }
}

/// The error of a part whose buffers do not exist because the configuration does not name the part.
pub(crate) fn no_buffers() -> Error {
    Error::invalid("layer on the GPU", "parts that the configuration names", "other parts")
}
