//! Models filtered and sorted, files of one model on one card, and newly added models.

use super::*;

/// Creates a folder with one model in two quantisations.
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
    // Each label is listed twice: once as a label, once as its line.
    let mut titles = stage.texts();
    titles.dedup();
    assert_eq!(titles.iter().filter(|text| *text == "tiny golden llama").count(), 1, "one card: {titles:?}");
    let row = |stage: &TestWindow, of: &str| {
        let texts = stage.texts();
        texts.iter().position(|text| text.starts_with(of)).unwrap_or_else(|| panic!("{of}: {texts:?}"))
    };
    assert!(row(&stage, "Q4_0 · ") < row(&stage, "Q8_0 · "), "the smaller one first");
    stage.click("Open tiny golden llama, Q8_0");
    opened(&mut stage, &folder.path().join("llama-silu-gqa-256-Q8_0.gguf"));
    page_again(&mut stage);
    assert!(stage.shows("Close tiny golden llama, Q8_0") && stage.shows("Open tiny golden llama, Q4_0"));
    assert!(stage.shows("Prepare: tiny golden llama, Q4_0") && stage.shows("Context of tiny golden llama, Q8_0: "));
}

#[test]
fn library_is_filtered_by_words_and_sorted() {
    let ((one, _), other) = (tiny(), folder_with_quantisations());
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
    assert!(stage.shows("No model matches the filter."));
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
    let ((one, model), other) = (tiny(), folder_with_quantisations());
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

    // A second file of the same model joins its card. Deleted models vanish at the end of the
    // search.
    let second = other.path().join("llama-silu-gqa-256-Q8_0.gguf");
    fs::remove_dir_all(model).unwrap();
    stage.let_go(&[&second]);
    stage.until("another search", |window| {
        let found = window.models.found();
        !window.models.search.is_running() && found.iter().any(|card| card.id == ModelId::Path(second.clone()))
    });
    assert_eq!(stage.it.state().models.found().len(), 3, "the built-in one and two files");
    assert_eq!(stage.it.get_all_by_label("just added").count(), 1, "the second file alone");
}

#[test]
fn many_models_are_short_cards_under_a_filter_that_stays_in_view() {
    let folder = folder_with_quantisations();
    let file = thermocline_host::builtin::file();
    for n in 0..12 {
        // Each copy gets its own model name.
        let named = "Thermocline Storyteller";
        let name = format!("Thermocline Model {n:05}");
        let at = file.windows(named.len()).position(|part| part == named.as_bytes()).unwrap();
        let mut other = file.to_vec();
        other[at..at + named.len()].copy_from_slice(name.as_bytes());
        fs::write(folder.path().join(format!("model-{n}.gguf")), other).unwrap();
    }
    fs::write(folder.path().join("broken-one.gguf"), b"GGUF and nothing more").unwrap();
    let mut stage = TestWindow::new(SIZE);
    page(&mut stage);
    stage.write("Folder or file", folder.path().to_str().unwrap());
    stage.click("Add");
    stage.until("all models", |window| window.models.found().len() == 15 && !window.models.search.is_running());
    let filter = stage.control("Filter").rect();
    assert!(stage.it.ctx.content_rect().contains_rect(filter), "{filter:?}");
    assert!(stage.shows("Details: Thermocline Model 00000") && !stage.shows("Prepare: Thermocline Model 00000"));
    assert!(stage.shows("Open tiny golden llama, Q8_0"), "each file of a model: {:?}", stage.texts());
    stage.click("Details: Thermocline Model 00003");
    assert!(stage.shows("Prepare: Thermocline Model 00003") && stage.shows("Less: Thermocline Model 00003"));

    assert!(stage.shows("1 unsupported file"));
    stage.write("Filter", "golden");
    assert!(!stage.shows("1 unsupported file") && stage.shows("Prepare: tiny golden llama, Q8_0"), "few are unfolded");
    stage.click("Show all");
    stage.write("Filter", "broken");
    assert!(stage.shows("1 unsupported file"));
}
