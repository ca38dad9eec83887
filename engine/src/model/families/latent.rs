//! Parts of families with multi-head latent attention: its configuration and weights, and the keys and names of a Hugging Face folder.
//!
//! Newer GGUF files keep per head the matrix from queries to the latent (`attn_k_b`, transposed) and the one from the latent to values
//! (`attn_v_b`); older ones, and Hugging Face folders, have both in `attn_kv_b`: per head the rows of keys, then those of values.

use super::Loader;
use crate::{
    error::Result,
    format::{Bytes, Matrix, Value},
    model::{
        AttentionConfig, AttentionWeights, LatentConfig, LatentWeights, Linear, ModelConfig, NormKind, RopeScaling,
        import::{Draft, HfConfig, HfSizes},
        load::yarn_magnitude,
    },
    quant::TensorType,
};

/// Elements of a head, and of a latent, that are believed.
const LARGEST: usize = 1 << 16;

/// Makes the attention of every layer latent.
pub(super) fn configure(loader: &Loader<'_>, config: &mut ModelConfig) -> Result<()> {
    let rank = loader.required_size("attention.kv_lora_rank", 1..=LARGEST)?;
    // Older files give the lengths of heads; newer ones those of what is cached, and those of heads under names of their own.
    let key_dim = match loader.size("attention.key_length_mla", 1..=LARGEST)? {
        None => loader.required_size("attention.key_length", 1..=LARGEST)?,
        Some(key_dim) => key_dim,
    };
    let v_dim = match loader.size("attention.value_length_mla", 1..=LARGEST)? {
        None => loader.required_size("attention.value_length", 1..=LARGEST)?,
        Some(v_dim) => v_dim,
    };
    let rope = loader.required_size("rope.dimension_count", 2..=LARGEST)?;
    if rope >= key_dim {
        return Err(loader.key_error("rope.dimension_count", format!("fewer than a key's {key_dim} elements"), rope));
    }
    let low_rank = (0..config.n_layer()).any(|n| loader.has(&format!("blk.{n}.attn_q_a.weight")));
    let q_rank = loader.size("attention.q_lora_rank", 0..=LARGEST)?.filter(|rank| *rank > 0 && low_rank);
    let latent = LatentConfig { rank, nope_dim: key_dim - rope, v_dim, q_rank };
    let scale = loader.switchable("attention.scale")?.unwrap_or(1.0 / (key_dim as f32).sqrt());
    let scale = scale * yarn_scale(loader, config)?.powi(2);
    for attention in config.attentions_mut() {
        *attention =
            AttentionConfig { n_kv_head: 1, head_dim: rope + rank, scale, latent: Some(latent), ..attention.clone() };
    }
    Ok(())
}

/// Factor on queries and keys in stretched contexts. Files that name its logarithm's weight (a tenth of Hugging Face's
/// `mscale_all_dim`) take the magnitude out of the rotations.
fn yarn_scale(loader: &Loader<'_>, config: &mut ModelConfig) -> Result<f32> {
    let weight = loader.switchable("rope.scaling.yarn_log_multiplier")?;
    let (Some(weight), Some(rope)) = (weight, config.ropes.first_mut()) else { return Ok(1.0) };
    let RopeScaling::Yarn { factor, attention_factor, .. } = &mut rope.scaling else { return Ok(1.0) };
    *attention_factor /= yarn_magnitude(*factor, 1.0);
    Ok(yarn_magnitude(*factor, 10.0 * weight))
}

