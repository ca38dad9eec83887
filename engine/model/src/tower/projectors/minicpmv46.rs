//! `minicpmv4_6`: MiniCPM-V 4.6. SigLIP, a vision transformer with layer norms and learned
//! positions, which are stretched to the picture's grid. Squares of 2 x 2 patches become one behind
//! an inner layer, and squares of 2 x 2 of these become a token at the end. Large pictures are seen
//! as an overview and a grid of slices.

use super::{
    Projector,
    parts::{import_siglip, import_slices, siglip_names, sliced_sizes, stretched_positions},
};
use crate::{
    NormKind,
    load::{Loader, integers},
    tower::{
        Merger, PatchJoin, PatchNorms, TowerConfig, TowerHead, TowerLayer, TowerLinear, TowerWeights,
        config::TowerSizes,
        import::{TowerDraft, TowerFolder},
        weights::patch_embedding,
    },
};
use thermocline_base::error::Result;
use thermocline_formats::format::{Array, Value};

pub(super) const PROJECTOR: Projector = Projector {
    name: "minicpmv4_6",
    model_types: &["minicpmv4_6"],
    texts: &["qwen35", "qwen35moe"],
    mean: [0.5; 3],
    deviation: [0.5; 3],
    load,
    import,
};

/// Side of the squares of either merging.
const SIDE: usize = 2;

/// Key for the side of a token's square of patches: 4, or 2 if no inner layer merges.
const SCALE_FACTOR: &str = "projector.scale_factor";

/// Key for the list of the one layer behind which patches are joined.
const JOINING_LAYERS: &str = "wa_layer_indexes";

fn load(loader: &Loader<'_>) -> Result<(TowerConfig, TowerWeights)> {
    let sizes = TowerSizes::read(loader)?;
    let merge = loader.size(SCALE_FACTOR, SIDE..=SIDE * SIDE)?.unwrap_or(SIDE * SIDE);
    if merge != SIDE && merge != SIDE * SIDE {
        return Err(loader.key_error(SCALE_FACTOR, format!("{SIDE} or {}", SIDE * SIDE), merge));
    }
    let multiple = sizes.patch_size * merge;
    let side = loader.required_size("image_size", multiple..=1 << 14)?;
    let pictures = sliced_sizes(loader, multiple, (side / multiple).pow(2))?;
    let first_merge = merge / SIDE;
    let config = TowerConfig { merge, first_merge, ..TowerConfig::new(loader, &PROJECTOR, &sizes, pictures)? };
    let n_layer = loader.layer_counts()?.n_layer;
    let joining = (first_merge > 1).then(|| joining_layer(loader, n_layer)).transpose()?;
    let layer = |n: usize| {
        let join = (joining == Some(n)).then(|| join(loader, &config).map(Box::new)).transpose()?;
        Ok(TowerLayer { join, ..TowerLayer::load(loader, &config, n)? })
    };
    let joined = sizes.width * SIDE * SIDE;
    let head = Merger {
        patches: Some(loader.norm("v.post_ln", NormKind::Layer, sizes.width)?),
        norm: Some(loader.norm("mm.input_norm", NormKind::Layer, joined)?),
        join: None,
        first: loader.linear("mm.up", joined, joined)?,
        second: loader.linear("mm.down", sizes.d_model, joined)?,
    };
    let weights = TowerWeights {
        patch: patch_embedding(loader, &sizes)?,
        patch_norms: PatchNorms::default(),
        positions: Some(stretched_positions(loader, &sizes)?),
        layers: (0..n_layer).map(layer).collect::<Result<_>>()?,
        head: TowerHead::Merger(head),
    };
    Ok((config, weights))
}

/// Returns the layer behind which patches are joined.
fn joining_layer(loader: &Loader<'_>, n_layer: usize) -> Result<usize> {
    let expected = || format!("a list of one layer below {n_layer}");
    let layers = match loader.checkpoint.metadata.get(&loader.key(JOINING_LAYERS)) {
        None => return Ok(0),
        Some(Value::Array(array)) => integers(array),
        Some(_) => None,
    };
    match layers.as_deref() {
        Some(&[layer]) if (layer as usize) < n_layer => Ok(layer as usize),
        layers => Err(loader.key_error(JOINING_LAYERS, expected(), format!("{layers:?}"))),
    }
}

fn join(loader: &Loader<'_>, config: &TowerConfig) -> Result<PatchJoin> {
    let (width, each) = (config.width, SIDE * SIDE);
    let name = |role: &str| format!("v.vit_merger.{role}");
    let square = |role: &str| TowerLinear::load(loader, &name(role), width, width);
    Ok(PatchJoin {
        attention_norm: loader.norm(&name("ln1"), NormKind::Layer, width)?,
        qkv: [square("attn_q")?, square("attn_k")?, square("attn_v")?],
        output: square("attn_out")?,
        norm: loader.norm(&name("ds_ln"), NormKind::Layer, each * width)?,
        up: loader.linear(&name("ds_ffn_up"), each * config.n_ff, each * width)?,
        down: loader.linear(&name("ds_ffn_down"), width, each * config.n_ff)?,
    })
}

fn import(from: &TowerFolder<'_>, draft: &mut TowerDraft) -> Result<()> {
    let TowerFolder { vision, text, .. } = from;
    for (key, of) in [("merge_kernel_size", text), ("window_kernel_size", vision)] {
        if of.sizes(key)?.is_some_and(|sides| sides != [SIDE, SIDE]) {
            return Err(of.unsupported("squares of merged patches", key, "other sides"));
        }
    }
    let rounds = text.or_default(&["merger_times"], 1)?;
    if rounds != 1 {
        return Err(text.unsupported("merging at the end of the tower", "merger_times", rounds));
    }
    // The folder's processor and its model name the number of tokens of a picture.
    let processor = from.processor.get("downsample_mode").and_then(|mode| mode.as_str());
    let merge = match processor.or(text.str(&["downsample_mode"])?).unwrap_or("16x") {
        "16x" => SIDE * SIDE,
        "4x" => SIDE,
        other => return Err(text.unsupported("tokens of a picture", "downsample_mode", other)),
    };
    import_siglip(vision, draft, 0)?;
    draft.set_size(SCALE_FACTOR, merge);
    let joining = text.or_default(&["insert_layer_id"], vision.or_default(&["insert_layer_id"], 6)?)?;
    draft.set(JOINING_LAYERS, Value::Array(Array::U32(vec![u32::try_from(joining).unwrap_or(u32::MAX)])));
    import_slices(from, draft)?;
    names(draft);
    Ok(())
}

/// Adds the names of the tensors.
fn names(draft: &mut TowerDraft) {
    let naming = &mut draft.naming;
    naming.alias("model.vision_tower.", "vision.");
    naming.alias("model.merger.", "merger.");
    siglip_names(naming);
    for (hf, gguf) in [
        ("layer_norm1", "ln1"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.out_proj", "attn_out"),
        ("pre_norm", "ds_ln"),
        ("linear_1", "ds_ffn_up"),
        ("linear_2", "ds_ffn_down"),
    ] {
        naming.add(format!("vision.vit_merger.{hf}"), format!("v.vit_merger.{gguf}"));
    }
    for (hf, gguf) in [("pre_norm", "mm.input_norm"), ("linear_1", "mm.up"), ("linear_2", "mm.down")] {
        naming.add(format!("merger.mlp.*.{hf}"), gguf);
    }
}
