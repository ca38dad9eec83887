//! Checked access to a checkpoint: metadata by key suffix, tensors by name and expected shape.
//! Every number is checked against the range that the engine can work with, and every tensor
//! against the sizes in the metadata. Nothing is computed or allocated before these checks.
//!
//! [`metadata`] reads numbers, [`config`] the configuration common to all architectures, [`rope`]
//! rotations, [`tensors`] weights, and [`layer`] the weights of one layer. [`tail`] leaves out
//! layers that are not run, and [`uniform`] compares the others. Without a file, a loader records
//! the requested tensors ([`recording`]).

mod config;
mod factors;
mod layer;
mod metadata;
mod recording;
mod rope;
mod tail;
mod tensors;
mod uniform;

use std::{cell::RefCell, collections::HashSet, fmt::Display};

pub(crate) use factors::{factor_names, factors};
pub(crate) use layer::LayerTensors;
pub(crate) use metadata::integers;
pub(crate) use recording::{RecordedModel, RecordedTensor, TensorChoice, TensorRole};
pub(crate) use rope::RopeDefaults;
pub(crate) use tail::layer_and_name;
pub(crate) use uniform::LayerKind;

use recording::Recording;

use super::LoadOptions;
use thermocline_base::error::{Error, Location};
use thermocline_formats::format::{Checkpoint, Container, Metadata};

/// Largest accepted width, head count, context and so on. Every product of two such numbers fits in
/// 64 bits.
const MAX_SIZE: usize = (1 << 31) - 1;
const MAX_HEADS: usize = 1 << 16;
const MAX_EXPERTS: usize = 1 << 16;

/// A checkpoint, read with the keys of its architecture.
pub(crate) struct Loader<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) arch: &'a str,
    pub(crate) options: &'a LoadOptions,
    used: RefCell<HashSet<String>>,
    recording: Option<Recording>,
}

/// Sizes that every architecture has. A size that differs between layers is the largest one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) d_model: usize,
    pub(crate) n_layer: usize,
    pub(crate) n_head: usize,
    pub(crate) head_dim: usize,
    /// Number of elements of a value head.
    pub(crate) value_dim: usize,
    /// Neurons of a layer; 0 if the file does not say (MoE models).
    pub(crate) n_ff: usize,
    pub(crate) n_vocab: usize,
    pub(crate) context_length: usize,
}

impl<'a> Loader<'a> {
    pub fn new(checkpoint: &'a Checkpoint, arch: &'a str, options: &'a LoadOptions) -> Self {
        Loader { checkpoint, arch, options, used: RefCell::default(), recording: None }
    }

    /// Creates a loader that records the requested tensors. From `checkpoint`, it reads only the
    /// metadata.
    pub fn recording(
        checkpoint: &'a Checkpoint,
        arch: &'a str,
        options: &'a LoadOptions,
        choice: TensorChoice,
    ) -> Self {
        Loader { recording: Some(Recording::new(choice)), ..Loader::new(checkpoint, arch, options) }
    }

    /// Returns the tensors that a loader recorded.
    pub fn recorded(&self) -> Vec<RecordedTensor> {
        self.recording.as_ref().map(Recording::take).unwrap_or_default()
    }

    fn metadata(&self) -> &'a Metadata {
        &self.checkpoint.metadata
    }

    pub fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.arch)
    }

    /// Returns the error for a key whose value cannot be used.
    pub fn key_error(&self, suffix: &str, expected: impl Into<String>, got: impl Display) -> Error {
        Error::malformed(&self.checkpoint.path, Location::Key(self.key(suffix)), expected, got)
    }

    pub fn tensor_error(&self, name: &str, expected: impl Into<String>, got: impl Display) -> Error {
        Error::malformed(&self.checkpoint.path, Location::Tensor(name.to_owned()), expected, got)
    }

    /// True for PowerInfer files. All their models use a ReLU without naming it.
    pub fn is_powerinfer(&self) -> bool {
        matches!(self.checkpoint.container, Container::PowerInfer(_)) || self.has("blk.0.ffn_down_t.weight")
    }
}
