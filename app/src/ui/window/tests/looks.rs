//! Panels against reviewed pictures. `UPDATE_SNAPSHOTS=true cargo test` writes those that differ
//! anew.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use egui::{FontData, FontFamily, FontInsert, FontPriority, Rect, Theme, Ui, epaint::text::InsertFontFamily};
use egui_kittest::{Harness, SnapshotResults, kittest::Queryable};
use thermocline_engine::{
    model::Activation,
    session::{EngineOptions, Prompt, Request, Sampling, SessionOptions},
};

use crate::{
    folders::Folders,
    library::ModelId,
    settings::Settings,
    store::import_export::FileFormat,
    ui::{
        chats::ChatsPanel,
        conversation::Conversation,
        models::ModelsPage,
        neurons::NeuronsPanel,
        preferences::{PreferencesPage, keys},
        shell::Shell,
        theme,
    },
};

/// Letters that no font of the window has: elsewhere the system's fonts have them.
const LETTERS: &[u8] = include_bytes!("../../../../tests/fonts/DroidSansFallback-subset.ttf");

/// Long enough for anything on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A panel and what it shows.
struct Shown<P> {
    panel: P,
    shell: Option<Shell>,
    _folder: tempfile::TempDir,
}

type Show<P> = fn(&mut Ui, &mut P, &mut Shell);

/// A panel of `size` points; `prepare` may put chats and settings where it finds them.
fn panel<P: Default + 'static>(
    theme: Theme,
    size: [f32; 2],
    prepare: impl FnOnce(&Folders, &mut Settings),
    show: Show<P>,
) -> Harness<'static, Shown<P>> {
    let folder = tempfile::tempdir().unwrap();
    let folders = Folders::below(folder.path());
    let mut settings = Settings::default();
    prepare(&folders, &mut settings);
    settings.save(&folders.settings()).unwrap();
    let setup = |ctx: &egui::Context| {
        theme::install(ctx);
        let family = |family| InsertFontFamily { family, priority: FontPriority::Lowest };
        let families = [FontFamily::Proportional, FontFamily::Monospace, FontFamily::Name("strong".into())];
        ctx.add_font(FontInsert::new("letters", FontData::from_static(LETTERS), families.map(family).to_vec()));
    };
    let state = Shown { panel: P::default(), shell: None, _folder: folder };
    let ui = move |ui: &mut Ui, shown: &mut Shown<P>| {
        let shell = shown.shell.get_or_insert_with(|| {
            let shell = Shell::new(ui, folders.clone()).unwrap();
            ui.set_theme(theme);
            shell
        });
        show(ui, &mut shown.panel, shell);
    };
    let builder = Harness::builder().with_size(size).with_step_dt(1.0 / 60.0).with_max_steps(8).with_theme(theme);
    let mut it = builder.with_context_setup(setup).build_ui_state(ui, state);
    it.run_steps(4);
    it
}

/// Compares what is shown with the picture called `name`, in both colours.
fn look<P: Default + 'static>(
    name: &str,
    size: [f32; 2],
    prepare: impl Fn(&Folders, &mut Settings),
    show: Show<P>,
    settle: impl Fn(&mut Harness<'static, Shown<P>>),
) {
    let mut looks = SnapshotResults::new();
    for (theme, colours) in [(Theme::Dark, "dark"), (Theme::Light, "light")] {
        let mut it = panel(theme, size, &prepare, show);
        settle(&mut it);
        it.snapshot(format!("{name}-{colours}"));
        looks.extend_harness(&mut it);
    }
}

/// A chat from a file that says everything about it.
fn chats(folders: &Folders) -> Vec<crate::store::ChatId> {
    let (mut store, _) = crate::store::Store::open(&folders.chats()).unwrap();
    let ids = store.import(FileFormat::Json, include_str!("chats.json")).unwrap();
    store.pin_chat(ids[1], true).unwrap();
    ids
}

#[test]
fn list_of_chats_matches_its_snapshots() {
    look(
        "chats",
        [248.0, 400.0],
        |folders, settings| {
            let ids = chats(folders);
            settings.last_chat = Some(ids[0].number());
        },
        |ui, panel: &mut ChatsPanel, shell| {
            panel.tick(ui, shell);
            panel.show(ui, shell);
        },
        |_| (),
    );
}

