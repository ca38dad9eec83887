//! A layer's own input besides the residual stream: the table that provides it, and the weights
//! that use it.

use super::{Linear, Norm};
use crate::load::LayerTensors;
use thermocline_base::error::Result;
use thermocline_formats::format::Matrix;

/// Weights for a layer's own input `p`, `[w]`: `output (activation(gate x) * p)` of the residual
/// stream `x`.
#[derive(Debug, Clone)]
pub struct PerLayerWeights {
    /// `[w, d]`
    pub gate: Linear,
    /// `[d, w]`
    pub output: Linear,
}

impl PerLayerWeights {
    /// Returns both matrices.
    pub fn linears(&self) -> [&Linear; 2] {
        [&self.gate, &self.output]
    }

    /// Loads the weights for a layer's own input of `width` elements.
    pub(crate) fn load(at: &LayerTensors<'_>, width: usize) -> Result<Self> {
        let LayerTensors { loader, n, d_model, .. } = *at;
        Ok(PerLayerWeights {
            gate: loader.linear(&format!("blk.{n}.inp_gate"), width, d_model)?,
            output: loader.linear(&format!("blk.{n}.proj"), d_model, width)?,
        })
    }
}

/// Table of the layers' own inputs, `w` elements each (Gemma 3n and 4). For a token with the
/// embedding `e`, `[d]`, they are `(norm(projection e / sqrt(d)) + sqrt(w) row) / sqrt(2)`, normed
/// layer by layer.
#[derive(Debug, Clone)]
pub struct PerLayerTable {
    /// One row per token, `[n_vocab, n_layer * w]`. Rows are read one at a time, and the matrix
    /// stays in the file.
    pub rows: Matrix,
    /// `[n_layer * w, d]`
    pub projection: Linear,
    /// `[w]`
    pub norm: Norm,
}
