use serde_json::json;

use super::*;
use crate::store::{ChatId, Store, import_export::FileFormat};

/// A store with the imported chats of a file.
struct Imported {
    store: Store,
    chats: Vec<ChatId>,
    unreadable: Unreadable,
}

impl Imported {
    fn of(file: &Value) -> Self {
        let mut store = Store::in_memory().unwrap();
        let imported = store.import(FileFormat::Json, &file.to_string()).unwrap();
        Imported { store, chats: imported.added, unreadable: imported.unreadable }
    }

    fn titles(&self) -> Vec<String> {
        self.chats.iter().map(|chat| self.store.chat(*chat).unwrap().title).collect()
    }

    /// The visible branch of a chat.
    fn said(&self, chat: usize) -> Vec<String> {
        self.store.branch(self.chats[chat]).unwrap().into_iter().map(|message| message.content).collect()
    }

    /// Shows version `version` of the message `at` of a chat's visible branch, and returns the
    /// branch.
    fn said_in(&mut self, chat: usize, at: usize, version: usize) -> Vec<String> {
        let message = self.store.branch(self.chats[chat]).unwrap()[at].id;
        self.store.show_version(message, version).unwrap();
        self.said(chat)
    }
}

/// A Claude message with its text both in a block and in `text`.
fn claude(id: &str, parent: &str, sender: &str, text: &str) -> Value {
    json!({"uuid": id, "parent_message_uuid": parent, "sender": sender, "text": text,
        "created_at": "2026-08-01T10:00:00.250000Z", "content": [{"type": "text", "text": text}], "attachments": [], "files": []})
}

const ROOT: &str = "00000000-0000-4000-8000-000000000000";

/// A ChatGPT node with a text.
fn chatgpt(role: &str, parent: Value, children: Value, text: &str) -> Value {
    json!({"parent": parent, "children": children, "message": {"author": {"role": role}, "create_time": 1_785_000_000.0,
        "content": {"content_type": "text", "parts": [text]}, "recipient": "all"}})
}

/// ChatGPT's format: a hidden instruction, a question asked twice, a tool in between, and an answer
/// in two pieces.
const CHATGPT: &str = r#"[{
    "title": "Frogs", "create_time": 1700000000.5, "update_time": 1700000100.0, "current_node": "f",
    "mapping": {
        "root": {"id": "root", "message": null, "parent": null, "children": ["s"]},
        "s": {"message": {"author": {"role": "system"}, "content": {"content_type": "text", "parts": [""]}},
            "parent": "root", "children": ["a", "c"]},
        "a": {"message": {"author": {"role": "user"}, "create_time": 1700000001.0,
            "content": {"content_type": "text", "parts": ["What is a frog?"]}}, "parent": "s", "children": ["b"]},
        "b": {"message": {"author": {"role": "assistant"}, "content": {"content_type": "text", "parts": ["An animal."]}},
            "parent": "a", "children": []},
        "c": {"message": {"author": {"role": "user"},
            "content": {"content_type": "multimodal_text", "parts": [{"asset_pointer": "x"}, "What is this?"]}},
            "parent": "s", "children": ["d"]},
        "d": {"message": {"author": {"role": "assistant"}, "recipient": "browser",
            "content": {"content_type": "code", "text": "search()"}}, "parent": "c", "children": ["e"]},
        "e": {"message": {"author": {"role": "assistant"}, "recipient": "all",
            "content": {"content_type": "text", "parts": ["A frog."]}}, "parent": "d", "children": ["f"]},
        "f": {"message": {"author": {"role": "assistant"}, "content": {"content_type": "text", "parts": ["Green."]}},
            "parent": "e", "children": []}
    }}]"#;

