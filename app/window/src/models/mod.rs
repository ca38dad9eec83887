//! The page of models on this machine and of new ones. [`search`] finds models, and [`model_list`]
//! filters and sorts them. Each model has a [`card`] with an [`estimate`] of its speed, its context
//! [`memory`] and its draft model ([`draft_choice`]). [`preparation`] prepares one model. Other
//! panels offer that too ([`prepare_offer()`]). [`downloads`] fetches models: [`offers`] that suit
//! this computer and results of a hub search ([`hub_results`]). [`servers`] compute their models
//! elsewhere.

mod card;
mod downloads;
mod draft_choice;
mod estimate;
mod hub_results;
mod memory;
mod memory_speed;
mod model_list;
mod offers;
mod preparation;
mod prepare_offer;
mod search;
mod servers;

use std::{path::PathBuf, time::Duration};

use egui::{Align, CollapsingHeader, Context, Id, Layout, Rangef, RichText, ScrollArea, TextStyle, Ui, Vec2};

use self::{
    card::{CardView, Deed},
    downloads::DownloadsView,
    estimate::Estimates,
    model_list::ModelList,
    search::ModelSearch,
    servers::ServersView,
};
pub use self::{
    offers::DownloadOffers,
    preparation::{Preparation, PreparationStage},
    prepare_offer::prepare_offer,
};
use crate::{
    command::{Command, Page},
    file_dialog::{self, DialogAnswer},
    shell::Shell,
};
use thermocline_host::{engine_handle::ModelState, library::ModelId, units::counted};
use thermocline_rich_text::{background::Background, text::TextField, theme, widgets};

/// Maximum number of models in the list of recent models.
const LATELY: usize = 4;

/// Minimum width of a page that shows the library and the downloads side by side, in points.
const WIDE: f32 = 1080.0;

/// Fraction of the page width that the downloads use, and limits of their width in points.
const MORE_FRACTION: f32 = 0.3;
const MORE: Rangef = Rangef { min: 480.0, max: 840.0 };

/// Limits of the width of a card, in points. Longer lines would be hard to read.
const CARD: Rangef = Rangef { min: 520.0, max: 840.0 };

/// If there are more models, each has a folded card.
const MOST_UNFOLDED: usize = 6;

/// Gap between columns, in points.
const GAP: f32 = 32.0;

/// The page of models.
#[derive(Debug, Default)]
pub struct ModelsPage {
    search: ModelSearch,
    downloads: DownloadsView,
    servers: ServersView,
    /// The typed path of a folder.
    typed: String,
    /// The result of the folder dialog. An error if the desktop has no file dialog.
    dialog: Background<Result<Option<PathBuf>, String>>,
    estimates: Estimates,
    list: ModelList,
    /// Number of added models that the page has already scrolled to.
    scrolled: usize,
    /// Height of the highest card in each row, in points.
    rows: Vec<f32>,
    /// The open model, once faults of its chat template and its draft model were reported.
    told: Option<ModelId>,
    /// The model that the user opens on this page, until it is open.
    opening: Option<ModelId>,
}

impl ModelsPage {
    /// Follows searches, downloads and preparations.
    pub fn tick(&mut self, ctx: &Context, shell: &mut Shell) {
        self.search.follow();
        if shell.passage_models.wanted {
            self.look(ctx, shell, false);
        }
        shell.passage_models.follow(&self.search.cards, self.search.revision);
        if self.downloads.has_brought(shell) {
            self.look(ctx, shell, true);
        }
        if let Some(chosen) = self.dialog.take()
            && let Some(Some(folder)) = shell.toasts.check(chosen)
        {
            self.add(ctx, shell, folder);
        }
        self.tell_of_faults(shell);
        let preparing = shell.preparation.as_ref().is_some_and(|it| matches!(it.stage(), PreparationStage::Running(_)));
        shell.engine_handle.set_busy(preparing);
        if let Some(preparation) = &mut shell.preparation
            && !preparation.noticed
        {
            let id = ModelId::Path(preparation.path.clone());
            match preparation.stage() {
                PreparationStage::Done => {
                    preparation.noticed = true;
                    shell.toasts.check(self.search.refresh(ctx, id.clone()));
                    shell.toasts.success(format!("{id} is prepared"));
                }
                PreparationStage::Failed(reason) => {
                    preparation.noticed = true;
                    shell.show_error(format!("preparing {id}: {reason}"));
                }
                PreparationStage::Running(_) | PreparationStage::Paused => {}
            }
        }
    }

