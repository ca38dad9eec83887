//! Import of `conversations.json` of other services: ChatGPT ([`chatgpt`]) and Claude ([`claude`]).
//! Both are lists of conversations with trees of messages ([`tree`]). Each conversation and each
//! message is read separately. Those that cannot be read are left out and counted.

mod chatgpt;
mod claude;
mod tree;

use std::fmt;

use chrono::{DateTime, NaiveDate, NaiveDateTime};
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};

use self::tree::Tree;
use super::{FileChat, ReadFile, Unreadable, bad};
use crate::store::StoreError;

const EXPECTED: &str = "the conversations.json of ChatGPT's or Claude's export";

/// Seconds since 1970 stay below this limit for some thousand years. Larger numbers are
/// milliseconds.
const MOST_SECONDS: f64 = 1e11;

/// The fields of a JSON object.
type Fields = Map<String, Value>;

/// Reads a file with a list of conversations. Conversations without a message are left out.
///
/// # Errors
/// [`StoreError::Import`] if the file is not JSON, or if no conversation in it can be read.
pub(super) fn read_list(text: &str) -> Result<ReadFile, StoreError> {
    let mut conversations = Conversations::default();
    let mut json = serde_json::Deserializer::from_str(text);
    let read = conversations.deserialize(&mut json).and_then(|()| json.end());
    read.map_err(|error| bad("the file", EXPECTED, error))?;
    conversations.finish()
}

/// Reads one conversation, or an object that contains a list of them. Returns `None` for any other
/// object.
///
/// # Errors
/// [`StoreError::Import`] if no conversation in it can be read.
pub(super) fn read_object(object: &Value) -> Option<Result<ReadFile, StoreError>> {
    let mut conversations = Conversations::default();
    match object.get("conversations").and_then(Value::as_array) {
        Some(list) => list.iter().for_each(|one| conversations.add(one)),
        None if is_conversation(object) => conversations.add(object),
        None => return None,
    }
    Some(conversations.finish())
}

fn is_conversation(value: &Value) -> bool {
    value.get(chatgpt::MESSAGES).is_some() || value.get(claude::MESSAGES).is_some()
}

/// Conversations read so far.
#[derive(Debug, Default)]
struct Conversations {
    chats: Vec<FileChat>,
    unreadable: Unreadable,
    /// Number of conversations so far, readable or not.
    count: usize,
}

impl Conversations {
    fn add(&mut self, conversation: &Value) {
        self.count += 1;
        let tree = match conversation.as_object() {
            Some(fields) if fields.get(chatgpt::MESSAGES).is_some_and(Value::is_object) => chatgpt::tree(fields),
            Some(fields) if fields.get(claude::MESSAGES).is_some_and(Value::is_array) => claude::tree(fields),
            _ => {
                self.unreadable.chats += 1;
                return;
            }
        };
        let unreadable = tree.unreadable;
        let chat = chat(conversation, tree);
        match (chat.messages.is_empty(), unreadable) {
            (true, 0) => {}
            (true, _) => self.unreadable.chats += 1,
            (false, _) => {
                self.unreadable.messages += unreadable;
                self.chats.push(chat);
            }
        }
    }

    fn finish(self) -> Result<ReadFile, StoreError> {
        let Conversations { chats, unreadable, count } = self;
        if !chats.is_empty() {
            return Ok(ReadFile { chats, unreadable });
        }
        let got = match (count, unreadable.chats) {
            (0, _) => "an empty list".to_owned(),
            (_, 0) => "conversations without a message".to_owned(),
            (_, unreadable) => format!("{unreadable} of {count} entries that are not conversations"),
        };
        Err(bad("the file", EXPECTED, got))
    }
}

/// Makes a chat of these messages. It has the conversation's dates, or else the dates of its
/// messages.
fn chat(conversation: &Value, tree: Tree) -> FileChat {
    let first = |keys: [&str; 2]| keys.into_iter().find_map(|key| milliseconds(conversation.get(key)?));
    let text = |key: &str| conversation.get(key).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    let mut chat = FileChat::now();
    let created = first(["create_time", "created_at"]).or(tree.dates().min());
    chat.undated = created.is_none();
    chat.created = created.unwrap_or(chat.created);
    chat.updated = first(["update_time", "updated_at"]).or(tree.dates().max()).unwrap_or(chat.created);
    tree.add_to(&mut chat);
    let title = text("title").or(text("name")).map(str::to_owned);
    let words = || chat.messages.first().map(|message| super::chat::title(&message.content));
    chat.title = title.or_else(words).unwrap_or_default();
    chat
}

/// Reads a time as milliseconds since 1970. `time` is in seconds, as a number or a text, or a date
/// in ISO 8601.
fn milliseconds(time: &Value) -> Option<i64> {
    let text = match time {
        Value::Number(number) => return from_seconds(number.as_f64()?),
        Value::String(text) => text.trim(),
        _ => return None,
    };
    let zoned = || DateTime::parse_from_rfc3339(text).ok().map(|time| time.timestamp_millis());
    let unzoned = || text.parse::<NaiveDateTime>().ok().map(|time| time.and_utc().timestamp_millis());
    let date = || text.parse::<NaiveDate>().ok()?.and_hms_opt(0, 0, 0).map(|time| time.and_utc().timestamp_millis());
    text.parse().ok().and_then(from_seconds).or_else(zoned).or_else(unzoned).or_else(date)
}

fn from_seconds(number: f64) -> Option<i64> {
    let seconds = if number < MOST_SECONDS { number } else { number / 1000.0 };
    (seconds > 0.0 && seconds < MOST_SECONDS).then_some((seconds * 1000.0).round() as i64)
}

/// The text of this field without spaces around it; `None` if there is none.
fn text_in<'a>(fields: &'a Fields, key: &str) -> Option<&'a str> {
    fields.get(key)?.as_str().map(str::trim).filter(|text| !text.is_empty())
}

/// Reads a list one conversation at a time, so that a large file is never in memory as JSON values.
impl<'de> DeserializeSeed<'de> for &mut Conversations {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for &mut Conversations {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of conversations")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(conversation) = list.next_element::<Value>()? {
            self.add(&conversation);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
