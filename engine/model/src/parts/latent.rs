//! Multi-head latent attention: its sizes and weights in addition to those of all attention.
//!
//! Newer GGUF files have two matrices per head: from queries to the latent (`attn_k_b`, transposed)
//! and from the latent to values (`attn_v_b`). Older files and Hugging Face folders join both in
//! `attn_kv_b`: per head the rows of keys, then those of values.

use super::{AttentionConfig, AttentionWeights, Linear, Norm, NormKind};
use crate::load::{LayerTensors, Loader};
use thermocline_base::error::Result;
use thermocline_formats::{
    format::{Bytes, Matrix},
    quant::TensorType,
};

/// Sizes of multi-head latent attention (DeepSeek V2). Keys and values of all heads are products of
/// one latent, and only the latent is cached. Each query is mapped to the latent's width and
/// attends to the latents. Each head's value is a product of the latents' weighted sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentConfig {
    /// Number of elements of the latent.
    pub rank: usize,
    /// Number of elements of a head's query that are not rotated.
    pub nope_dim: usize,
    /// Number of elements of a head's value.
    pub v_dim: usize,
    /// Rank of the query projection, if it is low-rank.
    pub q_rank: Option<usize>,
    /// Epsilon in the norms of latents.
    pub norm_eps: f32,
}

/// Weights of latent attention, in addition to those of all attention.
#[derive(Debug, Clone)]
pub struct LatentWeights {
    /// First matrix of low-rank queries, `[q_rank, d]`, and the norm of its product, `[q_rank]`.
    pub low_q: Option<(Linear, Norm)>,
    /// Norm of the latent, `[rank]`.
    pub norm: Norm,
    /// Matrix per head from its query to the latent's width, `[rank, nope_dim]`.
    pub keys: Vec<Linear>,
    /// Matrix per head from the latent to its value, `[v_dim, rank]`.
    pub values: Vec<Linear>,
}

/// Latent of a layer's attention, bound to a step.
#[derive(Debug, Clone, Copy)]
pub struct BoundLatent<'m> {
    /// Sizes.
    pub config: &'m LatentConfig,
    /// Weights.
    pub weights: &'m LatentWeights,
}

/// Loads the latent attention of layer `n`.
pub(crate) fn load_latent_attention(
    at: &LayerTensors<'_>,
    shape: &AttentionConfig,
    latent: LatentConfig,
) -> Result<AttentionWeights> {
    let LayerTensors { loader, n, d_model: d, .. } = *at;
    let stem = |which: &str| format!("blk.{n}.attn_{which}");
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
        k: Some(loader.linear(&stem("kv_a_mqa"), shape.heads.head_dim, d)?),
        v: None,
        output: loader.linear(&stem("output"), d, shape.output_cols())?,
        q_norm: None,
        k_norm: None,
        sinks: None,
        latent: Some(Box::new(latent_weights)),
        gate: None,
    })
}

/// Loads two matrices per head: from its query to the latent, `[rank, nope_dim]`, and from the
/// latent to its value, `[v_dim, rank]`.
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
            let matrices = loader.stacked(name, shape.heads.n_head, rows, cols)?;
            matrices.ok_or_else(|| loader.missing_tensor(name, format!("shape {:?}", [shape.heads.n_head, rows, cols])))
        };
        return Ok((stacked(&keys, rank, nope_dim)?, stacked(&values, v_dim, rank)?));
    }
    let each = nope_dim + v_dim;
    let all = loader.matrix(&both, shape.heads.n_head * each, rank)?;
    let mut heads = (Vec::with_capacity(shape.heads.n_head), Vec::with_capacity(shape.heads.n_head));
    for head in 0..shape.heads.n_head {
        let keys = loader.slice(&all, &both, head * each, nope_dim)?;
        let transposed = transposed(&keys).ok_or_else(|| loader.missing_tensor(&both, "whole rows of keys"))?;
        heads.0.push(transposed);
        heads.1.push(loader.slice(&all, &both, head * each + nope_dim, v_dim)?);
    }
    Ok(heads)
}

/// Returns `matrix` with rows and columns exchanged. Floats keep their type; blocks become half
/// precision.
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
