//! The description of a model: its configuration ([`ModelConfig`]), its weights by role
//! ([`Weights`]), and each layer as a short program of coarse operations ([`Step`]). An
//! architecture family is one file in [`families`]. It fills in the description from GGUF metadata
//! and maps Hugging Face folders to GGUF. The forward pass executes the program and does not depend
//! on families.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod alibi;
mod assistant;
mod bound_step;
mod companion;
mod config;
mod convert;
mod draft_head;
mod families;
mod import;
mod input_sparsity;
mod load;
pub mod mask;
mod neuron_major;
mod outline;
mod paged;
mod parts;
mod picture_grid;
mod pruned;
mod read_bytes;
mod resident;
mod rope;
mod skips;
mod sparsity;
mod step;
pub mod synth;
mod tower;
mod traits;
mod weights;
mod without_neurons;

use std::{mem, path::Path, sync::Arc};

pub use alibi::KeyBias;
pub use assistant::{AssistantBase, AssistantWeights, Centroids};
pub use bound_step::{BoundOperation, BoundStep};
pub use companion::Companion;
pub use config::{Activation, ActivationForm, LayerConfig, ModelConfig};
pub use convert::{CONVERT_TYPES, ConvertReport, ConvertedTower, TypeFallback, convert};
pub use input_sparsity::{InputCopies, InputCurves, InputFigures, InputSite, SiteCurve, SiteThreshold, SkippedInputs};
pub(crate) use load::{RecordedModel, RecordedTensor, TensorChoice, TensorRole};
pub use neuron_major::{NeuronMajorReport, neuron_major};
pub(crate) use parts::RANK;
pub use parts::{
    AltupConfig, AltupStep, AltupTable, AltupWeights, AttentionConfig, AttentionWeights, BoundAttention, BoundFfn,
    BoundLatent, BoundMixer, BoundRecurrent, Classifier, ClassifierActivation, Down, EmbeddingHead, ExpertGroups,
    ExpertLatent, ExpertWeights, Experts, Ffn, FfnKind, FfnWeights, GateFunction, HeadGates, HeadPositions,
    LatentConfig, LatentWeights, LayerNorms, LayerPart, Linear, MixerConfig, MixerWeights, Norm, NormKind, NormSlot,
    PerLayerTable, PerLayerWeights, Pooling, Predictor, PredictorInput, PredictorKind, PredictorQuality, QueryScale,
    RecurrentConfig, RecurrentWeights, Router, RouterScore, ScoreScaling, SharedExpert, StateInput, StateShape,
    ValueScaling, recurrent,
};
pub use picture_grid::PictureGrid;
pub use resident::Resident;
pub use rope::{Position, Rope, RopeOrder, RopeScaling, RopeSections};
pub use skips::{SkipRule, Skips};
pub use sparsity::Sparsity;
pub use step::{Register, Step};
pub use tower::{
    HeadNorms, Merger, PatchJoin, PatchNorms, PatchPositions, PictureCell, PicturePart, PictureSizes, PictureSlices,
    PooledHead, Resampler, RowEnds, SliceGrid, Tower, TowerConfig, TowerHead, TowerLayer, TowerLinear, TowerRope,
    TowerWeights, ValueLimits,
};
pub use traits::{expected_sparsity, traits};
pub use weights::{LayerWeights, Weights};
pub use without_neurons::NeuronIndex;

use thermocline_base::{
    error::{Error, Result},
    telemetry::neurons::NeuronShape,
};
use thermocline_formats::format::{self, Checkpoint, Container, Metadata, Opened, ReadMode, Tensor, TokenizerSource};

/// Options of loading a model.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Whether to map the file or to read it into memory.
    pub read_mode: ReadMode,
    /// FFN activation, for files that do not name theirs or name a wrong one.
    pub activation: Option<Activation>,
}

/// A model that can be run. It is immutable, and sessions share it.
#[derive(Debug, Clone)]
pub struct Model {
    /// Sizes and variants.
    pub config: ModelConfig,
    /// Weights by role, still in their file types.
    pub weights: Weights,
    /// File that the weights were read from.
    pub checkpoint: Checkpoint,
    /// Draft head, if the file has one ([`StateInput`]). Its model has one layer.
    pub draft_head: Option<Arc<Model>>,
}

