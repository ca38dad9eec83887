//! The page of models, as people use it.

use std::{fs, path::Path};

use egui::accesskit::Role;
use egui_kittest::kittest::Queryable;
use thermocline_engine::runtime::KvType;

use super::*;
use crate::{
    download::tests::{ServerBehaviour, serve},
    remote::tests::{replies, scripted_by_request},
    settings::VramBudget,
    ui::{command::Page, testing::TestWindow},
};

const SIZE: [f32; 2] = [1440.0, 1000.0];

/// Name of the field for models of the network.
const FIELD: &str = "Words to search Hugging Face for, a repository (owner/name), or the address of a GGUF file";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// A folder with a model of a few thousand weights called `name`, and a file that is none.
fn folder_with(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join(name);
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(fixture("models/llama-relu-256")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
    }
    fs::write(folder.path().join("broken.gguf"), "GGUF, but not quite").unwrap();
    folder
}

fn page(stage: &mut TestWindow) {
    stage.ready();
    stage.click("Models");
    stage.until("a search", |window| window.page == Page::Models && !window.models.search.is_running());
}

fn opened(stage: &mut TestWindow, path: &Path) {
    let id = ModelId::Path(path.to_owned());
    stage.until("the model", |window| match window.shell.engine_handle.state() {
        ModelState::Ready { model, .. } => model == id,
        ModelState::Failed { reason, .. } => panic!("{reason}"),
        _ => false,
    });
}

#[test]
fn folder_scan_lists_models_that_open_close_and_are_removed() {
    let folder = folder_with("tiny");
    let mut stage = TestWindow::new(SIZE);
    page(&mut stage);
    assert_eq!(stage.it.state().models.found().len(), 1, "the built-in one");
    for _ in 0..2 {
        stage.write("Folder or file", folder.path().to_str().unwrap());
        stage.click("Add");
    }
    stage.until("two models", |window| window.models.found().len() == 2 && !window.models.search.is_running());
    assert_eq!(stage.shell().settings.folders, [folder.path()]);
    stage.click("1 that cannot be used");
    assert!(stage.shows("broken.gguf"));

    stage.write("Folder or file", "/nowhere/at/all");
    stage.press(egui::Key::Enter);
    assert!(!stage.shell().toasts.is_empty(), "a sentence says that it is not there");
    assert_eq!(stage.shell().settings.folders.len(), 1);

    let path = folder.path().join("tiny");
    let name = stage.it.state().models.found()[1].name.clone();
    stage.click(&format!("Open {name}"));
    opened(&mut stage, &path);
    assert_eq!(stage.shell().settings.recent[0], path.display().to_string());
    stage.click(&format!("Close {name}"));
    assert!(matches!(stage.shell().engine_handle.state(), ModelState::Empty));
    stage.click("Open Thermocline Storyteller");
    stage.ready();

    stage.click("Settings");
    stage.click(&format!("Remove {}", folder.path().display()));
    assert!(stage.shell().settings.folders.is_empty() && path.exists());
    stage.click("Add folders on the page of models");
    stage.until("one model", |window| window.models.found().len() == 1 && !window.models.search.is_running());
}

/// A folder with two files of one model, which has them in two quantisations.
fn folder_with_quantisations() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["llama-silu-gqa-256-Q8_0.gguf", "llama-silu-gqa-256-Q4_0.gguf"] {
        fs::copy(fixture("gguf").join(name), folder.path().join(name)).unwrap();
    }
    folder
}

#[test]
fn files_of_a_model_share_a_card_and_open_each_by_itself() {
    let folder = folder_with_quantisations();
    let mut stage = TestWindow::with(SIZE, |_, settings| settings.folders.push(folder.path().to_owned()));
    page(&mut stage);
    assert_eq!(stage.it.state().models.found().len(), 3);
    assert_eq!(stage.texts().iter().filter(|text| *text == "tiny golden llama").count(), 1, "one card");
    let row = |stage: &TestWindow, of: &str| {
        let texts = stage.texts();
        texts.iter().position(|text| text.starts_with(of)).unwrap_or_else(|| panic!("{of}: {texts:?}"))
    };
    assert!(row(&stage, "Q4_0 · ") < row(&stage, "Q8_0 · "), "the smaller one first");
    stage.click("Open tiny golden llama, Q8_0");
    opened(&mut stage, &folder.path().join("llama-silu-gqa-256-Q8_0.gguf"));
    assert!(stage.shows("Close tiny golden llama, Q8_0") && stage.shows("Open tiny golden llama, Q4_0"));
    assert!(stage.shows("Prepare: tiny golden llama, Q4_0") && stage.shows("Context of tiny golden llama, Q8_0: "));
}

