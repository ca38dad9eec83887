//! The messages of one rendering in the form that templates are given, and its changes for templates that know less.

use serde_json::{Map, Value as Json, json};

use super::{ChatMessage, RenderOptions};
use crate::{ContentGuard, reasoning::transcript::Thoughts};

/// Stand around a probe's number: noncharacters of Unicode, which are for a program's own use and are removed from what is said.
const PROBE: [char; 2] = ['\u{FDD1}', '\u{FDD2}'];

/// A message with texts of its own.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TemplateMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text of the message, of the assistant without thoughts.
    pub content: String,
    /// Thoughts before an answer.
    pub thinking: Option<String>,
    /// Further fields, in OpenAI's form, with the arguments of calls as objects.
    pub fields: Map<String, Json>,
    /// The same with the arguments of calls as JSON texts, if there are calls.
    pub text_fields: Option<Map<String, Json>>,
}

/// Everything that a template writes of.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TemplateConversation {
    /// The messages.
    pub messages: Vec<TemplateMessage>,
    /// Definitions of tools, in OpenAI's form.
    pub tools: Vec<Json>,
    /// Further variables of the template.
    pub variables: Map<String, Json>,
    /// End where the model's answer begins.
    pub add_generation_prompt: bool,
}

/// Place of a system message that no message of the user follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastPlace {
    /// In a message of the user's of its own.
    Own,
    /// Behind the text of the message before, if that is the user's: for templates that want roles to alternate.
    Previous,
}

impl TemplateMessage {
    /// A message of `role` without further fields.
    pub fn new(role: &str, content: String) -> Self {
        TemplateMessage { role: role.to_owned(), content, thinking: None, fields: Map::new(), text_fields: None }
    }

    /// The message as a template is given it.
    fn of(message: &ChatMessage<'_>, guard: ContentGuard<'_>) -> Self {
        let said = |text: &str| guard.text(text).into_owned();
        let mut out = match Thoughts::of(message.content) {
            Thoughts { thinking: Some(thinking), answer, .. } if message.role == "assistant" => {
                let out = TemplateMessage::new(message.role, said(answer.trim_start_matches('\n')));
                TemplateMessage { thinking: Some(said(thinking.trim_matches('\n'))), ..out }
            }
            _ => TemplateMessage::new(message.role, said(message.content)),
        };
        if let Some(fields) = message.fields {
            out.fields = guard.map(&with_arguments(fields, ArgumentsForm::Objects));
            let texts = || guard.map(&with_arguments(fields, ArgumentsForm::Texts));
            out.text_fields = fields.contains_key("tool_calls").then(texts);
        }
        out
    }

    /// The calls of tools, in OpenAI's form.
    pub fn calls(&self) -> impl Iterator<Item = &Json> {
        self.fields.get("tool_calls").and_then(Json::as_array).into_iter().flatten()
    }
}

impl TemplateConversation {
    /// The conversation of `messages`, of whose control tokens the guard of `options` makes words.
    pub fn new(messages: &[ChatMessage<'_>], options: RenderOptions<'_>) -> Self {
        let guard = ContentGuard::new(options.guard);
        TemplateConversation {
            messages: messages.iter().map(|message| TemplateMessage::of(message, guard)).collect(),
            tools: options.tools.iter().map(|tool| guard.value(tool)).collect(),
            variables: options.variables.map(|variables| guard.map(variables)).unwrap_or_default(),
            add_generation_prompt: options.add_generation_prompt,
        }
    }

    /// True if a message is of `role`.
    pub fn has(&self, role: &str) -> bool {
        self.messages.iter().any(|message| message.role == role)
    }

    /// True if the message at `index` is of `role`.
    pub fn is(&self, index: usize, role: &str) -> bool {
        self.messages.get(index).is_some_and(|message| message.role == role)
    }

    /// True if it has definitions, calls or results of tools.
    pub fn is_about_tools(&self) -> bool {
        !self.tools.is_empty()
            || self.has("tool")
            || self.messages.iter().any(|message| message.calls().next().is_some())
    }

    /// Bytes of all texts, about.
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

    /// It with the system messages at the indices `moved` in front of the next message of the user.
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

    /// It with each call in a message of its own, followed by its result: for templates that write one call of a message.
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
                    (alone.content, alone.thinking) = (String::new(), None);
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

    /// It with all messages of the role `from` as messages of `to`.
    pub fn with_role(&self, from: &str, to: &str) -> TemplateConversation {
        let mut changed = self.clone();
        let messages = changed.messages.iter_mut().filter(|message| message.role == from);
        messages.for_each(|message| message.role = to.to_owned());
        changed
    }

    /// It with a probe in each system message that has a text, and their indices and probes.
    pub fn probed_systems(&self) -> (TemplateConversation, Vec<(usize, String)>) {
        let (mut probed, mut probes) = (self.clone(), Vec::new());
        for (at, message) in probed.messages.iter_mut().enumerate() {
            if message.role == "system" && !message.content.trim().is_empty() {
                probes.push((at, mark(&mut message.content, at)));
            }
        }
        (probed, probes)
    }

    /// It with a probe in the name of each tool and of each call, and in each result, and all of these.
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
                    // A letter between the numbers: it is no other's probe.
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

/// Texts that a rendering of a probed conversation has where nothing of tools is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ToolProbes {
    /// Of calls.
    pub calls: Vec<String>,
    /// Of definitions and results.
    pub others: Vec<String>,
}

/// Writes the probe `number` before the first word of `text`, and returns it.
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

/// Form in which a template is given the arguments of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentsForm {
    /// Most templates' form.
    Objects,
    /// JSON texts: OpenAI's form, for templates that append them to other text.
    Texts,
}

/// `fields` with the arguments of its calls in a form.
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

/// Bytes of text in JSON values, about.
fn json_size<'a>(values: impl IntoIterator<Item = &'a Json>) -> usize {
    let size = |value: &Json| match value {
        Json::String(text) => text.len(),
        Json::Array(list) => 2 + json_size(list),
        Json::Object(map) => 2 + map.keys().map(|key| key.len() + 4).sum::<usize>() + json_size(map.values()),
        _ => 8,
    };
    values.into_iter().map(size).sum()
}
