//! Gemma 2 and 3: norms before and after each block, a scaled embedding, GELU gates, and windows on some layers. Gemma 2
//! caps attention scores and logits; Gemma 3 norms query and key heads and rotates local layers with a base of their own.
//!
//! Hugging Face stores norm weights minus one; GGUF stores the factor itself.

use super::{Family, Loader, parts::gated_layer};
use crate::{
    error::Result,
    format::Value,
    model::{
        Activation, LayerWeights, ModelConfig, NormKind, NormSlot, Register, RopeOrder, Step,
        import::{Draft, HfConfig, SlidingLayers, Transform},
        load::{RopeDefaults, Sizes},
    },
};

pub(super) const FAMILY: Family = Family {
    architectures: &["gemma2", "gemma3"],
    model_types: &["gemma2", "gemma3", "gemma3_text"],
    config,
    layer,
    import,
};

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.activation = loader.activation(Activation::GeluTanh)?;
    config.embedding_scale = (sizes.d_model as f32).sqrt();
    if loader.arch == "gemma2" {
        let softcap = loader.switchable("attn_logit_softcapping")?;
        config.attentions_mut().for_each(|attention| attention.softcap = softcap);
    }
    config.final_softcap = loader.switchable("final_logit_softcapping")?;
    // llama.cpp's files do not say how the largest models scale attention; it is known by their depth.
    let largest = match loader.arch {
        "gemma2" => 46,
        _ => 62,
    };
    if loader.switchable("attention.scale")?.is_none() && sizes.n_layer == largest {
        let scale = 1.0 / (sizes.d_model as f32 / sizes.n_head as f32).sqrt();
        config.attentions_mut().for_each(|attention| attention.scale = scale);
    }
    if loader.arch == "gemma2" {
        loader.apply_window(&mut config, Some(4096), 2)?;
    } else {
        loader.apply_window(&mut config, None, 6)?;
        let (head_dim, dims) = (sizes.head_dim, config.ropes[0].dims);
        loader.local_rope(&mut config, RopeDefaults { head_dim, dims, base: 10_000.0 })?;
    }
    config.set_steps(steps());
    Ok(config)
}

fn steps() -> Vec<Step> {
    use Register::{Normed, Out, Residual};
    vec![
        Step::Norm { norm: NormSlot::Attention, from: Residual, into: Normed },
        Step::Attention { from: Normed },
        Step::Norm { norm: NormSlot::PostAttention, from: Out, into: Out },
        Step::AddOut,
        Step::Norm { norm: NormSlot::Ffn, from: Residual, into: Normed },
        Step::Ffn { from: Normed },
        Step::Norm { norm: NormSlot::PostFfn, from: Out, into: Out },
        Step::AddOut,
    ]
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    gated_layer(
        loader,
        config,
        n,
        &[
            (NormSlot::Attention, "attn_norm"),
            (NormSlot::PostAttention, "post_attention_norm"),
            (NormSlot::Ffn, "ffn_norm"),
            (NormSlot::PostFfn, "post_ffw_norm"),
        ],
    )
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let arch = if hf.model_type() == "gemma2" { "gemma2" } else { "gemma3" };
    let sizes = draft.common(hf, arch)?;
    draft.rope(hf, &sizes, if arch == "gemma2" { 10000.0 } else { 1e6 })?;
    draft.activation(hf.activation(&["hidden_activation"], Activation::GeluTanh)?);
    let scalar = hf.f32(&["query_pre_attn_scalar"])?.unwrap_or(sizes.head_dim as f32);
    draft.set("attention.scale", Value::F32(1.0 / scalar.sqrt()));
    // Gemma 3 caps logits alone, whatever its files say.
    let caps: &[&str] = match arch {
        "gemma2" => &["attn_logit_softcapping", "final_logit_softcapping"],
        _ => &["final_logit_softcapping"],
    };
    for &cap in caps {
        if let Some(value) = hf.f32(&[cap])? {
            draft.set(cap, Value::F32(value));
        }
    }
    let interval = if arch == "gemma2" { 2 } else { 6 };
    draft.windows(hf, sizes.n_layer, SlidingLayers::AllButEvery(interval))?;
    if arch == "gemma3" {
        draft.local_rope(hf, &sizes, 10_000.0)?;
    }
    draft.tied = true;
    let naming = &mut draft.naming;
    naming.llama_like();
    for (hf, gguf) in [
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
    ] {
        naming.set(format!("model.layers.*.{hf}"), format!("blk.*.{gguf}"), Transform::AddOne);
    }
    naming.set("model.norm", "output_norm", Transform::AddOne);
    Ok(())
}
