//! Downloads of models: models that suit this computer, search results, and any address.

use std::time::Instant;

use egui::{Id, ProgressBar, RichText, TextStyle, Ui};

use super::{
    hub_results::{HubResults, ResultsAction, model_facts},
    offers::DownloadOffers,
};
use crate::shell::Shell;
use thermocline_chats::download::{
    DownloadRequest, DownloadSource, DownloadState, DownloadStatus, agent,
    hub::{self, HUGGING_FACE, HubModel, RECOMMENDED_MODELS, SPARSE_OWNER},
};
use thermocline_host::units::bytes;
use thermocline_rich_text::{
    background::Background,
    text::TextField,
    theme::{self, Palette},
    widgets,
};

/// Label of the text field.
const FIELD: &str = "Search Hugging Face, or enter a repository (owner/name) or the address of a GGUF file";

/// The files of a repository, or the error of the request.
type FoundFiles = Result<Vec<HubModel>, String>;

/// The download view: its field, its lists and their state.
#[derive(Debug)]
pub struct DownloadsView {
    /// The typed text: search words, a repository, or the address of a file.
    typed: String,
    /// URL of the hub that has the repositories.
    pub(super) hub: String,
    asking: Background<FoundFiles>,
    /// The repository whose files were requested, and the answer once it has arrived.
    files: Option<(String, Option<FoundFiles>)>,
    /// The running search, or its results.
    results: Option<HubResults>,
    /// Number of complete downloads at the last check.
    complete: usize,
}

impl Default for DownloadsView {
    fn default() -> Self {
        DownloadsView {
            typed: String::new(),
            hub: HUGGING_FACE.to_owned(),
            asking: Background::default(),
            files: None,
            results: None,
            complete: 0,
        }
    }
}

impl DownloadsView {
    /// True if a download was completed since the last call.
    pub fn has_brought(&mut self, shell: &Shell) -> bool {
        let done = |status: &&DownloadStatus| matches!(status.state, DownloadState::Done(_));
        let complete = shell.downloads.list().iter().filter(done).count();
        std::mem::replace(&mut self.complete, complete) < complete
    }

    /// Shows the view, with the `offers` for this computer.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell, offers: &mut DownloadOffers) {
        for status in shell.downloads.list() {
            widgets::card(ui, |ui| one(ui, shell, &status));
        }
        widgets::card(ui, |ui| {
            ui.label(RichText::new("For this computer").font(theme::strong(15.0)));
            offers.show(ui, shell);
        });
        let mut wanted: Option<String> = None;
        widgets::card(ui, |ui| {
            let label = widgets::muted(ui, FIELD).id;
            ui.horizontal(|ui| {
                let width = ui.available_width() - 80.0;
                let field = TextField::line(Id::unique("search of models"), TextStyle::Body.resolve(ui.style()));
                let field = field.show(ui, &mut self.typed, |field| {
                    field.desired_width(width).hint_text("gemma 4, owner/name or https://…")
                });
                let field = field.labelled_by(label);
                let entered = field.lost_focus() && ui.input(|input| input.key_pressed(egui::Key::Enter));
                let search = ui.button("Search").accessible_name("Search for models");
                if (search.clicked() || entered) && !self.typed.trim().is_empty() {
                    wanted = Some(self.typed.trim().to_owned());
                }
            });
            if self.files.is_some() {
                self.listed(ui, shell);
            } else if let Some(results) = &mut self.results {
                match results.show(ui, shell, &self.hub) {
                    Some(ResultsAction::Files(repository)) => wanted = Some(repository),
                    Some(ResultsAction::Leave) => self.results = None,
                    None => {}
                }
            }
            ui.add_space(4.0);
            widgets::muted(ui, "Models whose neurons fire sparsely:");
            for [name, repository, about] in RECOMMENDED_MODELS {
                ui.horizontal_wrapped(|ui| {
                    let repository = format!("{SPARSE_OWNER}/{repository}");
                    if ui.button(name).on_hover_text(format!("See the files of {repository}")).clicked() {
                        wanted = Some(repository);
                    }
                    widgets::muted(ui, about);
                });
            }
        });
        if let Some(wanted) = wanted {
            self.look(ui, shell, wanted);
        }
    }

    /// Lists the files of a repository, downloads a file, or searches for words, depending on
    /// `wanted`.
    fn look(&mut self, ui: &Ui, shell: &mut Shell, wanted: String) {
        if let Some(repository) = hub::repository_name(&wanted) {
            let (hub, asked) = (self.hub.clone(), repository.clone());
            let work = move || hub::list_models(&agent(), &hub, &asked).map_err(|error| error.to_string());
            self.files = shell.toasts.check(self.asking.start(ui, work)).map(|()| (repository, None));
        } else if let Some(name) = file_of(&wanted) {
            let to = shell.folders.models().join(name);
            let id = shell
                .downloads
                .add(DownloadRequest { source: DownloadSource { url: wanted, bytes: None, sha256: None }, to });
            tracing::debug!(?id, "download");
            self.typed.clear();
        } else if wanted.contains("://") {
            shell.show_error(format!(
                "{wanted}: expected words to search for, a repository like owner/name, or the address of a file that ends in .gguf"
            ));
        } else {
            self.files = None;
            self.results = shell.toasts.check(HubResults::begin(ui, &self.hub, &wanted));
        }
    }

    /// Lists the files of the requested repository, with a button back to the search results.
    fn listed(&mut self, ui: &mut Ui, shell: &mut Shell) {
        let Some((repository, found)) = &mut self.files else { return };
        if let Some(answer) = self.asking.take() {
            *found = Some(answer);
        }
        let mut leave = false;
        ui.horizontal_wrapped(|ui| {
            match found {
                None if self.asking.is_busy() => {
                    ui.spinner();
                    widgets::muted(ui, format!("Reading the files of {repository} …"));
                }
                None => {}
                Some(Err(reason)) => _ = widgets::trouble(ui, reason),
                Some(Ok(models)) if models.is_empty() => {
                    widgets::muted(ui, format!("{repository} has no GGUF files. Try another repository."));
                }
                Some(Ok(_)) => _ = ui.label(RichText::new(repository.as_str()).font(theme::strong(14.0))),
            }
            let text = if self.results.is_some() { "Back to the search" } else { "Close" };
            leave = ui.button(text).accessible_name(format!("{text}: {repository}")).clicked();
        });
        if let Some(Ok(models)) = found {
            let folder = shell.folders.models();
            for model in models {
                ui.horizontal_wrapped(|ui| {
                    let hint = format!("Download {}", model.name);
                    if ui.button("Download").accessible_name(&hint).on_hover_text(hint).clicked() {
                        for request in model.requests(&self.hub, repository, &folder) {
                            shell.downloads.add(request);
                        }
                    }
                    ui.label(&model.name);
                    ui.label(model_facts(model, shell));
                });
            }
        }
        if leave {
            self.files = None;
            self.asking = Background::default();
        }
    }
}

