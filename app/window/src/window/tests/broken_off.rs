//! Incomplete answers say why they ended, and each answer names its model.

use egui::{Key, Modifiers};
use egui_kittest::kittest::Queryable;

use crate::testing::{TestWindow, key};
use thermocline_chats::store::{MessageState, NewMessage, Store};

const SIZE: [f32; 2] = [1440.0, 900.0];

/// A window whose next frame starts an answer.
fn answering() -> TestWindow {
    let mut stage = TestWindow::opened(SIZE);
    stage.types("Tell me a very long story.");
    stage.it.input_mut().events.push(key(Key::Enter, true, Modifiers::NONE));
    stage
}

#[test]
fn answer_that_the_closed_window_has_ended_says_so() {
    let mut stage = answering();
    stage.it.step();
    let mut stage = stage.again();
    stage.ready();
    assert_eq!(stage.branch()[1].state, MessageState::Stopped);
    assert!(stage.shows("stopped: the window was closed"), "{:?}", stage.texts());
}

#[test]
fn answers_name_their_models_and_an_edited_one_has_no_figures() {
    let mut stage = TestWindow::opened_with(SIZE, |folders, settings| {
        let (mut store, _) = Store::open(&folders.chats()).unwrap();
        let chat = store.add_chat(None, "").unwrap();
        let asked = store.add_message(chat, None, &NewMessage::user("Tell me about a frog.")).unwrap();
        let answer = NewMessage { model: Some("Bigger 70B".to_owned()), ..NewMessage::assistant("Frogs jump.") };
        store.add_message(chat, Some(asked), &answer).unwrap();
        settings.last_chat = Some(chat.number());
    });
    assert!(stage.shows("Bigger 70B"), "{:?}", stage.texts());
    let named = |stage: &TestWindow| stage.texts().into_iter().filter(|text| text == "Storyteller").count();
    let before = named(&stage);
    stage.ask("Tell me a story about a boat.");
    assert!(named(&stage) > before, "{:?}", stage.texts());
    assert!(stage.shows("Bigger 70B") && stage.shows("first token"));
    let last = stage.it.get_all_by_label("Edit answer").last().unwrap().rect();
    stage.tap(last.center());
    stage.types(" The end.");
    stage.click("Keep");
    assert!(stage.branch()[3].content.ends_with(" The end."));
    assert!(stage.shows("edited") && !stage.shows("first token"));
    // The previous version has the model's own text.
    assert_eq!(stage.branch()[3].version, (2, 2));
    stage.click("Earlier version");
    assert!(!stage.branch()[3].content.ends_with(" The end.") && !stage.branch()[3].edited);
    assert!(stage.shows("first token"), "{:?}", stage.texts());
}
