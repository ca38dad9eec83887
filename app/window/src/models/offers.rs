//! Chat models that fit this computer. One click downloads a model, another opens it.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

use egui::{Align, Layout, ProgressBar, RichText, Ui, Vec2};

use super::memory_speed::MemorySpeed;
use crate::{command::Command, shell::Shell};
use thermocline_chats::download::{
    DownloadState, GpuMemory, MemoryFit, agent,
    chat_models::{self, ChatModel},
    hub::{self, HUGGING_FACE, HubModel},
};
use thermocline_host::{library::ModelId, memory, units::rate};
use thermocline_rich_text::{
    background::Background,
    theme::{self, Palette},
    widgets,
};

/// The offered models and the state of their downloads.
#[derive(Debug)]
pub struct DownloadOffers {
    /// URL of the hub that has the repositories.
    pub(crate) hub: String,
    /// Bytes of RAM. 0 if the system does not report it.
    ram: u64,
    memory_speed: MemorySpeed,
    /// The repository whose files are being listed.
    asked: Option<String>,
    asking: Background<Result<Vec<HubModel>, String>>,
    /// Errors by repository.
    failed: HashMap<String, String>,
    /// Repositories of the models that the user clicked. They stay on offer, whatever is measured
    /// later.
    clicked: HashSet<String>,
    /// The complete model file of each repository, if it is on this computer.
    present: HashMap<String, Option<PathBuf>>,
}

impl Default for DownloadOffers {
    fn default() -> Self {
        DownloadOffers {
            hub: HUGGING_FACE.to_owned(),
            ram: memory::total().unwrap_or(0),
            memory_speed: MemorySpeed::default(),
            asked: None,
            asking: Background::default(),
            failed: HashMap::new(),
            clicked: HashSet::new(),
            present: HashMap::new(),
        }
    }
}

/// The state of an offered model.
enum Offer {
    Here(PathBuf),
    Asking,
    Coming { done: u64, total: Option<u64> },
    Absent,
}

impl DownloadOffers {
    /// True once the memory speed is measured or unknown for good.
    #[cfg(test)]
    pub fn is_measured(&self) -> bool {
        self.memory_speed.is_settled()
    }

    /// Handles the list of the requested repository's files: starts the download of the wanted
    /// file.
    fn answered(&mut self, found: Result<Vec<HubModel>, String>, shell: &Shell) {
        let Some(repository) = self.asked.take() else { return };
        let Some(model) = chat_models::all().iter().find(|model| model.repository == repository) else { return };
        match found {
            Err(why) => _ = self.failed.insert(repository, why),
            Ok(found) => match model.pick(&found) {
                None => {
                    let why = format!(
                        "{repository} no longer has the file {}. Choose another model on the Models page",
                        model.file
                    );
                    self.failed.insert(repository, why);
                }
                Some(file) => {
                    for request in file.requests(&self.hub, &repository, &shell.folders.models()) {
                        shell.downloads.add(request);
                    }
                }
            },
        }
    }

