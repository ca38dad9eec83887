//! Models of published shapes without weights, for plans of models that are not available.

use super::{Outline, SynthOptions, outline};
use crate::{Ffn, LoadOptions, Model};
use thermocline_base::error::Result;

/// Returns the model that `synth` would make with these options, without its weights. Its matrices
/// are blank and must not be used in computations. Layers have the designed frequencies of the
/// shape, the most active neuron (and expert) first.
///
/// # Errors
/// Errors of [`outline`].
pub fn shape_model(options: &SynthOptions) -> Result<Model> {
    let Outline { checkpoint, neurons, experts } = outline(options)?;
    let mut model = Model::from_checkpoint(checkpoint, &LoadOptions::default())?;
    for layer in &mut model.weights.layers {
        match &layer.ffn {
            Ffn::Dense(ffn) if ffn.up.weight.rows() == neurons.len() => layer.frequency = Some(neurons.clone()),
            Ffn::Experts(moe) if moe.experts.len() == experts.len() => {
                layer.frequency = Some(experts.clone());
                let width = moe.experts.first().map_or(0, |expert| expert.up.weight.rows());
                if width == neurons.len() && moe.shared.is_none() {
                    let of_expert = |chosen: &f32| neurons.iter().map(|fires| fires * chosen).collect::<Vec<f32>>();
                    layer.neuron_frequency = Some(experts.iter().flat_map(of_expert).collect());
                }
            }
            _ => {}
        }
    }
    Ok(model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::{SynthShape, generate};

    #[test]
    fn shape_model_has_the_sizes_of_the_generated_file() {
        let folder = tempfile::tempdir().unwrap();
        for name in
            ["tiny-relu-llama", "tiny-gpt-oss", "tiny-qwen3.5-moe", "tiny-nemotron-3", "tiny-turbosparse-mixtral"]
        {
            let shape = SynthShape::named(name).unwrap();
            let options = SynthOptions::new(shape, folder.path().join(format!("{name}.gguf")));
            generate(&options, &mut |_| ()).unwrap();
            let made = Model::open(&options.out, &LoadOptions::default()).unwrap();
            let blank = shape_model(&options).unwrap();
            assert_eq!(made.config, blank.config, "{name}");
            let of = |model: &Model| {
                let tensors = model.checkpoint.tensors().iter();
                tensors.map(|tensor| (tensor.name.clone(), tensor.ty, tensor.data.len())).collect::<Vec<_>>()
            };
            assert_eq!(of(&made), of(&blank), "{name}");
        }
    }

    #[test]
    fn shape_model_of_experts_has_frequencies_of_both_kinds() {
        let options = SynthOptions::new(SynthShape::named("turbosparse-mixtral").unwrap(), "outline.gguf");
        let model = shape_model(&options).unwrap();
        for layer in &model.weights.layers {
            let chosen: f32 = layer.frequency.as_ref().unwrap().iter().sum();
            assert!((chosen - 2.0).abs() < 0.01 && layer.neuron_frequency.is_some(), "{chosen}");
        }
    }
}
