//! The messages of one rendering in the form that templates receive, and changes of them for less
//! capable templates.

use minijinja::{Value, value::Serde};
use serde_json::{Map, Value as Json, json};

use super::{ChatMessage, RenderOptions};
use crate::{ContentGuard, PictureMarks, reasoning::transcript::Thoughts};

/// Characters around a probe's number: Unicode noncharacters for internal use, which are removed
/// from contents.
const PROBE: [char; 2] = ['\u{FDD1}', '\u{FDD2}'];

/// A message that owns its texts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TemplateMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text of the message; an assistant's text excludes thoughts.
    pub content: String,
    /// Thoughts before an answer.
    pub thinking: Option<String>,
    /// Further fields in OpenAI's form, with call arguments as objects.
    pub fields: Map<String, Json>,
    /// The same fields with call arguments as JSON texts, if there are calls.
    pub text_fields: Option<Map<String, Json>>,
    /// Number of pictures before the text.
    pub pictures: usize,
}

/// All inputs of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TemplateConversation {
    /// The messages.
    pub messages: Vec<TemplateMessage>,
    /// Definitions of tools, in OpenAI's form.
    pub tools: Vec<Json>,
    /// Further variables of the template.
    pub variables: Map<String, Json>,
    /// True if the text must end where the model's answer begins.
    pub add_generation_prompt: bool,
}

/// Position of a system message that no user message follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastPlace {
    /// In a separate user message.
    Own,
    /// After the text of the previous message if it is the user's, for templates that require
    /// alternating roles.
    Previous,
}

impl TemplateMessage {
    /// A message of `role` without further fields.
    pub fn new(role: &str, content: String) -> Self {
        let (role, fields) = (role.to_owned(), Map::new());
        TemplateMessage { role, content, thinking: None, fields, text_fields: None, pictures: 0 }
    }

    /// The message in the form that a template receives.
    fn of(message: &ChatMessage<'_>, guard: ContentGuard<'_>) -> Self {
        let said = |text: &str| guard.text(text).into_owned();
        let mut out = match Thoughts::of(message.content) {
            Thoughts { thinking: Some(thinking), answer, .. } if message.role == "assistant" => {
                let out = TemplateMessage::new(message.role, said(answer.trim_start_matches('\n')));
                TemplateMessage { thinking: Some(said(thinking.trim_matches('\n'))), ..out }
            }
            _ => TemplateMessage::new(message.role, said(message.content)),
        };
        out.pictures = message.pictures;
        if let Some(fields) = message.fields {
            out.fields = guard.map(&with_arguments(fields, ArgumentsForm::Objects));
            let texts = || guard.map(&with_arguments(fields, ArgumentsForm::Texts));
            out.text_fields = fields.contains_key("tool_calls").then(texts);
        }
        out
    }

    /// The content as templates receive it: the text, or a list of pictures and the text.
    pub fn parts(&self) -> Value {
        if self.pictures == 0 {
            return Value::from(self.content.as_str());
        }
        let pictures = (0..self.pictures).map(|_| json!({ "type": "image" }));
        let parts: Vec<Json> = pictures.chain([json!({ "type": "text", "text": self.content })]).collect();
        Value::from(Serde(parts))
    }

    /// The tool calls, in OpenAI's form.
    pub fn calls(&self) -> impl Iterator<Item = &Json> {
        self.fields.get("tool_calls").and_then(Json::as_array).into_iter().flatten()
    }
}

