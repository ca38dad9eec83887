//! A message for which the context has no room: counted while it is written, and asked about before it is sent.

use egui::{Key, accesskit::Role};
use egui_kittest::kittest::Queryable;

use crate::{
    chat::AnswerStats, engine_handle::ModelState, library::ModelId, settings::ModelSettings, store::Message,
    ui::testing::TestWindow,
};

const SIZE: [f32; 2] = [1440.0, 1000.0];

/// A window whose model keeps 128 tokens in mind.
fn narrow() -> TestWindow {
    let mut stage = TestWindow::with(SIZE, |_, settings| {
        let chosen = ModelSettings { device: Some(String::new()), context: Some(128), ..ModelSettings::default() };
        settings.models.insert(ModelId::Builtin.key(), chosen);
    });
    stage.ready();
    stage
}

fn branch(stage: &mut TestWindow) -> Vec<Message> {
    let shell = stage.shell();
    let Some(number) = shell.settings.last_chat else { return Vec::new() };
    let chat = shell.store.find_chat(number).unwrap().unwrap();
    shell.store.branch(chat.id).unwrap()
}

#[test]
fn composer_counts_and_asks_about_a_message_that_is_too_long() {
    let mut stage = narrow();
    let long = "Tell me a story about a frog and a boat. ".repeat(16);
    stage.write("Message", &long);
    stage.until("a count", |window| window.conversation.counted().is_some_and(|tokens| tokens.exceed(128)));
    assert!(stage.shows("This message "), "{:?}", stage.texts());
    stage.press(Key::Enter);
    assert!(branch(&mut stage).is_empty(), "nothing is sent");
    assert!(stage.shows("The model keeps 128 in mind"));
    stage.click("Shorten the message");
    assert!(!stage.shows("The model keeps 128 in mind"));
    assert_eq!(stage.control("Message").value().as_deref(), Some(long.as_str()), "it is still there");
    // Nothing above it could be forgotten for it.
    stage.press(Key::Enter);
    assert!(stage.shows("it is too long by itself") && !stage.shows("Send it and forget the beginning"));
}

/// The button is whole beside any figures.
#[test]
fn button_that_sends_is_within_the_composer() {
    for width in [900.0, 1280.0] {
        let mut stage = TestWindow::new([width, 600.0]);
        stage.ready();
        stage.write("Message", &"Tell me a story about a frog and a boat. ".repeat(64));
        stage.until("a count", |window| window.conversation.counted().is_some_and(|tokens| tokens.exceed(512)));
        let (field, send) = (stage.control("Message").rect(), stage.role(Role::Button, "Send").rect());
        assert!(send.right() <= field.right() + 10.0, "{send} below {field} in a window of {width}");
        let figures = stage.it.get_by_label_contains("This message ").rect();
        assert!(figures.right() < send.left(), "{figures} {send}");
    }
}

/// Whole turns are forgotten, and the chat shows up to where.
#[test]
fn oldest_turns_are_forgotten_and_a_line_shows_it() {
    let mut stage = narrow();
    let short = "Tell me a story about a frog and a boat.";
    for turn in 1..=12 {
        stage.write("Message", short);
        stage.until("a count", |window| window.conversation.counted().is_some());
        stage.press(Key::Enter);
        if stage.shows("Send it and forget the beginning") {
            stage.click("Send it and forget the beginning");
        }
        stage.answered();
        if stage.shows("all of what is above but the system prompt") {
            let said = branch(&mut stage);
            assert_eq!(said.len(), 2 * turn, "nothing is gone from the chat");
            let figures = AnswerStats::from_json(said[2 * turn - 1].stats.as_deref()).unwrap();
            assert!((1..turn).contains(&figures.forgotten_turns) && figures.forgotten_tokens > 10, "{figures:?}");
            return;
        }
    }
    panic!("twelve turns are not longer than the context: {:?}", stage.texts());
}

#[test]
fn larger_context_is_opened_and_the_message_sent() {
    let mut stage = narrow();
    stage.write("Message", &"Tell me a story about a frog and a boat. ".repeat(12));
    stage.until("a count", |window| window.conversation.counted().is_some_and(|tokens| tokens.exceed(128)));
    stage.press(Key::Enter);
    let button = stage.texts().into_iter().find(|text| text.starts_with("Keep ")).unwrap();
    assert!(button.contains("tokens in mind (") && button.ends_with("more memory)"), "{button}");
    stage.click(&button);
    stage.until("the larger context", |window| match window.shell().engine_handle.state() {
        ModelState::Ready { engine, .. } => engine.context() > 128,
        _ => false,
    });
    stage.until("the message", |window| window.shell().chat_controller.is_busy());
    stage.answered();
    assert_eq!(branch(&mut stage).len(), 2);
    assert!(!stage.shows("Forgotten: "), "all of it is in mind");
}

#[test]
fn short_messages_are_sent_without_a_question() {
    let mut stage = TestWindow::new(SIZE);
    stage.ready();
    stage.write("Message", "Tell me a story about a frog.");
    stage.press(Key::Enter);
    assert!(stage.shell().chat_controller.is_busy());
    stage.answered();
    assert!(stage.shows("of FFN weights were read"), "what it cost and saved: {:?}", stage.texts());
}
