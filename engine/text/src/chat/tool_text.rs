//! Writes tools as text, for templates without tools: definitions in the system message, calls and
//! results in the messages.

use std::fmt::Write;

use serde_json::Value;

use super::conversation::{TemplateConversation, TemplateMessage};

/// The conversation with definitions, calls and results as text. Results become a user message
/// together with the user's following text, because many templates require alternating roles.
pub fn as_text(conversation: &TemplateConversation) -> TemplateConversation {
    let mut out: Vec<TemplateMessage> = Vec::new();
    let mut system = instructions(&conversation.tools);
    // True while the last message holds only results.
    let mut results = false;
    for message in &conversation.messages {
        let mut content = message.content.clone();
        let is_result = message.role == "tool";
        if message.role == "system" && out.is_empty() && !system.is_empty() {
            content = format!("{content}\n\n{}", std::mem::take(&mut system));
        }
        if is_result {
            content = format!("<tool_response>\n{content}\n</tool_response>");
        }
        for call in message.calls() {
            let separator = if content.is_empty() { "" } else { "\n" };
            let _ = write!(content, "{separator}<tool_call>\n{}\n</tool_call>", call_text(call));
        }
        let role = if is_result { "user" } else { message.role.as_str() };
        match out.last_mut().filter(|_| results && role == "user") {
            Some(last) => {
                let _ = write!(last.content, "{}{content}", if is_result { "\n" } else { "\n\n" });
                last.pictures += message.pictures;
            }
            None => {
                let (thinking, pictures) = (message.thinking.clone(), message.pictures);
                out.push(TemplateMessage { thinking, pictures, ..TemplateMessage::new(role, content) })
            }
        }
        results = is_result;
    }
    if !system.is_empty() {
        out.insert(0, TemplateMessage::new("system", system));
    }
    TemplateConversation { messages: out, tools: Vec::new(), ..conversation.clone() }
}

/// The definitions of tools and how to call them; empty without tools.
fn instructions(tools: &[Value]) -> String {
    if tools.is_empty() {
        return String::new();
    }
    let mut text = "# Tools\n\nYou may call these functions:\n".to_owned();
    for tool in tools {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", function(tool));
    }
    text + "\nTo call one, answer with its name and arguments as JSON between these tags, and nothing after them:\n\
            <tool_call>\n{\"name\": \"NAME\", \"arguments\": {...}}\n</tool_call>"
}

/// The function of a definition or call.
fn function(tool: &Value) -> &Value {
    tool.get("function").unwrap_or(tool)
}

/// The name and arguments of a call.
fn call_text(call: &Value) -> String {
    let function = function(call);
    let arguments = match &function["arguments"] {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone())),
        other => other.clone(),
    };
    // The name comes first. A model that copies this order then starts its calls with the name.
    format!("{{\"name\": {}, \"arguments\": {arguments}}}", function["name"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chat::{ChatMessage, RenderOptions};

    #[test]
    fn tools_calls_and_results_become_text() {
        let tools = [json!({ "type": "function", "function": { "name": "weather", "parameters": {} } })];
        let call = json!({ "tool_calls": [{ "id": "a", "function": { "name": "weather", "arguments": "{\"city\": \"Ulm\"}" } }] });
        let call = call.as_object().unwrap();
        let messages = [
            ChatMessage::new("user", "How is it?"),
            ChatMessage { fields: Some(call), ..ChatMessage::new("assistant", "") },
            ChatMessage::new("tool", "rain"),
            ChatMessage::new("tool", "wind"),
            ChatMessage::new("user", "Thanks."),
        ];
        let options = RenderOptions { tools: &tools, ..RenderOptions::new(true) };
        let TemplateConversation { messages: text, tools, .. } =
            as_text(&TemplateConversation::new(&messages, options));
        let roles: Vec<&str> = text.iter().map(|message| &*message.role).collect();
        assert_eq!((roles, tools.len()), (vec!["system", "user", "assistant", "user"], 0));
        let of = |at: usize| &*text[at].content;
        assert!(of(0).contains("{\"name\":\"weather\",\"parameters\":{}}"), "{}", of(0));
        assert_eq!(of(2), "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Ulm\"}}\n</tool_call>");
        let results = "<tool_response>\nrain\n</tool_response>\n<tool_response>\nwind\n</tool_response>\n\nThanks.";
        assert_eq!(of(3), results);
    }
}
