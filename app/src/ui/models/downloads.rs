//! Getting models from the network.

use std::time::Instant;

use egui::{ProgressBar, RichText, TextEdit, Ui};

use crate::{
    download::{
        DownloadRequest, DownloadSource, DownloadState, DownloadStatus, agent,
        hub::{self, HUGGING_FACE, HubModel, RECOMMENDED_MODELS},
    },
    ui::{background::Background, shell::Shell, theme, theme::Palette, widgets},
    units::bytes,
};

/// The files of a repository, or the error of the request.
type Offers = Result<Vec<HubModel>, String>;

/// The download view: fields, lists and their state.
#[derive(Debug)]
pub struct DownloadsView {
    /// Text typed: a repository, or the address of a file.
    typed: String,
    /// Where repositories are.
    pub(super) hub: String,
    asking: Background<Offers>,
    /// The repository that was asked about, and what it has, once it has answered.
    offers: Option<(String, Option<Offers>)>,
    /// Number of complete downloads at the last check.
    complete: usize,
}

impl Default for DownloadsView {
    fn default() -> Self {
        DownloadsView {
            typed: String::new(),
            hub: HUGGING_FACE.to_owned(),
            asking: Background::default(),
            offers: None,
            complete: 0,
        }
    }
}

impl DownloadsView {
    /// True if a file has arrived since the last call.
    pub fn has_brought(&mut self, shell: &Shell) -> bool {
        let done = |status: &&DownloadStatus| matches!(status.state, DownloadState::Done(_));
        let complete = shell.downloads.list().iter().filter(done).count();
        std::mem::replace(&mut self.complete, complete) < complete
    }

    /// Shows them.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell) {
        queue(ui, shell);
        let mut wanted: Option<String> = None;
        widgets::card(ui, |ui| {
            let label = widgets::muted(ui, "A Hugging Face repository (owner/name), or the address of a GGUF file").id;
            ui.horizontal(|ui| {
                let field = TextEdit::singleline(&mut self.typed).desired_width(ui.available_width() - 72.0);
                let field = ui.add(field.hint_text("owner/name or https://…")).labelled_by(label);
                let entered = field.lost_focus() && ui.input(|input| input.key_pressed(egui::Key::Enter));
                let look = ui.button("Look").accessible_name("Look for its files");
                if (look.clicked() || entered) && !self.typed.trim().is_empty() {
                    wanted = Some(self.typed.trim().to_owned());
                }
            });
            self.offered(ui, shell);
            ui.add_space(4.0);
            widgets::muted(ui, "Models whose neurons fire sparsely, with their predictors:");
            for pick in RECOMMENDED_MODELS {
                ui.horizontal_wrapped(|ui| {
                    let hint = format!("See the files of {}", pick.repository);
                    if ui.button(pick.name).on_hover_text(hint).clicked() {
                        wanted = Some(pick.repository.to_owned());
                    }
                    widgets::muted(ui, pick.about);
                });
            }
        });
        if let Some(wanted) = wanted {
            self.look(ui, shell, wanted);
        }
    }

    fn look(&mut self, ui: &Ui, shell: &mut Shell, wanted: String) {
        if let Some(repository) = hub::repository_name(&wanted) {
            let (hub, asked) = (self.hub.clone(), repository.clone());
            let work = move || hub::list_models(&agent(), &hub, &asked).map_err(|error| error.to_string());
            let started = self.asking.start(ui, work);
            self.offers = shell.ok_or_show_error(started).map(|()| (repository, None));
            return;
        }
        match file_of(&wanted) {
            Some(name) => {
                let to = shell.folders.models().join(name);
                let id = shell
                    .downloads
                    .add(DownloadRequest { source: DownloadSource { url: wanted, bytes: None, sha256: None }, to });
                tracing::debug!(?id, "download");
                self.typed.clear();
            }
            None => shell.show_error(format!(
                "{wanted}: expected a repository like owner/name, or the address of a file that ends in .gguf"
            )),
        }
    }

    /// The files of the repository that was asked about.
    fn offered(&mut self, ui: &mut Ui, shell: &mut Shell) {
        let Some((repository, found)) = &mut self.offers else { return };
        if let Some(answer) = self.asking.take() {
            *found = Some(answer);
        }
        match found {
            None if self.asking.is_busy() => {
                ui.horizontal(|ui| {
                    ui.spinner();
                    widgets::muted(ui, format!("Looking into {repository} …"));
                });
            }
            None => {}
            Some(Err(reason)) => {
                widgets::trouble(ui, reason);
            }
            Some(Ok(offers)) if offers.is_empty() => {
                widgets::muted(ui, format!("{repository} has no GGUF files. Try another repository."));
            }
            Some(Ok(offers)) => {
                let folder = shell.folders.models();
                for offer in offers {
                    ui.horizontal_wrapped(|ui| {
                        let hint = format!("Download {}", offer.name);
                        if ui.button("Download").accessible_name(&hint).on_hover_text(hint).clicked() {
                            for request in offer.requests(&self.hub, repository, &folder) {
                                shell.downloads.add(request);
                            }
                        }
                        ui.label(&offer.name);
                        widgets::muted(ui, bytes(offer.bytes()));
                    });
                }
            }
        }
    }
}

