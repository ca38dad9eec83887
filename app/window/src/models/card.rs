//! A model's card in the library, with a row for each of its files.

use std::path::PathBuf;

use egui::{ProgressBar, Rect, RichText, Ui, Vec2};
use thermocline_engine::sparsity::prepare::PreparePhase;

use super::{
    draft_choice::{self, Drafters},
    estimate::Estimates,
    memory, model_list,
    preparation::{Preparation, PreparationStage},
};
use crate::{command::Command, shell::Shell};
use thermocline_host::{
    engine_handle::ModelState,
    library::{AssistantCard, ModelCard, ModelId},
    units::{bytes, parameters},
};
use thermocline_rich_text::{
    theme::{self, Palette},
    widgets,
};

/// An action on the file of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// Prepare the model, or continue its preparation.
    Prepare,
    /// Pause the preparation.
    Pause,
    /// Remove the note about the preparation.
    Dismiss,
}

/// The card of one model of the library.
#[derive(Debug, Clone, Copy)]
pub struct CardView<'c> {
    /// All cards.
    pub cards: &'c [ModelCard],
    /// All assistants that were found.
    pub assistants: &'c [AssistantCard],
    /// Indices of the model's files in `cards`.
    pub group: &'c [usize],
    /// Models that were just added.
    pub added: &'c [ModelId],
    /// The running preparation, of this model or another.
    pub preparation: Option<&'c Preparation>,
    /// Minimum height of the card in points, which is the height of its neighbours.
    pub least: f32,
    /// True if the card is folded until the user unfolds it.
    pub folds: bool,
}

/// The result of showing a card.
#[derive(Debug)]
pub struct ShownCard {
    /// The file and the action that the user chose.
    pub deed: Option<(PathBuf, Deed)>,
    /// Height of the card's contents, in points.
    pub needed: f32,
}

/// A file on a card.
struct FileView<'c> {
    card: &'c ModelCard,
    drafters: Drafters<'c>,
    /// Display name: the model's name, with the quantisation if it has several files.
    title: &'c str,
    preparation: Option<&'c Preparation>,
}

impl CardView<'_> {
    /// True if one of the model's files was just added.
    pub fn is_added(&self) -> bool {
        self.group.iter().any(|at| self.added.contains(&self.cards[*at].id))
    }

    /// Shows the card. `estimates` say if the model fits.
    pub fn show(&self, ui: &mut Ui, shell: &mut Shell, estimates: &mut Estimates) -> ShownCard {
        let palette = Palette::of(ui);
        let outline = if self.is_added() { palette.hot } else { palette.line };
        widgets::outlined_card(ui, outline, |ui| {
            let mut deed = None;
            if !self.folds || self.folded(ui, shell) {
                self.head(ui, shell);
                for at in self.group {
                    let card = &self.cards[*at];
                    let (label, title) = (self.label(*at), self.title(*at));
                    if self.group.len() > 1 {
                        ui.separator();
                        ui.horizontal(|ui| {
                            let words = format!("{label} · {} · {}", bytes(card.bytes), card.container);
                            ui.label(RichText::new(words).font(theme::strong(13.0)));
                            marks(ui, shell, card, self.added);
                        });
                    }
                    let fit = estimates.sentence(ui, shell, card);
                    let file = self.file(card, &title);
                    let asked = ui.push_id(&card.id, |ui| file.show(ui, shell, &fit)).inner;
                    if let (Some(asked), ModelId::Path(path)) = (asked, &card.id) {
                        deed = Some((path.clone(), asked));
                    }
                }
            }
            let needed = ui.min_rect();
            ui.expand_to_include_rect(Rect::from_min_size(needed.min, Vec2::new(0.0, self.least)));
            ShownCard { deed, needed: needed.height() }
        })
    }

    fn file<'v>(&'v self, card: &'v ModelCard, title: &'v str) -> FileView<'v> {
        let drafters = Drafters { models: self.cards, assistants: self.assistants };
        FileView { card, drafters, title, preparation: self.preparation }
    }

    /// The label of a file among the model's files. Empty if it is the only one.
    fn label(&self, at: usize) -> String {
        if self.group.len() > 1 { model_list::file_label(self.cards, self.group, at) } else { String::new() }
    }

    /// The display name of a file: the model's name, with the file's label if there are several.
    fn title(&self, at: usize) -> String {
        let name = &self.cards[at].name;
        if self.group.len() > 1 { format!("{name}, {}", self.label(at)) } else { name.clone() }
    }

    /// Shows the model in two lines, with a button to open each of its files and one that unfolds
    /// the card. True if the card is unfolded.
    fn folded(&self, ui: &mut Ui, shell: &mut Shell) -> bool {
        let [first, ..] = self.group else { return false };
        let card = &self.cards[*first];
        let (id, state) = (ui.scope_id().with("unfolded"), shell.engine_handle.state());
        let mut unfolded = ui.data(|data| data.get_temp(id).unwrap_or(false));
        let several = self.group.len() > 1;
        if !unfolded {
            ui.horizontal(|ui| {
                ui.label(RichText::new(&card.name).font(theme::strong(15.0)));
                self.group.iter().for_each(|at| marks(ui, shell, &self.cards[*at], self.added));
            });
            let size = bytes(self.group.iter().map(|at| self.cards[*at].bytes).min().unwrap_or(0));
            let size = if several { format!("from {size}") } else { format!("{}, {size}", card.weight_type) };
            widgets::muted(ui, format!("{}, {} parameters, {size}", card.architecture, parameters(card.parameters)));
        }
        ui.horizontal_wrapped(|ui| {
            for at in self.group.iter().filter(|_| !unfolded) {
                let card = &self.cards[*at];
                let title = self.title(*at);
                let text = if several { format!("Open {}", self.label(*at)) } else { "Open".to_owned() };
                self.file(card, &title).opening(ui, shell, &state, &text);
            }
            let text = if unfolded { "Less" } else { "Details" };
            if ui.button(text).accessible_name(format!("{text}: {}", card.name)).clicked() {
                unfolded = !unfolded;
                ui.data_mut(|data| data.insert_temp(id, unfolded));
            }
        });
        unfolded
    }

    /// Shows the name and the facts of the model.
    fn head(&self, ui: &mut Ui, shell: &Shell) {
        let [first, others @ ..] = self.group else { return };
        let card = &self.cards[*first];
        ui.horizontal(|ui| {
            ui.label(RichText::new(&card.name).font(theme::strong(15.0)));
            if others.is_empty() {
                marks(ui, shell, card, self.added);
            }
        });
        if !others.is_empty() {
            ui.label(RichText::new(facts(card, true)).size(12.0));
        }
    }
}

