use egui_kittest::{
    Harness,
    kittest::{NodeT, Queryable},
};

use super::{start::STORIES, *};
use thermocline_chats::store::{MessageState, import_export::FileFormat};
use thermocline_host::{folders::Folders, library::ModelId, testing::eventually};
use thermocline_rich_text::theme;

/// Frames until the rows have their real heights and the list is at its end again. An earlier click
/// may miss.
const SETTLED: usize = 8;

type ChatHarness = Harness<'static, Option<(Shell, Conversation)>>;

/// Creates a shell in a folder of its own, with the built-in model still opening.
fn harness(folder: &tempfile::TempDir) -> ChatHarness {
    let (folders, mut offers) = (Folders::below(folder.path()), DownloadOffers::default());
    let mut harness = Harness::builder().with_size([900.0, 700.0]).with_max_steps(64).build_ui_state(
        move |ui, state: &mut Option<(Shell, Conversation)>| {
            let (shell, conversation) = state.get_or_insert_with(|| {
                theme::install(ui);
                let mut shell = Shell::new(ui, folders.clone()).unwrap();
                shell.open_model(ModelId::Builtin);
                (shell, Conversation::default())
            });
            conversation.tick(ui, shell);
            conversation.show(ui, shell, &mut offers);
            for command in shell.take_commands() {
                conversation.handle_command(&command, shell);
            }
        },
        None,
    );
    until(&mut harness, "a model", |shell, _| shell.engine_handle.engine().is_some());
    harness
}

fn until(harness: &mut ChatHarness, what: &str, is: impl Fn(&Shell, &Conversation) -> bool) {
    eventually(what, || {
        harness.step();
        harness.state().as_ref().is_some_and(|(shell, conversation)| is(shell, conversation))
    });
    harness.run_steps(SETTLED);
}

fn quiet(harness: &mut ChatHarness) {
    until(harness, "the end", |shell, _| !shell.chat_controller.is_busy());
}

fn click(harness: &mut ChatHarness, name: &str) {
    harness.get_by_label(name).click();
    harness.run_steps(SETTLED);
}

/// Asks for the first story.
fn tell(harness: &mut ChatHarness) {
    click(harness, STORIES[0].0);
    quiet(harness);
}

fn branch(harness: &ChatHarness) -> Vec<StoredMessage> {
    harness.state().as_ref().unwrap().1.branch.clone()
}

#[test]
fn suggestion_starts_a_chat_with_answer_versions_and_edits() {
    let folder = tempfile::tempdir().unwrap();
    let mut it = harness(&folder);
    tell(&mut it);
    let first = branch(&it);
    assert_eq!((first.len(), &*first[0].content), (2, STORIES[0].0));
    assert!(first[1].content.len() > 20 && first[1].stats.is_some(), "{first:?}");

    click(&mut it, "Answer again");
    quiet(&mut it);
    assert_eq!(branch(&it)[1].version, (2, 2));
    click(&mut it, "Earlier version");
    assert_eq!((branch(&it)[1].version, branch(&it)[1].id), ((1, 2), first[1].id));

    click(&mut it, "Edit answer");
    assert!(it.get_by_label("Changed answer").is_focused());
    it.state_mut().as_mut().unwrap().1.editing.as_mut().unwrap().text = "Short.".to_owned();
    it.run_steps(SETTLED);
    click(&mut it, "Keep");
    let edited = branch(&it).swap_remove(1);
    assert_eq!((&*edited.content, edited.edited, edited.version), ("Short.", true, (3, 3)));

    click(&mut it, "Edit message");
    assert!(it.get_by_label("Changed message").is_focused());
    it.state_mut().as_mut().unwrap().1.editing.as_mut().unwrap().text = STORIES[1].0.to_owned();
    it.run_steps(SETTLED);
    click(&mut it, "Send again");
    quiet(&mut it);
    let other = branch(&it);
    assert_eq!((&*other[0].content, other[0].version), (STORIES[1].0, (2, 2)));
}

#[test]
fn enter_sends_escape_stops_and_drafts_are_restored() {
    let folder = tempfile::tempdir().unwrap();
    {
        let mut it = harness(&folder);
        it.get_by_label("Message").focus();
        it.run_steps(2);
        it.get_by_label("Message").type_text("Tell me a very long story.");
        it.run_steps(2);
        it.key_press(Key::Enter);
        it.run_steps(2);
        assert!(it.state().as_ref().unwrap().0.chat_controller.is_busy());
        it.key_press(Key::Escape);
        it.run_steps(2);
        quiet(&mut it);
        let said = branch(&it);
        assert_eq!(&*said[0].content, "Tell me a very long story.");
        assert_eq!(said[1].state, MessageState::Stopped, "{said:?}");
        it.get_by_label("Message").type_text("not sent");
        it.run_steps(2);
        let (shell, conversation) = it.state_mut().as_mut().unwrap();
        conversation.leave(shell);
        let context = egui::Context::default();
        shell.keep_settings(&context, true);
    }
    let mut it = harness(&folder);
    it.run_steps(2);
    assert_eq!(it.get_by_label("Message").value().as_deref(), Some("not sent"));
    assert_eq!(branch(&it).len(), 2);
}

