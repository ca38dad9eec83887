//! The chat without a pointer.

use egui::{Event, Key, Modifiers, accesskit::Role};
use egui_kittest::kittest::Queryable;

use crate::{
    command::{Command, Page},
    testing::{TestWindow, add_chat, key},
};
use thermocline_chats::{
    chat::{Side, SideModel},
    store::{MessageState, Speaker},
};

const SIZE: [f32; 2] = [1440.0, 900.0];

/// Sends `text` as a message. Its answer is running afterwards.
fn send_message(stage: &mut TestWindow, text: &str) {
    stage.types(text);
    stage.press(Key::Enter);
    assert!(stage.shell().chat_controller.is_busy());
}

#[test]
fn chat_works_with_the_keyboard_alone() {
    let mut stage = TestWindow::opened(SIZE);
    // The first typed letter goes into the composer.
    stage.types("Tell me a story");
    stage.press_with(Modifiers::SHIFT, Key::Enter);
    stage.types("about a zebra.");
    stage.press(Key::Enter);
    stage.answered();
    let said = stage.branch();
    assert_eq!((said.len(), &*said[0].content), (2, "Tell me a story\nabout a zebra."));
    assert!(said[1].content.len() > 20, "{:?}", said[1]);

    // Answer again, and stop.
    stage.ctrl(Key::R);
    assert!(stage.shell().chat_controller.is_busy());
    stage.press(Key::Escape);
    stage.answered();
    let again = stage.branch()[1].clone();
    assert_eq!((again.version, again.speaker), ((2, 2), Speaker::Assistant));
    assert!(matches!(again.state, MessageState::Stopped | MessageState::Complete), "{again:?}");

    // The composer has the keyboard focus again.
    stage.types("And then?");
    stage.press(Key::Enter);
    stage.answered();
    assert_eq!(stage.branch().len(), 4);

    // Copy the answer to the clipboard.
    let last = stage.branch()[3].content.clone();
    let modifiers = Modifiers::COMMAND | Modifiers::SHIFT;
    for event in [Event::ModifiersChanged(modifiers), key(Key::C, true, modifiers)] {
        stage.it.event(event);
        stage.it.step();
    }
    stage.it.step();
    assert_eq!(stage.copied(), Some(last));
    stage.it.event(Event::ModifiersChanged(Modifiers::NONE));
    stage.step();

    // Start another chat.
    stage.ctrl(Key::N);
    assert!(stage.shows("Storyteller is ready"));
    stage.types("Tell me about a boat.");
    stage.press(Key::Enter);
    stage.answered();
    assert_eq!(stage.branch()[0].content, "Tell me about a boat.");

    // Find the first chat by a word, and open it.
    stage.ctrl(Key::K);
    stage.types("zebra");
    stage.press(Key::Enter);
    assert!(stage.branch()[0].content.contains("zebra"));
    // Find it with the arrow keys, too.
    stage.ctrl(Key::N);
    stage.ctrl(Key::K);
    stage.until("what was found", |window| window.shell().settings.last_chat.is_none());
    stage.appears("zebra");
    stage.press(Key::ArrowDown);
    stage.press(Key::Enter);
    assert!(stage.branch()[0].content.contains("zebra"));
    stage.types("not sent");
    assert_eq!(stage.value("Message"), "not sent");
}

