use super::*;
use crate::{
    attachment::{Document, DocumentKind, Passage, fixtures::haystack},
    store::{MessageId, NewMessage},
};

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

fn send(store: &mut Store, chat: ChatId, parent: Option<MessageId>, said: &str, files: &[(&str, &str)]) -> MessageId {
    for (name, text) in files {
        let document = Document::read((*name).to_owned(), DocumentKind::Text, text.as_bytes()).unwrap();
        store.attach(chat, &document).unwrap();
    }
    let message = store.add_message(chat, parent, &NewMessage::user(said)).unwrap();
    store.send_attachments(chat, message).unwrap();
    message
}

/// Chooses the files for a context of `context` words, and returns what the model reads.
fn read(store: &mut Store, chat: ChatId, context: usize) -> Vec<String> {
    let branch = store.branch(chat).unwrap();
    let path: Vec<&StoredMessage> = branch.iter().collect();
    decide(store, chat, &path, "", &Measure::new(context, "m", words)).unwrap();
    contents(store, chat, &path, false).unwrap().into_iter().map(|content| content.text).collect()
}

#[test]
fn short_files_are_given_whole_above_the_message() {
    let (mut store, chat) = Store::with_chat();
    send(&mut store, chat, None, "What is in them?", &[("a.txt", "one\n"), ("b.txt", "two")]);
    let want = "<file name=\"a.txt\">\none\n</file>\n\n<file name=\"b.txt\">\ntwo\n</file>\n\nWhat is in them?";
    assert_eq!(read(&mut store, chat, 400), [want]);
}

#[test]
fn long_files_are_given_in_passages_also_with_later_questions() {
    let (mut store, chat) = Store::with_chat();
    let text = haystack("The walrus sings at noon.") + "The pelican dives at dusk.\n";
    let asked = send(&mut store, chat, None, "When does the walrus sing?", &[("long.txt", &text), ("s.txt", "short")]);
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

    // With a larger context, a new answer gets the whole file.
    store.show_version(asked, 1).unwrap();
    let branch = store.branch(chat).unwrap();
    let path = [&branch[0]];
    decide(&mut store, chat, &path, "", &Measure::new(40_000, "m", words)).unwrap();
    let said = &contents(&store, chat, &path, false).unwrap()[0].text;
    assert!(said.starts_with("<file name=\"long.txt\">") && said.contains("pelican"), "{said}");
    assert!(!said.contains("<excerpt"));
}

#[test]
fn what_is_promised_before_a_message_is_sent_is_given_with_it() {
    let mut kinds = std::collections::HashSet::new();
    for context in (60..2400).step_by(130) {
        let (mut store, chat) = Store::with_chat();
        let long = haystack("The walrus sings at noon.");
        let asked = send(&mut store, chat, None, "When does the walrus sing?", &[("long.txt", &long)]);
        read(&mut store, chat, context);
        for (name, text) in [("notes.txt", "a few words\n".repeat(60)), ("data.csv", "zebra, 2, 3, 4\n".repeat(800))] {
            let document = Document::read(name.to_owned(), DocumentKind::Text, text.as_bytes()).unwrap();
            store.attach(chat, &document).unwrap();
        }
        let measure = Measure::new(context, "m", words);
        let branch = store.branch(chat).unwrap();
        let path: Vec<&StoredMessage> = branch.iter().collect();
        let above = (measure.count_chat)(&chat_turns("", &path, contents(&store, chat, &path, false).unwrap()));
        let files = store.attachments(chat).unwrap();
        let own: Vec<&Attachment> = files.iter().filter(|file| file.message.is_none()).collect();
        let earlier = files.iter().filter(|file| file.whole == Some(false)).map(|file| file.id);
        let long: Vec<AttachmentId> = earlier.collect();
        let question = Question { text: "How many words and zebra lines?", above, files: &own, long: &long };
        let promised = question.parts(&store, &measure).unwrap();

        let message = send(&mut store, chat, Some(asked), question.text, &[]);
        read(&mut store, chat, context);
        let sources = store.sources(chat).unwrap().remove(&message).unwrap_or_default();
        let passages = |name: &str| sources.iter().any(|source| source.name == name && source.passage.is_some());
        let given = store.attachments(chat).unwrap().into_iter().filter(|file| file.message == Some(message));
        let given: Vec<FilePart> = given
            .map(|file| match file.whole {
                Some(true) => FilePart::Whole,
                _ if passages(&file.name) => FilePart::Passages,
                _ => FilePart::Name,
            })
            .collect();
        assert_eq!(given, promised.each, "in a context of {context}");
        assert_eq!(sources.iter().filter(|source| source.passage.is_some()).count(), promised.passages.len());
        kinds.extend(given.iter().map(|part| format!("{part:?}")));
    }
    assert_eq!(kinds.len(), 3, "{kinds:?}");
}

