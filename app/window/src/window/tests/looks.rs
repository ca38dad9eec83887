//! Compares panels with reviewed pictures. `UPDATE_SNAPSHOTS=true cargo test` overwrites the
//! pictures that differ.

use std::sync::Arc;

use egui::{FontData, FontFamily, FontInsert, FontPriority, Rect, Theme, Ui, Vec2, epaint::text::InsertFontFamily};
use egui_kittest::{Harness, SnapshotResults, kittest::Queryable};
use thermocline_engine::{
    model::Activation,
    session::{EngineOptions, Prompt, Request, Sampling, SessionOptions},
};

use super::frames::quiet;
use crate::{
    chats::ChatsPanel,
    conversation::Conversation,
    models::{DownloadOffers, ModelsPage},
    neurons::NeuronsPanel,
    preferences::{PreferencesPage, ToolsCard, keys},
    shell::Shell,
    testing::add_chat,
};
use thermocline_chats::{
    attachment::{Document, DocumentKind, fixtures::haystack},
    settings::Settings,
    store::{NewMessage, ToolCall, ToolOutcome, ToolResult, import_export::FileFormat},
    tools::{Consent, ServerConfig, ServerTransport, builtin::Builtin},
};
use thermocline_host::{folders::Folders, library::ModelId, testing::eventually};
use thermocline_rich_text::{fonts, theme, widgets};

/// Glyphs that the window's own fonts lack. Outside tests, the system's fonts provide them.
const LETTERS: [(&str, &[u8]); 2] = [
    ("letters", include_bytes!("../../../../rich-text/tests/fonts/DroidSansFallback-subset.ttf")),
    ("letters to the left", include_bytes!("../../../../rich-text/tests/fonts/DejaVuSans-subset.ttf")),
];

/// Coloured emoji. Outside tests, the system's font provides them.
const EMOJI: &[u8] = include_bytes!("../../../../rich-text/tests/fonts/NotoColorEmoji-subset.ttf");

/// A panel and its state.
struct Shown<P> {
    panel: P,
    shell: Option<Shell>,
    _folder: tempfile::TempDir,
}

/// A panel that also shows offers of models.
#[derive(Default)]
struct WithOffers<P> {
    panel: P,
    offers: DownloadOffers,
}

type Show<P> = fn(&mut Ui, &mut P, &mut Shell);

/// Creates a panel of `size` points. `prepare` may add chats and settings.
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
        for (name, font) in LETTERS {
            ctx.add_font(FontInsert::new(name, FontData::from_static(font), families.clone().map(family).to_vec()));
        }
        let emoji = InsertFontFamily { family: fonts::emoji(), priority: FontPriority::Highest };
        ctx.add_font(FontInsert::new("emoji in colour", FontData::from_static(EMOJI), vec![emoji]));
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

fn show_conversation(ui: &mut Ui, shown: &mut WithOffers<Conversation>, shell: &mut Shell) {
    shown.panel.tick(ui, shell);
    shown.panel.show(ui, shell, &mut shown.offers);
}

/// Compares a panel with the picture `name`, in both themes.
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

/// Imports chats with explicit times and states.
fn chats(folders: &Folders) -> Vec<thermocline_chats::store::ChatId> {
    let (mut store, _) = thermocline_chats::store::Store::open(&folders.chats()).unwrap();
    let ids = store.import(FileFormat::Json, include_str!("chats.json")).unwrap().added;
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
        show_conversation,
        |it| it.run_steps(4),
    );
}

/// Adds a right-to-left question, and an answer with every element of Markdown.
fn elements(folders: &Folders, settings: &mut Settings) {
    settings.last_chat = Some(add_chat(folders, "", &["זוהי פסקה (12)", include_str!("elements.md")]).number());
}

#[test]
fn every_element_of_markdown_matches_its_snapshots() {
    look("markdown", [640.0, 1900.0], elements, show_conversation, |it| it.run_steps(6));
}

#[test]
fn page_of_models_matches_its_snapshots() {
    models("models", [720.0, 640.0], |rect, page| rect.with_max_x(page.right() - 24.0));
}

#[test]
fn page_of_models_on_a_wide_screen_matches_its_snapshots() {
    models("models-wide", [2560.0, 560.0], |rect, _| rect.with_max_x(rect.left() + 600.0));
}

