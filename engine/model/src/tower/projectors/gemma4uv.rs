//! `gemma4uv`: Gemma 4 "Unified". There are no layers: the samples of large patches are normed and
//! projected, embeddings of columns and rows are added, and norms lie between. A patch is a token.
//!
//! The CPU computes all of it. The two products of a patch are less than a hundredth of the work
//! that the text model has with the patch, so a device would gain nothing.

use std::sync::Arc;

use super::{
    Projector,
    parts::{TokenLimits, picture_sizes},
};
use crate::{
    Norm, NormKind,
    import::{Gather, Transform},
    load::Loader,
    tower::{
        PatchNorms, PictureSizes, PooledHead, TowerConfig, TowerHead, TowerWeights,
        config::{MAX_SIZE, TowerSizes},
        import::{TowerDraft, TowerFolder},
        weights::side_positions,
    },
};
use thermocline_base::error::Result;
use thermocline_cpu::ops::HeadSizes;
use thermocline_formats::format::Value;

pub(super) const PROJECTOR: Projector = Projector {
    name: "gemma4uv",
    model_types: &["gemma4_unified"],
    texts: &["gemma4"],
    mean: [0.0; 3],
    deviation: [1.0; 3],
    load,
    import,
};

/// Epsilon of the layer norms, which files do not name.
const LAYER_NORM_EPS: f32 = 1e-5;

/// Small patches on a side of a patch, for files that do not name them.
const SCALE: usize = 3;

/// Tokens of a picture, for files that do not name its area. Pictures always fill the most.
const TOKENS: TokenLimits = TokenLimits { least: 1, most: 280 };

/// Key for the number of small patches on a side of a patch.
const SCALE_FACTOR: &str = "projector.scale_factor";

fn load(loader: &Loader<'_>) -> Result<(TowerConfig, TowerWeights)> {
    let size = |suffix: &str| loader.required_size(suffix, 1..=MAX_SIZE);
    let (width, d_model) = (size("embedding_length")?, size("projection_dim")?);
    let scale = loader.size(SCALE_FACTOR, 1..=16)?.unwrap_or(SCALE);
    let patch_size = loader.required_size("patch_size", 1..=256)? * scale;
    let PictureSizes::Fitted { most, .. } = picture_sizes(loader, patch_size, TOKENS)? else {
        return Err(loader.key_error("image_max_pixels", "an area", "another size"));
    };
    let heads = HeadSizes { n_head: 0, n_kv_head: 0, head_dim: 0, value_dim: 0 };
    let sizes = TowerSizes { width, n_ff: 0, heads, patch_size, norm_eps: LAYER_NORM_EPS, d_model };
    let picture_sizes = PictureSizes::Filled { multiple: patch_size, most: most.max(patch_size * patch_size) };
    let config = TowerConfig::new(loader, &PROJECTOR, &sizes, picture_sizes)?;
    let samples = config.patch_samples();
    let norm = |at: usize, len: usize| loader.norm(&format!("v.patch_norm.{at}"), NormKind::Layer, len).map(Some);
    let own_eps = Some(loader.norm_eps("attention.layer_norm_epsilon")?);
    let head = PooledHead {
        patches: None,
        scale: 1.0,
        standard: None,
        tokens: Norm { weight: vec![1.0; width], bias: None, own_eps },
        projection: loader.linear("mm.input_projection", d_model, width)?,
    };
    let weights = TowerWeights {
        patch: loader.linear("v.patch_embd", width, samples)?,
        patch_norms: PatchNorms { samples: norm(1, samples)?, embedding: norm(2, width)?, placed: norm(3, width)? },
        positions: Some(side_positions(loader, width)?),
        layers: Vec::new(),
        head: TowerHead::Pooled(head),
    };
    Ok((config, weights))
}

fn import(from: &TowerFolder<'_>, draft: &mut TowerDraft) -> Result<()> {
    let vision = &from.vision;
    let (side, scale) = (vision.or_default(&["patch_size"], 16)?, vision.or_default(&["pooling_kernel_size"], SCALE)?);
    let width = vision.or_default(&["mm_embed_dim"], 3840)?;
    let whole = side.saturating_mul(scale);
    let tokens = from.processor_size(&["max_soft_tokens"]).map_or(TOKENS.most, |tokens| tokens as usize);
    for (suffix, size) in [
        // llama.cpp expects these keys, and does not use them.
        ("image_size", 224),
        ("feed_forward_length", 0),
        ("block_count", 0),
        ("attention.head_count", 0),
        ("patch_size", side),
        ("embedding_length", width),
        ("image_max_pixels", tokens.saturating_mul(whole).saturating_mul(whole)),
        (SCALE_FACTOR, scale),
    ] {
        draft.set_size(suffix, size);
    }
    let eps = vision.f32(&["rms_norm_eps"])?.unwrap_or(1e-6);
    draft.set("attention.layer_norm_epsilon", Value::F32(eps));
    draft.keys.set("clip.use_gelu", Value::Bool(true));
    if whole == 0 || whole > 512 {
        return Err(vision.error("patch_size", "patches of 1 to 512 pixels on a side", whole));
    }
    names(draft, whole);
    Ok(())
}

/// Adds the names of the tensors. Folders have the samples of a patch pixel by pixel, and files
/// channel by channel.
fn names(draft: &mut TowerDraft, side: usize) {
    let naming = &mut draft.naming;
    naming.alias("model.embed_vision.", "embed_vision.");
    naming.alias("model.vision_embedder.", "vision_embedder.");
    let pixels = side * side;
    let by_channel = (0..3).flat_map(|channel| (0..pixels).map(move |pixel| (pixel * 3 + channel, 1)));
    let samples = Arc::new(Gather::new(pixels * 3, by_channel));
    let dense = "vision_embedder.patch_dense";
    naming.whole(format!("{dense}.weight"), "v.patch_embd.weight", Transform::Columns(Arc::clone(&samples)));
    naming.whole(format!("{dense}.bias"), "v.patch_embd.bias", Transform::None);
    for kind in ["weight", "bias"] {
        let (from, to) = (format!("vision_embedder.patch_ln1.{kind}"), format!("v.patch_norm.1.{kind}"));
        naming.whole(from, to, Transform::Rows(Arc::clone(&samples)));
    }
    naming.add("vision_embedder.patch_ln2", "v.patch_norm.2");
    naming.add("vision_embedder.pos_norm", "v.patch_norm.3");
    naming.whole("vision_embedder.pos_embedding", "v.position_embd.weight", Transform::Swapped);
    naming.add("embed_vision.embedding_projection", "mm.input_projection");
}
