//! Weights of the usual layer parts, for families to combine: norms, attention, MoE, a whole gated layer.

use std::sync::Arc;

use super::Loader;
use crate::{
    cpu::ops::ShortConv,
    error::Result,
    format::Matrix,
    model::{
        AttentionWeights, Down, ExpertLatent, ExpertWeights, Experts, Ffn, FfnWeights, LayerWeights, Linear,
        ModelConfig, Norm, NormSlot, PerLayerTable, PerLayerWeights, RecurrentConfig, Register, SharedExpert, Step,
    },
};

/// Gives layers without attention the usual program, with `recurrent` in attention's place.
pub(super) fn recurrent_without_attention(config: &mut ModelConfig, recurrent: &RecurrentConfig) {
    let mut steps = Step::sequential();
    steps[1] = Step::Recurrent { from: Register::Normed };
    let steps: Arc<[Step]> = steps.into();
    for layer in config.layers.iter_mut().filter(|layer| layer.attention.is_none()) {
        (layer.recurrent, layer.steps) = (Some(recurrent.clone()), Arc::clone(&steps));
    }
}

/// The short convolution `{stem}` of `taps` taps of each channel.
pub(super) fn short_conv(loader: &Loader<'_>, stem: &str, channels: usize, taps: usize) -> Result<ShortConv> {
    let Linear { weight, bias } = loader.linear(stem, channels, taps)?;
    let mut taps_of = vec![0.0; channels * taps];
    taps_of.chunks_exact_mut(taps).enumerate().for_each(|(channel, taps)| weight.dequantise_row(channel, taps));
    Ok(ShortConv::new(&taps_of, taps, bias))
}

/// Norms of layer `n` by slot and tensor stem (`blk.{n}.{stem}`).
pub(super) fn norms(
    loader: &Loader<'_>,
    config: &ModelConfig,
    n: usize,
    stems: &[(NormSlot, &str)],
) -> Result<Vec<(NormSlot, Norm)>> {
    let norm = |&(slot, stem): &(NormSlot, &str)| {
        let norm = loader.norm_at(Some(slot), &format!("blk.{n}.{stem}"), config.norm, config.d_model)?;
        Ok((slot, norm))
    };
    stems.iter().map(norm).collect()
}

/// Norms of the usual layer: `attn_norm` and `ffn_norm`.
pub(super) const USUAL_NORMS: &[(NormSlot, &str)] = &[(NormSlot::Attention, "attn_norm"), (NormSlot::Ffn, "ffn_norm")];

/// Norms of a layer that has them behind its blocks ([`Step::norms_after`](crate::model::Step::norms_after)).
pub(super) const NORMS_AFTER: &[(NormSlot, &str)] =
    &[(NormSlot::PostAttention, "post_attention_norm"), (NormSlot::PostFfn, "post_ffw_norm")];

