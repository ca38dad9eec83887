//! Qwen3-Next and Qwen 3.5, dense and MoE. Three of four layers mix tokens with a gated delta net
//! after a short convolution. Every fourth layer has attention with gated heads, of which a quarter
//! is rotated.
//!
//! GGUF keeps queries, keys and values of a delta net in one matrix, and the gate of its outputs in
//! another. Hugging Face keeps them in groups per key head (Qwen3-Next). In GGUF files of Qwen 3.5,
//! value heads are ordered by their index within their key head's group.

use std::sync::Arc;

use super::prelude::*;
use crate::recurrent::{DeltaNetConfig, DeltaNetWeights};
use thermocline_cpu::ops::DeltaNetShape;

pub(super) const FAMILY: Family = Family {
    architectures: &["qwen35", "qwen35moe", "qwen3next"],
    model_types: &["qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"],
    config,
    layer,
    import,
};

/// Interval of layers with attention, for files that do not say.
const INTERVAL: usize = 4;
/// Largest accepted number of taps of a convolution, and of heads and their elements.
const MOST_TAPS: usize = 64;
const LARGEST: usize = 1 << 16;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    loader.rope_sections(&mut config, true)?;
    config.experts = loader.experts(Router::softmax(true), |_| 0)?;
    if loader.arch.ends_with("moe") && config.experts.is_none() {
        return Err(loader.key_error("expert_count", "at least one expert", 0));
    }
    let delta_net = delta_net(loader)?;
    let [with_attention, with_delta_net] = [false, true].map(|recurrent| Arc::from(steps(recurrent)));
    for (layer, recurrent) in config.layers.iter_mut().zip(recurrent_layers(loader, sizes.n_layer)?) {
        if recurrent {
            (layer.attention, layer.recurrent) = (None, Some(delta_net.clone()));
            layer.steps = Arc::clone(&with_delta_net);
        } else {
            layer.steps = Arc::clone(&with_attention);
        }
    }
    config.attentions_mut().for_each(|attention| attention.gate = Some(HeadGates::InQueries));
    Ok(config)
}

/// Reads the sizes of the delta nets and checks them against each other.
fn delta_net(loader: &Loader<'_>) -> Result<RecurrentConfig> {
    let size = |key: &str, most: usize| loader.required_size(key, 1..=most);
    let taps = size("ssm.conv_kernel", MOST_TAPS)?;
    let (k_heads, k_dim) = (size("ssm.group_count", LARGEST)?, size("ssm.state_size", LARGEST)?);
    let (v_heads, values) = (size("ssm.time_step_rank", LARGEST)?, size("ssm.inner_size", LARGEST * LARGEST)?);
    if !v_heads.is_multiple_of(k_heads) {
        return Err(loader.key_error("ssm.time_step_rank", format!("a multiple of group_count {k_heads}"), v_heads));
    }
    if !values.is_multiple_of(v_heads) {
        return Err(loader.key_error("ssm.inner_size", format!("a multiple of time_step_rank {v_heads}"), values));
    }
    let interleaved = loader.arch != "qwen3next";
    let shape = DeltaNetShape { k_heads, v_heads, k_dim, v_dim: values / v_heads, interleaved };
    Ok(RecurrentConfig::DeltaNet(DeltaNetConfig { shape, taps }))
}

/// Returns, per layer, whether it has a delta net.
fn recurrent_layers(loader: &Loader<'_>, n_layer: usize) -> Result<Vec<bool>> {
    if let Some(flags) = loader.layer_flags("attention.recurrent_layers", n_layer)? {
        return Ok(flags);
    }
    let interval = loader.size("full_attention_interval", 1..=usize::MAX)?.unwrap_or(INTERVAL);
    Ok((1..=n_layer).map(|n| !n.is_multiple_of(interval)).collect())
}

fn steps(recurrent: bool) -> Vec<Step> {
    let mut steps = Step::sequential();
    if recurrent {
        steps[1] = Step::Recurrent { from: Register::Normed };
    }
    steps
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let stems = [(NormSlot::Attention, "attn_norm"), (NormSlot::Ffn, "post_attention_norm")];
    let (norms, ffn) = (norms(loader, config, n, &stems)?, ffn(loader, config, n)?);
    let predictor = loader.predictor(n, config)?;
    let Some(RecurrentConfig::DeltaNet(of)) = &config.layers[n].recurrent else {
        return Ok(LayerWeights::new(norms, attention(loader, config, n)?, ffn, predictor));
    };
    let mut layer = LayerWeights::new(norms, None::<AttentionWeights>, ffn, predictor);
    layer.recurrent = Some(RecurrentWeights::DeltaNet(Box::new(delta_net_weights(loader, config, of, n)?)));
    Ok(layer)
}