    /// Warns on every page, once per opening, if the chat template of the open model fails and
    /// another replaces it, or if its draft model is not used.
    fn tell_of_faults(&mut self, shell: &mut Shell) {
        let ModelState::Ready { model, engine } = shell.engine_handle.state() else {
            self.told = None;
            return;
        };
        if self.told.as_ref() != Some(&model) {
            let origin = engine.chat_template().origin();
            if origin.failure().is_some() {
                shell.toasts.warning(widgets::sentence(format!("chat template: {origin}")));
            }
            if let Some(reason) = shell.engine_handle.draft_failure() {
                shell.toasts.warning(format!("The draft model is not used: {reason}"));
            }
            self.told = Some(model);
        }
    }

    /// Shows the page, with the `offers` for this computer.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell, offers: &mut DownloadOffers) {
        shell.adapters.look(ui, Duration::MAX);
        self.look(ui, shell, false);
        self.leave_when_open(shell);
        self.columns(ui, shell, offers);
        self.opening = shell.model_to_open().cloned().or(self.opening.take());
    }

    /// Shows the chat once the model opened on this page is ready. If it cannot be opened, its card
    /// says why.
    fn leave_when_open(&mut self, shell: &mut Shell) {
        let state = shell.engine_handle.state();
        match &state {
            ModelState::Failed { model, .. } if self.opening.as_ref() == Some(model) => self.opening = None,
            ModelState::Ready { .. } | ModelState::Remote { .. }
                if self.opening.is_some() && self.opening == state.model() =>
            {
                self.opening = None;
                shell.queue_command(Command::Show(Page::Chat));
            }
            _ => {}
        }
    }

    fn columns(&mut self, ui: &mut Ui, shell: &mut Shell, offers: &mut DownloadOffers) {
        let width = ui.available_width();
        if width < WIDE {
            ui.vertical(|ui| {
                self.library_head(ui, shell);
                column(ui, "models", width, |ui| {
                    ui.set_max_width(ui.available_width().min(CARD.max));
                    self.library(ui, shell);
                    ui.add_space(8.0);
                    ui.label(RichText::new("Get more").font(theme::strong(15.0)));
                    self.downloads.show(ui, shell, offers);
                    self.servers.show(ui, shell);
                });
            });
            return;
        }
        ui.horizontal_top(|ui| {
            ui.spacing_mut().item_spacing.x = GAP;
            let more = MORE.clamp(MORE_FRACTION * width);
            let size = Vec2::new(width - GAP - more, ui.available_height());
            ui.allocate_ui_with_layout(size, Layout::top_down(Align::Min), |ui| {
                let spacing = &mut ui.spacing_mut().item_spacing;
                spacing.x = spacing.y;
                self.library_head(ui, shell);
                column(ui, "models", size.x, |ui| self.library(ui, shell));
            });
            column(ui, "more", more, |ui| {
                // As high as the other column's heading, which has a button.
                let button = ui.text_style_height(&TextStyle::Button) + 2.0 * ui.spacing().button_padding.y;
                ui.horizontal(|ui| {
                    ui.set_min_height(button);
                    ui.heading("Get more");
                });
                self.downloads.show(ui, shell, offers);
                self.servers.show(ui, shell);
            });
        });
    }

    /// Shows the controls that stay visible above the models.
    fn library_head(&mut self, ui: &mut Ui, shell: &mut Shell) {
        ui.horizontal(|ui| {
            ui.heading("Models");
            if self.search.is_running() {
                ui.spinner();
                widgets::muted(ui, "Looking for models …");
            } else if ui.button("Rescan folders").on_hover_text("Search all folders for models again").clicked() {
                self.look(ui, shell, true);
            }
        });
        self.folder(ui, shell);
        lately(ui, shell);
        if self.search.cards.len() > 1 {
            self.list.controls(ui);
        }
    }

    /// Shows the models on this machine.
    fn library(&mut self, ui: &mut Ui, shell: &mut Shell) {
        self.cards(ui, shell);
        self.broken(ui);
    }

    fn look(&mut self, ctx: &Context, shell: &mut Shell, again: bool) {
        let roots = std::iter::once(shell.folders.models()).chain(shell.settings.folders.iter().cloned()).collect();
        if again {
            self.scrolled = 0;
        }
        shell.toasts.check(self.search.look(ctx, roots, again));
    }

    /// Adds a folder or a file to the library.
    pub fn add(&mut self, ctx: &Context, shell: &mut Shell, path: PathBuf) {
        if !path.exists() {
            shell.show_error(format!("{} does not exist. Check the path.", path.display()));
            return;
        }
        if !shell.settings.folders.contains(&path) {
            shell.settings.folders.push(path);
        }
        self.look(ctx, shell, true);
    }

    fn folder(&mut self, ui: &mut Ui, shell: &mut Shell) {
        let mut typed = None;
        ui.horizontal(|ui| {
            ui.set_max_width(ui.available_width().min(CARD.max));
            let label = ui.label("Folder or file").id;
            let width = (ui.available_width() - 176.0).max(96.0);
            let field = TextField::line(Id::unique("path of models"), TextStyle::Body.resolve(ui.style()));
            let field = field.show(ui, &mut self.typed, |field| {
                field.desired_width(width).hint_text("Type a path, or drop it here")
            });
            let field = field.labelled_by(label);
            let entered = field.lost_focus() && ui.input(|input| input.key_pressed(egui::Key::Enter));
            let add = ui.add_enabled(!self.typed.trim().is_empty(), egui::Button::new("Add"));
            if add.on_hover_text("Also search this folder for models").clicked() || entered {
                typed = Some(PathBuf::from(self.typed.trim()));
            }
            let choose = ui.add_enabled(!self.dialog.is_busy(), egui::Button::new("Choose …"));
            if choose.on_hover_text("Choose a folder with models").clicked() {
                shell.toasts.check(self.dialog.start(ui, choose_folder));
            }
        });
        if let Some(path) = typed.filter(|path| !path.as_os_str().is_empty()) {
            self.typed.clear();
            self.add(ui, shell, path);
        }
    }

    fn cards(&mut self, ui: &mut Ui, shell: &mut Shell) {
        self.list.update(&self.search, shell, &self.estimates);
        // A newly added model is always visible, whatever the filter.
        let hidden = |group: &[Vec<usize>]| {
            let shown = |id: &ModelId| group.iter().flatten().any(|at| self.search.cards[*at].id == *id);
            self.search.added.iter().any(|id| !shown(id))
        };
        if self.search.added.len() > self.scrolled && hidden(&self.list.groups) {
            self.list.clear_filter();
            self.list.update(&self.search, shell, &self.estimates);
        }
        let mut action: Option<(PathBuf, Deed)> = None;
        // The cards borrow the rest of the shell.
        let preparation = shell.preparation.take();
        let gap = ui.spacing().item_spacing.y;
        let groups = &self.list.groups;
        let folds = groups.len() > MOST_UNFOLDED;
        let mut scrolls = self.search.added.len() > self.scrolled;
        let (beside, width) = grid(ui.available_width(), gap, groups.len());
        self.rows.resize(groups.len().div_ceil(beside), 0.0);
        for (groups, height) in groups.chunks(beside).zip(&mut self.rows) {
            let before = std::mem::take(height);
            let least = if beside > 1 { before } else { 0.0 };
            ui.horizontal_top(|ui| {
                ui.spacing_mut().item_spacing.x = gap;
                for group in groups {
                    let ModelSearch { cards, assistants, added, .. } = &self.search;
                    let preparation = preparation.as_ref();
                    let view = CardView { cards, assistants, group, added, preparation, least, folds };
                    let size = Vec2::new(width, 0.0);
                    let shown = ui.push_id(&cards[group[0]].id, |ui| {
                        ui.allocate_ui_with_layout(size, Layout::top_down(Align::Min), |ui| {
                            view.show(ui, shell, &mut self.estimates)
                        })
                    });
                    *height = height.max(shown.inner.inner.needed);
                    action = shown.inner.inner.deed.or(action.take());
                    // Of several added cards, the page scrolls to the first.
                    if view.is_added() && std::mem::take(&mut scrolls) {
                        shown.inner.response.scroll_to_me(Some(Align::Center));
                    }
                }
            });
            if beside > 1 && *height != before {
                ui.request_repaint();
            }
        }
        self.scrolled = self.search.added.len();
        shell.preparation = preparation;
        if !self.search.cards.is_empty() && self.list.groups.is_empty() {
            widgets::muted(ui, "No model matches the filter.");
        }
        if self.search.cards.len() <= 1 && !self.search.is_running() {
            widgets::muted(ui, "Only the built-in model so far. Add a folder above, or get a model below.");
        }
        match action {
            Some((path, Deed::Prepare)) => shell.preparation = Some(Preparation::begin(ui, path)),
            Some((_, Deed::Pause)) => shell.preparation.iter().for_each(Preparation::pause),
            Some((_, Deed::Dismiss)) => shell.preparation = None,
            None => {}
        }
    }

    /// Shows broken model files that pass the filter.
    fn broken(&self, ui: &mut Ui) {
        let shown = |(path, _): &&(PathBuf, String)| self.list.leaves(&path.to_string_lossy());
        let broken: Vec<&(PathBuf, String)> = self.search.broken.iter().filter(shown).collect();
        if broken.is_empty() {
            return;
        }
        let title = counted(broken.len(), "unsupported file");
        CollapsingHeader::new(title).id_salt("unsupported files").show(ui, |ui| {
            for (path, reason) in broken {
                widgets::muted(ui, path.display().to_string());
                widgets::trouble(ui, reason);
            }
        });
    }

    /// The models that the library has found so far.
    #[cfg(test)]
    pub fn found(&self) -> &[thermocline_host::library::ModelCard] {
        &self.search.cards
    }
}

