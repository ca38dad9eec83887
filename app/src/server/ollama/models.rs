//! Facts about the open model, as this protocol tells them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::format::rfc3339;
use crate::{server::served_model::ServedModel, units};

/// `GET /api/version`
pub fn version() -> Value {
    json!({ "version": env!("CARGO_PKG_VERSION") })
}

/// `GET /api/tags`: the model, if one is open.
pub fn model_list(model: Option<&ServedModel>) -> Value {
    json!({ "models": model.map(entry).into_iter().collect::<Vec<_>>() })
}

/// `GET /api/ps`: the same with its use of VRAM.
pub fn running(model: Option<&ServedModel>) -> Value {
    let running = model.map(|model| {
        let mut entry = entry(model);
        entry["size_vram"] = model.engine.vram_budget().unwrap_or(0).into();
        entry["context_length"] = model.engine.context().into();
        // It stays as long as the server runs.
        entry["expires_at"] = rfc3339(SystemTime::now() + Duration::from_secs(365 * 24 * 3600)).into();
        entry
    });
    json!({ "models": running.into_iter().collect::<Vec<_>>() })
}

/// `POST /api/show`
pub fn show(model: &ServedModel) -> Value {
    let (config, template) = (model.engine.config(), model.engine.chat_template());
    let architecture = &config.architecture;
    let key = |name: &str| format!("{architecture}.{name}");
    let mut info = json!({ "general.architecture": architecture, "general.parameter_count": parameters(model) });
    for (name, value) in [
        ("context_length", model.engine.context()),
        ("embedding_length", config.d_model),
        ("block_count", config.n_layer()),
    ] {
        info[key(name)] = value.into();
    }
    json!({
        "modelfile": "",
        "parameters": "",
        "template": template.source(),
        "modified_at": opened(model),
        "details": details(model),
        "model_info": info,
        "capabilities": ["completion", "tools"],
    })
}

fn entry(model: &ServedModel) -> Value {
    let digest = Sha256::digest(model.name.as_bytes());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "name": model.name,
        "model": model.name,
        "modified_at": opened(model),
        "size": model.engine.memory().weights,
        "digest": digest,
        "details": details(model),
    })
}

fn details(model: &ServedModel) -> Value {
    let config = model.engine.config();
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": config.architecture,
        "families": [config.architecture],
        "parameter_size": units::parameters(parameters(model)),
        "quantization_level": model.engine.model().weights.output.weight.ty().to_string(),
    })
}

/// Weights of the model's file.
fn parameters(model: &ServedModel) -> u64 {
    model.engine.model().checkpoint.tensors().iter().map(|tensor| tensor.len() as u64).sum()
}

fn opened(model: &ServedModel) -> String {
    rfc3339(UNIX_EPOCH + Duration::from_secs(model.since))
}
