//! The start page of an empty chat: what a new user sees first.

use egui::{Align, FontId, Label, RichText, ScrollArea, TextFormat, Ui, text::LayoutJob};
use thermocline_engine::session::AdapterKind;

use crate::{
    command::{Command, Page},
    models::DownloadOffers,
    shell::Shell,
};
use thermocline_host::{engine_handle::ModelState, library::ModelId};
use thermocline_rich_text::{
    theme::{Palette, strong},
    widgets::{self, muted},
};

/// Requests for the built-in model, with the nouns that they name. With the window's sampling, at
/// least 95 % of counted stories contain the nouns: 96 % for the first request, all of 60 for each
/// of the others.
pub const STORIES: [(&str, &[&str]); 9] = [
    ("Tell me a story about a little boy.", &["boy"]),
    ("What happened to Lily?", &["lily"]),
    ("Tell me a story about Tim.", &["tim"]),
    ("Tell me a story about a little girl.", &["girl"]),
    ("What happened to Tim?", &["tim"]),
    ("Tell me a story about a little boy named Tim.", &["boy", "tim"]),
    ("What happened to Mia?", &["mia"]),
    ("Tell me a story about Lily.", &["lily"]),
    ("What happened to Sue?", &["sue"]),
];

/// Requests for any other model.
const QUESTIONS: [&str; 3] = [
    "Why is the sky blue? Explain it to a child.",
    "Give me five ideas for a rainy Sunday.",
    "Write a short poem about warm and cold water.",
];

/// Number of requests shown at once.
const SHOWN: usize = 3;

/// Maximum width of the page, in points.
const WIDTH: f32 = 560.0;

/// State of the start page.
#[derive(Debug, Default)]
pub struct StartView {
    /// Index of the first shown request.
    first: usize,
}

impl StartView {
    /// Shows the page for the open model, with `offers` of other models. Returns the request that
    /// the user chose.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell, offers: &mut DownloadOffers) -> Option<&'static str> {
        let state = shell.engine_handle.state();
        let ready = matches!(state, ModelState::Ready { .. } | ModelState::Remote { .. });
        let open = ready || matches!(state, ModelState::Opening(_));
        let Some(model) = state.model().filter(|_| open) else {
            ui.add_space(24.0);
            without_model(ui, shell);
            return None;
        };
        shell.adapters.look(ui, std::time::Duration::MAX);
        let mut said = None;
        ScrollArea::vertical().auto_shrink(false).show(ui, |ui| {
            ui.vertical_centered(|ui| {
                ui.set_max_width(WIDTH.min(ui.available_width()));
                let demonstration = model == ModelId::Builtin;
                let height = if demonstration { 292.0 } else { 160.0 };
                ui.add_space((ui.available_height() * 0.5 - height).max(16.0));
                let title = if ready { format!("{model} is ready") } else { format!("Opening {model} …") };
                ui.label(RichText::new(title).font(strong(24.0)));
                ui.add_space(4.0);
                match (demonstration, ready) {
                    (true, _) => _ = muted(ui, DEMONSTRATION),
                    (false, true) => _ = muted(ui, "Start with one of these, or write your own message."),
                    (false, false) => _ = muted(ui, "You can already write a message."),
                }
                ui.add_space(12.0);
                said = self.requests(ui, demonstration);
                ui.add_space(16.0);
                if demonstration {
                    offered(ui, shell, offers);
                }
                match &model {
                    ModelId::Remote(model) => _ = muted(ui, model.server.destination()),
                    _ => _ = ui.add(Label::new(about(shell, Palette::of(ui))).wrap()),
                }
                if demonstration {
                    ui.add_space(4.0);
                    ui.add(Label::new(widgets::small(PRIVACY, Palette::of(ui).muted)).wrap());
                }
            });
        });
        said
    }

    fn requests(&mut self, ui: &mut Ui, stories: bool) -> Option<&'static str> {
        let mut said = None;
        let all: Vec<&'static str> = match stories {
            true => STORIES.iter().map(|(text, _)| *text).cycle().skip(self.first).take(SHOWN).collect(),
            false => QUESTIONS.to_vec(),
        };
        for text in all {
            if ui.add(egui::Button::new(text).min_size(egui::vec2(360.0, 36.0))).clicked() {
                said = Some(text);
            }
        }
        if stories && ui.button("Other stories").on_hover_text("Shows three other suggestions").clicked() {
            self.first = (self.first + SHOWN) % STORIES.len();
        }
        said
    }
}

/// Shows the chat models on offer.
fn offered(ui: &mut Ui, shell: &mut Shell, offers: &mut DownloadOffers) {
    widgets::card(ui, |ui| {
        ui.with_layout(egui::Layout::top_down(Align::Min), |ui| {
            ui.label(RichText::new("Get a chat model").font(strong(15.0)));
            offers.show(ui, shell);
            if ui.link("All models and your own files").clicked() {
                shell.queue_command(Command::Show(Page::Models));
            }
        });
    });
    ui.add_space(12.0);
}

