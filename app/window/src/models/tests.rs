//! Tests of the page of models through its controls. [`hub`] tests searches, [`library`] the models
//! of this machine, [`draft_choice`] draft models, and [`servers`] remote models.

mod draft_choice;
mod hub;
mod library;
mod servers;

use std::{fs, path::Path};

use egui::accesskit::Role;
use egui_kittest::kittest::Queryable;
use thermocline_engine::runtime::KvType;

use super::*;
use crate::testing::{TestWindow, add_chat};
use thermocline_chats::{
    download::testing::{ServerBehaviour, serve},
    settings::VramBudget,
};
use thermocline_host::testing::{replies, scripted_by_request};

const SIZE: [f32; 2] = [1440.0, 1000.0];

/// Label of the field for models of the network.
const FIELD: &str = "Search Hugging Face, or enter a repository (owner/name) or the address of a GGUF file";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

/// Copies the folder `from` of fixtures to `to`.
fn copy(from: &str, to: &Path) -> PathBuf {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(fixture(from)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    to.to_owned()
}

/// Creates a folder with a model of a few thousand weights and a broken model file. Returns the
/// folder and the model's path.
fn tiny() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let model = copy("models/llama-relu-256", &folder.path().join("tiny"));
    fs::write(folder.path().join("broken.gguf"), "GGUF, but not quite").unwrap();
    (folder, model)
}

fn page(stage: &mut TestWindow) {
    stage.ready();
    stage.click("Models");
    stage.until("a search", |window| window.page == Page::Models && !window.models.search.is_running());
}

fn opened(stage: &mut TestWindow, path: &Path) {
    stage.until_open(&ModelId::Path(path.to_owned()));
}

/// Waits for the chat, which replaces the page once a model is open, and returns to the page.
fn page_again(stage: &mut TestWindow) {
    stage.until("the chat", |window| window.page == Page::Chat);
    page(stage);
}

#[test]
fn folder_scan_lists_models_that_open_close_and_are_removed() {
    let (folder, path) = tiny();
    let mut stage = TestWindow::new(SIZE);
    page(&mut stage);
    assert_eq!(stage.it.state().models.found().len(), 1, "the built-in one");
    for _ in 0..2 {
        stage.write("Folder or file", folder.path().to_str().unwrap());
        stage.click("Add");
    }
    stage.until("two models", |window| window.models.found().len() == 2 && !window.models.search.is_running());
    assert_eq!(stage.shell().settings.folders, [folder.path()]);
    stage.click("1 unsupported file");
    assert!(stage.shows("broken.gguf"));

    stage.write("Folder or file", "/nowhere/at/all");
    stage.press(egui::Key::Enter);
    assert!(!stage.shell().toasts.is_empty(), "a sentence says that it is not there");
    assert_eq!(stage.shell().settings.folders.len(), 1);

    let name = stage.it.state().models.found()[1].name.clone();
    stage.click(&format!("Open {name}"));
    opened(&mut stage, &path);
    assert_eq!(stage.shell().settings.recent[0], path.display().to_string());
    page_again(&mut stage);
    stage.click(&format!("Close {name}"));
    assert!(matches!(stage.shell().engine_handle.state(), ModelState::Empty));
    stage.click("Open Thermocline Storyteller");
    stage.until("the chat", |window| window.page == Page::Chat);

    stage.click("Settings");
    stage.click(&format!("Remove {}", folder.path().display()));
    assert!(stage.shell().settings.folders.is_empty() && path.exists());
    stage.click("Add folders on the Models page");
    stage.until("one model", |window| window.models.found().len() == 1 && !window.models.search.is_running());
}

#[test]
fn missing_model_shows_its_path_and_a_button_to_the_models_page() {
    let mut stage = TestWindow::with(SIZE, |_, settings| settings.add_recent("/gone/model.gguf"));
    let failed = |window: &mut crate::Window| matches!(window.shell.engine_handle.state(), ModelState::Failed { .. });
    stage.until("a failure", failed);
    assert!(stage.shows("model could not be opened") && stage.shows("/gone/model.gguf"));
    stage.it.get_all_by_label("Choose a model").next().unwrap().click();
    stage.step();
    assert_eq!(stage.it.state().page, Page::Models);
    stage.appears("Open Thermocline Storyteller");
    stage.click("Open Thermocline Storyteller");
    stage.ready();
}

#[test]
fn incomplete_model_file_is_said_in_the_chat_that_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short.gguf");
    let file = thermocline_host::builtin::file();
    fs::write(&path, &file[..file.len() / 2]).unwrap();
    let mut stage = TestWindow::with(SIZE, |folders, settings| {
        settings.last_chat = Some(add_chat(folders, "", &["Tell me of rivers."]).number());
        settings.add_recent(&path.display().to_string());
    });
    stage.appears("Tell me of rivers.");
    stage.appears("could not be opened: ");
    assert!(stage.shows("is incomplete, probably because its download was interrupted"), "{:?}", stage.texts());
    fs::write(&path, file).unwrap();
    stage.it.get_all_by_label("Try again").next().unwrap().click();
    stage.until("another try", |window| !matches!(window.shell.engine_handle.state(), ModelState::Failed { .. }));
    opened(&mut stage, &path);
    stage.step();
    assert!(!stage.shows("could not be opened"), "{:?}", stage.texts());
}

