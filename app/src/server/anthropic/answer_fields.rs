//! Reading of the fields that say how an answer comes to be: thoughts, effort, format.

use serde_json::{Map, Value, json};

use crate::server::{
    error::ApiError,
    json_fields::{JsonFields, invalid},
};

/// Efforts of an answer, the least first.
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// The two places of the format of an answer.
const FORMAT: &str = "output_config.format";
const OLD_FORMAT: &str = "output_format";

/// Reads whether and how long a model thinks.
pub fn read_thinking(thinking: Value, strict: bool, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let mut thinking = JsonFields::from_value(thinking, "thinking")?;
    let path = thinking.path("type");
    let on = match thinking.string("type")?.as_deref() {
        Some("enabled" | "adaptive") => true,
        Some("disabled") => false,
        other => return Err(invalid(&path, "enabled, adaptive or disabled", &other.into())),
    };
    let budget = thinking.count("budget_tokens")?;
    if !strict {
        thinking.ignore(&["display"]);
    }
    thinking.finish()?;
    // Thoughts that are off take no tokens, whatever the template says.
    if let Some(budget) = if on { budget } else { Some(0) } {
        chat.insert("reasoning".to_owned(), json!({ "max_tokens": budget }));
    }
    chat.insert("chat_template_kwargs".to_owned(), json!({ "enable_thinking": on }));
    Ok(())
}

/// Reads an effort: it limits thoughts where they are on, and the template learns of it in any case; it never turns thoughts on.
fn read_effort(effort: String, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    if !EFFORTS.contains(&&*effort) {
        return Err(invalid("output_config.effort", &EFFORTS.join(", "), &effort.into()));
    }
    let variables = chat.entry("chat_template_kwargs").or_insert_with(|| json!({}));
    if variables["enable_thinking"] == json!(true) {
        chat.insert("reasoning_effort".to_owned(), effort.into());
    } else {
        variables["reasoning_effort"] =
            if effort == "max" || effort == "xhigh" { "high".into() } else { effort.into() };
    }
    Ok(())
}

/// Reads the format of the answer and the effort for it, and returns the name of the field that says it.
pub fn read_format(
    fields: &mut JsonFields,
    strict: bool,
    chat: &mut Map<String, Value>,
) -> Result<&'static str, ApiError> {
    if strict {
        return Ok(FORMAT);
    }
    let mut found = fields.remove("output_format").map(|format| (OLD_FORMAT, format));
    if let Some(config) = fields.remove("output_config") {
        let mut config = JsonFields::from_value(config, "output_config")?;
        found = config.remove("format").map(|format| (FORMAT, format)).or(found);
        if let Some(effort) = config.string("effort")? {
            read_effort(effort, chat)?;
        }
        config.finish()?;
    }
    let Some((path, format)) = found else { return Ok(FORMAT) };
    let mut format = JsonFields::from_value(format, path)?;
    let kind = format.string("type")?;
    if kind.as_deref() != Some("json_schema") {
        return Err(invalid(&format.path("type"), "json_schema", &kind.into()));
    }
    let place = format.path("schema");
    let schema = format.remove("schema").ok_or_else(|| invalid(&place, "a JSON schema", &Value::Null))?;
    format.ignore(&["name"]);
    format.finish()?;
    let format = json!({ "type": "json_schema", "json_schema": { "name": "output", "schema": schema } });
    chat.insert("response_format".to_owned(), format);
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::anthropic::chat_body;

    fn read(body: &Value) -> Result<Map<String, Value>, String> {
        chat_body(body.to_string().as_bytes(), false, false).map(|body| body.fields).map_err(|error| error.message)
    }

    #[test]
    fn efforts_limit_thoughts_that_are_on_and_turn_none_on() {
        let with = |thinking: Value, effort: &str| {
            read(&json!({
                "max_tokens": 9, "messages": [{ "role": "user", "content": "a" }],
                "thinking": thinking, "output_config": { "effort": effort },
            }))
        };
        let on = with(json!({ "type": "adaptive" }), "max").unwrap();
        assert_eq!(
            (&on["reasoning_effort"], &on["chat_template_kwargs"]),
            (&json!("max"), &json!({ "enable_thinking": true }))
        );
        let off = with(json!({ "type": "disabled" }), "max").unwrap();
        let variables = json!({ "enable_thinking": false, "reasoning_effort": "high" });
        assert_eq!((off.get("reasoning_effort"), &off["chat_template_kwargs"]), (None, &variables));
        let body = json!({
            "max_tokens": 9, "messages": [{ "role": "user", "content": "a" }], "output_config": { "effort": "low" },
        });
        assert_eq!(read(&body).unwrap()["chat_template_kwargs"], json!({ "reasoning_effort": "low" }));
        let says = "output_config.effort: expected low, medium, high, xhigh, max, got \"huge\"";
        assert_eq!(with(json!({ "type": "adaptive" }), "huge").unwrap_err(), says);
    }
}
