//! The layer of a draft head (multi-token prediction) in a folder. GGUF numbers it after the last
//! layer of the model. Only the first head of a folder is used.

use std::collections::BTreeSet;

use super::Draft;
use thermocline_base::error::Result;
use thermocline_formats::format::{Array, Tensor, Value};

/// GGUF names within its layer of tensors that every draft head has.
const REQUIRED: [&str; 5] =
    ["nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight", "attn_norm.weight", "attn_output.weight"];

impl Draft {
    /// Returns the number of layers whose tensors are used. If `tensors` contain a whole draft
    /// head, its layer is one of them, and the keys count it. Otherwise arrays lose their elements
    /// for it.
    pub(super) fn count_draft_layer(&mut self, tensors: &[Tensor]) -> Result<usize> {
        let layers = self.layers()?;
        if self.has_draft_layer(layers, tensors) {
            self.set_size("block_count", layers + 1)?;
            self.set_size("nextn_predict_layers", 1)?;
            return Ok(layers + 1);
        }
        for key in &self.with_draft_layer {
            if let Some(Value::Array(array)) = self.keys.get(key) {
                let array = without_last(array.clone());
                self.keys.set(key.clone(), Value::Array(array));
            }
        }
        Ok(layers)
    }

    /// True if `tensors` contain a whole draft head with the layer `number`.
    fn has_draft_layer(&self, number: usize, tensors: &[Tensor]) -> bool {
        let stem = format!("blk.{number}.");
        let translated = tensors.iter().flat_map(|tensor| self.naming.translate(&tensor.name));
        let names: BTreeSet<String> =
            translated.filter_map(|(name, _)| name.strip_prefix(&stem).map(str::to_owned)).collect();
        let has_ffn = names.iter().any(|name| name.starts_with("ffn_down"));
        has_ffn && REQUIRED.iter().all(|name| names.contains(*name))
    }
}

fn without_last(mut array: Array) -> Array {
    match &mut array {
        Array::Bool(all) => drop(all.pop()),
        Array::U32(all) => drop(all.pop()),
        Array::F32(all) => drop(all.pop()),
        _ => {}
    }
    array
}
