//! The tensors of one layer, as parts read them.

use super::Loader;
use crate::model::NormKind;

/// A layer in a checkpoint: where its parts find their tensors, `blk.{n}.`, and the sizes that all of them know.
#[derive(Clone, Copy)]
pub(in crate::model) struct LayerTensors<'a> {
    pub(in crate::model) loader: &'a Loader<'a>,
    /// Number of the layer.
    pub(in crate::model) n: usize,
    /// Width of the residual stream.
    pub(in crate::model) d_model: usize,
    /// Kind of norm, for the whole model.
    pub(in crate::model) norm: NormKind,
}