    /// Shows the offers.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell) {
        self.memory_speed.tick(ui, shell.chat_controller.is_busy());
        if let Some(found) = self.asking.take() {
            self.answered(found, shell);
        }
        let gpu = shell.adapters.gpu_memory();
        let bandwidth = self.bandwidth(shell);
        let offered = self.models(gpu, bandwidth);
        if offered.is_empty() {
            widgets::muted(ui, "This computer has too little memory for a chat model.");
            return;
        }
        for model in offered {
            ui.push_id(&model.repository, |ui| self.row(ui, shell, model, gpu));
        }
    }

    /// Bandwidth of the CPU's memory in bytes per second: the maximum of the timing and of what
    /// answers have reached.
    fn bandwidth(&self, shell: &Shell) -> Option<f64> {
        let shown = shell.settings.weights_read.map(|read| read / chat_models::REACHED[1]);
        [self.memory_speed.known(), shown].into_iter().flatten().max_by(f64::total_cmp)
    }

    /// The models that fit this computer with its `gpu`, and the models that the user clicked.
    fn models(&self, gpu: GpuMemory, bandwidth: Option<f64>) -> Vec<&'static ChatModel> {
        let mut models = chat_models::offered(self.ram, gpu, bandwidth);
        for model in chat_models::all().iter().filter(|model| self.clicked.contains(&model.repository)) {
            if models.iter().all(|other| other.repository != model.repository) {
                models.push(model);
            }
        }
        models
    }

    fn row(&mut self, ui: &mut Ui, shell: &mut Shell, model: &'static ChatModel, gpu: GpuMemory) {
        let palette = Palette::of(ui);
        let offer = self.offer(shell, model);
        ui.horizontal(|ui| {
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                match &offer {
                    Offer::Here(path) => {
                        let open =
                            widgets::primary_button(ui, "Open", true).accessible_name(format!("Open {}", model.name));
                        if open.clicked() {
                            shell.queue_command(Command::OpenModel(ModelId::Path(path.clone())));
                        }
                    }
                    Offer::Asking => _ = ui.spinner(),
                    Offer::Coming { done, total } => {
                        let fraction = total.map_or(0.0, |total| *done as f32 / total.max(1) as f32);
                        let bar =
                            ProgressBar::new(fraction).desired_width(104.0).text(format!("{:.0} %", 100.0 * fraction));
                        ui.add(bar).on_hover_text("You can pause it on the Models page");
                    }
                    Offer::Absent => {
                        let name = format!("Download {}", model.name);
                        let hint = format!("From huggingface.co/{}", model.repository);
                        if ui.button("Download").accessible_name(name).on_hover_text(hint).clicked() {
                            self.ask(ui, shell, model);
                        }
                    }
                }
                ui.with_layout(Layout::top_down(Align::Min), |ui| {
                    ui.spacing_mut().item_spacing = Vec2::new(8.0, 2.0);
                    ui.horizontal_wrapped(|ui| {
                        ui.label(RichText::new(&model.name).font(theme::strong(14.0)));
                        let facts = format!("{:.1} GB{}", model.gigabytes, self.speed(shell, model, gpu));
                        ui.label(widgets::small(facts, palette.text));
                    });
                    widgets::muted(ui, &model.about);
                    if let Some(why) = self.failed.get(&model.repository) {
                        widgets::trouble(ui, why);
                    }
                });
            });
        });
    }

    /// The expected speed, as far as it is known.
    fn speed(&self, shell: &Shell, model: &ChatModel, gpu: GpuMemory) -> String {
        let Some(bandwidth) = self.bandwidth(shell) else { return String::new() };
        let [least, most] = model.rates(bandwidth);
        let fit = model.fit(self.ram, gpu);
        if fit == MemoryFit::Gpu {
            return format!(", {}, at least {}", fit.words(), rate(least));
        }
        let more = if gpu.bytes > 0 && !gpu.shared { ", more with the GPU" } else { "" };
        format!(", about {} on this computer's CPU{more}", rate((least * most).sqrt()))
    }

    fn offer(&mut self, shell: &Shell, model: &ChatModel) -> Offer {
        let folder = shell.folders.models().join(&model.repository);
        let list = shell.downloads.list();
        let mine: Vec<_> = list.iter().filter(|status| status.request.to.starts_with(&folder)).collect();
        if !mine.is_empty() {
            if mine.iter().all(|status| matches!(status.state, DownloadState::Done(_))) {
                return Offer::Here(mine[0].request.to.clone());
            }
            let done = mine.iter().map(|status| status.progress.done).sum();
            let total = mine.iter().map(|status| status.progress.total).sum();
            return Offer::Coming { done, total };
        }
        if self.asked.as_ref() == Some(&model.repository) {
            return Offer::Asking;
        }
        let present = self.present.entry(model.repository.clone()).or_insert_with(|| complete(&folder, &model.file));
        present.clone().map_or(Offer::Absent, Offer::Here)
    }

    fn ask(&mut self, ui: &Ui, shell: &mut Shell, model: &ChatModel) {
        if self.asking.is_busy() {
            return;
        }
        self.failed.remove(&model.repository);
        self.clicked.insert(model.repository.clone());
        let (hub, repository) = (self.hub.clone(), model.repository.clone());
        let work = move || hub::list_models(&agent(), &hub, &repository).map_err(|error| error.to_string());
        self.asked = shell.toasts.check(self.asking.start(ui, work)).map(|()| model.repository.clone());
    }
}

/// The (first) file of the model in a download folder, if it exists. A file under its final name is
/// complete.
fn complete(folder: &Path, part: &str) -> Option<PathBuf> {
    let part = part.to_ascii_lowercase();
    let files = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        name.ends_with(".gguf") && name.contains(&part)
    };
    files.filter(named).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clicked_model_stays_among_the_offers_when_a_card_becomes_known() {
        let (mut offers, bandwidth) = (DownloadOffers { ram: 32 << 30, ..DownloadOffers::default() }, Some(4e9));
        let smallest = *offers.models(GpuMemory::default(), bandwidth).last().unwrap();
        let card = GpuMemory { bytes: 24 << 30, shared: false };
        let models = |offers: &DownloadOffers| offers.models(card, bandwidth);
        let has = |offers: &DownloadOffers| models(offers).iter().any(|model| model.repository == smallest.repository);
        assert!(!has(&offers), "{} would be offered anyway", smallest.name);
        offers.clicked.insert(smallest.repository.clone());
        assert!(has(&offers));
        let names: HashSet<&str> = models(&offers).iter().map(|model| &*model.repository).collect();
        assert_eq!(names.len(), models(&offers).len());
    }
}
