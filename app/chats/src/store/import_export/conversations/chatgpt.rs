//! ChatGPT conversations: a map of nodes, each with a message, its parent and its children.

use std::collections::HashMap;

use serde_json::Value;

use super::{
    Fields, milliseconds, text_in,
    tree::{Node, NotReadable, ReadMessage, ShownMessage, Tree},
};
use crate::store::Speaker;

/// The field with the messages.
pub(super) const MESSAGES: &str = "mapping";

/// Text for a picture or another part without text.
const ATTACHMENT: &str = "[attachment]";

/// Marks of citations and other references in a text: begin, end, and separator of parts.
const REFERENCE: char = '\u{e200}';
const REFERENCE_END: char = '\u{e201}';
const REFERENCE_PART: char = '\u{e202}';

/// The messages of a conversation.
pub(super) fn tree(conversation: &Fields) -> Tree {
    let mut tree = Tree::default();
    let Some(mapping) = conversation.get(MESSAGES).and_then(Value::as_object) else { return tree };
    // Either the parent or the children may be missing.
    let mut listed: HashMap<&str, ListedChild<'_>> = HashMap::new();
    for (parent, node) in mapping {
        let children = node.get("children").and_then(Value::as_array);
        for (order, child) in children.into_iter().flatten().enumerate() {
            if let Some(child) = child.as_str() {
                listed.entry(child).or_insert(ListedChild { parent, order });
            }
        }
    }
    for (id, node) in mapping {
        let said = tree.said(node, said);
        let listed = listed.get(id.as_str());
        let own = node.get("parent").and_then(Value::as_str).filter(|parent| mapping.contains_key(*parent));
        let parent = own.or(listed.map(|listed| listed.parent)).map(str::to_owned);
        // Only the list of the actual parent gives an order.
        let order = listed.filter(|listed| Some(listed.parent) == parent.as_deref()).map_or(usize::MAX, |it| it.order);
        tree.nodes.push(Node { id: id.clone(), parent, said, order });
    }
    let date = |node: &Node| node.said.as_ref().and_then(|said| said.created);
    tree.nodes.sort_by_key(date);
    let shown = text_in(conversation, "current_node").filter(|id| mapping.contains_key(*id)).map(str::to_owned);
    let latest = tree.nodes.last().filter(|node| date(node).is_some()).map(|node| node.id.clone());
    tree.shown = shown.or(latest);
    tree
}

/// A node in its parent's list of children.
struct ListedChild<'a> {
    parent: &'a str,
    order: usize,
}

/// Reads the message of a node; `None` if it is not shown to people.
fn said(node: &Fields) -> ReadMessage {
    let message = match node.get("message") {
        None | Some(Value::Null) => return Ok(None),
        Some(message) => message.as_object().ok_or(NotReadable)?,
    };
    let hidden = message.get("metadata").and_then(|it| it.get("is_visually_hidden_from_conversation"));
    let role = message.get("author").and_then(|author| author.get("role")).and_then(Value::as_str);
    let speaker = match role {
        Some("user") => Some(Speaker::User),
        // Text written to a tool is not an answer.
        Some("assistant") if text_in(message, "recipient").is_none_or(|to| to == "all") => Some(Speaker::Assistant),
        Some(_) => return Ok(None),
        None => None,
    };
    if hidden.and_then(Value::as_bool) == Some(true) {
        return Ok(None);
    }
    let text = without_references(text(message)?, message);
    let text = text.trim();
    match speaker {
        _ if text.is_empty() => Ok(None),
        None => Err(NotReadable),
        Some(speaker) => {
            let created = message.get("create_time").and_then(milliseconds);
            Ok(Some(ShownMessage { speaker, text: text.to_owned(), created, attachments: Vec::new() }))
        }
    }
}

/// The text of a message; empty for thoughts, code for tools and similar content.
fn text(message: &Fields) -> Result<String, NotReadable> {
    let content = match message.get("content") {
        None | Some(Value::Null) => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(content) => content.as_object().ok_or(NotReadable)?,
    };
    if !matches!(text_in(content, "content_type"), None | Some("text" | "multimodal_text")) {
        return Ok(String::new());
    }
    match (content.get("parts"), content.get("text")) {
        (Some(Value::Array(parts)), _) => Ok(parts.iter().filter_map(part).collect::<Vec<_>>().join("\n")),
        (Some(Value::String(text)), _) | (None | Some(Value::Null), Some(Value::String(text))) => Ok(text.clone()),
        (None | Some(Value::Null), None | Some(Value::Null)) => Ok(String::new()),
        _ => Err(NotReadable),
    }
}

/// A part of a message as text. For speech, the transcript without the recording.
fn part(part: &Value) -> Option<&str> {
    let fields = match part {
        Value::String(text) => return Some(text),
        Value::Object(fields) => fields,
        _ => return None,
    };
    match text_in(fields, "content_type") {
        _ if text_in(fields, "text").is_some() => text_in(fields, "text"),
        Some(kind) if kind.contains("audio") => None,
        _ => Some(ATTACHMENT),
    }
}

/// Replaces references in the text by their words from the message's metadata.
fn without_references(text: String, message: &Fields) -> String {
    if !text.contains(REFERENCE) {
        return text;
    }
    let known = message.get("metadata").and_then(|it| it.get("content_references")).and_then(Value::as_array);
    let (mut plain, mut rest) = (String::new(), text.as_str());
    while let Some((before, reference)) = rest.split_once(REFERENCE) {
        let (reference, after) = reference.split_once(REFERENCE_END).unwrap_or((reference, ""));
        let marked = format!("{REFERENCE}{reference}{REFERENCE_END}");
        let is_this = |it: &&Value| it.get("matched_text").and_then(Value::as_str) == Some(&*marked);
        let words = known.and_then(|known| known.iter().find(is_this)?.get("alt")?.as_str());
        plain.push_str(before);
        plain.push_str(words.unwrap_or(&entity(reference).unwrap_or_default()));
        rest = after;
    }
    plain + rest
}

/// The name of a person or place marked in a text.
fn entity(reference: &str) -> Option<String> {
    let (kind, json) = reference.split_once(REFERENCE_PART)?;
    let names: Vec<Value> = serde_json::from_str(json).ok().filter(|_| kind == "entity")?;
    names.get(1)?.as_str().map(str::to_owned)
}
