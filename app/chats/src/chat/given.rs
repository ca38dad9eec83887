//! Attached files in the prompt: pictures and whole files if the context has room, otherwise the
//! passages that fit the message best. The choice is made when a message is answered, and recorded.
//! Later prompts repeat it, so that tokens in the KV cache stay valid and the sources of an answer
//! are known.

mod ranked_passages;

use serde_json::Value;
use thermocline_engine::{
    pictures::Picture,
    session::{ChatOptions, Engine, Message, Prompt, Role},
    tokenizer::EncodeOptions,
};

use self::ranked_passages::RankedPassages;
use super::{meaning::MeaningSearch, prompt::chat_turns};
use crate::{
    attachment::prompt::{excerpt, file, kept_for_answer, left_out, unseen, whole, with_lines},
    store::{
        Attachment, AttachmentId, ChatId, PassageId, PassageRanking, Source, Speaker, Store, StoreError, StoredMessage,
    },
};

/// Approximate tokens that a template adds around a message.
const AROUND: usize = 8;

/// Assumed context of a server's model in tokens, and approximate bytes per token. Servers do not
/// report them.
const SERVER_CONTEXT: usize = 16_384;
const SERVER_TOKEN: usize = 3;

/// Assumed tokens of a picture for a server's model.
const SERVER_PICTURE: usize = 1024;

/// Tokens of a picture that the model cannot see: more than any context has.
pub const UNSEEN: usize = usize::MAX / 2;

/// The key under which tokens of files are counted for the model of `engine`, whose key is `model`.
/// With a vision tower beside it, the model has another number.
pub fn counting_key(model: &str, engine: &Engine) -> String {
    match engine.tower() {
        Some(_) => format!("{model}+pictures"),
        None => model.to_owned(),
    }
}

/// The parts of a message that the model reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageContent {
    /// The text, with the files above it.
    pub text: String,
    /// The pictures in front of the text.
    pub pictures: Vec<Picture>,
}

impl MessageContent {
    /// A text without pictures.
    pub fn text(text: impl Into<String>) -> Self {
        MessageContent { text: text.into(), pictures: Vec::new() }
    }
}

/// Counts the tokens of texts for a model, and holds the model's context length.
pub struct Measure<'a> {
    context: usize,
    /// Key of the model; `None` if its tokens cannot be counted.
    model: Option<&'a str>,
    count: Box<CountText<'a>>,
    /// Counts the tokens of a chat before the text of its next message.
    count_chat: Box<CountChat<'a>>,
    /// Counts the tokens of a picture; `None` if the model cannot see pictures.
    count_picture: Option<Box<CountPicture<'a>>>,
    /// Ranks passages by meaning. `None`: words rank them.
    meaning: Option<&'a MeaningSearch>,
    /// True if a decision may wait for `meaning`.
    may_wait: bool,
}

type CountText<'a> = dyn Fn(&str) -> usize + 'a;
type CountChat<'a> = dyn Fn(&[Message]) -> usize + 'a;
/// `None` for a picture that the model does not take.
type CountPicture<'a> = dyn Fn(&Picture) -> Option<usize> + 'a;

impl<'a> Measure<'a> {
    /// A measure for a model without pictures and with a context of `context` tokens. `count`
    /// counts the tokens of a text.
    pub fn new(context: usize, model: &'a str, count: impl Fn(&str) -> usize + Copy + 'a) -> Self {
        let count_chat = move |turns: &[Message]| around(turns, count);
        let (count, count_chat) = (Box::new(count), Box::new(count_chat));
        let model = Some(model);
        Measure { context, model, count, count_chat, count_picture: None, meaning: None, may_wait: false }
    }

