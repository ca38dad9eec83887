//! A chat longer than the window: sent messages are visible, and the end can be found again.

use egui::{Key, Modifiers, vec2};
use egui_kittest::kittest::Queryable;

use crate::testing::{TestWindow, add_chat, wheel};

const SIZE: [f32; 2] = [1440.0, 900.0];

/// Number of messages: more than fit into the window, but few enough for the model's context, so
/// that one more message causes no question.
const MESSAGES: usize = 20;

/// The beginning of the last message.
const LAST: &str = "Message number 19";

/// Opens a window with a long chat.
fn long() -> TestWindow {
    TestWindow::opened_with(SIZE, |folders, settings| {
        let texts: Vec<String> = (0..MESSAGES).map(|n| format!("Message number {n}.\n\nMore of it.")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        settings.last_chat = Some(add_chat(folders, "", &texts).number());
    })
}

/// Turns the wheel over the messages until the last message is out of view.
fn scroll_up(stage: &mut TestWindow) {
    let over = stage.control("Message").rect().center() - vec2(0.0, 300.0);
    stage.it.hover_at(over);
    stage.step();
    stage.it.event(wheel(2000.0));
    stage.it.run_steps(60);
    stage.it.remove_cursor();
    stage.step();
    assert!(stage.shows("To the end") && !stage.shows(LAST), "{:?}", stage.texts());
}

/// Asserts that a text lies between the top bar and the composer.
fn assert_in_view(stage: &TestWindow, text: &str) {
    let rect = stage.it.get_by_label_contains(text).rect();
    let composer = stage.control("Message").rect();
    assert!(rect.top() > 40.0 && rect.bottom() < composer.top(), "{text:?} at {rect:?}, the composer at {composer:?}");
}

#[test]
fn message_that_is_sent_is_seen_although_one_had_scrolled_up() {
    let mut stage = long();
    assert!(!stage.shows("To the end"), "one begins there");
    scroll_up(&mut stage);
    stage.write("Message", "Tell me a story about a zebra.");
    stage.press(Key::Enter);
    stage.it.run_steps(8);
    assert_in_view(&stage, "a story about a zebra.");
    stage.answered();
    assert!(!stage.shows("To the end"), "the answer is followed");
    // The same for a repeated answer.
    scroll_up(&mut stage);
    stage.ctrl(Key::R);
    stage.it.run_steps(8);
    assert_in_view(&stage, "a story about a zebra.");
}

#[test]
fn end_is_found_with_a_button_and_a_key() {
    let mut stage = long();
    scroll_up(&mut stage);
    stage.click("To the end");
    stage.it.run_steps(8);
    assert_in_view(&stage, LAST);
    assert!(!stage.shows("To the end"));
    scroll_up(&mut stage);
    stage.write("Message", "half a thought");
    stage.ctrl(Key::End);
    stage.it.run_steps(8);
    assert_in_view(&stage, LAST);
    assert_eq!(stage.value("Message"), "half a thought");
    // In a slow window Ctrl is released within the same frame.
    scroll_up(&mut stage);
    stage.press_in_one_frame(Modifiers::COMMAND, Key::End);
    stage.it.run_steps(8);
    assert_in_view(&stage, LAST);
}
