//! Counts of tensors by role and by type.

use serde::Serialize;
use thermocline_engine::format::{Checkpoint, Tensor};

/// Sums over a group of tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TensorGroup {
    /// Number of tensors.
    pub tensors: usize,
    /// Number of elements.
    pub parameters: u64,
    /// Bytes in the file.
    pub bytes: u64,
}

impl TensorGroup {
    /// Adds a tensor to the group.
    pub fn add(&mut self, tensor: &Tensor) {
        self.tensors += 1;
        self.parameters += tensor.len() as u64;
        self.bytes += tensor.data.len() as u64;
    }
}

/// Sums over the used tensors of a checkpoint.
#[derive(Debug, Default)]
pub struct Summary {
    /// All used tensors.
    pub total: TensorGroup,
    /// Groups by role, in the order of the forward pass.
    pub roles: Vec<(&'static str, TensorGroup)>,
    /// Groups by type, most bytes first.
    pub types: Vec<(&'static str, TensorGroup)>,
}

const ROLES: [&str; 8] = ["embedding", "norms", "attention", "router", "FFN", "predictor", "head", "other"];

impl Summary {
    /// Counts the tensors of `checkpoint`.
    pub fn new(checkpoint: &Checkpoint) -> Self {
        let mut summary =
            Summary { roles: ROLES.map(|role| (role, TensorGroup::default())).to_vec(), ..Self::default() };
        for tensor in checkpoint.tensors() {
            summary.total.add(tensor);
            entry(&mut summary.roles, role(&tensor.name)).add(tensor);
            entry(&mut summary.types, tensor.ty.name()).add(tensor);
        }
        summary.roles.retain(|(_, group)| group.tensors > 0);
        summary.types.sort_by_key(|(_, group)| std::cmp::Reverse(group.bytes));
        summary
    }
}

fn entry<'a>(groups: &'a mut Vec<(&'static str, TensorGroup)>, name: &'static str) -> &'a mut TensorGroup {
    let at = groups.iter().position(|(other, _)| *other == name).unwrap_or_else(|| {
        groups.push((name, TensorGroup::default()));
        groups.len() - 1
    });
    &mut groups[at].1
}

/// Returns the role of a tensor from its GGUF name.
fn role(name: &str) -> &'static str {
    let stem = name.trim_end_matches(".weight").trim_end_matches(".bias");
    let part = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(stem, |(_, part)| part);
    match part {
        "output" => "head",
        "fc1" | "fc2" => "predictor",
        "ffn_gate_inp" => "router",
        _ if part.contains("norm") => "norms",
        _ if part.ends_with("_embd") => "embedding",
        _ if part.starts_with("attn") => "attention",
        _ if part.starts_with("ffn") => "FFN",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_follows_from_the_tensor_name() {
        for (name, expected) in [
            ("token_embd.weight", "embedding"),
            ("position_embd.weight", "embedding"),
            ("output.weight", "head"),
            ("output_norm.weight", "norms"),
            ("blk.3.attn_q_norm.weight", "norms"),
            ("blk.3.attn_q.bias", "attention"),
            ("blk.3.ffn_down_t.weight", "FFN"),
            ("blk.3.ffn_gate_inp.weight", "router"),
            ("blk.3.ffn_gate_exps.weight", "FFN"),
            ("blk.3.fc1.weight", "predictor"),
            ("rope_freqs.weight", "other"),
        ] {
            assert_eq!(role(name), expected, "{name}");
        }
    }
}
