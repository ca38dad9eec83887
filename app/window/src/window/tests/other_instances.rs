//! Two windows on the same chats, at once and one after the other.

use std::time::Duration;

use egui::{Context, Key};
use egui_kittest::kittest::NodeT;
use rusqlite::Connection;

use crate::{command::Command, testing::TestWindow};
use thermocline_chats::{
    settings::{Settings, Zoom},
    store::{ChatId, MessageState, Speaker, Store, StreamingMessage},
};
use thermocline_host::testing::eventually;

const SIZE: [f32; 2] = [1440.0, 900.0];

#[test]
fn second_window_starts_its_own_chat() {
    let mut first = TestWindow::opened(SIZE);
    first.ask("Tell me a story about a frog.");
    first.shell().keep_settings(&Context::default(), true);
    let mut second = first.beside();
    second.ready();
    assert!(second.shows("Storyteller is ready"), "it goes on with the chat of the first");
    second.ask("Tell me a story about a boat.");
    second.shell().keep_settings(&Context::default(), true);

    let chats: Vec<ChatId> = first.shell().store.chats().unwrap().iter().map(|chat| chat.id).collect();
    let said = chats.iter().map(|chat| first.shell().store.branch(*chat).unwrap()[0].content.clone());
    assert_eq!(said.collect::<Vec<_>>(), ["Tell me a story about a boat.", "Tell me a story about a frog."]);
    // The other window's settings do not change the chat shown here.
    first.shell().settings.zoom = Zoom::from(1.25);
    first.shell().keep_settings(&Context::default(), true);
    assert_eq!(first.shell().settings.last_chat, Some(chats[0].number()));
    assert_eq!(first.shell().shown, Some(chats[1].number()));
    first.ask("And then?");
    assert_eq!(first.shell().store.branch(chats[1]).unwrap().len(), 4);
    assert_eq!(first.shell().store.branch(chats[0]).unwrap().len(), 2);

    drop(second);
    let mut next = first.again();
    next.step();
    assert_eq!(next.shell().shown, Some(chats[0].number()), "no other instance is left");
}

#[test]
fn chat_that_is_shown_is_remembered_at_once() {
    let mut stage = TestWindow::opened(SIZE);
    stage.write("Message", "Tell me a story about a cat.");
    stage.press(Key::Enter);
    stage.step();
    let shown = stage.shell().shown;
    let kept = Settings::load(&stage.folders.settings()).unwrap().0.last_chat;
    assert!(shown.is_some() && kept == shown, "{shown:?} is shown, {kept:?} is kept");
}

#[test]
fn chat_answered_by_another_instance_is_followed_and_read_only() {
    let mut stage = TestWindow::opened(SIZE);
    let (mut other, _) = Store::open(&stage.folders.chats()).unwrap();
    let chat = other.add_chat(None, "").unwrap();
    let mut answer = StreamingMessage::begin(&mut other, chat, None, None).unwrap();
    stage.command(Command::OpenChat(chat));
    stage.write("Message", "And I say this.");
    stage.press(Key::Enter);
    stage.ctrl(Key::R);
    assert!(
        stage.shows("Another window is writing this answer.") && stage.control("Send").accesskit_node().is_disabled()
    );
    assert_eq!(stage.shell().store.messages(chat).unwrap().len(), 1, "words were mixed into the other's");
    assert_eq!(stage.value("Message"), "And I say this.", "what cannot be said is not lost");
    answer.append("Words from elsewhere.");
    eventually("the commit", || {
        answer.poll(&mut other).unwrap();
        answer.is_saved()
    });
    stage.appears("Words from elsewhere.");
    answer.finish(&mut other, MessageState::Complete, None).unwrap();
    stage.until("the end", |window| window.shell().store.message(answer.id()).unwrap().state == MessageState::Complete);
    stage.until("the turn", |window| !window.conversation.is_elsewhere(&window.shell));
    stage.click("Send");
    stage.answered();
    let said = stage.shell().store.branch(chat).unwrap();
    assert_eq!(said.iter().map(|message| message.speaker).filter(|it| *it == Speaker::User).count(), 1);
    assert_eq!(said.len(), 3);

    // A crashed window is not waited for.
    let lost = StreamingMessage::begin(&mut other, chat, Some(said[2].id), None).unwrap();
    stage.appears("Another window is writing this answer.");
    let file = Connection::open(stage.folders.chats()).unwrap();
    file.busy_timeout(Duration::from_secs(10)).unwrap();
    // Its silence becomes long enough within a second.
    file.execute("UPDATE message SET touched = touched - 14000 WHERE state = 'streaming'", []).unwrap();
    stage.appears("Thermocline closed before this answer was complete.");
    assert_eq!(stage.shell().store.message(lost.id()).unwrap().state, MessageState::Interrupted);
}
