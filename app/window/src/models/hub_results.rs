//! Results of a hub search: one row per repository. A background thread lists the files of each.

use std::{
    sync::mpsc::{self, Receiver, TryRecvError},
    thread,
};

use egui::{Context, RichText, Ui};

use crate::shell::Shell;
use thermocline_chats::download::{
    MemoryFit, agent,
    hub::{self, HubModel},
    hub_search::{self, HubRepository},
};
use thermocline_host::{
    memory,
    units::{bytes, counted, parameters},
};
use thermocline_rich_text::{theme, waker::Waker, widgets};

/// Maximum number of quantisations that a row names.
const NAMED: usize = 12;

/// The results of a search so far. Dropping them ends the search.
#[derive(Debug)]
pub struct HubResults {
    /// The search words.
    words: String,
    /// The repositories, or the error. `None` until the hub has answered.
    found: Option<Result<Vec<RepositoryRow>, String>>,
    /// Events of the search. `None` once it has ended.
    events: Option<Receiver<SearchEvent>>,
}

/// An event of the search thread.
#[derive(Debug)]
enum SearchEvent {
    Repositories(Result<Vec<HubRepository>, String>),
    Files { row: usize, models: Result<Vec<HubModel>, String> },
}

#[derive(Debug)]
struct RepositoryRow {
    repository: HubRepository,
    /// The repository's models, or the error. `None` until they are listed.
    models: Option<Result<RowModels, String>>,
}

#[derive(Debug)]
struct RowModels {
    /// The quantisations as text.
    quantizations: String,
    /// The model to download unless the user chooses another.
    preferred: Option<HubModel>,
}

/// The user's action on the results.
#[derive(Debug)]
pub enum ResultsAction {
    /// Show all files of this repository.
    Files(String),
    /// Close the search.
    Leave,
}

