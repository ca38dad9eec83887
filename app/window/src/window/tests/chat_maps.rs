//! The map of neurons belongs to the shown chat, and an answer belongs to the model that wrote it.

use egui::{Event, Key, Modifiers, accesskit::Role, vec2};
use egui_kittest::kittest::{NodeT, Queryable};

use super::neurons::answered;
use crate::{
    command::Command,
    testing::{TestWindow, key},
};
use thermocline_chats::store::NewMessage;
use thermocline_host::{
    engine_handle::ModelState,
    library::ModelId,
    remote::RemoteModel,
    testing::{replies, scripted_by_request},
};

/// The map's text about its token.
fn map(stage: &TestWindow) -> String {
    stage.it.get_by_label_contains("Map of neurons").accesskit_node().label().unwrap_or_default()
}

#[test]
fn new_chat_has_a_live_map_of_its_own() {
    let mut stage = answered();
    let first = stage.shell().shown.unwrap();
    stage.click("Hold this token");
    stage.click("Compare");
    assert!(stage.shows("Compared with token") && stage.shows("fires only now"));
    stage.ctrl(Key::N);
    assert!(map(&stage).contains("no neuron has fired yet"), "{}", map(&stage));
    assert!(!stage.shows("Compared with token") && !stage.shows("fires only now"));
    stage.ask("Tell me a story about a cat.");
    let latest = stage.shell().engine_handle.engine().unwrap().neurons().latest().unwrap().index;
    assert!(map(&stage).contains(&format!("token {latest}:")), "{}", map(&stage));
    assert!(stage.shows("Hold this token") && !stage.shows("Compared with token"));

    // The first chat shows the tokens stored with it.
    let chat = stage.shell().store.find_chat(first).unwrap().unwrap().id;
    stage.command(Command::OpenChat(chat));
    assert!(stage.shows("The last tokens of this chat, from the saved recording."), "{:?}", stage.texts());
    assert!(!map(&stage).contains(&format!("token {latest}:")), "{}", map(&stage));
}

#[test]
fn map_of_an_answer_that_the_window_breaks_off_is_there_after_a_restart() {
    let mut stage = TestWindow::opened([1440.0, 900.0]);
    stage.write("Message", "Tell me a story about a dog.");
    stage.press(Key::Enter);
    stage.until("words of an answer", |window| {
        let shell = &window.shell;
        let chat = shell.shown.and_then(|number| shell.store.find_chat(number).unwrap());
        let progress = chat.as_ref().and_then(|chat| shell.chat_controller.progress(chat.id));
        progress.is_some_and(|progress| !progress.content.is_empty()) || !shell.chat_controller.is_busy()
    });
    let mut stage = stage.again();
    stage.ready();
    stage.step();
    assert!(!map(&stage).contains("no neuron has fired yet"), "{}", map(&stage));
    assert!(stage.shows("The last tokens of this chat, from the saved recording."));
}

#[test]
fn race_leaves_time_line_counts_and_speed_as_they_were() {
    let mut stage = answered();
    let engine = stage.shell().engine_handle.engine().unwrap();
    let traces = || {
        let tally = engine.neurons().tally(0);
        (engine.neurons().latest().map(|token| token.index), tally.counts, engine.observed_rate())
    };
    let (before, shown) = (traces(), map(&stage));
    stage.click("exact");
    stage.click("Race against Dense");
    stage.until("both answers", |window| window.conversation.is_compared());
    stage.until("the mode from before", |_| engine.sparsity().at_work.name() == "exact");
    assert_eq!((traces(), map(&stage)), (before, shown));
}

#[test]
fn answer_of_another_model_is_not_explained() {
    let mut stage = answered();
    let magnifier = "Which neurons made these words?";
    assert!(!stage.control(magnifier).accesskit_node().is_disabled());
    let store = &mut stage.shell().store;
    let chat = store.add_chat(None, "").unwrap();
    let asked = store.add_message(chat, None, &NewMessage::user("Hi")).unwrap();
    let answer = NewMessage { model: Some("far".to_owned()), ..NewMessage::assistant("delete_all is a command.") };
    store.add_message(chat, Some(asked), &answer).unwrap();
    stage.command(Command::OpenChat(chat));
    assert!(stage.control(magnifier).accesskit_node().is_disabled());
    stage.control(magnifier).hover();
    stage.appears("far wrote this answer. Open it to see which neurons made the words.");
}

#[test]
fn letters_typed_with_the_key_of_the_search_are_its_own() {
    let mut stage = answered();
    let key = key(Key::K, true, Modifiers::COMMAND.plus(Modifiers::SHIFT));
    let letters = "dog".chars().map(|letter| Event::Text(letter.to_string()));
    // All events arrive within one frame, as on a busy machine.
    stage.it.input_mut().events.extend([key].into_iter().chain(letters));
    stage.step();
    assert_eq!(stage.value("Search neurons"), "dog");
    assert_eq!(stage.value("Message"), "");
}

#[test]
fn picture_is_saved_where_the_user_says() {
    let mut stage = answered();
    let path = stage.folders.config.join("dog.png");
    stage.click("Save");
    stage.click("Save picture");
    stage.appears("Save the picture");
    stage.erase("Path");
    stage.write("Path", &path.display().to_string());
    assert!(!path.exists());
    stage.press(Key::Enter);
    stage.appears("Saved as");
    assert!(path.metadata().unwrap().len() > 1000);
}

#[test]
fn model_of_a_server_takes_no_column_for_neurons() {
    let (server, _requests) = scripted_by_request(|_, stream| {
        replies("200 OK", "application/json", "{\"data\":[{\"id\":\"far\"}]}")(stream);
    });
    let mut stage = answered();
    assert!(stage.shows("Map of neurons") && stage.shows("Processor"));
    let model = ModelId::Remote(RemoteModel { server, name: "far".to_owned() });
    stage.shell().open_model(model.clone());
    stage.until_open(&model);
    assert!(!stage.shows("cannot be shown") && !stage.shows("VRAM budget") && !stage.shows("Processor"));
    stage.ctrl(Key::J);
    assert!(stage.shows("its neurons cannot be shown here"), "{:?}", stage.texts());
}

#[test]
fn model_that_could_not_be_opened_says_so_above_the_chat() {
    let mut stage = answered();
    stage.shell().open_model(ModelId::Path("/gone/model.gguf".into()));
    stage.until("a failure", |window| matches!(window.shell.engine_handle.state(), ModelState::Failed { .. }));
    assert!(stage.shows("/gone/model.gguf"), "{:?}", stage.texts());
    assert!(stage.has(Role::Button, "Try again") && stage.has(Role::Button, "Choose a model"));
    let words = stage.it.query_all_by_label_contains("/gone/model.gguf").next().unwrap().rect();
    assert!(words.left() < 900.0 && words.top() < 200.0, "in the column of the chat: {words:?}");
}

#[test]
fn nothing_is_said_of_colours_where_no_word_is_coloured() {
    let mut stage = answered();
    let map = stage.it.get_by_label_contains("Map of neurons").rect();
    // In the middle layers few neurons fire, and the least frequent ones are at the right.
    stage.tap(map.right_top() + vec2(-6.0, map.height() * 2.5 / 6.0));
    assert!(stage.shows("Hide in text: Layer 2, neuron"), "{:?}", stage.texts());
    assert!(!stage.shows("Coloured where"), "{:?}", stage.texts());
}
