//! BERT and its descendants, which embed and rank texts: norms after attention and FFN, layer norms
//! with biases, and a norm of the embeddings. Tokens read later tokens too. Variants differ in
//! positions and FFN:
//!
//! - BERT, RoBERTa and XLM-R have learned positions and an ungated GELU,
//! - Nomic BERT rotary ones and a gated SiLU, or experts without gates in every other layer,
//! - Jina v2 biases by distance (ALiBi) and a gated GELU,
//! - Jina v3 rotary positions and an ungated GELU.
//!
//! The norm after the last FFN is the model's final norm. GGUF drops the first rows of RoBERTa's
//! table of positions, which belong to padding.

use std::sync::Arc;

use super::prelude::*;
use crate::{KeyBias, Position, RANK};
use thermocline_base::error::Error;

pub(super) const FAMILY: Family = Family {
    architectures: &["bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3"],
    model_types: &["bert", "roberta", "xlm-roberta", "camembert", "nomic_bert", "jina_embeddings_v3"],
    config,
    layer,
    import,
};

/// Exponent of the steepest ALiBi slope, unless the file names it.
const ALIBI_MOST: f32 = 8.0;
/// Stem of the norm after the FFN.
const AFTER_FFN: &str = "layer_output_norm";

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Layer, RopeOrder::NeoX)?;
    config.activation = loader.activation(match loader.arch {
        "nomic-bert" => Activation::Silu,
        _ => Activation::GeluErf,
    })?;
    match loader.arch {
        "bert" => {
            config.position = Position::Learned { offset: 0 };
            without_rotation(&mut config);
        }
        "jina-bert-v2" => {
            without_rotation(&mut config);
            let most = loader.switchable("attention.max_alibi_bias")?.unwrap_or(ALIBI_MOST);
            for attention in config.attentions_mut() {
                attention.positions.key_bias = Some(KeyBias::by_distance(attention.heads.n_head, most));
            }
        }
        _ => {}
    }
    config.experts = loader.experts(Router::softmax(false), |_| sizes.n_ff)?;
    set_steps(&mut config);
    Ok(config)
}

fn without_rotation(config: &mut ModelConfig) {
    config.ropes.clear();
    config.attentions_mut().for_each(|attention| attention.positions.rope = None);
}

/// Norms follow the sums. The last norm of all is the final norm, which is no step.
fn set_steps(config: &mut ModelConfig) {
    use Register::Residual;
    let norm = |norm| Step::Norm { norm, from: Residual, into: Residual };
    config.set_steps(vec![
        Step::Attention { from: Residual },
        Step::AddOut,
        norm(NormSlot::PostAttention),
        Step::Ffn { from: Residual },
        Step::AddOut,
        norm(NormSlot::PostFfn),
    ]);
    if let Some(last) = config.layers.last_mut() {
        last.steps = last.steps[..last.steps.len() - 1].into();
    }
    embedding_norm_first(config);
}

/// Adds the norm of the embeddings to the first layer's program.
pub(super) fn embedding_norm_first(config: &mut ModelConfig) {
    if let Some(first) = config.layers.first_mut() {
        let norm = Step::Norm { norm: NormSlot::Embedding, from: Register::Residual, into: Register::Residual };
        first.steps = [norm].into_iter().chain(first.steps.iter().copied()).collect::<Arc<[Step]>>();
    }
}

/// Loads the norm of the embeddings, which the first layer has.
pub(super) fn embedding_norm(loader: &Loader<'_>, config: &ModelConfig) -> Result<(NormSlot, Norm)> {
    let slot = NormSlot::Embedding;
    Ok((slot, loader.norm_at(Some(slot), "token_embd_norm", config.norm, config.d_model)?))
}