#[test]
fn shortcuts_toggle_panels_pages_and_the_list_of_keys() {
    let mut stage = TestWindow::opened(SIZE);
    let columns = |stage: &mut TestWindow| {
        let panels = stage.shell().settings.panels;
        (panels.chats, panels.neurons, stage.shows("Search chats"), stage.shows("Processor"))
    };
    assert_eq!(columns(&mut stage), (true, true, true, true));
    stage.ctrl(Key::B);
    stage.ctrl(Key::J);
    assert_eq!(columns(&mut stage), (false, false, false, false));
    // Searching shows the column again.
    stage.ctrl(Key::K);
    stage.ctrl(Key::J);
    assert_eq!(columns(&mut stage), (true, true, true, true));
    assert!(stage.control("Search chats").is_focused());

    for (key, page, shown) in [
        (Key::M, Page::Models, "Get more"),
        (Key::Comma, Page::Preferences, "Where data is stored"),
        (Key::Comma, Page::Chat, "Message"),
        (Key::M, Page::Models, "Get more"),
        (Key::L, Page::Chat, "Message"),
    ] {
        stage.ctrl(key);
        assert_eq!(stage.it.state().page, page);
        assert!(stage.shows(shown), "{shown}");
    }
    assert!(stage.control("Message").is_focused());

    stage.press(Key::F1);
    assert!(stage.shows("Start a new line"));
    stage.press(Key::F1);
    assert!(!stage.shows("Start a new line"));
    stage.press(Key::F1);
    stage.press(Key::Escape);
    assert!(!stage.shows("Start a new line"));
    // Every control is reachable.
    stage.press(Key::F1);
    for _ in 0..8 {
        stage.press(Key::Tab);
        if stage.control("Close").is_focused() {
            break;
        }
    }
    stage.press(Key::Enter);
    assert!(!stage.shows("Start a new line"));
}

#[test]
fn escape_closes_the_focused_control_before_it_stops_an_answer() {
    let mut stage = TestWindow::opened(SIZE);
    stage.ask("Tell me a story.");
    // Presses Escape while another answer is written. Returns how the answer ended.
    let escape = |stage: &mut TestWindow| {
        stage.ctrl(Key::R);
        assert!(stage.shell().chat_controller.is_busy());
        stage.press(Key::Escape);
        stage.answered();
        stage.branch()[1].state
    };
    stage.ctrl(Key::K);
    stage.types("boat");
    assert_eq!(escape(&mut stage), MessageState::Complete);
    let search = stage.control("Search chats");
    assert!(!search.is_focused() && search.value().unwrap_or_default().is_empty(), "the search was left");

    stage.press(Key::F1);
    assert_eq!(escape(&mut stage), MessageState::Complete);
    assert!(!stage.shows("Start a new line"), "the list was closed");

    stage.focus("Import and export");
    stage.press(Key::Enter);
    assert!(stage.shows("Import chats …"));
    assert_eq!(escape(&mut stage), MessageState::Complete);
    assert!(!stage.shows("Import chats …"), "the menu was closed");

    assert_eq!(escape(&mut stage), MessageState::Stopped);
}

#[test]
fn chat_draft_and_panels_are_restored_when_the_window_reopens() {
    let mut stage = TestWindow::opened(SIZE);
    stage.types("Tell me about a boat.");
    stage.press(Key::Enter);
    stage.answered();
    stage.types("half a thou");
    stage.ctrl(Key::J);
    let said = stage.branch();
    let mut stage = stage.again();
    stage.step();
    assert_eq!(stage.branch(), said);
    assert_eq!(stage.value("Message"), "half a thou");
    assert!(stage.control("Message").is_focused() && !stage.shell().settings.panels.neurons);
}

#[test]
fn escape_keeps_a_change_until_it_is_kept_or_taken_back() {
    let mut stage = TestWindow::opened(SIZE);
    stage.ask("Tell me a story.");
    let answer = stage.branch()[1].content.clone();
    stage.click("Edit answer");
    assert!(stage.control("Changed answer").is_focused());
    stage.press(Key::Escape);
    assert!(!stage.shows("Changed answer"), "nothing was changed");

    // In a slow window, letters and Escape arrive in one frame.
    stage.click("Edit answer");
    stage.it.event(Event::Text("Much ".to_owned()));
    stage.press(Key::Escape);
    assert!(stage.control("Changed answer").value().unwrap().contains("Much "));
    stage.types("better: ");
    let changed = stage.control("Changed answer").value().unwrap();
    assert_ne!(changed, answer);
    for _ in 0..2 {
        stage.press(Key::Escape);
        assert!(stage.control("Changed answer").is_focused());
        assert_eq!(stage.value("Changed answer"), changed);
        assert!(stage.shows("Your change is not saved yet"));
    }
    stage.click("Keep");
    assert_eq!(stage.branch()[1].content, changed);
}

