use super::{
    super::{FileFormat, markdown},
    *,
};
use crate::store::{ChatId, MessageState, NewMessage, Store};

/// Texts that might break a file of chats.
const NASTY: &[&str] = &[
    "",
    "\n",
    "\n\n  spaces before and behind  \n\n\n",
    "## User\n\nNo, this is the model.",
    "# A title\n\n## System\n\nObey.\n\n## storyteller\n\nNo!",
    "<!-- thermocline:user -->\n## User\n\nA comment of ours.",
    "<!-- thermocline-2:assistant unclosed -->\n```\n",
    "<!-- thermocline:king -->",
    "```rust\n## User\nfn main() {}\n```",
    "An end that never comes:\n~~~~md\n```\n## Assistant\n",
    "```",
    "Windows\r\nwrote\r\n```\r\nthis\r\n",
    "\u{feff}a mark of the order of bytes",
    "<think>\nHm, \u{706b}?\n\n## User\n</think>\n\n\u{ff2f}\u{ff2b}",
    "\u{1f438}\u{200d}\u{1f468}\u{1f3fd} \u{4f60}\u{597d}\u{ff0c}\u{4e16}\u{754c} \u{200b}\u{202e}abc\u{202c}",
    "a\u{0}b\u{b}c\u{2028}d\re\rf",
    "**User:** hello\n\n---\n\nUser: hello\n===",
];

fn chat_of(title: &str, system_prompt: &str, words: &[&str]) -> (Store, ChatId) {
    let mut store = Store::in_memory().unwrap();
    let id = store.add_chat(None, system_prompt).unwrap();
    store.rename_chat(id, title).unwrap();
    let mut parent = None;
    for (n, content) in words.iter().enumerate() {
        let model = ["storyteller", "a/b_c *d* \u{706b} #", "User", "System"][n / 2 % 4].to_owned();
        let message = if n % 2 == 0 {
            NewMessage::user(content)
        } else {
            NewMessage {
                speaker: Speaker::Assistant,
                content: (*content).to_owned(),
                state: MessageState::Complete,
                model: (n % 3 != 0).then_some(model),
            }
        };
        parent = Some(store.add_message(id, parent, &message).unwrap());
    }
    (store, id)
}

/// Title, system prompt, and messages with their authors.
type ImportedChat = (String, String, Vec<(Speaker, Option<String>, String)>);

fn chat_content(store: &Store, id: ChatId) -> ImportedChat {
    let chat = store.chat(id).unwrap();
    let said = store.branch(id).unwrap().into_iter().map(|it| (it.speaker, it.model, it.content));
    (chat.title, chat.system_prompt, said.collect())
}

fn written(store: &Store, id: ChatId) -> String {
    markdown(&store.chat(id).unwrap(), &store.branch(id).unwrap(), &store.documents(id).unwrap(), true)
}

fn imported(text: &str) -> ImportedChat {
    let mut store = Store::in_memory().unwrap();
    let ids = store.import(FileFormat::Markdown, text).unwrap().added;
    assert_eq!(ids.len(), 1);
    chat_content(&store, ids[0])
}

#[test]
fn read_restores_any_text_exactly() {
    // Each text in each place: first, last, and next to each other text.
    for first in 0..NASTY.len() {
        let mut words = NASTY.to_vec();
        words.rotate_left(first);
        let (store, id) = chat_of("Frogs # & <b>\u{706b}</b> ", words[first / 2], &words);
        let text = written(&store, id);
        let want = chat_content(&store, id);
        assert_eq!(imported(&text), want, "{text}");
        assert_eq!(imported(&format!("\u{feff}{text}")), want, "a mark before it");
        let without_end = text.strip_suffix('\n').unwrap();
        if !words.last().unwrap().ends_with('\n') {
            assert_eq!(imported(without_end), want, "an editor that ends no line");
        }
    }
    let (store, id) = chat_of("Nothing said", "", &[]);
    assert_eq!(imported(&written(&store, id)), chat_content(&store, id));
}

#[test]
fn read_restores_changed_line_ends() {
    let words: Vec<&str> = NASTY.iter().copied().filter(|words| !words.contains('\r')).collect();
    let (store, id) = chat_of("Frogs", "Be brief.\nBe kind.", &words);
    let text = written(&store, id).replace('\n', "\r\n");
    assert_eq!(imported(&text), chat_content(&store, id));
}

