//! Falcon: attention and FFN read the same residual stream in parallel, with layer norms, a fused
//! QKV and an ungated FFN. The 7B shape has one norm per layer and one key/value head. The 40B
//! shape has two norms and groups of heads. In the RefinedWeb models of 1B and 7B (falcon-rw) the
//! FFN follows attention, and scores get biases (ALiBi) instead of rotations.
//!
//! GGUF stores the fused rows as all queries, all keys, all values. Hugging Face stores them by
//! key/value group. If `attn_norm_2` exists, it is attention's norm, and `attn_norm` is the FFN's.

use super::prelude::*;
use crate::KeyBias;

pub(super) const FAMILY: Family = Family {
    architectures: &["falcon"],
    model_types: &["falcon", "RefinedWeb", "RefinedWebModel"],
    config,
    layer,
    import,
};

/// Exponent of the steepest ALiBi slope, which the reference's files do not name.
const ALIBI_MOST: f32 = 8.0;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Layer, RopeOrder::NeoX)?;
    let default = if loader.is_powerinfer() { Activation::Relu } else { Activation::GeluErf };
    config.activation = loader.activation(default)?;
    let two_norms = loader.has("blk.0.attn_norm_2.weight");
    let sequential = loader.has("blk.0.ffn_norm.weight");
    config.set_steps(if sequential { Step::sequential() } else { steps(two_norms) });
    if let Some(most) = loader.switchable("attention.max_alibi_bias")? {
        for attention in config.attentions_mut() {
            attention.positions.rope = None;
            attention.positions.key_bias =
                Some(KeyBias::geometric(attention.heads.n_head, most, attention.scores.scale));
        }
    }
    Ok(config)
}

fn steps(two_norms: bool) -> Vec<Step> {
    use Register::{Normed, NormedFfn, Residual};
    if !two_norms {
        return Step::parallel();
    }
    vec![
        Step::Norm { norm: NormSlot::Attention, from: Residual, into: Normed },
        Step::Norm { norm: NormSlot::Ffn, from: Residual, into: NormedFfn },
        Step::Attention { from: Normed },
        Step::AddOut,
        Step::Ffn { from: NormedFfn },
        Step::AddOut,
    ]
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let two_norms = config.layers[n].steps.iter().any(|step| matches!(step, Step::Norm { norm: NormSlot::Ffn, .. }));
    let stems: &[(NormSlot, &str)] = if loader.has(&format!("blk.{n}.ffn_norm.weight")) {
        USUAL_NORMS
    } else if two_norms {
        &[(NormSlot::Attention, "attn_norm_2"), (NormSlot::Ffn, "attn_norm")]
    } else {
        &[(NormSlot::Attention, "attn_norm")]
    };
    ungated_layer(loader, config, n, stems)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let new_decoder = hf.bool(&["new_decoder_architecture"])?.unwrap_or(hf.model_type() == "RefinedWeb");
    let n_head = hf.size(&["num_attention_heads", "n_head"])?;
    let n_kv_head = if new_decoder {
        hf.or_default(&["num_kv_heads", "n_head_kv"], n_head)?
    } else if hf.bool(&["multi_query"])?.unwrap_or(true) {
        1
    } else {
        n_head
    };
    let n_ff = hf.or_default(&["ffn_hidden_size"], hf.size(&["hidden_size"])?.saturating_mul(4))?;
    let sizes = draft.common_with(hf, "falcon", n_kv_head, n_ff)?;
    if hf.bool(&["alibi"])?.unwrap_or(false) {
        draft.set("attention.max_alibi_bias", Value::F32(ALIBI_MOST));
    } else {
        draft.rope(hf, &sizes, 10_000.0)?;
    }
    draft.set("attention.layer_norm_epsilon", Value::F32(hf.f32(&["layer_norm_epsilon"])?.unwrap_or(1e-5)));
    draft.set("tensor_data_layout", Value::String("jploski".to_owned()));
    draft.activation(hf.activation(&["activation", "hidden_act"], Activation::GeluErf)?);
    draft.tied = true;

    let naming = &mut draft.naming;
    naming.add("transformer.word_embeddings", "token_embd");
    naming.add("transformer.ln_f", "output_norm");
    naming.add("lm_head", "output");
    naming.add("transformer.h.*.input_layernorm", "blk.*.attn_norm");
    naming.add("transformer.h.*.ln_attn", "blk.*.attn_norm_2");
    naming.add("transformer.h.*.ln_mlp", "blk.*.attn_norm");
    naming.add("transformer.h.*.post_attention_layernorm", "blk.*.ffn_norm");
    let qkv = Transform::Qkv { heads: sizes.n_head, kv_heads: sizes.n_kv_head };
    naming.set("transformer.h.*.self_attention.query_key_value", "blk.*.attn_qkv", qkv);
    naming.add("transformer.h.*.self_attention.dense", "blk.*.attn_output");
    naming.add("transformer.h.*.mlp.dense_h_to_4h", "blk.*.ffn_up");
    naming.add("transformer.h.*.mlp.dense_4h_to_h", "blk.*.ffn_down");
    Ok(())
}
