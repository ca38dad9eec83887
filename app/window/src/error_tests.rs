//! Errors in the window: they are shown, the chat stays on the screen, and the program goes on.

use std::{fs, path::PathBuf, thread, time::Duration};

use egui::{Key, Modifiers};
use egui_kittest::{Harness, kittest::Queryable};
use rusqlite::Connection;

use crate::Window;
use thermocline_chats::store::{Message, MessageState, Store};
use thermocline_host::{engine_handle::ModelState, folders::Folders, library::ModelId, testing::eventually};

type Opened = Harness<'static, Option<Window>>;

/// A window whose model is computed by the CPU, unless there can be no settings.
fn open(folders: Folders) -> Opened {
    let settings = r#"{"models": {"builtin:storyteller": {"device": ""}}}"#;
    fs::create_dir_all(&folders.config).unwrap();
    assert!(fs::write(folders.settings(), settings).is_ok() || folders.settings().is_dir());
    let show = move |ui: &mut egui::Ui, state: &mut Option<Window>| {
        let window = state.get_or_insert_with(|| Window::new(ui, folders.clone(), None).unwrap());
        window.tick(ui);
        window.show(ui);
    };
    let mut it = Harness::builder().with_size([1400.0, 900.0]).with_max_steps(64).build_ui_state(show, None);
    until(&mut it, "a model", |it| window(it).shell().engine_handle.engine().is_some());
    it
}

fn window(it: &Opened) -> &Window {
    it.state().as_ref().unwrap()
}

fn until(it: &mut Opened, what: &str, is: impl Fn(&Opened) -> bool) {
    eventually(what, || {
        it.step();
        it.state().is_some() && is(it)
    });
    it.run_steps(3);
}

/// Opens the model again, and has it answer once more.
fn try_again(it: &mut Opened) {
    it.get_all_by_label("Open the model again").next().unwrap().click();
    it.run_steps(2);
    until(it, "a model that runs", |it| window(it).shell().engine_handle.engine().is_some());
    it.get_by_label("Try again").click();
    it.run_steps(2);
    quiet(it);
}

fn says(it: &Opened, part: &str) -> bool {
    it.query_all_by_label_contains(part).next().is_some()
}

fn send_message(it: &mut Opened, text: &str) {
    it.key_press_modifiers(Modifiers::COMMAND, Key::L);
    it.run_steps(2);
    it.get_by_label("Message").type_text(text);
    it.run_steps(2);
    it.key_press(Key::Enter);
    it.run_steps(2);
}

fn quiet(it: &mut Opened) {
    until(it, "the end of the answer", |it| !window(it).shell().chat_controller.is_busy());
}

/// True if the window shows the beginning of an answer.
fn shows(it: &Opened, answer: &str) -> bool {
    assert!(answer.len() > 40, "{answer:?} is no answer");
    says(it, answer.get(..20).unwrap_or(answer))
}

/// The last message on disk.
fn kept(folders: &Folders) -> Message {
    let (store, _) = Store::open(&folders.chats()).unwrap();
    store.branch(store.chats().unwrap()[0].id).unwrap().pop().unwrap()
}

#[test]
fn unsaved_answer_stays_on_screen_and_is_saved_later() {
    let folder = tempfile::tempdir().unwrap();
    let folders = Folders::below(folder.path());
    let mut it = open(folders.clone());
    let disk = Connection::open(folders.chats()).unwrap();
    disk.busy_timeout(Duration::from_secs(10)).unwrap();
    disk.execute_batch("CREATE TRIGGER full BEFORE UPDATE ON message BEGIN SELECT RAISE(FAIL, 'disk is full'); END")
        .unwrap();
    send_message(&mut it, "Tell me a story about a cat and a boat.");
    quiet(&mut it);
    assert_eq!((&*kept(&folders).content, kept(&folders).state), ("", MessageState::Streaming));
    let shell = window(&it).shell();
    let chat = shell.store.chats().unwrap()[0].id;
    let said = shell.chat_controller.progress(chat).unwrap().content.to_owned();
    assert!(shows(&it, &said) && says(&it, "Not on disk yet"), "the answer has left the screen");
    assert_eq!(it.query_all_by_label_contains("the answer: disk is full").count(), 2, "told once, and with the answer");

    // One may go on, as soon as there is room.
    send_message(&mut it, "And a dog.");
    assert_eq!(it.get_by_label("Message").value().as_deref(), Some("And a dog."), "what cannot be sent is not lost");
    disk.execute_batch("DROP TRIGGER full").unwrap();
    until(&mut it, "the answer on disk", |it| !window(it).shell().chat_controller.has_unsaved_text());
    let answer = kept(&folders);
    assert!(answer.content == said && answer.stats.is_some(), "{answer:?}");
    assert_eq!(answer.state, MessageState::Complete);
    it.run_steps(3);
    assert!(!says(&it, "Not on disk yet") && shows(&it, &said));
    it.get_by_label("Send").click();
    it.run_steps(2);
    quiet(&mut it);
    // Two stories may be more than the context has room for.
    assert!(matches!(kept(&folders).state, MessageState::Complete | MessageState::Truncated), "{:?}", kept(&folders));
}

