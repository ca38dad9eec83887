//! Gemma 3n. Each layer predicts and corrects four streams, of which it computes one (AltUp). It
//! has a low-rank path beside attention (LAuReL) and its own input. The last layers read keys and
//! values of earlier layers. In the first layers only gates far above the mean of a token's gates
//! fire.
//!
//! GGUF stacks the maps between streams. Hugging Face keeps them in separate tensors.

use super::{gemma4::share_keys_and_values, prelude::*};
use crate::{AltupConfig, AltupStep, AltupTable, AltupWeights};

pub(super) const FAMILY: Family =
    Family { architectures: &[ARCHITECTURE], model_types: &["gemma3n", "gemma3n_text"], config, layer, import };

const ARCHITECTURE: &str = "gemma3n";
/// Of every `INTERVAL` layers, the last has no window.
const INTERVAL: usize = 5;
/// Number of streams of every published model, and the stream that layers compute.
const STREAMS: usize = 4;
const ACTIVE: usize = 0;
/// Number of first layers that silence gates below a threshold, and the fraction of gates that they
/// silence, for folders that do not say.
const SPARSE_LAYERS: usize = 10;
const USUAL_SPARSITY: f32 = 0.95;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    for (key, only) in [("altup.num_inputs", STREAMS), ("altup.active_idx", ACTIVE)] {
        if let Some(value) = loader.size(key, 0..=usize::MAX)?.filter(|value| *value != only) {
            return Err(loader.key_error(key, only.to_string(), value));
        }
    }
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.activation = loader.activation(Activation::GeluTanh)?;
    config.embedding_scale = (sizes.d_model as f32).sqrt();
    config.final_softcap = loader.switchable("final_logit_softcapping")?.or(Some(30.0));
    loader.apply_window(&mut config, None, INTERVAL)?;
    let (head_dim, dims) = (sizes.head_dim, config.ropes[0].dims);
    loader.local_rope(&mut config, RopeDefaults { head_dim, dims, base: 10_000.0 })?;
    for attention in config.attentions_mut() {
        (attention.scores.scale, attention.values.normed) = (1.0, true);
    }
    share_keys_and_values(loader, &mut config)?;
    config.per_layer_input = Some(loader.required_size("embedding_length_per_layer_input", 1..=1 << 16)?);
    let rank = loader.rows("blk.0.laurel_l.weight").unwrap_or(1);
    config.altup = Some(AltupConfig { streams: STREAMS, rank });
    config.set_steps(steps());
    Ok(config)
}

fn steps() -> Vec<Step> {
    use Register::{Normed, NormedFfn, Out, Residual};
    vec![
        Step::Altup(AltupStep::Predict),
        Step::Norm { norm: NormSlot::Attention, from: Residual, into: Normed },
        Step::Altup(AltupStep::Laurel),
        Step::Attention { from: Normed },
        Step::Norm { norm: NormSlot::PostAttention, from: Out, into: Out },
        Step::AddOut,
        Step::Add { from: NormedFfn, into: Residual },
        Step::Scale,
        Step::Norm { norm: NormSlot::Ffn, from: Residual, into: Normed },
        Step::Ffn { from: Normed },
        Step::Norm { norm: NormSlot::PostFfn, from: Out, into: Out },
        Step::AddOut,
        Step::Altup(AltupStep::Correct),
        Step::PerLayerInput,
        Step::Norm { norm: NormSlot::PostPerLayer, from: Out, into: Out },
        Step::Altup(AltupStep::AddOut),
    ]
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let norms = [
        (NormSlot::Attention, "attn_norm"),
        (NormSlot::PostAttention, "post_attention_norm"),
        (NormSlot::Ffn, "ffn_norm"),
        (NormSlot::PostFfn, "post_ffw_norm"),
        (NormSlot::PostPerLayer, "post_norm"),
    ];
    let mut layer = gated_layer(loader, config, n, &norms)?;
    layer.per_layer = per_layer_weights(loader, config, n)?;
    let deviations = loader.floats("activation_sparsity_scale", config.n_layer())?.and_then(|all| all.get(n).copied());
    layer.gate_deviations = deviations.filter(|deviations| deviations.is_finite());
    layer.output_scale = Some(std::f32::consts::FRAC_1_SQRT_2);
    let (d, at) = (config.d_model, |stem: &str| format!("blk.{n}.{stem}"));
    let rank = config.altup.map_or(1, |altup| altup.rank);
    let mut router_norm = loader.norm(&at("altup_router_norm"), config.norm, d)?;
    router_norm.weight.iter_mut().for_each(|x| *x /= d as f32);
    layer.altup = Some(Box::new(AltupWeights {
        router_norm,
        router: loader.linear(&at("altup_router"), STREAMS, d)?,
        predict: loader.linear(&at("altup_predict_coef"), STREAMS * STREAMS, STREAMS)?,
        correct: loader.linear(&at("altup_correct_coef"), STREAMS, STREAMS)?,
        scale: loader.vector(&at("altup_correct_scale.weight"), d)?,
        laurel: [loader.linear(&at("laurel_l"), rank, d)?, loader.linear(&at("laurel_r"), d, rank)?],
        laurel_norm: loader.norm(&at("laurel_post_norm"), config.norm, d)?,
    }));
    Ok(layer)
}

