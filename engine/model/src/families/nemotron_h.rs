//! Nemotron-H, Nemotron Nano 2 and Nemotron 3. Every layer is a norm and one mixer: Mamba-2,
//! attention without positions, an ungated FFN with a squared ReLU, or experts of this kind.
//! Experts are chosen by sigmoid and bias, with a shared expert. In the larger models the routed
//! experts read and write a latent narrower than the residual stream.
//!
//! In GGUF, the sizes of a layer determine its kind: key/value heads for attention, FFN neurons for
//! an FFN or experts, neither for Mamba-2. The layer of a draft head has both attention and experts
//! (or an FFN), each with a norm. Folders keep it as two layers.

use std::sync::Arc;

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["nemotron_h", "nemotron_h_moe"], model_types: &["nemotron_h"], config, layer, import };

/// Stem of the norm before the FFN of a layer that also has attention.
const FFN_NORM: &str = "post_attention_norm";

/// Mixer of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mixer {
    Mamba2,
    Attention,
    Ffn,
    Experts,
    /// Attention, and then an FFN or experts.
    AttentionAndFfn,
}

impl Mixer {
    /// Parses a letter of `hybrid_override_pattern`.
    fn from_letter(letter: char) -> Option<Self> {
        Some(match letter {
            'M' => Mixer::Mamba2,
            '*' => Mixer::Attention,
            '-' => Mixer::Ffn,
            'E' => Mixer::Experts,
            _ => return None,
        })
    }