/// Marks a file that is open or was just added.
fn marks(ui: &mut Ui, shell: &Shell, card: &ModelCard, added: &[ModelId]) {
    let palette = Palette::of(ui);
    if matches!(shell.engine_handle.state(), ModelState::Ready { model, .. } if model == card.id) {
        ui.label(RichText::new("open").size(12.0).color(palette.good));
    }
    if added.contains(&card.id) {
        ui.label(RichText::new("just added").size(12.0).color(palette.hot));
    }
}

impl FileView<'_> {
    /// Shows the file. `fit` is the sentence about its fit.
    fn show(&self, ui: &mut Ui, shell: &mut Shell, fit: &str) -> Option<Deed> {
        let FileView { card, drafters, title, preparation } = *self;
        let state = shell.engine_handle.state();
        if let ModelId::Path(path) = &card.id {
            widgets::muted(ui, path.display().to_string());
        }
        // If the model has several files, the head of the card shows the facts.
        if title == card.name {
            ui.label(RichText::new(facts(card, false)).size(12.0));
        }
        widgets::muted(ui, sparsity(card));
        widgets::muted(ui, fit);
        let engine = match &state {
            ModelState::Ready { model, engine } if *model == card.id => Some(engine),
            _ => None,
        };
        memory::show(ui, shell, card, title, engine);
        draft_choice::show(ui, shell, card, title, drafters, engine);
        let template = engine.map(|engine| engine.chat_template().origin());
        if let Some(origin) = template.filter(|origin| origin.failure().is_some()) {
            widgets::trouble(ui, format!("Chat template: {origin}"));
        }
        let mut deed = None;
        ui.horizontal_wrapped(|ui| {
            self.opening(ui, shell, &state, "Open");
            deed = self.prepare_button(ui);
        });
        let mine = preparation.filter(|it| card.is_at(&it.path));
        if let Some(preparation) = mine {
            deed = progress(ui, shell, title, preparation, engine.is_some()).or(deed);
        }
        deed
    }

    /// Shows the button that opens or closes the file. `text` is the label for opening.
    fn opening(&self, ui: &mut Ui, shell: &mut Shell, state: &ModelState, text: &str) {
        let FileView { card, title, .. } = *self;
        match state {
            ModelState::Ready { model, .. } if *model == card.id => {
                let button = ui.button("Close").accessible_name(format!("Close {title}"));
                if button.on_hover_text(format!("Close {title} and free its memory")).clicked() {
                    shell.queue_command(Command::CloseModel);
                }
            }
            ModelState::Opening(opening) if opening.model == card.id => {
                ui.spinner();
                widgets::muted(ui, format!("Opening for {} s", opening.since.elapsed().as_secs()));
                let button = ui.button("Cancel").accessible_name(format!("Cancel opening {title}"));
                if button.on_hover_text(format!("Do not open {title}")).clicked() {
                    shell.queue_command(Command::CloseModel);
                }
            }
            state => {
                let name = format!("Open {title}");
                if ui.button(text).accessible_name(&name).on_hover_text(name).clicked() {
                    shell.queue_command(Command::OpenModel(card.id.clone()));
                }
                if let ModelState::Failed { model, reason, .. } = state
                    && *model == card.id
                {
                    widgets::trouble(ui, reason);
                }
            }
        }
    }

    fn prepare_button(&self, ui: &mut Ui) -> Option<Deed> {
        let FileView { card, title, preparation, .. } = *self;
        // The built-in model is always prepared.
        let ModelId::Path(path) = &card.id else { return None };
        let stage = preparation.map(|it| (it.path == *path, it.stage()));
        let text = match &stage {
            Some((true, PreparationStage::Running(_))) => return None,
            Some((true, PreparationStage::Paused)) => "Continue preparing",
            _ if card.prepared => "Prepare again",
            _ => "Prepare",
        };
        let other = matches!(&stage, Some((false, PreparationStage::Running(_))));
        let hint =
            format!("Measure which neurons of {title} fire. Takes minutes to hours. Chats keep working, but slower.");
        let button = ui.add_enabled(!other, egui::Button::new(text)).accessible_name(format!("{text}: {title}"));
        let button = button.on_hover_text(hint);
        let button = button.on_disabled_hover_text("Another model is being prepared");
        button.clicked().then_some(Deed::Prepare)
    }
}

