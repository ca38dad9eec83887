use egui_kittest::{Harness, kittest::Queryable};

use super::*;
use crate::{
    folders::Folders,
    store::{NewMessage, Store},
    testing::eventually,
    ui::theme,
};

type State = Option<(Shell, ChatsPanel, Vec<Command>)>;

fn harness(folder: &tempfile::TempDir) -> Harness<'static, State> {
    let folders = Folders::below(folder.path());
    let (mut store, _) = Store::open(&folders.chats()).unwrap();
    for (title, text) in [("Frogs", "A frog sat on a stone."), ("Boats", "A boat in the rain.")] {
        let chat = store.add_chat(None, "").unwrap();
        store.rename_chat(chat, title).unwrap();
        store.add_message(chat, None, &NewMessage::user(text)).unwrap();
    }
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

fn choose(it: &mut Harness<'_, State>, chat: &str, entry: &str) {
    it.get_by_label(&format!("More for {chat}")).click();
    it.run_steps(4);
    it.get_by_label(entry).click();
    it.run_steps(4);
}

#[test]
fn chat_list_opens_pins_deletes_and_restores() {
    let folder = tempfile::tempdir().unwrap();
    let mut it = harness(&folder);
    assert!(it.query_by_label("TODAY").is_some());
    it.get_by_label("Frogs").click();
    it.run_steps(2);
    assert!(matches!(it.state().as_ref().unwrap().2.last(), Some(Command::OpenChat(_))));
    choose(&mut it, "Frogs", "Pin");
    assert_eq!(titles(&it), ["Frogs", "Boats"]);
    assert!(it.query_by_label("PINNED").is_some());
    choose(&mut it, "Boats", "Delete");
    assert_eq!(titles(&it), ["Frogs"]);
    it.get_by_label("Undo").click();
    it.run_steps(3);
    assert_eq!(titles(&it), ["Frogs", "Boats"]);

    // Later, too.
    assert!(it.query_by_label("Deleted chats").is_none());
    choose(&mut it, "Boats", "Delete");
    it.state_mut().as_mut().unwrap().1.deleted = None;
    it.run_steps(2);
    assert!(it.query_by_label("Undo").is_none());
    it.get_by_label("Deleted chats").click();
    it.run_steps(4);
    it.get_by_label("Bring back Boats").click();
    it.run_steps(4);
    assert_eq!(titles(&it), ["Frogs", "Boats"]);
    assert!(it.query_by_label("Deleted chats").is_none());
}

#[test]
fn chat_search_opens_the_message_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut it = harness(&folder);
    it.state_mut().as_mut().unwrap().1.focus_search();
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
