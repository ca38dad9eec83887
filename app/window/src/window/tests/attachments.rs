//! Attachments: dropped, chosen, removed, sent and cited.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use egui::{Color32, ColorImage, Event, Key, Modifiers, accesskit::Role};
use egui_kittest::kittest::NodeT;
use serde_json::{Value, json};

use super::names;
use crate::{
    command::{Command, Page},
    testing::TestWindow,
};
use thermocline_chats::{
    attachment::fixtures::{docx, encrypted_pdf, haystack, pdf},
    chat::given::counting_key,
    store::{Attachment, StoredMessage},
};
use thermocline_engine::pictures::Picture;
use thermocline_host::{answer_stats::AnswerStats, library::ModelId};

const SIZE: [f32; 2] = [1440.0, 1000.0];

/// The choice of the embedding model in the settings.
const CHOICE: &str = "Find passages by";

/// Creates a folder with files of these names and contents.
fn folder(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let write = |(name, bytes): &(&str, &[u8])| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let paths = files.iter().map(write).collect();
    (folder, paths)
}

/// The shown branch, and all files of its chat.
fn chat(stage: &mut TestWindow) -> (Vec<StoredMessage>, Vec<Attachment>) {
    let shell = stage.shell();
    let Some(number) = shell.settings.last_chat else { return Default::default() };
    let chat = shell.store.find_chat(number).unwrap().unwrap();
    (shell.store.branch(chat.id).unwrap(), shell.store.attachments(chat.id).unwrap())
}

/// Drops a file, and waits until its tokens are counted.
pub(super) fn attach(stage: &mut TestWindow, path: &Path) {
    stage.let_go(&[path]);
    let name = path.file_name().unwrap().to_str().unwrap();
    stage.appears(&format!("Remove {name}"));
    stage.until("its tokens", |window| {
        let shell = window.shell();
        let chat = shell.shown.and_then(|number| shell.store.find_chat(number).unwrap());
        chat.is_some_and(|chat| shell.store.attachments(chat.id).unwrap().iter().all(|file| file.tokens.is_some()))
    });
}

#[test]
fn short_files_are_read_whole_and_named_under_the_answer() {
    let word = docx("<w:p><w:r><w:t>The frog is green.</w:t></w:r></w:p>");
    let (_folder, paths) = folder(&[("notes.md", b"# Notes\n\nA cat has a boat.\n"), ("frog.docx", &word)]);
    let mut stage = TestWindow::opened(SIZE);
    stage.hold(&paths[0]);
    assert!(stage.shows("Drop it to attach it to the message"));
    attach(&mut stage, &paths[0]);
    attach(&mut stage, &paths[1]);
    assert_eq!(stage.it.state().page, Page::Chat);
    assert!(stage.control("Message").is_focused(), "one writes on at once");
    stage.until("a count with the files", |window| {
        window.conversation.counted().is_some_and(|tokens| tokens.draft > 20)
    });

    names::check(&stage, "attached files");
    stage.ask("Tell me a story about it.");
    names::check(&stage, "sources");
    let (branch, files) = chat(&mut stage);
    assert_eq!((branch.len(), &*branch[0].content), (2, "Tell me a story about it."));
    assert!(files.iter().all(|file| file.message == Some(branch[0].id) && file.whole == Some(true)), "{files:?}");
    assert!(stage.shows("Sources: notes.md; frog.docx"), "{:?}", stage.texts());
    assert!(!stage.shows("Remove notes.md") && stage.shows("notes.md"), "they are shown with the message");
    let stats = AnswerStats::from_json(branch[1].stats.as_deref()).unwrap();
    assert!(stats.prompt_tokens > 40, "the model has read them: {stats:?}");

    // An edited version of the message keeps the files, and so does a restarted window.
    stage.click("Edit message");
    stage.write("Changed message", " And a dog.");
    stage.click("Send again");
    stage.answered();
    let (branch, files) = chat(&mut stage);
    assert_eq!(branch[0].version, (2, 2));
    assert_eq!(files.iter().filter(|file| file.message == Some(branch[0].id)).count(), 2);
    let mut stage = stage.again();
    stage.step();
    assert!(stage.shows("Sources: notes.md; frog.docx"), "{:?}", stage.texts());
}

