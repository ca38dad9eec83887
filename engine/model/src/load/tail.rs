//! The tail of a model: layers after the last one that predict further tokens. The first of them is
//! the draft head ([`draft_head`](crate::draft_head)). Further ones are not run.
//!
//! In files of every architecture, `nextn_predict_layers` counts the layers of the tail, and
//! `block_count` includes them. Their tensors may be missing. Arrays with one element per layer may
//! include them.

use std::{collections::BTreeSet, ops::RangeInclusive};

use super::{Loader, MAX_SIZE};
use thermocline_base::error::Result;

/// Key for the number of layers in the tail.
const TAIL: &str = "nextn_predict_layers";

/// Numbers of layers of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerCounts {
    /// Number of layers that a token passes through.
    pub(crate) n_layer: usize,
    /// Number of layers in the tail.
    pub(crate) tail: usize,
}

impl Loader<'_> {
    /// Returns the number of layers that run and of layers in the tail.
    ///
    /// # Errors
    /// [`Error::Malformed`](thermocline_base::error::Error::Malformed) for the key, if there are no
    /// layers, or if the tail leaves none.
    pub fn layer_counts(&self) -> Result<LayerCounts> {
        let key = "block_count";
        // Every layer has tensors of its own, so the number of tensors limits the number of layers.
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
        // If the file has layers beyond `block_count`, they are the tail.
        let behind = all.last().is_some_and(|layer| *layer >= blocks);
        let counted = if behind { last } else { said.max(last) };
        Ok(LayerCounts { n_layer: blocks - counted, tail: said.max(predicting.len()) })
    }

    /// Returns the elements for the layers that run. The array has one element per layer, and may
    /// have elements for the tail.
    pub(super) fn of_layers<'v, T>(&self, values: &'v [T]) -> Result<&'v [T]> {
        let LayerCounts { n_layer, tail } = self.layer_counts()?;
        let further = values.len().checked_sub(n_layer).is_some_and(|further| further <= tail);
        Ok(if further { &values[..n_layer] } else { values })
    }

    /// Reads one unsigned number under a key that has one value for all layers.
    fn number(&self, suffix: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        match self.metadata().usize(&self.key(suffix))? {
            Some(value) if !range.contains(&value) => {
                Err(self.key_error(suffix, format!("a number from {} to {}", range.start(), range.end()), value))
            }
            other => Ok(other),
        }
    }
}

/// Returns the layer of a tensor from its GGUF name, and its name within the layer.
pub(crate) fn layer_and_name(name: &str) -> Option<(usize, &str)> {
    let (layer, name) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, name))
}
