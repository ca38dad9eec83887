//! Multi-head latent attention: what it has beside the sizes and weights of all attention.
//!
//! Newer GGUF files keep per head the matrix from queries to the latent (`attn_k_b`, transposed) and the one from the latent to values
//! (`attn_v_b`); older ones, and Hugging Face folders, have both in `attn_kv_b`: per head the rows of keys, then those of values.

use super::{AttentionConfig, AttentionWeights, Linear, Norm, NormKind};
use crate::load::{LayerTensors, Loader};
use thermocline_base::error::Result;
use thermocline_formats::{
    format::{Bytes, Matrix},
    quant::TensorType,
};

/// Multi-head latent attention (DeepSeek V2): keys and values of all heads are products of one latent, which is what is cached. Queries
/// are brought to the latent's width, attend to it, and each head's values are a product of the latents' weighted sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentConfig {
    /// Elements of the latent.
    pub rank: usize,
    /// Elements of a head's query that are not rotated.
    pub nope_dim: usize,
    /// Elements of a head's value.
    pub v_dim: usize,
    /// Elements that queries are projected from, where they are low-rank.
    pub q_rank: Option<usize>,
    /// Added under the root in the norms of latents.
    pub norm_eps: f32,
}

/// Weights of latent attention beside those of all attention.
#[derive(Debug, Clone)]
pub struct LatentWeights {
    /// Where queries are low-rank: `[q_rank, d]`, and the norm behind it, `[q_rank]`.
    pub low_q: Option<(Linear, Norm)>,
    /// Norm of the latent, `[rank]`.
    pub norm: Norm,
    /// Per head, from its query to the latent's width: `[rank, nope_dim]`.
    pub keys: Vec<Linear>,
    /// Per head, from the latent to its value: `[v_dim, rank]`.
    pub values: Vec<Linear>,
}

/// The latent of a layer's attention.
#[derive(Debug, Clone, Copy)]
pub struct BoundLatent<'m> {
    /// Sizes.
    pub config: &'m LatentConfig,
    /// Weights.
    pub weights: &'m LatentWeights,
}

/// Latent attention of layer `n` in a file.
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
