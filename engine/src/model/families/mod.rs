//! Architecture families, one file each: which GGUF keys and tensors they have, the program of a layer, and how a Hugging
//! Face folder of the family maps to GGUF's names. [`Family`] is what a file provides; everything else is shared.

mod falcon;
mod gemma;
mod llama;
mod opt;
mod phi3;
mod qwen;

use super::{
    AttentionWeights, ExpertWeights, Experts, Ffn, FfnWeights, LayerWeights, Linear, ModelConfig, Norm, NormSlot,
    Weights,
    import::{Draft, HfConfig},
    load::{Loader, Sizes},
};
use crate::{
    error::{Error, Result},
    format::Matrix,
};

/// One family of architectures.
pub(super) struct Family {
    /// GGUF's `general.architecture` values.
    pub(super) architectures: &'static [&'static str],
    /// Hugging Face's `model_type` values.
    pub(super) model_types: &'static [&'static str],
    /// Reads the configuration.
    pub(super) config: fn(&Loader<'_>, &Sizes) -> Result<ModelConfig>,
    /// Reads the weights of one layer.
    pub(super) layer: fn(&Loader<'_>, &ModelConfig, usize) -> Result<LayerWeights>,
    /// Writes GGUF keys for a `config.json` and says how its tensors are named.
    pub(super) import: fn(&HfConfig, &mut Draft) -> Result<()>,
}

/// Every family this engine runs.
const FAMILIES: &[&Family] =
    &[&llama::FAMILY, &qwen::FAMILY, &gemma::FAMILY, &phi3::FAMILY, &falcon::FAMILY, &opt::FAMILY];

/// The family of a GGUF architecture.
pub(super) fn by_architecture(name: &str) -> Result<&'static Family> {
    find(name, "architecture", |family| family.architectures)
}

/// The family of a Hugging Face `model_type`.
pub(super) fn by_model_type(name: &str) -> Result<&'static Family> {
    find(name, "model type", |family| family.model_types)
}

fn find(name: &str, what: &'static str, names: impl Fn(&Family) -> &'static [&'static str]) -> Result<&'static Family> {
    FAMILIES.iter().copied().find(|family| names(family).contains(&name)).ok_or_else(|| Error::Unsupported {
        what,
        got: name.to_owned(),
        supported: FAMILIES.iter().flat_map(|family| names(family)).copied().collect::<Vec<_>>().join(", "),
    })
}

/// Reads all weights of a model whose configuration is `config`.
pub(super) fn weights(loader: &Loader<'_>, config: &mut ModelConfig, family: &Family) -> Result<Weights> {
    let (d, n_vocab) = (config.d_model, config.n_vocab);
    let token_embedding = loader.matrix("token_embd.weight", n_vocab, d)?;
    let position_embedding = opt::position_embedding(loader, config)?;
    let layers = (0..config.n_layer()).map(|n| (family.layer)(loader, config, n)).collect::<Result<Vec<_>>>()?;
    let output_norm = loader.norm("output_norm", config.norm, d)?;
    let tied = loader.find("output.weight").is_none();
    let output = if tied {
        let bias = loader.optional_vector("output.bias", n_vocab)?;
        Linear { weight: token_embedding.clone(), bias }
    } else {
        loader.linear("output", n_vocab, d)?
    };
    Ok(Weights { token_embedding, position_embedding, layers, output_norm, output, tied })
}

/// Norms of layer `n` by slot and tensor stem (`blk.{n}.{stem}`).
fn norms(
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
const USUAL_NORMS: &[(NormSlot, &str)] = &[(NormSlot::Attention, "attn_norm"), (NormSlot::Ffn, "ffn_norm")];

/// Attention of layer `n`, whether q, k and v are tensors of their own or one `attn_qkv` (all q, then k, then v).
fn attention(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<AttentionWeights> {
    let (d, q_dim, kv_dim) = (config.d_model, config.n_head * config.head_dim, config.kv_dim());
    let fused = format!("blk.{n}.attn_qkv");
    let [q, k, v] = if loader.find(&format!("{fused}.weight")).is_some() {
        split(loader, &fused, d, [q_dim, kv_dim, kv_dim])?
    } else {
        [
            loader.linear(&format!("blk.{n}.attn_q"), q_dim, d)?,
            loader.linear(&format!("blk.{n}.attn_k"), kv_dim, d)?,
            loader.linear(&format!("blk.{n}.attn_v"), kv_dim, d)?,
        ]
    };
    let head_norm =
        |which: &str| loader.optional_norm(&format!("blk.{n}.attn_{which}_norm"), config.norm, config.head_dim);
    Ok(AttentionWeights {
        q,
        k,
        v,
        output: loader.linear(&format!("blk.{n}.attn_output"), d, q_dim)?,
        q_norm: head_norm("q")?,
        k_norm: head_norm("k")?,
    })
}

/// The linear maps stacked in `{stem}.weight`, `rows[i]` rows each, sharing its data.
fn split<const N: usize>(loader: &Loader<'_>, stem: &str, cols: usize, rows: [usize; N]) -> Result<[Linear; N]> {
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

/// The mixture of layer `n`: experts stacked (`ffn_up_exps`) or, in older files, one by one (`ffn_up.3`).
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
    let ffn = |((gate, up), down)| FfnWeights {
        gate: Some(plain(gate)),
        up: plain(up),
        down: super::Down::Outputs(plain(down)),
    };
    Ok(ExpertWeights {
        router: loader.linear(&format!("blk.{n}.ffn_gate_inp"), count, d)?,
        experts: gates.into_iter().zip(ups).zip(downs).map(ffn).collect(),
        shared: None,
        file_down: Vec::new(),
    })
}

/// A layer of the usual shape: `norms`, attention, and a gated FFN or a mixture of them.
fn gated_layer(
    loader: &Loader<'_>,
    config: &ModelConfig,
    n: usize,
    stems: &[(NormSlot, &str)],
) -> Result<LayerWeights> {
    let ffn = match &config.experts {
        // Some mixtures have dense layers in between.
        Some(experts) if config.n_ff == 0 || loader.find(&format!("blk.{n}.ffn_gate_inp.weight")).is_some() => {
            Ffn::Experts(expert_ffns(loader, config, experts, n)?)
        }
        _ => Ffn::Dense(loader.dense_ffn(n, config, true)?),
    };
    Ok(LayerWeights {
        norms: norms(loader, config, n, stems)?,
        attention: attention(loader, config, n)?,
        ffn,
        predictor: loader.predictor(n, config)?,
        cut: None,
        frequency: None,
        neuron_frequency: None,
    })
}