#[test]
fn long_chat_lays_out_visible_messages_only() {
    let folder = tempfile::tempdir().unwrap();
    let mut it = harness(&folder);
    let (shell, conversation) = it.state_mut().as_mut().unwrap();
    let mut json = Vec::new();
    for n in 0..10_000 {
        let (role, parent) = (if n % 2 == 0 { "user" } else { "assistant" }, n - 1);
        let mut message =
            serde_json::json!({"role": role, "content": "words ".repeat(n as usize % 60 + 1), "created": n});
        if n > 0 {
            message["parent"] = parent.into();
        }
        json.push(message);
    }
    let file = serde_json::json!({"format": "thermocline.chats", "version": 1, "chats": [
        {"title": "long", "created": 1, "updated": 1, "messages": json}]});
    let chat = shell.store.import(FileFormat::Json, &file.to_string()).unwrap().added[0];
    conversation.handle_command(&Command::OpenChat(chat), shell);
    it.run_steps(8);
    let (_, conversation) = it.state().as_ref().unwrap();
    assert_eq!(conversation.branch.len(), 10_000);
    assert!(conversation.blocks.len() < 100, "{} rows were laid out", conversation.blocks.len());
    assert!(conversation.blocks.contains_key(&conversation.branch[9_999].id), "one begins at the end");
}

#[test]
fn word_of_an_answer_is_explained_by_its_neurons() {
    let folder = tempfile::tempdir().unwrap();
    let mut it = harness(&folder);
    tell(&mut it);
    click(&mut it, "Which neurons made these words?");
    for _ in 0..3 {
        click(&mut it, "Word after");
    }
    until(&mut it, "an explanation", |_, conversation| conversation.words.as_ref().is_some_and(WordView::is_complete));
    let word = it.get_by_label_contains("”: probability").accesskit_node();
    let word = word.label().or(word.value()).unwrap();
    assert!(
        word.starts_with("“ a”") || word.starts_with("“a”"),
        "the third word of a story, not what a text begins with: {word}"
    );
    let falls = it.get_by_label_contains("Turning off the ").rect();
    assert!(falls.right() <= it.ctx.content_rect().right(), "{falls} is cut off");
    it.get_by_label("Show the neurons on the map").scroll_to_me();
    it.run_steps(SETTLED);
    let (shell, _) = it.state().as_ref().unwrap();
    assert_eq!(shell.marks.highlight.as_ref().map(|word| word.places.len()), Some(8), "ringed on the map");
    click(&mut it, "Show the neurons on the map");
    it.get_by_label("Without these neurons");
    it.get_by_label("Back to the answer").scroll_to_me();
    it.run_steps(SETTLED);
    click(&mut it, "Back to the answer");
    let (shell, conversation) = it.state().as_ref().unwrap();
    assert!(conversation.words.is_none() && shell.marks.highlight.is_none());
}

#[test]
fn settings_of_a_chat_fit_and_say_what_nothing_means() {
    let folder = tempfile::tempdir().unwrap();
    let mut it = harness(&folder);
    let before: Vec<String> = names(&it);
    assert!(!before.iter().any(|name| name == "no limit"));
    click(&mut it, "Chat settings");
    assert!(names(&it).iter().any(|name| name.contains("no limit")), "{:?}", names(&it));
    let save = it.get_by_label("Save as preset").rect();
    let window = it.ctx.content_rect();
    assert!(window.contains_rect(save), "{save} without scrolling");
    it.get_by_label("More sampling").click();
    it.run_steps(30);
    let (shell, conversation) = it.state_mut().as_mut().unwrap();
    let chat = conversation.ensure_chat(shell).unwrap();
    shell.store.set_chat_sampling(chat, Some(r#"{"top_k": 0}"#)).unwrap();
    conversation.refresh(shell);
    it.run_steps(SETTLED);
    assert!(names(&it).iter().any(|name| name == "all"), "{:?}", names(&it));
}

/// All visible texts, including the numbers of sliders.
fn names(it: &ChatHarness) -> Vec<String> {
    let nodes = it.root().children_recursive();
    let texts = nodes.map(|node| [node.accesskit_node().label(), node.accesskit_node().value()]);
    texts.flatten().flatten().collect()
}
