//! Gemma 1 to 3: a scaled embedding and GELU gates. Gemma 2 and 3 add norms after attention and
//! FFN, and windows on some layers. Gemma 2 caps attention scores and logits. Gemma 3 norms query
//! and key heads, and its layers with a window have their own rotation base. EmbeddingGemma is a
//! Gemma 3 whose tokens read later tokens too.
//!
//! Hugging Face stores norm weights minus one. GGUF stores the weights themselves.

use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    architectures: &["gemma", "gemma2", "gemma3", "gemma-embedding"],
    model_types: &["gemma", "gemma2", "gemma3", "gemma3_text"],
    config,
    layer,
    import,
};

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.activation = loader.activation(Activation::GeluTanh)?;
    config.embedding_scale = (sizes.d_model as f32).sqrt();
    if loader.arch == "gemma" {
        return Ok(config);
    }
    if loader.arch == "gemma2" {
        let softcap = loader.switchable("attn_logit_softcapping")?;
        config.attentions_mut().for_each(|attention| attention.scores.softcap = softcap);
    }
    config.final_softcap = loader.switchable("final_logit_softcapping")?;
    // llama.cpp's files do not give the attention scale of the largest models. Their number of
    // layers identifies these models.
    let largest = match loader.arch {
        "gemma2" => 46,
        _ => 62,
    };
    if loader.switchable("attention.scale")?.is_none() && sizes.n_layer == largest {
        let scale = 1.0 / (sizes.d_model as f32 / sizes.n_head as f32).sqrt();
        config.attentions_mut().for_each(|attention| attention.scores.scale = scale);
    }
    if loader.arch == "gemma2" {
        loader.apply_window(&mut config, Some(4096), 2)?;
    } else {
        loader.apply_window(&mut config, None, 6)?;
        let (head_dim, dims) = (sizes.head_dim, config.ropes[0].dims);
        loader.local_rope(&mut config, RopeDefaults { head_dim, dims, base: 10_000.0 })?;
        config.attentions_mut().for_each(|attention| attention.whole_pictures = true);
    }
    config.set_steps(Step::norms_around());
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    // The first Gemma has no norms after attention and FFN.
    let norms = if loader.arch == "gemma" { USUAL_NORMS } else { NORMS_AROUND };
    gated_layer(loader, config, n, norms)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let arch = match hf.model_type() {
        "gemma" => "gemma",
        "gemma2" => "gemma2",
        _ if hf.reads_both_directions()? => "gemma-embedding",
        _ => "gemma3",
    };
    let sizes = draft.common(hf, arch)?;
    draft.rope(hf, &sizes, if matches!(arch, "gemma3" | "gemma-embedding") { 1e6 } else { 10000.0 })?;
    draft.activation(match arch {
        // Early folders of the first Gemma say `gelu`, but mean the tanh form.
        "gemma" => match hf.activation(&["hidden_activation", "hidden_act"], Activation::GeluTanh)? {
            Activation::GeluErf => Activation::GeluTanh,
            named => named,
        },
        _ => hf.activation(&["hidden_activation"], Activation::GeluTanh)?,
    });
    draft.tied = true;
    draft.headless = arch == "gemma-embedding";
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.norms_minus_one();
    if arch != "gemma" {
        import_later(hf, draft, arch, sizes)?;
    }
    Ok(())
}

/// Sets the keys and norms that Gemma 2 and 3 add to the first Gemma's.
fn import_later(hf: &HfConfig, draft: &mut Draft, arch: &str, sizes: HfSizes) -> Result<()> {
    let scalar = hf.f32(&["query_pre_attn_scalar"])?.unwrap_or(sizes.head_dim as f32);
    draft.set("attention.scale", Value::F32(1.0 / scalar.sqrt()));
    // Gemma 3 caps only logits, even if its files also name a cap on scores.
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
    if arch != "gemma2" {
        draft.local_rope(hf, &sizes, 10_000.0)?;
    }
    for (hf, gguf) in [
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
    ] {
        draft.naming.set(format!("model.layers.*.{hf}"), format!("blk.*.{gguf}"), Transform::AddOne);
    }
    Ok(())
}
