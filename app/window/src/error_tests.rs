//! Errors in the window: each error is shown, the chat stays visible, and the program keeps
//! running.

use std::{fs, path::PathBuf, thread, time::Duration};

use egui::Key;
use egui_kittest::kittest::Queryable;
use rusqlite::Connection;

use crate::testing::TestWindow;
use thermocline_chats::store::{MessageState, Store, StoredMessage};
use thermocline_host::{folders::Folders, library::ModelId};

/// Opens a window whose model runs on the CPU. Some tests make the settings file unwritable.
fn open(folders: &Folders) -> TestWindow {
    let settings = r#"{"models": {"builtin:storyteller": {"device": ""}}}"#;
    fs::create_dir_all(&folders.config).unwrap();
    assert!(fs::write(folders.settings(), settings).is_ok() || folders.settings().is_dir());
    let mut stage = TestWindow::in_folders([1400.0, 900.0], folders.clone());
    stage.ready();
    stage
}

/// Reopens the model and repeats the answer.
fn try_again(stage: &mut TestWindow) {
    stage.it.get_all_by_label("Open the model again").next().unwrap().click();
    stage.step();
    stage.ready();
    stage.click("Try again");
    stage.answered();
}

fn send_message(stage: &mut TestWindow, text: &str) {
    stage.ctrl(Key::L);
    stage.write("Message", text);
    stage.press(Key::Enter);
}

/// True if the window shows the beginning of `answer`.
fn shows(stage: &TestWindow, answer: &str) -> bool {
    assert!(answer.len() > 40, "{answer:?} is no answer");
    stage.shows(answer.get(..20).unwrap_or(answer))
}

/// The last message on disk.
fn kept(folders: &Folders) -> StoredMessage {
    let (store, _) = Store::open(&folders.chats()).unwrap();
    store.branch(store.chats().unwrap()[0].id).unwrap().pop().unwrap()
}

#[test]
fn unsaved_answer_stays_on_screen_and_is_saved_later() {
    let folder = tempfile::tempdir().unwrap();
    let folders = Folders::below(folder.path());
    let mut stage = open(&folders);
    let disk = Connection::open(folders.chats()).unwrap();
    disk.busy_timeout(Duration::from_secs(10)).unwrap();
    disk.execute_batch("CREATE TRIGGER full BEFORE UPDATE ON message BEGIN SELECT RAISE(FAIL, 'disk is full'); END")
        .unwrap();
    send_message(&mut stage, "Tell me a story about a cat and a boat.");
    stage.answered();
    assert_eq!((&*kept(&folders).content, kept(&folders).state), ("", MessageState::Streaming));
    let shell = stage.shell();
    let chat = shell.store.chats().unwrap()[0].id;
    let said = shell.chat_controller.progress(chat).unwrap().content.to_owned();
    assert!(shows(&stage, &said) && stage.shows("The answer is not saved yet"), "the answer has left the screen");
    assert_eq!(
        stage.it.query_all_by_label_contains("the answer: disk is full").count(),
        2,
        "told once, and with the answer"
    );

    // The chat can continue as soon as the disk has room.
    send_message(&mut stage, "And a dog.");
    assert_eq!(stage.value("Message"), "And a dog.", "what cannot be sent is not lost");
    disk.execute_batch("DROP TRIGGER full").unwrap();
    stage.until("the answer on disk", |window| !window.shell.chat_controller.has_unsaved_text());
    let answer = kept(&folders);
    assert!(answer.content == said && answer.stats.is_some(), "{answer:?}");
    assert_eq!(answer.state, MessageState::Complete);
    stage.step();
    assert!(!stage.shows("The answer is not saved yet") && shows(&stage, &said));
    stage.click("Send");
    stage.answered();
    // Two stories may exceed the context.
    assert!(matches!(kept(&folders).state, MessageState::Complete | MessageState::Truncated), "{:?}", kept(&folders));
}

#[test]
fn chats_work_in_memory_with_a_warning_without_a_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut folders = Folders::below(folder.path());
    folders.data = folder.path().join("a file/data");
    fs::write(folder.path().join("a file"), "").unwrap();
    let mut stage = open(&folders);
    assert!(stage.shows("Chats are not being saved") && stage.shows("a file/data"));
    send_message(&mut stage, "Tell me a story about a cat and a boat.");
    stage.answered();
    let store = &stage.shell().store;
    let answer = store.branch(store.chats().unwrap()[0].id).unwrap().pop().unwrap();
    assert!(answer.state == MessageState::Complete && shows(&stage, &answer.content));
    assert_eq!(stage.shell().settings.last_chat, None, "next time it would be another one");
}