/// Name of the GGUF file at an address.
fn file_of(address: &str) -> Option<String> {
    let rest = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"))?;
    let (path, _) = rest.split_once(['?', '#']).unwrap_or((rest, ""));
    let (_, name) = path.rsplit_once('/')?;
    let fine = name.to_ascii_lowercase().ends_with(".gguf") && !name.contains(['\\', ':']) && !name.starts_with('.');
    fine.then(|| name.to_owned())
}

/// Running downloads.
fn queue(ui: &mut Ui, shell: &mut Shell) {
    for status in shell.downloads.list() {
        widgets::card(ui, |ui| one(ui, shell, &status));
    }
}

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
        DownloadState::Waiting => widgets::muted(ui, "Waits for the others."),
        DownloadState::Running if status.rate > 0.0 => {
            let left = total.map(|total| widgets::duration(total.saturating_sub(done) as f64 / status.rate));
            let left = left.map(|left| format!(", {left} left")).unwrap_or_default();
            widgets::muted(ui, format!("{arrived}, {}/s{left}", bytes(status.rate as u64)))
        }
        DownloadState::Running => widgets::muted(ui, format!("{arrived} …")),
        DownloadState::Retrying { reason, at } => {
            let wait = at.saturating_duration_since(Instant::now());
            ui.request_repaint_after(std::time::Duration::from_secs(1));
            widgets::trouble(ui, format!("{reason}. Tried again in {} s", wait.as_secs()))
        }
        DownloadState::Paused => widgets::muted(ui, format!("Paused at {arrived}.")),
        DownloadState::Done(fetched) => {
            let sum = if fetched.verified { "the checksum is right" } else { "there is no checksum to compare with" };
            ui.label(
                RichText::new(format!("Complete: {}; {sum}.", bytes(fetched.bytes)))
                    .size(12.0)
                    .color(Palette::of(ui).good),
            )
        }
        DownloadState::Failed(reason) => widgets::trouble(ui, reason),
    };
    let button = |ui: &mut Ui, text: &str, hint: &str| {
        ui.button(text).accessible_name(format!("{text}: {name}")).on_hover_text(hint).clicked()
    };
    ui.horizontal(|ui| {
        match &status.state {
            DownloadState::Done(_) => {}
            DownloadState::Paused | DownloadState::Failed(_) | DownloadState::Retrying { .. } => {
                if button(ui, "Go on", "What has arrived is kept") {
                    shell.downloads.resume(status.id);
                }
            }
            DownloadState::Waiting | DownloadState::Running => {
                if button(ui, "Pause", "What has arrived is kept") {
                    shell.downloads.pause(status.id);
                }
            }
        }
        if matches!(status.state, DownloadState::Done(_)) {
            if button(ui, "Clear", "Take it off this list; the file stays") {
                shell.downloads.remove(status.id, false);
            }
        } else if button(ui, "Remove", "Give it up and delete what has arrived") {
            shell.downloads.remove(status.id, true);
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
