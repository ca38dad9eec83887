//! Tool calls in chats, and their results. An answer holds the model's calls. Each result is a
//! message below the answer, and the next answer is below the last result.

use rusqlite::params;
use serde::{Deserialize, Serialize};

use super::{
    ChatId, MessageId, MessageState, NewMessage, Speaker, Store,
    error::{OperationContext, StoreError},
    message, one,
};

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Identifier, unique within the chat.
    pub id: String,
    /// Name by which the model knows the tool.
    pub name: String,
    /// Arguments as JSON text, as written by the model.
    pub arguments: String,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolOutcome {
    /// The tool ran.
    Done,
    /// The tool did not run, or failed.
    Failed,
    /// The user denied the call.
    Denied,
}

/// A tool call that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The call.
    #[serde(flatten)]
    pub call: ToolCall,
    /// How it ended.
    pub outcome: ToolOutcome,
    /// Name of the server that has the tool; `None` for a built-in tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
}

/// Tool data of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MessageTools {
    /// The tool calls of an answer.
    Calls(Vec<ToolCall>),
    /// The call that the message answers.
    Result(ToolResult),
}

impl Store {
    /// Records the calls of an answer.
    pub fn set_tool_calls(&mut self, id: MessageId, calls: &[ToolCall]) -> Result<(), StoreError> {
        const OPERATION: &str = "saving calls of tools";
        let json = serde_json::to_string(calls).unwrap_or_default();
        let changed = self.db.execute("UPDATE message SET tools = ?2 WHERE id = ?1", params![id.0, json]);
        one(changed.during(OPERATION)?, "message", id.0)
    }

    /// Adds the result of a call below the message `parent`.
    pub fn add_tool_result(
        &mut self,
        chat: ChatId,
        parent: MessageId,
        result: &ToolResult,
        text: &str,
    ) -> Result<MessageId, StoreError> {
        const OPERATION: &str = "saving the result of a tool";
        let json = serde_json::to_string(result).unwrap_or_default();
        let content = text.to_owned();
        let new = NewMessage { speaker: Speaker::Tool, content, state: MessageState::Complete, model: None };
        self.transaction(OPERATION, |db| {
            let id = message::insert(db, chat, Some(parent), &new)?;
            db.execute("UPDATE message SET tools = ?2 WHERE id = ?1", params![id.0, json]).during(OPERATION)?;
            Ok(id)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::import_export::FileFormat;

    #[test]
    fn calls_and_results_are_kept_exported_and_imported() {
        let (mut store, chat) = Store::with_chat();
        store.set_chat_tools(chat, true).unwrap();
        let asked = store.add_message(chat, None, &NewMessage::user("What is 6 * 7?")).unwrap();
        let answer = NewMessage::assistant("");
        let answer = store.add_message(chat, Some(asked), &answer).unwrap();
        let call = |id: &str| ToolCall {
            id: id.to_owned(),
            name: "calculator".to_owned(),
            arguments: "{\"expression\": \"6*7\"}".to_owned(),
        };
        store.set_tool_calls(answer, &[call("a"), call("b")]).unwrap();
        let done = ToolResult { call: call("a"), outcome: ToolOutcome::Done, server: None };
        let first = store.add_tool_result(chat, answer, &done, "42").unwrap();
        let denied = ToolResult { call: call("b"), outcome: ToolOutcome::Denied, server: Some("files".to_owned()) };
        store.add_tool_result(chat, first, &denied, "not allowed").unwrap();

        let said = store.branch(chat).unwrap();
        assert_eq!(said[1].calls(), [call("a"), call("b")]);
        assert_eq!((said[2].speaker, &*said[2].content, said[2].result()), (Speaker::Tool, "42", Some(&done)));
        assert_eq!((said[3].result(), said[0].calls().len(), said[0].result()), (Some(&denied), 0, None));

        let json = store.export(&[chat]).unwrap();
        let mut other = Store::in_memory().unwrap();
        let copies = other.import(FileFormat::Json, &json).unwrap().added;
        assert_eq!(other.export(&copies).unwrap(), json);
        let copied = other.branch(copies[0]).unwrap();
        assert_eq!((copied[1].calls(), copied[3].result()), (said[1].calls(), said[3].result()));
        assert!(other.chat(copies[0]).unwrap().tools);
    }
}