/// Loads the final norm: the norm after the last layer's FFN.
pub(super) fn output_norm(loader: &Loader<'_>, config: &ModelConfig) -> Result<Norm> {
    let last = config.n_layer().saturating_sub(1);
    loader.norm(&format!("blk.{last}.{AFTER_FFN}"), config.norm, config.d_model)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let further = format!("blk.{n}.attn_norm_2.weight");
    if loader.has(&further) {
        return Err(Error::unsupported("norm of an encoder", further, "one norm after attention"));
    }
    let after = [(NormSlot::PostAttention, "attn_output_norm"), (NormSlot::PostFfn, AFTER_FFN)];
    let is_last = n + 1 == config.n_layer();
    let mut norms = norms(loader, config, n, if is_last { &after[..1] } else { &after })?;
    if n == 0 {
        norms.push(embedding_norm(loader, config)?);
    }
    let has = |stem: &str| loader.has(&format!("blk.{n}.{stem}.weight"));
    let ffn = match &config.experts {
        Some(experts) if has("ffn_gate_inp") => {
            Ffn::Experts(ExpertWeights::load(&config.layer_tensors(loader, n), experts)?)
        }
        _ => Ffn::Dense(dense(loader, config, n)?),
    };
    Ok(LayerWeights::new(norms, attention(loader, config, n)?, ffn, None))
}

/// Loads a dense FFN. Its gates are absent, in a matrix of their own, or the first rows of
/// `ffn_up`.
fn dense(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<FfnWeights> {
    let (d, n_ff) = (config.d_model, loader.dense_width(config, n)?);
    let up = format!("blk.{n}.ffn_up");
    if loader.rows(&format!("{up}.weight")) == Some(2 * n_ff) {
        let [gate, up] = Linear::split(loader, &up, d, [n_ff, n_ff])?;
        return Ok(FfnWeights {
            gate: Some(gate),
            up,
            down: loader.down(n, d, n_ff)?,
            bundled_gate: None,
            limit: None,
            gate_scales: None,
        });
    }
    // Without a file, the family decides.
    let gated = loader.has(&format!("blk.{n}.ffn_gate.weight"));
    loader.dense_ffn(n, config, gated)
}

/// How the tensors of a folder are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    /// `encoder.layer.N.attention.self.query` (BERT, RoBERTa, XLM-R)
    Bert,
    /// `encoder.layers.N.attn.Wqkv` (Nomic), or `mixer` in place of `attn` (Jina v3)
    Flash,
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let alibi = hf.str(&["position_embedding_type"])? == Some("alibi");
    let experts = hf.usize(&["num_experts"])?.unwrap_or(0);
    if experts > 0 {
        let got = format!("{experts} experts in a folder");
        return Err(Error::unsupported("Nomic BERT", got, "a model without experts, or its GGUF file"));
    }
    let (arch, names) = match hf.model_type() {
        "nomic_bert" => ("nomic-bert", Names::Flash),
        "jina_embeddings_v3" => ("jina-bert-v3", Names::Flash),
        _ if alibi => ("jina-bert-v2", Names::Bert),
        _ => ("bert", Names::Bert),
    };
    hf.refuse_unless("is_decoder", false, "BERT that generates text")?;
    hf.refuse_unless("prenorm", false, "Nomic BERT with norms before attention")?;
    let n_ff = hf.size(&["intermediate_size", "n_inner"])?;
    let sizes = draft.common_of_width(hf, arch, n_ff)?;
    draft.set("attention.causal", Value::Bool(false));
    let eps = hf.f32(&["layer_norm_eps", "layer_norm_epsilon"])?.unwrap_or(1e-12);
    draft.set("attention.layer_norm_epsilon", Value::F32(eps));
    draft.token_types(hf.or_default(&["type_vocab_size"], 2)?);
    let activation = if arch == "nomic-bert" { Activation::Silu } else { Activation::GeluErf };
    draft.activation(hf.activation(&["hidden_act", "activation_function"], activation)?);
    (draft.tied, draft.headless) = (true, true);
    match arch {
        "bert" => positions(hf, draft)?,
        "jina-bert-v2" => draft.set("attention.max_alibi_bias", Value::F32(ALIBI_MOST)),
        _ => {
            let base = if arch == "jina-bert-v3" { 20_000.0 } else { 1000.0 };
            draft.rope(hf, &sizes, base)?;
            if let Some(base) = hf.f32(&["rotary_emb_base"])? {
                draft.set("rope.freq_base", Value::F32(base));
            }
        }
    }
    name_tensors(draft, names, alibi);
    if alibi {
        // Here the gates are the last rows, not the first.
        let gates_first = Gather::new(n_ff.saturating_mul(2), [(n_ff, n_ff), (0, n_ff)]);
        let gates_first = Transform::Rows(Arc::new(gates_first));
        draft.naming.set("encoder.layer.*.mlp.up_gated_layer", "blk.*.ffn_up", gates_first);
    }
    name_classifier(hf, draft)
}

