//! What sentence-transformers keeps beside a model that embeds or ranks texts: pooling, linear maps
//! and prompts. Also the classifier of rerankers that answer a question with yes or no.

use std::{path::Path, sync::Arc};

use serde_json::Value as Json;

use super::{Draft, Gather, HfConfig, Transform};
use crate::{Pooling, RANK};
use thermocline_base::error::{Error, Location, Result};
use thermocline_formats::format::{Array, DenseModule, Metadata, SentenceModules, Tensor, Value};
use thermocline_text::Tokenizer;

/// Keys of this engine for prompts: their names, their texts, and the name of the default one.
const PROMPT_NAMES: &str = "thermocline.embedding.prompt_names";
const PROMPTS: &str = "thermocline.embedding.prompts";
const DEFAULT_PROMPT: &str = "thermocline.embedding.default_prompt";

/// Fills in the keys and tensors of `modules`.
pub(super) fn add(draft: &mut Draft, path: &Path, modules: SentenceModules) -> Result<()> {
    if let Some(pooling) = &modules.pooling {
        if draft.keys.get(&draft.key("pooling_type")).is_none() {
            draft.set("pooling_type", Value::U32(pooling_of(path, pooling)?.number()));
        }
        draft.headless = true;
    }
    for (n, DenseModule { config, tensors }) in (2..).zip(modules.dense) {
        if n > 3 {
            return Err(Error::unsupported("linear maps after the pooling", "three or more", "up to two"));
        }
        let activation = config.get("activation_function").and_then(Json::as_str).unwrap_or("Identity");
        if !activation.ends_with("Identity") {
            return Err(Error::unsupported("activation after the pooling", activation, "Identity"));
        }
        for tensor in tensors {
            if let Some(last @ ("weight" | "bias")) = tensor.name.strip_prefix("linear.") {
                draft.made.push(Tensor { name: format!("dense_{n}.{last}"), ..tensor });
            }
        }
    }
    let prompts = modules.config.get("prompts").and_then(Json::as_object).into_iter().flatten();
    let texts = prompts.filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned())));
    let (names, texts): (Vec<String>, Vec<String>) = texts.unzip();
    if texts.iter().any(|text| !text.is_empty()) {
        draft.keys.set(PROMPT_NAMES, Value::Array(Array::String(names)));
        draft.keys.set(PROMPTS, Value::Array(Array::String(texts)));
    }
    if let Some(name) = modules.config.get("default_prompt_name").and_then(Json::as_str) {
        draft.keys.set(DEFAULT_PROMPT, Value::String(name.to_owned()));
    }
    Ok(())
}

/// Reads the pooling, which the file names, or marks by flags.
fn pooling_of(path: &Path, config: &Json) -> Result<Pooling> {
    let flags = [
        ("pooling_mode_cls_token", "cls"),
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_lasttoken", "lasttoken"),
        ("pooling_mode_max_tokens", "max"),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
        ("pooling_mode_weightedmean_tokens", "weightedmean"),
    ];
    let set = |(flag, _): &&(&str, &str)| config.get(*flag).and_then(Json::as_bool) == Some(true);
    let mut names: Vec<&str> = flags.iter().filter(set).map(|(_, name)| *name).collect();
    match config.get("pooling_mode") {
        Some(Json::Array(all)) => names.extend(all.iter().filter_map(Json::as_str)),
        one => names.extend(one.and_then(Json::as_str)),
    }
    if config.get("include_prompt").and_then(Json::as_bool) == Some(false) {
        return Err(Error::unsupported("pooling", "include_prompt = false", "pooling of all tokens"));
    }
    names.sort_unstable();
    names.dedup();
    match names[..] {
        ["mean"] | [] => Ok(Pooling::Mean),
        ["cls"] => Ok(Pooling::First),
        ["lasttoken"] => Ok(Pooling::Last),
        _ => {
            let location = Location::Key("pooling_mode".to_owned());
            let expected = "one of mean, cls and lasttoken";
            Err(Error::malformed(path.join("1_Pooling/config.json"), location, expected, names.join(" and ")))
        }
    }
}

/// Gives a reranker of the Qwen 3 family its classifier: the rows of the head for the answers `yes`
/// and `no`. The configuration does not tell rerankers from other models; their names do.
pub(super) fn rank_by_answer(draft: &mut Draft, hf: &HfConfig, tokenizer: Option<&str>, tied: bool) -> Result<()> {
    let name = hf.path().file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let Some(tokenizer) = tokenizer.filter(|_| hf.model_type() == "qwen3" && name.contains("rerank")) else {
        return Ok(());
    };
    let tokenizer = Tokenizer::from_json(tokenizer, &Json::Null, &Metadata::new(hf.path()))?;
    let (Some(yes), Some(no)) = (tokenizer.token_id("yes"), tokenizer.token_id("no")) else { return Ok(()) };
    let rows = [yes, no].map(|id| (id as usize, 1));
    let answers = Transform::Rows(Arc::new(Gather::new(hf.size(&["vocab_size"])?, rows)));
    let (head, gguf) = match tied {
        true => ("model.embed_tokens.weight", "token_embd.weight"),
        false => ("lm_head.weight", "output.weight"),
    };
    draft.naming.whole(head, gguf, Transform::None);
    draft.naming.whole(head, "cls.output.weight", answers);
    draft.set("pooling_type", Value::U32(RANK));
    Ok(())
}