/// Description of the built-in model.
const DEMONSTRATION: &str = "A demonstration with 6.4 million parameters. It can only tell children's stories.";

/// The sentence about privacy.
const PRIVACY: &str = "Your data stays on this computer: no account, no statistics. Only downloads you start and programs \
    you allow to connect use the network.";

/// Says why no model can answer and what to do about it. Shows nothing while a model is open.
pub fn without_model(ui: &mut Ui, shell: &mut Shell) {
    let (why, failed) = match shell.engine_handle.state() {
        ModelState::Failed { model, failure, reason } => {
            let why = format!("{model} {failure}: {reason}");
            (RichText::new(why).color(Palette::of(ui).bad), Some((model, failure.remedy())))
        }
        ModelState::Empty => (RichText::new("No model is open."), None),
        _ => return,
    };
    ui.vertical_centered(|ui| {
        ui.label(why);
        if let Some((model, again)) = failed
            && ui.button(again).on_hover_text(format!("Open {model} again")).clicked()
        {
            shell.queue_command(Command::OpenModel(model));
        }
        if ui.button("Choose a model").clicked() {
            shell.queue_command(Command::Show(Page::Models));
        }
    });
}

/// Explains hot and cold neurons and their benefit. Without a GPU, explains skipping.
fn about(shell: &Shell, palette: Palette) -> LayoutJob {
    let gpu = shell.adapters.best().filter(|adapter| adapter.kind != AdapterKind::Software);
    let parts: Vec<(String, egui::Color32)> = match gpu {
        Some(_) => vec![
            ("Hot".to_owned(), palette.hot),
            (" neurons, which fire for almost every token, are in VRAM; ".to_owned(), palette.muted),
            ("cold".to_owned(), palette.cold),
            (" ones stay in RAM. That is why a model larger than your VRAM runs fast.".to_owned(), palette.muted),
        ],
        None => vec![
            ("For each token only a few neurons ".to_owned(), palette.muted),
            ("fire".to_owned(), palette.hot),
            (". The others are ".to_owned(), palette.muted),
            ("skipped".to_owned(), palette.cold),
            (", which is why a large model runs fast without a GPU.".to_owned(), palette.muted),
        ],
    };
    let mut words = LayoutJob { halign: Align::Center, ..LayoutJob::default() };
    for (text, color) in parts {
        words.append(&text, 0.0, TextFormat { font_id: FontId::proportional(12.0), color, ..TextFormat::default() });
    }
    words
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use thermocline_engine::session::{
        ContextPolicy, Engine, EngineOptions, Event, Message, Prompt, Request, Role, Sampling, SessionOptions,
    };

    use super::*;
    use thermocline_host::builtin;

    /// Counts the stories of each request that contain its nouns, with these seeds and the window's
    /// sampling. At most `lost` stories of a request may lack a noun. The requests were chosen with
    /// other seeds.
    fn starters_are_kept(seeds: RangeInclusive<u64>, lost: usize) {
        let model = ModelId::Builtin.open(&Default::default()).unwrap();
        let options = EngineOptions { kv_type: builtin::KV_TYPE, ..EngineOptions::default() };
        let engine = Engine::from_model(model, options).unwrap();
        let session = engine.session(SessionOptions::default()).unwrap();
        let story = |request: &str, seed: u64| -> String {
            let prompt = Prompt::Chat(vec![Message::new(Role::User, request)]);
            let sampling = Sampling { seed: Some(seed), ..builtin::sampling() };
            let request = Request { sampling, on_full: ContextPolicy::Stop, ..Request::new(prompt) };
            let piece = |event| match event {
                Event::Token { text, .. } => text.to_string(),
                Event::Error(error) => panic!("{error}"),
                _ => String::new(),
            };
            session.generate(request).into_iter().map(piece).collect()
        };
        let has = |story: &str, noun: &str| {
            let mut words = story.split(|letter: char| !letter.is_alphabetic()).map(str::to_lowercase);
            words.any(|word| word == noun || word.strip_suffix('s') == Some(noun))
        };
        let kept = STORIES.map(|(request, nouns)| {
            let all = |text: &str| nouns.iter().all(|noun| has(text, noun));
            assert!(all(request), "{request:?} does not name {nouns:?}");
            (request, seeds.clone().filter(|seed| all(&story(request, *seed))).count())
        });
        let of = seeds.clone().count();
        assert!(kept.iter().all(|(_, times)| times + lost >= of), "of {of} stories, those with the nouns: {kept:?}");
    }

    #[test]
    fn stories_of_the_starters_are_about_what_was_asked_for() {
        starters_are_kept(1001..=1003, 1);
    }

    #[test]
    #[ignore = "second tier: forty seeds of every starter instead of three"]
    fn starters_are_kept_in_most_of_forty_stories() {
        // If a noun is missing with probability 5 %, more than four of forty stories lack it in one
        // case of twenty.
        starters_are_kept(1001..=1040, 4);
    }
}