    /// Parses a word of `layers_block_type`.
    fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "mamba" | "mamba2" | "linear_attention" => Mixer::Mamba2,
            "attention" | "full_attention" => Mixer::Attention,
            "mlp" => Mixer::Ffn,
            "moe" => Mixer::Experts,
            _ => return None,
        })
    }

    /// Returns the program of a layer with this mixer.
    fn steps(self) -> Arc<[Step]> {
        use Register::{Normed, Residual};
        let mixer = match self {
            Mixer::Mamba2 => Step::Recurrent { from: Normed },
            Mixer::Attention => Step::Attention { from: Normed },
            Mixer::Ffn | Mixer::Experts => Step::Ffn { from: Normed },
            Mixer::AttentionAndFfn => return Step::sequential().into(),
        };
        Arc::new([Step::Norm { norm: NormSlot::Attention, from: Residual, into: Normed }, mixer, Step::AddOut])
    }
}

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.activation = loader.activation(Activation::ReluSquared)?;
    config.experts = loader.experts(Router::sigmoid(true), |_| 0)?;
    let recurrent = mamba2::config(loader)?;
    config.n_ff = 0;
    for (n, layer) in config.layers.iter_mut().enumerate() {
        let dense = config.experts.is_none() || loader.has(&format!("blk.{n}.ffn_up.weight"));
        let mixer = match (layer.attention.is_some(), layer.n_ff) {
            (true, 0) => Mixer::Attention,
            (false, 0) => Mixer::Mamba2,
            (false, _) if dense => Mixer::Ffn,
            (false, _) => Mixer::Experts,
            (true, _) if loader.has(&format!("blk.{n}.{FFN_NORM}.weight")) => Mixer::AttentionAndFfn,
            (true, n_ff) => {
                let expected = format!("0 in layer {n}, which has attention");
                return Err(loader.key_error("feed_forward_length", expected, n_ff));
            }
        };
        if mixer == Mixer::Mamba2 {
            layer.recurrent = Some(recurrent.clone());
        }
        if !(mixer == Mixer::Ffn || (mixer == Mixer::AttentionAndFfn && dense)) {
            layer.n_ff = 0;
        }
        config.n_ff = config.n_ff.max(layer.n_ff);
        layer.steps = mixer.steps();
    }
    // The recurrent layers provide positions. Rotation keys in files have no meaning.
    config.attentions_mut().for_each(|attention| attention.positions.rope = None);
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let of = &config.layers[n];
    let has_ffn = of.steps.iter().any(|step| matches!(step, Step::Ffn { .. }));
    let both = [(NormSlot::Attention, "attn_norm"), (NormSlot::Ffn, FFN_NORM)];
    let count = if has_ffn && of.attention.is_some() { 2 } else { 1 };
    let norms = norms(loader, config, n, &both[..count])?;
    let ffn = match &config.experts {
        _ if !has_ffn => Ffn::None,
        Some(experts) if of.n_ff == 0 => Ffn::Experts(ExpertWeights::load(&config.layer_tensors(loader, n), experts)?),
        _ => Ffn::Dense(loader.dense_ffn(n, config, false)?),
    };
    let attention = of.attention.as_ref().map(|_| attention(loader, config, n)).transpose()?;
    let predictor = if has_ffn { loader.predictor(n, config)? } else { None };
    let mut layer = LayerWeights::new(norms, attention, ffn, predictor);
    layer.recurrent = mamba2::weights(loader, config, n)?;
    Ok(layer)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    hf.silu_only("mamba_hidden_act", "Mamba-2 layers with another activation")?;
    let all = mixers(hf)?;
    let mixers = hf.of_layers(&all, hf.or_default(&["num_hidden_layers"], all.len())?)?;
    let has_experts = mixers.contains(&Mixer::Experts);
    let arch = if has_experts { "nemotron_h_moe" } else { "nemotron_h" };
    let n_ff = if mixers.contains(&Mixer::Ffn) { hf.size(&["intermediate_size"])? } else { 0 };
    let n_ff_experts = if has_experts { hf.size(&["moe_intermediate_size"])? } else { 0 };
    let sizes = draft.common_of_width(hf, arch, n_ff)?;
    if mixers.len() != sizes.n_layer {
        return Err(hf.error("hybrid_override_pattern", format!("{} layers", sizes.n_layer), mixers.len()));
    }
    let per_layer = |size: &dyn Fn(Mixer) -> usize| {
        let mixers = mixers.iter().chain([&Mixer::AttentionAndFfn]);
        Array::U32(mixers.map(|mixer| u32::try_from(size(*mixer)).unwrap_or(u32::MAX)).collect())
    };
    let heads = |mixer| if matches!(mixer, Mixer::Attention | Mixer::AttentionAndFfn) { sizes.n_kv_head } else { 0 };
    draft.set_with_draft_layer("attention.head_count_kv", per_layer(&heads));
    let widths = |mixer| match mixer {
        Mixer::Ffn => n_ff,
        Mixer::Experts => n_ff_experts,
        Mixer::AttentionAndFfn => n_ff_experts.max(if has_experts { 0 } else { n_ff }),
        Mixer::Attention | Mixer::Mamba2 => 0,
    };
    draft.set_with_draft_layer("feed_forward_length", per_layer(&widths));
    let eps = hf.f32(&["layer_norm_epsilon", "norm_eps", "rms_norm_eps"])?.unwrap_or(1e-5);
    draft.set("attention.layer_norm_rms_epsilon", Value::F32(eps));
    draft.set("rope.scaling.finetuned", Value::Bool(false));
    draft.activation(hf.activation(&["mlp_hidden_act"], Activation::ReluSquared)?);
    if has_experts {
        draft.experts(hf, &["n_routed_experts"], &["num_experts_per_tok"], &["moe_intermediate_size"])?;
        draft.set_size("expert_shared_count", hf.or_default(&["n_shared_experts"], 0)?)?;
        if let Some(n_ff) = hf.usize(&["moe_shared_expert_intermediate_size"])? {
            draft.set_size("expert_shared_feed_forward_length", n_ff)?;
        }
        draft.router(hf, Router::sigmoid(true))?;
    }
    let mamba2 = mamba2::HfMamba2 {
        heads: hf.size(&["mamba_num_heads"])?,
        head_dim: hf.size(&["mamba_head_dim"])?,
        groups: hf.size(&["n_groups"])?,
        state: hf.size(&["ssm_state_size"])?,
        taps: hf.or_default(&["conv_kernel"], 4)?,
        least_step: hf.f32(&["time_step_min"])?.unwrap_or(0.0),
    };
    mamba2.draft(hf, draft, "mixer")?;
    let naming = &mut draft.naming;
    naming.alias("backbone.", "model.");
    naming.add("model.embeddings", "token_embd");
    naming.add("model.norm_f", "output_norm");
    naming.add("lm_head", "output");
    naming.add("model.layers.*.norm", "blk.*.attn_norm");
    let names = [
        ("q_proj", "attn_q"),
        ("k_proj", "attn_k"),
        ("v_proj", "attn_v"),
        ("o_proj", "attn_output"),
        ("up_proj", "ffn_up"),
        ("down_proj", "ffn_down"),
        ("gate", "ffn_gate_inp"),
        ("fc1_latent_proj", "ffn_latent_down"),
        ("fc2_latent_proj", "ffn_latent_up"),
    ];
    naming.layers("mixer.", &names);
    naming.experts("mixer.experts", ["gate_proj", "up_proj", "down_proj"]);
    naming.shared_expert("mixer.shared_experts");
    naming.selection_bias("mixer.gate.e_score_correction_bias");
    if let [Mixer::Attention, Mixer::Ffn | Mixer::Experts] = draft_mixers(hf)?[..] {
        draft_head(naming, sizes.n_layer);
    }
    Ok(())
}