#[test]
fn chatgpt_conversations_keep_their_branches() {
    let mut file = Imported::of(&serde_json::from_str(CHATGPT).unwrap());
    let chat = file.store.chat(file.chats[0]).unwrap();
    assert_eq!((&*chat.title, chat.created, chat.updated), ("Frogs", 1_700_000_000_500, 1_700_000_100_000));
    assert_eq!(file.said(0), ["[attachment]\nWhat is this?", "A frog.\n\nGreen."]);
    assert_eq!(file.store.branch(file.chats[0]).unwrap()[0].version, (2, 2), "the question that was asked before");
    assert_eq!(file.said_in(0, 0, 1), ["What is a frog?", "An animal."]);
}

#[test]
fn chatgpt_answers_that_go_on_in_two_ways_stay_apart() {
    let file = json!([{"title": "Two", "current_node": "d", "mapping": {
        "a": chatgpt("user", Value::Null, json!(["b"]), "Why?"),
        "b": chatgpt("assistant", json!("a"), json!(["c", "d"]), "Well,"),
        "c": chatgpt("assistant", json!("b"), json!([]), "so."),
        "d": chatgpt("assistant", json!("b"), json!([]), "thus."),
    }}]);
    let mut file = Imported::of(&file);
    assert_eq!(file.said(0), ["Why?", "Well,", "thus."]);
    assert_eq!(file.said_in(0, 2, 1), ["Why?", "Well,", "so."]);
}

#[test]
fn chatgpt_speech_is_its_transcript_and_references_are_their_words() {
    let spoken = |words: &str| {
        json!({"content_type": "multimodal_text", "parts": [
            {"content_type": "audio_transcription", "text": words, "direction": "in"},
            {"content_type": "real_time_user_audio_video_asset_pointer", "audio_asset_pointer": {}},
            {"content_type": "audio_asset_pointer", "asset_pointer": "sediment://x"}]})
    };
    let cited = "Moss \u{e200}cite\u{e202}turn0search0\u{e201} grows in \u{e200}entity\u{e202}[\"city\",\"Bergen\"]\u{e201}.\
        \u{e200}navlist\u{e202}More\u{e201}";
    let file = json!([{"title": "Spoken", "current_node": "c", "mapping": {
        "a": {"parent": null, "children": ["b"], "message": {"author": {"role": "user"}, "content": spoken("What is moss?")}},
        "b": {"parent": "a", "children": ["c"], "message": {"author": {"role": "assistant"},
            "content": {"content_type": "thoughts", "thoughts": [{"content": "Hidden."}]}}},
        "c": {"parent": "b", "children": [], "message": {"author": {"role": "assistant"},
            "content": {"content_type": "text", "parts": [cited]},
            "metadata": {"content_references": [
                {"matched_text": "\u{e200}cite\u{e202}turn0search0\u{e201}", "alt": "([page](https://example.org))"}]}}},
    }}]);
    let file = Imported::of(&file);
    assert_eq!(file.said(0), ["What is moss?", "Moss ([page](https://example.org)) grows in Bergen."]);
}

#[test]
fn chatgpt_conversations_with_odd_fields_are_read_one_by_one() {
    let fine = || chatgpt("user", Value::Null, json!([]), "Words.");
    let mut no_author = chatgpt("assistant", json!("a"), Value::Null, "By nobody.");
    no_author["message"]["author"] = Value::Null;
    let file = json!([
        {"title": "Plain", "current_node": "b", "mapping": {
            "a": chatgpt("user", Value::Null, json!(["b"]), "One."), "b": chatgpt("assistant", json!("a"), json!([]), "Two.")}},
        {"title": "Date as text", "create_time": "2026-08-01", "mapping": {"a": fine()}},
        {"title": null, "name": "No children", "create_time": null, "current_node": null, "mapping": {
            "a": chatgpt("user", Value::Null, Value::Null, "Three."),
            "b": chatgpt("assistant", json!("a"), Value::Null, "Four.")}},
        {"title": "Nobody", "mapping": {"a": fine(), "b": no_author, "c": chatgpt("user", json!("b"), Value::Null, "More.")}},
        {"title": "Parts", "mapping": {"a": {"message": {"author": {"role": "user"}, "content": {"parts": 3}}}, "b": chatgpt("user", Value::Null, json!([]), "Five.")}},
        {"title": "Lost", "mapping": {"a": {"message": {"author": null, "content": "Whose?"}}}},
        {"title": "Not read", "mapping": 3}, {}, 17, null,
    ]);
    let file = Imported::of(&file);
    assert_eq!(file.titles(), ["Plain", "Date as text", "No children", "Nobody", "Parts"]);
    assert_eq!(file.unreadable, Unreadable { chats: 5, messages: 2 });
    assert_eq!(file.store.chat(file.chats[1]).unwrap().created, 1_785_542_400_000);
    assert_eq!(file.store.chat(file.chats[2]).unwrap().created, 1_785_000_000_000, "the date of its messages");
    let said: Vec<Vec<String>> = (0..5).map(|chat| file.said(chat)).collect();
    assert_eq!(said[2], ["Three.", "Four."]);
    assert_eq!(said[3], ["Words.", "More."]);
    assert_eq!(said[4], ["Five."]);
}

