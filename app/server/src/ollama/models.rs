//! Model descriptions in this protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::format::rfc3339;
use crate::{model_library::LibraryEntry, served_model::ServedModel};
use thermocline_host::units;

/// `GET /api/version`
pub fn version() -> Value {
    json!({ "version": env!("CARGO_PKG_VERSION") })
}

/// Describes the open model for `GET /api/tags`.
pub fn entry(model: &ServedModel) -> Value {
    json!({
        "name": model.name,
        "model": model.name,
        "modified_at": opened(model),
        "size": model.engine.memory().weights,
        "digest": digest(&model.name),
        "details": details_of(model),
    })
}

/// Describes a model in a folder.
pub fn library_entry(entry: &LibraryEntry) -> Value {
    json!({
        "name": entry.name,
        "model": entry.name,
        "modified_at": changed(entry),
        "size": entry.card.bytes,
        "digest": digest(&entry.name),
        "details": details_in(entry),
    })
}

/// Describes the open model for `GET /api/ps`: its entry, its use of VRAM, and how long it is kept.
pub fn running(model: &ServedModel, keep: Duration) -> Value {
    let mut entry = entry(model);
    entry["size_vram"] = model.engine.vram_budget().unwrap_or(0).into();
    entry["context_length"] = model.engine.context().into();
    entry["expires_at"] = rfc3339(SystemTime::now() + keep).into();
    entry
}

/// `POST /api/show` for the open model.
pub fn show(model: &ServedModel) -> Value {
    let (config, template) = (model.engine.config(), model.engine.chat_template());
    let sizes = [model.engine.context(), config.d_model, config.n_layer()];
    let info = model_info(&config.architecture, parameters(model), sizes);
    let mut shown = shown(template.source(), opened(model), details_of(model), info);
    if config.embeds_only() {
        shown["capabilities"] = json!(["embedding"]);
    } else if model.engine.tower().is_some() {
        shown["capabilities"] = json!(["completion", "tools", "embedding", "vision"]);
    }
    shown
}

/// `POST /api/show` for a model in a folder.
pub fn show_entry(entry: &LibraryEntry) -> Value {
    let card = &entry.card;
    let mut info = model_info(&card.architecture, card.parameters, [card.context, 0, card.layers]);
    if let Some(info) = info.as_object_mut() {
        info.retain(|_, value| *value != 0);
    }
    shown("", changed(entry), details_in(entry), info)
}

fn model_info(architecture: &str, parameters: u64, sizes: [usize; 3]) -> Value {
    let mut info = json!({ "general.architecture": architecture, "general.parameter_count": parameters });
    for (name, value) in ["context_length", "embedding_length", "block_count"].into_iter().zip(sizes) {
        info[format!("{architecture}.{name}")] = value.into();
    }
    info
}

fn shown(template: &str, modified: String, details: Value, info: Value) -> Value {
    json!({
        "modelfile": "",
        "parameters": "",
        "template": template,
        "modified_at": modified,
        "details": details,
        "model_info": info,
        "capabilities": ["completion", "tools", "embedding"],
    })
}

fn digest(name: &str) -> String {
    Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn details_of(model: &ServedModel) -> Value {
    let weight_type = model.engine.model().weights.output.weight.ty().to_string();
    details(&model.engine.config().architecture, parameters(model), weight_type)
}

fn details_in(entry: &LibraryEntry) -> Value {
    details(&entry.card.architecture, entry.card.parameters, entry.card.weight_type.to_string())
}

fn details(architecture: &str, parameters: u64, weight_type: String) -> Value {
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": architecture,
        "families": [architecture],
        "parameter_size": units::parameters(parameters),
        "quantization_level": weight_type,
    })
}

/// Number of parameters in the model's file.
fn parameters(model: &ServedModel) -> u64 {
    model.engine.model().checkpoint.tensors().iter().map(|tensor| tensor.len() as u64).sum()
}

fn opened(model: &ServedModel) -> String {
    rfc3339(UNIX_EPOCH + Duration::from_secs(model.since))
}

fn changed(entry: &LibraryEntry) -> String {
    rfc3339(entry.path.metadata().and_then(|data| data.modified()).unwrap_or(UNIX_EPOCH))
}
