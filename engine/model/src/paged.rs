//! Models that are larger than the RAM that they may use.

use std::sync::Arc;

use super::Model;
use thermocline_formats::format::{PagedTensor, Pager, Tensor};

impl Model {
    /// Keeps at most `bytes` bytes of the model's weights in RAM and reads the others from disk
    /// when they are needed. Returns `None`, and changes nothing, if all weights fit or are in RAM
    /// already.
    pub fn keep_within(&self, bytes: u64) -> Option<Arc<Pager>> {
        let tensors = self.checkpoint.tensors().iter();
        let tensors = tensors.map(|it| PagedTensor { data: &it.data, chosen: is_of_experts(&it.name) });
        Pager::attach(&tensors.collect::<Vec<_>>(), bytes)
    }

    /// The tensors that every token reads as a whole: all but those of experts and the embedding.
    /// Without an output matrix, the embedding is the output matrix, too.
    pub fn tensors_of_each_token(&self) -> impl Iterator<Item = &Tensor> {
        let has_output = self.checkpoint.tensor("output.weight").is_some();
        let some_rows = move |name: &str| has_output && name == "token_embd.weight" || is_of_experts(name);
        self.checkpoint.tensors().iter().filter(move |it| !some_rows(&it.name))
    }

    /// Decides which weights are in RAM. `None` if all of them are.
    pub fn pager(&self) -> Option<&Pager> {
        self.checkpoint.files().pager()
    }
}

/// True for the tensors of experts. They contain the matrices of all experts, or in older files
/// the number of an expert after that of the layer.
fn is_of_experts(name: &str) -> bool {
    let numbers = name.split('.').filter(|part| part.parse::<u32>().is_ok());
    name.contains("_exps.") || numbers.count() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_experts_are_found_by_name() {
        let of_experts = ["blk.3.ffn_gate_exps.weight", "blk.3.ffn_down.17.weight"];
        let others = ["blk.3.ffn_down.weight", "blk.3.ffn_up_shexp.weight", "blk.3.fc1.weight", "output.weight"];
        assert!(of_experts.into_iter().all(is_of_experts) && !others.into_iter().any(is_of_experts));
    }
}