#[test]
fn conversation_matches_its_snapshots() {
    look(
        "conversation",
        [640.0, 900.0],
        |folders, settings| settings.last_chat = Some(chats(folders)[0].number()),
        |ui, panel: &mut Conversation, shell| {
            panel.tick(shell);
            panel.show(ui, shell);
        },
        |it| it.run_steps(4),
    );
}

#[test]
fn page_of_models_matches_its_snapshots() {
    models("models", [720.0, 640.0], |rect, page| rect.with_max_x(page.right() - 24.0));
}

#[test]
fn page_of_models_on_a_wide_screen_matches_its_snapshots() {
    models("models-wide", [2560.0, 560.0], |rect, _| rect.with_max_x(rect.left() + 600.0));
}

/// The library with two models, where there is always room for `mask` around what depends on the machine.
fn models(name: &str, size: [f32; 2], mask: impl Fn(Rect, Rect) -> Rect) {
    look(
        name,
        size,
        |_, settings| settings.folders.push("../tests/fixtures/models/llama-relu-256".into()),
        |ui, page: &mut ModelsPage, shell| {
            page.tick(ui, shell);
            page.show(ui, shell);
        },
        |it| {
            let began = Instant::now();
            while it.state().panel.found().len() < 2
                || it.query_by_label("Look again").is_none()
                || it.state().shell.as_ref().unwrap().adapters.list().is_none()
            {
                assert!(began.elapsed() < PATIENCE, "no models within {PATIENCE:?}");
                thread::sleep(Duration::from_millis(5));
                it.step();
            }
            it.run_steps(4);
            // Whether they fit depends on the machine.
            let page = it.ctx.content_rect();
            let fits =
                |text: String| ["Fits", "Larger", "Reckoning", "The system"].iter().any(|word| text.starts_with(word));
            let lines: Vec<Rect> =
                it.get_all_by(|node| node.value().is_some_and(fits)).map(|node| node.rect()).collect();
            for rect in lines {
                it.mask(mask(rect, page));
            }
        },
    );
}

#[test]
fn page_of_preferences_matches_its_snapshots() {
    look(
        "preferences",
        [640.0, 720.0],
        |_, _| (),
        |ui, page: &mut PreferencesPage, shell| page.show(ui, shell),
        |it| {
            // Where this test keeps its files is another place each time.
            let right = it.ctx.content_rect().right();
            let paths: Vec<Rect> = it
                .get_all_by(|node| node.value().is_some_and(|text| text.contains(std::path::MAIN_SEPARATOR)))
                .map(|node| node.rect())
                .collect();
            for rect in paths {
                it.mask(rect.with_max_x(right));
            }
        },
    );
}

#[test]
fn list_of_keys_matches_its_snapshots() {
    let show: Show<()> = |ui, (), _| {
        let _ = keys::modal(ui);
    };
    look("keys", [416.0, 600.0], |_, _| (), show, |it| it.run_steps(4));
}

#[test]
fn map_of_neurons_matches_its_snapshots() {
    map("neurons", [464.0, 400.0], ModelId::Builtin, EngineOptions::default());
}

#[test]
fn map_of_experts_matches_its_snapshots() {
    let relu = EngineOptions { activation: Some(Activation::Relu), ..EngineOptions::default() };
    map("experts", [464.0, 480.0], ModelId::Path("../tests/fixtures/models/mixtral".into()), relu);
}

/// The map of a model that has said a few words.
fn map(name: &str, size: [f32; 2], model: ModelId, options: EngineOptions) {
    look(
        name,
        size,
        |_, _| (),
        |ui, panel: &mut NeuronsPanel, shell| panel.show(ui, shell),
        |it| {
            let engine_handle = it.state().shell.as_ref().unwrap().engine_handle.clone();
            engine_handle.open(model.clone(), options.clone());
            let began = Instant::now();
            while engine_handle.engine().is_none() {
                assert!(began.elapsed() < PATIENCE, "no model within {PATIENCE:?}");
                thread::sleep(Duration::from_millis(5));
            }
            let session = Arc::new(engine_handle.session(SessionOptions::default()).unwrap());
            let prompt = Prompt::Text("Once upon a time".to_owned());
            let request = Request { sampling: Sampling::greedy(), max_tokens: Some(12), ..Request::new(prompt) };
            session.generate(request).into_iter().for_each(drop);
            // The last token is told, and the order of neurons found, beside the frames.
            for _ in 0..50 {
                thread::sleep(Duration::from_millis(10));
                it.step();
            }
        },
    );
}