impl TemplateConversation {
    /// The conversation of `messages`. The guard of `options` keeps their control tokens from being
    /// recognised.
    pub fn new(messages: &[ChatMessage<'_>], options: RenderOptions<'_>) -> Self {
        let guard = ContentGuard::new(options.guard);
        TemplateConversation {
            messages: messages.iter().map(|message| TemplateMessage::of(message, guard)).collect(),
            tools: options.tools.iter().map(|tool| guard.value(tool)).collect(),
            variables: options.variables.map(|variables| guard.map(variables)).unwrap_or_default(),
            add_generation_prompt: options.add_generation_prompt,
        }
    }

    /// True if a message has the role `role`.
    pub fn has(&self, role: &str) -> bool {
        self.messages.iter().any(|message| message.role == role)
    }

    /// True if the message at `index` has the role `role`.
    pub fn is(&self, index: usize, role: &str) -> bool {
        self.messages.get(index).is_some_and(|message| message.role == role)
    }

    /// True if it contains tool definitions, calls or results.
    pub fn is_about_tools(&self) -> bool {
        !self.tools.is_empty()
            || self.has("tool")
            || self.messages.iter().any(|message| message.calls().next().is_some())
    }

    /// Approximate number of bytes of all texts.
    pub fn size(&self) -> usize {
        let fields = |message: &TemplateMessage| {
            json_size(message.fields.values()) + message.text_fields.as_ref().map_or(0, |it| json_size(it.values()))
        };
        let said = |message: &TemplateMessage| {
            message.role.len()
                + message.content.len()
                + message.thinking.as_ref().map_or(0, String::len)
                + fields(message)
        };
        self.messages.iter().map(said).sum::<usize>() + json_size(&self.tools) + json_size(self.variables.values())
    }

    /// Writes pictures as marks before the texts.
    pub fn with_marks(&self, marks: &PictureMarks) -> TemplateConversation {
        let mut marked = self.clone();
        for message in &mut marked.messages {
            message.content.insert_str(0, &marks.content(message.pictures));
            message.pictures = 0;
        }
        marked
    }

    /// Moves the system messages at the indices `moved` to the front of the next user message.
    pub fn with_systems_moved(&self, moved: &[usize], last: LastPlace) -> TemplateConversation {
        let (mut messages, mut waiting): (Vec<TemplateMessage>, Vec<&str>) = (Vec::new(), Vec::new());
        for (at, message) in self.messages.iter().enumerate() {
            if moved.contains(&at) {
                waiting.push(message.content.trim());
                continue;
            }
            let mut message = message.clone();
            if message.role == "user" && !waiting.is_empty() {
                waiting.push(&self.messages[at].content);
                message.content = waiting.join("\n\n");
                waiting.clear();
            }
            messages.push(message);
        }
        if !waiting.is_empty() {
            let text = waiting.join("\n\n");
            match messages.last_mut() {
                Some(message) if message.role == "user" && last == LastPlace::Previous => {
                    message.content = format!("{}\n\n{text}", message.content);
                }
                _ => messages.push(TemplateMessage::new("user", text)),
            }
        }
        TemplateConversation { messages, ..self.clone() }
    }

    /// Gives each call a message of its own, followed by its result, for templates that write one
    /// call per message.
    pub fn with_calls_apart(&self) -> TemplateConversation {
        let mut messages: Vec<TemplateMessage> = Vec::new();
        let mut rest = self.messages.iter().peekable();
        while let Some(message) = rest.next() {
            let calls = message.calls().count();
            if calls < 2 {
                messages.push(message.clone());
                continue;
            }
            let mut results: Vec<&TemplateMessage> = Vec::new();
            while let Some(result) = rest.next_if(|message| message.role == "tool") {
                results.push(result);
            }
            for call in 0..calls {
                let mut alone = message.clone();
                if call > 0 {
                    (alone.content, alone.thinking, alone.pictures) = (String::new(), None, 0);
                }
                for fields in [Some(&mut alone.fields), alone.text_fields.as_mut()].into_iter().flatten() {
                    if let Some(list) = fields.get_mut("tool_calls").and_then(Json::as_array_mut) {
                        *list = list.drain(..).skip(call).take(1).collect();
                    }
                }
                let id = alone.calls().next().and_then(|call| call.get("id")).cloned();
                messages.push(alone);
                let own = results.iter().position(|it| id.is_some() && it.fields.get("tool_call_id") == id.as_ref());
                let next = own.or((id.is_none() && !results.is_empty()).then_some(0));
                messages.extend(next.map(|at| results.remove(at).clone()));
            }
            messages.extend(results.into_iter().cloned());
        }
        TemplateConversation { messages, ..self.clone() }
    }

    /// Changes the role of all messages from `from` to `to`.
    pub fn with_role(&self, from: &str, to: &str) -> TemplateConversation {
        let mut changed = self.clone();
        let messages = changed.messages.iter_mut().filter(|message| message.role == from);
        messages.for_each(|message| message.role = to.to_owned());
        changed
    }

    /// Inserts a probe into each system message with text. Returns the indices and the probes too.
    pub fn probed_systems(&self) -> (TemplateConversation, Vec<(usize, String)>) {
        let (mut probed, mut probes) = (self.clone(), Vec::new());
        for (at, message) in probed.messages.iter_mut().enumerate() {
            if message.role == "system" && !message.content.trim().is_empty() {
                probes.push((at, mark(&mut message.content, at)));
            }
        }
        (probed, probes)
    }

    /// Inserts a probe into the name of each tool and call and into each result. Returns the probes
    /// too.
    pub fn probed_tools(&self) -> (TemplateConversation, ToolProbes) {
        let (mut probed, mut probes, mut next) = (self.clone(), ToolProbes::default(), 0);
        let mut number = || {
            next += 1;
            next
        };
        for tool in &mut probed.tools {
            probes.others.extend(name_of(tool).map(|name| mark(name, number())));
        }
        for message in &mut probed.messages {
            if message.role == "tool" {
                probes.others.push(mark(&mut message.content, number()));
            }
            let first = number();
            for fields in [Some(&mut message.fields), message.text_fields.as_mut()].into_iter().flatten() {
                for (at, name) in calls_in(fields).filter_map(name_of).enumerate() {
                    // The letter between the numbers keeps the probe distinct from others.
                    let probe = mark_as(name, &format!("{first}c{at}"));
                    if !probes.calls.contains(&probe) {
                        probes.calls.push(probe);
                    }
                }
            }
        }
        (probed, probes)
    }
}

/// Texts that the rendering of a probed conversation contains if the template writes everything
/// about tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ToolProbes {
    /// Probes of calls.
    pub calls: Vec<String>,
    /// Probes of definitions and results.
    pub others: Vec<String>,
}