impl Model {
    /// Opens a GGUF file, a PowerInfer file or a Hugging Face folder.
    ///
    /// # Errors
    /// Errors of the file, with key or tensor; [`Error::Unsupported`] for an architecture or a
    /// variant that the engine does not run.
    pub fn open(path: &Path, options: &LoadOptions) -> Result<Model> {
        Model::from_checkpoint(Model::open_checkpoint(path, options.read_mode)?, options)
    }

    /// Opens a file or folder under GGUF names, without a check against an architecture. This is
    /// enough for a tokenizer or for inspection.
    ///
    /// # Errors
    /// Errors of the container.
    pub fn open_checkpoint(path: &Path, mode: ReadMode) -> Result<Checkpoint> {
        match format::open(path, mode)? {
            Opened::Checkpoint(checkpoint) => Ok(checkpoint),
            Opened::HuggingFace(folder) => import::checkpoint(folder),
        }
    }

    /// Returns the numbering of neurons that `Probe::firing` uses.
    pub fn neuron_shape(&self) -> NeuronShape {
        NeuronShape::of(self.weights.layers.iter().map(|layer| layer.ffn.neurons()))
    }

    /// True if a chunk starts from embeddings alone: without hidden states, further streams, and
    /// layers' own inputs.
    pub fn begins_with_embeddings(&self) -> bool {
        let Model { config, weights, .. } = self;
        weights.state_input.is_none() && config.per_layer_input.is_none() && config.streams() == 1
    }

    /// Returns the bytes of the tensors that only the draft head uses; `None` without a head.
    pub fn draft_head_bytes(&self) -> Option<u64> {
        let all = self.checkpoint.tensor_bytes();
        let own = self.own_tensors().map(|tensor| tensor.data.len() as u64).sum::<u64>();
        self.draft_head.as_ref().map(|_| all - own)
    }

    /// Iterates over the tensors of the model itself, without those that only its draft head uses.
    pub fn own_tensors(&self) -> impl Iterator<Item = &Tensor> {
        let prefix = self.draft_head.is_some().then(|| draft_head::layer_prefix(&self.config));
        let of_head = move |name: &str| prefix.as_ref().is_some_and(|prefix| name.starts_with(prefix));
        self.checkpoint.tensors().iter().filter(move |tensor| !of_head(&tensor.name))
    }

    /// Returns the number of layers that have an FFN.
    pub fn ffn_layers(&self) -> usize {
        self.weights.layers.iter().filter(|layer| !matches!(layer.ffn, Ffn::None)).count()
    }

    /// Builds the model in `checkpoint` and checks every size against every tensor. It ignores
    /// unknown keys and sets tensors without a role aside ([`Checkpoint::unused`]).
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn from_checkpoint(mut checkpoint: Checkpoint, options: &LoadOptions) -> Result<Model> {
        let (arch, family) = family(&checkpoint)?;
        let loader = load::Loader::new(&checkpoint, arch, options);
        let (config, weights) = read(&loader, family)?;
        let (counts, used) = (loader.layer_counts()?, loader.into_used());
        let head = draft_head::load(&checkpoint, family, &config, options).unwrap_or_else(|error| {
            tracing::warn!(path = %checkpoint.path.display(), %error, "the model opens without its draft head");
            None
        });
        let prefix = head.as_ref().map(|_| draft_head::layer_prefix(&config));
        let of_head = |name: &str| prefix.as_ref().is_some_and(|prefix| name.starts_with(prefix));
        checkpoint.set_aside(|name| used.contains(name) || of_head(name));
        let layers = checkpoint.unused().iter().filter_map(|tensor| load::layer_and_name(&tensor.name));
        if let Some(last) = layers.map(|(layer, _)| layer).max().filter(|last| *last >= counts.n_layer + counts.tail) {
            let path = checkpoint.path.display();
            tracing::warn!(%path, last, counted = counts.n_layer, "layers after the first `block_count` are not used");
        }
        Ok(Model { config, weights, checkpoint, draft_head: head })
    }

