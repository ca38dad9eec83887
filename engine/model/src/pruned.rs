//! A model without some of its neurons. Their rows are removed from the matrices, so that they are
//! neither read nor computed.

use super::{Down, Ffn, FfnWeights, Linear, Model};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_formats::format::{Bytes, Matrix};

impl Model {
    /// Returns the same model without the fraction `fraction` of each FFN's neurons (in an MoE
    /// layer, of each expert's). It removes the neurons with the smallest `ranks`, and among equal
    /// ranks the first. `ranks` holds `[neurons]` per layer, numbered as in
    /// [`Model::neuron_shape`]. Every FFN keeps at least one neuron. Predictors and frequencies are
    /// dropped, because they describe all neurons.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for down projections that are not neuron-major
    /// ([`Model::neuron_major`]), and for layers in which a neuron's output depends on the other
    /// neurons. [`Error::Invalid`] for ranks of another number of neurons, [`Error::Memory`] if
    /// there is no room.
    pub fn pruned(&self, ranks: &[Vec<u32>], fraction: f64) -> Result<Model> {
        let (mut config, mut weights) = (self.config.clone(), self.weights.clone());
        for (at, layer) in weights.layers.iter_mut().enumerate() {
            let (neurons, ranks) = (layer.ffn.neurons().count(), ranks.get(at).map_or(&[][..], Vec::as_slice));
            if neurons != ranks.len() {
                return Err(Error::invalid(
                    "ranks of neurons",
                    format!("one rank for each of the {neurons} neurons of layer {at}"),
                    ranks.len(),
                ));
            }
            if neurons > 0 && layer.couples_neurons() {
                return Err(unsupported(
                    at,
                    "a norm or a threshold over all neurons",
                    "layers without such a norm or threshold",
                ));
            }
            let mut start = 0;
            for ffn in layer.ffn.ffns_mut() {
                let end = start + ffn.up.weight.rows();
                *ffn = without_lowest(ffn, &ranks[start..end], fraction, at)?;
                start = end;
            }
            match &mut layer.ffn {
                Ffn::None => continue,
                Ffn::Dense(ffn) => config.layers[at].n_ff = ffn.up.weight.rows(),
                Ffn::Experts(moe) => {
                    moe.file_down.clear();
                    if let (Some(experts), Some(first)) = (&mut config.experts, moe.experts.first()) {
                        experts.n_ff = first.up.weight.rows();
                    }
                }
            }
            (layer.predictor, layer.frequency, layer.counted_frequency, layer.neuron_frequency) =
                (None, None, None, None);
            (layer.input_curves, layer.skipped_inputs) = (None, None);
        }
        Ok(Model { config, weights, ..self.clone() })
    }
}

fn unsupported(layer: usize, got: &str, supported: &str) -> Error {
    Error::unsupported("FFN to prune", format!("layer {layer} with {got}"), supported)
}

/// Returns `ffn` without the fraction `fraction` of its neurons: those with the smallest `ranks`,
/// `[n_ff]`.
fn without_lowest(ffn: &FfnWeights, ranks: &[u32], fraction: f64, layer: usize) -> Result<FfnWeights> {
    let Down::Neurons(down) = &ffn.down else {
        return Err(unsupported(layer, "an output-major down projection", "neuron-major down projections"));
    };
    let mut order: Vec<usize> = (0..ranks.len()).collect();
    order.sort_by_key(|neuron| ranks[*neuron]);
    let removed = (fraction * ranks.len() as f64) as usize;
    let mut kept = order.split_off(removed.min(ranks.len().saturating_sub(1)));
    kept.sort_unstable();
    let bias = |linear: &Linear| linear.bias.as_ref().map(|bias| kept.iter().map(|neuron| bias[*neuron]).collect());
    let by_neuron = |linear: &Linear| Ok(Linear { weight: rows(&linear.weight, &kept)?, bias: bias(linear) });
    Ok(FfnWeights {
        gate: ffn.gate.as_ref().map(by_neuron).transpose()?,
        up: by_neuron(&ffn.up)?,
        // The bias belongs to the outputs, so it stays whole.
        down: Down::Neurons(Linear { weight: rows(&down.weight, &kept)?, bias: down.bias.clone() }),
        bundled_gate: None,
        limit: ffn.limit,
        gate_scales: ffn.gate_scales.as_ref().map(|scales| kept.iter().map(|neuron| scales[*neuron]).collect()),
    })
}

/// Returns a matrix of the rows `kept` of `matrix`.
fn rows(matrix: &Matrix, kept: &[usize]) -> Result<Matrix> {
    let bytes = kept.len() * matrix.row_bytes();
    let mut data = Vec::new();
    let full = |_| Error::memory(ScarceMemory::Ram, "copy of a matrix without the pruned neurons", bytes as u64, 0);
    data.try_reserve_exact(bytes).map_err(full)?;
    kept.iter().for_each(|row| data.extend_from_slice(matrix.row(*row)));
    let rows = Matrix::new(matrix.ty(), kept.len(), matrix.cols(), Bytes::new(data));
    let rows = rows.ok_or_else(|| Error::invalid("matrix", "as many bytes as its shape needs", bytes))?;
    Ok(rows.with_factor(matrix.factor()))
}