/// Writes the probe `number` before the first word of `text` and returns the probe.
fn mark(text: &mut String, number: usize) -> String {
    mark_as(text, &number.to_string())
}

fn mark_as(text: &mut String, number: &str) -> String {
    let probe = format!("{}{number}{}", PROBE[0], PROBE[1]);
    let first = text.len() - text.trim_start().len();
    text.insert_str(first, &probe);
    probe
}

/// The name in a definition or call.
fn name_of(tool: &mut Json) -> Option<&mut String> {
    let function = if tool.get("function").is_some_and(Json::is_object) { tool.get_mut("function")? } else { tool };
    match function.get_mut("name")? {
        Json::String(name) => Some(name),
        _ => None,
    }
}

/// The calls among a message's fields.
pub(super) fn calls_in(fields: &mut Map<String, Json>) -> impl Iterator<Item = &mut Json> {
    fields.get_mut("tool_calls").and_then(Json::as_array_mut).into_iter().flatten()
}

/// Form of call arguments that a template receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentsForm {
    /// Objects, which most templates expect.
    Objects,
    /// JSON texts, as in OpenAI's form, for templates that append them to other text.
    Texts,
}

/// `fields` with the arguments of its calls in the given form.
fn with_arguments(fields: &Map<String, Json>, form: ArgumentsForm) -> Map<String, Json> {
    let mut fields = fields.clone();
    for arguments in calls_in(&mut fields).filter_map(|call| call.get_mut("function")?.get_mut("arguments")) {
        match (form, &*arguments) {
            // A call without arguments.
            (ArgumentsForm::Objects, Json::Null) => *arguments = json!({}),
            (ArgumentsForm::Objects, Json::String(text)) if text.trim().is_empty() => *arguments = json!({}),
            (ArgumentsForm::Objects, Json::String(text)) => {
                if let Ok(object @ Json::Object(_)) = serde_json::from_str(text) {
                    *arguments = object;
                }
            }
            (ArgumentsForm::Texts, Json::Object(_)) => *arguments = Json::String(arguments.to_string()),
            _ => {}
        }
    }
    fields
}

/// Approximate number of text bytes in JSON values.
fn json_size<'a>(values: impl IntoIterator<Item = &'a Json>) -> usize {
    let size = |value: &Json| match value {
        Json::String(text) => text.len(),
        Json::Array(list) => 2 + json_size(list),
        Json::Object(map) => 2 + map.keys().map(|key| key.len() + 4).sum::<usize>() + json_size(map.values()),
        _ => 8,
    };
    values.into_iter().map(size).sum()
}
