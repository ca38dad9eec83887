//! Translation of Hugging Face's tensor names to GGUF's.

use std::collections::HashMap;

use super::{Transform, draft::HfSizes};

/// Naming rules of one family. A rule is a name without its last part (`weight`, `bias`); `*`
/// stands for a number.
#[derive(Debug, Default)]
pub(crate) struct Naming {
    rules: HashMap<String, (String, Transform)>,
    /// Rules for whole names. A tensor with several rules becomes several tensors.
    whole: HashMap<String, Vec<(String, Transform)>>,
    /// Rules for single tensors, by their whole names including numbers.
    exact: HashMap<String, String>,
    prefixes: Vec<(&'static str, String)>,
}

/// Prefixes that multi-modal wrappers put before a language model's names, and the prefix that
/// folders without a head lack.
const WRAPPERS: [(&str, &str); 8] = [
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head", "lm_head"),
    ("language_model.mtp.", "mtp."),
    ("llm.", ""),
    // Folders of models without a head.
    ("embed_tokens.", "model.embed_tokens."),
    ("layers.", "model.layers."),
    ("norm.", "model.norm."),
];

impl Naming {
    /// Adds the names of Llama and of models of the same shape.
    pub fn llama_like(&mut self) {
        self.add("model.embed_tokens", "token_embd");
        self.add("model.norm", "output_norm");
        self.add("lm_head", "output");
        let names = [
            ("input_layernorm", "attn_norm"),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("post_attention_layernorm", "ffn_norm"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
        ];
        self.layers("", &names);
    }

    /// Adds a rule for tensors that stay unchanged.
    pub fn add(&mut self, hf: impl Into<String>, gguf: impl Into<String>) {
        self.set(hf, gguf, Transform::None);
    }

    /// Adds a rule, or replaces the rule for the same name.
    pub fn set(&mut self, hf: impl Into<String>, gguf: impl Into<String>, transform: Transform) {
        self.rules.insert(hf.into(), (gguf.into(), transform));
    }

    /// Adds a rule for a whole name, which need not end in `weight` or `bias`. `gguf` is its GGUF
    /// name. A tensor with several such rules becomes several tensors.
    pub fn whole(&mut self, hf: impl Into<String>, gguf: impl Into<String>, transform: Transform) {
        self.whole.entry(hf.into()).or_default().push((gguf.into(), transform));
    }

    /// Adds a rule for the single tensor `hf`, named with its numbers. It takes precedence over all
    /// other rules.
    pub fn exact(&mut self, hf: impl Into<String>, gguf: impl Into<String>) {
        self.exact.insert(hf.into(), gguf.into());
    }

    /// Sets the norms of [`Naming::llama_like`] models that store their weights minus one.
    pub fn norms_minus_one(&mut self) {
        self.set("model.layers.*.input_layernorm", "blk.*.attn_norm", Transform::AddOne);
        self.set("model.layers.*.post_attention_layernorm", "blk.*.ffn_norm", Transform::AddOne);
        self.set("model.norm", "output_norm", Transform::AddOne);
    }

    /// Adds norms after attention and FFN.
    pub fn norms_after(&mut self) {
        self.add("model.layers.*.post_attention_layernorm", "blk.*.post_attention_norm");
        self.add("model.layers.*.post_feedforward_layernorm", "blk.*.post_ffw_norm");
    }

    /// Adds norms of query and key heads.
    pub fn norms_of_heads(&mut self) {
        self.add("model.layers.*.self_attn.q_norm", "blk.*.attn_q_norm");
        self.add("model.layers.*.self_attn.k_norm", "blk.*.attn_k_norm");
    }

    /// Adds the layers' own inputs (Gemma 3n and 4).
    pub fn per_layer_inputs(&mut self) {
        self.add("model.embed_tokens_per_layer", "per_layer_token_embd");
        self.add("model.per_layer_model_projection", "per_layer_model_proj");
        self.add("model.per_layer_projection_norm", "per_layer_proj_norm");
        self.add("model.layers.*.per_layer_input_gate", "blk.*.inp_gate");
        self.add("model.layers.*.per_layer_projection", "blk.*.proj");
        self.add("model.layers.*.post_per_layer_input_norm", "blk.*.post_norm");
    }

    /// Reorders rows of q and k so that rotated pairs become neighbours, as in GGUF's llama family.
    pub fn rotated_pairs(&mut self, sizes: &HfSizes) {
        self.set("model.layers.*.self_attn.q_proj", "blk.*.attn_q", sizes.rope_query());
        self.set("model.layers.*.self_attn.k_proj", "blk.*.attn_k", sizes.rope_key());
    }

    /// Adds names of a layer's tensors: `model.layers.N.{stem}{hf}` becomes `blk.N.{gguf}`.
    pub fn layers(&mut self, stem: &str, names: &[(&str, &str)]) {
        for (hf, gguf) in names {
            self.add(format!("model.layers.*.{stem}{hf}"), format!("blk.*.{gguf}"));
        }
    }

    /// Adds the router `mlp.gate` of a layer and its experts, which the folder keeps in separate
    /// tensors.
    pub fn mlp_experts(&mut self) {
        self.experts("mlp.experts", ["gate_proj", "up_proj", "down_proj"]);
        self.add("model.layers.*.mlp.gate", "blk.*.ffn_gate_inp");
    }

    /// Adds router and experts under Mixtral's names.
    pub fn mixtral_experts(&mut self) {
        self.experts("block_sparse_moe.experts", ["w1", "w3", "w2"]);
        self.add("model.layers.*.block_sparse_moe.gate", "blk.*.ffn_gate_inp");
    }

    /// Adds experts that a layer keeps in two tensors under `model.layers.N.{stem}`: one of gates
    /// and ups, one of downs.
    pub fn stacked_experts(&mut self, stem: &str, transform: &Transform) {
        for (hf, gguf) in [("gate_up_proj", "ffn_gate_up_exps"), ("down_proj", "ffn_down_exps")] {
            let (from, to) = (format!("model.layers.*.{stem}.{hf}"), format!("blk.*.{gguf}.weight"));
            self.whole(from, to, transform.clone());
        }
    }

    /// Adds experts kept in separate tensors under `model.layers.N.{stem}.E`: gate, up and down.
    pub fn experts(&mut self, stem: &str, names: [&str; 3]) {
        for (hf, gguf) in names.into_iter().zip(["ffn_gate", "ffn_up", "ffn_down"]) {
            self.add(format!("model.layers.*.{stem}.*.{hf}"), format!("blk.*.{gguf}.*"));
        }
    }

    /// Adds the FFN of shared experts under `model.layers.N.{stem}`.
    pub fn shared_expert(&mut self, stem: &str) {
        let names = [("gate_proj", "ffn_gate_shexp"), ("up_proj", "ffn_up_shexp"), ("down_proj", "ffn_down_shexp")];
        self.layers(&format!("{stem}."), &names);
    }

    /// Adds the bias for choosing experts, `model.layers.N.{name}`.
    pub fn selection_bias(&mut self, name: &str) {
        self.whole(format!("model.layers.*.{name}"), "blk.*.exp_probs_b.bias", Transform::Flatten);
    }

    /// Makes names that start with `from` count as if they started with `to`.
    pub fn alias(&mut self, from: &'static str, to: impl Into<String>) {
        self.prefixes.push((from, to.into()));
    }

    /// Adds the names that a draft head has beside the tensors of a layer. Their stems are those of
    /// DeepSeek, within the head's layer. `norms` is the transformation of their norms.
    pub fn draft_head(&mut self, norms: &Transform) {
        for (hf, gguf) in [("enorm", "enorm"), ("hnorm", "hnorm"), ("shared_head.norm", "shared_head_norm")] {
            self.set(format!("model.layers.*.{hf}"), format!("blk.*.nextn.{gguf}"), norms.clone());
        }
        let matrices = [
            ("eh_proj", "nextn.eh_proj"),
            ("embed_tokens", "nextn.embed_tokens"),
            ("shared_head.head", "nextn.shared_head_head"),
        ];
        self.layers("", &matrices);
    }

    /// Returns the GGUF names for `name`, each with its transformation. Empty if the model does not
    /// use the tensor.
    pub fn translate(&self, name: &str) -> Vec<(String, Transform)> {
        let unwrapped = WRAPPERS.iter().find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)));
        let name = unwrapped.as_deref().unwrap_or(name);
        let renamed = self.prefixes.iter().find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)));
        let name = renamed.as_deref().unwrap_or(name);
        if let Some(gguf) = self.exact.get(name) {
            return vec![(gguf.clone(), Transform::None)];
        }
        let (pattern, numbers) = pattern(name);
        if let Some(rules) = self.whole.get(&pattern) {
            let translated =
                rules.iter().filter_map(|(gguf, transform)| Some((numbered(gguf, &numbers)?, transform.clone())));
            return translated.collect();
        }
        let rule = pattern.rsplit_once('.').filter(|(_, last)| matches!(*last, "weight" | "bias"));
        let translated = rule.and_then(|(stem, last)| {
            let (gguf, transform) = self.rules.get(stem)?;
            // Only weights are stored minus one.
            let plain = *transform == Transform::AddOne && last == "bias";
            let transform = if plain { Transform::None } else { transform.clone() };
            Some((format!("{}.{last}", numbered(gguf, &numbers)?), transform))
        });
        translated.into_iter().collect()
    }
}

