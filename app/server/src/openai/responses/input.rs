//! Converts the items of a conversation to chat messages.

use serde::Deserialize;
use serde_json::{Value, json};
use thermocline_engine::session::Role;

use super::tools::full_name;
use crate::{
    error::ApiError,
    fields::{Hint, Ignored, LenientField, ListItem, TextOr, invalid, read_fields},
    request_message::{PictureUrl, ROLES, RequestMessage, role_of},
};

/// The fields of every item.
#[derive(Debug, PartialEq, Deserialize)]
struct ItemFields {
    #[serde(rename = "type")]
    kind: Ignored,
    id: Option<String>,
    status: Ignored,
}

/// The hints of agents in calls, outputs, messages and parts of items.
#[derive(Debug, PartialEq, Deserialize)]
pub struct ItemHints {
    caller: Hint,
    created_by: Hint,
    metadata: Hint,
    cache_control: Hint,
    prompt_cache_breakpoint: Hint,
    max_output_length: Hint,
}

#[derive(Debug, PartialEq, Deserialize)]
struct MessageItem {
    role: String,
    content: Option<TextOr<ItemPart>>,
    phase: Ignored,
}

/// The fields of every tool call.
#[derive(Debug, PartialEq, Deserialize)]
struct CallItem {
    call_id: Option<String>,
    namespace: LenientField<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct FunctionCall {
    name: String,
    arguments: Option<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct CustomCall {
    name: String,
    input: Option<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct ShellCall {
    action: Option<Value>,
    operation: Option<Value>,
    environment: Ignored,
}

#[derive(Debug, PartialEq, Deserialize)]
struct OutputItem {
    call_id: Option<String>,
    output: Option<Value>,
}

/// Thoughts. Encrypted thoughts are ignored: they come from another server.
#[derive(Debug, PartialEq, Deserialize)]
struct ThoughtItem {
    content: Option<TextOr<ItemPart>>,
    encrypted_content: Ignored,
    summary: Ignored,
}

/// A part of an item.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", rename = "type: input_text, output_text or input_image (nothing else can be read)")]
pub enum ItemPart {
    #[serde(alias = "output_text", alias = "text", alias = "reasoning_text", alias = "summary_text", alias = "refusal")]
    InputText((PartText, ItemHints)),
    InputImage((PartImage, ItemHints)),
}

/// The fields of a picture.
#[derive(Debug, PartialEq, Deserialize)]
pub struct PartImage {
    image_url: PictureUrl,
    detail: Ignored,
}

/// The fields of a part.
#[derive(Debug, PartialEq, Deserialize)]
pub struct PartText {
    text: Option<String>,
    refusal: Option<String>,
    annotations: Ignored,
    logprobs: Ignored,
}

impl ListItem for ItemPart {
    const NAME: &'static str = "parts";
}

/// Joins the text of a string or of parts. Pictures are added to `pictures`.
fn text_of(content: Option<TextOr<ItemPart>>, pictures: &mut Vec<String>) -> Result<String, ApiError> {
    content.unwrap_or(TextOr::Text(String::new())).text(|part| match part {
        ItemPart::InputText((part, _)) => {
            part.text.or(part.refusal).ok_or_else(|| invalid("text", "a string", &Value::Null))
        }
        ItemPart::InputImage((part, _)) => {
            pictures.push(part.image_url.0);
            Ok(String::new())
        }
    })
}

/// Collects the messages of a chat from items.
#[derive(Debug, Default)]
pub struct ChatItems {
    /// The messages so far.
    pub messages: Vec<RequestMessage>,
    /// Reasoning before the assistant's next message or call.
    reasoning: String,
    strict: bool,
}

impl ChatItems {
    /// Adds items after `messages`. `strict` refuses calls and outputs of tools that are not
    /// functions.
    pub fn after(messages: Vec<RequestMessage>, strict: bool) -> Self {
        ChatItems { messages, reasoning: String::new(), strict }
    }

    /// Adds an item.
    pub fn push(&mut self, item: &Value) -> Result<(), ApiError> {
        let strict = self.strict;
        match &item["type"] {
            Value::Null => self.push_message(item),
            Value::String(kind) => match kind.as_str() {
                "message" => self.push_message(item),
                "function_call" => {
                    let (item, call, function, _): (ItemFields, _, FunctionCall, ItemHints) =
                        read_fields(item, "", strict)?;
                    self.push_call(item, call, function.name, function.arguments.unwrap_or_default())
                }
                "function_call_output" => self.push_output(item),
                "reasoning" => {
                    let (_, thought): (ItemFields, ThoughtItem) = read_fields(item, "", strict)?;
                    self.reasoning.push_str(&text_of(thought.content, &mut Vec::new())?);
                    Ok(())
                }
                kind if !strict => self.push_other(kind, item),
                other => {
                    let expected = "message, function_call, function_call_output or reasoning";
                    Err(invalid("type", expected, &other.into()))
                }
            },
            other => Err(invalid("type", "a string", other)),
        }
    }

    /// Adds an item of a tool that is not a function. Calls that the client answered become calls
    /// of a function with the tool's name. Calls that another server ran by itself are dropped.
    fn push_other(&mut self, kind: &str, item: &Value) -> Result<(), ApiError> {
        match kind {
            "custom_tool_call" => {
                let (item, call, custom, _): (ItemFields, _, CustomCall, ItemHints) = read_fields(item, "", false)?;
                let arguments = json!({ "input": custom.input.unwrap_or_default() }).to_string();
                self.push_call(item, call, custom.name, arguments)
            }
            "local_shell_call" | "shell_call" | "apply_patch_call" => {
                let (item, call, shell, _): (ItemFields, _, ShellCall, ItemHints) = read_fields(item, "", false)?;
                let arguments = shell.action.or(shell.operation).unwrap_or_else(|| json!({})).to_string();
                let name = kind.strip_suffix("_call").unwrap_or(kind).to_owned();
                self.push_call(item, call, name, arguments)
            }
            "custom_tool_call_output" | "local_shell_call_output" | "shell_call_output" | "apply_patch_call_output" => {
                self.push_output(item)
            }
            hosted if hosted.ends_with("_call") || hosted.ends_with("_output") || hosted.starts_with("mcp_") => Ok(()),
            other => {
                let expected = "message, reasoning, or a call or an output of a tool";
                Err(invalid("type", expected, &other.into()))
            }
        }
    }

    fn push_call(&mut self, item: ItemFields, call: CallItem, name: String, arguments: String) -> Result<(), ApiError> {
        let id = self.call_id(call.call_id, item.id)?;
        let name = full_name(call.namespace.as_ref().map(|it| &*it.0), &name);
        // The call belongs to the assistant's last message, or to a new one.
        if self.messages.last().is_none_or(|last| last.role != Role::Assistant) {
            self.messages.push(RequestMessage::new(Role::Assistant, ""));
        }
        self.take_reasoning();
        if let Some(last) = self.messages.last_mut() {
            last.calls.push(RequestMessage::call(Some(&id), &name, &arguments));
        }
        Ok(())
    }

    fn push_output(&mut self, item: &Value) -> Result<(), ApiError> {
        let (item, result, _): (ItemFields, OutputItem, ItemHints) = read_fields(item, "", self.strict)?;
        let id = self.call_id(result.call_id, item.id)?;
        let output = result.output.unwrap_or_else(|| json!(""));
        let mut pictures = Vec::new();
        let output = if self.strict {
            let content = read_fields(&output, "output", true)?;
            text_of(Some(content), &mut pictures).map_err(|error| error.under("output"))?
        } else {
            output_text(output, &mut pictures)
        };
        self.messages.push(RequestMessage { pictures, ..RequestMessage::result(Some(id), output) });
        Ok(())
    }

    /// Returns the identifier of a call. For a local shell's output, it is the item's own.
    fn call_id(&self, call: Option<String>, item: Option<String>) -> Result<String, ApiError> {
        let id = call.or(item.filter(|_| !self.strict));
        id.ok_or_else(|| invalid("call_id", "a string", &Value::Null))
    }

    fn push_message(&mut self, item: &Value) -> Result<(), ApiError> {
        let (_, message, _): (ItemFields, MessageItem, ItemHints) = read_fields(item, "", self.strict)?;
        let role = role_of(&message.role).ok_or_else(|| invalid("role", ROLES, &message.role.into()))?;
        let mut pictures = Vec::new();
        let text = text_of(message.content, &mut pictures)?;
        self.messages.push(RequestMessage { pictures, ..RequestMessage::new(role, text) });
        match role {
            Role::Assistant => self.take_reasoning(),
            // These thoughts were interrupted by the user, so they belong to no answer.
            Role::User => self.reasoning.clear(),
            Role::System | Role::Tool => {}
        }
        Ok(())
    }

    /// Appends the pending reasoning to the thoughts of the last message.
    fn take_reasoning(&mut self) {
        let reasoning = std::mem::take(&mut self.reasoning);
        if let Some(last) = self.messages.last_mut().filter(|_| !reasoning.is_empty()) {
            let between = if last.thoughts.is_empty() { "" } else { "\n\n" };
            last.thoughts = format!("{}{between}{reasoning}", last.thoughts);
        }
    }
}

/// The text of a tool's output. Its pictures go to `pictures`. Parts that the model cannot read
/// become a note with their type.
fn output_text(output: Value, pictures: &mut Vec<String>) -> String {
    let mut part = |part: &Value| {
        let url = part["image_url"].as_str().or(part["image_url"]["url"].as_str());
        if let Some(url) = url.filter(|_| part["type"] == "input_image") {
            pictures.push(url.to_owned());
            return String::new();
        }
        let kind = part["type"].as_str().unwrap_or_default();
        let text = match kind {
            "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => part["text"].as_str(),
            "refusal" => part["refusal"].as_str(),
            _ => None,
        };
        match text {
            Some(text) => text.to_owned(),
            None if kind.is_empty() => part.to_string(),
            None => format!("[{kind}]"),
        }
    };
    match output {
        Value::String(text) => text,
        Value::Array(parts) => parts.iter().map(&mut part).collect(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(list: Value, strict: bool) -> Result<Vec<RequestMessage>, String> {
        let mut items = ChatItems::after(Vec::new(), strict);
        let Value::Array(list) = list else { panic!("{list}") };
        list.iter().try_for_each(|item| items.push(item).map_err(|error| error.message))?;
        Ok(items.messages)
    }

    fn assistant(content: &str, calls: Vec<Value>) -> RequestMessage {
        RequestMessage { calls, ..RequestMessage::new(Role::Assistant, content) }
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
        let assistant = |call: Value| assistant("", vec![call]);
        let tool = |id: &str, content: &str| RequestMessage::result(Some(id.to_owned()), content);
        let wanted = [
            RequestMessage::new(Role::User, "a"),
            assistant(call("c1", "mcp__notes__find", "{}")),
            RequestMessage { pictures: vec!["x".to_owned()], ..tool("c1", "No") },
            assistant(call("c2", "edit", "{\"input\":\"add\"}")),
            tool("c2", "done"),
            assistant(call("c3", "local_shell", &json!({ "type": "exec", "command": ["ls"] }).to_string())),
            tool("c3", "a.txt"),
        ];
        assert_eq!(read(list.clone(), false).unwrap(), wanted);
        for at in [1, 3, 5, 7, 8, 9] {
            assert!(read(json!([list[at]]), true).is_err(), "{}", list[at]);
        }
        assert!(
            read(json!([{ "type": "item_reference", "id": "x" }]), false).unwrap_err().starts_with("type: expected")
        );
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
        let calls = vec![call("c1", "f", "{}"), call("c2", "f", "{}")];
        let thoughts = "First.\n\nThen.".to_owned();
        let wanted = [
            RequestMessage { thoughts, ..assistant("I look.", calls) },
            RequestMessage::new(Role::User, "b"),
            assistant("", vec![call("c3", "f", "{}")]),
        ];
        for strict in [false, true] {
            assert_eq!(read(list.clone(), strict).unwrap(), wanted);
        }
    }
}
