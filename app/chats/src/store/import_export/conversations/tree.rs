//! The messages of a conversation as a tree. Each changed question and each repeated answer is a
//! branch.

use std::collections::HashMap;

use serde_json::Value;

use super::Fields;
use crate::store::{
    Speaker,
    import_export::{FileChat, FileMessage, attached::FileAttachment},
};

/// A message that is shown to people.
#[derive(Debug)]
pub(super) struct ShownMessage {
    pub speaker: Speaker,
    pub text: String,
    /// Time in milliseconds since 1970, if the file has one.
    pub created: Option<i64>,
    pub attachments: Vec<FileAttachment>,
}

/// A message that cannot be read.
pub(super) struct NotReadable;

/// A message that was read; `None` if it is not shown to people.
pub(super) type ReadMessage = Result<Option<ShownMessage>, NotReadable>;

/// A node of the tree.
#[derive(Debug)]
pub(super) struct Node {
    pub id: String,
    /// The parent node. A parent that does not exist counts as none.
    pub parent: Option<String>,
    /// `None` for nodes that are not shown: roots, instructions, thoughts, tool calls and tool
    /// results.
    pub said: Option<ShownMessage>,
    /// Position among the nodes with the same parent.
    pub order: usize,
}

/// All messages of a conversation.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// All nodes, in the order of the file or of their dates.
    pub nodes: Vec<Node>,
    /// The last node of the visible branch; `None` if the file does not name it.
    pub shown: Option<String>,
    /// Messages that could not be read.
    pub unreadable: usize,
}

/// A node that waits for its place in the chat.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    node: usize,
    /// Index of the message above it.
    above: Option<usize>,
    /// True if this node is the only child of the message above it.
    alone: bool,
}

impl Tree {
    /// The times of all messages that have one.
    pub fn dates(&self) -> impl Iterator<Item = i64> {
        self.nodes.iter().filter_map(|node| node.said.as_ref()?.created)
    }

    /// Reads a message with `read`. A message that cannot be read is counted.
    pub fn said(&mut self, message: &Value, read: fn(&Fields) -> ReadMessage) -> Option<ShownMessage> {
        let said = message.as_object().ok_or(NotReadable).and_then(read);
        self.unreadable += usize::from(said.is_err());
        said.unwrap_or_default()
    }

    /// Adds every message to `chat`, parents first. Several pieces of one answer become one
    /// message.
    pub fn add_to(mut self, chat: &mut FileChat) {
        let children = self.children();
        let count = self.nodes.len();
        // Nodes in a cycle have no root. The first of them is used as the root.
        let mut starts = children.roots.into_iter().chain(0..count);
        let mut places: Vec<Option<Option<usize>>> = vec![None; count];
        let mut waiting = Vec::new();
        while let Some(next) =
            waiting.pop().or_else(|| starts.next().map(|node| Waiting { node, above: None, alone: false }))
        {
            if places[next.node].is_some() {
                continue;
            }
            let said = self.nodes[next.node].said.take();
            let place = said.map(|said| add(chat, next, said));
            let above = place.or(next.above);
            places[next.node] = Some(above);
            let below = &children.below[next.node];
            let alone = below.len() == 1 && (place.is_some() || next.alone);
            waiting.extend(below.iter().rev().map(|node| Waiting { node: *node, above, alone }));
        }
        let shown = self.shown.and_then(|id| self.nodes.iter().rposition(|node| node.id == id));
        chat.leaf = shown.and_then(|node| places[node].flatten());
    }

    fn children(&self) -> Children {
        let index: HashMap<&str, usize> = self.nodes.iter().enumerate().rev().map(|(n, it)| (&*it.id, n)).collect();
        let mut children = Children { roots: Vec::new(), below: vec![Vec::new(); self.nodes.len()] };
        for (n, node) in self.nodes.iter().enumerate() {
            let parent = node.parent.as_deref().and_then(|id| index.get(id));
            parent.map_or(&mut children.roots, |parent| &mut children.below[*parent]).push(n);
        }
        for siblings in children.below.iter_mut().chain([&mut children.roots]) {
            siblings.sort_by_key(|n| self.nodes[*n].order);
        }
        children
    }
}

/// Indices of the root nodes, and of the children of each node.
struct Children {
    roots: Vec<usize>,
    below: Vec<Vec<usize>>,
}

/// Adds a message, or appends its text to the message above if it continues that answer. Returns
/// the index of the message.
fn add(chat: &mut FileChat, place: Waiting, said: ShownMessage) -> usize {
    let goes_on = said.speaker == Speaker::Assistant && place.alone;
    if let Some(at) = place.above.filter(|at| goes_on && chat.messages[*at].role == said.speaker.name()) {
        let message = &mut chat.messages[at];
        message.content.push_str("\n\n");
        message.content.push_str(&said.text);
        message.attachments.extend(said.attachments);
        return at;
    }
    let created = said.created.unwrap_or(chat.created);
    let message = FileMessage::new(place.above, said.speaker, &said.text, created);
    chat.messages.push(FileMessage { attachments: said.attachments, ..message });
    chat.messages.len() - 1
}
