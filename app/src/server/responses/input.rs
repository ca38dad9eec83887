//! Items of a conversation, as messages of a chat.

use serde_json::{Value, json};

use super::tools::NamespacedName;
use crate::server::{
    error::ApiError,
    json_fields::{JsonFields, invalid},
};

/// Fields of calls, outputs and parts that only a server that is not strict lets pass: hints of agents.
const HINTS: [&str; 6] =
    ["caller", "created_by", "metadata", "cache_control", "prompt_cache_breakpoint", "max_output_length"];

/// The messages that items say.
#[derive(Debug, Default)]
pub struct ChatItems {
    /// The messages so far.
    pub messages: Vec<Value>,
    /// Reasoning of the assistant's next words or call.
    reasoning: String,
    strict: bool,
}

impl ChatItems {
    /// Items behind `messages`. `strict` refuses calls and outputs of tools that are no functions.
    pub fn after(messages: Vec<Value>, strict: bool) -> Self {
        ChatItems { messages, reasoning: String::new(), strict }
    }

    /// Adds an item.
    pub fn push(&mut self, item: Value, path: &str) -> Result<(), ApiError> {
        let mut fields = JsonFields::from_value(item, path)?;
        let kind = fields.string("type")?;
        let id = fields.string("id")?;
        fields.remove("status");
        match kind.as_deref() {
            None | Some("message") => self.push_message(fields),
            Some("function_call") => {
                let arguments = fields.string("arguments")?.unwrap_or_default();
                let name = required(&mut fields, "name")?;
                self.push_call(fields, id, name, arguments)
            }
            Some("function_call_output") => self.push_output(fields, id),
            Some("reasoning") => {
                // What is encrypted was not encrypted here.
                ["encrypted_content", "summary"].iter().for_each(|field| drop(fields.remove(field)));
                let path = fields.path("content");
                if let Some(content) = fields.remove("content") {
                    let thoughts = self.plain_text(content, &path)?;
                    self.reasoning.push_str(&thoughts);
                }
                fields.finish()
            }
            Some(kind) if !self.strict => self.push_other(kind, fields, id),
            Some(other) => {
                let expected = "message, function_call, function_call_output or reasoning";
                Err(invalid(&fields.path("type"), expected, &other.into()))
            }
        }
    }

    /// Adds an item of a tool that is no function. Calls that the client has answered are calls of a function of that name; what another
    /// server has done by itself is dropped.
    fn push_other(&mut self, kind: &str, mut fields: JsonFields, id: Option<String>) -> Result<(), ApiError> {
        match kind {
            "custom_tool_call" => {
                let arguments = json!({ "input": fields.string("input")?.unwrap_or_default() }).to_string();
                let name = required(&mut fields, "name")?;
                self.push_call(fields, id, name, arguments)
            }
            "local_shell_call" | "shell_call" | "apply_patch_call" => {
                let what = fields.remove("action").or(fields.remove("operation")).unwrap_or_else(|| json!({}));
                let name = kind.strip_suffix("_call").unwrap_or(kind).to_owned();
                fields.ignore(&["environment"]);
                self.push_call(fields, id, name, what.to_string())
            }
            "custom_tool_call_output" | "local_shell_call_output" | "shell_call_output" | "apply_patch_call_output" => {
                self.push_output(fields, id)
            }
            hosted if hosted.ends_with("_call") || hosted.ends_with("_output") || hosted.starts_with("mcp_") => Ok(()),
            other => {
                let expected = "message, reasoning, or a call or an output of a tool";
                Err(invalid(&fields.path("type"), expected, &other.into()))
            }
        }
    }

    fn push_call(
        &mut self,
        mut fields: JsonFields,
        id: Option<String>,
        name: String,
        arguments: String,
    ) -> Result<(), ApiError> {
        let id = self.call_id(&mut fields, id)?;
        let namespace = if self.strict { None } else { fields.string("namespace")? };
        let name = match namespace {
            Some(namespace) => NamespacedName { namespace, name }.full(),
            None => name,
        };
        self.finish(fields)?;
        let call = json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        let message = self.assistant();
        match message["tool_calls"].as_array_mut() {
            Some(calls) => calls.push(call),
            None => message["tool_calls"] = json!([call]),
        }
        Ok(())
    }

