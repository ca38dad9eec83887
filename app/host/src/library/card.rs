//! A model's identity and its card: properties that can be read without loading the weights.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use thermocline_engine::{
    Error, Result,
    format::{Bytes, Checkpoint, Container, ReadMode, TokenizerSource, gguf},
    model::{Activation, Down, Ffn, LayerWeights, LoadOptions, Model, expected_sparsity, traits},
    quant::TensorType,
    session::EngineOptions,
    sparsity::sidecar::{self, SidecarAttachment, SidecarChoice},
    tokenizer::Tokenizer,
};

use crate::{builtin, remote::RemoteModel};

/// Identity of a model.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ModelId {
    /// The built-in model.
    Builtin,
    /// A file (the first part of a split model) or a Hugging Face folder.
    Path(PathBuf),
    /// A model of a server, which computes its answers.
    Remote(RemoteModel),
}

impl ModelId {
    /// Returns the key that settings and chats store.
    pub fn key(&self) -> String {
        match self {
            ModelId::Builtin => "builtin:storyteller".to_owned(),
            ModelId::Path(path) => path.display().to_string(),
            ModelId::Remote(model) => model.key(),
        }
    }

    /// Returns the model of a key.
    pub fn from_key(key: &str) -> Self {
        match RemoteModel::from_key(key) {
            Some(model) => ModelId::Remote(model),
            None if key == ModelId::Builtin.key() => ModelId::Builtin,
            None => ModelId::Path(PathBuf::from(key)),
        }
    }

    /// Opens the model, with its sidecar if that is usable.
    ///
    /// # Errors
    /// The reason why the model cannot be opened.
    pub fn open(&self, options: &LoadOptions) -> Result<Model> {
        let mut model = Model::from_checkpoint(self.checkpoint(options.read_mode)?, options)?;
        let sidecar = match self {
            ModelId::Builtin if options.activation.is_none() => builtin::sidecar(),
            ModelId::Builtin | ModelId::Path(_) | ModelId::Remote(_) => SidecarChoice::Beside,
        };
        if let SidecarAttachment::Ignored { path, reason } = sidecar::attach(&mut model, &sidecar, options.read_mode)? {
            tracing::warn!(path = %path.display(), reason, "the sidecar is not used");
        }
        Ok(model)
    }

    fn checkpoint(&self, mode: ReadMode) -> Result<Checkpoint> {
        match self {
            ModelId::Builtin => gguf::from_bytes(builtin::path(), Bytes::new(builtin::file())),
            ModelId::Path(path) => Model::open_checkpoint(path, mode),
            ModelId::Remote(model) => Err(Error::invalid("model", "a model on this computer", model)),
        }
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelId::Builtin => f.write_str("Storyteller"),
            ModelId::Remote(model) => model.fmt(f),
            ModelId::Path(path) => match path.file_stem() {
                Some(stem) if !path.is_dir() => f.write_str(&stem.to_string_lossy()),
                _ => f.write_str(&path.file_name().unwrap_or(path.as_os_str()).to_string_lossy()),
            },
        }
    }
}

