//! Weights of the usual layer parts, for families to combine: norms, attention, MoE, a whole gated layer.

use super::Loader;
use crate::{
    error::Result,
    format::Matrix,
    model::{
        AttentionWeights, Down, ExpertWeights, Experts, Ffn, FfnWeights, LayerWeights, Linear, ModelConfig, Norm,
        NormSlot,
    },
};

/// Norms of layer `n` by slot and tensor stem (`blk.{n}.{stem}`).
pub(super) fn norms(
    loader: &Loader<'_>,
    config: &ModelConfig,
    n: usize,
    stems: &[(NormSlot, &str)],
) -> Result<Vec<(NormSlot, Norm)>> {
    let norm = |&(slot, stem): &(NormSlot, &str)| {
        Ok((slot, loader.norm(&format!("blk.{n}.{stem}"), config.norm, config.d_model)?))
    };
    stems.iter().map(norm).collect()
}

/// Norms of the usual layer: `attn_norm` and `ffn_norm`.
pub(super) const USUAL_NORMS: &[(NormSlot, &str)] = &[(NormSlot::Attention, "attn_norm"), (NormSlot::Ffn, "ffn_norm")];

/// Attention of layer `n`, whether q, k and v are tensors of their own or one `attn_qkv` (all q, then k, then v).
pub(super) fn attention(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<AttentionWeights> {
    let Some(shape) = config.layers.get(n).and_then(|layer| layer.attention.as_ref()) else {
        return Err(loader.key_error("attention.head_count_kv", format!("heads for layer {n}"), 0));
    };
    let (d, q_rows, kv_dim) = (config.d_model, shape.q_rows(), shape.kv_dim());
    let fused = format!("blk.{n}.attn_qkv");
    let [q, k, v] = if loader.find(&format!("{fused}.weight")).is_some() {
        split(loader, &fused, d, [q_rows, kv_dim, kv_dim])?
    } else {
        [
            loader.linear(&format!("blk.{n}.attn_q"), q_rows, d)?,
            loader.linear(&format!("blk.{n}.attn_k"), kv_dim, d)?,
            loader.linear(&format!("blk.{n}.attn_v"), kv_dim, d)?,
        ]
    };
    let head_norm =
        |which: &str| loader.optional_norm(&format!("blk.{n}.attn_{which}_norm"), config.norm, shape.head_dim);
    Ok(AttentionWeights {
        q,
        k,
        v,
        output: loader.linear(&format!("blk.{n}.attn_output"), d, shape.q_dim())?,
        q_norm: head_norm("q")?,
        k_norm: head_norm("k")?,
    })
}

/// The linear maps stacked in `{stem}.weight`, `rows[i]` rows each, sharing its data.
pub(super) fn split<const N: usize>(
    loader: &Loader<'_>,
    stem: &str,
    cols: usize,
    rows: [usize; N],
) -> Result<[Linear; N]> {
    let name = format!("{stem}.weight");
    let Linear { weight, bias } = loader.linear(stem, rows.iter().sum(), cols)?;
    let mut start = 0;
    let mut parts = Vec::with_capacity(N);
    for len in rows {
        let bias = bias.as_ref().map(|bias| bias[start..start + len].to_vec());
        parts.push(Linear { weight: loader.slice(&weight, &name, start, len)?, bias });
        start += len;
    }
    parts.try_into().map_err(|_| loader.missing_tensor(&name, format!("{N} parts")))
}

/// The experts of layer `n`: stacked (`ffn_up_exps`) or, in older files, one by one (`ffn_up.3`).
fn expert_ffns(loader: &Loader<'_>, config: &ModelConfig, experts: &Experts, n: usize) -> Result<ExpertWeights> {
    let (d, n_ff, count) = (config.d_model, experts.n_ff, experts.count);
    let matrices = |stem: &str, rows: usize, cols: usize| -> Result<Vec<Matrix>> {
        match loader.stacked(&format!("blk.{n}.{stem}_exps.weight"), count, rows, cols)? {
            Some(matrices) => Ok(matrices),
            None => (0..count).map(|e| loader.matrix(&format!("blk.{n}.{stem}.{e}.weight"), rows, cols)).collect(),
        }
    };
    let plain = |weight| Linear { weight, bias: None };
    let gates = matrices("ffn_gate", n_ff, d)?;
    let ups = matrices("ffn_up", n_ff, d)?;
    let downs = matrices("ffn_down", d, n_ff)?;
    let ffn =
        |((gate, up), down)| FfnWeights { gate: Some(plain(gate)), up: plain(up), down: Down::Outputs(plain(down)) };
    Ok(ExpertWeights {
        router: loader.linear(&format!("blk.{n}.ffn_gate_inp"), count, d)?,
        experts: gates.into_iter().zip(ups).zip(downs).map(ffn).collect(),
        shared: None,
        file_down: Vec::new(),
    })
}

/// A layer of the usual shape: norms, attention, and a gated FFN or an MoE one.
pub(super) fn gated_layer(
    loader: &Loader<'_>,
    config: &ModelConfig,
    n: usize,
    stems: &[(NormSlot, &str)],
) -> Result<LayerWeights> {
    let ffn = match &config.experts {
        // Some MoE models have dense layers in between.
        Some(experts)
            if config.layers[n].n_ff == 0 || loader.find(&format!("blk.{n}.ffn_gate_inp.weight")).is_some() =>
        {
            Ffn::Experts(expert_ffns(loader, config, experts, n)?)
        }
        _ => Ffn::Dense(loader.dense_ffn(n, config, true)?),
    };
    let (norms, attention) = (norms(loader, config, n, stems)?, attention(loader, config, n)?);
    Ok(LayerWeights::new(norms, attention, ffn, loader.predictor(n, config)?))
}
