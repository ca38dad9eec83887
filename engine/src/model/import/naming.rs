//! From Hugging Face's tensor names to GGUF's.

use std::collections::HashMap;

use super::Transform;

/// Rules of one family. A rule is a name without its last part (`weight`, `bias`); `*` stands for a number.
#[derive(Debug, Default)]
pub(in crate::model) struct Naming {
    rules: HashMap<String, (String, Transform)>,
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
        self.rules.insert(hf.into(), (gguf.into(), transform));
    }

    /// Reads names that start with `from` as if they started with `to`.
    pub(in crate::model) fn alias(&mut self, from: &'static str, to: &'static str) {
        self.prefixes.push((from, to));
    }

    /// GGUF's name for `name` and what to do with the tensor; `None` if the model does not use it.
    pub(super) fn translate(&self, name: &str) -> Option<(String, Transform)> {
        let wrapped = WRAPPERS.iter().chain(&self.prefixes).find_map(|(from, to)| {
            let rest = name.strip_prefix(from)?;
            Some(format!("{to}{rest}"))
        });
        let name = wrapped.as_deref().unwrap_or(name);
        let (stem, last) = name.rsplit_once('.')?;
        if !matches!(last, "weight" | "bias") {
            return None;
        }
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
        let (gguf, transform) = self.rules.get(&pattern.join("."))?;
        let mut numbers = numbers.into_iter();
        let mut translated = String::with_capacity(gguf.len() + 12);
        for (at, part) in gguf.split('*').enumerate() {
            if at > 0 {
                translated.push_str(&numbers.next()?.to_string());
            }
            translated.push_str(part);
        }
        Some((format!("{translated}.{last}"), transform.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_translate_with_numbers_prefixes_and_suffixes() {
        let mut naming = Naming::default();
        naming.llama_like();
        naming.add("model.layers.*.mlp.experts.*.up_proj", "blk.*.ffn_up.*");
        let name = |hf: &str| naming.translate(hf).map(|(name, _)| name);
        assert_eq!(name("model.layers.12.self_attn.q_proj.bias").as_deref(), Some("blk.12.attn_q.bias"));
        assert_eq!(name("model.layers.3.mlp.experts.17.up_proj.weight").as_deref(), Some("blk.3.ffn_up.17.weight"));
        assert_eq!(name("language_model.model.norm.weight").as_deref(), Some("output_norm.weight"));
        assert_eq!(name("model.layers.0.self_attn.rotary_emb.inv_freq"), None);
        assert_eq!(name("vision_tower.layers.0.weight"), None);
        assert_eq!(name(""), None);
    }
}
