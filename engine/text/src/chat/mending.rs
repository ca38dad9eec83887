//! Changes conversations that a template refuses, for templates that demand more of calls than
//! clients provide.
//!
//! A template refuses a conversation without naming the turn. Changes are therefore tried one after
//! the other. The first ones change everything about calls in all turns alike. Afterwards a search
//! finds the one refused turn, which is written as plain text.

use serde_json::{Value as Json, json};

use super::{
    conversation::{TemplateConversation, TemplateMessage, calls_in},
    tool_text,
};

/// Exact length of a call identifier in Mistral's templates.
const ID_LENGTH: usize = 9;

/// A change of how a conversation represents calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mend {
    /// Wraps arguments that are not an object into one.
    Arguments,
    /// Gives calls and results identifiers of nine letters.
    Identifiers,
    /// Moves the text next to calls into the thoughts, if there are any.
    Words,
    /// Gives each call a message of its own.
    OneCallEach,
}

const ALL: [Mend; 4] = [Mend::Arguments, Mend::Identifiers, Mend::Words, Mend::OneCallEach];

/// All combinations of changes that alter `conversation`, fewest changes first.
pub(super) fn mended(conversation: &TemplateConversation) -> Vec<TemplateConversation> {
    let useful: Vec<Mend> = ALL.into_iter().filter(|mend| mend.applied(conversation) != *conversation).collect();
    let mut sets: Vec<u32> = (1..1 << useful.len()).collect();
    sets.sort_by_key(|set| set.count_ones());
    let apply = |set: u32| {
        let chosen = useful.iter().enumerate().filter(|(at, _)| set & (1 << at) != 0);
        chosen.fold(conversation.clone(), |mended, (_, mend)| mend.applied(&mended))
    };
    sets.into_iter().map(apply).collect()
}

/// The conversation with one turn as plain text: the message at `index` with its calls, and the
/// results after them.
pub(super) fn with_turn_as_words(conversation: &TemplateConversation, index: usize) -> Option<TemplateConversation> {
    let messages = &conversation.messages;
    let first = (0..=index).rev().find(|at| !conversation.is(*at, "tool"))?;
    let results = messages[first + 1..].iter().take_while(|message| message.role == "tool").count();
    // The turn includes the user's text after the results, because the results belong to it.
    let behind = usize::from(conversation.is(first + 1 + results, "user"));
    let turn = first..first + 1 + results + behind;
    if results == 0 && messages[first].calls().next().is_none() {
        return None;
    }
    let turn_alone =
        TemplateConversation { messages: messages[turn.clone()].to_vec(), tools: Vec::new(), ..conversation.clone() };
    let words = tool_text::as_text(&turn_alone).messages;
    let messages = [&messages[..turn.start], &words[..], &messages[turn.end..]].concat();
    Some(TemplateConversation { messages, ..conversation.clone() })
}

impl Mend {
    fn applied(self, conversation: &TemplateConversation) -> TemplateConversation {
        match self {
            Mend::Arguments => with_objects(conversation),
            Mend::Identifiers => with_short_identifiers(conversation),
            Mend::Words => with_words_in_thoughts(conversation),
            Mend::OneCallEach => conversation.with_calls_apart(),
        }
    }
}

fn with_objects(conversation: &TemplateConversation) -> TemplateConversation {
    let mut mended = conversation.clone();
    for call in mended.messages.iter_mut().flat_map(|message| calls_in(&mut message.fields)) {
        let function = if call.get("function").is_some_and(Json::is_object) { &mut call["function"] } else { call };
        let arguments = function.get_mut("arguments").filter(|arguments| !arguments.is_object());
        if let Some(arguments) = arguments {
            *arguments = json!({ "arguments": std::mem::take(arguments) });
        } else if function.get("arguments").is_none() && function.is_object() {
            function["arguments"] = json!({});
        }
    }
    mended
}

fn with_words_in_thoughts(conversation: &TemplateConversation) -> TemplateConversation {
    let mut mended = conversation.clone();
    for message in &mut mended.messages {
        let words = message.content.trim();
        if let Some(thinking) = message.thinking.as_ref().filter(|it| !it.is_empty() && !words.is_empty())
            && message.calls().next().is_some()
        {
            message.thinking = Some(format!("{thinking}\n\n{words}"));
            message.content.clear();
        }
    }
    mended
}

fn with_short_identifiers(conversation: &TemplateConversation) -> TemplateConversation {
    let mut mended = conversation.clone();
    // Calls of the last message with calls whose results have not followed yet.
    let mut waiting: Vec<IdentifiedCall> = Vec::new();
    for (at, message) in mended.messages.iter_mut().enumerate() {
        if message.role == "tool" {
            let own = message.fields.get("tool_call_id").and_then(Json::as_str);
            let name = ["name", "tool_name"].iter().find_map(|key| message.fields.get(*key)?.as_str());
            let place = match own {
                Some(own) => waiting.iter().position(|call| call.given.as_deref() == Some(own)),
                None => {
                    waiting.iter().position(|call| Some(&*call.name) == name).or((!waiting.is_empty()).then_some(0))
                }
            };
            let id = match place {
                Some(place) => waiting.remove(place).id,
                None => short(own.unwrap_or_default(), at, 0),
            };
            message.fields.insert("tool_call_id".to_owned(), id.into());
            continue;
        }
        for (number, call) in message.calls().enumerate() {
            let name = call["function"]["name"].as_str().unwrap_or_default().to_owned();
            let given = call["id"].as_str().filter(|id| !id.is_empty()).map(str::to_owned);
            let id = short(given.as_deref().unwrap_or_default(), at, number);
            if number == 0 {
                waiting.clear();
            }
            waiting.push(IdentifiedCall { name, given, id });
        }
        let count = waiting.len().max(1);
        for (number, call) in calls_of(message).enumerate() {
            // Each call occurs twice, with its arguments in two forms.
            if let (Some(named), Some(call)) = (waiting.get(number % count), call.as_object_mut()) {
                call.insert("id".to_owned(), named.id.clone().into());
            }
        }
    }
    mended
}

/// A call and its identifiers.
struct IdentifiedCall {
    name: String,
    /// The client's identifier.
    given: Option<String>,
    id: String,
}

/// The nine-letter identifier for `id`. An empty `id` gets one from call `number` in the message at
/// `at`. It is the same in every turn, so that computed tokens can be reused.
fn short(id: &str, at: usize, number: usize) -> String {
    if id.len() == ID_LENGTH && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let whole = if id.is_empty() { format!("{at}.{number}") } else { id.to_owned() };
    // FNV-1a.
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = whole.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
    (0..ID_LENGTH).map(|place| char::from(LETTERS[(hash >> (5 * place) & 31) as usize])).collect()
}

/// The calls of a message, in each form of their arguments.
fn calls_of(message: &mut TemplateMessage) -> impl Iterator<Item = &mut Json> {
    let (objects, texts) = (Some(&mut message.fields), message.text_fields.as_mut());
    [objects, texts].into_iter().flatten().flat_map(calls_in)
}
