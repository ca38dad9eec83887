//! `gemma3`: SigLIP, a vision transformer with layer norms and learned positions, of pictures that
//! are resized to one square. Squares of 4 x 4 patches are averaged to one token.

use super::{Projector, parts::siglip_names};
use crate::{
    Linear, NormKind,
    import::Transform,
    load::Loader,
    tower::{
        PatchNorms, PatchPositions, PictureSizes, PooledHead, TowerConfig, TowerHead, TowerLayer, TowerWeights,
        config::TowerSizes,
        import::{TowerDraft, TowerFolder},
        weights::{patch_embedding, patch_positions, transposed},
    },
};
use thermocline_base::error::Result;
use thermocline_formats::format::Value;
use thermocline_pictures::ResizeFilter;

pub(super) const PROJECTOR: Projector = Projector {
    name: "gemma3",
    model_types: &["gemma3"],
    texts: &["gemma3"],
    mean: [0.5; 3],
    deviation: [0.5; 3],
    load,
    import,
};

/// Patches on a side of a token, for files that do not name them.
const MERGE: usize = 4;

/// Key for the number of patches on a side of a token.
const SCALE_FACTOR: &str = "projector.scale_factor";

fn load(loader: &Loader<'_>) -> Result<(TowerConfig, TowerWeights)> {
    let sizes = TowerSizes::read(loader)?;
    let TowerSizes { width, patch_size, d_model, .. } = sizes;
    let merge = loader.size(SCALE_FACTOR, 1..=64)?.unwrap_or(MERGE);
    let side = loader.required_size("image_size", 1..=1 << 16)?;
    if !side.is_multiple_of(patch_size * merge) {
        let expected = format!("a multiple of {}, the side of a token", patch_size * merge);
        return Err(loader.key_error("image_size", expected, side));
    }
    let positions = patch_positions(loader, &sizes)?;
    let of_side = side / patch_size;
    if !matches!(positions, PatchPositions::Square { side, .. } if side == of_side) {
        let expected = format!("{0} x {0} positions, as image_size has patches", of_side);
        return Err(loader.tensor_error("v.position_embd.weight", expected, "another number"));
    }
    let config = TowerConfig {
        merge,
        filter: ResizeFilter::Bilinear,
        ..TowerConfig::new(loader, &PROJECTOR, &sizes, PictureSizes::Square { side })?
    };
    let n_layer = loader.layer_counts()?.n_layer;
    let head = PooledHead {
        patches: Some(loader.norm("v.post_ln", NormKind::Layer, width)?),
        scale: 1.0,
        standard: None,
        tokens: loader.norm("mm.soft_emb_norm", NormKind::Rms, width)?,
        projection: Linear { weight: transposed(loader, "mm.input_projection.weight", d_model, width)?, bias: None },
    };
    let weights = TowerWeights {
        patch: patch_embedding(loader, &sizes)?,
        patch_norms: PatchNorms::default(),
        positions: Some(positions),
        layers: (0..n_layer).map(|n| TowerLayer::load(loader, &config, n)).collect::<Result<_>>()?,
        head: TowerHead::Pooled(head),
    };
    Ok((config, weights))
}

fn import(from: &TowerFolder<'_>, draft: &mut TowerDraft) -> Result<()> {
    let vision = &from.vision;
    let (side, patch_size) = (vision.size(&["image_size"])?, vision.size(&["patch_size"])?);
    let tokens = from.text.or_default(&["mm_tokens_per_image"], 256)?.isqrt();
    for (suffix, size) in [
        ("image_size", side),
        ("patch_size", patch_size),
        ("embedding_length", vision.size(&["hidden_size"])?),
        ("feed_forward_length", vision.size(&["intermediate_size"])?),
        ("block_count", vision.size(&["num_hidden_layers"])?),
        ("attention.head_count", vision.size(&["num_attention_heads"])?),
        (SCALE_FACTOR, (side / patch_size / tokens.max(1)).max(1)),
    ] {
        draft.set_size(suffix, size);
    }
    let eps = vision.f32(&["layer_norm_eps"])?.unwrap_or(1e-6);
    draft.set("attention.layer_norm_epsilon", Value::F32(eps));
    draft.keys.set("clip.use_gelu", Value::Bool(true));
    names(draft);
    Ok(())
}

/// Adds the names of the tensors.
fn names(draft: &mut TowerDraft) {
    let naming = &mut draft.naming;
    for (from, to) in [
        ("model.vision_tower.vision_model.", "vision."),
        ("vision_tower.vision_model.", "vision."),
        ("model.vision_tower.", "vision."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
    ] {
        naming.alias(from, to);
    }
    siglip_names(naming);
    naming.set("multi_modal_projector.mm_soft_emb_norm", "mm.soft_emb_norm", Transform::AddOne);
    let projection = "multi_modal_projector.mm_input_projection_weight";
    naming.whole(projection, "mm.input_projection.weight", Transform::None);
}