fn delta_net_weights(
    loader: &Loader<'_>,
    config: &ModelConfig,
    DeltaNetConfig { shape, taps }: &DeltaNetConfig,
    n: usize,
) -> Result<DeltaNetWeights> {
    let (d, heads) = (config.d_model, shape.v_heads);
    let stem = |role: &str| format!("blk.{n}.{role}");
    let qkv = loader.linear(&stem("attn_qkv"), shape.qkv(), d)?;
    let gate = loader.linear(&stem("attn_gate"), shape.values(), d)?;
    let both = stem("ssm_ba");
    let [alpha, beta] = match loader.has(&format!("{both}.weight")) {
        true => decays_and_rates(loader, &both, shape, d)?,
        false => [loader.linear(&stem("ssm_alpha"), heads, d)?, loader.linear(&stem("ssm_beta"), heads, d)?],
    };
    Ok(DeltaNetWeights {
        qkv,
        gate,
        alpha,
        beta,
        conv: load_short_conv(loader, &stem("ssm_conv1d"), shape.qkv(), *taps)?,
        a: loader.vector(&stem("ssm_a"), heads)?,
        dt_bias: loader.vector(&stem("ssm_dt.bias"), heads)?,
        norm: loader.norm(&stem("ssm_norm"), NormKind::Rms, shape.v_dim)?,
        output: loader.linear(&stem("ssm_out"), d, shape.values())?,
    })
}

/// Splits decays and rates, which alternate by key head in one matrix, rates first.
fn decays_and_rates(loader: &Loader<'_>, stem: &str, shape: &DeltaNetShape, d: usize) -> Result<[Linear; 2]> {
    let name = format!("{stem}.weight");
    let both = loader.matrix(&name, 2 * shape.v_heads, d)?;
    let group = shape.v_heads / shape.k_heads;
    let half = |second: usize| {
        let rows = (0..shape.v_heads).map(|head| (2 * (head / group) + second) * group + head % group);
        let bytes: Vec<u8> = rows.flat_map(|row| both.row(row)).copied().collect();
        let matrix = Matrix::new(both.ty(), shape.v_heads, d, Bytes::new(bytes));
        let weight = matrix.ok_or_else(|| loader.missing_tensor(&name, "whole rows"))?;
        Ok(Linear { weight: weight.with_factor(both.factor()), bias: None })
    };
    Ok([half(1)?, half(0)?])
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let next = hf.model_type() == "qwen3_next";
    let arch = match hf.usize(&["num_experts"])?.unwrap_or(0) {
        _ if next => "qwen3next",
        0 => "qwen35",
        _ => "qwen35moe",
    };
    hf.refuse_unless("attn_output_gate", true, "attention without gates")?;
    hf.silu_only("hidden_act", "delta nets with another activation")?;
    let sizes = draft.common_of_width(hf, arch, hf.or_default(&["intermediate_size"], 0)?)?;
    draft.rope(hf, &sizes, 10_000.0)?;
    if !next {
        draft.rope_sections(hf, &sizes, RopeSections { pairs: [11, 11, 10], interleaved: true })?;
    }
    draft.activation(hf.activation(&["hidden_act"], Activation::Silu)?);
    let interval = hf.or_default(&["full_attention_interval"], INTERVAL)?.max(1);
    let mut recurrent = match hf.layers_of_type("linear_attention", &["full_attention"], sizes.n_layer)? {
        Some(recurrent) => recurrent,
        None => (1..=sizes.n_layer).map(|n| !n.is_multiple_of(interval)).collect(),
    };
    recurrent.push(false);
    draft.set_with_draft_layer("attention.recurrent_layers", Array::Bool(recurrent));
    if arch != "qwen35" {
        draft.experts(hf, &["num_experts"], &["num_experts_per_tok"], &["moe_intermediate_size"])?;
        if let Some(n_ff) = hf.usize(&["shared_expert_intermediate_size"])? {
            draft.set_size("expert_shared_feed_forward_length", n_ff)?;
        }
        draft.set("expert_weights_norm", Value::Bool(hf.bool(&["norm_topk_prob"])?.unwrap_or(true)));
    }
    let heads = HfHeads::new(hf, next)?;
    draft.set_size("ssm.conv_kernel", hf.or_default(&["linear_conv_kernel_dim"], 4)?)?;
    draft.set_size("ssm.state_size", heads.k_dim)?;
    draft.set_size("ssm.group_count", heads.k_heads)?;
    draft.set_size("ssm.time_step_rank", heads.v_heads)?;
    draft.set_size("ssm.inner_size", heads.v_heads * heads.v_dim)?;
    let naming = &mut draft.naming;
    naming.llama_like();
    for (hf, gguf) in [
        ("model.norm", "output_norm"),
        ("model.layers.*.input_layernorm", "blk.*.attn_norm"),
        ("model.layers.*.post_attention_layernorm", "blk.*.post_attention_norm"),
        ("model.layers.*.self_attn.q_norm", "blk.*.attn_q_norm"),
        ("model.layers.*.self_attn.k_norm", "blk.*.attn_k_norm"),
    ] {
        naming.set(hf, gguf, Transform::AddOne);
    }
    naming.mlp_experts();
    naming.shared_expert("mlp.shared_expert");
    naming.set("model.layers.*.mlp.shared_expert_gate", "blk.*.ffn_gate_inp_shexp", Transform::Flatten);
    naming.stacked_experts("mlp.experts", &Transform::None);
    for (hf, gguf, transform) in heads.tensors() {
        naming.whole(format!("model.layers.*.linear_attn.{hf}"), format!("blk.*.{gguf}"), transform);
    }
    draft_head(naming, sizes.n_layer);
    Ok(())
}