#[test]
fn chats_work_in_memory_with_a_warning_without_a_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut folders = Folders::below(folder.path());
    folders.data = folder.path().join("a file/data");
    fs::write(folder.path().join("a file"), "").unwrap();
    let mut it = open(folders);
    assert!(says(&it, "Chats are not being saved") && says(&it, "a file/data"));
    send_message(&mut it, "Tell me a story about a cat and a boat.");
    quiet(&mut it);
    let store = &window(&it).shell().store;
    let answer = store.branch(store.chats().unwrap()[0].id).unwrap().pop().unwrap();
    assert!(answer.state == MessageState::Complete && shows(&it, &answer.content));
    assert_eq!(window(&it).shell().settings.last_chat, None, "next time it would be another one");
}

#[test]
fn chats_that_cannot_be_written_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let folders = Folders::below(folder.path());
    let (mut store, _) = Store::open(&folders.chats()).unwrap();
    let chat = store.add_chat(None, "").unwrap();
    store.rename_chat(chat, "All about frogs").unwrap();
    drop(store);
    // As in a folder that cannot be written to: SQLite's companion file cannot be made.
    fs::create_dir(folders.chats().with_extension("db-wal")).unwrap();
    let it = open(folders.clone());
    assert!(says(&it, "Chats are not being saved") && says(&it, &folders.data.display().to_string()));
    assert!(says(&it, "The chat that was there can be read.") && says(&it, "All about frogs"));
    assert!(!says(&it, "unable to open database file"));
}

#[test]
fn unreadable_settings_are_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let mut folders = Folders::below(folder.path());
    folders.config = folder.path().join("config");
    fs::create_dir_all(folders.settings()).unwrap();
    let mut it = open(folders);
    assert!(says(&it, "nothing is written to it either"));
    thread::sleep(Duration::from_millis(1200));
    it.run_steps(3);
    assert!(!says(&it, "settings: cannot write"), "it was tried");
}

#[test]
fn damaged_chat_file_is_recovered_and_the_old_file_named() {
    let folder = tempfile::tempdir().unwrap();
    let folders = Folders::below(folder.path());
    {
        let mut it = open(folders.clone());
        send_message(&mut it, "Tell me a story about a cat and a boat.");
        quiet(&mut it);
    }
    let disk = Connection::open(folders.chats()).unwrap();
    disk.pragma_update(None, "wal_checkpoint", "TRUNCATE").unwrap();
    drop(disk);
    let mut bytes = fs::read(folders.chats()).unwrap();
    let end = bytes.len();
    bytes[end - 4096..].fill(0xA5);
    fs::write(folders.chats(), &bytes).unwrap();

    let it = open(folders.clone());
    assert!(says(&it, "The file of chats was damaged") && says(&it, "chats.db.damaged-"));
    let files = fs::read_dir(&folders.data).unwrap().flatten();
    let is_copy = |path: &PathBuf| {
        let name = path.to_string_lossy();
        name.contains(".damaged-") && !name.ends_with("-wal") && !name.ends_with("-shm")
    };
    let damaged = files.map(|file| file.path()).find(is_copy).unwrap();
    assert!(fs::read(&damaged).unwrap() == bytes, "{} is not the damaged file", damaged.display());
    assert!(says(&it, "Tell me a story about a cat and a boat."));
}

#[test]
fn window_survives_an_engine_panic_and_reopens_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let folders = Folders::below(folder.path());
    let mut it = open(folders.clone());
    send_message(&mut it, "Tell me a story about a cat and a boat.");
    window(&it).shell().engine_handle.engine().unwrap().break_down();
    quiet(&mut it);
    assert_eq!(kept(&folders).state, MessageState::Failed);
    assert!(says(&it, "asked to"), "the reason is not said");
    try_again(&mut it);
    let answer = kept(&folders);
    assert!(answer.state == MessageState::Complete && shows(&it, &answer.content), "{answer:?}");
}

/// The window stays when the model's file shrinks: it says why the model was closed, keeps the chat, and opens it again.
#[test]
#[cfg(unix)]
fn window_survives_a_model_file_that_shrinks() {
    thermocline_engine::format::survive_lost_files();
    let folder = tempfile::tempdir().unwrap();
    let folders = Folders::below(folder.path());
    let path = folder.path().join("story.gguf");
    fs::write(&path, thermocline_host::builtin::file()).unwrap();
    let mut it = open(folders.clone());
    let model = ModelId::Path(path.clone());
    it.state_mut().as_mut().unwrap().shell.open_model(model.clone());
    until(
        &mut it,
        "the file's model",
        |it| matches!(window(it).shell().engine_handle.state(), ModelState::Ready { model: open, .. } if open == model),
    );
    send_message(&mut it, "Tell me a story about a cat and a boat.");
    quiet(&mut it);
    let told = kept(&folders);
    fs::File::options().write(true).open(&path).and_then(|file| file.set_len(4096)).unwrap();
    send_message(&mut it, "And a dog.");
    quiet(&mut it);
    assert_eq!(kept(&folders).state, MessageState::Failed);
    assert!(says(&it, "story.gguf was changed while it was open"), "the reason is not said");
    assert!(shows(&it, &told.content), "the chat has left the screen");
    fs::write(&path, thermocline_host::builtin::file()).unwrap();
    try_again(&mut it);
    // The second story of a chat may fill the context before it ends.
    let again = kept(&folders);
    assert!(matches!(again.state, MessageState::Complete | MessageState::Truncated), "{again:?}");
    assert!(shows(&it, &again.content), "{again:?}");
}
