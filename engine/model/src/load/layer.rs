//! Access to the tensors of one layer.

use super::Loader;
use crate::NormKind;

/// A layer in a checkpoint: the tensors of its parts, `blk.{n}.`, and the sizes that all parts
/// need.
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
