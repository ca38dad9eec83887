//! `resampler`: MiniCPM-V 2.6, 4 and 4.5, MiniCPM-o 2.6 and 4.5. SigLIP, a vision transformer with
//! layer norms and learned positions, which are stretched to the picture's grid. Learned queries
//! read all patches, so that every picture becomes the same number of tokens. Large pictures are
//! seen as an overview and a grid of slices.

use std::sync::Arc;

use super::{
    Projector,
    parts::{import_siglip, import_slices, siglip_names, sliced_sizes, stretched_positions},
};
use crate::{
    NormKind,
    import::{Gather, HfConfig, Transform},
    load::Loader,
    tower::{
        PatchNorms, Resampler, TowerConfig, TowerHead, TowerLayer, TowerWeights,
        config::{MAX_SIZE, TowerSizes},
        import::{TowerDraft, TowerFolder},
        weights::patch_embedding,
    },
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::ops::HeadSizes;
use thermocline_formats::format::Value;

pub(super) const PROJECTOR: Projector = Projector {
    name: "resampler",
    model_types: &["minicpmv", "minicpmo"],
    texts: &["qwen2", "qwen3", "llama", "minicpm"],
    mean: [0.5; 3],
    deviation: [0.5; 3],
    load,
    import,
};

/// llama.cpp's numbers of the models: MiniCPM-V 2.6, MiniCPM-o 2.6, MiniCPM-V 4, 4.5, MiniCPM-o
/// 4.5. Earlier models mark slices in another way.
const VERSIONS: [(u32, &str); 5] = [(3, "2.6"), (4, "o-2.6"), (5, "4"), (6, "4.5"), (100_045, "o-4.5")];

/// Key for the number of the model.
const VERSION: &str = "clip.minicpmv_version";

/// Key for the number of queries.
const QUERIES: &str = "clip.minicpmv_query_num";

/// Elements of a head of the resampler.
const HEAD_DIM: usize = 128;

/// Tokens of a picture, for folders that do not name them.
const TOKENS: usize = 64;

fn load(loader: &Loader<'_>) -> Result<(TowerConfig, TowerWeights)> {
    check_version(loader)?;
    let d_model = width_of_text(loader)?;
    let sizes = TowerSizes::of_width(loader, d_model)?;
    let resampler = resampler(loader, &sizes)?;
    let pictures = sliced_sizes(loader, sizes.patch_size, resampler.queries.len() / d_model)?;
    let config = TowerConfig::new(loader, &PROJECTOR, &sizes, pictures)?;
    let n_layer = loader.layer_counts()?.n_layer;
    let weights = TowerWeights {
        patch: patch_embedding(loader, &sizes)?,
        patch_norms: PatchNorms::default(),
        positions: Some(stretched_positions(loader, &sizes)?),
        layers: (0..n_layer).map(|n| TowerLayer::load(loader, &config, n)).collect::<Result<_>>()?,
        head: TowerHead::Resampler(Box::new(resampler)),
    };
    Ok((config, weights))
}

/// Refuses models whose slices have other marks. Files without a version are of MiniCPM-V 2.5.
fn check_version(loader: &Loader<'_>) -> Result<()> {
    let version = loader.checkpoint.metadata.usize(VERSION)?.unwrap_or(2);
    if VERSIONS.iter().any(|(known, _)| *known as usize == version) {
        return Ok(());
    }
    let known = VERSIONS.map(|(number, name)| format!("{number} ({name})")).join(", ");
    Err(Error::unsupported("version of MiniCPM-V", format!("{VERSION} = {version}"), known))
}

/// Returns the width of the text model. Files name it only by the sizes of tensors.
fn width_of_text(loader: &Loader<'_>) -> Result<usize> {
    let name = "resampler.ln_kv.weight";
    let width = loader.rows(name).unwrap_or(0);
    match width > 0 && width <= MAX_SIZE && width.is_multiple_of(HEAD_DIM) {
        true => Ok(width),
        false => Err(loader.tensor_error(name, format!("a multiple of {HEAD_DIM} numbers"), width)),
    }
}

fn resampler(loader: &Loader<'_>, &TowerSizes { width, d_model, .. }: &TowerSizes) -> Result<Resampler> {
    let name = "resampler.query";
    let count = loader.rows(name).unwrap_or(0);
    if !(1..=MAX_SIZE).contains(&count) {
        return Err(loader.tensor_error(name, format!("shape [tokens, {d_model}]"), format!("{count} rows")));
    }
    let square = |stem: &str| loader.linear(&format!("resampler.{stem}"), d_model, d_model);
    let norm = |stem: &str| loader.norm(&format!("resampler.{stem}"), NormKind::Layer, d_model);
    let projected = width != d_model || loader.has("resampler.kv.weight");
    let n_head = d_model / HEAD_DIM;
    Ok(Resampler {
        patches: loader.norm("v.post_ln", NormKind::Layer, width)?,
        inputs: projected.then(|| loader.linear("resampler.kv", d_model, width)).transpose()?,
        input_norm: norm("ln_kv")?,
        queries: loader.vector_of_shape(name, &[&[count, d_model]])?,
        query_norm: norm("ln_q")?,
        qkv: [square("attn.q")?, square("attn.k")?, square("attn.v")?],
        heads: HeadSizes { n_head, n_kv_head: n_head, head_dim: HEAD_DIM, value_dim: HEAD_DIM },
        output: square("attn.out")?,
        output_norm: norm("ln_post")?,
        projection: square("proj")?,
    })
}

fn import(from: &TowerFolder<'_>, draft: &mut TowerDraft) -> Result<()> {
    let TowerFolder { vision, text, .. } = from;
    draft.keys.set(VERSION, Value::I32(version(text)? as i32));
    let queries = text.or_default(&["query_num"], TOKENS)?;
    draft.keys.set(QUERIES, Value::U32(u32::try_from(queries).unwrap_or(u32::MAX)));
    let dropped = usize::from(text.bool(&["drop_vision_last_layer"])?.unwrap_or(false));
    import_siglip(vision, draft, dropped)?;
    import_slices(from, draft)?;
    names(draft, text.size(&["hidden_size"])?);
    Ok(())
}

/// Returns llama.cpp's number of the folder's model.
fn version(text: &HfConfig) -> Result<u32> {
    let named = text.value("version");
    let number = named.and_then(|named| named.as_f64().or_else(|| named.as_str()?.parse().ok()));
    let omni = text.model_type() == "minicpmo";
    match number {
        Some(2.6) => Ok(if omni { 4 } else { 3 }),
        Some(4.0) => Ok(5),
        Some(4.5) => Ok(if omni { 100_045 } else { 6 }),
        _ => {
            let got = named.map_or_else(|| "nothing".to_owned(), ToString::to_string);
            Err(Error::unsupported("version of MiniCPM-V", format!("version = {got}"), "2.6, 4.0, 4.5"))
        }
    }
}

/// Adds the names of the tensors. Folders have queries, keys and values of the resampler in one
/// tensor, and its projection transposed.
fn names(draft: &mut TowerDraft, d_model: usize) {
    let naming = &mut draft.naming;
    naming.alias("vpm.", "vision.");
    siglip_names(naming);
    naming.whole("resampler.query", "resampler.query", Transform::None);
    naming.whole("resampler.proj", "resampler.proj.weight", Transform::Swapped);
    for (at, part) in ["q", "k", "v"].into_iter().enumerate() {
        let rows = Arc::new(Gather::new(d_model.saturating_mul(3), [(d_model.saturating_mul(at), d_model)]));
        for kind in ["weight", "bias"] {
            let (from, to) = (format!("resampler.attn.in_proj_{kind}"), format!("resampler.attn.{part}.{kind}"));
            naming.whole(from, to, Transform::Rows(Arc::clone(&rows)));
        }
    }
    for (hf, gguf) in
        [("kv_proj", "kv"), ("attn.out_proj", "attn.out"), ("ln_q", "ln_q"), ("ln_kv", "ln_kv"), ("ln_post", "ln_post")]
    {
        naming.add(format!("resampler.{hf}"), format!("resampler.{gguf}"));
    }
    // llama.cpp needs a tensor of this name, and computes its values itself.
    for gguf in ["resampler.ln_post.bias", "resampler.pos_embed_k"] {
        naming.whole("resampler.ln_post.bias", gguf, Transform::None);
    }
}
