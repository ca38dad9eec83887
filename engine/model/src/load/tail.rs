//! The tail of a model: layers behind the last one that predict further tokens, from which other engines make drafts. They are not run.
//!
//! `nextn_predict_layers` counts them, and `block_count` counts them as layers, in files of every architecture. Their tensors may be
//! missing, and arrays with an element per layer may have elements for them.

use std::{collections::BTreeSet, ops::RangeInclusive};

use super::{Loader, MAX_SIZE};
use thermocline_base::error::Result;

/// Key of the number of layers in the tail.
const TAIL: &str = "nextn_predict_layers";

/// Layers of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerCounts {
    /// Layers that a token passes.
    pub(crate) n_layer: usize,
    /// Layers of the tail.
    pub(crate) tail: usize,
}

impl Loader<'_> {
    /// Layers that run and layers of the tail.
    ///
    /// # Errors
    /// [`Error::Malformed`](thermocline_base::error::Error::Malformed) by the key: without layers, or with a tail that leaves none.
    pub fn layer_counts(&self) -> Result<LayerCounts> {
        let key = "block_count";
        // Every layer has tensors of its own, so a believable count is bounded by the file.
        let most = if self.recording.is_some() { MAX_SIZE } else { self.checkpoint.tensors().len().max(1) };
        let expected = format!("a number from 1 to {most}");
        let blocks = self.number(key, 1..=most)?.ok_or_else(|| self.metadata().missing(&self.key(key), &expected))?;
        let said = self.number(TAIL, 0..=blocks - 1)?.unwrap_or(0);
        let (mut all, mut predicting) = (BTreeSet::new(), BTreeSet::new());
        let tensors = self.checkpoint.tensors().iter().chain(self.checkpoint.unused());
        for (layer, name) in tensors.filter_map(|tensor| layer_and_name(&tensor.name)) {
            all.insert(layer);
            if name.starts_with("nextn.") {
                predicting.insert(layer);
            }
        }
        // Older files have such layers without the key.
        let last = (1..blocks).rev().take_while(|layer| predicting.contains(layer)).count();
        // Where the file goes on behind its last layer, that is the tail.
        let behind = all.last().is_some_and(|layer| *layer >= blocks);
        let counted = if behind { last } else { said.max(last) };
        Ok(LayerCounts { n_layer: blocks - counted, tail: said.max(predicting.len()) })
    }

    /// The elements of the layers that run, of an array with one for each layer and maybe for those of the tail.
    pub(super) fn of_layers<'v, T>(&self, values: &'v [T]) -> Result<&'v [T]> {
        let LayerCounts { n_layer, tail } = self.layer_counts()?;
        let further = values.len().checked_sub(n_layer).is_some_and(|further| further <= tail);
        Ok(if further { &values[..n_layer] } else { values })
    }

    /// One unsigned number under a key that layers cannot differ in.
    fn number(&self, suffix: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        match self.metadata().usize(&self.key(suffix))? {
            Some(value) if !range.contains(&value) => {
                Err(self.key_error(suffix, format!("a number from {} to {}", range.start(), range.end()), value))
            }
            other => Ok(other),
        }
    }
}

/// The layer that a tensor of GGUF's names belongs to, and its name in it.
pub(crate) fn layer_and_name(name: &str) -> Option<(usize, &str)> {
    let (layer, name) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, name))
}
