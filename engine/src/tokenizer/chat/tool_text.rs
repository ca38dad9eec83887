//! Tools written as text, for templates that know none: definitions in the system message, calls and results in the messages.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::ChatMessage;

/// `true` if a rendered `text` holds the names of all `tools`, and all results of calls that the messages have.
pub fn mentions_all(text: &str, tools: &[Value], messages: &[ChatMessage<'_>]) -> bool {
    let named = tools.iter().all(|tool| function(tool)["name"].as_str().is_none_or(|name| text.contains(name)));
    let mut results = messages.iter().filter(|message| message.role == "tool");
    let first_line = |content: &str| content.trim().lines().next().unwrap_or_default().to_owned();
    // Templates may quote or indent the text of a result, but keep its first words.
    let word = |content: &str| first_line(content).split(|c: char| !c.is_alphanumeric()).next_back().map(str::to_owned);
    named && results.all(|message| word(message.content).is_none_or(|word| text.contains(&word)))
}

/// The messages, by role and content, with definitions, calls and results as text.
pub fn as_text(messages: &[ChatMessage<'_>], tools: &[Value]) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    let mut system = String::new();
    if !tools.is_empty() {
        system.push_str("# Tools\n\nYou may call these functions:\n");
        for tool in tools {
            let _ = writeln!(system, "{}", function(tool));
        }
        system.push_str(
            "\nTo call one, answer with its name and arguments as JSON between these tags, and nothing after them:\n\
             <tool_call>\n{\"name\": \"NAME\", \"arguments\": {...}}\n</tool_call>",
        );
    }
    for message in messages {
        let mut content = message.content.to_owned();
        let role = match message.role {
            "system" if out.is_empty() && !system.is_empty() => {
                content = format!("{content}\n\n{system}");
                system.clear();
                "system"
            }
            "tool" => {
                content = format!("<tool_response>\n{content}\n</tool_response>");
                "user"
            }
            role => role,
        };
        for call in calls(message.fields) {
            let separator = if content.is_empty() { "" } else { "\n" };
            let _ = write!(content, "{separator}<tool_call>\n{call}\n</tool_call>");
        }
        match out.last_mut() {
            // Many templates want the roles to alternate.
            Some((last, text)) if last == role && role == "user" && message.role == "tool" => {
                let _ = write!(text, "\n{content}");
            }
            _ => out.push((role.to_owned(), content)),
        }
    }
    if !system.is_empty() {
        out.insert(0, ("system".to_owned(), system));
    }
    out
}

/// The function of a definition or call.
fn function(tool: &Value) -> &Value {
    tool.get("function").unwrap_or(tool)
}

/// Names and arguments of a message's calls.
fn calls(fields: Option<&Map<String, Value>>) -> Vec<String> {
    let calls = fields.and_then(|fields| fields.get("tool_calls")?.as_array());
    calls
        .into_iter()
        .flatten()
        .map(|call| {
            let function = function(call);
            let arguments = match &function["arguments"] {
                Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone())),
                other => other.clone(),
            };
            // The name first: a model that copies the order has its call begin with it.
            format!("{{\"name\": {}, \"arguments\": {arguments}}}", function["name"])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tools_calls_and_results_become_text() {
        let tools = [json!({ "type": "function", "function": { "name": "weather", "parameters": {} } })];
        let call = json!({ "tool_calls": [{ "id": "a", "function": { "name": "weather", "arguments": "{\"city\": \"Ulm\"}" } }] });
        let call = call.as_object().unwrap();
        let messages = [
            ChatMessage::new("user", "How is it?"),
            ChatMessage { role: "assistant", content: "", fields: Some(call) },
            ChatMessage::new("tool", "rain"),
            ChatMessage::new("tool", "wind"),
        ];
        let text = as_text(&messages, &tools);
        let roles: Vec<&str> = text.iter().map(|(role, _)| &**role).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert!(text[0].1.contains("{\"name\":\"weather\",\"parameters\":{}}"), "{}", text[0].1);
        assert_eq!(text[2].1, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Ulm\"}}\n</tool_call>");
        assert_eq!(text[3].1, "<tool_response>\nrain\n</tool_response>\n<tool_response>\nwind\n</tool_response>");
        assert!(mentions_all("weather: rain and wind", &tools, &messages));
        assert!(!mentions_all("weather: rain", &tools, &messages) && !mentions_all("rain wind", &tools, &messages));
    }
}