/// Compares the library with two models. `mask` is the rectangle to hide around a line that depends
/// on the machine.
fn models(name: &str, size: [f32; 2], mask: impl Fn(Rect, Rect) -> Rect) {
    look(
        name,
        size,
        |_, settings| settings.folders.push("../../tests/fixtures/models/llama-relu-256".into()),
        |ui, shown: &mut WithOffers<ModelsPage>, shell| {
            shown.panel.tick(ui, shell);
            shown.panel.show(ui, shell, &mut shown.offers);
        },
        |it| {
            eventually("models", || {
                it.step();
                it.state().panel.panel.found().len() >= 2
                    && it.query_by_label("Rescan folders").is_some()
                    && it.state().shell.as_ref().unwrap().adapters.list().is_some()
            });
            it.run_steps(4);
            // The fit of the models depends on the machine.
            let page = it.ctx.content_rect();
            let fits = |text: String| {
                ["Fits", "Larger", "Does not fit", "Estimating", "The size of the RAM"]
                    .iter()
                    .any(|word| text.starts_with(word))
            };
            let lines: Vec<Rect> =
                it.get_all_by(|node| node.value().is_some_and(fits)).map(|node| node.rect()).collect();
            for rect in lines {
                it.mask(mask(rect, page));
            }
            // The offers depend on the machine, too.
            let offers = it.get_by_label("For this computer").rect();
            let below = it.get_by_label_contains("Search Hugging Face, or enter").rect();
            let offers =
                Rect::from_min_max(offers.left_bottom(), egui::pos2(page.right(), below.top())).intersect(page);
            if offers.is_positive() {
                it.mask(offers);
            }
        },
    );
}

#[test]
fn page_of_preferences_matches_its_snapshots() {
    look(
        "preferences",
        [640.0, 1040.0],
        |_, _| (),
        |ui, page: &mut PreferencesPage, shell| page.show(ui, shell),
        |it| {
            // The test's folder differs in every run. The mask includes the higher buttons behind a
            // path.
            let (right, temporary) = (it.ctx.content_rect().right(), std::env::temp_dir());
            let temporary = temporary.to_string_lossy();
            let kept = it.get_all_by(|node| node.value().is_some_and(|text| text.contains(&*temporary)));
            let paths: Vec<Rect> = kept.map(|node| node.rect()).collect();
            for rect in paths {
                it.mask(rect.with_max_x(right).expand2(Vec2::new(0.0, 4.0)));
            }
        },
    );
}

#[test]
fn list_of_keys_matches_its_snapshots() {
    let show: Show<()> = |ui, (), _| {
        let _ = keys::modal(ui);
    };
    look("keys", [480.0, 640.0], |_, _| (), show, |it| it.run_steps(4));
}

#[test]
fn map_of_neurons_matches_its_snapshots() {
    map("neurons", [464.0, 400.0], ModelId::Builtin, EngineOptions::default());
}

#[test]
fn map_of_experts_matches_its_snapshots() {
    let relu = EngineOptions { activation: Some(Activation::Relu), ..EngineOptions::default() };
    map("experts", [464.0, 480.0], ModelId::Path("../../tests/fixtures/models/mixtral".into()), relu);
}

/// Compares the map of a model that has generated a few words.
fn map(name: &str, size: [f32; 2], model: ModelId, options: EngineOptions) {
    look(
        name,
        size,
        |_, _| (),
        |ui, panel: &mut NeuronsPanel, shell| panel.show(ui, shell),
        |it| {
            let engine_handle = it.state().shell.as_ref().unwrap().engine_handle.clone();
            engine_handle.open(model.clone(), options.clone());
            eventually("a model", || engine_handle.engine().is_some());
            let session = Arc::new(engine_handle.session(SessionOptions::default()).unwrap());
            let prompt = Prompt::Text("Once upon a time".to_owned());
            let request = Request { sampling: Sampling::greedy(), max_tokens: Some(12), ..Request::new(prompt) };
            session.generate(request).into_iter().for_each(drop);
            // Background threads report the last token and the order of neurons.
            quiet(it);
        },
    );
}