#[test]
fn failing_chat_template_is_told_when_its_model_opens_and_on_its_card() {
    let (folder, path) = tiny();
    let file = path.join("tokenizer_config.json");
    let mut config: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let mut write = |template: &str| {
        config["chat_template"] = template.into();
        fs::write(&file, config.to_string()).unwrap();
    };
    write("{{ messages | no_such_filter }}");
    let mut stage = TestWindow::with(SIZE, |_, settings| settings.folders.push(folder.path().to_owned()));
    page(&mut stage);
    let told = |stage: &TestWindow| {
        // Each line of a wrapped text is a text of its own.
        let said =
            |text: &&String| text.starts_with("Chat template: plain format: ") && text.contains("no_such_filter");
        stage.texts().iter().filter(said).count()
    };
    assert_eq!(told(&stage), 0);
    let name = stage.it.state().models.found()[1].name.clone();
    stage.click(&format!("Open {name}"));
    opened(&mut stage, &path);
    page_again(&mut stage);
    assert!(told(&stage) >= 2, "on the card and beside it: {:?}", stage.texts());
    assert!(!stage.shell().toasts.is_empty());
    stage.click("Back to the chat");
    assert!(told(&stage) >= 1, "in the chat: {:?}", stage.texts());
}

#[test]
fn model_settings_apply_to_their_model_only() {
    let (folder, path) = tiny();
    let key = ModelId::Path(path.clone()).key();
    let mut stage = TestWindow::with(SIZE, |_, settings| {
        settings.folders.push(folder.path().to_owned());
        settings.models.entry(key.clone()).or_default().budget = Some(VramBudget::AtMost(5 << 20));
        settings.models.entry(key.clone()).or_default().context = Some(64);
    });
    page(&mut stage);
    let name = stage.it.state().models.found()[1].name.clone();
    stage.click(&format!("Open {name}"));
    opened(&mut stage, &path);
    let engine = stage.shell().engine_handle.engine().unwrap();
    assert_eq!((engine.vram_budget(), engine.context()), (Some(5 << 20), 64));
}

#[test]
fn context_and_cache_type_of_a_card_apply_when_the_model_opens() {
    let (folder, path) = tiny();
    let id = ModelId::Path(path.clone());
    let mut stage = TestWindow::with(SIZE, |_, settings| settings.folders.push(folder.path().to_owned()));
    page(&mut stage);
    let card = stage.it.state().models.found()[1].clone();
    assert!(card.context > 64 && card.usual_context == card.context, "{card:?}");
    let header = |context, kv_type| format!("Context of {}: {context} tokens, cache in {kv_type}", card.name);
    stage.click(&header(card.context, "F16"));
    stage.role(Role::Slider, "Context").set_value_accesskit(64.0);
    stage.step();
    stage.click("Q8_0");
    let chosen = stage.shell().settings.models[&id.key()].clone();
    assert_eq!((chosen.context, chosen.kv_type.as_deref()), (Some(64), Some("Q8_0")));
    assert!(stage.shows(&header(64, "Q8_0")));
    stage.click(&format!("Open {}", card.name));
    opened(&mut stage, &path);
    page_again(&mut stage);
    let kept = |stage: &mut TestWindow| {
        let engine = stage.shell().engine_handle.engine().unwrap();
        (engine.context(), engine.kv_type())
    };
    assert_eq!(kept(&mut stage), (64, KvType::Q8_0));
    assert!(!stage.shows("Reopen it with this context"));

    // Default values are not stored. An open model applies them when it is reopened.
    stage.role(Role::Slider, "Context").set_value_accesskit(card.context as f64);
    stage.step();
    stage.click("F16");
    let chosen = stage.shell().settings.models[&id.key()].clone();
    assert_eq!((chosen.context, chosen.kv_type), (None, None));
    assert_eq!(kept(&mut stage), (64, KvType::Q8_0));
    stage.click("Reopen it with this context");
    opened(&mut stage, &path);
    assert_eq!(kept(&mut stage), (card.context, KvType::F16));
}

#[test]
fn dropped_folder_is_added_to_the_library_on_any_page() {
    let (folder, _) = tiny();
    let mut stage = TestWindow::opened(SIZE);
    stage.hold(folder.path());
    assert!(stage.shows("Drop it to add it to the library"), "{:?}", stage.texts());
    stage.let_go(&[folder.path()]);
    assert_eq!(stage.it.state().page, Page::Models);
    stage.until("its model", |window| window.models.found().len() == 2 && !window.models.search.is_running());
    assert_eq!(stage.shell().settings.folders, [folder.path()]);
    assert!(!stage.shows("Drop it to add it to the library"));
}

