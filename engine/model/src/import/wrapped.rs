//! Configurations that name a wrapper's type in place of the type of the text model inside.

use serde_json::Value as Json;

use thermocline_formats::format::Tensor;

/// Types of wrappers whose configuration belongs to the text model: MiniCPM-V and MiniCPM-o.
const WRAPPERS: [&str; 2] = ["minicpmv", "minicpmo"];

/// Names the text model of a wrapper in `config`. Its type follows from its `tensors`: Qwen 3 has
/// norms of heads, Qwen 2 has biases of queries, and MiniCPM has factors that Llama has not.
pub(super) fn name_text_model(config: &mut Json, tensors: &[Tensor]) {
    let wrapped = config.get("model_type").and_then(Json::as_str).is_some_and(|ty| WRAPPERS.contains(&ty));
    let Some(values) = config.as_object_mut().filter(|_| wrapped) else { return };
    let has = |end: &str| tensors.iter().any(|tensor| tensor.name.starts_with("llm.") && tensor.name.ends_with(end));
    let model_type = match () {
        () if has(".self_attn.q_norm.weight") => "qwen3",
        () if has(".self_attn.q_proj.bias") => "qwen2",
        () if values.contains_key("scale_emb") => "minicpm",
        () => "llama",
    };
    values.insert("model_type".to_owned(), model_type.into());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use thermocline_formats::{format::Bytes, quant::TensorType};

    #[test]
    fn the_text_model_follows_from_its_tensors() {
        let named = |config: Json, tensors: &[&str]| {
            let tensor = |name: &&str| Tensor {
                name: (*name).to_owned(),
                ty: TensorType::F32,
                shape: vec![0],
                data: Bytes::new(Vec::new()),
            };
            let mut config = config;
            name_text_model(&mut config, &tensors.iter().map(tensor).collect::<Vec<_>>());
            config["model_type"].as_str().map(str::to_owned)
        };
        let minicpm = json!({ "model_type": "minicpmv" });
        for (tensors, expected) in [
            (&["llm.model.layers.0.self_attn.q_norm.weight"][..], "qwen3"),
            (&["llm.model.layers.0.self_attn.q_proj.bias"], "qwen2"),
            // The tower's biases say nothing.
            (&["vpm.encoder.layers.0.self_attn.q_proj.bias", "llm.lm_head.weight"], "llama"),
        ] {
            assert_eq!(named(minicpm.clone(), tensors).as_deref(), Some(expected));
        }
        let scaled = json!({ "model_type": "minicpmo", "scale_emb": 12 });
        assert_eq!(named(scaled, &[]).as_deref(), Some("minicpm"));
        assert_eq!(named(json!({ "model_type": "qwen2" }), &[]).as_deref(), Some("qwen2"));
    }
}
