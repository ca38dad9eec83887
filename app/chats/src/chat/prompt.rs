//! The prompt of an answer, for the engine and for a server: the messages above it and the attached
//! files.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use thermocline_engine::{
    session::{ChatOptions, ContextPolicy, Message, Prompt, Request, Role},
    tokenizer::reasoning::transcript::Thoughts,
};

use crate::{
    chat::{
        SamplingOverrides,
        given::{self, Measure, MessageContent, PassageDecision},
    },
    store::{ChatId, MessageId, Speaker, Store, StoreError, StoredMessage, ToolCall},
};
use thermocline_host::{answer_stats::AnswerStats, library::ModelId, remote::RemoteRequest};

/// The messages above an answer, and its sampling settings.
#[derive(Debug)]
pub(super) struct ChatPrompt {
    turns: Vec<Message>,
    /// Existing text of the answer that the model continues.
    partial_answer: String,
    /// Version of the answer, from 1.
    version: usize,
    choices: SamplingOverrides,
    /// Definitions of the tools given to the model.
    pub tools: Vec<Value>,
}

impl ChatPrompt {
    /// Chooses the parts of attached files that the model gets for message `id`. An answer that is
    /// continued keeps its files and passages.
    pub fn decide(
        store: &mut Store,
        chat: ChatId,
        id: MessageId,
        measure: &Measure<'_>,
    ) -> Result<PassageDecision, StoreError> {
        if store.message(id).is_ok_and(|message| !message.content.is_empty()) {
            return Ok(PassageDecision::Recorded);
        }
        let (about, messages) = (store.chat(chat)?, store.messages(chat)?);
        given::decide(store, chat, &above(&messages, id), &about.system_prompt, measure)
    }

    /// Reads the prompt of message `id` for a model that can see pictures or that cannot, with the
    /// recorded parts of files.
    pub fn read(store: &Store, chat: ChatId, id: MessageId, sees_pictures: bool) -> Result<Self, StoreError> {
        let (about, own) = (store.chat(chat)?, store.message(id).ok());
        Ok(ChatPrompt {
            turns: turns_before(store, chat, id, sees_pictures)?,
            partial_answer: own.as_ref().map_or_else(String::new, |message| message.content.clone()),
            version: own.as_ref().map_or(1, |message| message.version.0),
            choices: SamplingOverrides::from_json(about.sampling.as_deref()),
            tools: Vec::new(),
        })
    }

    /// The prompt that message `id` answered, with the seed of its answer. An unknown seed becomes
    /// a fixed one. `sees_pictures` is true if the model can see pictures.
    pub fn repeated(store: &Store, chat: ChatId, id: MessageId, sees_pictures: bool) -> Result<Self, StoreError> {
        let about = store.chat(chat)?;
        let mut choices = SamplingOverrides::from_json(about.sampling.as_deref());
        let answered = AnswerStats::from_json(store.message(id)?.stats.as_deref());
        choices.seed = answered.map(|stats| stats.seed).or(choices.seed).or(Some(1));
        let turns = turns_before(store, chat, id, sees_pictures)?;
        Ok(ChatPrompt { turns, partial_answer: String::new(), version: 1, choices, tools: Vec::new() })
    }

    /// The seed, if one is set, plus the version. Without the version, each version would repeat
    /// the first.
    fn seed(&self) -> Option<u64> {
        self.choices.seed.map(|seed| seed.wrapping_add(self.version as u64 - 1))
    }

    /// The request to the engine, for a context of `context` tokens.
    pub fn request(self, context: usize, model: &ModelId) -> Request {
        let mut sampling = self.choices.apply_to(SamplingOverrides::model_defaults(model));
        sampling.seed = self.seed().or(sampling.seed);
        let on_full = if self.choices.stop_when_full { ContextPolicy::Stop } else { ContextPolicy::Shift { keep: 1 } };
        // An answer whose beginning was shifted out of the context rarely ends.
        let most = self.choices.max_tokens.unwrap_or(context);
        let prompt = prompt(self.turns, &self.partial_answer);
        let chat = ChatOptions { tools: self.tools, ..ChatOptions::default() };
        Request { sampling, max_tokens: Some(most), on_full, chat, ..Request::new(prompt) }
    }

