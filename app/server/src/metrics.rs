//! Counters and gauges in Prometheus' text format, for `GET /metrics`.

use std::fmt::Write;

use super::{context::ServerContext, served_model::ServedModel};

/// Media type of the format.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Describes the state of the server and the open model. Sizes are in bytes, rates in tokens per
/// second.
pub fn metrics(context: &ServerContext, model: &ServedModel) -> String {
    let (now, status) = (model.engine.telemetry(), context.status());
    let mut text = String::new();
    let mut write = |name: &str, kind: &str, help: &str, value: f64| {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "# HELP thermocline_{name} {help}\n# TYPE thermocline_{name} {kind}\nthermocline_{name} {value}\n"
        );
    };
    write("requests_total", "counter", "Requests received.", status.requests as f64);
    write("requests_processing", "gauge", "Requests being answered: busy slots.", status.busy as f64);
    write("slots", "gauge", "Requests that can be answered at the same time.", status.slots as f64);
    write("batch_size", "gauge", "Sequences whose tokens the latest pass computed.", now.batch as f64);
    write("decode_passes_total", "counter", "Passes that decoded tokens.", now.decode_passes as f64);
    write("requests_deferred", "gauge", "Requests that wait for the model.", status.waiting as f64);
    write("prompt_tokens_total", "counter", "Prompt tokens computed.", now.prompt_tokens as f64);
    write("prompt_tokens_reused_total", "counter", "Prompt tokens reused from the KV cache.", now.reused_tokens as f64);
    write("pictures_total", "counter", "Pictures computed.", now.pictures as f64);
    write("tokens_predicted_total", "counter", "Tokens generated.", now.generated_tokens as f64);
    write("prompt_tokens_seconds", "gauge", "Prompt tokens per second.", now.prompt_rate);
    write("predicted_tokens_seconds", "gauge", "Generated tokens per second.", now.decode_rate);
    write("kv_cache_bytes", "gauge", "Bytes of the KV caches.", now.kv_bytes as f64);
    write("weight_bytes", "gauge", "Bytes of the weights of the model and its draft model.", now.weight_bytes as f64);
    text
}
