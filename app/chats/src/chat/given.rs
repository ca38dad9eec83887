//! Text of attached files in the prompt: whole files if the context has room, otherwise the
//! passages that fit the message best. The choice is made when a message is answered, and recorded.
//! Later prompts repeat it, so that tokens in the KV cache stay valid and the sources of an answer
//! are known.

use serde_json::Value;
use thermocline_engine::{
    session::{ChatOptions, Engine, Message, Prompt, Role},
    tokenizer::EncodeOptions,
};

use super::prompt::chat_turns;
use crate::{
    attachment::prompt::{excerpt, file, kept_for_answer, left_out, whole, with_lines},
    store::{
        Attachment, AttachmentId, ChatId, FoundPassage, PassageId, Source, Speaker, Store, StoreError, StoredMessage,
    },
};

/// Largest number of passages in one message.
const MOST_PASSAGES: usize = 16;

/// Approximate tokens that a template adds around a message.
const AROUND: usize = 8;

/// Assumed context of a server's model in tokens, and approximate bytes per token. Servers do not
/// report them.
const SERVER_CONTEXT: usize = 16_384;
const SERVER_TOKEN: usize = 3;

/// Counts the tokens of texts for a model, and holds the model's context length.
pub struct Measure<'a> {
    context: usize,
    /// Key of the model; `None` if its tokens cannot be counted.
    model: Option<&'a str>,
    count: Box<CountText<'a>>,
    /// Counts the tokens of a chat before the text of its next message.
    count_chat: Box<CountChat<'a>>,
}

type CountText<'a> = dyn Fn(&str) -> usize + 'a;
type CountChat<'a> = dyn Fn(&[Message]) -> usize + 'a;

impl<'a> Measure<'a> {
    /// A measure for a model with a context of `context` tokens. `count` counts the tokens of a
    /// text.
    pub fn new(context: usize, model: &'a str, count: impl Fn(&str) -> usize + Copy + 'a) -> Self {
        let count_chat = move |turns: &[Message]| around(turns, count);
        Measure { context, model: Some(model), count: Box::new(count), count_chat: Box::new(count_chat) }
    }

    /// A measure for the model of `engine`, with its key and the tools given to it.
    pub fn engine(engine: &'a Engine, key: &'a str, tools: &'a [Value]) -> Self {
        let count = |text: &str| tokens(engine, text);
        let count_chat = move |turns: &[Message]| {
            chat_tokens(engine, turns, tools).unwrap_or_else(|| around(turns, |text| tokens(engine, text)))
        };
        Measure { count_chat: Box::new(count_chat), ..Measure::new(engine.context(), key, count) }
    }

    /// A measure for a server's model, with assumed values.
    pub fn server() -> Measure<'static> {
        let count = |text: &str| text.len().div_ceil(SERVER_TOKEN);
        Measure { model: None, ..Measure::new(SERVER_CONTEXT, "", count) }
    }

    fn tokens(&self, store: &Store, attachment: &Attachment) -> Result<usize, StoreError> {
        if let Some(tokens) = self.model.and_then(|model| attachment.tokens_for(model)) {
            return Ok(tokens);
        }
        // A text this much longer than the context need not be counted exactly.
        if self.model.is_some() && attachment.size / 32 > self.context {
            return Ok(attachment.size / 32);
        }
        Ok((self.count)(&text(store, attachment.id)?))
    }
}

/// Approximate tokens of a chat before the text of its next message, without a template.
fn around(turns: &[Message], count: impl Fn(&str) -> usize) -> usize {
    AROUND + turns.iter().map(|turn| count(&turn.content) + AROUND).sum::<usize>()
}

/// Tokens of a chat before the text of its next message; `None` if the model's template refuses the
/// chat.
pub fn chat_tokens(engine: &Engine, turns: &[Message], tools: &[Value]) -> Option<usize> {
    // One word stands for the message that templates require.
    let prompt = Prompt::Chat([turns, &[Message::new(Role::User, "x")]].concat());
    let options = ChatOptions { tools: tools.to_vec(), ..ChatOptions::default() };
    engine.prompt_tokens(prompt, &options).ok().map(|tokens| tokens.len().saturating_sub(1))
}

/// Tokens of a text for the model of `engine`.
pub fn tokens(engine: &Engine, text: &str) -> usize {
    engine.tokenizer().encode(text, EncodeOptions::PLAIN).map_or(0, |tokens| tokens.len())
}

fn text(store: &Store, id: AttachmentId) -> Result<String, StoreError> {
    Ok(store.attached(id)?.into_iter().map(|passage| passage.text).collect())
}

/// The text of each message of `path` as the model reads it, with the files above the message. Uses
/// only recorded choices; files without a recorded choice are left out.
pub fn texts(store: &Store, chat: ChatId, path: &[&StoredMessage]) -> Result<Vec<String>, StoreError> {
    let files = store.attachments(chat)?;
    if files.is_empty() {
        return Ok(path.iter().map(|message| message.content.clone()).collect());
    }
    let sources = store.sources(chat)?;
    path.iter().map(|message| message_text(store, &files, sources.get(&message.id), message)).collect()
}

fn message_text(
    store: &Store,
    files: &[Attachment],
    sources: Option<&Vec<Source>>,
    message: &StoredMessage,
) -> Result<String, StoreError> {
    let mut said = String::new();
    let passages = || sources.into_iter().flatten().filter_map(|source| Some((&source.name, source.passage.as_ref()?)));
    for attachment in files.iter().filter(|file| file.message == Some(message.id)) {
        if attachment.whole == Some(true) {
            said.push_str(&file(&attachment.name, &text(store, attachment.id)?));
        } else if passages().all(|(name, _)| *name != attachment.name) {
            said.push_str(&left_out(&attachment.name));
        }
    }
    passages().for_each(|(name, passage)| said.push_str(&excerpt(name, passage)));
    said.push_str(&message.content);
    Ok(said)
}

