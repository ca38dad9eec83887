use egui_kittest::{Harness, kittest::Queryable};

use super::*;
use crate::testing::add_chat;
use thermocline_host::{folders::Folders, testing::eventually};
use thermocline_rich_text::theme;

type State = Option<(Shell, ChatsPanel, Vec<Command>)>;

fn harness(folder: &tempfile::TempDir) -> Harness<'static, State> {
    let folders = Folders::below(folder.path());
    add_chat(&folders, "Frogs", &["A frog sat on a stone."]);
    add_chat(&folders, "Boats", &["A boat in the rain."]);
    let mut harness = Harness::builder().with_size([260.0, 700.0]).build_ui_state(
        move |ui, state: &mut State| {
            let (shell, panel, asked) = state.get_or_insert_with(|| {
                theme::install(ui);
                (Shell::new(ui, folders.clone()).unwrap(), ChatsPanel::default(), Vec::new())
            });
            panel.tick(ui, shell);
            panel.show(ui, shell);
            asked.extend(shell.take_commands());
        },
        None,
    );
    harness.run_steps(3);
    harness
}

fn titles(harness: &Harness<'_, State>) -> Vec<String> {
    harness.state().as_ref().unwrap().0.store.chats().unwrap().into_iter().map(|chat| chat.title).collect()
}

fn click(it: &mut Harness<'_, State>, name: &str) {
    it.get_by_label(name).click();
    it.run_steps(4);
}

fn choose(it: &mut Harness<'_, State>, chat: &str, entry: &str) {
    click(it, &format!("More for {chat}"));
    click(it, entry);
}

#[test]
fn chat_list_opens_pins_deletes_and_restores() {
    let folder = tempfile::tempdir().unwrap();
    let mut it = harness(&folder);
    assert!(it.query_by_label("TODAY").is_some());
    click(&mut it, "Frogs");
    assert!(matches!(it.state().as_ref().unwrap().2.last(), Some(Command::OpenChat(_))));
    choose(&mut it, "Frogs", "Pin");
    assert_eq!(titles(&it), ["Frogs", "Boats"]);
    assert!(it.query_by_label("PINNED").is_some());
    choose(&mut it, "Boats", "Delete");
    assert_eq!(titles(&it), ["Frogs"]);
    click(&mut it, "Undo");
    assert_eq!(titles(&it), ["Frogs", "Boats"]);

    // A deleted chat can also be restored later, from the list of deleted chats.
    assert!(it.query_by_label("Deleted chats").is_none());
    choose(&mut it, "Boats", "Delete");
    it.state_mut().as_mut().unwrap().1.deleted = None;
    it.run_steps(2);
    assert!(it.query_by_label("Undo").is_none());
    click(&mut it, "Deleted chats");
    click(&mut it, "Restore Boats");
    assert_eq!(titles(&it), ["Frogs", "Boats"]);
    assert!(it.query_by_label("Deleted chats").is_none());
}

#[test]
fn chat_search_opens_the_message_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut it = harness(&folder);
    it.state_mut().as_mut().unwrap().1.focus = true;
    it.run_steps(2);
    it.get_by_label("Search chats").type_text("stone");
    it.run_steps(2);
    eventually("the message", || {
        it.step();
        it.query_by_label_contains("A frog sat on a").is_some()
    });
    it.get_by_label_contains("A frog sat on a").click();
    it.run_steps(2);
    assert!(matches!(it.state().as_ref().unwrap().2.last(), Some(Command::OpenMessage(..))));
}

#[test]
fn folder_without_chats_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut it = harness(&folder);
    let store = &mut it.state_mut().as_mut().unwrap().0.store;
    let (letters, chat) = (store.add_folder("Letters").unwrap(), store.chats().unwrap()[0].id);
    let empty = |it: &mut Harness<'_, State>| {
        it.run_steps(2);
        it.query_by_label("No chats here yet").is_some()
    };
    eventually("the folder", || empty(&mut it));
    it.state_mut().as_mut().unwrap().0.store.move_chat(chat, Some(letters)).unwrap();
    eventually("the chat in it", || !empty(&mut it));
    assert!(it.query_by_label("Letters").is_some());
}
