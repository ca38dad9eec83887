//! Every control has a unique name.

use std::collections::HashSet;

use egui::{
    Key,
    accesskit::{Action, Role},
};
use egui_kittest::kittest::{AccessKitNode, NodeT, Queryable};

use crate::testing::{TestWindow, add_chat};
use thermocline_chats::store::{NewMessage, Store};

const ANSWER: &str = "<think>\nHm.\n</think>\n\nSome *words*.\n\n```rust\nfn main() {}\n```\n\n```\nmore\n```\n";

/// True if the user can operate the control: by its role, or because it can be focused and clicked.
fn is_interactive(node: &AccessKitNode<'_>) -> bool {
    let acts = [Action::Focus, Action::Click].iter().all(|action| node.data().supports_action(*action));
    // Selectable text is not a control.
    egui::accessibility::is_input(node.role()) || (acts && node.role() != Role::Label)
}

/// Asserts that every control has a name that differs from its siblings of the same role.
pub(super) fn check(stage: &TestWindow, place: &str) {
    let mut seen = HashSet::new();
    let mut count = 0;
    for node in stage.it.root().children_recursive() {
        let node = node.accesskit_node();
        if node.is_hidden() || !is_interactive(&node) {
            continue;
        }
        count += 1;
        let name = node.label().or(node.data().placeholder().map(str::to_owned)).unwrap_or_default();
        let (role, bounds) = (node.role(), node.raw_bounds());
        assert!(!name.trim().is_empty(), "{place}: a {role:?} at {bounds:?} has no name");
        assert!(!name.chars().any(is_icon), "{place}: a {role:?} is called by its icon: {name:?}");
        let parent = node.parent().map(|parent| parent.locate());
        // The splitters of columns share one name.
        let one = role == Role::Splitter || seen.insert((parent.map(|(id, _)| id), format!("{role:?}"), name.clone()));
        assert!(one, "{place}: two of the role {role:?} beside each other are called {name:?}");
    }
    assert!(count > 3, "{place}: {count} controls only");
}

/// True for characters of an icon font. Screen readers cannot speak them.
fn is_icon(letter: char) -> bool {
    ('\u{e000}'..='\u{f8ff}').contains(&letter) || letter as u32 >= 0xf_0000
}

/// Opens a window with chats, folders and an answer with every element.
fn full(size: [f32; 2]) -> TestWindow {
    TestWindow::opened_with(size, |folders, settings| {
        let (mut store, _) = Store::open(&folders.chats()).unwrap();
        store.add_folder("Old ones").unwrap();
        for title in ["Frogs", "Boats"] {
            let chat = store.add_chat(None, "").unwrap();
            store.rename_chat(chat, title).unwrap();
            let mut parent = None;
            for _ in 0..2 {
                let asked = store.add_message(chat, parent, &NewMessage::user("Why?")).unwrap();
                let answer = NewMessage::assistant(ANSWER);
                store.add_message(chat, Some(asked), &answer).unwrap();
                parent = Some(store.add_message(chat, Some(asked), &answer).unwrap());
            }
            store.pin_chat(chat, title == "Boats").unwrap();
            settings.last_chat = Some(chat.number());
        }
        settings.folders.push("/nowhere/at/all".into());
        settings.folders.push("/nowhere/else".into());
    })
}

#[test]
fn controls_of_every_page_have_distinct_names() {
    let mut stage = full([1440.0, 1400.0]);
    check(&stage, "chat");
    stage.click("Chat settings");
    check(&stage, "chat settings");
    stage.click("Fixed seed");
    stage.write("Name of the preset", "Mine");
    stage.click("Save as preset");
    check(&stage, "presets");
    stage.click("Chat settings");
    stage.it.get_all_by_label("Edit message").next().unwrap().click();
    stage.step();
    check(&stage, "a message being changed");
    stage.click("Cancel");
    stage.ctrl(Key::N);
    check(&stage, "a new chat");
    stage.ctrl(Key::M);
    stage.until("the search", |window| !window.models.found().is_empty());
    check(&stage, "models");
    stage.ctrl(Key::Comma);
    check(&stage, "preferences");
    stage.press(Key::F1);
    check(&stage, "keys");
    stage.press(Key::F1);
    stage.ctrl(Key::K);
    stage.write("Search chats", "words");
    stage.appears("Some");
    check(&stage, "search");
}

#[test]
fn menu_entries_have_distinct_names() {
    let mut stage = full([1440.0, 1000.0]);
    for (button, entry) in
        [("More for Frogs", "Export as Markdown …"), ("Import and export", "Import chats …"), ("CPU", "CPU only")]
    {
        stage.it.get_by_role_and_label(Role::Button, button).click();
        stage.step();
        assert!(stage.shows(entry), "{entry}");
        check(&stage, button);
        stage.press(Key::Escape);
    }
    stage.click("More for Frogs");
    stage.click("Rename");
    check(&stage, "a name being changed");
    stage.press(Key::Escape);
    stage.click("New folder");
    check(&stage, "a folder being named");
    stage.press(Key::Enter);
    stage.click("More for Boats");
    stage.click("Delete");
    check(&stage, "something to undo");
}

#[test]
fn narrow_window_has_the_same_controls() {
    let mut stage = full([600.0, 900.0]);
    check(&stage, "narrow");
    for key in [Key::B, Key::J] {
        stage.ctrl(key);
        check(&stage, "a column over the others");
    }
    assert!(stage.shows("Processor"));
}

#[test]
fn texts_for_screen_readers_have_no_character_that_their_bus_refuses() {
    let stage = TestWindow::opened_with([1440.0, 900.0], |folders, settings| {
        let answer = "Said\0 *so*\n\n```\ncode\0 here\n```\n\n[link](https://example.org/\0a)\n";
        let chat = add_chat(folders, "Title\0 of it", &["Asked\0 so", answer]);
        let (mut store, _) = Store::open(&folders.chats()).unwrap();
        store.set_draft(chat, "Draft\0 of it").unwrap();
        settings.last_chat = Some(chat.number());
    });
    for text in ["Title", "Asked", "Said", "code", "Draft"] {
        let with = |node: &AccessKitNode<'_>| {
            [node.label(), node.value()].into_iter().flatten().find(|it| it.starts_with(text))
        };
        let told = stage.it.root().children_recursive().find_map(|node| with(&node.accesskit_node()));
        let told = told.unwrap_or_else(|| panic!("{text} is not told: {:?}", stage.texts()));
        assert!(!told.contains('\0'), "{told:?}");
    }
    let told: Vec<String> = stage.texts().into_iter().filter(|text| text.contains('\0')).collect();
    assert!(told.is_empty(), "{told:?}");
}