impl HubResults {
    /// Starts to search `hub` for `words`.
    ///
    /// # Errors
    /// A sentence if no thread can start.
    pub fn begin(ctx: &Context, hub: &str, words: &str) -> Result<Self, String> {
        let (sender, events) = mpsc::channel();
        let (waker, hub, asked) = (Waker::of(ctx), hub.to_owned(), words.to_owned());
        let work = move || {
            let agent = agent();
            let found = hub_search::search(&agent, &hub, &asked).map_err(|error| error.to_string());
            let names: Vec<String> = found.iter().flatten().map(|it| it.name.clone()).collect();
            let tell = |event| {
                let heard = sender.send(event).is_ok();
                waker.now();
                heard
            };
            if !tell(SearchEvent::Repositories(found)) {
                return;
            }
            for (row, name) in names.iter().enumerate() {
                let models = hub::list_models(&agent, &hub, name).map_err(|error| error.to_string());
                if !tell(SearchEvent::Files { row, models }) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("hub search".to_owned());
        thread.spawn(work).map_err(|error| format!("the search could not start: {error}"))?;
        Ok(HubResults { words: words.to_owned(), found: None, events: Some(events) })
    }

    /// Takes the events that have arrived.
    fn follow(&mut self) {
        let Some(events) = &self.events else { return };
        loop {
            match events.try_recv() {
                Ok(SearchEvent::Repositories(found)) => {
                    let row = |repository| RepositoryRow { repository, models: None };
                    self.found = Some(found.map(|found| found.into_iter().map(row).collect()));
                }
                Ok(SearchEvent::Files { row, models }) => {
                    if let Some(Ok(rows)) = &mut self.found
                        && let Some(row) = rows.get_mut(row)
                    {
                        row.models = Some(models.map(|models| RowModels::new(&models)));
                    }
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => break,
            }
        }
        self.events = None;
    }

    /// Shows the results. Models are downloaded from the repositories at `hub`.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell, hub: &str) -> Option<ResultsAction> {
        self.follow();
        let mut action = None;
        ui.horizontal_wrapped(|ui| {
            let (words, running) = (&self.words, self.events.is_some());
            match &self.found {
                None if running => {
                    ui.spinner();
                    widgets::muted(ui, format!("Searching Hugging Face for {words:?} …"));
                }
                None => _ = widgets::trouble(ui, format!("the search for {words:?} ended without a result")),
                Some(Err(reason)) => _ = widgets::trouble(ui, format!("the search for {words:?} failed: {reason}")),
                Some(Ok(rows)) if rows.is_empty() => {
                    widgets::muted(
                        ui,
                        format!("Hugging Face has no GGUF files for {words:?}. Try other or fewer words."),
                    );
                }
                Some(Ok(rows)) => {
                    let count = match rows.len() {
                        1 => "1 repository".to_owned(),
                        count => format!("{count} repositories"),
                    };
                    widgets::muted(ui, format!("{count} for {words:?}, the most downloaded first:"));
                }
            }
            let (text, name) =
                if self.found.is_none() { ("Stop", "Stop the search") } else { ("Close", "Close the search") };
            if ui.button(text).accessible_name(name).clicked() {
                action = Some(ResultsAction::Leave);
            }
        });
        if let Some(Ok(rows)) = &self.found {
            for row in rows {
                ui.push_id(&row.repository.name, |ui| row.show(ui, shell, hub, &mut action));
            }
        }
        action
    }
}

impl RowModels {
    fn new(models: &[HubModel]) -> Self {
        let mut named: Vec<String> = Vec::new();
        for quantization in models.iter().filter_map(HubModel::quantization) {
            if !named.contains(&quantization) {
                named.push(quantization);
            }
        }
        let more = named.len().saturating_sub(NAMED);
        named.truncate(NAMED);
        let mut quantizations = named.join(", ");
        if more > 0 {
            quantizations += &format!(" and {more} more");
        }
        RowModels { quantizations, preferred: hub::preferred(models).cloned() }
    }
}

impl RepositoryRow {
    fn show(&self, ui: &mut Ui, shell: &mut Shell, hub: &str, action: &mut Option<ResultsAction>) {
        let name = &self.repository.name;
        ui.add_space(4.0);
        ui.horizontal_wrapped(|ui| {
            ui.label(RichText::new(name).font(theme::strong(14.0)));
            let downloads = match self.repository.downloads {
                count @ 0..1000 => counted(count as usize, "download"),
                count => format!("{} downloads", parameters(count)),
            };
            widgets::muted(ui, downloads);
        });
        match &self.models {
            None => _ = widgets::muted(ui, "Reading its files …"),
            Some(Err(reason)) => _ = widgets::trouble(ui, reason),
            Some(Ok(RowModels { preferred: None, .. })) => {
                widgets::muted(ui, "It has no GGUF file with a complete model.");
            }
            Some(Ok(RowModels { quantizations, preferred: Some(model) })) => {
                widgets::muted(ui, quantizations);
                ui.horizontal_wrapped(|ui| {
                    let hint = format!("Download {name}: {}", model.name);
                    if ui.button("Download").accessible_name(&hint).on_hover_text(hint).clicked() {
                        for request in model.requests(hub, name, &shell.folders.models()) {
                            shell.downloads.add(request);
                        }
                    }
                    ui.label(model_facts(model, shell));
                    let files = ui.button("All files").accessible_name(format!("All files of {name}"));
                    if files.clicked() {
                        *action = Some(ResultsAction::Files(name.clone()));
                    }
                });
            }
        }
    }
}

/// Quantisation, size and fit of a model that is not downloaded yet, as text.
pub fn model_facts(model: &HubModel, shell: &Shell) -> RichText {
    let mut facts = model.quantization().map(|quantization| format!("{quantization}, ")).unwrap_or_default();
    facts += &bytes(model.bytes());
    if let Some(ram) = memory::total() {
        facts += ", ";
        facts += MemoryFit::of(model.bytes() as f64, ram, shell.adapters.gpu_memory()).words();
    }
    RichText::new(facts).size(12.0)
}