    fn push_output(&mut self, mut fields: JsonFields, id: Option<String>) -> Result<(), ApiError> {
        let id = self.call_id(&mut fields, id)?;
        let path = fields.path("output");
        let output = fields.remove("output").unwrap_or_else(|| json!(""));
        let output = if self.strict { self.plain_text(output, &path)? } else { output_text(output) };
        self.finish(fields)?;
        self.messages.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
        Ok(())
    }

    /// The identifier of a call; of a local shell's output, the item's own.
    fn call_id(&self, fields: &mut JsonFields, id: Option<String>) -> Result<String, ApiError> {
        match fields.string("call_id")?.or(id.filter(|_| !self.strict)) {
            Some(id) => Ok(id),
            None => Err(invalid(&fields.path("call_id"), "a string", &Value::Null)),
        }
    }

    fn push_message(&mut self, mut fields: JsonFields) -> Result<(), ApiError> {
        let role = required(&mut fields, "role")?;
        let path = fields.path("content");
        let content = fields.remove("content").unwrap_or_else(|| json!(""));
        fields.remove("phase");
        self.finish(fields)?;
        let content = self.plain_text(content, &path)?;
        let (said, asked) = (role == "assistant", role == "user");
        self.messages.push(json!({ "role": role, "content": content }));
        if said {
            self.take_reasoning();
        } else if asked {
            // Thoughts that the user broke off belong to no answer.
            self.reasoning.clear();
        }
        Ok(())
    }

    /// The assistant's message that a call belongs to, with the thoughts before the call: the last message, or a new one.
    fn assistant(&mut self) -> &mut Value {
        if self.messages.last().is_none_or(|last| last["role"] != "assistant") {
            self.messages.push(json!({ "role": "assistant", "content": "" }));
        }
        self.take_reasoning();
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    /// Adds the waiting thoughts to those of the last message.
    fn take_reasoning(&mut self) {
        let reasoning = std::mem::take(&mut self.reasoning);
        if let Some(last) = self.messages.last_mut().filter(|_| !reasoning.is_empty()) {
            last["reasoning_content"] = match last["reasoning_content"].as_str() {
                Some(before) => format!("{before}\n\n{reasoning}").into(),
                None => reasoning.into(),
            };
        }
    }

    /// The text of a string or of a list of parts.
    fn plain_text(&self, value: Value, path: &str) -> Result<String, ApiError> {
        let parts = match value {
            Value::String(text) => return Ok(text),
            Value::Array(parts) => parts,
            other => return Err(invalid(path, "a string or a list of parts", &other)),
        };
        let text = |(at, part): (usize, Value)| {
            let mut part = JsonFields::from_value(part, &format!("{path}[{at}]"))?;
            let kind = part.string("type")?.unwrap_or_default();
            let Some(field) = text_field(&kind) else {
                let expected = "input_text or output_text (nothing else can be read)";
                return Err(invalid(&part.path("type"), expected, &kind.into()));
            };
            let text = required(&mut part, field)?;
            ["annotations", "logprobs"].iter().for_each(|field| drop(part.remove(field)));
            self.finish(part)?;
            Ok(text)
        };
        Ok(parts.into_iter().enumerate().map(text).collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Refuses the fields that are left, except hints.
    fn finish(&self, mut fields: JsonFields) -> Result<(), ApiError> {
        if !self.strict {
            fields.ignore(&HINTS);
        }
        fields.finish()
    }
}

/// The field that has the text of a part of this kind; `None` of a part without text.
fn text_field(kind: &str) -> Option<&'static str> {
    match kind {
        "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => Some("text"),
        "refusal" => Some("refusal"),
        _ => None,
    }
}

/// The text of a tool's output. The model is told of parts that cannot be read, such as images, by their kind.
fn output_text(output: Value) -> String {
    let part = |part: &Value| {
        let kind = part["type"].as_str().unwrap_or_default();
        match text_field(kind).and_then(|field| part[field].as_str()) {
            Some(text) => text.to_owned(),
            None if kind.is_empty() => part.to_string(),
            None => format!("[{kind}]"),
        }
    };
    match output {
        Value::String(text) => text,
        Value::Array(parts) => parts.iter().map(part).collect(),
        other => other.to_string(),
    }
}

/// A string that has to be there.
fn required(fields: &mut JsonFields, field: &str) -> Result<String, ApiError> {
    let path = fields.path(field);
    fields.string(field)?.ok_or_else(|| invalid(&path, "a string", &Value::Null))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(list: Value, strict: bool) -> Result<Vec<Value>, String> {
        let mut items = ChatItems::after(Vec::new(), strict);
        let Value::Array(list) = list else { panic!("{list}") };
        for (at, item) in list.into_iter().enumerate() {
            items.push(item, &format!("input[{at}]")).map_err(|error| error.message)?;
        }
        Ok(items.messages)
    }

    fn call(id: &str, name: &str, arguments: &str) -> Value {
        json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
    }

    fn thought(text: &str) -> Value {
        json!({ "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": text }] })
    }