    /// Builds the model that `metadata` describes, without a file: its configuration, blank
    /// weights, and the tensors that its family requests.
    ///
    /// # Errors
    /// As [`Model::open`]; [`Error::Memory`] if there is no address space for a tensor.
    pub(crate) fn recorded(metadata: Metadata, choice: TensorChoice) -> Result<RecordedModel> {
        let (path, options) = (metadata.path().to_owned(), LoadOptions::default());
        let source = TokenizerSource::Metadata;
        let checkpoint = Checkpoint::new(path, Container::Gguf(3), metadata, source, Vec::new())?;
        let (arch, family) = family(&checkpoint)?;
        let loader = load::Loader::recording(&checkpoint, arch, &options, choice);
        let (config, weights) = read(&loader, family)?;
        Ok(RecordedModel { config, weights, tensors: loader.recorded() })
    }
}

/// Returns the architecture that `checkpoint` names, and its family.
fn family(checkpoint: &Checkpoint) -> Result<(&str, &'static families::Family)> {
    if let Some(companion) = Companion::of(checkpoint) {
        return Err(companion.refusal(&checkpoint.path));
    }
    let (metadata, key) = (&checkpoint.metadata, "general.architecture");
    let arch = metadata.str(key)?.ok_or_else(|| metadata.missing(key, "the name of an architecture"))?;
    let family = families::by_architecture(arch).map_err(|unknown| {
        let name = checkpoint.path.file_name().unwrap_or_default().to_string_lossy();
        Companion::of_name(&name).map_or(unknown, |companion| companion.refusal(&checkpoint.path))
    })?;
    Ok((arch, family))
}

/// Reads configuration and weights, and checks every size against every tensor.
fn read(loader: &load::Loader<'_>, family: &families::Family) -> Result<(ModelConfig, Weights)> {
    let mut config = families::config(loader, family)?;
    let weights = families::weights(loader, &mut config, family)?;
    check_program(&config, &weights)?;
    let kinds = config.layers.iter().zip(&weights.layers).map(|(shape, layer)| load::LayerKind {
        steps: &shape.steps,
        attention: shape.attention.as_ref(),
        ffn: mem::discriminant(&layer.ffn),
    });
    loader.check_uniform(&kinds.collect::<Vec<_>>())?;
    Ok((config, weights))
}

/// Binds every step, and checks the forward pass's further assumptions about the configuration.
fn check_program(config: &ModelConfig, weights: &Weights) -> Result<()> {
    let gated = |ffn: &Ffn| match ffn {
        Ffn::Dense(ffn) => ffn.gate.is_some(),
        Ffn::Experts(moe) => moe.ffns().all(|ffn| ffn.gate.is_some()),
        Ffn::None => true,
    };
    if config.activation == Activation::DRelu && !weights.layers.iter().all(|layer| gated(&layer.ffn)) {
        return Err(Error::invalid("activation", "relu for an FFN without a gate", config.activation));
    }
    for (n, shape) in config.layers.iter().enumerate() {
        (0..shape.steps.len()).try_for_each(|index| BoundStep::new(config, weights, n, index).map(drop))?;
        let shared = shape.attention.as_ref().and_then(|attention| attention.kv_from);
        if let Some(source) = shared.filter(|_| !config.reads_other_keys) {
            let rows = |at: usize| {
                let of = config.layers[at].attention.as_ref()?.heads;
                Some((of.n_kv_head, of.head_dim, of.value_dim))
            };
            if source >= n || config.kv_source(source) != Some(source) || rows(source) != rows(n) {
                let expected = format!("an earlier layer that computes its own keys, in the shape of layer {n}");
                return Err(Error::invalid("shared keys and values", expected, format!("layer {source}")));
            }
        }
        if shape
            .attention
            .as_ref()
            .and_then(|attention| attention.positions.rope)
            .is_some_and(|rope| rope >= config.ropes.len())
        {
            return Err(Error::invalid(
                "rotary table",
                format!("a number below {}", config.ropes.len()),
                format!("the number of layer {n}"),
            ));
        }
    }
    Ok(())
}