/// Properties of a model, as the library shows them.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCard {
    /// Identity.
    pub id: ModelId,
    /// Name from the metadata, or the file name.
    pub name: String,
    /// Architecture name in the file.
    pub architecture: String,
    /// Container format of the file.
    pub container: &'static str,
    /// Type that most bytes of weights have.
    pub weight_type: TensorType,
    /// Number of parameters.
    pub parameters: u64,
    /// Bytes of weights.
    pub bytes: u64,
    /// Context length of the training, in tokens.
    pub context: usize,
    /// Default context length in tokens.
    pub usual_context: usize,
    /// Number of layers.
    pub layers: usize,
    /// Width of the hidden states.
    pub width: usize,
    /// Neurons per layer, or per expert.
    pub neurons: usize,
    /// Experts per layer, and experts used per token.
    pub experts: Option<(usize, usize)>,
    /// Traits that differ from a plain transformer.
    pub traits: Vec<String>,
    /// Expected sparsity of its neurons.
    pub expected_sparsity: String,
    /// Activation function of the FFN.
    pub activation: Activation,
    /// `true` if firing frequencies are known, from `prepare` or from the file.
    pub prepared: bool,
    /// Mean measured recall of the predictors, 0 to 1.
    pub recall: Option<f32>,
    /// `true` if every layer has a predictor, in the file or the sidecar.
    pub predicted: bool,
    /// `true` if the down projection is neuron-major.
    pub neuron_major: bool,
    /// `true` if the model has a chat template.
    pub chats: bool,
    /// `true` if the model turns texts into vectors and generates no text.
    pub embeds: bool,
    /// Hash of its tokens, equal for models with the same tokens. `None` without a usable
    /// tokenizer.
    pub tokens: Option<u64>,
}

impl ModelCard {
    /// Reads the card: header and sizes, not the weights.
    ///
    /// # Errors
    /// The reason why the card cannot be read.
    pub fn read(id: &ModelId) -> Result<Self> {
        let model = id.open(&LoadOptions::default())?;
        let (config, checkpoint) = (&model.config, &model.checkpoint);
        let tensors = checkpoint.tensors();
        let elements = |shape: &[usize]| shape.iter().map(|n| *n as u64).product::<u64>();
        let mut by_type: Vec<(TensorType, u64)> = Vec::new();
        for tensor in tensors {
            let bytes = tensor.data.len() as u64;
            match by_type.iter_mut().find(|(ty, _)| *ty == tensor.ty) {
                Some((_, sum)) => *sum += bytes,
                None => by_type.push((tensor.ty, bytes)),
            }
        }
        let weight_type = by_type.iter().max_by_key(|(_, bytes)| *bytes).map_or(TensorType::F32, |(ty, _)| *ty);
        let layers = &model.weights.layers;
        let with_ffn = || layers.iter().filter(|layer| !matches!(layer.ffn, Ffn::None));
        let neuron_major = layers.iter().all(|layer| match &layer.ffn {
            Ffn::Dense(ffn) => matches!(ffn.down, Down::Neurons(_)),
            Ffn::None => true,
            Ffn::Experts(moe) => moe.downs().all(|down| matches!(down, Down::Neurons(_))),
        });
        Ok(ModelCard {
            id: id.clone(),
            name: if config.name.is_empty() { id.to_string() } else { config.name.clone() },
            architecture: config.architecture.clone(),
            container: match checkpoint.container {
                Container::Gguf(_) => "GGUF",
                Container::PowerInfer(_) => "PowerInfer",
                Container::HuggingFace => "Hugging Face",
            },
            weight_type,
            parameters: model.own_tensors().map(|tensor| elements(&tensor.shape)).sum(),
            bytes: checkpoint.tensor_bytes(),
            context: config.context_length,
            usual_context: EngineOptions::default().context_of(config),
            layers: config.n_layer(),
            width: config.d_model,
            neurons: config.experts.as_ref().map_or(config.n_ff, |experts| experts.n_ff),
            experts: config.experts.as_ref().map(|experts| (experts.count, experts.used)),
            traits: traits(&model),
            expected_sparsity: expected_sparsity(&model),
            activation: config.activation,
            prepared: is_prepared(&model),
            recall: recall(layers),
            predicted: with_ffn().all(|layer| layer.predictor.is_some()),
            neuron_major,
            chats: has_template(checkpoint),
            embeds: embeds(&model),
            tokens: Tokenizer::from_checkpoint(checkpoint).ok().map(|tokenizer| tokenizer.hash_of_tokens()),
        })
    }

    /// `true` if this model can be a draft model of `model`: a smaller one with the same tokens.
    /// Another quantisation of the same model is not smaller.
    pub fn drafts_for(&self, model: &ModelCard) -> bool {
        let same_tokens = self.tokens.is_some() && self.tokens == model.tokens;
        self.parameters < model.parameters && matches!(self.id, ModelId::Path(_)) && same_tokens
    }

