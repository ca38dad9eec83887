//! ModernBERT, which embeds and ranks texts: norms without biases before attention and FFN, a gated
//! GELU, and rotary positions. Tokens read later tokens too. Every third layer reads all tokens;
//! the others have a window on both sides, and their own rotation base.
//!
//! The norm of the embeddings is also the norm before the first layer's attention.

use std::sync::Arc;

use super::{bert, prelude::*};
use crate::RANK;
use thermocline_cpu::ops::AttentionWindow;

pub(super) const FAMILY: Family =
    Family { architectures: &["modernbert"], model_types: &["modernbert"], config, layer, import };

/// Of every `INTERVAL` layers, the first has no window.
const INTERVAL: usize = 3;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Layer, RopeOrder::NeoX)?;
    config.activation = loader.activation(Activation::GeluErf)?;
    windows(loader, &mut config)?;
    let (head_dim, dims) = (sizes.head_dim, config.ropes[0].dims);
    loader.local_rope(&mut config, RopeDefaults { head_dim, dims, base: 10_000.0 })?;
    if let Some(first) = config.layers.first_mut() {
        let from = Register::Residual;
        let steps = first.steps.iter().filter(|step| !matches!(step, Step::Norm { norm: NormSlot::Attention, .. }));
        let attention =
            |step: &Step| if matches!(step, Step::Attention { .. }) { Step::Attention { from } } else { *step };
        first.steps = steps.map(attention).collect::<Arc<[Step]>>();
    }
    bert::embedding_norm_first(&mut config);
    Ok(config)
}

/// Gives layers their windows: those that the file marks, or all but every third from the first.
fn windows(loader: &Loader<'_>, config: &mut ModelConfig) -> Result<()> {
    let length = loader.size("attention.sliding_window", 0..=usize::MAX)?.filter(|length| *length > 0);
    let Some(length) = length else { return Ok(()) };
    let (key, n_layer) = ("attention.sliding_window_pattern", config.n_layer());
    let slides = match loader.layer_flags(key, n_layer)? {
        Some(slides) => slides,
        None => {
            let interval = loader.size(key, 1..=n_layer)?.unwrap_or(INTERVAL);
            (0..n_layer).map(|layer| !layer.is_multiple_of(interval)).collect()
        }
    };
    for (attention, _) in config.attentions_mut().zip(slides).filter(|(_, slides)| *slides) {
        attention.window = Some(AttentionWindow::sliding(length));
    }
    Ok(())
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let mut layer = fused_layer(loader, config, n, if n == 0 { &USUAL_NORMS[1..] } else { USUAL_NORMS })?;
    if n == 0 {
        layer.norms.push(bert::embedding_norm(loader, config)?);
    }
    Ok(layer)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let sizes = draft.common(hf, "modernbert")?;
    draft.set("attention.causal", Value::Bool(false));
    draft.set("attention.layer_norm_epsilon", Value::F32(hf.f32(&["norm_eps"])?.unwrap_or(1e-5)));
    draft.activation(hf.activation(&["hidden_activation"], Activation::GeluErf)?);
    draft.rope(hf, &sizes, hf.f32(&["global_rope_theta"])?.unwrap_or(160_000.0))?;
    draft.local_rope(hf, &sizes, hf.f32(&["local_rope_theta"])?.unwrap_or(10_000.0))?;
    let interval = hf.or_default(&["global_attn_every_n_layers"], INTERVAL)?.max(1);
    let slides = match hf.layers_of_type("sliding_attention", &["full_attention"], sizes.n_layer)? {
        Some(slides) => slides,
        None => (0..sizes.n_layer).map(|layer| !layer.is_multiple_of(interval)).collect(),
    };
    draft.window(hf.or_default(&["local_attention"], 128)?, Some(slides))?;
    (draft.tied, draft.headless) = (true, true);
    let naming = &mut draft.naming;
    naming.alias("model.", "");
    naming.add("embeddings.tok_embeddings", "token_embd");
    naming.add("embeddings.norm", "token_embd_norm");
    naming.add("final_norm", "output_norm");
    for (hf, gguf) in [
        ("attn_norm", "attn_norm"),
        ("attn.Wqkv", "attn_qkv"),
        ("attn.Wo", "attn_output"),
        ("mlp_norm", "ffn_norm"),
        ("mlp.Wi", "ffn_up"),
        ("mlp.Wo", "ffn_down"),
    ] {
        naming.add(format!("layers.*.{hf}"), format!("blk.*.{gguf}"));
    }
    if hf.strings("architectures")?.is_some_and(|names| names.contains(&"ModernBertForSequenceClassification")) {
        draft.set("pooling_type", Value::U32(RANK));
        let pooling = hf.str(&["classifier_pooling"])?.unwrap_or("cls").to_owned();
        draft.set("classifier_pooling", Value::String(pooling));
        let naming = &mut draft.naming;
        naming.add("head.dense", "cls");
        naming.add("head.norm", "cls.norm");
        naming.add("classifier", "cls.output");
    }
    Ok(())
}
