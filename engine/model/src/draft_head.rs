//! The draft head of a model: a layer after the last one that predicts one token further
//! (multi-token prediction, MTP). Files of many recent models contain it.
//!
//! A head is a model of one layer. It has the vocabulary of its model, and the embedding, output
//! matrix and final norm of its model unless the file has others for it. Its input is the hidden
//! state of a position together with the next token ([`StateInput`](crate::StateInput)). The
//! tensors of the layer are those of the architecture, so the family of the model reads them.

use std::sync::Arc;

use super::{
    LoadOptions, Model, ModelConfig,
    families::Family,
    load::{Loader, integers},
    read,
};
use thermocline_base::error::Result;
use thermocline_formats::format::{Array, Checkpoint, Metadata, Tensor, TokenizerSource, Value};

/// Tensors of a head that may replace tensors of its model: the stems of their names in the head's
/// layer, and in the model.
const OWN: [(&str, &str); 4] = [
    ("nextn.embed_tokens", "token_embd"),
    ("nextn.shared_head_norm", "output_norm"),
    // The name in files of Ling 3 and MiMo 2.
    ("layer_output_norm", "output_norm"),
    ("nextn.shared_head_head", "output"),
];

/// Prefix of the names of the tensors of the head's layer, behind the layers of `config`.
pub(super) fn layer_prefix(config: &ModelConfig) -> String {
    format!("blk.{}.", config.n_layer())
}

/// Loads the head behind the layers of the model `config`; `None` if the checkpoint has no head.
///
/// # Errors
/// Errors of the head's keys and tensors, as of [`Model::open`].
pub(super) fn load(
    checkpoint: &Checkpoint,
    family: &Family,
    config: &ModelConfig,
    options: &LoadOptions,
) -> Result<Option<Arc<Model>>> {
    let prefix = layer_prefix(config);
    if checkpoint.tensor(&format!("{prefix}nextn.eh_proj.weight")).is_none() {
        return Ok(None);
    }
    let metadata = metadata_of_head(&checkpoint.metadata, config);
    let mut alone = Checkpoint::new(
        checkpoint.path.clone(),
        checkpoint.container,
        metadata,
        TokenizerSource::Metadata,
        tensors_of_head(checkpoint, &prefix),
    )?;
    let loader = Loader::new(&alone, &config.architecture, options);
    let (config, weights) = read(&loader, family)?;
    let used = loader.into_used();
    alone.set_aside(|name| used.contains(name));
    Ok(Some(Arc::new(Model { config, weights, checkpoint: alone, draft_head: None })))
}

/// Returns the tensors of the head's layer as those of layer 0, and the tensors outside layers.
fn tensors_of_head(checkpoint: &Checkpoint, prefix: &str) -> Vec<Tensor> {
    let renamed = checkpoint.tensors().iter().filter_map(|tensor| {
        let name = tensor.name.strip_prefix(prefix)?;
        let own = OWN.iter().find_map(|(own, stem)| Some(format!("{stem}{}", name.strip_prefix(own)?)));
        let name = own.unwrap_or_else(|| match name.starts_with("nextn.") {
            true => name.to_owned(),
            false => format!("blk.0.{name}"),
        });
        Some(Tensor { name, ..tensor.clone() })
    });
    let mut tensors: Vec<Tensor> = renamed.collect();
    let has = |tensors: &[Tensor], name: &str| tensors.iter().any(|tensor| tensor.name == name);
    let (own_embedding, own_output) = (has(&tensors, "token_embd.weight"), has(&tensors, "output.weight"));
    for tensor in checkpoint.tensors().iter().filter(|tensor| !tensor.name.starts_with("blk.")) {
        if !has(&tensors, &tensor.name) {
            tensors.push(tensor.clone());
        }
        // The output matrix of a model with tied weights is the model's embedding, even if the head
        // has another embedding.
        let tied = checkpoint.tensor("output.weight").is_none() && tensor.name == "token_embd.weight";
        if tied && own_embedding && !own_output {
            tensors.push(Tensor { name: "output.weight".to_owned(), ..tensor.clone() });
        }
    }
    tensors
}

/// Returns the metadata of a head behind the layers of `config`.
fn metadata_of_head(of_model: &Metadata, config: &ModelConfig) -> Metadata {
    let (arch, n_layer) = (&config.architecture, config.n_layer());
    let mut metadata = Metadata::new(of_model.path());
    let prefix = format!("{arch}.");
    for (key, value) in of_model.iter() {
        let value = match (key.strip_prefix(&prefix), value) {
            (Some("nextn_predict_layers" | "full_attention_interval"), _) => continue,
            (Some("block_count"), _) => Value::U32(1),
            (Some("leading_dense_block_count"), Value::U32(dense)) => {
                Value::U32(dense.saturating_sub(u32::try_from(n_layer).unwrap_or(u32::MAX)))
            }
            // One element per layer, which may lack an element for the head.
            (Some(suffix), Value::Array(array)) if !suffix.starts_with("rope.dimension") => {
                Value::Array(element(array, n_layer).unwrap_or_else(|| array.clone()))
            }
            (Some(_), value) => value.clone(),
            (None, value) if key.starts_with("general.") => value.clone(),
            (None, _) => continue,
        };
        metadata.set(key, value);
    }
    // A head always has attention.
    metadata.set(format!("{arch}.attention.recurrent_layers"), Value::Array(Array::Bool(vec![false])));
    // Without this key, some families recognise their models by the number of layers.
    if let Some(experts) = &config.experts {
        metadata.set(format!("{arch}.expert_gating_func"), Value::U32(experts.router.score.number()));
    }
    metadata
}

/// Returns the element of `array` for the head behind `n_layer` layers. An array without such an
/// element has the last one that is not zero. `None` if there is not one element per layer.
fn element(array: &Array, n_layer: usize) -> Option<Array> {
    fn of<T: Copy + Default + PartialEq>(all: &[T], n_layer: usize) -> Option<T> {
        let last = || all.iter().rev().find(|it| **it != T::default()).copied();
        match all.len() {
            len if len > n_layer => all.get(n_layer).copied(),
            len if len == n_layer => last(),
            _ => None,
        }
    }
    Some(match array {
        Array::Bool(flags) => Array::Bool(vec![of(flags, n_layer).unwrap_or(false)]),
        Array::F32(numbers) => Array::F32(vec![of(numbers, n_layer)?]),
        other => Array::U64(vec![of(&integers(other)?, n_layer)?]),
    })
}
