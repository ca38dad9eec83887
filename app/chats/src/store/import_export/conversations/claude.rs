//! Claude conversations: a list of messages, each with the identifier of its parent. In older
//! files, without parents, each message follows the message before it.

use std::collections::HashSet;

use serde_json::Value;

use super::{
    Fields, milliseconds, text_in,
    tree::{Node, NotReadable, ReadMessage, ShownMessage, Tree},
};
use crate::{
    attachment::{Document, DocumentKind},
    store::{Speaker, import_export::attached::FileAttachment},
};

/// The field with the messages.
pub(super) const MESSAGES: &str = "chat_messages";

const PARENT: &str = "parent_message_uuid";

/// Beginning of the parent identifier of first messages.
const NO_PARENT: &str = "00000000-0000-";

/// Placeholder in `text` for a block without text.
const UNSUPPORTED: &str = "```\nThis block is not supported on your current device yet.\n```";

/// The messages of a conversation.
pub(super) fn tree(conversation: &Fields) -> Tree {
    let mut tree = Tree::default();
    let Some(messages) = conversation.get(MESSAGES).and_then(Value::as_array) else { return tree };
    let field = |message: &Value, key: &str| message.get(key).and_then(Value::as_str).map(str::to_owned);
    let known: HashSet<String> = messages.iter().filter_map(|message| field(message, "uuid")).collect();
    let has_parents = messages.iter().any(|message| field(message, PARENT).is_some());
    for (order, message) in messages.iter().enumerate() {
        let said = tree.said(message, said);
        let before = || tree.nodes.last().map(|node| node.id.clone());
        let is_question = said.as_ref().is_some_and(|said| said.speaker == Speaker::User);
        let parent = match (message.get(PARENT), field(message, PARENT)) {
            (_, Some(id)) if id.starts_with(NO_PARENT) => None,
            (_, Some(id)) if known.contains(&id) => Some(id),
            (Some(Value::Null), _) if has_parents && is_question => None,
            _ => before(),
        };
        let id = field(message, "uuid").unwrap_or_else(|| format!("message {order}"));
        tree.nodes.push(Node { id, parent, said, order });
    }
    let shown = text_in(conversation, "current_leaf_message_uuid").filter(|id| known.contains(*id)).map(str::to_owned);
    tree.shown = shown.or_else(|| tree.nodes.last().map(|node| node.id.clone()));
    tree
}

/// Reads a message with its files; `None` if it has neither text nor files.
fn said(message: &Fields) -> ReadMessage {
    let attachments = attachments(message);
    let text = with_names_of_files(text(message)?, message, &attachments);
    if text.is_empty() && attachments.is_empty() {
        return Ok(None);
    }
    let speaker = match text_in(message, "sender") {
        Some("human" | "user") => Speaker::User,
        Some("assistant") => Speaker::Assistant,
        _ => return Err(NotReadable),
    };
    Ok(Some(ShownMessage { speaker, text, created: message.get("created_at").and_then(milliseconds), attachments }))
}

/// The text of a message: the text of its blocks without thoughts and tool calls, or else its
/// `text` field.
fn text(message: &Fields) -> Result<String, NotReadable> {
    let whole = match message.get("text") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.replace(UNSUPPORTED, "").trim().to_owned(),
        Some(_) => return Err(NotReadable),
    };
    let blocks: Vec<&str> = match message.get("content") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(blocks)) => blocks.iter().filter_map(block).collect(),
        Some(_) if whole.is_empty() => return Err(NotReadable),
        Some(_) => Vec::new(),
    };
    let parts: Vec<&str> = blocks.iter().map(|text| text.trim()).filter(|text| !text.is_empty()).collect();
    let joined = blocks.concat();
    // Sentences with citations are separate blocks of one paragraph.
    match joined.trim() {
        "" => Ok(whole),
        joined if joined == whole => Ok(whole),
        _ => Ok(parts.join("\n\n")),
    }
}

/// The text of a block; `None` for thoughts, tool calls and tool results.
fn block(block: &Value) -> Option<&str> {
    let fields = match block {
        Value::String(text) => return Some(text),
        block => block.as_object()?,
    };
    let is_words = matches!(text_in(fields, "type"), None | Some("text" | "voice_note"));
    fields.get("text").filter(|_| is_words)?.as_str()
}

/// Attached files whose text is in the export.
fn attachments(message: &Fields) -> Vec<FileAttachment> {
    let files = message.get("attachments").and_then(Value::as_array);
    files.into_iter().flatten().filter_map(attachment).collect()
}

fn attachment(file: &Value) -> Option<FileAttachment> {
    let text = file.get("extracted_content")?.as_str()?;
    let name = name_of(file).unwrap_or("pasted text");
    let kind = match DocumentKind::from_path(name.as_ref()) {
        // The export contains its text.
        DocumentKind::Pdf | DocumentKind::Docx => DocumentKind::Text,
        kind => kind,
    };
    let document = Document::read(name.to_owned(), kind, text.as_bytes()).ok()?;
    Some(FileAttachment::new(document.name, document.kind.name(), document.passages))
}

fn name_of(file: &Value) -> Option<&str> {
    text_in(file.as_object()?, "file_name")
}

/// The text below the names of files that the export does not contain, such as pictures.
fn with_names_of_files(text: String, message: &Fields, attachments: &[FileAttachment]) -> String {
    let files = ["attachments", "files"].into_iter().filter_map(|key| message.get(key)?.as_array()).flatten();
    let missing = files.filter_map(name_of).filter(|name| attachments.iter().all(|file| file.name != *name));
    let mut lines: Vec<String> = Vec::new();
    for line in missing.map(|name| format!("[attachment: {name}]")) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.extend((!text.is_empty()).then_some(text));
    lines.join("\n")
}
