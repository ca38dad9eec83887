//! Carets and undo histories belong to one text and never reach another.

use egui::{Event, Key, Modifiers, accesskit::Role};

use crate::{
    command::Command,
    testing::{TestWindow, add_chat},
};
use thermocline_chats::store::ChatId;
use thermocline_host::testing::eventually;

const SIZE: [f32; 2] = [1440.0, 900.0];

/// Opens a window with two chats, each a question and an answer. The first chat is shown.
fn two_chats() -> (TestWindow, [ChatId; 2]) {
    let mut chats = Vec::new();
    let stage = TestWindow::opened_with(SIZE, |folders, settings| {
        chats.push(add_chat(folders, "Frogs", &["Why do frogs jump?", "Far."]));
        chats.push(add_chat(folders, "Boats", &["Hello", "There was a train."]));
        settings.last_chat = Some(chats[0].number());
    });
    (stage, [chats[0], chats[1]])
}

/// Undoes everything.
fn undo(stage: &mut TestWindow) {
    (0..4).for_each(|_| stage.ctrl(Key::Z));
}

/// Erases the text. A pause makes this a separate undo step.
fn erase_slowly(stage: &mut TestWindow) {
    stage.it.run_steps(90);
    stage.ctrl(Key::A);
    stage.press(Key::Backspace);
    stage.it.run_steps(90);
}

#[test]
fn undo_in_one_chat_brings_back_nothing_of_another() {
    let (mut stage, [frogs, boats]) = two_chats();
    stage.types("a secret of the frogs");
    erase_slowly(&mut stage);
    stage.command(Command::OpenChat(boats));
    assert_eq!(stage.value("Message"), "");
    undo(&mut stage);
    assert_eq!(stage.value("Message"), "", "both drafts are empty");
    stage.types("B text");
    undo(&mut stage);
    assert_eq!(stage.value("Message"), "");
    stage.types("of the boats");
    stage.command(Command::OpenChat(frogs));
    undo(&mut stage);
    assert_eq!(stage.value("Message"), "");
    // The chat's own text is still there, with the caret at its end.
    stage.command(Command::OpenChat(boats));
    stage.types("!");
    assert_eq!(stage.value("Message"), "of the boats!");
    stage.ctrl(Key::N);
    undo(&mut stage);
    assert_eq!(stage.value("Message"), "", "a new chat");
    // Undo does not restore a sent message.
    stage.ask("Tell me a story.");
    undo(&mut stage);
    assert_eq!(stage.value("Message"), "");
}

#[test]
fn change_of_a_message_begins_at_its_end() {
    let (mut stage, [_, boats]) = two_chats();
    stage.click("Edit message");
    stage.press(Key::Home);
    stage.types("Well: ");
    stage.click("Cancel");
    stage.command(Command::OpenChat(boats));
    for (button, field, text) in
        [("Edit message", "Changed message", "Hello"), ("Edit answer", "Changed answer", "There was a train.")]
    {
        stage.click(button);
        stage.types(" The end.");
        assert_eq!(stage.value(field), format!("{text} The end."));
        stage.press(Key::Home);
        (0..6).for_each(|_| stage.ctrl(Key::Z));
        assert_eq!(stage.value(field), text, "all that is undone is its own");
        stage.click("Cancel");
        // The same field again, after the caret was moved.
        stage.click(button);
        stage.types("!");
        assert_eq!(stage.value(field), format!("{text}!"));
        stage.click("Cancel");
    }
}

#[test]
fn renaming_replaces_the_name_that_is_selected() {
    let (mut stage, [_, boats]) = two_chats();
    stage.press(Key::F2);
    stage.types("Renamed");
    stage.press(Key::Enter);
    stage.command(Command::OpenChat(boats));
    stage.press(Key::F2);
    stage.types("Lily");
    assert_eq!(stage.value("Name of the chat"), "Lily");
    undo(&mut stage);
    assert_eq!(stage.value("Name of the chat"), "Boats");
    stage.types("s");
    stage.press(Key::Enter);
    for name in ["Stories", "Letters"] {
        stage.click("New folder");
        stage.it.step();
        stage.types(name);
        assert_eq!(stage.value("Name of the folder"), name);
        stage.press(Key::Enter);
    }
    let mut folders: Vec<_> = stage.shell().store.folders().unwrap().into_iter().map(|folder| folder.name).collect();
    folders.sort();
    assert_eq!(folders, ["Letters", "Stories"]);
}