/// Names the table of positions. RoBERTa's first rows belong to padding.
fn positions(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let rows = hf.or_default(&["max_position_embeddings"], 512)?;
    let padding = match hf.model_type() {
        "bert" => 0,
        _ => hf.or_default(&["pad_token_id"], 1)? + 1,
    };
    if padding >= rows {
        return Err(hf.error("max_position_embeddings", format!("more than {padding}"), rows));
    }
    draft.set_size("context_length", rows - padding)?;
    let kept = Transform::Rows(Arc::new(Gather::new(rows, [(padding, rows - padding)])));
    let transform = if padding == 0 { Transform::None } else { kept };
    draft.naming.set("embeddings.position_embeddings", "position_embd", transform);
    Ok(())
}

fn name_tensors(draft: &mut Draft, names: Names, alibi: bool) {
    let naming = &mut draft.naming;
    for prefix in ["bert.", "roberta.", "nomic_bert.", "model."] {
        naming.alias(prefix, "");
    }
    naming.add("embeddings.word_embeddings", "token_embd");
    naming.add("embeddings.token_type_embeddings", "token_types");
    naming.add("embeddings.LayerNorm", "token_embd_norm");
    naming.add("emb_ln", "token_embd_norm");
    let layers: &[(&str, &str)] = match names {
        Names::Bert => &[
            ("attention.self.query", "attn_q"),
            ("attention.self.key", "attn_k"),
            ("attention.self.value", "attn_v"),
            ("attention.output.dense", "attn_output"),
            ("attention.output.LayerNorm", "attn_output_norm"),
            ("intermediate.dense", "ffn_up"),
            ("output.dense", "ffn_down"),
            ("output.LayerNorm", AFTER_FFN),
        ],
        Names::Flash => &[
            ("attn.Wqkv", "attn_qkv"),
            ("mixer.Wqkv", "attn_qkv"),
            ("attn.out_proj", "attn_output"),
            ("mixer.out_proj", "attn_output"),
            ("norm1", "attn_output_norm"),
            ("mlp.fc1", "ffn_up"),
            ("mlp.fc11", "ffn_up"),
            ("mlp.fc12", "ffn_gate"),
            ("mlp.fc2", "ffn_down"),
            ("norm2", AFTER_FFN),
        ],
    };
    let stem = if names == Names::Bert { "encoder.layer" } else { "encoder.layers" };
    let jina: &[(&str, &str)] = &[
        ("attention.self.layer_norm_q", "attn_q_norm"),
        ("attention.self.layer_norm_k", "attn_k_norm"),
        ("layer_norm_1", "attn_output_norm"),
        ("layer_norm_2", AFTER_FFN),
        ("mlp.gated_layers", "ffn_up"),
        ("mlp.down_layer", "ffn_down"),
        ("mlp.wo", "ffn_down"),
        ("mlp.layernorm", AFTER_FFN),
    ];
    for (hf, gguf) in layers.iter().chain(jina.iter().filter(|_| alibi)) {
        naming.add(format!("{stem}.*.{hf}"), format!("blk.*.{gguf}"));
    }
}

/// Names the classifier of a reranker.
fn name_classifier(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let classifies = |name: &&str| name.ends_with("ForSequenceClassification");
    if !hf.strings("architectures")?.is_some_and(|names| names.iter().any(classifies)) {
        return Ok(());
    }
    draft.set("pooling_type", Value::U32(RANK));
    let naming = &mut draft.naming;
    naming.add("pooler.dense", "cls");
    naming.add("classifier", "cls.output");
    naming.add("classifier.dense", "cls");
    naming.add("classifier.out_proj", "cls.output");
    Ok(())
}
