//! An assistant: a small network that drafts tokens for a model whose keys and values it reads
//! (Gemma 4). A file of its own holds it.
//!
//! Its input is a projection of the next token's embedding and of the hidden state before it. Its
//! layers have queries only. Another projection makes the hidden state for a further draft. All
//! drafts have the position of the next token, because the model has no later keys and values.

use std::path::Path;

use super::{LayerConfig, Linear, LoadOptions, Model, ModelConfig, families, load::Loader, read};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::ops::HeadSizes;
use thermocline_formats::{
    format::{Checkpoint, Matrix, Metadata, Tensor},
    quant::TensorType,
};

/// Architecture of assistants.
pub(super) const ARCHITECTURE: &str = "gemma4-assistant";
/// Architecture of the models that they draft for.
pub(super) const BASE: &str = "gemma4";
/// Stem of the projection to a hidden state of the model.
const TO_MODEL: &str = "nextn.post_projection";
/// Name of the vector of tokens in the order of their centroids.
const ORDERING: &str = "masked_embd_ordering";
/// Centroids whose tokens are candidates, if the file does not say.
const USED_CENTROIDS: usize = 32;

/// Weights of an assistant beside those of its layers. `d` is its width, and `w` that of the model.
#[derive(Debug, Clone)]
pub struct AssistantWeights {
    /// Embedding of the model, `[n_vocab, w]`, and its factor.
    pub embedding: Matrix,
    /// Factor on the embedding.
    pub embedding_scale: f32,
    /// `[d, 2 w]`; the columns of the embedding come first.
    pub input: Linear,
    /// Projection of a hidden state of the assistant to one of the model, `[w, d]`.
    pub state: Linear,
    /// Centroids of the vocabulary, if only some tokens are candidates.
    pub centroids: Option<Centroids>,
}

/// A division of the vocabulary. Only tokens of the best centroids are candidates of a draft.
#[derive(Debug, Clone)]
pub struct Centroids {
    /// `[centroids, d]`
    pub rows: Linear,
    /// Tokens of each centroid, `[centroids, n_vocab / centroids]`.
    pub tokens: Vec<u32>,
    /// Number of centroids whose tokens are candidates.
    pub used: usize,
}

/// The models that an assistant drafts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssistantBase {
    /// Their architecture.
    pub architecture: &'static str,
    /// Their width.
    pub d_model: usize,
}

impl AssistantBase {
    /// Returns the models for which `checkpoint` drafts; `None` if it is not an assistant.
    pub fn of(checkpoint: &Checkpoint) -> Option<Self> {
        let arch = checkpoint.metadata.str("general.architecture").ok().flatten();
        arch.filter(|arch| *arch == ARCHITECTURE)?;
        let d_model = *checkpoint.tensor(&format!("{TO_MODEL}.weight"))?.shape.first()?;
        Some(AssistantBase { architecture: BASE, d_model })
    }
}

impl Model {
    /// Builds the model in `checkpoint`, which drafts tokens for `target`: an assistant, or a model
    /// by itself.
    ///
    /// # Errors
    /// As [`Model::open`]; [`Error::Invalid`] if an assistant is for models of another shape.
    pub fn drafting_for(target: &Model, checkpoint: Checkpoint, options: &LoadOptions) -> Result<Model> {
        let arch = checkpoint.metadata.str("general.architecture")?.unwrap_or_default().to_owned();
        if arch != ARCHITECTURE {
            return Model::from_checkpoint(checkpoint, options);
        }
        let mut checkpoint = without_tail(&checkpoint)?;
        let loader = Loader::new(&checkpoint, &arch, options);
        let (mut config, mut weights) = read(&loader, families::by_architecture(&arch)?)?;
        read_keys_of(&mut config, target, &checkpoint.path)?;
        weights.assistant = Some(Box::new(AssistantWeights::load(&loader, &config, target)?));
        let used = loader.into_used();
        checkpoint.set_aside(|name| used.contains(name));
        Ok(Model { config, weights, checkpoint, draft_head: None })
    }
}

/// Returns `checkpoint` without the key that counts all its layers as a tail.
fn without_tail(checkpoint: &Checkpoint) -> Result<Checkpoint> {
    let tail = format!("{ARCHITECTURE}.nextn_predict_layers");
    let mut metadata = Metadata::new(&checkpoint.path);
    for (key, value) in checkpoint.metadata.iter().filter(|(key, _)| *key != tail) {
        metadata.set(key, value.clone());
    }
    let Checkpoint { path, container, tokenizer, .. } = checkpoint;
    Checkpoint::new(path.clone(), *container, metadata, tokenizer.clone(), checkpoint.tensors().to_vec())
}

