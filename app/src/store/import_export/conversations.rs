//! The `conversations.json` of other services' exports: ChatGPT's, a list of trees of messages, and Claude's, a list of lists.

use std::collections::HashMap;

use serde::Deserialize;

use super::{FileChat, FileMessage, bad};
use crate::store::{Speaker, StoreError};

/// Deepest chain of messages that is followed: a file may claim anything.
const DEEPEST: usize = 100_000;

/// A conversation of either service; fields that are not here do not matter.
#[derive(Debug, Deserialize)]
struct Conversation {
    #[serde(default, alias = "name")]
    title: Option<String>,
    #[serde(default)]
    create_time: Option<f64>,
    #[serde(default)]
    update_time: Option<f64>,
    /// ChatGPT's.
    #[serde(default)]
    mapping: Option<HashMap<String, Node>>,
    #[serde(default)]
    current_node: Option<String>,
    /// Claude's.
    #[serde(default)]
    chat_messages: Option<Vec<Said>>,
}

#[derive(Debug, Deserialize)]
struct Node {
    #[serde(default)]
    message: Option<NodeMessage>,
    #[serde(default)]
    parent: Option<String>,
    #[serde(default)]
    children: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct NodeMessage {
    author: Author,
    #[serde(default)]
    create_time: Option<f64>,
    #[serde(default)]
    content: serde_json::Value,
    #[serde(default)]
    recipient: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Author {
    #[serde(default)]
    role: String,
}

#[derive(Debug, Deserialize)]
struct Said {
    #[serde(default)]
    sender: String,
    #[serde(default)]
    text: String,
}

/// The conversations of a file. Those without a message are left out.
///
/// # Errors
/// [`StoreError::Import`] for anything that is no such list.
pub(super) fn read(text: &str) -> Result<Vec<FileChat>, StoreError> {
    const EXPECTED: &str = "the conversations.json of ChatGPT's or Claude's export";
    let all: Vec<Conversation> = serde_json::from_str(text).map_err(|error| bad("the file", EXPECTED, error))?;
    let known = |it: &Conversation| it.mapping.is_some() || it.chat_messages.is_some();
    if !all.iter().any(known) {
        return Err(bad("the file", EXPECTED, "a list without conversations"));
    }
    let chats: Vec<FileChat> = all.into_iter().filter_map(chat).collect();
    if chats.is_empty() { Err(bad("the file", EXPECTED, "conversations without a message")) } else { Ok(chats) }
}

fn milliseconds(seconds: Option<f64>) -> Option<i64> {
    seconds.filter(|seconds| seconds.is_finite() && *seconds > 0.0).map(|seconds| (seconds * 1000.0) as i64)
}

fn chat(from: Conversation) -> Option<FileChat> {
    let mut chat = FileChat::now();
    chat.created = milliseconds(from.create_time).unwrap_or(chat.created);
    chat.undated = milliseconds(from.create_time).is_none();
    chat.updated = milliseconds(from.update_time).unwrap_or(chat.created);
    chat.title = from.title.unwrap_or_default();
    if let Some(mapping) = &from.mapping {
        tree(&mut chat, mapping, from.current_node.as_deref());
    }
    for said in from.chat_messages.iter().flatten().filter(|said| !said.text.trim().is_empty()) {
        let speaker = if said.sender == "human" { Speaker::User } else { Speaker::Assistant };
        add(&mut chat, None, speaker, &said.text, None);
    }
    if chat.title.is_empty() {
        chat.title = chat.messages.first().map(|message| super::chat::title(&message.content)).unwrap_or_default();
    }
    (!chat.messages.is_empty()).then_some(chat)
}

/// Adds a message below `parent` (below the last one if that is `None` and it is not the first). Returns its index. What the assistant
/// says in several pieces is one message.
fn add(chat: &mut FileChat, parent: Option<usize>, speaker: Speaker, text: &str, created: Option<i64>) -> usize {
    let parent = parent.or(chat.messages.len().checked_sub(1));
    let last = chat.messages.len().checked_sub(1);
    if let Some(at) = parent.filter(|at| Some(*at) == last && chat.messages[*at].role == speaker.name()) {
        let content = &mut chat.messages[at].content;
        content.push_str("\n\n");
        content.push_str(text);
        return at;
    }
    push(chat, parent, speaker, text, created)
}

fn push(chat: &mut FileChat, parent: Option<usize>, speaker: Speaker, text: &str, created: Option<i64>) -> usize {
    chat.messages.push(FileMessage {
        parent,
        role: speaker.name().to_owned(),
        content: text.to_owned(),
        created: created.unwrap_or(chat.created),
        state: None,
        edited: false,
        model: None,
        stats: None,
        tools: None,
        attachments: Vec::new(),
        given: Vec::new(),
    });
    chat.messages.len() - 1
}

/// The text of a message that a person would read; `None` for others: instructions, calls of tools and their results.
fn readable(message: &NodeMessage) -> Option<(Speaker, String)> {
    let speaker = match &*message.author.role {
        "user" => Speaker::User,
        "assistant" if message.recipient.as_deref().is_none_or(|to| to == "all") => Speaker::Assistant,
        _ => return None,
    };
    let kind = message.content.get("content_type").and_then(serde_json::Value::as_str).unwrap_or("text");
    if !matches!(kind, "text" | "multimodal_text") {
        return None;
    }
    let parts = message.content.get("parts")?.as_array()?;
    // Pictures and the like are objects.
    let text: Vec<&str> = parts.iter().map(|part| part.as_str().unwrap_or("[attachment]")).collect();
    let text = text.join("\n").trim().to_owned();
    (!text.is_empty()).then_some((speaker, text))
}

/// ChatGPT's tree, every branch of it; the one that was shown last ends in `current`.
fn tree(chat: &mut FileChat, mapping: &HashMap<String, Node>, current: Option<&str>) {
    let mut roots: Vec<&str> = mapping
        .iter()
        .filter(|(_, node)| node.parent.as_ref().is_none_or(|parent| !mapping.contains_key(parent)))
        .map(|(id, _)| id.as_str())
        .collect();
    roots.sort_unstable();
    // A node, and the message that it is below.
    let mut waiting: Vec<(&str, Option<usize>)> = roots.into_iter().rev().map(|id| (id, None)).collect();
    let mut leaves: HashMap<&str, usize> = HashMap::new();
    let mut seen = std::collections::HashSet::new();
    while let Some((id, parent)) = waiting.pop() {
        if !seen.insert(id) || seen.len() > DEEPEST {
            continue;
        }
        let Some(node) = mapping.get(id) else { continue };
        let mut at = parent;
        if let Some((message, (speaker, text))) = node.message.as_ref().and_then(|it| Some((it, readable(it)?))) {
            let created = milliseconds(message.create_time);
            at = Some(match parent {
                Some(_) => add(chat, parent, speaker, &text, created),
                None => push(chat, None, speaker, &text, created),
            });
        }
        if let Some(at) = at {
            leaves.insert(id, at);
        }
        waiting.extend(node.children.iter().rev().map(|child| (child.as_str(), at)));
    }
    chat.leaf = current.and_then(|id| leaves.get(id)).copied();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Store, import_export::FileFormat};

    /// As ChatGPT writes it: an instruction that is not shown, a question asked twice, a tool in between, an answer in two pieces.
    const CHATGPT: &str = r#"[{
        "title": "Frogs", "create_time": 1700000000.5, "update_time": 1700000100.0, "current_node": "f",
        "mapping": {
            "root": {"id": "root", "message": null, "parent": null, "children": ["s"]},
            "s": {"message": {"author": {"role": "system"}, "content": {"content_type": "text", "parts": [""]}},
                "parent": "root", "children": ["a", "c"]},
            "a": {"message": {"author": {"role": "user"}, "create_time": 1700000001.0,
                "content": {"content_type": "text", "parts": ["What is a frog?"]}}, "parent": "s", "children": ["b"]},
            "b": {"message": {"author": {"role": "assistant"}, "content": {"content_type": "text", "parts": ["An animal."]}},
                "parent": "a", "children": []},
            "c": {"message": {"author": {"role": "user"},
                "content": {"content_type": "multimodal_text", "parts": [{"asset_pointer": "x"}, "What is this?"]}},
                "parent": "s", "children": ["d"]},
            "d": {"message": {"author": {"role": "assistant"}, "recipient": "browser",
                "content": {"content_type": "code", "text": "search()"}}, "parent": "c", "children": ["e"]},
            "e": {"message": {"author": {"role": "assistant"}, "recipient": "all",
                "content": {"content_type": "text", "parts": ["A frog."]}}, "parent": "d", "children": ["f"]},
            "f": {"message": {"author": {"role": "assistant"}, "content": {"content_type": "text", "parts": ["Green."]}},
                "parent": "e", "children": []}
        }}]"#;

    #[test]
    fn chatgpt_conversations_keep_their_branches() {
        let mut store = Store::in_memory().unwrap();
        let ids = store.import(FileFormat::Json, CHATGPT).unwrap().added;
        assert_eq!(ids.len(), 1);
        let chat = store.chat(ids[0]).unwrap();
        assert_eq!((&*chat.title, chat.created), ("Frogs", 1_700_000_000_500));
        let said = |store: &Store| -> Vec<String> {
            store.branch(ids[0]).unwrap().into_iter().map(|message| message.content).collect()
        };
        assert_eq!(said(&store), ["[attachment]\nWhat is this?", "A frog.\n\nGreen."]);
        let first = store.branch(ids[0]).unwrap()[0].clone();
        assert_eq!(first.version, (2, 2), "the question that was asked before");
        store.show_version(first.id, 1).unwrap();
        assert_eq!(said(&store), ["What is a frog?", "An animal."]);
    }

    #[test]
    fn claude_conversations_are_imported() {
        let json = r#"[{"uuid": "1", "name": "", "created_at": "2024-01-01T00:00:00Z", "chat_messages": [
            {"sender": "human", "text": "Hello"}, {"sender": "assistant", "text": "Hi."},
            {"sender": "assistant", "text": " "}, {"sender": "human", "text": "Bye"}]},
            {"name": "empty", "chat_messages": []}]"#;
        let chats = read(json).unwrap();
        assert_eq!((chats.len(), &*chats[0].title), (1, "Hello"));
        let roles: Vec<_> = chats[0].messages.iter().map(|message| (&*message.role, message.parent)).collect();
        assert_eq!(roles, [("user", None), ("assistant", Some(0)), ("user", Some(1))]);
    }

    #[test]
    fn odd_conversations_do_no_harm() {
        // A circle, a child that is not there, and messages without contents.
        let circle = r#"[{"mapping": {
            "a": {"message": {"author": {"role": "user"}, "content": {"parts": ["x"]}}, "parent": null, "children": ["b", "gone"]},
            "b": {"message": {"author": {"role": "assistant"}, "content": null}, "parent": "a", "children": ["a"]}}}]"#;
        assert_eq!(read(circle).unwrap()[0].messages.len(), 1);
        for nonsense in
            ["[]", "[1]", "[{}]", r#"[{"mapping": {}}]"#, r#"[{"chat_messages": null}]"#, "[{\"mapping\": 3}]"]
        {
            assert!(matches!(read(nonsense), Err(StoreError::Import { .. })), "{nonsense}");
        }
    }
}
