//! LFM2 and LFM2 MoE (Liquid AI): Llama's layer, in which most mixers are short convolutions
//! between two gates. The others are attention with norms of heads. MoE models start with some
//! dense layers, then choose experts by sigmoid and bias.
//!
//! In GGUF, layers with 0 key/value heads are convolutions, and the norm before the head is named
//! `token_embd_norm`.

use std::sync::Arc;

use super::prelude::*;
use crate::recurrent::{ShortConvConfig, ShortConvWeights};

pub(super) const FAMILY: Family =
    Family { architectures: &["lfm2", "lfm2moe"], model_types: &["lfm2", "lfm2_moe"], config, layer, import };

/// Largest accepted number of taps of a convolution.
const MOST_TAPS: usize = 64;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.experts = loader.experts(Router::sigmoid(true), |_| 0)?;
    if loader.arch.ends_with("moe") && config.experts.is_none() {
        return Err(loader.key_error("expert_count", "at least one expert", 0));
    }
    let taps = loader.required_size("shortconv.l_cache", 1..=MOST_TAPS)?;
    recurrent_without_attention(
        &mut config,
        &RecurrentConfig::ShortConv(ShortConvConfig { channels: sizes.d_model, taps }),
    );
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let (norms, ffn) = (norms(loader, config, n, USUAL_NORMS)?, ffn(loader, config, n)?);
    let predictor = loader.predictor(n, config)?;
    let Some(RecurrentConfig::ShortConv(ShortConvConfig { channels, taps })) = config.layers[n].recurrent else {
        return Ok(LayerWeights::new(norms, attention(loader, config, n)?, ffn, predictor));
    };
    let mut layer = LayerWeights::new(norms, None::<AttentionWeights>, ffn, predictor);
    let stem = |role: &str| format!("blk.{n}.shortconv.{role}");
    let [input_gate, output_gate, input] = Linear::split(loader, &stem("in_proj"), config.d_model, [channels; 3])?;
    layer.recurrent = Some(RecurrentWeights::ShortConv(Box::new(ShortConvWeights {
        input_gate,
        output_gate,
        input,
        conv: load_short_conv(loader, &stem("conv"), channels, taps)?,
        output: loader.linear(&stem("out_proj"), config.d_model, channels)?,
    })));
    Ok(layer)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let arch = if hf.model_type() == "lfm2_moe" { "lfm2moe" } else { "lfm2" };
    let n_ff = if arch == "lfm2" { dense_width(hf)? } else { hf.size(&["intermediate_size"])? };
    let sizes = draft.common_of_width(hf, arch, n_ff)?;
    draft.rope(hf, &sizes, 1_000_000.0)?;
    draft.activation(Activation::Silu);
    let attention = match hf.layers_of_type("full_attention", &["conv"], sizes.n_layer)? {
        Some(attention) => attention,
        None => {
            let mut attention = vec![false; sizes.n_layer];
            let name = "full_attn_idxs";
            for at in hf.sizes(name)?.unwrap_or_default() {
                let expected = format!("layers below {}", sizes.n_layer);
                *attention.get_mut(at).ok_or_else(|| hf.error(name, expected, at))? = true;
            }
            attention
        }
    };
    let heads = attention.into_iter().map(|attention| if attention { sizes.n_kv_head as u32 } else { 0 });
    draft.set("attention.head_count_kv", Value::Array(Array::U32(heads.collect())));
    let eps = hf.f32(&["norm_eps", "block_norm_eps"])?.unwrap_or(1e-5);
    draft.set("attention.layer_norm_rms_epsilon", Value::F32(eps));
    draft.set_size("shortconv.l_cache", hf.or_default(&["conv_L_cache"], 3)?)?;
    if arch == "lfm2moe" {
        draft.experts(hf, &["num_experts"], &["num_experts_per_tok"], &["moe_intermediate_size"])?;
        draft.set_size("leading_dense_block_count", hf.or_default(&["num_dense_layers"], 0)?)?;
        draft.router(hf, Router::sigmoid(true))?;
    }
    draft.tied = true;
    let channels = hf.size(&["hidden_size"])?;
    let naming = &mut draft.naming;
    naming.llama_like();
    let names = [
        ("operator_norm", "attn_norm"),
        ("ffn_norm", "ffn_norm"),
        ("self_attn.out_proj", "attn_output"),
        ("self_attn.q_layernorm", "attn_q_norm"),
        ("self_attn.k_layernorm", "attn_k_norm"),
        ("conv.in_proj", "shortconv.in_proj"),
        ("conv.out_proj", "shortconv.out_proj"),
        ("feed_forward.w1", "ffn_gate"),
        ("feed_forward.w3", "ffn_up"),
        ("feed_forward.w2", "ffn_down"),
        ("feed_forward.gate", "ffn_gate_inp"),
    ];
    naming.layers("", &names);
    naming.add("model.embedding_norm", "token_embd_norm");
    naming.experts("feed_forward.experts", ["w1", "w3", "w2"]);
    naming.selection_bias("feed_forward.expert_bias");
    let rows = Arc::new(Gather::new(channels, [(0, channels)]));
    naming.whole("model.layers.*.conv.conv.weight", "blk.*.shortconv.conv.weight", Transform::Rows(rows));
    naming.whole("model.layers.*.conv.conv.bias", "blk.*.shortconv.conv.bias", Transform::None);
    Ok(())
}

/// Returns the neurons of an FFN: two thirds of the configured width, rounded up to a multiple,
/// unless the configuration turns this off.
fn dense_width(hf: &HfConfig) -> Result<usize> {
    let width = hf.size(&["block_ff_dim", "intermediate_size"])?;
    if hf.bool(&["block_auto_adjust_ff_dim"])? == Some(false) {
        return Ok(width);
    }
    let factor = hf.f32(&["block_ffn_dim_multiplier"])?.unwrap_or(1.0);
    let multiple = hf.or_default(&["block_multiple_of"], 256)?.max(1);
    let width = (width.saturating_mul(2) / 3) as f64 * f64::from(factor);
    (width as usize).checked_next_multiple_of(multiple).ok_or_else(|| hf.error("block_ff_dim", "a width", width))
}