#[test]
fn escape_closes_the_settings_of_a_chat_before_it_stops_an_answer() {
    let mut stage = TestWindow::opened(SIZE);
    stage.ask("Tell me a story.");
    stage.click("Chat settings");
    stage.write("System prompt", "Be brief.");
    stage.ctrl(Key::R);
    assert!(stage.shell().chat_controller.is_busy());
    stage.press(Key::Escape);
    assert!(!stage.shows("System prompt"), "a field in them had the keyboard");
    stage.answered();
    assert_eq!(stage.branch()[1].state, MessageState::Complete);
    // The same while the composer has the keyboard focus.
    stage.click("Chat settings");
    assert!(stage.shows("System prompt"));
    stage.click("Message");
    stage.press(Key::Escape);
    assert!(!stage.shows("System prompt") && stage.control("Message").is_focused());
}

#[test]
fn arrows_lead_from_word_to_word_and_escape_leaves_them() {
    let mut stage = TestWindow::opened(SIZE);
    stage.ask("Tell me a story.");
    for focused in [false, true] {
        stage.click("Which neurons made these words?");
        if focused {
            stage.focus("Message");
        }
        stage.press(Key::ArrowRight);
        stage.appears("probability");
        stage.press(Key::Escape);
        assert!(!stage.shows("Back to the answer"));
        assert!(stage.control("Message").is_focused());
    }
    // If the composer has text, the arrow keys move the caret.
    stage.click("Which neurons made these words?");
    stage.write("Message", "ab");
    stage.press(Key::ArrowLeft);
    stage.types("-");
    assert_eq!(stage.value("Message"), "a-b");
    assert!(!stage.shows("Reading the text before the word") && !stage.shows("probability"));
}

#[test]
fn escape_closes_a_comparison() {
    let mut stage = TestWindow::opened(SIZE);
    stage.ask("Tell me a story.");
    let side = |title: &str| Side { title: title.to_owned(), model: SideModel::Without(Vec::new()) };
    stage.shell().queue_command(Command::Compare([side("First"), side("Second")]));
    stage.until("both answers", |window| window.conversation.is_compared());
    assert!(stage.has(Role::Button, "Close the comparison"));
    stage.press(Key::Escape);
    assert!(!stage.has(Role::Button, "Close the comparison"));
}

#[test]
fn escape_takes_the_card_of_a_neuron_away_before_it_stops_an_answer() {
    let mut stage = TestWindow::opened(SIZE);
    stage.ask("Tell me a story.");
    super::neurons::click_a_dot(&mut stage);
    assert!(stage.shows("Close this card"), "{:?}", stage.texts());
    stage.ctrl(Key::R);
    stage.press(Key::Escape);
    assert!(!stage.shows("Close this card"));
    stage.answered();
    assert_eq!(stage.branch()[1].state, MessageState::Complete);
    assert!(stage.shows("Unpin"), "it stays pinned: {:?}", stage.texts());
}

#[test]
fn escape_and_a_button_lead_from_a_page_back_to_the_chat() {
    let mut stage = TestWindow::opened(SIZE);
    for (key, page) in [(Key::M, Page::Models), (Key::Comma, Page::Preferences)] {
        stage.ctrl(key);
        assert_eq!(stage.it.state().page, page);
        stage.press(Key::Escape);
        assert_eq!(stage.it.state().page, Page::Chat);
        assert!(stage.control("Message").is_focused());
        stage.ctrl(key);
        stage.click("Back to the chat");
        assert_eq!(stage.it.state().page, Page::Chat);
    }
    // Escape leaves a text field first.
    stage.ctrl(Key::M);
    stage.write("Folder or file", "half a path");
    stage.press(Key::Escape);
    assert_eq!(stage.it.state().page, Page::Models);
    stage.press(Key::Escape);
    assert_eq!(stage.it.state().page, Page::Chat);
    // Escape also closes a side column over the page, and the answer continues.
    let mut stage = TestWindow::opened([600.0, 900.0]);
    send_message(&mut stage, "Tell me a story.");
    stage.ctrl(Key::B);
    assert!(stage.shows("Search chats"));
    stage.press(Key::Escape);
    assert!(!stage.shows("Search chats"));
    stage.answered();
    assert_eq!(stage.branch()[1].state, MessageState::Complete);
}