/// Reads the maps between streams; `None` for other families.
pub(super) fn streams(loader: &Loader<'_>, config: &ModelConfig) -> Result<Option<AltupTable>> {
    if loader.arch != ARCHITECTURE {
        return Ok(None);
    }
    let d = config.d_model;
    let maps = |stem: &str| -> Result<Vec<Linear>> {
        match loader.stacked(&format!("{stem}.weight"), STREAMS - 1, d, d)? {
            Some(all) => Ok(all.into_iter().map(|weight| Linear { weight, bias: None }).collect()),
            None => (0..STREAMS - 1).map(|at| loader.linear(&format!("{stem}.{at}"), d, d)).collect(),
        }
    };
    Ok(Some(AltupTable { projections: maps("altup_proj")?, unembed: maps("altup_unembd_proj")? }))
}

/// Returns the quantile of the standard normal distribution at `p`.
fn quantile(p: f64) -> f64 {
    let below = |z: f64| 0.5 * libm::erfc(-z * std::f64::consts::FRAC_1_SQRT_2);
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..64 {
        let middle = 0.5 * (low + high);
        if below(middle) < p { low = middle } else { high = middle }
    }
    high
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let widths = hf.numbers("intermediate_size")?;
    let n_ff = widths.iter().copied().max().unwrap_or(0);
    let sizes = draft.common_of_width(hf, ARCHITECTURE, n_ff)?;
    let n_layer = sizes.n_layer;
    if widths.len() > 1 {
        let widths = widths.into_iter().map(|width| u32::try_from(width).unwrap_or(u32::MAX)).collect();
        draft.set("feed_forward_length", Value::Array(Array::U32(widths)));
    }
    draft.rope(hf, &sizes, 1e6)?;
    draft.local_rope(hf, &sizes, 10_000.0)?;
    draft.windows(hf, n_layer, SlidingLayers::AllButEvery(INTERVAL))?;
    draft.set_size("altup.num_inputs", hf.or_default(&["altup_num_inputs"], STREAMS)?)?;
    draft.set_size("altup.active_idx", hf.or_default(&["altup_active_idx"], ACTIVE)?)?;
    hf.refuse_unless("altup_correct_scale", true, "AltUp")?;
    draft.set_size("attention.shared_kv_layers", hf.or_default(&["num_kv_shared_layers"], 0)?)?;
    draft.set_size("embedding_length_per_layer_input", hf.size(&["hidden_size_per_layer_input"])?)?;
    let usual = |n: usize| if n_layer > SPARSE_LAYERS && n < SPARSE_LAYERS { USUAL_SPARSITY } else { 0.0 };
    let sparsity = match hf.fractions("activation_sparsity_pattern", n_layer)? {
        Some(sparsity) => sparsity,
        None => (0..n_layer).map(usual).collect(),
    };
    // A threshold of minus infinity silences no gate. llama.cpp's files use it too for layers in
    // which all neurons fire.
    let below = |p: f32| if p > 0.0 { quantile(f64::from(p)) as f32 } else { f32::NEG_INFINITY };
    let deviations = sparsity.into_iter().map(below);
    draft.set("activation_sparsity_scale", Value::Array(Array::F32(deviations.collect())));
    draft.activation(hf.activation(&["hidden_activation"], Activation::GeluTanh)?);
    if let Some(cap) = hf.f32(&["final_logit_softcapping"])? {
        draft.set("final_logit_softcapping", Value::F32(cap));
    }
    draft.tied = true;
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.norms_of_heads();
    naming.norms_after();
    naming.per_layer_inputs();
    let names = [
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("altup.router_norm", "altup_router_norm"),
        ("altup.modality_router", "altup_router"),
        ("altup.prediction_coefs", "altup_predict_coef"),
        ("altup.correction_coefs", "altup_correct_coef"),
        ("laurel.linear_left", "laurel_l"),
        ("laurel.linear_right", "laurel_r"),
        ("laurel.post_laurel_norm", "laurel_post_norm"),
    ];
    naming.layers("", &names);
    let scale = "model.layers.*.altup.correct_output_scale";
    naming.whole(scale, "blk.*.altup_correct_scale.weight", Transform::None);
    naming.add("model.altup_projections.*", "altup_proj.*");
    naming.add("model.altup_unembed_projections.*", "altup_unembd_proj.*");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_the_normal_distribution() {
        for (p, z) in [(0.5, 0.0), (0.95, 1.644_853_6), (0.9, 1.281_551_6), (0.975, 1.959_964), (0.01, -2.326_347_9)] {
            assert!((quantile(p) - z).abs() < 1e-6, "{p}");
        }
        assert!(quantile(1.0).is_finite() && quantile(0.0).is_finite());
    }
}