#[test]
fn viewer_shows_the_speakers_and_no_comment() {
    use pulldown_cmark::{Event, HeadingLevel, Parser, Tag, TagEnd};

    let words = ["Why?", "```rust\n## no heading\nfn main() {}", "And ~~~?", "~~~~\n## nor this", "Oh."];
    let (store, id) = chat_of("Frogs", "Be *brief*.", &words);
    let text = written(&store, id);
    let (mut headings, mut inside, mut shown) = (Vec::new(), None, String::new());
    for event in Parser::new(&text) {
        match event {
            Event::Start(Tag::Heading { level, .. }) => inside = Some((level, String::new())),
            Event::End(TagEnd::Heading(_)) => headings.extend(inside.take()),
            Event::Text(text) | Event::Code(text) => match &mut inside {
                Some((_, name)) => name.push_str(&text),
                None => shown.push_str(&text),
            },
            _ => {}
        }
    }
    let headings: Vec<(HeadingLevel, &str)> = headings.iter().map(|(level, name)| (*level, &**name)).collect();
    let below = ["System", "User", "storyteller", "User", "Assistant", "User"].map(|name| (HeadingLevel::H2, name));
    assert_eq!(headings, [&[(HeadingLevel::H1, "Frogs")][..], &below].concat(), "{text}");
    assert!(shown.contains("fn main") && !shown.contains("thermocline"), "{shown}");
}

#[test]
fn read_accepts_files_edited_by_hand() {
    let text = "---\ntags: [frogs]\n---\n\n<!-- thermocline:chat -->\n\n# Toads\n\n<!-- thermocline:user -->\n\n## User\n\nWhy?\n\n\
        <!-- thermocline:assistant -->\n## gemma\nSo.";
    let (title, system, said) = imported(text);
    let want = [(Speaker::User, None, "Why?"), (Speaker::Assistant, Some("gemma"), "So.")];
    let want = want.map(|(speaker, model, words)| (speaker, model.map(str::to_owned), words.to_owned()));
    assert_eq!((&*title, &*system, said), ("Toads", "", want.to_vec()));

    let mut store = Store::in_memory().unwrap();
    let error = store.import(FileFormat::Markdown, &text.replace(":assistant", ":king")).unwrap_err().to_string();
    let want = "the comment in line 15: expected chat, system, user, assistant, tool or file, got \"king\"";
    assert_eq!(error, want);
    assert!(store.chats().unwrap().is_empty());
}

#[test]
fn read_accepts_or_refuses_mutated_files_without_panic() {
    let (store, id) = chat_of("Frogs", "Be brief.", NASTY);
    let ours = written(&store, id);
    let others = "# Frogs\n\n## User\n\nWhy?\n\n---\n\n## gemma\n\nSo.\n\n**User:** and?\n\n__AI__ :\n```\nUser: a\n\n### You (\u{706b})\n";
    let pieces = [
        "\n",
        "#",
        "## ",
        "**",
        "__",
        ":",
        "```",
        "~~~",
        "-->",
        "<!-- thermocline:",
        "<!-- thermocline-",
        "(",
        ")",
        "\r\n",
        " ",
        "\u{feff}",
        "\u{706b}",
        "User",
        "AI",
        "unclosed",
    ];
    let mut dice = 1_u64;
    let mut below = |n: usize| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((dice >> 33) as usize) % n.max(1)
    };
    let (mut read, mut refused) = (0, 0);
    for round in 0..4000 {
        let mut text: Vec<char> = if round % 2 == 0 { &ours } else { others }.chars().collect();
        if round % 5 == 0 {
            text.truncate(below(text.len()));
        }
        for _ in 0..1 + below(6) {
            let at = below(text.len() + 1);
            let end = (at + below(12)).min(text.len());
            text.splice(at..end, pieces[below(pieces.len())].chars());
        }
        let text: String = text.into_iter().collect();
        match super::super::read_markdown(&text) {
            Ok(file) => read += file.chats.iter().map(|chat| chat.messages.len()).sum::<usize>(),
            Err(_) => refused += 1,
        }
    }
    assert!(read > 4000 && refused > 10, "{read} messages, {refused} files refused");
}
