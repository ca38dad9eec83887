//! gpt-oss (OpenAI, 20B and 120B): attention with a sink per head and biases everywhere, windows on
//! every other layer, and YaRN. Experts have biases and a clamped SwiGLU. Their logits choose them,
//! and a softmax over the chosen experts weights them.
//!
//! GGUF keeps gate and up in two tensors. Hugging Face interleaves their rows, either as MXFP4
//! blocks and scales or as floats with the inputs first.

use super::prelude::*;
use thermocline_cpu::ops::{SWIGLU_LIMIT, SWIGLU_SLOPE};

pub(super) const FAMILY: Family =
    Family { architectures: &["gpt-oss"], model_types: &["gpt_oss"], config, layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.activation = loader.activation(Activation::ClampedSwiglu)?;
    let router = Router { score: RouterScore::SoftmaxOfChosen, ..Router::softmax(false) };
    config.experts = Some(loader.required_experts(router, |_| sizes.n_ff)?);
    loader.apply_window(&mut config, None, 2)?;
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let norms = [(NormSlot::Attention, "attn_norm"), (NormSlot::Ffn, "post_attention_norm")];
    let layer = gated_layer(loader, config, n, &norms)?;
    if layer.attention.as_ref().is_none_or(|attention| attention.sinks.is_none()) {
        let heads = config.layers[n].attention.as_ref().map_or(0, |attention| attention.heads.n_head);
        let expected = format!("one logit per head, shape {:?}", [heads]);
        return Err(loader.missing_tensor(&format!("blk.{n}.attn_sinks.weight"), expected));
    }
    Ok(layer)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let sizes = draft.common(hf, "gpt-oss")?;
    draft.rope(hf, &sizes, 150_000.0)?;
    draft.activation(Activation::ClampedSwiglu);
    for (name, only) in [("swiglu_limit", SWIGLU_LIMIT), ("swiglu_alpha", SWIGLU_SLOPE)] {
        if let Some(value) = hf.f32(&[name])?
            && value != only
        {
            return Err(hf.error(name, format!("{only}, the value of every published model"), value));
        }
    }
    draft.windows(hf, sizes.n_layer, SlidingLayers::AllButEvery(2))?;
    draft.set_size("expert_count", hf.size(&["num_local_experts", "num_experts"])?)?;
    draft.set_size("expert_used_count", hf.size(&["num_experts_per_tok", "experts_per_token"])?)?;
    draft.set_size("expert_feed_forward_length", hf.size(&["intermediate_size"])?)?;
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.add("model.layers.*.post_attention_layernorm", "blk.*.post_attention_norm");
    naming.add("model.layers.*.mlp.router", "blk.*.ffn_gate_inp");
    naming.whole("model.layers.*.self_attn.sinks", "blk.*.attn_sinks.weight", Transform::None);
    for (hf, gguf, outputs) in [
        ("gate_up_proj", "ffn_gate_exps", ExpertOutputs::Even),
        ("gate_up_proj", "ffn_up_exps", ExpertOutputs::Odd),
        ("down_proj", "ffn_down_exps", ExpertOutputs::All),
    ] {
        let hf = format!("model.layers.*.mlp.experts.{hf}");
        naming.whole(&hf, format!("blk.*.{gguf}.weight"), Transform::InputsFirst(outputs));
        naming.whole(format!("{hf}_bias"), format!("blk.*.{gguf}.bias"), Transform::ExpertVectors(outputs));
        naming.whole(format!("{hf}_blocks"), format!("blk.*.{gguf}.weight"), Transform::Mxfp4(outputs));
    }
    Ok(())
}