#[test]
fn preparation_pauses_resumes_and_marks_the_card_prepared() {
    let (folder, path) = tiny();
    let mut stage = TestWindow::with(SIZE, |_, settings| settings.folders.push(folder.path().to_owned()));
    page(&mut stage);
    let name = stage.it.state().models.found()[1].name.clone();
    assert!(stage.shows("Not prepared. Most of its neurons are silent"));
    let under_way = |window: &mut crate::Window| window.shell.preparation.as_ref().map(Preparation::stage);
    stage.click(&format!("Prepare: {name}"));
    stage.until("some progress", |window| matches!(under_way(window), Some(PreparationStage::Running(Some(_)))));
    stage.click(&format!("Pause: {name}"));
    stage.until("a pause", |window| matches!(under_way(window), Some(PreparationStage::Paused)));
    assert!(stage.shows("Paused. The finished part is kept next to the model."));
    stage.click(&format!("Continue preparing: {name}"));
    stage.until("its end", |window| match under_way(window) {
        Some(PreparationStage::Failed(reason)) => panic!("{reason}"),
        stage => matches!(stage, Some(PreparationStage::Done)),
    });
    let prepared = |window: &mut crate::Window| {
        window.models.found().iter().any(|card| card.prepared && card.id == ModelId::Path(path.clone()))
    };
    stage.until("its card to say so", prepared);
    assert!(stage.shows("Prepared.") && stage.shows(&format!("Prepare again: {name}")));
}

#[test]
fn open_model_is_prepared_from_the_menu_of_the_mode() {
    let (_folder, path) = tiny();
    let mut stage = TestWindow::with(SIZE, |_, settings| settings.add_recent(&path.display().to_string()));
    opened(&mut stage, &path);
    let menu = |stage: &mut TestWindow| {
        let mode = stage.shell().engine_handle.engine().unwrap().sparsity().at_work;
        stage.click(mode.name());
        assert!(stage.shows("Adapt to the current text"), "{:?}", stage.texts());
    };
    menu(&mut stage);
    stage.click("Prepare this model");
    stage.until("its end", |window| match window.shell.preparation.as_ref().map(Preparation::stage) {
        Some(PreparationStage::Failed(reason)) => panic!("{reason}"),
        stage => matches!(stage, Some(PreparationStage::Done)),
    });
    menu(&mut stage);
    stage.click("Reopen the prepared model");
    stage.until("it is open again", |window| {
        let engine = window.shell.engine_handle.engine();
        engine.is_some_and(|engine| thermocline_host::library::is_prepared(engine.model()))
    });
    menu(&mut stage);
    assert!(!stage.shows("Prepare this model") && !stage.shows("Reopen the prepared model"));
}

#[test]
fn downloads_start_from_a_url_or_a_repository() {
    let file = fs::read(fixture("gguf/llama-silu-gqa-256-Q4_0.gguf")).unwrap();
    let manners = vec![ServerBehaviour::ClosesAfter(200_000), ServerBehaviour::Says(404), ServerBehaviour::Well];
    let (address, _) = serve(file.clone(), manners);
    let mut stage = TestWindow::new(SIZE);
    page(&mut stage);
    let field = FIELD;
    stage.write(field, "https://example.com/model.zip");
    stage.click("Search for models");
    assert!(!stage.shell().toasts.is_empty() && stage.shell().downloads.list().is_empty());
    stage.erase(field);

    stage.write(field, &format!("{address}/a/one.gguf"));
    stage.press(egui::Key::Enter);
    // The server drops the connection, and after a second answers 404 for the file.
    stage.appears("Remove: one.gguf");
    stage.appears("Resume: one.gguf");
    stage.appears("404");
    stage.click("Resume: one.gguf");
    stage.appears("Done: ");
    let kept = stage.folders.models().join("one.gguf");
    assert!(fs::read(&kept).unwrap() == file);
    stage.until("its card", |window| window.models.found().len() == 2);
    stage.click("Clear: one.gguf");
    assert!(stage.shell().downloads.list().is_empty() && kept.exists());

    stage.it.state_mut().models.downloads.hub = address;
    stage.write(field, "owner/name");
    stage.click("Search for models");
    stage.appears("Download sub/m");
    stage.it.get_by_label_contains("Download sub/m").click();
    stage.appears("the checksum is correct");
    stage.until("another card", |window| window.models.found().len() == 3);
}

#[test]
fn removed_download_deletes_its_partial_file() {
    let (address, _) = serve(vec![7; 900_000], vec![ServerBehaviour::ClosesAfter(300_000)]);
    let mut stage = TestWindow::new(SIZE);
    page(&mut stage);
    stage.write(FIELD, &format!("{address}/x.gguf"));
    stage.click("Search for models");
    stage.appears("Retrying in");
    let part = stage.folders.models().join("x.gguf.part");
    assert!(part.exists());
    stage.click("Remove: x.gguf");
    assert!(stage.shell().downloads.list().is_empty() && !part.exists());
}
