//! From Hugging Face's tensor names to GGUF's.

use std::collections::HashMap;

use super::{Transform, draft::HfSizes};

/// Rules of one family. A rule is a name without its last part (`weight`, `bias`); `*` stands for a number.
#[derive(Debug, Default)]
pub(in crate::model) struct Naming {
    rules: HashMap<String, Vec<(String, Transform)>>,
    prefixes: Vec<(&'static str, &'static str)>,
}

/// Prefixes that wrappers put before a language model's own names.
const WRAPPERS: &[(&str, &str)] =
    &[("language_model.model.", "model."), ("model.language_model.", "model."), ("language_model.lm_head", "lm_head")];

impl Naming {
    /// Names of Llama and models of the same shape.
    pub(in crate::model) fn llama_like(&mut self) {
        self.add("model.embed_tokens", "token_embd");
        self.add("model.norm", "output_norm");
        self.add("lm_head", "output");
        for (hf, gguf) in [
            ("input_layernorm", "attn_norm"),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("post_attention_layernorm", "ffn_norm"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
        ] {
            self.add(format!("model.layers.*.{hf}"), format!("blk.*.{gguf}"));
        }
    }

    /// Adds a rule for tensors taken as they are.
    pub(in crate::model) fn add(&mut self, hf: impl Into<String>, gguf: impl Into<String>) {
        self.set(hf, gguf, Transform::None);
    }

    /// Adds a rule, or replaces the one for the same name.
    pub(in crate::model) fn set(&mut self, hf: impl Into<String>, gguf: impl Into<String>, transform: Transform) {
        self.rules.insert(hf.into(), vec![(gguf.into(), transform)]);
    }

    /// Adds a rule for tensors whose rows, in equal ranges, are several of GGUF's.
    pub(in crate::model) fn split<const N: usize>(&mut self, hf: impl Into<String>, gguf: [&str; N]) {
        let range = |(range, name): (usize, &str)| (name.to_owned(), Transform::Rows { range, of: N });
        self.rules.insert(hf.into(), gguf.into_iter().enumerate().map(range).collect());
    }

    /// The norms of [`Naming::llama_like`] models that store their weights minus one.
    pub(in crate::model) fn norms_minus_one(&mut self) {
        self.set("model.layers.*.input_layernorm", "blk.*.attn_norm", Transform::AddOne);
        self.set("model.layers.*.post_attention_layernorm", "blk.*.ffn_norm", Transform::AddOne);
        self.set("model.norm", "output_norm", Transform::AddOne);
    }

    /// Norms behind attention and FFN.
    pub(in crate::model) fn norms_after(&mut self) {
        self.add("model.layers.*.post_attention_layernorm", "blk.*.post_attention_norm");
        self.add("model.layers.*.post_feedforward_layernorm", "blk.*.post_ffw_norm");
    }

    /// Norms of query and key heads.
    pub(in crate::model) fn norms_of_heads(&mut self) {
        self.add("model.layers.*.self_attn.q_norm", "blk.*.attn_q_norm");
        self.add("model.layers.*.self_attn.k_norm", "blk.*.attn_k_norm");
    }

    /// Makes neighbours of rotated pairs in q and k, as GGUF has them in the llama family.
    pub(in crate::model) fn rotated_pairs(&mut self, sizes: &HfSizes) {
        self.set("model.layers.*.self_attn.q_proj", "blk.*.attn_q", sizes.rope_query());
        self.set("model.layers.*.self_attn.k_proj", "blk.*.attn_k", sizes.rope_key());
    }

    /// Reads names that start with `from` as if they started with `to`.
    pub(in crate::model) fn alias(&mut self, from: &'static str, to: &'static str) {
        self.prefixes.push((from, to));
    }

    /// GGUF's names for `name` and what to do with the tensor for each; none if the model does not use it.
    pub(super) fn translate(&self, name: &str) -> Vec<(String, Transform)> {
        let wrapped = WRAPPERS.iter().chain(&self.prefixes).find_map(|(from, to)| {
            let rest = name.strip_prefix(from)?;
            Some(format!("{to}{rest}"))
        });
        let name = wrapped.as_deref().unwrap_or(name);
        let Some((stem, last @ ("weight" | "bias"))) = name.rsplit_once('.') else { return Vec::new() };
        let mut numbers = Vec::new();
        let pattern: Vec<&str> = stem
            .split('.')
            .map(|part| match part.parse::<u32>() {
                Ok(number) => {
                    numbers.push(number);
                    "*"
                }
                Err(_) => part,
            })
            .collect();
        let rules = self.rules.get(&pattern.join("."));
        let rules = rules.into_iter().flatten().filter_map(|(gguf, transform)| {
            // Only weights are stored minus one.
            let plain = *transform == Transform::AddOne && last == "bias";
            let transform = if plain { Transform::None } else { transform.clone() };
            Some((format!("{}.{last}", numbered(gguf, &numbers)?), transform))
        });
        rules.collect()
    }
}

/// `pattern` with its `*` replaced by the first of `numbers`; `None` if there are too few.
fn numbered(pattern: &str, numbers: &[u32]) -> Option<String> {
    let mut numbers = numbers.iter();
    let mut name = String::with_capacity(pattern.len() + 12);
    for (at, part) in pattern.split('*').enumerate() {
        if at > 0 {
            name.push_str(&numbers.next()?.to_string());
        }
        name.push_str(part);
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_translate_with_numbers_prefixes_and_suffixes() {
        let mut naming = Naming::default();
        naming.llama_like();
        naming.add("model.layers.*.mlp.experts.*.up_proj", "blk.*.ffn_up.*");
        let name = |hf: &str| naming.translate(hf).pop().map(|(name, _)| name);
        assert_eq!(name("model.layers.12.self_attn.q_proj.bias").as_deref(), Some("blk.12.attn_q.bias"));
        assert_eq!(name("model.layers.3.mlp.experts.17.up_proj.weight").as_deref(), Some("blk.3.ffn_up.17.weight"));
        assert_eq!(name("language_model.model.norm.weight").as_deref(), Some("output_norm.weight"));
        assert_eq!(name("model.layers.0.self_attn.rotary_emb.inv_freq"), None);
        assert_eq!(name("vision_tower.layers.0.weight"), None);
        assert_eq!(name(""), None);
    }

    #[test]
    fn a_tensor_may_be_several_and_biases_are_not_stored_minus_one() {
        let mut naming = Naming::default();
        naming.split("model.layers.*.mlp.input_linear", ["blk.*.ffn_gate", "blk.*.ffn_up"]);
        naming.set("model.norm", "output_norm", Transform::AddOne);
        let rows = |range| Transform::Rows { range, of: 2 };
        let wanted = [("blk.7.ffn_gate.weight".to_owned(), rows(0)), ("blk.7.ffn_up.weight".to_owned(), rows(1))];
        assert_eq!(naming.translate("model.layers.7.mlp.input_linear.weight"), wanted);
        assert_eq!(naming.translate("model.norm.bias"), [("output_norm.bias".to_owned(), Transform::None)]);
        assert_eq!(naming.translate("model.norm.weight"), [("output_norm.weight".to_owned(), Transform::AddOne)]);
    }
}