#[test]
fn a_file_for_which_there_is_no_room_at_all_is_named() {
    let (mut store, chat) = Store::with_chat();
    send(&mut store, chat, None, "What is in it?", &[("long.txt", &haystack("x"))]);
    assert_eq!(read(&mut store, chat, 40), ["<file name=\"long.txt\" omitted=\"too long\"/>\n\nWhat is in it?"]);
}

#[test]
fn counted_tokens_are_used_and_a_server_is_given_little() {
    let (mut store, chat) = Store::with_chat();
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

/// A measure for a model to which every picture has `tokens` tokens.
fn seeing(context: usize, tokens: usize) -> Measure<'static> {
    Measure { count_picture: Some(Box::new(move |_| Some(tokens))), ..Measure::new(context, "m", words) }
}

#[test]
fn pictures_are_given_to_models_that_see_them_and_named_to_others() {
    let (mut store, chat) = Store::with_chat();
    let picture = Picture::from_rgb(2, 2, vec![9; 12]).unwrap();
    store.attach(chat, &Document::of_picture("cat.png".to_owned(), picture.clone())).unwrap();
    let asked = send(&mut store, chat, None, "What is it?", &[("a.txt", "one\n")]);
    let branch = store.branch(chat).unwrap();
    let path: Vec<&StoredMessage> = branch.iter().collect();
    let named = "<file name=\"cat.png\" omitted=\"pictures, which are not shown\"/>\n\n";
    let text = "<file name=\"a.txt\">\none\n</file>\n\nWhat is it?";
    let read = |store: &Store, sees: bool| contents(store, chat, &path, sees).unwrap().remove(0);
    let content = |text: String, pictures: &[Picture]| MessageContent { text, pictures: pictures.to_vec() };

    decide(&mut store, chat, &path, "", &seeing(400, 50)).unwrap();
    assert_eq!(read(&store, true), content(text.to_owned(), &[picture]));
    assert_eq!(read(&store, false), content(format!("{named}{text}"), &[]), "another model");
    assert_eq!(store.sources(chat).unwrap()[&asked].len(), 2);
    // Without room for the picture, and for a model that cannot see it.
    for measure in [seeing(400, 500), Measure::new(400, "m", words)] {
        decide(&mut store, chat, &path, "", &measure).unwrap();
        assert_eq!(read(&store, true), content(format!("{named}{text}"), &[]));
    }
}

#[test]
fn parts_tell_pictures_that_cannot_be_seen_from_files_without_room() {
    let (mut store, chat) = Store::with_chat();
    let picture = Picture::from_rgb(2, 2, vec![9; 12]).unwrap();
    store.attach(chat, &Document::of_picture("cat.png".to_owned(), picture)).unwrap();
    let files = store.attachments(chat).unwrap();
    let files: Vec<&Attachment> = files.iter().collect();
    let question = Question { text: "What?", above: 0, files: &files, long: &[] };
    let part = |measure: &Measure<'_>| question.parts(&store, measure).unwrap().each[0];
    assert_eq!(part(&seeing(400, 50)), FilePart::Whole);
    assert_eq!(part(&seeing(400, 500)), FilePart::Name);
    assert_eq!(part(&Measure::new(400, "m", words)), FilePart::Unseen);
}
