//! Chats leave the window through the clipboard, and enter it as dropped files.

use std::fs;

use egui::accesskit::Role;
use egui_kittest::kittest::Queryable;

use crate::{command::Page, testing::TestWindow};
use thermocline_chats::store::{NewMessage, Store, import_export};

const QUESTION: &str = "Write it in *two* languages.";
const ANSWER: &str = "In Rust:\n\n```rust\nfn main() {}\n\n// end\n```\n\n## User\n\n~~~c\nint main(void);\n~~~\n\n1. Build it:\n\n   ```sh\n   cargo build\n   ```\n";

/// Opens a window that shows a chat with code.
fn stage() -> TestWindow {
    TestWindow::opened_with([1200.0, 900.0], |folders, settings| {
        let (mut store, _) = Store::open(&folders.chats()).unwrap();
        let chat = store.add_chat(None, "Be brief.").unwrap();
        store.rename_chat(chat, "Code").unwrap();
        let asked = store.add_message(chat, None, &NewMessage::user(QUESTION)).unwrap();
        let model = Some("storyteller".to_owned());
        let answer = NewMessage { model, ..NewMessage::assistant(ANSWER) };
        store.add_message(chat, Some(asked), &answer).unwrap();
        settings.last_chat = Some(chat.number());
    })
}

/// The title, the system prompt and all messages of the shown chat.
fn shown(stage: &mut TestWindow) -> (String, String, Vec<String>) {
    let shell = stage.shell();
    let chat = shell.shown.and_then(|number| shell.store.find_chat(number).unwrap()).unwrap();
    let said = shell.store.branch(chat.id).unwrap().into_iter().map(|message| message.content).collect();
    (chat.title, chat.system_prompt, said)
}

#[test]
fn copy_buttons_copy_code_and_chats() {
    let mut stage = stage();
    let codes = ["fn main() {}\n\n// end\n", "int main(void);\n", "cargo build\n"];
    for (n, code) in codes.into_iter().enumerate() {
        let copied = stage.copies(|stage| {
            let buttons: Vec<_> = stage.it.get_all_by_role_and_label(Role::Button, "Copy code").collect();
            assert_eq!(buttons.len(), codes.len());
            buttons[n].click();
        });
        assert_eq!(copied.as_deref(), Some(code));
    }
    stage.click("More for Code");
    let copied = stage.copies(|stage| stage.control("Copy the chat").click());
    let want = format!("# Code\n\n## System\n\nBe brief.\n\n## User\n\n{QUESTION}\n\n## storyteller\n\n{ANSWER}\n");
    assert_eq!(copied, Some(want));
    stage.step();
    assert!(stage.shows("Copied to the clipboard"));
}

#[test]
fn dropped_chat_files_are_imported() {
    let mut stage = stage();
    let folder = tempfile::tempdir().unwrap();
    let [ours, json, others, broken] = ["a.md", "b.JSON", "c.markdown", "d.md"].map(|name| folder.path().join(name));
    let before = shown(&mut stage);
    let shell = stage.shell();
    let chat = shell.store.chats().unwrap().pop().unwrap();
    let branch = shell.store.branch(chat.id).unwrap();
    fs::write(&ours, import_export::markdown(&chat, &branch, &Default::default(), true)).unwrap();
    fs::write(&json, shell.store.export(&[chat.id]).unwrap()).unwrap();
    fs::write(&others, "**You:** Why?\n\n**ChatGPT:** So.\n").unwrap();
    fs::write(&broken, "# Recipes\n\n## Soup\n").unwrap();
    // Otherwise the import would recognise the chat.
    shell.store.delete_chat(chat.id).unwrap();

    stage.click("Models");
    stage.hold(&ours);
    assert!(stage.shows("Drop it to import its chats"), "{:?}", stage.texts());
    let mut copies = Vec::new();
    for (n, path) in [&ours, &json].into_iter().enumerate() {
        stage.let_go(&[path]);
        stage.until("its chat", |window| {
            window.page == Page::Chat && window.shell.store.chats().unwrap().len() == n + 1
        });
        copies.push(stage.shell().shown);
        assert_ne!(stage.shell().shown, Some(chat.id.number()));
        assert_eq!((shown(&mut stage), stage.it.state().page), (before.clone(), Page::Chat));
        assert!(stage.shows("One chat was imported") && !stage.shows("Drop it"));
        stage.click("Models");
    }

    // A second import adds nothing and opens the existing chat.
    for (path, copy) in [&ours, &json].into_iter().zip(copies) {
        stage.let_go(&[path]);
        stage.until("what is there", |window| window.shell.shown == copy && window.page == Page::Chat);
        assert!(stage.shows("You already have this chat"), "{:?}", stage.texts());
        assert_eq!(stage.shell().store.chats().unwrap().len(), 2);
        stage.click("Models");
    }

    // A file without a chat does not prevent the others from being imported.
    stage.let_go(&[&broken, &others]);
    stage.appears("Recipes");
    let title = "Why?".to_owned();
    assert_eq!(shown(&mut stage), (title.clone(), String::new(), vec![title, "So.".to_owned()]));
    let complaint = "d.md: the file: expected a conversation with headings such as";
    assert!(stage.shows(complaint), "{:?}", stage.texts());
    assert!(stage.shell().settings.folders.is_empty(), "they are no models");
}
