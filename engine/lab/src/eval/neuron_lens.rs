//! Logit lens of a neuron: the tokens whose logits its down projection raises and lowers, through
//! the final norm's weights and the head (Geva et al. 2022, "Transformer Feed-Forward Layers Build
//! Predictions by Promoting Concepts in the Vocabulary Space").

use serde::Serialize;

use super::attribution::{product, subtract_mean};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_model::{Down, Ffn, Model, NeuronIndex, NormKind};

/// Tokens whose logits a neuron with a positive activation raises and lowers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NeuronLens {
    /// The neuron.
    #[serde(flatten)]
    pub place: NeuronIndex,
    /// Ids of the tokens with the largest raise, and the raise per unit of activation and of the
    /// final norm's scale, descending.
    pub promoted: Vec<(u32, f32)>,
    /// Ids of the tokens with the largest fall, and their (negative) change, ascending.
    pub suppressed: Vec<(u32, f32)>,
}

/// Computes the logit lens of the neuron at `place`, with `top` raised and `top` lowered tokens.
/// Omits norms between the FFN and the residual stream.
///
/// # Errors
/// [`Error::Invalid`] for a neuron that the model does not have.
pub fn neuron_lens(model: &Model, cpu: &Cpu, place: NeuronIndex, top: usize) -> Result<NeuronLens> {
    let weights = &model.weights;
    let mut x = output_of(model, cpu, place)?;
    x.resize(model.config.d_model, 0.0);
    if model.config.norm == NormKind::Layer {
        subtract_mean(&mut x);
    }
    x.iter_mut().zip(&weights.output_norm.weight).for_each(|(x, weight)| *x *= weight);
    let mut order: Vec<(u32, f32)> = (0u32..).zip(product(cpu, &weights.output.weight, &x)).collect();
    order.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let promoted = order.iter().take(top).copied().collect();
    let suppressed = order.iter().rev().take(top).copied().collect();
    Ok(NeuronLens { place, promoted, suppressed })
}

/// Returns the neuron's output in the residual stream per unit of activation, `[d_model]`.
fn output_of(model: &Model, cpu: &Cpu, place: NeuronIndex) -> Result<Vec<f32>> {
    let NeuronIndex { layer, neuron } = place;
    let shape = model.neuron_shape();
    if neuron >= shape.neurons(layer) {
        let expected = format!("one of the {} neurons of layer {layer}", shape.neurons(layer));
        return Err(Error::invalid("neuron", expected, format!("neuron {neuron}")));
    }
    let (group, row) = shape.member(layer, neuron).unwrap_or((0, neuron));
    let (ffn, latent) = match &model.weights.layers[layer].ffn {
        Ffn::Dense(ffn) => (Some(ffn), None),
        Ffn::Experts(moe) => (moe.ffns().nth(group), moe.latent.as_ref().filter(|_| group < moe.experts.len())),
        Ffn::None => (None, None),
    };
    let Some(ffn) = ffn else {
        return Err(Error::invalid("neuron", "a neuron of an FFN", format!("layer {layer}, which has no FFN")));
    };
    let out = match &ffn.down {
        Down::Neurons(down) => {
            let mut out = vec![0.0; down.weight.cols()];
            down.weight.dequantise_row(row, &mut out);
            out
        }
        Down::Outputs(down) => {
            let mut values = vec![0.0; down.weight.cols()];
            let column = (0..down.weight.rows()).map(|output| {
                down.weight.dequantise_row(output, &mut values);
                values[row]
            });
            column.collect()
        }
    };
    Ok(match latent {
        Some(latent) => product(cpu, &latent.up.weight, &out),
        None => out,
    })
}
