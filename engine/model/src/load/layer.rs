//! The tensors of one layer, as parts read them.

use super::Loader;
use crate::NormKind;

/// A layer in a checkpoint: where its parts find their tensors, `blk.{n}.`, and the sizes that all of them know.
#[derive(Clone, Copy)]
pub(crate) struct LayerTensors<'a> {
    pub(crate) loader: &'a Loader<'a>,
    /// Number of the layer.
    pub(crate) n: usize,
    /// Width of the residual stream.
    pub(crate) d_model: usize,
    /// Kind of norm, for the whole model.
    pub(crate) norm: NormKind,
}