/// Returns `name` with `*` for its numbers, and the numbers.
fn pattern(name: &str) -> (String, Vec<u32>) {
    let mut numbers = Vec::new();
    let parts: Vec<&str> = name
        .split('.')
        .map(|part| match part.parse::<u32>() {
            Ok(number) => {
                numbers.push(number);
                "*"
            }
            Err(_) => part,
        })
        .collect();
    (parts.join("."), numbers)
}

/// Returns `name` with `numbers` in place of its `*`; `None` if there are too few numbers.
fn numbered(name: &str, numbers: &[u32]) -> Option<String> {
    let (mut numbers, mut translated) = (numbers.iter(), String::with_capacity(name.len() + 12));
    for (at, part) in name.split('*').enumerate() {
        if at > 0 {
            translated.push_str(&numbers.next()?.to_string());
        }
        translated.push_str(part);
    }
    Some(translated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_translate_with_numbers_prefixes_and_suffixes() {
        let mut naming = Naming::default();
        naming.llama_like();
        naming.add("model.layers.*.mlp.experts.*.up_proj", "blk.*.ffn_up.*");
        naming.whole("model.layers.*.sinks", "blk.*.attn_sinks.weight", Transform::None);
        naming.whole("model.layers.*.sinks", "blk.*.again.weight", Transform::Flatten);
        let name = |hf: &str| naming.translate(hf).first().map(|(name, _)| name.clone());
        assert_eq!(name("model.layers.12.self_attn.q_proj.bias").as_deref(), Some("blk.12.attn_q.bias"));
        assert_eq!(name("model.layers.3.mlp.experts.17.up_proj.weight").as_deref(), Some("blk.3.ffn_up.17.weight"));
        assert_eq!(name("language_model.model.norm.weight").as_deref(), Some("output_norm.weight"));
        assert_eq!(name("model.layers.0.self_attn.rotary_emb.inv_freq"), None);
        assert_eq!(name("vision_tower.layers.0.weight"), None);
        assert_eq!(name("mtp.layers.0.self_attn.q_proj.weight"), None);
        naming.alias("mtp.layers.0.", "model.layers.7.");
        naming.draft_head(&Transform::AddOne);
        let name = |hf: &str| naming.translate(hf).first().map(|(name, _)| name.clone());
        let of_head = ["mtp.layers.0.self_attn.q_proj.weight", "language_model.mtp.layers.0.shared_head.norm.weight"];
        let expected = ["blk.7.attn_q.weight", "blk.7.nextn.shared_head_norm.weight"];
        assert_eq!(of_head.map(name), expected.map(|name| Some(name.to_owned())));
        assert_eq!(name(""), None);
        let both = ["blk.2.attn_sinks.weight", "blk.2.again.weight"];
        let names: Vec<String> = naming.translate("model.layers.2.sinks").into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, both);
    }

    #[test]
    fn biases_are_not_stored_minus_one() {
        let mut naming = Naming::default();
        naming.set("model.norm", "output_norm", Transform::AddOne);
        assert_eq!(naming.translate("model.norm.bias"), [("output_norm.bias".to_owned(), Transform::None)]);
        assert_eq!(naming.translate("model.norm.weight"), [("output_norm.weight".to_owned(), Transform::AddOne)]);
    }
}
