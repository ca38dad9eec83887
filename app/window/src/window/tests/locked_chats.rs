//! A window whose file of chats is locked by another connection.

use std::time::{Duration, Instant};

use egui::Key;
use rusqlite::Connection;

use crate::{
    command::Command,
    testing::{TestWindow, add_chat},
};
use thermocline_chats::store::ChatId;

/// The store waits up to 5 s for a lock. Frames that wait for a lock would take longer than this.
const LONG: Duration = Duration::from_secs(4);

/// Runs `act` while another connection holds the lock. Asserts that frames do not wait and show no
/// error.
fn while_locked(stage: &mut TestWindow, act: impl FnOnce(&mut TestWindow)) {
    let other = Connection::open(stage.folders.chats()).unwrap();
    other.busy_timeout(Duration::from_secs(10)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = Instant::now();
    stage.step();
    act(stage);
    assert!(began.elapsed() < LONG, "the window waited for the lock: {:?}", began.elapsed());
    assert!(!stage.shows("database is locked"), "{:?}", stage.texts());
    other.execute_batch("ROLLBACK").unwrap();
}

/// Opens a window with two chats. Returns it with their ids.
fn stage() -> (TestWindow, [ChatId; 2]) {
    let mut ids = Vec::new();
    let stage = TestWindow::opened_with([1440.0, 900.0], |folders, _| {
        ids.push(add_chat(folders, "Frogs", &["A frog sat on a stone."]));
        ids.push(add_chat(folders, "Boats", &["A boat in the rain."]));
    });
    (stage, ids.try_into().unwrap())
}

#[test]
fn chats_are_opened_and_found_while_the_file_is_locked() {
    let (mut stage, [frogs, boats]) = stage();
    while_locked(&mut stage, |stage| {
        stage.command(Command::OpenChat(frogs));
        assert!(stage.shows("A frog sat on a stone."));
        stage.command(Command::OpenChat(boats));
        assert!(stage.shows("A boat in the rain."));
        stage.ctrl(Key::K);
        stage.types("stone");
        stage.press(Key::Enter);
        stage.until("the chat that was found", |window| window.shell.shown == Some(frogs.number()));
    });
}

#[test]
fn chats_are_renamed_and_deleted_when_the_lock_ends() {
    let (mut stage, [frogs, boats]) = stage();
    while_locked(&mut stage, |stage| {
        stage.shell().change_chats(move |store| store.rename_chat(frogs, "Toads"));
        stage.shell().change_chats(move |store| store.delete_chat(boats));
        stage.step();
        assert_eq!(stage.shell().store.chat(frogs).unwrap().title, "Frogs");
    });
    stage.until("the new name", |window| window.shell.store.chat(frogs).unwrap().title == "Toads");
    assert_eq!(stage.shell().store.chats().unwrap().len(), 1);
    stage.appears("Toads");
}

#[test]
fn message_is_sent_when_the_lock_ends() {
    let (mut stage, [frogs, _]) = stage();
    stage.command(Command::OpenChat(frogs));
    while_locked(&mut stage, |stage| {
        stage.write("Message", "Tell me a story about a frog.");
        stage.press(Key::Enter);
        assert!(!stage.shell().chat_controller.is_busy());
        assert_eq!(stage.value("Message"), "Tell me a story about a frog.");
    });
    stage.until("the answer", |window| window.shell.store.branch(frogs).unwrap().len() == 3);
    stage.answered();
}

#[test]
fn window_that_closes_makes_the_changes_that_waited() {
    let (mut stage, [frogs, _]) = stage();
    while_locked(&mut stage, |stage| {
        stage.shell().change_chats(move |store| store.rename_chat(frogs, "Toads"));
    });
    let mut next = stage.again();
    assert_eq!(next.shell().store.chat(frogs).unwrap().title, "Toads");
}