/// Weights of the attention of layer `n`.
pub(super) fn attention(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<AttentionWeights> {
    let shape = config.layers.get(n).and_then(|layer| layer.attention.as_ref());
    let Some((shape, latent)) = shape.and_then(|shape| Some((shape, shape.latent?))) else {
        return Err(loader.key_error("attention.kv_lora_rank", format!("a latent for layer {n}"), "none"));
    };
    let stem = |which: &str| format!("blk.{n}.attn_{which}");
    let d = config.d_model;
    let (q, low_q) = match latent.q_rank {
        Some(rank) => {
            let low = (loader.linear(&stem("q_a"), rank, d)?, loader.norm(&stem("q_a_norm"), NormKind::Rms, rank)?);
            (loader.linear(&stem("q_b"), shape.q_rows(), rank)?, Some(low))
        }
        None => (loader.linear(&stem("q"), shape.q_rows(), d)?, None),
    };
    let (keys, values) = heads(loader, shape, latent, n)?;
    let linear = |weight| Linear { weight, bias: None };
    let latent_weights = LatentWeights {
        low_q,
        norm: loader.norm(&stem("kv_a_norm"), NormKind::Rms, latent.rank)?,
        keys: keys.into_iter().map(linear).collect(),
        values: values.into_iter().map(linear).collect(),
    };
    Ok(AttentionWeights {
        q,
        k: Some(loader.linear(&stem("kv_a_mqa"), shape.head_dim, d)?),
        v: None,
        output: loader.linear(&stem("output"), d, shape.output_cols())?,
        q_norm: None,
        k_norm: None,
        sinks: None,
        latent: Some(Box::new(latent_weights)),
        gate: None,
    })
}

/// Per head, its query's way to the latent, `[rank, nope_dim]`, and the latent's way to its value, `[v_dim, rank]`.
fn heads(
    loader: &Loader<'_>,
    shape: &AttentionConfig,
    LatentConfig { rank, nope_dim, v_dim, .. }: LatentConfig,
    n: usize,
) -> Result<(Vec<Matrix>, Vec<Matrix>)> {
    let both = format!("blk.{n}.attn_kv_b.weight");
    if !loader.has(&both) {
        let [keys, values] = ["k", "v"].map(|which| format!("blk.{n}.attn_{which}_b.weight"));
        let stacked = |name: &str, rows, cols| {
            let matrices = loader.stacked(name, shape.n_head, rows, cols)?;
            matrices.ok_or_else(|| loader.missing_tensor(name, format!("shape {:?}", [shape.n_head, rows, cols])))
        };
        return Ok((stacked(&keys, rank, nope_dim)?, stacked(&values, v_dim, rank)?));
    }
    let each = nope_dim + v_dim;
    let all = loader.matrix(&both, shape.n_head * each, rank)?;
    let mut heads = (Vec::with_capacity(shape.n_head), Vec::with_capacity(shape.n_head));
    for head in 0..shape.n_head {
        let keys = loader.slice(&all, &both, head * each, nope_dim)?;
        let transposed = transposed(&keys).ok_or_else(|| loader.missing_tensor(&both, "whole rows of keys"))?;
        heads.0.push(transposed);
        heads.1.push(loader.slice(&all, &both, head * each + nope_dim, v_dim)?);
    }
    Ok(heads)
}

/// `matrix` with rows and columns exchanged. Floats keep their type, blocks become half precision.
fn transposed(matrix: &Matrix) -> Option<Matrix> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let ty = match matrix.ty() {
        ty @ (TensorType::F32 | TensorType::BF16) => ty,
        _ => TensorType::F16,
    };
    let element = ty.block_bytes();
    let (mut bytes, mut row) = (vec![0; rows * cols * element], vec![0.0; cols]);
    for at in 0..rows {
        matrix.dequantise_row(at, &mut row);
        for (col, value) in row.iter().enumerate() {
            let to = &mut bytes[(col * rows + at) * element..][..element];
            match ty {
                TensorType::F32 => to.copy_from_slice(&value.to_le_bytes()),
                TensorType::BF16 => to.copy_from_slice(&half::bf16::from_f32(*value).to_le_bytes()),
                _ => to.copy_from_slice(&half::f16::from_f32(*value).to_le_bytes()),
            }
        }
    }
    Matrix::new(ty, cols, rows, Bytes::new(bytes))
}

/// The keys of latent attention, with those that every architecture has, and the names of its tensors.
pub(super) fn import(hf: &HfConfig, draft: &mut Draft, arch: &'static str, default_base: f32) -> Result<HfSizes> {
    let mut sizes = draft.common(hf, arch)?;
    let (nope, rope) = (hf.size(&["qk_nope_head_dim"])?, hf.size(&["qk_rope_head_dim"])?);
    let sized = |name: &str, value: usize| match value {
        1..=LARGEST => Ok(value),
        _ => Err(hf.error(name, format!("a number from 1 to {LARGEST}"), value)),
    };
    let v_dim = sized("v_head_dim", hf.size(&["v_head_dim"])?)?;
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
    if let Some((factor, scale, all)) = hf.yarn_scales()? {
        draft.set("rope.scaling.yarn_log_multiplier", Value::F32(0.1 * all));
        let magnitude = yarn_magnitude(factor, scale) / yarn_magnitude(factor, all);
        draft.set("rope.scaling.attn_factor", Value::F32(magnitude));
    }
    let naming = &mut draft.naming;
    naming.llama_like();
    for (hf, gguf) in [
        ("q_a_proj", "attn_q_a"),
        ("q_a_layernorm", "attn_q_a_norm"),
        ("q_b_proj", "attn_q_b"),
        ("kv_a_proj_with_mqa", "attn_kv_a_mqa"),
        ("kv_a_layernorm", "attn_kv_a_norm"),
        ("kv_b_proj", "attn_kv_b"),
    ] {
        naming.add(format!("model.layers.*.self_attn.{hf}"), format!("blk.*.{gguf}"));
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposed_exchanges_rows_and_columns_of_every_float_type() {
        let values: Vec<f32> = (0..6).map(|i| i as f32 - 2.5).collect();
        let bytes = |ty: TensorType| -> Vec<u8> {
            let one = |value: &f32| match ty {
                TensorType::F32 => value.to_le_bytes().to_vec(),
                TensorType::BF16 => half::bf16::from_f32(*value).to_le_bytes().to_vec(),
                _ => half::f16::from_f32(*value).to_le_bytes().to_vec(),
            };
            values.iter().flat_map(one).collect()
        };
        for ty in [TensorType::F32, TensorType::F16, TensorType::BF16] {
            let matrix = Matrix::new(ty, 2, 3, Bytes::new(bytes(ty))).unwrap();
            let exchanged = transposed(&matrix).unwrap();
            assert_eq!((exchanged.ty(), exchanged.rows(), exchanged.cols()), (ty, 3, 2));
            let mut row = [0.0; 2];
            for col in 0..3 {
                exchanged.dequantise_row(col, &mut row);
                assert_eq!(row, [values[col], values[3 + col]], "{ty}");
            }
        }
    }
}