#[test]
fn claude_conversations_keep_their_branches_and_dates() {
    let mut thoughtful = claude("m2", "m1", "assistant", "A plant.");
    thoughtful["content"] = json!([
        {"type": "thinking", "thinking": "Hidden thought."}, {"type": "text", "text": "A plant."},
        {"type": "tool_use", "name": "artifacts", "input": {"content": "hidden"}}, {"type": "text", "text": "It is green."}]);
    let file = json!([{
        "uuid": "c1", "name": "Branches", "created_at": "2026-08-01T09:00:00Z", "updated_at": "2026-08-01T11:00:00+01:00",
        "current_leaf_message_uuid": "m4", "chat_messages": [
            claude("m1", ROOT, "human", "What is moss?"), thoughtful, claude("m3", ROOT, "human", "What is lichen?"),
            claude("m5", "m3", "assistant", "Two partners."), claude("m4", "m3", "assistant", "An alga and a fungus.")],
    }]);
    let mut file = Imported::of(&file);
    let chat = file.store.chat(file.chats[0]).unwrap();
    assert_eq!((chat.created, chat.updated), (1_785_574_800_000, 1_785_578_400_000));
    let branch = file.store.branch(file.chats[0]).unwrap();
    assert_eq!((branch[0].version, branch[1].version, branch[0].created), ((2, 2), (2, 2), 1_785_578_400_250));
    assert_eq!(file.said(0), ["What is lichen?", "An alga and a fungus."]);
    assert_eq!(file.said_in(0, 1, 1), ["What is lichen?", "Two partners."]);
    assert_eq!(file.said_in(0, 0, 1), ["What is moss?", "A plant.\n\nIt is green."]);
}

#[test]
fn claude_messages_without_a_leaf_end_with_the_last_one() {
    let file = json!([{"name": "Two", "chat_messages": [
        claude("m1", ROOT, "human", "Why?"), claude("m2", "m1", "assistant", "So."), claude("m3", "m1", "assistant", "Thus.")]}]);
    assert_eq!(Imported::of(&file).said(0), ["Why?", "Thus."]);
}

#[test]
fn claude_words_are_in_blocks_or_in_the_text() {
    let message =
        |sender: &str, text: Value, content: Value| json!({"sender": sender, "text": text, "content": content});
    let block = |text: &str| json!({"type": "text", "text": text});
    let file = json!({"name": "Blocks", "chat_messages": [
        message("human", json!(""), json!([block("Only in the block.")])),
        message("assistant", Value::Null, json!([block("Here, too."), {"type": "text", "text": null}])),
        message("human", json!("Only in the text."), json!([])),
        message("assistant", json!("Cited, and whole."), json!([block("Cited, "), block("and whole.")])),
        message("human", json!("Older."), Value::Null),
        message("assistant", json!("```\nThis block is not supported on your current device yet.\n```\n\nDone."),
            json!([{"type": "tool_use", "name": "search"}])),
        message("human", json!(" "), Value::Null),
        message("narrator", json!("Not read."), Value::Null), json!(3),
    ]});
    let file = Imported::of(&file);
    let said = ["Only in the block.", "Here, too.", "Only in the text.", "Cited, and whole.", "Older.", "Done."];
    assert_eq!(file.said(0), said);
    assert_eq!(file.unreadable, Unreadable { chats: 0, messages: 2 });
}