    /// The request to a server for its model `name`. Beside the messages it sends only settings
    /// that the user changed. It leaves out the thoughts of earlier answers.
    pub fn remote_request(self, name: &str) -> RemoteRequest {
        let mut request = RemoteRequest::new(name);
        request.tools.clone_from(&self.tools);
        let choices = &self.choices;
        request.set("temperature", choices.temperature.map(exact));
        request.set("top_p", choices.top_p.map(exact));
        request.set("top_k", choices.top_k);
        request.set("min_p", choices.min_p.map(exact));
        request.set("repeat_penalty", choices.repeat_penalty.map(exact));
        request.set("dry_multiplier", choices.dry_multiplier.map(exact));
        request.set("seed", self.seed());
        request.set("max_tokens", choices.max_tokens);
        for turn in self.turns {
            let content = if turn.role == Role::Assistant { said(&turn.content) } else { &turn.content };
            request.push_with_pictures(turn.role.name(), content, turn.pictures);
            if let Some(Value::Object(message)) = request.messages.last_mut() {
                message.extend(turn.fields);
            }
        }
        if !said(&self.partial_answer).is_empty() {
            request.push("assistant", said(&self.partial_answer));
        }
        request
    }
}

/// The prompt of message `id`: the messages above it and the first `partial_len` bytes of its own
/// text. The model, which can see pictures or cannot, continues that text.
///
/// # Errors
/// The store's error.
pub fn prompt_before(
    store: &Store,
    chat: ChatId,
    id: MessageId,
    partial_len: usize,
    sees_pictures: bool,
) -> Result<Prompt, StoreError> {
    let own = store.message(id).ok();
    let partial_answer = own.as_ref().and_then(|message| message.content.get(..partial_len)).unwrap_or_default();
    Ok(prompt(turns_before(store, chat, id, sees_pictures)?, partial_answer))
}

/// The prompt of an answer to message `id`, for a model that can see pictures or that cannot.
///
/// # Errors
/// The store's error.
pub fn prompt_through(store: &Store, chat: ChatId, id: MessageId, sees_pictures: bool) -> Result<Prompt, StoreError> {
    let (about, own) = (store.chat(chat)?, store.message(id)?);
    let all = store.messages(chat)?;
    let mut through = above(&all, id);
    through.push(&own);
    let contents = given::contents(store, chat, &through, sees_pictures)?;
    Ok(Prompt::Chat(chat_turns(&about.system_prompt, &through, contents)))
}

/// The prompt for an answer to `turns`, or for the rest of `partial_answer`.
fn prompt(mut turns: Vec<Message>, partial_answer: &str) -> Prompt {
    if partial_answer.is_empty() {
        return Prompt::Chat(turns);
    }
    turns.push(Message::new(Role::Assistant, partial_answer));
    Prompt::Continue(turns)
}

/// The system prompt and the messages above message `id`.
fn turns_before(store: &Store, chat: ChatId, id: MessageId, sees_pictures: bool) -> Result<Vec<Message>, StoreError> {
    let about = store.chat(chat)?;
    let all = store.messages(chat)?;
    let before = above(&all, id);
    Ok(chat_turns(&about.system_prompt, &before, given::contents(store, chat, &before, sees_pictures)?))
}

/// The turns of a chat: the system prompt, and the messages of `branch` with these contents.
pub fn chat_turns(system: &str, branch: &[&StoredMessage], contents: Vec<MessageContent>) -> Vec<Message> {
    let system = (!system.trim().is_empty()).then(|| Message::new(Role::System, system));
    system.into_iter().chain(branch_turns(branch, contents)).collect()
}

/// The turns of messages with these contents. A call without a result gets the result that it was
/// stopped, because templates require a result for each call.
fn branch_turns(branch: &[&StoredMessage], contents: Vec<MessageContent>) -> Vec<Message> {
    let mut turns = Vec::new();
    // Calls whose results may follow.
    let mut open: Vec<&ToolCall> = Vec::new();
    let stopped = |turns: &mut Vec<Message>, open: &mut Vec<&ToolCall>| {
        turns.extend(open.drain(..).map(|call| result_turn(call, "The user stopped this call.".to_owned())));
    };
    for (message, MessageContent { text, pictures }) in branch.iter().zip(contents) {
        match message.speaker {
            Speaker::Tool => {
                if let Some(result) = message.result() {
                    open.retain(|call| call.id != result.call.id);
                    turns.push(result_turn(&result.call, text));
                }
                // Leave out a result without its call, which no template supports.
                continue;
            }
            Speaker::User => {
                stopped(&mut turns, &mut open);
                turns.push(Message { pictures, ..Message::new(Role::User, text) });
            }
            Speaker::Assistant => {
                stopped(&mut turns, &mut open);
                let mut turn = Message::new(Role::Assistant, text);
                if !message.calls().is_empty() {
                    let call = |call: &ToolCall| {
                        let function = json!({ "name": call.name, "arguments": call.arguments });
                        json!({ "id": call.id, "type": "function", "function": function })
                    };
                    turn.fields.insert("tool_calls".to_owned(), message.calls().iter().map(call).collect());
                    open = message.calls().iter().collect();
                }
                turns.push(turn);
            }
        }
    }
    stopped(&mut turns, &mut open);
    turns
}

