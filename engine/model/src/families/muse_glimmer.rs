//! Muse Glimmer: embeddings divided by their root mean square, and norms before and after attention
//! and FFN and on query and key heads. A sigmoid gates the heads' outputs, and logits are scaled
//! and capped. Three of four layers have windows, and only these layers are rotated.
//!
//! Norms of heads have no weights. GGUF files store constant weights for them: a factor for queries
//! and ones for keys. Folders store norm weights minus one, except those of the final norm.

use super::prelude::*;
use crate::Rope;

pub(super) const FAMILY: Family = Family {
    architectures: &["muse-glimmer"],
    model_types: &["muse_glimmer", "muse_glimmer_text"],
    config,
    layer,
    import,
};

/// Of every `INTERVAL` layers, the last has no window.
const INTERVAL: usize = 4;
/// Epsilon of the norms after attention and FFN.
const POST_EPS: f32 = 1e-8;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::Normal)?;
    config.logit_scale = loader.switchable("logit_scale")?.unwrap_or(1.0);
    config.final_softcap = loader.switchable("final_logit_softcapping")?;
    loader.apply_window(&mut config, None, INTERVAL)?;
    let base = loader.positive("rope.freq_base_swa")?.unwrap_or(config.ropes[0].base);
    let local = config.add_rope(Rope { base, ..config.ropes[0].clone() });
    for attention in config.attentions_mut() {
        attention.positions.rope = attention.window.map(|_| local);
        let (rows, function) = (attention.heads.q_dim(), GateFunction::Sigmoid);
        attention.gate = Some(HeadGates::OwnMatrix { rows, function });
    }
    config.set_steps(Step::norms_around());
    if let Some(first) = config.layers.first_mut() {
        let norm = NormSlot::Embedding;
        let mut steps = vec![Step::Norm { norm, from: Register::Residual, into: Register::Residual }];
        steps.extend(first.steps.iter().copied());
        first.steps = steps.into();
    }
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let mut layer = gated_layer(loader, config, n, NORMS_AROUND)?;
    let attention = layer.attention.iter();
    let norms = attention.flat_map(|attention| [("q", attention.q_norm.is_none()), ("k", attention.k_norm.is_none())]);
    if let Some((of, _)) = norms.into_iter().find(|(_, missing)| *missing) {
        return Err(loader.missing_tensor(&format!("blk.{n}.attn_{of}_norm.weight"), "norms of query and key heads"));
    }
    for (slot, norm) in &mut layer.norms {
        if matches!(slot, NormSlot::PostAttention | NormSlot::PostFfn) {
            norm.own_eps = Some(POST_EPS);
        }
    }
    if n == 0 {
        let weight = vec![1.0; config.d_model];
        layer.norms.push((NormSlot::Embedding, Norm { weight, bias: None, own_eps: None }));
    }
    Ok(layer)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    hf.refuse_unless("attention_bias", false, "Muse Glimmer with biases")?;
    if let Some(eps) = hf.f32(&["post_norm_eps"])?.filter(|eps| *eps != POST_EPS) {
        return Err(hf.error("post_norm_eps", POST_EPS.to_string(), eps));
    }
    let sizes = draft.common(hf, "muse-glimmer")?;
    draft.rope(hf, &sizes, 500_000.0)?;
    draft.activation(hf.activation(&["hidden_activation", "hidden_act"], Activation::Silu)?);
    draft.set("final_logit_softcapping", Value::F32(hf.f32(&["final_logit_softcapping"])?.unwrap_or(0.0)));
    draft.set("logit_scale", Value::F32(hf.f32(&["output_multiplier"])?.unwrap_or(1.0)));
    let from_last = |n: usize| !(sizes.n_layer - 1 - n).is_multiple_of(INTERVAL);
    let usual = SlidingLayers::Marked((0..sizes.n_layer).map(from_last).collect());
    let Some(slides) = draft.windows(hf, sizes.n_layer, usual)? else {
        return Err(hf.error("sliding_window", "at least 1", "none"));
    };
    if let Some(bases) = hf.floats("layer_rope_theta")? {
        let rotated: Vec<bool> = bases.iter().map(|base| *base != 0.0).collect();
        if rotated != slides {
            return Err(hf.error(
                "layer_rope_theta",
                "0 for exactly the layers without a window",
                format!("{bases:?}"),
            ));
        }
    }
    let factor = hf.f32(&["qk_scale_factor"])?.unwrap_or(1.0);
    for n in 0..sizes.n_layer {
        draft.vector(&format!("blk.{n}.attn_q_norm.weight"), &vec![factor; sizes.head_dim]);
        draft.vector(&format!("blk.{n}.attn_k_norm.weight"), &vec![1.0; sizes.head_dim]);
    }
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.rotated_pairs(&sizes);
    naming.add("model.layers.*.self_attn.gate_proj", "blk.*.attn_gate");
    for (hf, gguf) in [
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
    ] {
        naming.set(format!("model.layers.*.{hf}"), format!("blk.*.{gguf}"), Transform::AddOne);
    }
    Ok(())
}