/// The sources of an answer in one line: file names, and the places of passages.
pub fn sources_line(sources: &[Source]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut last: Option<&str> = None;
    for source in sources {
        match &source.passage {
            None => parts.push(source.name.clone()),
            Some(passage) if last == Some(&source.name) => parts.push(passage.place.clone()),
            Some(passage) => parts.push(format!("{}, {}", source.name, passage.place)),
        }
        last = source.passage.as_ref().map(|_| source.name.as_str());
    }
    format!("Sources: {}", parts.join("; "))
}

/// Chooses the files and passages that the model gets with the messages of `path`. Messages with a
/// recorded choice keep it, except the last one. `system` is the system prompt.
pub fn decide(
    store: &mut Store,
    chat: ChatId,
    path: &[&StoredMessage],
    system: &str,
    measure: &Measure<'_>,
) -> Result<(), StoreError> {
    let files = store.attachments(chat)?;
    let of_path = |file: &&Attachment| path.iter().any(|message| file.message == Some(message.id));
    if !files.iter().any(|file| of_path(&file)) {
        return Ok(());
    }
    let last = path.iter().rposition(|message| message.speaker == Speaker::User);
    let mut long: Vec<AttachmentId> = Vec::new();
    for (at, message) in path.iter().enumerate() {
        let own: Vec<&Attachment> = files.iter().filter(|file| file.message == Some(message.id)).collect();
        let undecided = own.iter().any(|file| file.whole.is_none());
        if undecided || (Some(at) == last && (!own.is_empty() || !long.is_empty())) {
            let above = chat_turns(system, &path[..at], texts(store, chat, &path[..at])?);
            let question =
                Question { text: &message.content, above: (measure.count_chat)(&above), files: &own, long: &long };
            let parts = question.parts(store, measure)?;
            let whole = |part: &FilePart| *part == FilePart::Whole;
            let flags: Vec<(AttachmentId, bool)> =
                own.iter().zip(&parts.each).map(|(file, part)| (file.id, whole(part))).collect();
            store.set_given(message.id, &flags, &parts.passages)?;
            long.extend(flags.iter().filter(|(_, whole)| !whole).map(|(id, _)| *id));
        } else {
            long.extend(own.iter().filter(|file| file.whole == Some(false)).map(|file| file.id));
        }
    }
    Ok(())
}

/// How much of a file the model gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilePart {
    /// The whole file.
    Whole,
    /// Some of its passages.
    Passages,
    /// Only its name.
    Name,
}

/// The files and passages that the model gets with a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileParts {
    /// For each file of this message, how much the model gets.
    pub each: Vec<FilePart>,
    /// Passages of these files and of files of earlier messages.
    pub passages: Vec<PassageId>,
    /// Tokens of all files and passages together.
    pub tokens: usize,
}

/// A message with files, or with files in earlier messages.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Text of the message.
    pub text: &'a str,
    /// Tokens of the chat above this text.
    pub above: usize,
    /// Files of this message.
    pub files: &'a [&'a Attachment],
    /// Files of earlier messages that did not fit whole.
    pub long: &'a [AttachmentId],
}

impl Question<'_> {
    /// Chooses the files and passages that the model gets. It is the only place for this choice,
    /// both before a message is sent and when it is answered.
    pub fn parts(&self, store: &Store, measure: &Measure<'_>) -> Result<FileParts, StoreError> {
        let used = self.above + (measure.count)(self.text);
        let room = measure.context.saturating_sub(kept_for_answer(measure.context) + used);
        let tokens = self.files.iter().map(|file| measure.tokens(store, file)).collect::<Result<Vec<_>, _>>()?;
        let fits = whole(tokens.iter().copied(), room);
        let taken: usize = tokens.iter().zip(&fits).filter(|(_, fits)| **fits).map(|(n, _)| with_lines(*n)).sum();
        let own = self.files.iter().zip(&fits).filter(|(_, fits)| !**fits).map(|(file, _)| file.id);
        let long: Vec<AttachmentId> = self.long.iter().copied().chain(own).collect();
        let found = passages(store, &long, self.text, room.saturating_sub(taken), measure)?;
        let part = |(file, fits): (&&Attachment, &bool)| match fits {
            true => FilePart::Whole,
            false if found.iter().any(|found| found.attachment == file.id) => FilePart::Passages,
            false => FilePart::Name,
        };
        Ok(FileParts {
            each: self.files.iter().zip(&fits).map(part).collect(),
            passages: found.iter().map(|found| found.id).collect(),
            tokens: taken + found.iter().map(|found| with_lines((measure.count)(&found.passage.text))).sum::<usize>(),
        })
    }
}

/// The passages of `files` that fit `question` best and fit into half of `room` tokens. The first
/// passage may use all of `room`.
fn passages(
    store: &Store,
    files: &[AttachmentId],
    question: &str,
    room: usize,
    measure: &Measure<'_>,
) -> Result<Vec<FoundPassage>, StoreError> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = store.find_passages(files, question, MOST_PASSAGES)?;
    let (mut left, mut first) = (room / 2, true);
    found.retain(|found| {
        let tokens = with_lines((measure.count)(&found.passage.text));
        let fits = tokens <= left || (first && tokens <= room);
        if fits {
            (left, first) = (left.saturating_sub(tokens), false);
        }
        fits
    });
    Ok(found)
}

#[cfg(test)]
mod tests;
