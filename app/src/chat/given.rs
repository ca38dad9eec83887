//! The text of a chat's files that the model is given: all of a file where the context has room for it, else the
//! passages that fit the message best. It is decided when a message is answered, and recorded: later prompts repeat it, so that
//! nothing that was read is read again, and the sources of an answer are known.

use thermocline_engine::{session::Engine, tokenizer::EncodeOptions};

use crate::{
    attachment::prompt::{excerpt, file, kept_for_answer, left_out, whole, with_lines},
    store::{Attachment, AttachmentId, ChatId, FoundPassage, Message, PassageId, Source, Speaker, Store, StoreError},
};

/// Most passages that go with one message.
const MOST_PASSAGES: usize = 16;

/// Tokens that a template puts around a message, about.
const AROUND: usize = 8;

/// Context of a server's model, which does not say how long it is, in tokens; and bytes of a token of it, about.
const SERVER_CONTEXT: usize = 16_384;
const SERVER_TOKEN: usize = 3;

/// How long texts are for a model, and how long its context is.
pub struct Measure<'a> {
    context: usize,
    /// Key of the model, if its tokens can be counted.
    model: Option<&'a str>,
    count: Box<dyn Fn(&str) -> usize + 'a>,
}

impl<'a> Measure<'a> {
    /// Of a model here: `count` gives the tokens of a text.
    pub fn new(context: usize, model: &'a str, count: impl Fn(&str) -> usize + 'a) -> Self {
        Measure { context, model: Some(model), count: Box::new(count) }
    }

    /// Of a server's model, of which nothing is known.
    pub fn server() -> Measure<'static> {
        let count = |text: &str| text.len().div_ceil(SERVER_TOKEN);
        Measure { context: SERVER_CONTEXT, model: None, count: Box::new(count) }
    }

    fn tokens(&self, store: &Store, attachment: &Attachment) -> Result<usize, StoreError> {
        if let Some(tokens) = self.model.and_then(|model| attachment.tokens_for(model)) {
            return Ok(tokens);
        }
        // A token has no more than a word: what is far too long need not be counted.
        if self.model.is_some() && attachment.size / 32 > self.context {
            return Ok(attachment.size / 32);
        }
        Ok((self.count)(&text(store, attachment.id)?))
    }
}

/// Tokens of a text for a model here.
pub fn tokens(engine: &Engine, text: &str) -> usize {
    engine.tokenizer().encode(text, EncodeOptions::PLAIN).map_or(0, |tokens| tokens.len())
}

fn text(store: &Store, id: AttachmentId) -> Result<String, StoreError> {
    Ok(store.attached(id)?.into_iter().map(|passage| passage.text).collect())
}

