//! OPT: learned positions with an offset of 2, biases everywhere, layer norms before each block, an
//! ungated ReLU FFN and a tied head. GGUF keys and names are PowerInfer's (llama.cpp does not
//! support the architecture).
//!
//! OPT 350M instead norms the residual stream after each block, and maps narrower embeddings to the
//! stream and back. The second norm of its last layer is then the final norm. Galactica's norms
//! have no weights.

use super::prelude::*;
use crate::Position;

pub(super) const FAMILY: Family = Family { architectures: &["opt"], model_types: &["opt"], config, layer, import };

/// The first rows of the position table belong to padding.
const POSITION_OFFSET: usize = 2;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Layer, RopeOrder::NeoX)?;
    config.position = Position::Learned { offset: POSITION_OFFSET };
    config.ropes.clear();
    config.attentions_mut().for_each(|attention| attention.positions.rope = None);
    config.activation = loader.activation(Activation::Relu)?;
    if norms_after(loader)? {
        config.set_steps(steps_of_norms_after());
        if let Some(last) = config.layers.last_mut() {
            last.steps = last.steps[..last.steps.len() - 1].into();
        }
    }
    Ok(config)
}

/// This engine's own key for norms after attention and FFN instead of before them.
const NORMS_AFTER: &str = "attention.norms_after";

fn norms_after(loader: &Loader<'_>) -> Result<bool> {
    Ok(loader.flag(NORMS_AFTER)?.unwrap_or(false))
}

fn steps_of_norms_after() -> Vec<Step> {
    use Register::Residual;
    vec![
        Step::Attention { from: Residual },
        Step::AddOut,
        Step::Norm { norm: NormSlot::Attention, from: Residual, into: Residual },
        Step::Ffn { from: Residual },
        Step::AddOut,
        Step::Norm { norm: NormSlot::Ffn, from: Residual, into: Residual },
    ]
}

/// Reads the table of learned positions and limits the context to its rows. `None` for other kinds
/// of positions.
pub(super) fn position_embedding(loader: &Loader<'_>, config: &mut ModelConfig) -> Result<Option<Matrix>> {
    let Position::Learned { offset } = config.position else { return Ok(None) };
    let name = "position_embd.weight";
    let rows = loader.rows(name).unwrap_or(0);
    if rows <= offset {
        return Err(loader.missing_tensor(name, format!("more than {offset} rows")));
    }
    // PowerInfer's files count the padding rows as context.
    config.context_length = config.context_length.min(rows - offset);
    loader.matrix(name, rows, config.d_model).map(Some)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let last = norms_after(loader)? && n + 1 == config.n_layer();
    ungated_layer(loader, config, n, if last { &USUAL_NORMS[..1] } else { USUAL_NORMS })
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let after = hf.bool(&["do_layer_norm_before"])? == Some(false);
    hf.refuse_unless("_remove_final_layer_norm", false, "OPT without a final norm")?;
    let sizes = draft.common(hf, "opt")?;
    let width = hf.size(&["hidden_size"])?;
    draft.own_head = hf.usize(&["word_embed_proj_dim"])?.is_some_and(|narrow| narrow != width);
    draft.set(NORMS_AFTER, Value::Bool(after));
    draft.set("attention.layer_norm_epsilon", Value::F32(hf.f32(&["layer_norm_eps"])?.unwrap_or(1e-5)));
    draft.activation(hf.activation(&["activation_function"], Activation::Relu)?);
    draft.tied = true;
    let naming = &mut draft.naming;
    naming.add("model.decoder.embed_tokens", "token_embd");
    naming.add("model.decoder.embed_positions", "position_embd");
    naming.add("model.decoder.final_layer_norm", "output_norm");
    naming.add("lm_head", "output");
    for (hf, gguf) in [
        ("self_attn_layer_norm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.out_proj", "attn_output"),
        ("final_layer_norm", "ffn_norm"),
        ("fc1", "ffn_up"),
        ("fc2", "ffn_down"),
    ] {
        naming.add(format!("model.decoder.layers.*.{hf}"), format!("blk.*.{gguf}"));
    }
    if after {
        let last = sizes.n_layer - 1;
        for which in ["weight", "bias"] {
            let (hf, gguf) =
                (format!("model.decoder.layers.{last}.final_layer_norm.{which}"), format!("output_norm.{which}"));
            naming.exact(hf, gguf);
        }
    }
    if hf.bool(&["layer_norm_elementwise_affine"])? == Some(false) {
        let norms = (0..sizes.n_layer).flat_map(|n| [format!("blk.{n}.attn_norm"), format!("blk.{n}.ffn_norm")]);
        let last = if after { sizes.n_layer * 2 - 1 } else { sizes.n_layer * 2 };
        draft.norms_of_ones(hf, width, norms.take(last).chain(["output_norm".to_owned()]))?;
    }
    // Older checkpoints lack the leading `model.`.
    draft.naming.alias("decoder.", "model.decoder.");
    Ok(())
}