/// Makes the layers of an assistant read the keys and values of the last layer of `target` with a
/// window, or without one.
fn read_keys_of(config: &mut ModelConfig, target: &Model, path: &Path) -> Result<()> {
    let windowed = |layer: &LayerConfig| layer.attention.as_ref().map(|attention| attention.window.is_some());
    for (n, layer) in config.layers.iter_mut().enumerate() {
        let kind = windowed(layer);
        let Some(attention) = &mut layer.attention else { continue };
        let last = target.config.layers.iter().rposition(|of| windowed(of) == kind);
        let source = last.and_then(|last| target.config.kv_source(last));
        // Latent attention has no values that an assistant could read.
        let plain = |at: usize| target.config.layers[at].attention.as_ref().filter(|of| of.latent.is_none());
        let heads = |at: usize| Some(plain(at)?.heads);
        let [wanted, there] = [Some(attention.heads), source.and_then(heads)].map(shape_of);
        if wanted != there {
            let of = target.checkpoint.path.display();
            let expected = format!("a model with {wanted} for layer {n} of {}", path.display());
            return Err(Error::invalid("draft model", expected, format!("{there} in {of}")));
        }
        attention.kv_from = source;
    }
    Ok(())
}

/// Describes keys and values.
fn shape_of(heads: Option<HeadSizes>) -> String {
    let Some(HeadSizes { n_kv_head, head_dim, value_dim, .. }) = heads else { return "no keys".to_owned() };
    format!("keys of {n_kv_head} x {head_dim} and values of {n_kv_head} x {value_dim} elements")
}

impl AssistantWeights {
    fn load(loader: &Loader<'_>, config: &ModelConfig, target: &Model) -> Result<Self> {
        let (d, width) = (config.d_model, target.config.d_model);
        let made_for = loader.rows(&format!("{TO_MODEL}.weight"));
        if let Some(made_for) = made_for.filter(|made_for| *made_for != width) {
            let of = target.checkpoint.path.display();
            let expected = format!("an assistant of a model of width {width}, as {of} is");
            let got = format!("{made_for} in {}", loader.checkpoint.path.display());
            return Err(Error::invalid("draft model", expected, got));
        }
        Ok(AssistantWeights {
            embedding: target.weights.token_embedding.clone(),
            embedding_scale: target.config.embedding_scale,
            input: loader.linear("nextn.pre_projection", d, 2 * width)?,
            state: loader.linear(TO_MODEL, width, d)?,
            centroids: Centroids::load(loader, config, target.config.n_vocab)?,
        })
    }
}

impl Centroids {
    /// Loads the centroids, if the file has them. The model has `most` tokens.
    fn load(loader: &Loader<'_>, config: &ModelConfig, most: usize) -> Result<Option<Self>> {
        let name = "masked_embd_centroids.weight";
        let Some(count) = loader.rows(name) else { return Ok(None) };
        let n_vocab = config.n_vocab;
        if n_vocab > most {
            return Err(loader.tensor_error(name, format!("centroids of at most {most} tokens"), n_vocab));
        }
        if count == 0 || !n_vocab.is_multiple_of(count) {
            let expected = format!("rows whose number divides {n_vocab}, the number of tokens");
            return Err(loader.tensor_error(name, expected, count));
        }
        let rows = loader.linear("masked_embd_centroids", count, config.d_model)?;
        let used = loader.size("centroid_intermediate_top_k", 1..=count)?.unwrap_or(USED_CENTROIDS.min(count));
        Ok(Some(Centroids { rows, tokens: ordering(loader, n_vocab)?, used }))
    }

    /// Returns the number of tokens of a centroid.
    pub fn tokens_each(&self) -> usize {
        self.tokens.len() / self.rows.weight.rows()
    }
}

/// Reads the tokens in the order of their centroids. Files store them as integers or as floats.
fn ordering(loader: &Loader<'_>, n_vocab: usize) -> Result<Vec<u32>> {
    let name = [ORDERING.to_owned(), format!("{ORDERING}.weight")].into_iter().find(|name| loader.has(name));
    let name = name.ok_or_else(|| loader.missing_tensor(ORDERING, format!("shape [{n_vocab}]")))?;
    let tensor = loader.vector_tensor(&name, n_vocab)?;
    let ids: Vec<Option<u32>> = match tensor.ty {
        TensorType::I32 => elements(&tensor, |bytes: [u8; 4]| u32::try_from(i32::from_le_bytes(bytes)).ok()),
        TensorType::I64 => elements(&tensor, |bytes: [u8; 8]| u32::try_from(i64::from_le_bytes(bytes)).ok()),
        _ => {
            loader.values(&tensor)?.into_iter().map(|id| Some(id as u32).filter(|whole| *whole as f32 == id)).collect()
        }
    };
    let id = |(at, id): (usize, Option<u32>)| {
        let got = || id.map_or_else(|| format!("another number at {at}"), |id| format!("{id} at {at}"));
        let known = id.filter(|id| (*id as usize) < n_vocab);
        known.ok_or_else(|| loader.tensor_error(&name, format!("ids of tokens below {n_vocab}"), got()))
    };
    ids.into_iter().enumerate().map(id).collect()
}

/// Returns the elements of a tensor of integers; `None` for one that is not an id.
fn elements<const N: usize>(tensor: &Tensor, id: impl Fn([u8; N]) -> Option<u32>) -> Vec<Option<u32>> {
    tensor.data.as_chunks::<N>().0.iter().map(|bytes| id(*bytes)).collect()
}