#[test]
fn library_is_filtered_by_words_and_sorted() {
    let (one, other) = (folder_with("tiny"), folder_with_quantisations());
    let mut stage = TestWindow::with(SIZE, |_, settings| {
        settings.folders.extend([one.path().to_owned(), other.path().to_owned()]);
        settings.add_recent(&ModelId::Path(other.path().join("llama-silu-gqa-256-Q4_0.gguf")).key());
        settings.add_recent(&ModelId::Builtin.key());
    });
    page(&mut stage);
    stage.write("Filter", "GOLDEN q8_0");
    assert!(stage.shows("Open tiny golden llama") && !stage.shows("Open tiny golden llama, Q4_0"));
    assert!(!stage.shows("Close Thermocline Storyteller"));
    stage.write("Filter", " nothing");
    assert!(stage.shows("No model here has these words."));
    stage.click("Show all");
    assert!(stage.shows("Close Thermocline Storyteller"));

    let tiny = stage.it.state().models.found()[1].name.clone();
    let order = |stage: &TestWindow| {
        let cards = ["Thermocline Storyteller", "tiny golden llama", &*tiny].map(|name| {
            let heads = stage.it.get_all_by_label(name);
            let places =
                heads.map(|head| head.rect().min).map(|place| (place.y.round() as i32, place.x.round() as i32));
            (places.min().unwrap(), name.to_owned())
        });
        let mut cards = cards.to_vec();
        cards.sort();
        cards.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
    };
    let by_last_use = ["Thermocline Storyteller", "tiny golden llama", &*tiny];
    assert_eq!(order(&stage), by_last_use);
    stage.click("Sorted by last use");
    stage.click("Sorted by name");
    let mut by_name = by_last_use.map(str::to_owned);
    by_name.sort_by_key(|name| name.to_lowercase());
    assert_eq!(order(&stage), by_name);
    stage.click("Sorted by name");
    stage.click("Sorted by size");
    assert_eq!(order(&stage)[0], "Thermocline Storyteller", "the largest of the three");
    stage.click("Sorted by size");
    stage.click("Sorted by fit");
    assert!(stage.shows("Sorted by fit") && order(&stage).len() == 3);
}

#[test]
fn added_model_is_scrolled_to_and_marked_while_the_others_stay() {
    let (one, other) = (folder_with("tiny"), folder_with_quantisations());
    let mut stage = TestWindow::with([1440.0, 500.0], |_, settings| settings.folders.push(one.path().to_owned()));
    page(&mut stage);
    assert!(!stage.shows("just added"), "the first search adds nothing");
    stage.write("Filter", "storyteller");
    let file = other.path().join("llama-silu-gqa-256-Q4_0.gguf");
    stage.let_go(&[&file]);
    stage.it.step();
    assert!(stage.it.state().models.found().len() >= 2, "cards stay while the folders are searched again");
    stage.until("a search", |window| window.models.found().len() == 3 && !window.models.search.is_running());
    assert!(stage.shows("just added") && stage.shows("Close Thermocline Storyteller"), "the filter is gone");
    for _ in 0..30 {
        stage.it.step();
    }
    let mark = stage.it.get_by_label("just added").rect();
    assert!(mark.top() >= 0.0 && mark.bottom() <= 500.0, "out of sight: {mark:?}");

    // A second file of the same model comes to its card, and what is gone goes at the end of the search.
    let second = other.path().join("llama-silu-gqa-256-Q8_0.gguf");
    fs::remove_dir_all(one.path().join("tiny")).unwrap();
    stage.let_go(&[&second]);
    stage.until("another search", |window| {
        let found = window.models.found();
        !window.models.search.is_running() && found.iter().any(|card| card.id == ModelId::Path(second.clone()))
    });
    assert_eq!(stage.it.state().models.found().len(), 3, "the built-in one and two files");
    assert_eq!(stage.it.get_all_by_label("just added").count(), 1, "the second file alone");
}