    /// A measure for the model of `engine`, with its [`counting_key`] and the tools given to it.
    pub fn engine(engine: &'a Engine, key: &'a str, tools: &'a [Value]) -> Self {
        let count = |text: &str| tokens(engine, text);
        let count_chat = move |turns: &[Message]| {
            chat_tokens(engine, turns, tools).unwrap_or_else(|| around(turns, |text| tokens(engine, text)))
        };
        let count_picture = |picture: &Picture| engine.picture_tokens(picture).ok();
        let count_picture = engine.tower().map(|_| Box::new(count_picture) as Box<CountPicture<'a>>);
        Measure { count_chat: Box::new(count_chat), count_picture, ..Measure::new(engine.context(), key, count) }
    }

    /// A measure for a server's model, with assumed values.
    pub fn server() -> Measure<'static> {
        let count = |text: &str| text.len().div_ceil(SERVER_TOKEN);
        let count_picture: Option<Box<CountPicture<'static>>> = Some(Box::new(|_| Some(SERVER_PICTURE)));
        Measure { model: None, count_picture, ..Measure::new(SERVER_CONTEXT, "", count) }
    }

    /// A measure that lets `meaning` rank passages. A decision waits for their vectors if it
    /// `may_wait`.
    pub fn with_meaning(self, meaning: &'a MeaningSearch, may_wait: bool) -> Self {
        Measure { meaning: Some(meaning), may_wait, ..self }
    }

    /// True if the model can see pictures.
    pub fn sees_pictures(&self) -> bool {
        self.count_picture.is_some()
    }

    fn tokens(&self, store: &Store, attachment: &Attachment) -> Result<usize, StoreError> {
        if attachment.is_picture() && !self.sees_pictures() {
            return Ok(UNSEEN);
        }
        if let Some(tokens) = self.model.and_then(|model| attachment.tokens_for(model)) {
            return Ok(tokens);
        }
        // A text this much longer than the context need not be counted exactly.
        if self.model.is_some() && attachment.size / 32 > self.context {
            return Ok(attachment.size / 32);
        }
        let mut tokens = (self.count)(&text(store, attachment.id)?);
        let Some(count) = self.count_picture.as_ref().filter(|_| attachment.has_pictures()) else { return Ok(tokens) };
        if self.model.is_none() {
            // Every picture has the same assumed number of tokens, so none is decoded.
            return Ok(tokens + SERVER_PICTURE * store.picture_files(attachment.id)?.len());
        }
        for picture in store.pictures(attachment.id)? {
            let Some(counted) = count(&picture) else { return Ok(UNSEEN) };
            tokens += counted;
        }
        Ok(tokens)
    }
}

/// Approximate tokens of a chat before the text of its next message, without a template.
fn around(turns: &[Message], count: impl Fn(&str) -> usize) -> usize {
    let pictures = |turn: &Message| turn.pictures.len() * SERVER_PICTURE;
    AROUND + turns.iter().map(|turn| count(&turn.content) + pictures(turn) + AROUND).sum::<usize>()
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

/// Each message of `path` as a model reads it that can see pictures, or that cannot. The files are
/// above the message. Uses only recorded choices; files without a recorded choice are left out.
pub fn contents(
    store: &Store,
    chat: ChatId,
    path: &[&StoredMessage],
    sees_pictures: bool,
) -> Result<Vec<MessageContent>, StoreError> {
    let files = store.attachments(chat)?;
    if files.is_empty() {
        return Ok(path.iter().map(|message| MessageContent::text(&message.content)).collect());
    }
    let sources = store.sources(chat)?;
    let content = |message: &&StoredMessage| {
        let files = GivenFiles { files: &files, sources: sources.get(&message.id), sees_pictures };
        files.content(store, message)
    };
    path.iter().map(content).collect()
}

/// The files of a chat, and the sources of one of its messages.
struct GivenFiles<'a> {
    files: &'a [Attachment],
    sources: Option<&'a Vec<Source>>,
    sees_pictures: bool,
}