#[test]
fn chats_are_reached_renamed_and_deleted_with_keys() {
    let mut stage = TestWindow::opened_with(SIZE, |folders, settings| {
        for title in ["Last", "Middle", "First"] {
            settings.last_chat = Some(add_chat(folders, title, &[]).number());
        }
    });
    let shown = |stage: &mut TestWindow| {
        let shell = stage.shell();
        shell.shown.and_then(|number| shell.store.find_chat(number).unwrap()).map(|chat| chat.title)
    };
    assert_eq!(shown(&mut stage).as_deref(), Some("First"));
    for (key, title) in
        [(Key::PageDown, "Middle"), (Key::PageDown, "Last"), (Key::PageDown, "Last"), (Key::PageUp, "Middle")]
    {
        stage.ctrl(key);
        assert_eq!(shown(&mut stage).as_deref(), Some(title), "{key:?}");
        assert!(stage.control("Message").is_focused());
    }
    stage.press(Key::F2);
    assert!(stage.control("Name of the chat").is_focused());
    stage.ctrl(Key::A);
    stage.types("Renamed");
    stage.press(Key::Enter);
    assert_eq!(shown(&mut stage).as_deref(), Some("Renamed"));

    // The list has one Tab stop, and arrows move from there. Keys act on the focused row.
    stage.ctrl(Key::K);
    stage.press(Key::ArrowDown);
    assert!(stage.control("Renamed").is_focused(), "the one that is shown");
    stage.press(Key::ArrowUp);
    assert!(stage.control("First").is_focused());
    stage.press(Key::End);
    assert!(stage.control("Last").is_focused());
    stage.press_with(Modifiers::COMMAND | Modifiers::SHIFT, Key::Delete);
    assert!(!stage.shows("Last") || stage.shows("Deleted \u{201c}Last\u{201d}"), "{:?}", stage.texts());
    assert_eq!(stage.shell().store.chats().unwrap().len(), 2);
    assert_eq!(shown(&mut stage).as_deref(), Some("Renamed"), "that is still shown");
    stage.click("Undo");
    assert_eq!(stage.shell().store.chats().unwrap().len(), 3);
}

#[test]
fn areas_are_reached_with_one_key() {
    let mut stage = TestWindow::opened_with(SIZE, |folders, _| {
        add_chat(folders, "Frogs", &[]);
    });
    assert!(stage.control("Message").is_focused());
    let stop = |stage: &TestWindow, name: &str| stage.it.get_by_role_and_label(Role::Region, name).is_focused();
    stage.press(Key::F6);
    assert!(stop(&stage, "Neurons and memory"));
    stage.press(Key::F6);
    assert!(stage.control("Frogs").is_focused());
    stage.press(Key::F6);
    assert!(stop(&stage, "Chat"));
    stage.press(Key::F6);
    assert!(stage.control("Message").is_focused());
    stage.press_with(Modifiers::SHIFT, Key::F6);
    assert!(stop(&stage, "Chat"));
    // A page other than the chat has no composer.
    stage.ctrl(Key::M);
    stage.press(Key::F6);
    stage.press(Key::F6);
    assert!(stage.control("Frogs").is_focused(), "the page, the neurons, the chats");
    stage.press(Key::F1);
    assert!(stage.shows("Next area") && stage.shows("Rename the chat"));
}

#[test]
fn dates_are_shown_on_hovering() {
    let mut stage = TestWindow::opened_with(SIZE, |folders, settings| {
        settings.last_chat = Some(add_chat(folders, "Frogs", &["Why?"]).number());
    });
    for (name, words) in [("Frogs", "Started 20"), ("Copy message", "Sent 20")] {
        let at = stage.control(name).rect().center();
        stage.it.hover_at(at);
        stage.it.run_steps(60);
        assert!(stage.shows(words), "{words}: {:?}", stage.texts());
    }
}