/// Shows the system's folder dialog.
fn choose_folder() -> Result<Option<PathBuf>, String> {
    match file_dialog::ask(rfd::FileDialog::pick_folder) {
        DialogAnswer::Chosen(folder) => Ok(Some(folder)),
        DialogAnswer::Closed => Ok(None),
        DialogAnswer::NoDialog => {
            Err("this desktop has no file dialog. Type the path into the field, or drop the folder here".to_owned())
        }
    }
}

/// Shows a column that scrolls independently.
fn column(ui: &mut Ui, name: &str, width: f32, contents: impl FnOnce(&mut Ui)) {
    let size = Vec2::new(width, ui.available_height());
    ui.allocate_ui_with_layout(size, Layout::top_down(Align::Min), |ui| {
        let spacing = &mut ui.spacing_mut().item_spacing;
        spacing.x = spacing.y;
        ScrollArea::vertical().id_salt(name).auto_shrink(false).show(ui, contents);
    });
}

/// Number of cards side by side in a column of `width`, at most `count`, and the width of each.
fn grid(width: f32, gap: f32, count: usize) -> (usize, f32) {
    let beside = (((width + gap) / (CARD.min + gap)) as usize).clamp(1, count.max(1));
    let each = (width - gap * (beside - 1) as f32) / beside as f32;
    (beside, each.min(CARD.max))
}

/// Shows the recently used models, one click each.
fn lately(ui: &mut Ui, shell: &mut Shell) {
    let open = match shell.engine_handle.state() {
        ModelState::Ready { model, .. } => Some(model.key()),
        ModelState::Remote { model, .. } => Some(model.key()),
        _ => None,
    };
    let others = shell.settings.recent.iter().filter(|key| open.as_ref() != Some(key));
    let recent: Vec<String> = others.take(LATELY).cloned().collect();
    if recent.is_empty() {
        return;
    }
    ui.horizontal_wrapped(|ui| {
        ui.label(RichText::new("Recent:").font(theme::strong(12.0)));
        for key in recent {
            let id = ModelId::from_key(&key);
            let button = ui.button(id.to_string()).accessible_name(format!("Open {id}"));
            if button.on_hover_text(key).clicked() {
                shell.queue_command(Command::OpenModel(id));
            }
        }
    });
}

#[cfg(test)]
mod tests;