    #[test]
    fn calls_of_every_tool_that_the_client_has_run_are_told() {
        let list = json!([
            { "role": "user", "content": "a" },
            { "type": "function_call", "name": "find", "namespace": "mcp__notes__", "arguments": "{}", "call_id": "c1" },
            { "type": "function_call_output", "call_id": "c1", "output": [{ "type": "input_text", "text": "No" }, { "type": "input_image", "image_url": "x" }] },
            { "type": "custom_tool_call", "name": "edit", "input": "add", "call_id": "c2", "status": "completed" },
            { "type": "custom_tool_call_output", "call_id": "c2", "output": "done" },
            { "type": "local_shell_call", "id": "i", "call_id": "c3", "status": "completed", "action": { "type": "exec", "command": ["ls"] } },
            { "type": "local_shell_call_output", "id": "c3", "output": "a.txt" },
            { "type": "web_search_call", "status": "completed", "action": { "type": "search", "query": "x" } },
            { "type": "image_generation_call", "id": "g", "result": "abc" },
            { "type": "mcp_list_tools", "tools": [] },
        ]);
        let assistant = |call: Value| json!({ "role": "assistant", "content": "", "tool_calls": [call] });
        let tool = |id: &str, content: &str| json!({ "role": "tool", "tool_call_id": id, "content": content });
        let wanted = [
            json!({ "role": "user", "content": "a" }),
            assistant(call("c1", "mcp__notes__find", "{}")),
            tool("c1", "No[input_image]"),
            assistant(call("c2", "edit", "{\"input\":\"add\"}")),
            tool("c2", "done"),
            assistant(call("c3", "local_shell", &json!({ "type": "exec", "command": ["ls"] }).to_string())),
            tool("c3", "a.txt"),
        ];
        assert_eq!(read(list.clone(), false).unwrap(), wanted);
        for at in [1, 3, 5, 7, 8, 9] {
            assert!(read(json!([list[at]]), true).is_err(), "{}", list[at]);
        }
        assert!(read(json!([{ "type": "item_reference", "id": "x" }]), false).unwrap_err().contains("input[0].type"));
    }

    #[test]
    fn thoughts_belong_to_what_follows_them_in_their_own_turn() {
        let said = |text: &str| json!({ "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": text }] });
        let function = |id: &str| json!({ "type": "function_call", "call_id": id, "name": "f", "arguments": "{}" });
        let user = json!({ "role": "user", "content": "b" });
        let list = json!([
            said("I look."),
            thought("First."),
            function("c1"),
            thought("Then."),
            function("c2"),
            thought("Broken off."),
            user,
            function("c3")
        ]);
        let calls = [call("c1", "f", "{}"), call("c2", "f", "{}")];
        let wanted = [
            json!({ "role": "assistant", "content": "I look.", "reasoning_content": "First.\n\nThen.", "tool_calls": calls }),
            user,
            json!({ "role": "assistant", "content": "", "tool_calls": [call("c3", "f", "{}")] }),
        ];
        for strict in [false, true] {
            assert_eq!(read(list.clone(), strict).unwrap(), wanted);
        }
    }
}
