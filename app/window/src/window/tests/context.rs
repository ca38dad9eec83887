//! A message that does not fit into the context: its tokens are counted while it is typed, and the
//! user is asked before it is sent.

use egui::{Key, accesskit::Role};
use egui_kittest::kittest::Queryable;

use crate::testing::{TestWindow, add_chat};
use thermocline_chats::settings::ModelSettings;
use thermocline_host::{answer_stats::AnswerStats, engine_handle::ModelState, library::ModelId};

const SIZE: [f32; 2] = [1440.0, 1000.0];

/// Opens a window whose model has a context of 128 tokens.
fn narrow() -> TestWindow {
    TestWindow::opened_with(SIZE, |_, settings| {
        let chosen = ModelSettings { device: Some(String::new()), context: Some(128), ..ModelSettings::default() };
        settings.models.insert(ModelId::Builtin.key(), chosen);
    })
}

/// Draws frames until the tokens of the draft are counted.
fn counted(stage: &mut TestWindow) {
    stage.until("a count", |window| window.conversation.counted().is_some());
}

#[test]
fn composer_counts_and_asks_about_a_message_that_is_too_long() {
    let mut stage = narrow();
    let long = "Tell me a story about a frog and a boat. ".repeat(16);
    stage.write("Message", &long);
    stage.until("a count", |window| window.conversation.counted().is_some_and(|tokens| tokens.exceed(128)));
    assert!(stage.shows("This message "), "{:?}", stage.texts());
    stage.press(Key::Enter);
    assert!(stage.branch().is_empty(), "nothing is sent");
    assert!(stage.shows("The model's context is 128 tokens"));
    stage.click("Shorten the message");
    assert!(!stage.shows("The model's context is 128 tokens"));
    assert_eq!(stage.value("Message"), long, "it is still there");
    // There is nothing above it to forget.
    stage.press(Key::Enter);
    assert!(
        stage.shows("The message is too long even without the earlier messages")
            && !stage.shows("Send it and forget the beginning")
    );
}

/// The button is never shortened by the figures beside it.
#[test]
fn button_that_sends_is_within_the_composer() {
    for width in [900.0, 1280.0] {
        let mut stage = TestWindow::opened([width, 600.0]);
        stage.write("Message", &"Tell me a story about a frog and a boat. ".repeat(64));
        stage.until("a count", |window| window.conversation.counted().is_some_and(|tokens| tokens.exceed(512)));
        let (field, send) = (stage.control("Message").rect(), stage.role(Role::Button, "Send").rect());
        assert!(send.right() <= field.right() + 10.0, "{send} below {field} in a window of {width}");
        let figures = stage.it.get_by_label_contains("This message ").rect();
        assert!(figures.right() < send.left(), "{figures} {send}");
    }
}

/// Whole turns are forgotten, and a line in the chat shows where.
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
        if stage.shows("no longer sees the messages above this line") {
            let said = stage.branch();
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
    let button = stage.texts().into_iter().find(|text| text.starts_with("Use a context of ")).unwrap();
    assert!(button.contains(" tokens (") && button.ends_with("more memory)"), "{button}");
    stage.click(&button);
    stage.until("the larger context", |window| match window.shell().engine_handle.state() {
        ModelState::Ready { engine, .. } => engine.context() > 128,
        _ => false,
    });
    stage.until("the message", |window| window.shell().chat_controller.is_busy());
    stage.answered();
    assert_eq!(stage.branch().len(), 2);
    assert!(!stage.shows("no longer sees"), "all of it is in the context");
}

#[test]
fn short_messages_are_sent_without_a_question() {
    let mut stage = TestWindow::opened(SIZE);
    stage.write("Message", "Tell me a story about a frog.");
    stage.press(Key::Enter);
    assert!(stage.shell().chat_controller.is_busy());
    stage.answered();
    assert!(stage.shows("of FFN weights were read"), "what it cost and saved: {:?}", stage.texts());
}

/// The numbers of the gauge: tokens of the draft, if there is one, and tokens in the context.
fn gauge(stage: &TestWindow) -> (Option<usize>, usize) {
    let texts = stage.texts();
    let line = texts.iter().find(|text| text.contains("ontext ") && text.contains(" / ")).unwrap();
    let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok());
    let draft = line.starts_with("This message").then(|| numbers.next().unwrap());
    (draft, numbers.next().unwrap())
}

#[test]
fn gauge_counts_a_chat_at_rest_as_while_a_message_is_written() {
    let mut stage = TestWindow::opened_with(SIZE, |folders, settings| {
        let said = ["Tell me a story about a frog.", "Once there was a frog. He jumped."];
        settings.last_chat = Some(add_chat(folders, "", &said).number());
    });
    counted(&mut stage);
    let (draft, rest) = gauge(&stage);
    assert!(draft.is_none() && rest > 12, "an opened chat is counted: {rest}");
    stage.types("And a boat?");
    counted(&mut stage);
    let (draft, used) = gauge(&stage);
    let draft = draft.unwrap();
    assert_eq!((draft > 2, used), (true, rest + draft));
    stage.erase("Message");
    counted(&mut stage);
    assert_eq!(gauge(&stage), (None, rest));
}

#[test]
fn message_without_room_can_begin_a_new_chat() {
    let mut stage = narrow();
    stage.ask("Tell me a story about a frog and a boat.");
    // The message fits by itself, but not together with the chat.
    let long = "Tell me a story about a frog and a boat. ".repeat(6);
    stage.write("Message", &long);
    stage.until("a count", |window| window.conversation.counted().is_some_and(|tokens| tokens.exceed(128)));
    stage.press(Key::Enter);
    assert!(stage.shows("Send it and forget the beginning"), "{:?}", stage.texts());
    assert!(!stage.shows("Shorten the message"), "it is short enough");
    let old = stage.shell().settings.last_chat;
    stage.click("Send it in a new chat");
    stage.answered();
    assert_ne!(stage.shell().settings.last_chat, old);
    let said = stage.branch();
    assert_eq!((said.len(), &*said[0].content), (2, long.trim()));
    let old = stage.shell().store.find_chat(old.unwrap()).unwrap().unwrap();
    assert_eq!(old.draft, "", "it has moved");
}
