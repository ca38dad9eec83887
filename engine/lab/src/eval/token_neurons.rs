//! Neurons that promote some tokens: how closely each down column points in the direction that the
//! head reads for these tokens. This is the [`neuron_lens`](super::neuron_lens()) of all neurons at
//! once, as seen from the tokens.

use std::ops::ControlFlow;

use super::attribution::{dot, is_latent, latent_direction, products_with_down, subtract_mean};
use crate::{sparsity::predictor::metrics::down_norms, unless_stopped};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_model::{Ffn, FfnWeights, Model, NormKind};

/// Returns per layer `[neurons]` cosines, in the order of the model's neuron shape. A cosine
/// compares the neuron's down column with the direction of `tokens` through the final norm's
/// weights and the head. A neuron without a down column has 0. Lengths do not count, so that strong
/// neurons of many words do not hide neurons of one word. Omits norms between the FFN and the
/// residual stream. Calls `proceed` between FFNs.
///
/// # Errors
/// [`Error::Invalid`] without tokens or for an id outside the vocabulary. [`Error::Unsupported`] if
/// neurons write vectors of another width than the head reads. [`Error::Cancelled`].
pub fn token_neurons(
    model: &Model,
    cpu: &Cpu,
    tokens: &[u32],
    proceed: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Vec<Vec<f32>>> {
    let direction = direction(model, tokens)?;
    let shape = model.neuron_shape();
    let mut layers = Vec::with_capacity(shape.layers());
    for (layer, weights) in model.weights.layers.iter().enumerate() {
        let mut all = vec![0.0; shape.neurons(layer)];
        match &weights.ffn {
            Ffn::Dense(ffn) => all.copy_from_slice(&cosines(cpu, ffn, &direction, proceed)?),
            Ffn::Experts(moe) => {
                let latent = latent_direction(cpu, &weights.ffn, &direction);
                for (expert, ffn) in moe.ffns().enumerate() {
                    let u = latent.as_deref().filter(|_| is_latent(&weights.ffn, expert)).unwrap_or(&direction);
                    all[shape.group(layer, expert)].copy_from_slice(&cosines(cpu, ffn, u, proceed)?);
                }
            }
            Ffn::None => {}
        }
        layers.push(all);
    }
    Ok(layers)
}

/// Returns the mean of the tokens' directions in the residual stream, each of length 1,
/// `[d_model]`.
fn direction(model: &Model, tokens: &[u32]) -> Result<Vec<f32>> {
    if tokens.is_empty() {
        return Err(Error::invalid("tokens", "at least one token", "no tokens"));
    }
    let (norm, head) = (&model.weights.output_norm, &model.weights.output.weight);
    let mut sum = vec![0.0; head.cols()];
    let mut u = vec![0.0; head.cols()];
    for token in tokens {
        if *token as usize >= head.rows() {
            return Err(Error::invalid("token id", format!("an id below {}", head.rows()), token));
        }
        head.dequantise_row(*token as usize, &mut u);
        u.iter_mut().zip(&norm.weight).for_each(|(u, weight)| *u *= weight);
        if model.config.norm == NormKind::Layer {
            subtract_mean(&mut u);
        }
        let length = dot(&u, &u).sqrt();
        if length > 0.0 {
            sum.iter_mut().zip(&u).for_each(|(sum, u)| *sum += u / length);
        }
    }
    Ok(sum)
}

/// Returns the cosines of the neurons' down columns and `u`, `[n_ff]`.
fn cosines(cpu: &Cpu, ffn: &FfnWeights, u: &[f32], proceed: &mut dyn FnMut() -> ControlFlow<()>) -> Result<Vec<f32>> {
    unless_stopped(proceed())?;
    let width = ffn.down.outputs();
    if width != u.len() {
        return Err(Error::unsupported("width of a down projection", width, u.len()));
    }
    let mut cosines = products_with_down(cpu, &ffn.down, u);
    let length = dot(u, u).sqrt();
    for (cosine, norm) in cosines.iter_mut().zip(down_norms(ffn)) {
        let lengths = norm * length;
        *cosine = if lengths > 0.0 { *cosine / lengths } else { 0.0 };
    }
    Ok(cosines)
}
