//! The input that a layer has of its own beside the residual stream: the table it comes from and the use it is put to.

use super::{Linear, Norm};
use crate::load::LayerTensors;
use thermocline_base::error::Result;
use thermocline_formats::format::Matrix;

/// The use that a layer makes of its own input `p`, `[w]`: `output (activation(gate x) * p)` of the residual stream `x`.
#[derive(Debug, Clone)]
pub struct PerLayerWeights {
    /// `[w, d]`
    pub gate: Linear,
    /// `[d, w]`
    pub output: Linear,
}

impl PerLayerWeights {
    /// Its matrices.
    pub fn linears(&self) -> [&Linear; 2] {
        [&self.gate, &self.output]
    }

    /// The use that a layer makes of its own input of `width` elements, in a file.
    pub(crate) fn load(at: &LayerTensors<'_>, width: usize) -> Result<Self> {
        let LayerTensors { loader, n, d_model, .. } = *at;
        Ok(PerLayerWeights {
            gate: loader.linear(&format!("blk.{n}.inp_gate"), width, d_model)?,
            output: loader.linear(&format!("blk.{n}.proj"), d_model, width)?,
        })
    }
}

/// The inputs that layers have of their own, `w` elements each (Gemma 3n and 4): for a token with the embedding `e`, `[d]`,
/// `(norm(projection e / sqrt(d)) + sqrt(w) row) / sqrt(2)`, normed layer by layer.
#[derive(Debug, Clone)]
pub struct PerLayerTable {
    /// A row per token, `[n_vocab, n_layer * w]`. It is read row by row and stays in the file.
    pub rows: Matrix,
    /// `[n_layer * w, d]`
    pub projection: Linear,
    /// `[w]`
    pub norm: Norm,
}
