//! A model file of a published shape without content: sizes, types and firing frequencies, for
//! plans of models that are not available.

use super::{
    content::Content,
    firing::cdf,
    metadata::metadata,
    options::SynthOptions,
    plan::{DRELU_UP, SynthPlan},
};
use thermocline_base::error::{Error, Result};
use thermocline_formats::{
    format::{Blank, Bytes, Checkpoint, Container, Tensor, TokenizerSource},
    quant,
};

/// The file that [`generate`](super::generate) would write, without weights, and the frequencies
/// with which its neurons are designed to fire.
#[derive(Debug)]
pub struct Outline {
    /// Metadata and tensors. Vectors have their values. Matrices share one blank piece of address
    /// space that is never read.
    pub checkpoint: Checkpoint,
    /// Firing frequency of each neuron of an FFN (of a chosen expert), most active first. Empty for
    /// shapes without silent neurons.
    pub neurons: Vec<f32>,
    /// Fraction of tokens that choose each expert, most frequent first. Empty for dense shapes.
    pub experts: Vec<f32>,
}

/// Returns the outline of the model with these options.
///
/// # Errors
/// [`Error::Invalid`] or [`Error::Unsupported`] for options out of range, [`Error::Memory`] if
/// there is no address space.
pub fn outline(options: &SynthOptions) -> Result<Outline> {
    let plan = SynthPlan::new(options)?;
    let mut blank = Blank::default();
    let mut tensors = Vec::with_capacity(plan.tensors.len());
    for planned in &plan.tensors {
        let info = &planned.info;
        let data = match &planned.content {
            Content::Vector(values) => {
                let mut bytes = Vec::new();
                quant::quantise(info.ty, values, &mut bytes)?;
                Bytes::new(bytes)
            }
            _ => {
                let elements = info.shape.iter().product();
                let no_length = || Error::invalid("matrix", "whole blocks of its type", format!("{info:?}"));
                blank.bytes(info.ty.row_bytes(elements).ok_or_else(no_length)?, "outline of a model")?
            }
        };
        tensors.push(Tensor { name: info.name.clone(), ty: info.ty, shape: info.shape.clone(), data });
    }
    let container = match plan.predictor_rank {
        Some(_) => Container::PowerInfer(3),
        None => Container::Gguf(3),
    };
    let metadata = metadata(&plan, options);
    let checkpoint = Checkpoint::new(options.out.clone(), container, metadata, TokenizerSource::Metadata, tensors)?;
    // A dReLU neuron fires only if its up row is positive, too.
    let both = if plan.up_bias > 0.0 { DRELU_UP } else { 1.0 };
    let neurons = plan.firing_bias.iter().map(|bias| (cdf(*bias) * both) as f32).collect();
    let experts =
        plan.choice.iter().flat_map(|choice| choice.frequencies.iter().map(|chosen| *chosen as f32)).collect();
    Ok(Outline { checkpoint, neurons, experts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::SynthShape;

    /// The model has 70 billion parameters, more bytes than most machines have RAM.
    #[test]
    fn outline_of_a_large_relu_shape_has_its_frequencies() {
        let options = SynthOptions::new(SynthShape::named("relu-llama-70b").unwrap(), "outline.gguf");
        let outline = outline(&options).unwrap();
        let bytes = outline.checkpoint.tensor_bytes();
        assert!((35e9..60e9).contains(&(bytes as f64)), "{bytes}");
        let mean = outline.neurons.iter().sum::<f32>() / outline.neurons.len() as f32;
        assert!((mean - 0.10).abs() < 1e-3 && outline.neurons[0] > 0.9 && outline.experts.is_empty(), "{mean}");
    }
}