/// Name of the GGUF file at an address. `None` for other addresses.
fn file_of(address: &str) -> Option<String> {
    let rest = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"))?;
    let (path, _) = rest.split_once(['?', '#']).unwrap_or((rest, ""));
    let (_, name) = path.rsplit_once('/')?;
    let fine = name.to_ascii_lowercase().ends_with(".gguf") && !name.contains(['\\', ':']) && !name.starts_with('.');
    fine.then(|| name.to_owned())
}

/// Shows a download that runs, waits or has ended.
fn one(ui: &mut Ui, shell: &mut Shell, status: &DownloadStatus) {
    let name = status.request.to.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (done, total) = (status.progress.done, status.progress.total);
    ui.label(RichText::new(&name).font(theme::strong(14.0)));
    let arrived = match total {
        Some(total) => format!("{} of {}", bytes(done), bytes(total)),
        None => bytes(done),
    };
    if let (Some(total), false) = (total.filter(|total| *total > 0), matches!(status.state, DownloadState::Done(_))) {
        ui.add(ProgressBar::new((done as f64 / total as f64) as f32).text(&arrived));
    }
    match &status.state {
        DownloadState::Waiting => widgets::muted(ui, "Waiting for the other downloads."),
        DownloadState::Running if status.rate > 0.0 => {
            let left = total.map(|total| widgets::duration(total.saturating_sub(done) as f64 / status.rate));
            let left = left.map(|left| format!(", {left} left")).unwrap_or_default();
            widgets::muted(ui, format!("{arrived}, {}/s{left}", bytes(status.rate as u64)))
        }
        DownloadState::Running => widgets::muted(ui, format!("{arrived} …")),
        DownloadState::Retrying { reason, at } => {
            let wait = at.saturating_duration_since(Instant::now());
            ui.request_repaint_after(std::time::Duration::from_secs(1));
            widgets::trouble(ui, format!("{reason}. Retrying in {} s", wait.as_secs()))
        }
        DownloadState::Paused => widgets::muted(ui, format!("Paused at {arrived}.")),
        DownloadState::Done(fetched) => {
            let sum = if fetched.verified { "the checksum is correct" } else { "no checksum was available" };
            ui.label(
                RichText::new(format!("Done: {}, {sum}.", bytes(fetched.bytes))).size(12.0).color(Palette::of(ui).good),
            )
        }
        DownloadState::Failed(reason) => widgets::trouble(ui, reason),
    };
    let button = |ui: &mut Ui, text: &str, hint: &str| {
        ui.button(text).accessible_name(format!("{text}: {name}")).on_hover_text(hint).clicked()
    };
    let (kept, id) = ("The downloaded part is kept", status.id);
    ui.horizontal(|ui| match &status.state {
        DownloadState::Done(_) => {
            if button(ui, "Clear", "Remove it from this list. The file is kept.") {
                shell.downloads.remove(id, false);
            }
        }
        state => {
            let goes_on = matches!(state, DownloadState::Waiting | DownloadState::Running);
            if goes_on && button(ui, "Pause", kept) {
                shell.downloads.pause(id);
            } else if !goes_on && button(ui, "Resume", kept) {
                shell.downloads.resume(id);
            }
            if button(ui, "Remove", "Cancel the download and delete the downloaded part") {
                shell.downloads.remove(id, true);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_name_is_that_of_a_gguf_url() {
        assert_eq!(file_of("https://example.com/a/b.gguf?download=true").as_deref(), Some("b.gguf"));
        for wrong in ["ftp://example.com/b.gguf", "https://example.com/b.zip", "https://example.com/.gguf", "b.gguf"] {
            assert_eq!(file_of(wrong), None, "{wrong}");
        }
    }
}
