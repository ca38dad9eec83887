//! Multi-head latent attention, shared by several families: its keys in a file, and the keys and
//! names of a Hugging Face folder.

use super::prelude::*;
use crate::{LatentConfig, parts::load_latent_attention};

/// Largest accepted number of elements of a head or a latent.
const LARGEST: usize = 1 << 16;

/// This engine's own key for the epsilon in the norms of latents. Without it, the epsilon of all
/// norms applies.
const LATENT_EPS: &str = "attention.latent_norm_epsilon";
/// Epsilon in the norms of latents for folders, independent of `rms_norm_eps`.
const HF_LATENT_EPS: f32 = 1e-6;

/// Makes the attention of every layer latent.
pub(super) fn configure(loader: &Loader<'_>, config: &mut ModelConfig) -> Result<()> {
    let rank = loader.required_size("attention.kv_lora_rank", 1..=LARGEST)?;
    // In older files these keys give the lengths of heads. In newer files they give the lengths of
    // cached rows, and the `_mla` keys give the lengths of heads.
    let key_dim = match loader.size("attention.key_length_mla", 1..=LARGEST)? {
        None => loader.required_size("attention.key_length", 1..=LARGEST)?,
        Some(key_dim) => key_dim,
    };
    let v_dim = match loader.size("attention.value_length_mla", 1..=LARGEST)? {
        None => loader.size("attention.value_length", 1..=LARGEST)?,
        v_dim => v_dim,
    };
    // Files of MiniCPM 3 may omit this length. The model's width then determines it.
    let n_head = config.attentions().next().map_or(1, |attention| attention.heads.n_head);
    let v_dim = v_dim.unwrap_or((config.d_model / n_head).max(1));
    let rope = loader.required_size("rope.dimension_count", 2..=LARGEST)?;
    if rope >= key_dim {
        return Err(loader.key_error(
            "rope.dimension_count",
            format!("fewer than the {key_dim} elements of a key"),
            rope,
        ));
    }
    let low_rank = (0..config.n_layer()).any(|n| loader.has(&format!("blk.{n}.attn_q_a.weight")));
    let q_rank = loader.size("attention.q_lora_rank", 0..=LARGEST)?.filter(|rank| *rank > 0 && low_rank);
    let norm_eps = match loader.has_key(LATENT_EPS) {
        true => loader.norm_eps(LATENT_EPS)?,
        false => config.norm_eps,
    };
    let latent = LatentConfig { rank, nope_dim: key_dim - rope, v_dim, q_rank, norm_eps };
    let scale = loader.switchable("attention.scale")?.unwrap_or(1.0 / (key_dim as f32).sqrt());
    let scale = scale * yarn_scale(loader, config)?.powi(2);
    for attention in config.attentions_mut() {
        attention.heads = HeadSizes { n_kv_head: 1, head_dim: rope + rank, value_dim: rope + rank, ..attention.heads };
        (attention.scores.scale, attention.latent) = (scale, Some(latent));
    }
    Ok(())
}

/// Returns the factor on queries and keys in stretched contexts. Files that name the weight of its
/// logarithm (a tenth of Hugging Face's `mscale_all_dim`) remove the magnitude from the rotations.
fn yarn_scale(loader: &Loader<'_>, config: &mut ModelConfig) -> Result<f32> {
    let weight = loader.switchable("rope.scaling.yarn_log_multiplier")?;
    let (Some(weight), Some(rope)) = (weight, config.ropes.first_mut()) else { return Ok(1.0) };
    let RopeScaling::Yarn { factor, attention_factor, .. } = &mut rope.scaling else { return Ok(1.0) };
    *attention_factor /= yarn_magnitude(*factor, 1.0);
    Ok(yarn_magnitude(*factor, 10.0 * weight))
}

/// Loads the attention weights of layer `n`.
pub(super) fn attention(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<AttentionWeights> {
    let shape = config.layers.get(n).and_then(|layer| layer.attention.as_ref());
    let Some((shape, latent)) = shape.and_then(|shape| Some((shape, shape.latent?))) else {
        return Err(loader.key_error("attention.kv_lora_rank", format!("a latent for layer {n}"), "none"));
    };
    load_latent_attention(&config.layer_tensors(loader, n), shape, latent)
}

/// Sets the keys of latent attention, the keys that every architecture has, and the names of the
/// tensors.
pub(super) fn import(hf: &HfConfig, draft: &mut Draft, arch: &'static str, default_base: f32) -> Result<HfSizes> {
    let mut sizes = draft.common(hf, arch)?;
    let (nope, rope) = (hf.size(&["qk_nope_head_dim"])?, hf.size(&["qk_rope_head_dim"])?);
    let sized = |name: &str, value: usize| match value {
        1..=LARGEST => Ok(value),
        _ => Err(hf.error(name, format!("a number from 1 to {LARGEST}"), value)),
    };
    // Folders of MiniCPM 3 may omit this length. The model's width then determines it.
    let of_width = hf.size(&["hidden_size"])? / sizes.n_head;
    let v_dim = sized("v_head_dim", hf.or_default(&["v_head_dim"], of_width)?)?;
    let rank = sized("kv_lora_rank", hf.size(&["kv_lora_rank"])?)?;
    sizes.rope_dims = sized("qk_rope_head_dim", rope)?;
    sizes.head_dim = sized("qk_nope_head_dim", nope)? + rope;
    draft.set_size("attention.key_length", sizes.head_dim)?;
    draft.set_size("attention.value_length", v_dim)?;
    draft.set_size("attention.head_count_kv", sizes.n_head)?;
    draft.set_size("attention.kv_lora_rank", rank)?;
    if let Some(rank) = hf.usize(&["q_lora_rank"])? {
        draft.set_size("attention.q_lora_rank", sized("q_lora_rank", rank)?)?;
    }
    draft.rope(hf, &sizes, default_base)?;
    if let Some([magnitude, all]) = hf.yarn_of_attention()? {
        draft.set("rope.scaling.yarn_log_multiplier", Value::F32(0.1 * all));
        draft.set("rope.scaling.attn_factor", Value::F32(magnitude));
    }
    draft.set(LATENT_EPS, Value::F32(HF_LATENT_EPS));
    let naming = &mut draft.naming;
    naming.llama_like();
    let names = [
        ("q_a_proj", "attn_q_a"),
        ("q_a_layernorm", "attn_q_a_norm"),
        ("q_b_proj", "attn_q_b"),
        ("kv_a_proj_with_mqa", "attn_kv_a_mqa"),
        ("kv_a_layernorm", "attn_kv_a_norm"),
        ("kv_b_proj", "attn_kv_b"),
    ];
    naming.layers("self_attn.", &names);
    Ok(sizes)
}