#[test]
fn settings_of_one_chat_take_back_nothing_of_another() {
    let (mut stage, [frogs, boats]) = two_chats();
    stage.click("Chat settings");
    stage.write("System prompt", "You are a frog.");
    erase_slowly(&mut stage);
    stage.command(Command::OpenChat(boats));
    stage.focus("System prompt");
    undo(&mut stage);
    assert_eq!(stage.value("System prompt"), "");
    // The same for preset names: saving a preset clears the field.
    stage.write("Name of the preset", "Brief");
    stage.click("Save as preset");
    stage.focus("Name of the preset");
    undo(&mut stage);
    assert_eq!(stage.value("Name of the preset"), "");
    let prompts = [frogs, boats].map(|chat| stage.shell().store.chat(chat).unwrap().system_prompt);
    assert_eq!(prompts, ["", ""]);
}

#[test]
fn tool_server_is_added_with_enter_and_not_brought_back_for_the_next() {
    const FIELD: &str = "Server to add: a command, an address, or JSON with mcpServers";
    let mut stage = TestWindow::opened(SIZE);
    stage.ctrl(Key::Comma);
    stage.write(FIELD, "http://127.0.0.1:1/mcp");
    // Leaving the page shows a warning.
    stage.ctrl(Key::L);
    assert!(stage.shows("The tool server was not added"), "{:?}", stage.texts());
    stage.ctrl(Key::Comma);
    assert_eq!(stage.value(FIELD), "http://127.0.0.1:1/mcp");
    stage.focus(FIELD);
    stage.press(Key::Enter);
    stage.until("the server", |window| !window.shell.settings.tools.servers.is_empty());
    stage.focus(FIELD);
    undo(&mut stage);
    assert_eq!(stage.value(FIELD), "");
}

#[test]
fn modifiers_count_as_they_were_when_the_key_was_pressed() {
    let (mut stage, _) = two_chats();
    stage.types("one");
    stage.press_in_one_frame(Modifiers::SHIFT, Key::Enter);
    stage.types("two");
    assert_eq!(stage.value("Message"), "one\ntwo", "Shift+Enter does not send");
    assert!(!stage.shell().chat_controller.is_busy());
    stage.press_in_one_frame(Modifiers::NONE, Key::Enter);
    assert!(stage.shell().chat_controller.is_busy());
    stage.answered();
}

#[test]
fn draft_of_a_new_chat_is_kept_while_one_types_and_an_empty_chat_leaves_no_row() {
    let mut stage = TestWindow::opened(SIZE);
    let chats = |stage: &mut TestWindow| stage.shell().store.chats().unwrap();
    eventually("a draft, although there is no pause", || {
        stage.it.event(Event::Text("x".to_owned()));
        stage.it.step();
        !chats(&mut stage).is_empty()
    });
    assert!(chats(&mut stage)[0].draft.starts_with('x'));
    stage.erase("Message");
    stage.ctrl(Key::N);
    assert!(chats(&mut stage).is_empty(), "nothing was said in it");
}

#[test]
fn button_that_sends_stays_in_the_window_when_much_is_pasted() {
    let (mut stage, _) = two_chats();
    stage.focus("Message");
    stage.it.event(Event::Paste("A line of a long text.\n".repeat(300)));
    stage.it.step();
    let send = stage.role(Role::Button, "Send").rect();
    assert!(send.bottom() < SIZE[1] && send.top() > 0.5 * SIZE[1], "{send}");
    stage.it.event(Event::Text("the end".to_owned()));
    stage.it.step();
    assert!(stage.role(Role::Button, "Send").rect().bottom() < SIZE[1]);
}
