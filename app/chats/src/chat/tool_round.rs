//! The tool calls of one answer, one after the other. Each call waits for the user's consent, runs,
//! and leaves its result in the chat.

use std::{collections::VecDeque, time::Instant};

use serde_json::{Map, Value};

use crate::{
    store::{ChatId, MessageId, Speaker, Store, StoreError, StoredMessage, ToolCall, ToolOutcome, ToolResult},
    tools::{Consent, OfferedTool, RunningCall, Toolbox, shortened},
};

/// Largest number of answers with calls in a row, per user message. The next answer gets no tools.
pub const MOST_ROUNDS: usize = 8;

/// The user's decision on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolDecision {
    /// The call may run.
    Allow,
    /// The call may not run, and the model is told so.
    Deny,
}

/// The call that the round waits for.
#[derive(Debug, Clone, Copy)]
pub struct PendingCall<'a> {
    /// The call.
    pub call: &'a ToolCall,
    /// The tool.
    pub tool: &'a OfferedTool,
    /// Start of the call; `None` while the user is asked.
    pub since: Option<Instant>,
}

/// Calls that have not ended.
#[derive(Debug)]
pub(super) struct ToolRound {
    /// The message that the next result is added below.
    after: MessageId,
    waiting: VecDeque<ToolCall>,
    current: Option<Current>,
    /// Result that could not be saved yet, with its text.
    unsaved: Option<(ToolResult, String)>,
}

#[derive(Debug)]
struct Current {
    call: ToolCall,
    tool: OfferedTool,
    arguments: Map<String, Value>,
    running: Option<(RunningCall, Instant)>,
}

impl ToolRound {
    /// A round for the calls of an answer.
    pub fn new(answer: MessageId, calls: &[ToolCall]) -> Self {
        ToolRound { after: answer, waiting: calls.iter().cloned().collect(), current: None, unsaved: None }
    }

    /// The latest message of the round.
    pub fn last(&self) -> MessageId {
        self.after
    }

    /// The call that waits for the user's consent or runs.
    pub fn pending(&self) -> Option<PendingCall<'_>> {
        let Current { call, tool, running, .. } = self.current.as_ref()?;
        Some(PendingCall { call, tool, since: running.as_ref().map(|(_, since)| *since) })
    }

    /// Applies the user's decision on the pending call.
    pub fn decide(&mut self, toolbox: &Toolbox, decision: ToolDecision) {
        let Some(Current { tool, arguments, running: running @ None, .. }) = &mut self.current else { return };
        match decision {
            ToolDecision::Allow => *running = Some((toolbox.run(tool, std::mem::take(arguments)), Instant::now())),
            ToolDecision::Deny => self.end(ToolOutcome::Denied, "The user did not allow this call.".to_owned()),
        }
    }

    /// Continues as far as possible. Returns the message to answer once every call has its result.
    /// `limit` is the largest size of a result in bytes.
    pub fn advance(
        &mut self,
        store: &mut Store,
        chat: ChatId,
        toolbox: &Toolbox,
        limit: usize,
    ) -> Result<Option<MessageId>, StoreError> {
        loop {
            if let Some((result, text)) = &self.unsaved {
                self.after = store.add_tool_result(chat, self.after, result, text)?;
                self.unsaved = None;
            }
            match &mut self.current {
                Some(Current { running: None, .. }) => return Ok(None),
                Some(Current { running: Some((running, _)), .. }) => match running.take() {
                    None => return Ok(None),
                    Some(Ok(text)) => self.end(ToolOutcome::Done, shortened(&text, limit)),
                    Some(Err(why)) => self.end(ToolOutcome::Failed, shortened(&format!("Error: {why}"), limit)),
                },
                None => match self.waiting.pop_front() {
                    None => return Ok(Some(self.after)),
                    Some(call) => self.begin(toolbox, call),
                },
            }
        }
    }

    fn begin(&mut self, toolbox: &Toolbox, call: ToolCall) {
        let offered = toolbox.offered();
        let tool = offered.iter().find(|tool| tool.name == call.name).cloned().ok_or_else(|| {
            let names: Vec<&str> = offered.iter().map(|tool| &*tool.name).collect();
            format!("there is no such tool; there are: {}", names.join(", "))
        });
        let (tool, arguments) = match tool.and_then(|tool| Ok((tool, arguments(&call.arguments)?))) {
            Ok(found) => found,
            Err(why) => {
                let refused = ToolResult { call, outcome: ToolOutcome::Failed, server: None };
                self.unsaved = Some((refused, format!("Error: {why}")));
                return;
            }
        };
        let allowed = tool.consent == Consent::Always;
        self.current = Some(Current { call, tool, arguments, running: None });
        if allowed {
            self.decide(toolbox, ToolDecision::Allow);
        }
    }

    fn end(&mut self, outcome: ToolOutcome, text: String) {
        if let Some(Current { call, tool, .. }) = self.current.take() {
            self.unsaved = Some((ToolResult { call, outcome, server: tool.server }, text));
        }
    }
}