#[test]
fn claude_files_go_with_their_message() {
    let mut asked = claude("m1", ROOT, "human", "What is in it?");
    asked["attachments"] =
        json!([{"file_name": "a.pdf", "extracted_content": "Moss is green.\n"}, {"extracted_content": ""}]);
    asked["files"] = json!([{"file_name": "a.pdf"}, {"file_name": "moss.png"}, {"file_uuid": "x"}]);
    let file = Imported::of(&json!([{"name": "Files", "chat_messages": [asked]}]));
    assert_eq!(file.said(0), ["[attachment: moss.png]\nWhat is in it?"]);
    let documents = file.store.documents(file.chats[0]).unwrap();
    let document = &documents.values().next().unwrap()[0];
    assert_eq!((&*document.name, &*document.text()), ("a.pdf", "Moss is green.\n"));
}

#[test]
fn older_conversations_of_claude_are_imported() {
    let json = r#"[{"uuid": "1", "name": "", "created_at": "2024-01-01T00:00:00Z", "chat_messages": [
        {"sender": "human", "text": "Hello"}, {"sender": "assistant", "text": "Hi."},
        {"sender": "assistant", "text": " "}, {"sender": "human", "text": "Bye"}]},
        {"name": "empty", "chat_messages": []}]"#;
    let ReadFile { chats, unreadable } = read_list(json).unwrap();
    assert_eq!((chats.len(), &*chats[0].title, unreadable), (1, "Hello", Unreadable::default()));
    let roles: Vec<_> = chats[0].messages.iter().map(|message| (&*message.role, message.parent)).collect();
    assert_eq!(roles, [("user", None), ("assistant", Some(0)), ("user", Some(1))]);
}

#[test]
fn one_conversation_and_a_list_within_an_object_are_imported() {
    let one = json!({"name": "One", "chat_messages": [claude("m1", ROOT, "human", "Why?")]});
    let list = json!({"conversations": [one.clone(), 3]});
    let marked = format!("\u{feff}{one}");
    let mut store = Store::in_memory().unwrap();
    assert_eq!(store.import(FileFormat::Json, &marked).unwrap().added.len(), 1);
    let again = store.import(FileFormat::Json, &list.to_string()).unwrap();
    assert_eq!((again.known.len(), again.unreadable.chats), (1, 1));
}

#[test]
fn odd_conversations_do_no_harm() {
    // A cycle, a missing child, and messages without contents.
    let circle = json!([{"mapping": {
        "a": chatgpt("user", json!("b"), json!(["b", "gone"]), "x"), "b": chatgpt("assistant", json!("a"), json!(["a"]), "y"),
        "c": {"message": {"author": {"role": "assistant"}, "content": null}, "parent": "a", "children": ["c"]}}}]);
    assert_eq!(Imported::of(&circle).said(0), ["x", "y"]);
    let own_parent =
        json!([{"chat_messages": [claude("m", "m", "human", "Why?"), claude("m", "m", "assistant", "So.")]}]);
    assert_eq!(Imported::of(&own_parent).said(0), ["Why?", "So."]);
    for nonsense in [
        "[]",
        "[1]",
        "[{}]",
        r#"[{"mapping": {}}]"#,
        r#"[{"chat_messages": null}]"#,
        r#"[{"mapping": 3}]"#,
        r#"[{"mapping": {}}"#,
        r#"{"mapping": {}}"#,
        r#"{"conversations": []}"#,
    ] {
        let read = Store::in_memory().unwrap().import(FileFormat::Json, nonsense);
        assert!(matches!(read, Err(StoreError::Import { .. })), "{nonsense}");
    }
}