#[test]
fn conversation_with_files_matches_its_snapshots() {
    let prepare = |folders: &Folders, settings: &mut Settings| {
        let (mut store, _) = thermocline_chats::store::Store::open(&folders.chats()).unwrap();
        let chat = store.add_chat(None, "").unwrap();
        let mut attach = |name: &str, text: &str| {
            let kind = DocumentKind::from_path(name.as_ref());
            let document = Document::read(name.to_owned(), kind, text.as_bytes()).unwrap();
            let id = store.attach(chat, &document).unwrap();
            store.set_attachment_tokens(id, "builtin", text.len() / 4).unwrap();
            id
        };
        let files =
            [("register.txt", haystack("The harbour master is called Ada.")), ("notes.md", "# Notes".to_owned())];
        let ids = files.each_ref().map(|(name, text)| attach(name, text));
        let asked = store.add_message(chat, None, &NewMessage::user("Who is the harbour master?")).unwrap();
        store.send_attachments(chat, asked).unwrap();
        let found = store.find_passages(&ids[..1], "Who is the harbour master?", 2).unwrap();
        let passages: Vec<_> = found.iter().map(|found| found.id).collect();
        store.set_given(asked, &[(ids[0], false), (ids[1], true)], &passages).unwrap();
        let answer = NewMessage::assistant("The harbour master is called Ada.");
        store.add_message(chat, Some(asked), &answer).unwrap();
        let document = Document::read("more.rs".to_owned(), DocumentKind::Code, b"fn main() {}").unwrap();
        store.attach(chat, &document).unwrap();
        settings.last_chat = Some(chat.number());
    };
    look("files", [640.0, 480.0], prepare, show_conversation, |it| it.run_steps(4));
}

#[test]
fn conversation_with_tools_matches_its_snapshots() {
    let prepare = |folders: &Folders, settings: &mut Settings| {
        let (mut store, _) = thermocline_chats::store::Store::open(&folders.chats()).unwrap();
        let chat = store.add_chat(None, "").unwrap();
        store.set_chat_tools(chat, true).unwrap();
        settings.tools.consents.set(None, &Builtin::Calculator.tool(), Consent::Ask);
        let call = |id: &str, name: &str, arguments: &str| ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let calls = [
            call("a", "clock", "{}"),
            call("b", "read_file", "{\"path\": \"/home/ada/ships.csv\"}"),
            call("c", "send_mail", "{\"to\": \"all\"}"),
        ];
        let asked = "How many tonnes do the ships of today carry together?";
        let asked = store.add_message(chat, None, &NewMessage::user(asked)).unwrap();
        let looking = store.add_message(chat, Some(asked), &NewMessage::assistant("Let me look at the list.")).unwrap();
        store.set_tool_calls(looking, &calls).unwrap();
        let mut last = looking;
        let ends = [
            (ToolOutcome::Done, None, "Local time: noon"),
            (ToolOutcome::Failed, Some("files"), "Error: no such file"),
            (ToolOutcome::Denied, Some("mail"), "The user did not allow this call."),
        ];
        for (call, (outcome, server, text)) in calls.into_iter().zip(ends) {
            let result = ToolResult { call, outcome, server: server.map(str::to_owned) };
            last = store.add_tool_result(chat, last, &result, text).unwrap();
        }
        let adding =
            store.add_message(chat, Some(last), &NewMessage::assistant("Then I add what you told me.")).unwrap();
        let sum = call("d", "calculator", "{\"expression\": \"1200.5 + 840 + 3 * 77.25\"}");
        store.set_tool_calls(adding, &[sum]).unwrap();
        settings.last_chat = Some(chat.number());
    };
    look("tools", [640.0, 560.0], prepare, show_conversation, |it| {
        let shell = it.state_mut().shell.as_mut().unwrap();
        let chat = shell.store.chats().unwrap()[0].id;
        let answer = shell.store.branch(chat).unwrap().pop().unwrap();
        shell.chat_controller.begin_calls(chat, &answer);
        it.run_steps(6);
        assert!(it.query_by_label("Allow once").is_some());
    });
}

#[test]
fn settings_of_tools_match_their_snapshots() {
    let prepare = |_: &Folders, settings: &mut Settings| {
        let command = |command: &str, args: &[&str]| ServerTransport::Command {
            command: command.to_owned(),
            args: args.iter().map(|word| (*word).to_owned()).collect(),
            env: Default::default(),
        };
        let url = ServerTransport::Url { url: "http://tools.example/mcp".to_owned(), headers: Default::default() };
        let servers = [
            ("files", command("no-such-program-1", &["-y", "server-files", "/home/ada"]), true),
            ("tools.example", url, false),
        ];
        for (name, transport, enabled) in servers {
            settings.tools.add(ServerConfig { name: name.to_owned(), transport, enabled }).unwrap();
        }
    };
    look(
        "tool-settings",
        [640.0, 640.0],
        prepare,
        |ui, card: &mut ToolsCard, shell| {
            widgets::card(ui, |ui| card.show(ui, shell));
        },
        |it| {
            eventually("a failure", || {
                it.step();
                it.query_by_label("Connect again to files").is_some()
            });
            it.run_steps(4);
        },
    );
}