/// The arguments of a call, which must be a JSON object. An empty text gives an empty object.
fn arguments(text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(if text.trim().is_empty() { "{}" } else { text }) {
        Ok(Value::Object(arguments)) => Ok(arguments),
        Ok(Value::Null) => Ok(Map::new()),
        _ => Err(format!("the arguments: expected a JSON object, got {}", shortened(text, 200))),
    }
}

/// Number of answers with calls at the end of `path`, since the user's last message.
pub(super) fn rounds(path: &[&StoredMessage]) -> usize {
    let since = path.iter().rev().take_while(|message| message.speaker != Speaker::User);
    since.filter(|message| !message.calls().is_empty()).count()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        store::NewMessage,
        tools::{ToolHub, ToolLimits, ToolSettings},
    };
    use thermocline_host::{folders::Folders, remote::KeyStore};

    fn toolbox() -> Toolbox {
        let keys = KeyStore::of(&Folders::below(std::path::Path::new("nowhere")));
        Toolbox::new(Arc::new(ToolHub::new(keys, ToolLimits::default(), || ())), ToolSettings::default())
    }

    fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
        ToolCall { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
    }

    #[test]
    fn calls_wait_for_consent_and_leave_results_in_order() {
        let (mut store, mut toolbox) = (Store::in_memory().unwrap(), toolbox());
        let clock = toolbox.offered().remove(1);
        toolbox.settings.consents.set(None, &clock.tool, Consent::Ask);
        let chat = store.add_chat(None, "").unwrap();
        let answer = store.add_message(chat, None, &NewMessage::user("x")).unwrap();
        let calls = [
            call("1", "calculator", "{\"expression\": \"6*7\"}"),
            call("2", "clock", ""),
            call("3", "clock", "{}"),
            call("4", "format_disk", "{}"),
            call("5", "calculator", "6*7"),
        ];
        let mut round = ToolRound::new(answer, &calls);
        let mut advance = |round: &mut ToolRound| round.advance(&mut store, chat, &toolbox, 1000).unwrap();
        assert_eq!(advance(&mut round), None);
        let pending = round.pending().unwrap();
        assert_eq!((&*pending.call.id, pending.since), ("2", None), "the first ran without asking");
        assert_eq!(advance(&mut round), None, "it goes on waiting");
        round.decide(&toolbox, ToolDecision::Deny);
        assert_eq!(advance(&mut round), None);
        round.decide(&toolbox, ToolDecision::Allow);
        let last = advance(&mut round);
        assert!(last.is_some() && round.pending().is_none());
        let said = store.branch(chat).unwrap();
        let outcomes: Vec<_> =
            said[1..].iter().map(|it| (&*it.result().unwrap().call.id, it.result().unwrap().outcome)).collect();
        use ToolOutcome::{Denied, Done, Failed};
        assert_eq!(outcomes, [("1", Done), ("2", Denied), ("3", Done), ("4", Failed), ("5", Failed)]);
        assert_eq!(said[1].content, "42");
        assert!(said[3].content.starts_with("Local time"));
        assert_eq!(said[4].content, "Error: there is no such tool; there are: calculator, clock");
        assert!(said[5].content.contains("expected a JSON object, got 6*7"));
    }
}