impl GivenFiles<'_> {
    fn content(&self, store: &Store, message: &StoredMessage) -> Result<MessageContent, StoreError> {
        let (mut said, mut pictures) = (String::new(), Vec::new());
        let passages =
            || self.sources.into_iter().flatten().filter_map(|source| Some((&source.name, source.passage.as_ref()?)));
        for attachment in self.files.iter().filter(|file| file.message == Some(message.id)) {
            let (name, is_whole) = (&attachment.name, attachment.whole == Some(true));
            let is_seen = is_whole && self.sees_pictures;
            if is_seen {
                pictures.extend(store.pictures(attachment.id)?);
            }
            if is_whole && attachment.size > 0 {
                said.push_str(&file(name, &text(store, attachment.id)?));
            }
            if attachment.has_pictures() && !is_seen {
                said.push_str(&unseen(name));
            } else if !is_whole && passages().all(|(of, _)| of != name) {
                said.push_str(&left_out(name));
            }
        }
        passages().for_each(|(name, passage)| said.push_str(&excerpt(name, passage)));
        said.push_str(&message.content);
        Ok(MessageContent { text: said, pictures })
    }
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

/// State of the choice of files and passages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PassageDecision {
    /// It is recorded.
    Recorded,
    /// It waits for vectors of these files and of this question.
    Waits(Vec<AttachmentId>, String),
}

/// Chooses the files and passages that the model gets with the messages of `path`. Messages with a
/// recorded choice keep it, except the last one. `system` is the system prompt.
pub fn decide(
    store: &mut Store,
    chat: ChatId,
    path: &[&StoredMessage],
    system: &str,
    measure: &Measure<'_>,
) -> Result<PassageDecision, StoreError> {
    let files = store.attachments(chat)?;
    let of_path = |file: &&Attachment| path.iter().any(|message| file.message == Some(message.id));
    if !files.iter().any(|file| of_path(&file)) {
        return Ok(PassageDecision::Recorded);
    }
    let last = path.iter().rposition(|message| message.speaker == Speaker::User);
    let mut long: Vec<AttachmentId> = Vec::new();
    for (at, message) in path.iter().enumerate() {
        let own: Vec<&Attachment> = files.iter().filter(|file| file.message == Some(message.id)).collect();
        let undecided = own.iter().any(|file| file.whole.is_none());
        if undecided || (Some(at) == last && (!own.is_empty() || !long.is_empty())) {
            let read = contents(store, chat, &path[..at], measure.sees_pictures())?;
            let above = chat_turns(system, &path[..at], read);
            let question =
                Question { text: &message.content, above: (measure.count_chat)(&above), files: &own, long: &long };
            let parts = question.parts(store, measure)?;
            if let Some(files) = parts.waits {
                return Ok(PassageDecision::Waits(files, message.content.clone()));
            }
            let whole = |part: &FilePart| *part == FilePart::Whole;
            let flags: Vec<(AttachmentId, bool)> =
                own.iter().zip(&parts.each).map(|(file, part)| (file.id, whole(part))).collect();
            store.set_given(message.id, &flags, &parts.passages)?;
            store.set_ranking(message.id, &parts.ranking)?;
            long.extend(flags.iter().filter(|(_, whole)| !whole).map(|(id, _)| *id));
        } else {
            long.extend(own.iter().filter(|file| file.whole == Some(false)).map(|file| file.id));
        }
    }
    Ok(PassageDecision::Recorded)
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
    /// Only its name, because it is a picture that the model cannot see.
    Unseen,
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
    /// How the passages were ranked.
    pub ranking: PassageRanking,
    /// Files whose vectors, or the question's vector, are being computed. The passages are then
    /// unknown.
    pub waits: Option<Vec<AttachmentId>>,
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
        let Some(RankedPassages { found, ranking }) =
            RankedPassages::that_fit(store, &long, self.text, room.saturating_sub(taken), measure)?
        else {
            return Ok(FileParts { waits: Some(long), ..FileParts::default() });
        };
        let part = |((file, fits), tokens): ((&&Attachment, &bool), &usize)| match fits {
            true => FilePart::Whole,
            false if *tokens == UNSEEN => FilePart::Unseen,
            false if found.iter().any(|found| found.attachment == file.id) => FilePart::Passages,
            false => FilePart::Name,
        };
        Ok(FileParts {
            each: self.files.iter().zip(&fits).zip(&tokens).map(part).collect(),
            passages: found.iter().map(|found| found.id).collect(),
            tokens: taken + found.iter().map(|found| with_lines((measure.count)(&found.passage.text))).sum::<usize>(),
            ranking,
            waits: None,
        })
    }
}

#[cfg(test)]
mod tests;
