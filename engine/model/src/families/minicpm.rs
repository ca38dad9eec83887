//! MiniCPM 1 to 4: Llama's layer with factors on embeddings, on the outputs of attention and FFN,
//! and (as a divisor) on logits. MiniCPM 3 has latent attention, which rotates halves. MiniCPM 5 is
//! a Llama.
//!
//! In long contexts, attention of MiniCPM 4 reads chosen blocks of keys (InfLLM-v2) if its folder
//! says so. This engine runs it only in contexts in which it reads all keys.
//!
//! GGUF files of MiniCPM 3, and the first files of MiniCPM, omit the factors, because the
//! architecture determines them.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["minicpm", "minicpm3"], model_types: &["minicpm", "minicpm3"], config, layer, import };

/// Factor on embeddings of the published models.
const EMBEDDINGS: f32 = 12.0;
/// Factor on the outputs of attention and FFN, times the square root of the number of layers.
const DEPTH: f32 = 1.4;
/// Context length from which attention of MiniCPM 4 is sparse, for folders that do not say.
const DENSE_LENGTH: usize = 8192;
/// Width of the residual stream at which logits are not divided.
const BASE_WIDTH: usize = 256;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let is_latent = loader.arch == "minicpm3";
    let order = if is_latent { RopeOrder::NeoX } else { RopeOrder::Normal };
    let mut config = loader.base_config(sizes, NormKind::Rms, order)?;
    if let Some(count) = loader.size("expert_count", 0..=usize::MAX)?.filter(|count| *count > 0) {
        return Err(loader.key_error("expert_count", "no experts in MiniCPM", count));
    }
    config.embedding_scale = loader.switchable("embedding_scale")?.unwrap_or(EMBEDDINGS);
    config.residual_scale = loader.switchable("residual_scale")?.unwrap_or(DEPTH / (sizes.n_layer as f32).sqrt());
    let divisor = loader.switchable("logit_scale")?.unwrap_or(sizes.d_model as f32 / BASE_WIDTH as f32);
    config.logit_scale = 1.0 / divisor;
    if is_latent {
        latent::configure(loader, &mut config)?;
    }
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    if loader.arch != "minicpm3" {
        return gated_layer(loader, config, n, USUAL_NORMS);
    }
    let (norms, attention) = (norms(loader, config, n, USUAL_NORMS)?, latent::attention(loader, config, n)?);
    Ok(LayerWeights::new(norms, attention, ffn(loader, config, n)?, loader.predictor(n, config)?))
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    if let Some(count) = hf.usize(&["num_experts"])?.filter(|count| *count > 0) {
        return Err(hf.unsupported("MiniCPM with experts", "num_experts", count));
    }
    let sizes = if hf.model_type() == "minicpm3" {
        hf.refuse_unless("attention_bias", false, "latent attention with biases")?;
        latent::import(hf, draft, "minicpm3", 10_000.0)?
    } else {
        let sizes = draft.common(hf, "minicpm")?;
        draft.rope(hf, &sizes, 10_000.0)?;
        draft.naming.llama_like();
        draft.naming.rotated_pairs(&sizes);
        sizes
    };
    if let Some(dense) = dense_context(hf)? {
        draft.set_size("context_length", hf.or_default(&["max_position_embeddings"], dense)?.min(dense))?;
        draft.set_size("attention.dense_length", dense)?;
    }
    draft.activation(hf.activation(&["hidden_act"], Activation::Silu)?);
    draft.set("embedding_scale", Value::F32(hf.f32(&["scale_emb"])?.unwrap_or(1.0)));
    // In folders of MiniCPM 3, a factor of null is turned off.
    let (root, width) = ((sizes.n_layer as f32).sqrt(), hf.size(&["hidden_size"])?);
    let (no_depth, no_base) = if hf.model_type() == "minicpm3" { (root, width) } else { (1.0, 1) };
    draft.set("residual_scale", Value::F32(hf.f32(&["scale_depth"])?.unwrap_or(no_depth) / root));
    let base = hf.or_default(&["dim_model_base"], no_base)?;
    if base == 0 {
        return Err(hf.error("dim_model_base", "at least 1", base));
    }
    draft.set("logit_scale", Value::F32(width as f32 / base as f32));
    draft.tied = true;
    Ok(())
}

/// Returns the longest context in which attention reads all keys: one token less than `dense_len`
/// in the folder's `sparse_config`. `None` without a `sparse_config`.
fn dense_context(hf: &HfConfig) -> Result<Option<usize>> {
    let name = "sparse_config";
    let Some(sparse) = hf.value(name) else { return Ok(None) };
    let expected = || hf.error(name, "an object whose `dense_len` is a number of at least 2", sparse);
    let dense = match sparse.as_object().ok_or_else(expected)?.get("dense_len") {
        None => DENSE_LENGTH,
        Some(dense) => dense.as_u64().and_then(|dense| usize::try_from(dense).ok()).ok_or_else(expected)?,
    };
    if dense < 2 { Err(expected()) } else { Ok(Some(dense - 1)) }
}