#[test]
fn missing_model_shows_its_path_and_a_button_to_the_models_page() {
    let mut stage = TestWindow::with(SIZE, |_, settings| settings.add_recent("/gone/model.gguf"));
    let failed =
        |window: &mut crate::ui::Window| matches!(window.shell.engine_handle.state(), ModelState::Failed { .. });
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
fn model_settings_apply_to_their_model_only() {
    let folder = folder_with("tiny");
    let path = folder.path().join("tiny");
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
    let folder = folder_with("tiny");
    let path = folder.path().join("tiny");
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
    let kept = |stage: &mut TestWindow| {
        let engine = stage.shell().engine_handle.engine().unwrap();
        (engine.context(), engine.kv_type())
    };
    assert_eq!(kept(&mut stage), (64, KvType::Q8_0));
    assert!(!stage.shows("Open it again with this context"));

    // What is usual is not kept, and an open model takes it up when it is opened again.
    stage.role(Role::Slider, "Context").set_value_accesskit(card.context as f64);
    stage.step();
    stage.click("F16");
    let chosen = stage.shell().settings.models[&id.key()].clone();
    assert_eq!((chosen.context, chosen.kv_type), (None, None));
    assert_eq!(kept(&mut stage), (64, KvType::Q8_0));
    stage.click("Open it again with this context");
    opened(&mut stage, &path);
    assert_eq!(kept(&mut stage), (card.context, KvType::F16));
}

#[test]
fn dropped_folder_is_added_to_the_library_on_any_page() {
    let folder = folder_with("tiny");
    let mut stage = TestWindow::new(SIZE);
    stage.ready();
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
    let folder = folder_with("tiny");
    let path = folder.path().join("tiny");
    let mut stage = TestWindow::with(SIZE, |_, settings| settings.folders.push(folder.path().to_owned()));
    page(&mut stage);
    let name = stage.it.state().models.found()[1].name.clone();
    assert!(stage.shows("Not prepared. Most of its neurons are silent"));
    let under_way = |window: &mut crate::ui::Window| window.shell.preparation.as_ref().map(Preparation::stage);
    stage.click(&format!("Prepare: {name}"));
    stage.until("some progress", |window| matches!(under_way(window), Some(PreparationStage::Running(Some(_)))));
    stage.click(&format!("Pause: {name}"));
    stage.until("a pause", |window| matches!(under_way(window), Some(PreparationStage::Paused)));
    assert!(stage.shows("Paused. What is done is kept beside the model."));
    stage.click(&format!("Go on preparing: {name}"));
    stage.until("its end", |window| match under_way(window) {
        Some(PreparationStage::Failed(reason)) => panic!("{reason}"),
        stage => matches!(stage, Some(PreparationStage::Done)),
    });
    let prepared = |window: &mut crate::ui::Window| {
        window.models.found().iter().any(|card| card.prepared && card.id == ModelId::Path(path.clone()))
    };
    stage.until("its card to say so", prepared);
    assert!(stage.shows("Prepared.") && stage.shows(&format!("Prepare again: {name}")));
}

#[test]
fn open_model_is_prepared_from_the_menu_of_the_mode() {
    let folder = folder_with("tiny");
    let path = folder.path().join("tiny");
    let mut stage = TestWindow::with(SIZE, |_, settings| settings.add_recent(&path.display().to_string()));
    opened(&mut stage, &path);
    let menu = |stage: &mut TestWindow| {
        let mode = stage.shell().engine_handle.engine().unwrap().sparsity().mode;
        stage.click(mode.name());
        assert!(stage.shows("Follow the text"), "{:?}", stage.texts());
    };
    menu(&mut stage);
    stage.click("Prepare this model");
    stage.until("its end", |window| match window.shell.preparation.as_ref().map(Preparation::stage) {
        Some(PreparationStage::Failed(reason)) => panic!("{reason}"),
        stage => matches!(stage, Some(PreparationStage::Done)),
    });
    menu(&mut stage);
    stage.click("Open it again, prepared");
    stage.until("it is open again", |window| {
        let engine = window.shell.engine_handle.engine();
        engine.is_some_and(|engine| crate::library::is_prepared(engine.model()))
    });
    menu(&mut stage);
    assert!(!stage.shows("Prepare this model") && !stage.shows("Open it again, prepared"));
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
    // The connection is closed, and after a second the server knows nothing of the file.
    stage.appears("Remove: one.gguf");
    stage.appears("Go on: one.gguf");
    stage.appears("404");
    stage.click("Go on: one.gguf");
    stage.appears("Complete: ");
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
    stage.appears("the checksum is right");
    stage.until("another card", |window| window.models.found().len() == 3);
}

/// A hub: searches for `gemma` find two repositories, the first with two quantisations, those for `nothing` none, those for `slow`
/// are not answered, and the hub has no time for others.
fn hub() -> String {
    let (server, _) = scripted_by_request(|request, stream| {
        let file = |name: &str, gigabytes: u64| {
            format!(r#"{{"type":"file","path":"{name}","size":{}}}"#, gigabytes * 1_000_000_000)
        };
        let (status, body) = match request.split_whitespace().nth(1).unwrap_or_default() {
            path if path.starts_with("/api/models?search=gemma%204&") => (
                "200 OK",
                r#"[{"id":"a/gemma-GGUF","downloads":1234567},{"id":"b/other-GGUF","downloads":1}]"#.to_owned(),
            ),
            path if path.starts_with("/api/models?search=nothing&") => ("200 OK", "[]".to_owned()),
            path if path.starts_with("/api/models?search=slow&") => {
                let silent = stream.try_clone().unwrap();
                std::thread::spawn(move || {
                    std::thread::sleep(crate::testing::PATIENCE);
                    drop(silent);
                });
                return;
            }
            path if path.starts_with("/api/models/a/gemma-GGUF/") => {
                let files = [file("g-Q8_0.gguf", 2), file("g-Q4_K_M.gguf", 1), file("mmproj-F16.gguf", 1)];
                ("200 OK", format!("[{}]", files.join(",")))
            }
            path if path.starts_with("/api/models/b/other-GGUF/") => ("404 No", String::new()),
            _ => ("503 Busy", String::new()),
        };
        replies(status, "application/json", &body)(stream);
    });
    format!("http://{}", server.host())
}

/// The page of models with the hub, searched for `words`.
fn searched(words: &str) -> TestWindow {
    let mut stage = TestWindow::new(SIZE);
    page(&mut stage);
    stage.it.state_mut().models.downloads.hub = hub();
    stage.write(FIELD, words);
    stage.press(egui::Key::Enter);
    stage
}

#[test]
fn search_lists_repositories_with_downloads_quantisations_size_and_fit() {
    let mut stage = searched("gemma 4");
    stage.appears("2 repositories for \"gemma 4\", the most downloaded first:");
    assert!(stage.shows("a/gemma-GGUF") && stage.shows("1.23 M downloads") && stage.shows("1 download"));
    stage.appears("Q4_K_M, Q8_0");
    stage.appears("Q4_K_M, 953.7 MiB, ");
    let fits = ["fits into memory", "fits into the card", "larger than this computer's memory"];
    assert!(fits.iter().any(|fit| stage.shows(&format!("Q4_K_M, 953.7 MiB, {fit}"))), "{:?}", stage.texts());
    // The other repository is gone.
    stage.appears("expected status 200, got 404: there is no such public repository");

    stage.click("All files of a/gemma-GGUF");
    stage.appears("Download g-Q8_0.gguf");
    assert!(!stage.shows("mmproj") && !stage.shows("b/other-GGUF"));
    stage.click("Back to the search: a/gemma-GGUF");
    stage.click("Download a/gemma-GGUF: g-Q4_K_M.gguf");
    stage.until("a download", |window| window.shell().downloads.list().len() == 1);
    let wanted = stage.folders.models().join("a/gemma-GGUF/g-Q4_K_M.gguf");
    assert_eq!(stage.shell().downloads.list()[0].request.to, wanted);
    stage.click("Close the search");
    assert!(!stage.shows("repositories for"));
}

#[test]
fn search_says_that_nothing_was_found_and_why_it_failed() {
    let mut stage = searched("nothing");
    stage.appears("Hugging Face has no GGUF files for \"nothing\". Try other or fewer words.");
    stage.erase(FIELD);
    stage.write(FIELD, "anything");
    stage.click("Search for models");
    stage.appears("The search for \"anything\" failed: http://127.0.0.1:");
    assert!(stage.shows("/api/models?search=anything&filter=gguf") && stage.shows("expected status 200, got 503"));
}

#[test]
fn slow_search_can_be_left_for_another() {
    let mut stage = searched("slow");
    stage.appears("Searching Hugging Face for \"slow\" …");
    stage.click("Stop the search");
    assert!(!stage.shows("Searching Hugging Face"));
    stage.erase(FIELD);
    stage.write(FIELD, "slow");
    stage.press(egui::Key::Enter);
    stage.appears("Searching Hugging Face for \"slow\" …");
    stage.erase(FIELD);
    stage.write(FIELD, "gemma 4");
    stage.press(egui::Key::Enter);
    stage.appears("2 repositories for \"gemma 4\"");
}

#[test]
fn removed_download_deletes_its_partial_file() {
    let (address, _) = serve(vec![7; 900_000], vec![ServerBehaviour::ClosesAfter(300_000)]);
    let mut stage = TestWindow::new(SIZE);
    page(&mut stage);
    stage.write(FIELD, &format!("{address}/x.gguf"));
    stage.click("Search for models");
    stage.appears("Tried again in");
    let part = stage.folders.models().join("x.gguf.part");
    assert!(part.exists());
    stage.click("Remove: x.gguf");
    assert!(stage.shell().downloads.list().is_empty() && !part.exists());
}

#[test]
fn model_of_a_server_answers_in_the_window_and_its_key_stays_out_of_files() {
    let key = "sk-of-the-window";
    let (server, requests) = scripted_by_request(|request, stream| {
        let (kind, body) = match request.starts_with("GET /v1/models") {
            true => ("application/json", "{\"data\":[{\"id\":\"far/model\"}]}".to_owned()),
            false => {
                let chunk = |delta: &str| format!("data: {{\"choices\":[{delta}]}}\n\n");
                let text = chunk("{\"delta\":{\"content\":\"From far away.\"}}");
                ("text/event-stream", text + &chunk("{\"delta\":{},\"finish_reason\":\"stop\"}"))
            }
        };
        replies("200 OK", kind, &body)(stream);
    });
    let host = server.host().to_owned();
    let mut stage = TestWindow::new(SIZE);
    page(&mut stage);
    let field = "vLLM, SGLang, llama-server, another Thermocline: any server that speaks OpenAI's protocol";
    stage.write(field, "ftp://nowhere");
    stage.click("Add server");
    assert!(stage.shows("expected http:// or https://"));
    stage.erase(field);
    stage.write(field, &format!("http://{host}"));
    stage.write("Key of the server", key);
    stage.click("Add server");
    stage.appears("Open far/model");
    assert_eq!(stage.shell().settings.remote_servers, std::slice::from_ref(&server));
    stage.click("Open far/model");
    stage.until("the model", |window| match window.shell.engine_handle.state() {
        ModelState::Remote { model, .. } => model.name == "far/model",
        ModelState::Failed { reason, .. } => panic!("{reason}"),
        _ => false,
    });
    assert!(stage.shows(&format!("Words go to {host}")), "a badge says where words go");

    stage.shell().queue_command(Command::Compose);
    stage.step();
    stage.it.event(egui::Event::Text("Who are you?".to_owned()));
    stage.step();
    stage.press(egui::Key::Enter);
    stage.until("an answer", |window| !window.shell.chat_controller.is_busy());
    stage.appears("From far away.");
    let sent: Vec<String> = requests.try_iter().collect();
    let asked = sent.iter().find(|request| request.contains("Who are you?")).unwrap();
    assert!(asked.contains(&format!("Bearer {key}")) && asked.contains("\"far/model\""), "{asked}");

    // The server and its model are there again; the key is in its own file alone.
    let mut stage = stage.again();
    stage.until("the model", |window| matches!(window.shell.engine_handle.state(), ModelState::Remote { .. }));
    for entry in fs::read_dir(&stage.folders.config).unwrap() {
        let path = entry.unwrap().path();
        let holds = fs::read(&path).is_ok_and(|bytes| bytes.windows(key.len()).any(|part| part == key.as_bytes()));
        assert_eq!(holds, path.ends_with("keys.json"), "{}", path.display());
    }
    stage.click("Models");
    stage.click(&format!("Remove {host}"));
    assert!(stage.shell().settings.remote_servers.is_empty());
    let kept = stage.shell().keys.get(&server).unwrap();
    assert_eq!(kept, None);
}
