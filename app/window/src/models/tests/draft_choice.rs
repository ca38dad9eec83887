//! The choice of a draft model on a model's card.

use egui_kittest::kittest::NodeT;

use super::*;

/// Creates a folder with the model `tiny` and the model `small`, which has the same tokens and
/// fewer parameters. Returns the folder and the paths of both.
fn tiny_and_small() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let (folder, tiny) = tiny();
    let small = copy("models/llama-relu", &folder.path().join("small"));
    (folder, tiny, small)
}

/// The path of the draft model of the open model.
fn draft(stage: &mut TestWindow) -> Option<PathBuf> {
    let engine = stage.shell().engine_handle.engine().unwrap();
    engine.draft_model().map(|draft| draft.checkpoint.path.clone())
}

/// Chooses the draft model whose line starts with `line`, on the card of `tiny`.
fn choose(stage: &mut TestWindow, line: &str) {
    stage.role(Role::ComboBox, "Draft model of tiny").scroll_to_me();
    stage.step();
    let list = stage.role(Role::ComboBox, "Draft model of tiny").rect().center();
    stage.tap(list);
    let line = line.to_owned();
    let place = stage
        .it
        .get_by(|node| node.role() == Role::Button && node.label().is_some_and(|it| it.starts_with(&line)))
        .rect()
        .center();
    stage.tap(place);
}

#[test]
fn draft_model_of_a_card_applies_when_the_model_opens() {
    let (folder, path, small) = tiny_and_small();
    let id = ModelId::Path(path.clone());
    let mut stage = TestWindow::with(SIZE, |_, settings| settings.folders.push(folder.path().to_owned()));
    page(&mut stage);
    // The built-in model has other tokens, and no model is smaller than `small`.
    let choices = stage.texts().into_iter().filter(|text| text.starts_with("Draft model of ")).collect::<Vec<_>>();
    assert_eq!(choices, ["Draft model of tiny"]);
    let shown = |stage: &TestWindow| stage.role(Role::ComboBox, "Draft model of tiny").accesskit_node().value();
    assert_eq!(shown(&stage).as_deref(), Some("None"));
    choose(&mut stage, "small, ");
    assert_eq!(stage.shell().settings.models[&id.key()].draft.as_deref(), small.to_str());
    stage.click("Open tiny");
    opened(&mut stage, &path);
    assert_eq!(draft(&mut stage), Some(small));
    page_again(&mut stage);
    assert!(!stage.shows("Reopen it") && !stage.shows("The draft model is not used"));

    assert_eq!(shown(&stage).as_deref(), Some("small"));
    choose(&mut stage, "None");
    assert_eq!(stage.shell().settings.models[&id.key()].draft, None);
    stage.click("Reopen it without a draft model");
    stage.until("the model without it", |window| {
        window.shell.engine_handle.engine().is_some_and(|engine| engine.draft_model().is_none())
    });
}

#[test]
fn assistant_can_be_chosen_for_its_model_and_is_not_listed_as_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy("models/gemma4", &folder.path().join("tiny"));
    let helper = copy("assistants/gemma4", &folder.path().join("helper"));
    let mut stage = TestWindow::with(SIZE, |_, settings| settings.folders.push(folder.path().to_owned()));
    page(&mut stage);
    let listed: Vec<String> = stage.it.state().models.found().iter().map(|card| card.id.to_string()).collect();
    assert_eq!(listed, ["Storyteller", "tiny"]);
    choose(&mut stage, "helper, ");
    stage.click("Open tiny");
    opened(&mut stage, &path);
    assert_eq!(draft(&mut stage), Some(helper));
    page_again(&mut stage);
    assert!(!stage.shows("The draft model is not used"));
}

#[test]
fn model_opens_without_a_wrong_draft_model_and_says_why() {
    let (folder, path) = tiny();
    let other = folder.path().join("other.gguf");
    fs::write(&other, thermocline_host::builtin::file()).unwrap();
    for (wrong, says) in [(other, "in which token "), (folder.path().join("gone.gguf"), "gone.gguf was not found")] {
        let mut stage = TestWindow::with(SIZE, |_, settings| {
            settings.folders.push(folder.path().to_owned());
            let key = ModelId::Path(path.clone()).key();
            settings.models.entry(key).or_default().draft = Some(wrong.display().to_string());
        });
        page(&mut stage);
        stage.click("Open tiny");
        opened(&mut stage, &path);
        assert_eq!(draft(&mut stage), None);
        assert!(!stage.shell().toasts.is_empty());
        page_again(&mut stage);
        assert!(stage.shows("The draft model is not used: ") && stage.shows(says), "{:?}", stage.texts());
        assert!(stage.shows("Reopen it with this draft model"));
    }
}
