//! The engine's state, as `GET /v1/thermocline` reports it.

use serde_json::{Map, Value, json};
use thermocline_engine::session::DeviceStatus;

use super::{context::ServerContext, served_model::ServedModel};

/// Describes the state of the open model. Sizes are in bytes, rates in tokens per second.
pub fn engine_status(context: &ServerContext, model: &ServedModel) -> Value {
    let engine = &model.engine;
    let (now, sparsity, status) = (engine.telemetry(), engine.sparsity(), context.status());
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": {
            "id": model.name,
            "architecture": engine.config().architecture,
            "context_length": engine.context(),
            "chat_template": {
                "origin": engine.chat_template().origin().to_string(),
                "failure": engine.chat_template().origin().failure(),
            },
            "weight_bytes": engine.model().checkpoint.tensor_bytes(),
        },
        "draft_model": engine.draft_model().map(|draft| json!({
            "name": draft.config.name,
            "architecture": draft.config.architecture,
            "weight_bytes": draft.checkpoint.tensor_bytes(),
        })),
        "tokens_per_second": { "prompt": now.prompt_rate, "decode": now.decode_rate },
        "tokens": { "prompt": now.prompt_tokens, "reused": now.reused_tokens, "generated": now.generated_tokens },
        "memory": { "kv_bytes": now.kv_bytes, "most_kv_bytes": model.slot_bytes(status.slots), "scratch_bytes": now.scratch_bytes },
        "device": device_json(&engine.device()),
        "sparsity": { "asked": sparsity.asked.name(), "mode": sparsity.at_work.name(), "reason": sparsity.reason, "adaptive": engine.adaptive() },
        "slots": { "total": status.slots, "busy": status.busy },
        "requests": { "total": status.requests, "answering": status.answering, "waiting": status.waiting },
        "last_answer": context.last_answer(),
    })
}

fn device_json(status: &DeviceStatus) -> Value {
    match status {
        DeviceStatus::Cpu { reason } => json!({ "on": "cpu", "reason": reason.as_ref().map(ToString::to_string) }),
        DeviceStatus::Loading(stage) => {
            let (done, total) = stage.bytes();
            json!({ "on": "cpu", "loading": { "stage": stage.name(), "done": done, "total": total } })
        }
        DeviceStatus::Gpu(memory) => {
            let purposes = memory.by_purpose.iter().map(|(what, bytes)| (what.name().to_owned(), json!(bytes)));
            json!({
                "on": "gpu",
                "adapter": memory.adapter,
                "fallbacks": memory.fallbacks.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "vram": { "budget": memory.budget, "accounted": memory.accounted, "by_purpose": purposes.collect::<Map<_, _>>() },
            })
        }
        DeviceStatus::Lost { adapter, reason } => json!({ "on": "cpu", "lost": adapter, "reason": reason }),
    }
}