fn result_turn(call: &ToolCall, text: String) -> Message {
    let fields = [("tool_call_id".to_owned(), json!(call.id)), ("name".to_owned(), json!(call.name))];
    Message { fields: Map::from_iter(fields), ..Message::new(Role::Tool, text) }
}

/// The messages above message `id`, first to last.
pub(super) fn above(all: &[StoredMessage], id: MessageId) -> Vec<&StoredMessage> {
    let by_id: HashMap<MessageId, &StoredMessage> = all.iter().map(|message| (message.id, message)).collect();
    let above = |message: &&StoredMessage| message.parent.and_then(|parent| by_id.get(&parent).copied());
    let mut before: Vec<&StoredMessage> = std::iter::successors(by_id.get(&id).copied(), above).skip(1).collect();
    before.reverse();
    before
}

/// The text of an answer without its thoughts.
pub(super) fn said(transcript: &str) -> &str {
    Thoughts::of(transcript).answer.trim_start()
}

/// `value` with the digits that the user sees: 0.7, not 0.699999988.
fn exact(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{NewMessage, ToolOutcome, ToolResult};

    #[test]
    fn remote_request_has_the_branch_without_thoughts_and_what_was_set() {
        let (mut store, chat) = Store::with_chat();
        store.set_system_prompt(chat, "Be brief.").unwrap();
        store.set_chat_sampling(chat, Some(r#"{"temperature": 0.7, "seed": 5}"#)).unwrap();
        let first = store.add_message(chat, None, &NewMessage::user("Hi")).unwrap();
        let answer = store.add_message(chat, Some(first), &NewMessage::user("x")).unwrap();
        let prompt = ChatPrompt::read(&store, chat, answer, true).unwrap();
        let partial_answer = "<think>\nhm\n</think>\n\nOnce".to_owned();
        let request = ChatPrompt { partial_answer, version: 3, ..prompt }.remote_request("m");
        let message = |role: &str, content: &str| json!({ "role": role, "content": content });
        assert_eq!(
            request.messages,
            [message("system", "Be brief."), message("user", "Hi"), message("assistant", "Once")]
        );
        assert_eq!(json!(request.settings), json!({ "temperature": 0.7, "seed": 7 }));
    }

    #[test]
    fn calls_are_followed_by_their_results_and_stopped_ones_by_a_note() {
        let (mut store, chat) = Store::with_chat();
        let asked = store.add_message(chat, None, &NewMessage::user("Hi")).unwrap();
        let answer = NewMessage::assistant("Well.");
        let answer = store.add_message(chat, Some(asked), &answer).unwrap();
        let call =
            |id: &str| ToolCall { id: id.to_owned(), name: "clock".to_owned(), arguments: "{\"a\": 1}".to_owned() };
        store.set_tool_calls(answer, &[call("a"), call("b")]).unwrap();
        let result = ToolResult { call: call("a"), outcome: ToolOutcome::Done, server: None };
        let result = store.add_tool_result(chat, answer, &result, "noon").unwrap();
        let last = store.add_message(chat, Some(result), &NewMessage::user("x")).unwrap();
        let request = ChatPrompt::read(&store, chat, last, true).unwrap().remote_request("m").messages;
        let call = |id: &str| json!({ "id": id, "type": "function", "function": { "name": "clock", "arguments": "{\"a\": 1}" } });
        let want = [
            json!({ "role": "user", "content": "Hi" }),
            json!({ "role": "assistant", "content": "Well.", "tool_calls": [call("a"), call("b")] }),
            json!({ "role": "tool", "tool_call_id": "a", "name": "clock", "content": "noon" }),
            json!({ "role": "tool", "tool_call_id": "b", "name": "clock", "content": "The user stopped this call." }),
            // Message `id` itself is the requested answer.
            json!({ "role": "assistant", "content": "x" }),
        ];
        assert_eq!(request, want);
    }
}