/// The facts of a model. `several` omits facts that its files do not share.
fn facts(card: &ModelCard, several: bool) -> String {
    let experts = card.experts.map(|(count, used)| format!(", {used} of {count} experts")).unwrap_or_default();
    let own = |fact: String| (!several).then_some(fact);
    let facts = [
        Some(card.architecture.clone()),
        own(card.weight_type.to_string()),
        Some(format!("{} parameters", parameters(card.parameters))),
        own(bytes(card.bytes)),
        Some(format!("{} tokens of context", card.context)),
        Some(format!("{} layers of {} neurons{experts}", card.layers, card.neurons)),
        own(card.container.to_owned()),
    ];
    let rest = card.traits.iter().chain([&card.expected_sparsity]).cloned();
    facts.into_iter().flatten().chain(rest).collect::<Vec<_>>().join(" · ")
}

fn sparsity(card: &ModelCard) -> String {
    match (card.predicted, card.recall) {
        (true, Some(recall)) => {
            format!("Prepared: its predictors find {:.1} % of the neurons that fire.", 100.0 * recall)
        }
        (true, None) => "It has predictors. Their recall has not been measured.".to_owned(),
        (false, _) if card.prepared => "Prepared: Thermocline has measured how often each neuron fires.".to_owned(),
        _ if card.activation.is_sparse() => {
            "Not prepared. Most of its neurons are silent. Prepare it to find the ones that can stay in RAM.".to_owned()
        }
        _ => "Not prepared. Prepare it to find the weak neurons that can be skipped.".to_owned(),
    }
}

fn progress(ui: &mut Ui, shell: &mut Shell, name: &str, preparation: &Preparation, open: bool) -> Option<Deed> {
    match preparation.stage() {
        PreparationStage::Running(progress) => {
            let (what, fraction, left) = match progress {
                None => ("Starting".to_owned(), 0.0, None),
                Some(at) => {
                    let what = match at.phase {
                        PreparePhase::Reading => "Step 1 of 4: reading text".to_owned(),
                        PreparePhase::Layers => match at.layer {
                            Some(layer) => format!("Step 2 of 4: learning which neurons fire in layer {layer}"),
                            None => "Step 2 of 4: learning which neurons fire".to_owned(),
                        },
                        PreparePhase::Inputs => "Step 3 of 4: finding small inputs".to_owned(),
                        PreparePhase::Writing => "Step 4 of 4: saving".to_owned(),
                    };
                    (what, at.done, at.seconds_left)
                }
            };
            let left =
                left.map(|seconds| format!(", {} left in this step", widgets::duration(seconds))).unwrap_or_default();
            ui.add(ProgressBar::new(fraction as f32).text(format!("{what}, {:.0} %{left}", fraction * 100.0)));
            if preparation.is_pausing() {
                widgets::muted(ui, "Pausing …");
                return None;
            }
            let pause = ui.button("Pause").accessible_name(format!("Pause: {name}"));
            pause.on_hover_text("The finished part is kept").clicked().then_some(Deed::Pause)
        }
        PreparationStage::Paused => {
            widgets::muted(ui, "Paused. The finished part is kept next to the model.");
            None
        }
        PreparationStage::Done => {
            widgets::muted(ui, "Prepared.");
            if open && ui.button("Reopen the prepared model").clicked() {
                shell.queue_command(Command::ReopenModel);
                return Some(Deed::Dismiss);
            }
            None
        }
        PreparationStage::Failed(reason) => {
            widgets::trouble(ui, format!("preparing failed: {reason}"));
            None
        }
    }
}