/// The text of each message of `path` as the model reads it, its files above its words. Everything is taken from what was recorded;
/// what was not decided is left out.
pub fn texts(store: &Store, chat: ChatId, path: &[&Message]) -> Result<Vec<String>, StoreError> {
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
    message: &Message,
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

/// The sources of an answer in one line: files, and the places of passages.
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

/// Decides what the model is given with those messages of `path` of which that is not known yet, and with the last one anew.
/// `system` is above them.
pub fn decide(
    store: &mut Store,
    chat: ChatId,
    path: &[&Message],
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
    let sources = store.sources(chat)?;
    let mut used = (measure.count)(system) + AROUND;
    for (at, message) in path.iter().enumerate() {
        let own: Vec<&Attachment> = files.iter().filter(|file| file.message == Some(message.id)).collect();
        let undecided = own.iter().any(|file| file.whole.is_none());
        used += AROUND;
        if undecided || (Some(at) == last && (!own.is_empty() || !long.is_empty())) {
            used += (measure.count)(&message.content);
            let room = measure.context.saturating_sub(kept_for_answer(measure.context) + used);
            let tokens = own.iter().map(|file| measure.tokens(store, file)).collect::<Result<Vec<_>, _>>()?;
            let fits = whole(tokens.iter().copied(), room);
            let taken: usize = tokens.iter().zip(&fits).filter(|(_, fits)| **fits).map(|(n, _)| with_lines(*n)).sum();
            let flags: Vec<(AttachmentId, bool)> = own.iter().zip(fits).map(|(file, fits)| (file.id, fits)).collect();
            long.extend(flags.iter().filter(|(_, whole)| !whole).map(|(id, _)| *id));
            let found = passages(store, &long, &message.content, room - taken, measure)?;
            let ids: Vec<PassageId> = found.iter().map(|found| found.id).collect();
            store.set_given(message.id, &flags, &ids)?;
            used += taken + found.iter().map(|found| with_lines((measure.count)(&found.passage.text))).sum::<usize>();
        } else {
            used += (measure.count)(&message_text(store, &files, sources.get(&message.id), message)?);
            long.extend(own.iter().filter(|file| file.whole == Some(false)).map(|file| file.id));
        }
    }
    Ok(())
}

/// The passages of `files` that fit `question` best: as many as half of `room` tokens have room for, but one if all of it has.
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
mod tests {
    use super::*;
    use crate::{
        attachment::{Document, DocumentKind, Passage, fixtures::haystack},
        store::{MessageId, NewMessage},
    };

    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    fn send(
        store: &mut Store,
        chat: ChatId,
        parent: Option<MessageId>,
        said: &str,
        files: &[(&str, &str)],
    ) -> MessageId {
        for (name, text) in files {
            let document = Document::read((*name).to_owned(), DocumentKind::Text, text.as_bytes()).unwrap();
            store.attach(chat, &document).unwrap();
        }
        let message = store.add_message(chat, parent, &NewMessage::user(said)).unwrap();
        store.send_attachments(chat, message).unwrap();
        message
    }

    /// Decides for a context of so many words, and returns what the model reads.
    fn read(store: &mut Store, chat: ChatId, context: usize) -> Vec<String> {
        let branch = store.branch(chat).unwrap();
        let path: Vec<&Message> = branch.iter().collect();
        decide(store, chat, &path, "", &Measure::new(context, "m", words)).unwrap();
        texts(store, chat, &path).unwrap()
    }

    #[test]
    fn short_files_are_given_whole_above_the_message() {
        let mut store = Store::in_memory().unwrap();
        let chat = store.add_chat(None, "").unwrap();
        send(&mut store, chat, None, "What is in them?", &[("a.txt", "one\n"), ("b.txt", "two")]);
        let want = "<file name=\"a.txt\">\none\n</file>\n\n<file name=\"b.txt\">\ntwo\n</file>\n\nWhat is in them?";
        assert_eq!(read(&mut store, chat, 400), [want]);
    }

    #[test]
    fn long_files_are_given_in_passages_also_with_later_questions() {
        let mut store = Store::in_memory().unwrap();
        let chat = store.add_chat(None, "").unwrap();
        let text = haystack("The walrus sings at noon.") + "The pelican dives at dusk.\n";
        let asked =
            send(&mut store, chat, None, "When does the walrus sing?", &[("long.txt", &text), ("s.txt", "short")]);
        let first = read(&mut store, chat, 1000);
        let said = &first[0];
        assert!(
            said.contains("<excerpt file=\"long.txt\" place=\"lines ") && said.contains("walrus sings at noon"),
            "{said}"
        );
        assert!(said.contains("<file name=\"s.txt\">\nshort\n</file>") && !said.contains("pelican"), "{said}");
        assert!(words(said) < 800, "it leaves room: {}", words(said));
        let sources = store.sources(chat).unwrap().remove(&asked).unwrap();
        assert_eq!((&*sources[0].name, &sources[0].passage), ("s.txt", &None));

        send(&mut store, chat, Some(asked), "And the pelican?", &[]);
        let second = read(&mut store, chat, 1000);
        assert_eq!(second[0], *said, "what was said stays as it was");
        assert!(second[1].contains("pelican dives at dusk") && second[1].ends_with("</excerpt>\n\nAnd the pelican?"));

        // With a larger context all of it is given, once the message is answered again.
        store.show_version(asked, 1).unwrap();
        let branch = store.branch(chat).unwrap();
        let path = [&branch[0]];
        decide(&mut store, chat, &path, "", &Measure::new(40_000, "m", words)).unwrap();
        let said = &texts(&store, chat, &path).unwrap()[0];
        assert!(said.starts_with("<file name=\"long.txt\">") && said.contains("pelican"), "{said}");
        assert!(!said.contains("<excerpt"));
    }

    #[test]
    fn a_file_for_which_there_is_no_room_at_all_is_named() {
        let mut store = Store::in_memory().unwrap();
        let chat = store.add_chat(None, "").unwrap();
        send(&mut store, chat, None, "What is in it?", &[("long.txt", &haystack("x"))]);
        assert_eq!(read(&mut store, chat, 40), ["<file name=\"long.txt\" omitted=\"too long\"/>\n\nWhat is in it?"]);
    }

    #[test]
    fn counted_tokens_are_used_and_a_server_is_given_little() {
        let mut store = Store::in_memory().unwrap();
        let chat = store.add_chat(None, "").unwrap();
        let message = send(&mut store, chat, None, "?", &[("a.txt", "few words")]);
        let file = store.attachments(chat).unwrap()[0].clone();
        store.set_attachment_tokens(file.id, "m", 100_000).unwrap();
        let said = read(&mut store, chat, 400);
        assert!(said[0].starts_with("<excerpt"), "{said:?}");
        let branch = store.branch(chat).unwrap();
        decide(&mut store, chat, &[&branch[0]], "", &Measure::server()).unwrap();
        assert_eq!(store.sources(chat).unwrap()[&message][0].passage, None, "not the count of another model");
    }

    #[test]
    fn sources_line_has_files_and_places() {
        let source = |name: &str, place: &str| Source {
            name: name.to_owned(),
            passage: (!place.is_empty()).then(|| Passage { place: place.to_owned(), text: String::new() }),
        };
        let all = [source("a.md", ""), source("b.pdf", "page 3"), source("b.pdf", "page 9"), source("c.txt", "line 1")];
        assert_eq!(sources_line(&all), "Sources: a.md; b.pdf, page 3; page 9; c.txt, line 1");
    }
}