#[test]
fn chats_that_cannot_be_written_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let folders = Folders::below(folder.path());
    let (mut store, _) = Store::open(&folders.chats()).unwrap();
    let chat = store.add_chat(None, "").unwrap();
    store.rename_chat(chat, "All about frogs").unwrap();
    drop(store);
    // Simulates a folder without write permission: SQLite cannot create its WAL file.
    fs::create_dir(folders.chats().with_extension("db-wal")).unwrap();
    let stage = open(&folders);
    assert!(stage.shows("Chats are not being saved") && stage.shows(&folders.data.display().to_string()));
    assert!(stage.shows("You can still read the saved chat.") && stage.shows("All about frogs"));
    assert!(!stage.shows("unable to open database file"));
}

#[test]
fn unreadable_settings_are_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let mut folders = Folders::below(folder.path());
    folders.config = folder.path().join("config");
    fs::create_dir_all(folders.settings()).unwrap();
    let mut stage = open(&folders);
    assert!(stage.shows("Settings will not be saved to it"));
    thread::sleep(Duration::from_millis(1200));
    stage.step();
    assert!(!stage.shows("settings: cannot write"), "it was tried");
}

#[test]
fn damaged_chat_file_is_recovered_and_the_old_file_named() {
    let folder = tempfile::tempdir().unwrap();
    let folders = Folders::below(folder.path());
    {
        let mut stage = open(&folders);
        send_message(&mut stage, "Tell me a story about a cat and a boat.");
        stage.answered();
    }
    let disk = Connection::open(folders.chats()).unwrap();
    disk.pragma_update(None, "wal_checkpoint", "TRUNCATE").unwrap();
    drop(disk);
    let mut bytes = fs::read(folders.chats()).unwrap();
    let end = bytes.len();
    bytes[end - 4096..].fill(0xA5);
    fs::write(folders.chats(), &bytes).unwrap();

    let stage = open(&folders);
    assert!(stage.shows("The chat file was damaged") && stage.shows("chats.db.damaged-"));
    let files = fs::read_dir(&folders.data).unwrap().flatten();
    let is_copy = |path: &PathBuf| {
        let name = path.to_string_lossy();
        name.contains(".damaged-") && !name.ends_with("-wal") && !name.ends_with("-shm")
    };
    let damaged = files.map(|file| file.path()).find(is_copy).unwrap();
    assert!(fs::read(&damaged).unwrap() == bytes, "{} is not the damaged file", damaged.display());
    assert!(stage.shows("Tell me a story about a cat and a boat."));
}

#[test]
fn window_survives_an_engine_panic_and_reopens_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let folders = Folders::below(folder.path());
    let mut stage = open(&folders);
    send_message(&mut stage, "Tell me a story about a cat and a boat.");
    stage.shell().engine_handle.engine().unwrap().break_down();
    stage.answered();
    assert_eq!(kept(&folders).state, MessageState::Failed);
    assert!(stage.shows("asked to"), "the reason is not said");
    try_again(&mut stage);
    let answer = kept(&folders);
    assert!(answer.state == MessageState::Complete && shows(&stage, &answer.content), "{answer:?}");
}

/// After the model's file shrinks, the window says why the model was closed, keeps the chat, and
/// opens the model again.
#[test]
#[cfg(unix)]
fn window_survives_a_model_file_that_shrinks() {
    thermocline_engine::format::survive_lost_files();
    let folder = tempfile::tempdir().unwrap();
    let folders = Folders::below(folder.path());
    let path = folder.path().join("story.gguf");
    fs::write(&path, thermocline_host::builtin::file()).unwrap();
    let mut stage = open(&folders);
    let model = ModelId::Path(path.clone());
    stage.shell().open_model(model.clone());
    stage.until_open(&model);
    send_message(&mut stage, "Tell me a story about a cat and a boat.");
    stage.answered();
    let told = kept(&folders);
    fs::File::options().write(true).open(&path).and_then(|file| file.set_len(4096)).unwrap();
    send_message(&mut stage, "And a dog.");
    stage.answered();
    assert_eq!(kept(&folders).state, MessageState::Failed);
    assert!(stage.shows("story.gguf was changed while it was open"), "the reason is not said");
    assert!(shows(&stage, &told.content), "the chat has left the screen");
    fs::write(&path, thermocline_host::builtin::file()).unwrap();
    try_again(&mut stage);
    // The second story of a chat may fill the context before it ends.
    let again = kept(&folders);
    assert!(matches!(again.state, MessageState::Complete | MessageState::Truncated), "{again:?}");
    assert!(shows(&stage, &again.content), "{again:?}");
}