/// Attention of layer `n`, whether q, k and v are tensors of their own or one `attn_qkv` (all q, then k, then v).
pub(super) fn attention(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<AttentionWeights> {
    let Some(shape) = config.layers.get(n).and_then(|layer| layer.attention.as_ref()) else {
        return Err(loader.key_error("attention.head_count_kv", format!("heads for layer {n}"), 0));
    };
    let (d, q_rows, kv_dim) = (config.d_model, shape.q_rows(), shape.kv_dim());
    let fused = format!("blk.{n}.attn_qkv");
    let (q, k, v) = if loader.has(&format!("{fused}.weight")) {
        let [q, k, v] = split(loader, &fused, d, [q_rows, kv_dim, kv_dim])?;
        (q, Some(k), Some(v))
    } else {
        let q = loader.linear(&format!("blk.{n}.attn_q"), q_rows, d)?;
        let own = |which: &str| loader.linear(&format!("blk.{n}.attn_{which}"), kv_dim, d);
        let keys_are_values = shape.norm_values && !loader.has(&format!("blk.{n}.attn_v.weight"));
        let (k, v) = match shape.kv_from {
            Some(_) => (None, None),
            None if keys_are_values => (Some(own("k")?), None),
            None => (Some(own("k")?), Some(own("v")?)),
        };
        (q, k, v)
    };
    // Of each head, or of all together: the length tells.
    let head_norm = |which: &str, all: usize| {
        let stem = format!("blk.{n}.attn_{which}_norm");
        let of_all = loader.rows(&format!("{stem}.weight")) == Some(all);
        loader.optional_norm(&stem, config.norm, if of_all { all } else { shape.head_dim })
    };
    Ok(AttentionWeights {
        q,
        k,
        v,
        output: loader.linear(&format!("blk.{n}.attn_output"), d, shape.q_dim())?,
        q_norm: head_norm("q", shape.q_dim())?,
        k_norm: if shape.kv_from.is_none() { head_norm("k", kv_dim)? } else { None },
        sinks: loader.optional_vector(&format!("blk.{n}.attn_sinks.weight"), shape.n_head)?,
        latent: None,
        gate: match shape.gate_rows {
            0 => None,
            rows => Some(loader.linear(&format!("blk.{n}.attn_gate"), rows, d)?),
        },
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

/// A linear map of each of a layer's experts: how many, and the rows and columns of one.
#[derive(Clone, Copy)]
struct StackShape {
    count: usize,
    rows: usize,
    cols: usize,
}

/// The experts of layer `n`: stacked, gate and up apart (`ffn_gate_exps`, `ffn_up_exps`) or one above the other
/// (`ffn_gate_up_exps`), or, in older files, one by one (`ffn_up.3`). Experts without a gate have only `ffn_up`.
pub(super) fn moe(loader: &Loader<'_>, config: &ModelConfig, experts: &Experts, n: usize) -> Result<ExpertWeights> {
    let (d, n_ff, count) = (config.d_model, experts.n_ff, experts.count);
    let router = loader.linear(&format!("blk.{n}.ffn_gate_inp"), count, d)?;
    let latent = expert_latent(loader, d, n)?;
    let width = latent.as_ref().map_or(d, |latent| latent.down.weight.rows());
    let shape = StackShape { count, rows: n_ff, cols: width };
    let (gates, ups) = match gates_and_ups(loader, shape, n)? {
        Some([gates, ups]) => (Some(gates), ups),
        None => {
            let first = |stem: &str| format!("blk.{n}.{stem}");
            let gated = loader.has(&first("ffn_gate_exps.weight")) || loader.has(&first("ffn_gate.0.weight"));
            let gates = gated.then(|| linears(loader, "ffn_gate", shape, n)).transpose()?;
            (gates, linears(loader, "ffn_up", shape, n)?)
        }
    };
    let selection_bias = loader.optional_vector(&format!("blk.{n}.exp_probs_b.bias"), count)?;
    let downs = linears(loader, "ffn_down", StackShape { count, rows: width, cols: n_ff }, n)?;
    let mut gates = gates.into_iter().flatten();
    let ffn = |(up, down)| FfnWeights { gate: gates.next(), up, down: Down::Outputs(down) };
    Ok(ExpertWeights {
        router,
        router_norm: None,
        scale: None,
        selection_bias,
        latent: latent.map(Box::new),
        experts: ups.into_iter().zip(downs).map(ffn).collect(),
        shared: shared_expert(loader, d, n)?.map(Box::new),
        file_down: Vec::new(),
    })
}

/// The routed experts' way into a latent and out of it, if layer `n` has one: the tensors' shapes tell its width.
fn expert_latent(loader: &Loader<'_>, d: usize, n: usize) -> Result<Option<ExpertLatent>> {
    let [down, up] = ["down", "up"].map(|which| format!("blk.{n}.ffn_latent_{which}"));
    let Some(width) = loader.rows(&format!("{down}.weight")) else { return Ok(None) };
    let latent = ExpertLatent { down: loader.linear(&down, width, d)?, up: loader.linear(&up, d, width)? };
    match &latent.up.bias {
        Some(bias) => Err(loader.tensor_error(&format!("{up}.bias"), "no bias of latent experts", bias.len())),
        None => Ok(Some(latent)),
    }
}

/// The inputs that layers have of their own, if the model has them.
pub(super) fn per_layer_table(loader: &Loader<'_>, config: &ModelConfig) -> Result<Option<PerLayerTable>> {
    let Some(width) = config.per_layer_input else { return Ok(None) };
    let all = config.per_layer_inputs();
    Ok(Some(PerLayerTable {
        rows: loader.matrix("per_layer_token_embd.weight", config.n_vocab, all)?,
        projection: loader.linear("per_layer_model_proj", all, config.d_model)?,
        norm: loader.norm("per_layer_proj_norm", config.norm, width)?,
    }))
}

/// The use that layer `n` makes of its own input, if it has one.
pub(super) fn per_layer_weights(
    loader: &Loader<'_>,
    config: &ModelConfig,
    n: usize,
) -> Result<Option<PerLayerWeights>> {
    let Some(width) = config.per_layer_input else { return Ok(None) };
    Ok(Some(PerLayerWeights {
        gate: loader.linear(&format!("blk.{n}.inp_gate"), width, config.d_model)?,
        output: loader.linear(&format!("blk.{n}.proj"), config.d_model, width)?,
    }))
}

/// A layer of norms, attention and an FFN without a gate.
pub(super) fn ungated_layer(
    loader: &Loader<'_>,
    config: &ModelConfig,
    n: usize,
    stems: &[(NormSlot, &str)],
) -> Result<LayerWeights> {
    let (norms, attention) = (norms(loader, config, n, stems)?, attention(loader, config, n)?);
    let ffn = Ffn::Dense(loader.dense_ffn(n, config, false)?);
    Ok(LayerWeights::new(norms, attention, ffn, loader.predictor(n, config)?))
}

/// One linear map of every expert, with its biases if there are any.
fn linears(loader: &Loader<'_>, stem: &str, shape: StackShape, n: usize) -> Result<Vec<Linear>> {
    let StackShape { count, rows, cols } = shape;
    let stacked = format!("blk.{n}.{stem}_exps");
    let single = |e: usize| format!("blk.{n}.{stem}.{e}");
    let Some(weights) = loader.stacked(&format!("{stacked}.weight"), count, rows, cols)? else {
        if !loader.has(&format!("{}.weight", single(0))) {
            return Err(loader.missing_tensor(&format!("{stacked}.weight"), format!("shape [{count}, {rows}, {cols}]")));
        }
        return (0..count).map(|e| loader.linear(&single(e), rows, cols)).collect();
    };
    let biases = loader.stacked_vectors(&format!("{stacked}.bias"), count, rows)?;
    Ok(with_biases(weights, biases))
}

fn with_biases(weights: Vec<Matrix>, biases: Option<Vec<Vec<f32>>>) -> Vec<Linear> {
    let mut biases = biases.into_iter().flatten();
    weights.into_iter().map(|weight| Linear { weight, bias: biases.next() }).collect()
}

/// Gates and ups of the experts of layer `n` where they are one tensor, the gate's rows above the up's.
fn gates_and_ups(loader: &Loader<'_>, gate: StackShape, n: usize) -> Result<Option<[Vec<Linear>; 2]>> {
    let StackShape { count, rows: n_ff, cols: d } = gate;
    let stem = format!("blk.{n}.ffn_gate_up_exps");
    let name = format!("{stem}.weight");
    let Some(both) = loader.stacked(&name, count, n_ff.saturating_mul(2), d)? else { return Ok(None) };
    let biases = loader.stacked_vectors(&format!("{stem}.bias"), count, 2 * n_ff)?;
    let half = |start: usize| {
        let weights = both.iter().map(|both| loader.slice(both, &name, start, n_ff)).collect::<Result<Vec<_>>>()?;
        let biases = biases.as_ref().map(|all| all.iter().map(|bias| bias[start..start + n_ff].to_vec()).collect());
        Ok(with_biases(weights, biases))
    };
    Ok(Some([half(0)?, half(n_ff)?]))
}

/// The expert of layer `n` that every token uses, if there is one; its gate is a row, stored with or without its unit dimension.
fn shared_expert(loader: &Loader<'_>, d: usize, n: usize) -> Result<Option<SharedExpert>> {
    let stem = |role: &str| format!("blk.{n}.ffn_{role}_shexp");
    let Some(n_ff) = loader.rows(&format!("{}.weight", stem("up"))) else { return Ok(None) };
    let gated = loader.has(&format!("{}.weight", stem("gate")));
    let gate_row = loader.optional_row(&format!("{}.weight", stem("gate_inp")), d)?;
    Ok(Some(SharedExpert {
        gate: gate_row.map(|weight| Linear { weight, bias: None }),
        ffn: FfnWeights {
            gate: gated.then(|| loader.linear(&stem("gate"), n_ff, d)).transpose()?,
            up: loader.linear(&stem("up"), n_ff, d)?,
            down: Down::Outputs(loader.linear(&stem("down"), d, n_ff)?),
        },
    }))
}

/// The FFN of layer `n`: a gated one, or an MoE one.
pub(super) fn ffn(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<Ffn> {
    // Some MoE models have dense layers in between.
    let has = |stem: &str| loader.has(&format!("blk.{n}.{stem}.weight"));
    let has_experts = || ["ffn_gate_inp", "ffn_up_exps", "ffn_gate_up_exps", "ffn_up.0"].into_iter().any(has);
    Ok(match &config.experts {
        Some(experts) if config.layers[n].n_ff == 0 || has_experts() => Ffn::Experts(moe(loader, config, experts, n)?),
        _ => Ffn::Dense(loader.dense_ffn(n, config, true)?),
    })
}

/// Refuses experts of layer `n` without gates, for architectures whose experts have them.
pub(super) fn check_gates(loader: &Loader<'_>, ffn: &Ffn, n: usize) -> Result<()> {
    let Ffn::Experts(moe) = ffn else { return Ok(()) };
    let missing = |stem: &str, expected: &str| Err(loader.missing_tensor(&format!("blk.{n}.{stem}.weight"), expected));
    if moe.experts.iter().any(|ffn| ffn.gate.is_none()) {
        return missing("ffn_gate_exps", "a gate of every expert");
    }
    if moe.shared.as_ref().is_some_and(|shared| shared.ffn.gate.is_none()) {
        return missing("ffn_gate_shexp", "a gate of the shared expert");
    }
    Ok(())
}

/// A layer of the usual shape: norms, attention, and a gated FFN or an MoE one.
pub(super) fn gated_layer(
    loader: &Loader<'_>,
    config: &ModelConfig,
    n: usize,
    stems: &[(NormSlot, &str)],
) -> Result<LayerWeights> {
    let ffn = ffn(loader, config, n)?;
    check_gates(loader, &ffn, n)?;
    let (norms, attention) = (norms(loader, config, n, stems)?, attention(loader, config, n)?);
    Ok(LayerWeights::new(norms, attention, ffn, loader.predictor(n, config)?))
}