    /// `true` if this model's path is `path`.
    pub fn is_at(&self, path: &Path) -> bool {
        matches!(&self.id, ModelId::Path(own) if own == path)
    }
}

/// `true` if a file has a chat template, even one that Thermocline cannot use.
fn has_template(checkpoint: &Checkpoint) -> bool {
    let of_folder = match &checkpoint.tokenizer {
        TokenizerSource::Metadata => None,
        TokenizerSource::HuggingFace { tokenizer_config, .. } => tokenizer_config.get("chat_template"),
    };
    of_folder.is_some() || checkpoint.metadata.get("tokenizer.chat_template").is_some()
}

/// `true` if the model turns texts into vectors and generates no text. A reranker does not.
pub fn embeds(model: &Model) -> bool {
    model.config.embeds_only() && model.weights.embedding_head.classifier.is_none()
}

/// `true` if every layer with an FFN has firing frequencies, a predictor or an activation
/// threshold. They come from `prepare` or from the file.
pub fn is_prepared(model: &Model) -> bool {
    let known =
        |it: &LayerWeights| it.frequency.is_some() || it.predictor.is_some() || it.activation_threshold.is_some();
    let layers = &model.weights.layers;
    !layers.is_empty() && layers.iter().filter(|layer| !matches!(layer.ffn, Ffn::None)).all(known)
}

/// Mean recall of the predictors; `None` unless all of them were measured.
fn recall(layers: &[LayerWeights]) -> Option<f32> {
    let found: Vec<_> = layers.iter().filter_map(|layer| layer.predictor.as_ref()).collect();
    let sum: Option<f32> = found.iter().map(|predictor| predictor.quality.map(|quality| quality.recall)).sum();
    sum.filter(|_| !found.is_empty()).map(|sum| sum / found.len() as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn card_describes_the_built_in_model_folders_and_powerinfer_files() {
        let card = ModelCard::read(&ModelId::Builtin).unwrap();
        assert_eq!((card.layers, card.neurons, card.context, card.activation), (6, 1024, 512, Activation::Relu));
        assert_eq!((card.weight_type, card.container, card.chats), (TensorType::F16, "GGUF", true));
        assert!(card.prepared && card.recall.is_some_and(|recall| recall > 0.9), "{card:?}");
        assert!((6_000_000..7_000_000).contains(&card.parameters), "{}", card.parameters);

        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/mixtral");
        let id = ModelId::Path(path.clone());
        assert_eq!((id.to_string(), ModelId::from_key(&id.key())), ("mixtral".to_owned(), id.clone()));
        let card = ModelCard::read(&id).unwrap();
        assert_eq!((card.experts, card.container, card.neurons), (Some((4, 2)), "Hugging Face", 160));
        assert!(card.is_at(&path) && !card.embeds);
        let of = |name: &str| ModelCard::read(&ModelId::Path(path.with_file_name(name))).unwrap();
        let small = of("llama-relu");
        assert!(small.drafts_for(&of("llama-relu-256")) && !small.drafts_for(&small));
        assert!(!of("llama-relu-256").drafts_for(&small));
        assert!(!small.drafts_for(&ModelCard::read(&ModelId::Builtin).unwrap()), "it has other tokens");
        assert!(of("qwen3_5").drafts_for(&of("llama-relu-256")), "it has recurrent states");

        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/fixtures/powerinfer/llama-relu-q4_0.powerinfer.gguf");
        let card = ModelCard::read(&ModelId::Path(path)).unwrap();
        assert_eq!((card.predicted, card.neuron_major, card.weight_type), (true, true, TensorType::Q4_0));
        assert!(ModelCard::read(&ModelId::Path(PathBuf::from("nowhere.gguf"))).is_err());
    }
}