/// Adds the names of the draft head. Its two layers become one, number `n`.
fn draft_head(naming: &mut Naming, n: usize) {
    naming.draft_head(&Transform::None);
    naming.layers("", &[("post_attention_layernorm", FFN_NORM)]);
    let layer = format!("model.layers.{n}.");
    for (hf, part) in [
        ("mtp.layers.0.", ""),
        ("mtp.layers.1.norm.", "post_attention_layernorm."),
        ("mtp.layers.1.final_layernorm.", "shared_head.norm."),
        ("mtp.layers.1.", ""),
    ] {
        naming.alias(hf, format!("{layer}{part}"));
    }
}

/// Reads the mixers of a folder's layers.
fn mixers(hf: &HfConfig) -> Result<Vec<Mixer>> {
    let pattern = "hybrid_override_pattern";
    let mixers = listed_mixers(hf, pattern, "layers_block_type")?;
    mixers.ok_or_else(|| hf.error(pattern, "one letter per layer", "nothing: the key is missing"))
}

/// Reads the mixers of the draft head's layers.
fn draft_mixers(hf: &HfConfig) -> Result<Vec<Mixer>> {
    let mixers = listed_mixers(hf, "mtp_hybrid_override_pattern", "mtp_layers_block_type")?;
    Ok(mixers.unwrap_or_else(|| vec![Mixer::Attention, Mixer::Experts]))
}

/// Reads the mixers that `pattern` has as letters, or `types` as words.
fn listed_mixers(hf: &HfConfig, pattern: &str, types: &str) -> Result<Option<Vec<Mixer>>> {
    if let Some(letters) = hf.str(&[pattern])? {
        let expected = "letters of M (Mamba-2), * (attention), - (FFN), E (experts)";
        let mixer = |letter| Mixer::from_letter(letter).ok_or_else(|| hf.error(pattern, expected, letter));
        return letters.chars().map(mixer).collect::<Result<_>>().map(Some);
    }
    let Some(words) = hf.strings(types)? else { return Ok(None) };
    let expected = "`mamba`, `attention`, `mlp` or `moe`";
    let mixer = |word| Mixer::from_word(word).ok_or_else(|| hf.error(types, expected, word));
    words.into_iter().map(mixer).collect::<Result<_>>().map(Some)
}