/// Adds the names of the draft head, whose layer is number `n`.
fn draft_head(naming: &mut Naming, n: usize) {
    naming.draft_head(&Transform::AddOne);
    let layer = format!("model.layers.{n}.");
    for (hf, part) in [
        ("mtp.fc.", "eh_proj."),
        ("mtp.pre_fc_norm_embedding.", "enorm."),
        ("mtp.pre_fc_norm_hidden.", "hnorm."),
        ("mtp.norm.", "shared_head.norm."),
        ("mtp.embed_tokens.", "embed_tokens."),
        ("mtp.layers.0.", ""),
    ] {
        naming.alias(hf, format!("{layer}{part}"));
    }
}

/// Heads of the delta nets in a folder.
struct HfHeads {
    k_heads: usize,
    v_heads: usize,
    k_dim: usize,
    v_dim: usize,
    /// True for Qwen3-Next: tensors are in groups per key head, and heads keep their order.
    grouped: bool,
}

impl HfHeads {
    fn new(hf: &HfConfig, grouped: bool) -> Result<Self> {
        let size = |name: &str| match hf.size(&[name])? {
            size if size <= LARGEST => Ok(size),
            size => Err(hf.error(name, format!("a number from 1 to {LARGEST}"), size)),
        };
        let (k_heads, v_heads) = (size("linear_num_key_heads")?, size("linear_num_value_heads")?);
        if !v_heads.is_multiple_of(k_heads) {
            return Err(hf.error("linear_num_value_heads", format!("a multiple of {k_heads}"), v_heads));
        }
        let (k_dim, v_dim) = (size("linear_key_head_dim")?, size("linear_value_head_dim")?);
        Ok(HfHeads { k_heads, v_heads, k_dim, v_dim, grouped })
    }

    /// Returns the names under `linear_attn`, the GGUF names, and the transformations between them.
    fn tensors(&self) -> Vec<(&'static str, &'static str, Transform)> {
        let (keys, values) = (self.k_heads * self.k_dim, self.v_heads * self.v_dim);
        let (qkv, by_value) = (2 * keys + values, Arc::new(self.by_value(0, self.v_dim)));
        let by_head = Arc::new(self.by_value(0, 1));
        let mut tensors = vec![
            ("A_log", "ssm_a", Transform::Decay(Arc::clone(&by_head))),
            ("dt_bias", "ssm_dt.bias", Transform::Rows(Arc::clone(&by_head))),
            ("norm.weight", "ssm_norm.weight", Transform::None),
            ("out_proj.weight", "ssm_out.weight", Transform::Columns(Arc::clone(&by_value))),
        ];
        let with_keys = Arc::new(self.by_value(2 * keys, self.v_dim));
        tensors.push(("conv1d.weight", "ssm_conv1d.weight", Transform::Rows(Arc::clone(&with_keys))));
        if self.grouped {
            let group = values / self.k_heads;
            let all = 2 * self.k_dim + 2 * group;
            let of = |first: usize, rows: usize| (0..self.k_heads).map(move |head| (head * all + first, rows));
            let (q, k) = (of(0, self.k_dim), of(self.k_dim, self.k_dim));
            let (v, z) = (of(2 * self.k_dim, group), of(2 * self.k_dim + group, group));
            let rows = qkv + values;
            let (qkv, z) = (Gather::new(rows, q.chain(k).chain(v)), Gather::new(rows, z));
            tensors.extend([
                ("in_proj_qkvz.weight", "attn_qkv.weight", Transform::Rows(Arc::new(qkv))),
                ("in_proj_qkvz.weight", "attn_gate.weight", Transform::Rows(Arc::new(z))),
                ("in_proj_ba.weight", "ssm_ba.weight", Transform::None),
            ]);
        } else {
            tensors.extend([
                ("in_proj_qkv.weight", "attn_qkv.weight", Transform::Rows(with_keys)),
                ("in_proj_z.weight", "attn_gate.weight", Transform::Rows(by_value)),
                ("in_proj_a.weight", "ssm_alpha.weight", Transform::Rows(Arc::clone(&by_head))),
                ("in_proj_b.weight", "ssm_beta.weight", Transform::Rows(by_head)),
            ]);
        }
        tensors
    }

    /// Reorders value heads of `rows` rows each into GGUF's order, after the first `before` rows.
    fn by_value(&self, before: usize, rows: usize) -> Gather {
        let group = self.v_heads / self.k_heads;
        let source = |head: usize| match self.grouped {
            true => head,
            false => head % self.k_heads * group + head / self.k_heads,
        };
        let heads = (0..self.v_heads).map(|head| (before + source(head) * rows, rows));
        let first = (before > 0).then_some((0, before));
        Gather::new(before + self.v_heads * rows, first.into_iter().chain(heads))
    }
}
