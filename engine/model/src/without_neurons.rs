//! A model with some neurons switched off. Their gate and up rows are zeros, so that their
//! activation is always zero, on every processor and in every sparsity mode.

use std::collections::BTreeMap;

use super::{FfnWeights, Linear, Model};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_formats::{
    format::{Bytes, Matrix},
    quant,
};

/// Byte values that can fill a row of zeros: zero scales, or, in types without scales, codes of
/// zero.
const ZERO_BYTES: [u8; 2] = [0, 0x55];

/// Place of a neuron in a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct NeuronIndex {
    /// Index of the layer.
    pub layer: usize,
    /// Index of the neuron in its layer, numbered in an MoE layer as in
    /// [`LayerNeurons::Experts`](thermocline_base::telemetry::neurons::LayerNeurons::Experts).
    pub neuron: usize,
}

impl Model {
    /// Returns the same model with `neurons` switched off. Unchanged matrices are shared. A changed
    /// matrix takes its size in memory again.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a neuron that the model does not have, [`Error::Memory`] if there is
    /// no room.
    pub fn without_neurons(&self, neurons: &[NeuronIndex]) -> Result<Model> {
        let shape = self.neuron_shape();
        // Rows to clear, by layer and by FFN in the layer (in an MoE layer, by expert).
        let mut rows: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for NeuronIndex { layer, neuron } in neurons {
            let count = shape.neurons(*layer);
            if *neuron >= count {
                let expected = match count {
                    0 => format!("a layer that has neurons, below {}", shape.layers()),
                    _ => format!("a neuron of layer {layer} below {count}"),
                };
                return Err(Error::invalid("neuron", expected, format!("neuron {neuron} of layer {layer}")));
            }
            let (group, row) = shape.member(*layer, *neuron).unwrap_or((0, *neuron));
            rows.entry((*layer, group)).or_default().push(row);
        }
        let mut weights = self.weights.clone();
        for ((layer, group), rows) in rows {
            if let Some(ffn) = weights.layers[layer].ffn.ffns_mut().nth(group) {
                silence(ffn, &rows)?;
            }
        }
        Ok(Model { weights, ..self.clone() })
    }
}

/// Sets the rows `rows` of the gate and up matrices, and their biases, to zero.
fn silence(ffn: &mut FfnWeights, rows: &[usize]) -> Result<()> {
    for linear in ffn.gate.iter_mut().chain([&mut ffn.up]) {
        *linear = with_zero_rows(linear, rows)?;
    }
    ffn.bundled_gate = None;
    Ok(())
}

fn with_zero_rows(linear: &Linear, rows: &[usize]) -> Result<Linear> {
    let weight = &linear.weight;
    let zero = zero_row(weight)?;
    let mut data = Vec::new();
    let len = weight.byte_len();
    let full = |_| Error::memory(ScarceMemory::Ram, "copy of a matrix with the neurons switched off", len as u64, 0);
    data.try_reserve_exact(len).map_err(full)?;
    (0..weight.rows()).for_each(|row| data.extend_from_slice(weight.row(row)));
    for row in rows {
        data[row * weight.row_bytes()..][..weight.row_bytes()].copy_from_slice(&zero);
    }
    let matrix = Matrix::new(weight.ty(), weight.rows(), weight.cols(), Bytes::new(data));
    let matrix = matrix.ok_or_else(|| Error::invalid("matrix", "as many bytes as its shape needs", len))?;
    let mut bias = linear.bias.clone();
    if let Some(bias) = &mut bias {
        rows.iter().for_each(|row| bias[*row] = 0.0);
    }
    Ok(Linear { weight: matrix.with_factor(weight.factor()), bias })
}

/// Returns a row of zeros in the type of `weight`.
fn zero_row(weight: &Matrix) -> Result<Vec<u8>> {
    let mut values = vec![0.0; weight.cols()];
    for byte in ZERO_BYTES {
        let row = vec![byte; weight.row_bytes()];
        quant::dequantise(weight.ty(), &row, &mut values);
        if values.iter().all(|value| *value == 0.0) {
            return Ok(row);
        }
    }
    let supported = "types that can represent a row of zeros".to_owned();
    Err(Error::unsupported("type of weights to switch off", weight.ty(), supported))
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_formats::quant::TensorType;

    #[test]
    fn zero_row_decodes_to_zeros_in_every_weight_type() {
        for ty in TensorType::ALL {
            let cols = 512;
            let Some(bytes) = ty.row_bytes(cols).filter(|_| ty.weight_type().is_some()) else { continue };
            let weight = Matrix::new(ty, 1, cols, Bytes::new(vec![0u8; bytes])).unwrap();
            let row = zero_row(&weight).unwrap_or_else(|error| panic!("{ty}: {error}"));
            let zeros = Matrix::new(ty, 1, cols, Bytes::new(row)).unwrap();
            let mut values = vec![1.0; cols];
            zeros.dequantise_row(0, &mut values);
            assert!(values.iter().all(|value| *value == 0.0), "{ty}");
        }
    }
}