#[test]
fn long_files_are_read_in_passages_that_are_cited_with_their_place() {
    let text = haystack("The dragon lives in the tower.");
    let (_folder, paths) = folder(&[("register.txt", text.as_bytes())]);
    let mut stage = TestWindow::opened(SIZE);
    attach(&mut stage, &paths[0]);
    assert!(stage.shows("tokens, in passages"), "{:?}", stage.texts());
    stage.ask("Where does the dragon live?");
    let (branch, files) = chat(&mut stage);
    assert_eq!((branch.len(), files[0].whole), (2, Some(false)));
    assert!(stage.shows("Sources: register.txt, lines "), "{:?}", stage.texts());
    assert!(!stage.shows("The dragon lives in the tower."));
    let title = stage.texts().into_iter().find(|text| text.starts_with("The ") && text.contains("passage")).unwrap();
    stage.click(&title);
    assert!(stage.shows("The dragon lives in the tower."), "the passage itself: {:?}", stage.texts());
}

/// Copies the embedding model `name` to `folder`.
fn embedding_model(name: &str, folder: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/encoders").join(name);
    for at in ["", "1_Pooling", "2_Normalize"] {
        let to = folder.join(name).join(at);
        fs::create_dir_all(&to).unwrap();
        for file in fs::read_dir(from.join(at)).unwrap().flatten().filter(|file| file.path().is_file()) {
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
}

#[test]
fn passages_are_ranked_by_meaning_if_the_library_has_an_embedding_model() {
    let text = haystack("The dragon lives in the tower.");
    let (_folder, paths) = folder(&[("register.txt", text.as_bytes())]);
    let mut stage = TestWindow::opened_with(SIZE, |folders, _| embedding_model("nomic-bert", &folders.models()));
    attach(&mut stage, &paths[0]);
    stage.appears("in passages ranked by meaning with nomic-bert");
    stage.ask("Where does the dragon live?");
    stage.appears(", ranked by meaning with nomic-bert");

    // The choice of words alone, and a model that is gone.
    stage.command(Command::Show(Page::Preferences));
    assert_eq!(stage.role(Role::ComboBox, CHOICE).accesskit_node().value().unwrap(), "Automatic (nomic-bert)");
    stage.role(Role::ComboBox, CHOICE).scroll_to_me();
    stage.step();
    let list = stage.role(Role::ComboBox, CHOICE).rect().center();
    stage.tap(list);
    stage.click("Words only");
    stage.command(Command::Compose);
    stage.click("Answer again");
    stage.answered();
    stage.appears(", ranked by words");
    assert!(!stage.shows("ranked by words, because"));
    stage.shell().settings.passage_model = Some("/nowhere/gone.gguf".to_owned());
    stage.click("Answer again");
    stage.answered();
    stage.appears(", ranked by words, because gone failed");
}

#[test]
fn files_that_cannot_be_read_say_why_and_leave_nothing_behind() {
    let secret = encrypted_pdf(&[&["secret"]], "key");
    let (_folder, paths) = folder(&[
        ("a.pdf", &secret),
        ("b.txt", b""),
        ("c.bin", b"\x7fELF\x02\x01\0\0\0"),
        ("d.docx", b"PK\x03\x04 and no more"),
        ("e.pdf", &pdf(&[&["The whole of it."]])),
    ]);
    let mut stage = TestWindow::opened(SIZE);
    for (path, why) in paths.iter().zip([
        "a.pdf is encrypted. Save a copy without a password",
        "b.txt is empty",
        "c.bin is not a text file. You can attach",
        "d.docx is damaged, or not a docx file",
    ]) {
        stage.let_go(&[path]);
        stage.appears(why);
        assert!(!stage.shows("Remove "), "{:?}", stage.texts());
    }
    assert!(chat(&mut stage).1.is_empty());
    // An unreadable file does not prevent the others from being attached.
    stage.let_go(&[&paths[1], &paths[4]]);
    stage.appears("Remove e.pdf");
}

#[test]
fn files_are_attached_taken_out_and_sent_with_the_keyboard_alone() {
    let (_folder, paths) = folder(&[("one.rs", b"fn one() {}\n"), ("two.txt", b"two words\n")]);
    let mut stage = TestWindow::opened(SIZE);
    for path in &paths {
        // Tests have no desktop and therefore no file dialog, so the path is typed.
        stage.ctrl(Key::O);
        stage.appears("This desktop has no file dialog");
        stage.it.event(Event::Text(path.display().to_string()));
        stage.step();
        stage.press(Key::Enter);
        stage.appears(&format!("Remove {}", path.file_name().unwrap().to_str().unwrap()));
    }
    // Shift+Tab moves from the text to the button of the second file.
    assert!(stage.control("Message").is_focused());
    stage.press_with(Modifiers::SHIFT, Key::Tab);
    assert!(stage.control("Remove two.txt").is_focused());
    stage.press(Key::Enter);
    assert!(!stage.shows("Remove two.txt") && stage.shows("Remove one.rs"));
    assert!(stage.control("Message").is_focused(), "back where one writes");
    stage.it.event(Event::Text("Tell me a story.".to_owned()));
    stage.step();
    stage.press(Key::Enter);
    stage.answered();
    let (branch, files) = chat(&mut stage);
    assert_eq!((branch.len(), files.len(), &*files[0].name), (2, 1, "one.rs"));
    assert!(stage.shows("Sources: one.rs"));
}

#[test]
fn attached_files_wait_with_the_draft_and_leave_with_the_chat() {
    let (_folder, paths) = folder(&[("wait.md", b"It waits.\n")]);
    let mut stage = TestWindow::opened(SIZE);
    attach(&mut stage, &paths[0]);
    let mut stage = stage.again();
    stage.step();
    assert!(stage.shows("Remove wait.md"), "{:?}", stage.texts());
    stage.ctrl(Key::N);
    assert!(!stage.shows("Remove wait.md"), "another chat has none");
}

/// Copies a small vision model to `to`, with a template that writes pictures.
pub(super) fn seeing_model(to: &Path) -> ModelId {
    vision_model("qwen3-vl", to)
}

/// Copies the vision model `name` to `to`, with a template that writes pictures.
pub(super) fn vision_model(name: &str, to: &Path) -> ModelId {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/towers").join(name);
    for file in fs::read_dir(from).unwrap().flatten() {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    let set = |name: &str, key: &str, value: Value| {
        let path = to.join(name);
        let mut values: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        values[key] = value;
        fs::write(path, values.to_string()).unwrap();
    };
    set("config.json", "image_token_id", json!(1));
    let template = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content \
                    %}{{ eos_token if p.type == 'image' else p.text }}{% endfor %}{% endif %}\n{% endfor %}";
    set("tokenizer_config.json", "chat_template", json!(template));
    ModelId::Path(to.to_owned())
}

#[test]
fn pictures_are_dropped_pasted_sent_to_a_model_that_sees_them_and_kept() {
    let models = tempfile::tempdir().unwrap();
    let model = seeing_model(models.path());
    let mut stage = TestWindow::opened(SIZE);
    stage.shell().model_settings(&model).device = Some(String::new());
    stage.command(Command::OpenModel(model.clone()));
    stage.until_open(&model);
    attach(&mut stage, &models.path().join("whole.png"));
    let pasted = ColorImage::filled([40, 24], Color32::from_rgb(200, 30, 60));
    stage.it.event(Event::PasteImage(Arc::new(pasted)));
    stage.appears("Remove pasted picture.png");
    stage.until("both pictures' tokens", |window| window.conversation.counted().is_some_and(|tokens| tokens.draft > 8));
    stage.appears("The picture pasted picture.png");
    names::check(&stage, "attached pictures");
    stage.ask("Look.");
    let (branch, files) = chat(&mut stage);
    assert_eq!((branch.len(), files.len()), (2, 2), "{:?}", stage.texts());
    assert!(files.iter().all(|file| file.is_picture() && file.whole == Some(true)), "{files:?}");
    let key = counting_key(&model.key(), &stage.shell().engine_handle.engine().unwrap());
    let tokens: usize = files.iter().map(|file| file.tokens_for(&key).unwrap()).sum();
    let stats = AnswerStats::from_json(branch[1].stats.as_deref()).unwrap();
    assert!(stats.prompt_tokens > tokens && tokens > 8, "{tokens}, {stats:?}");
    // A restarted window shows them, and a regenerated answer reads them again.
    let mut stage = stage.again();
    stage.until_open(&model);
    stage.appears("The picture whole.png");
    stage.click("Answer again");
    stage.answered();
    let (branch, files) = chat(&mut stage);
    assert!(files.iter().all(|file| file.whole == Some(true)), "{files:?}");
    let again = AnswerStats::from_json(branch[1].stats.as_deref()).unwrap();
    assert_eq!(again.prompt_tokens, stats.prompt_tokens);
}

#[test]
fn models_that_cannot_see_say_so_before_a_picture_is_sent() {
    let picture = Picture::from_rgb(160, 160, vec![90; 160 * 160 * 3]).unwrap();
    let png = picture.file().unwrap().bytes;
    let (_folder, paths) = folder(&[("frog.png", &png), ("broken.png", b"\x89PNG\r\n\x1a\n and no more")]);
    let mut stage = TestWindow::opened(SIZE);
    stage.let_go(&[&paths[1]]);
    stage.appears("broken.png is not a picture that Thermocline can read");
    stage.let_go(&[&paths[0]]);
    stage.appears("Remove frog.png");
    stage.appears("not shown to this model");
    stage.ask("Tell me a story about it.");
    let (branch, files) = chat(&mut stage);
    assert_eq!((branch.len(), files.len(), files[0].whole), (2, 1, Some(false)));
    assert!(stage.shows("not shown"), "{:?}", stage.texts());
}
