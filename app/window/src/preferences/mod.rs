//! The page of settings: appearance, the server ([`serving`]), [`tools`], attached files, folders,
//! the list of [`keys`], and the program itself ([`about`]).

mod about;
pub mod keys;
mod serving;
mod tools;

use std::path::{Path, PathBuf};

use about::About;
use egui::{Button, RichText, ScrollArea, Slider, Ui};
use serving::Serving;
pub use tools::ToolsCard;

use crate::{
    command::{Command, Page},
    passage_models,
    settings_file::choose_theme,
    shell::Shell,
};
use thermocline_chats::{
    settings::{Theme, Zoom},
    store::{MOST_ROWS, MOST_WORDS},
};
use thermocline_rich_text::{
    frame_pace,
    theme::{self, Palette},
    widgets,
};

/// Range of the interface size.
const ZOOM: std::ops::RangeInclusive<f32> = 0.5..=3.0;

/// The text about network use.
const OFFLINE: &str = "Your data stays on this computer. Thermocline uses the network only for downloads you start, programs \
    you allow to connect, and servers and tools you add.";

/// The page of settings.
#[derive(Debug, Default)]
pub struct PreferencesPage {
    /// The zoom while the user drags it. The window must not grow under the pointer.
    zoom: Option<f32>,
    serving: Serving,
    tools: ToolsCard,
    /// The card about the program. It can open overlays.
    pub about: About,
    /// The store's version at the last check, and true if the store had words of neurons across
    /// chats.
    has_words: Option<((u64, i64), bool)>,
}

impl PreferencesPage {
    /// Warns about typed text that was not added, because another page is shown now.
    pub fn leave(&self, shell: &mut Shell) {
        if self.tools.is_typed() {
            shell
                .toasts
                .warning("The tool server was not added. Its text is still in Settings. Press Enter there to add it.");
        }
    }

    /// Shows it.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell) {
        ScrollArea::vertical().auto_shrink(false).show(ui, |ui| {
            ui.set_max_width(ui.available_width().min(720.0));
            ui.heading("Settings");
            ui.add_space(4.0);
            widgets::card(ui, |ui| self.looks(ui, shell));
            widgets::card(ui, |ui| self.serving.show(ui, shell));
            widgets::card(ui, |ui| self.tools.show(ui, shell));
            widgets::card(ui, |ui| {
                title(ui, "Attached files");
                passage_models::show(ui, shell);
            });
            widgets::card(ui, |ui| folders(ui, shell));
            widgets::card(ui, |ui| {
                places(ui, shell);
                self.neuron_words(ui, shell);
                widgets::muted(ui, OFFLINE);
            });
            widgets::card(ui, |ui| {
                title(ui, "Keys");
                keys::list(ui);
            });
            widgets::card(ui, |ui| self.about.show(ui, shell));
        });
    }

    fn looks(&mut self, ui: &mut Ui, shell: &mut Shell) {
        title(ui, "Appearance");
        let settings = &mut shell.settings;
        ui.horizontal(|ui| {
            ui.label("Theme");
            for (theme, name) in [(Theme::System, "Use system setting"), (Theme::Light, "Light"), (Theme::Dark, "Dark")]
            {
                if ui.selectable_label(settings.theme == theme, name).clicked() {
                    settings.theme = theme;
                    choose_theme(ui, theme);
                }
            }
        });
        // Zoom keys change the zoom factor of egui directly.
        if self.zoom.is_none() && f32::from(settings.zoom) != ui.zoom_factor() {
            settings.zoom = Zoom::from(ui.zoom_factor());
        }
        ui.horizontal(|ui| {
            let label = ui.label("Interface size").id;
            let mut zoom = self.zoom.unwrap_or(settings.zoom.into());
            let show = |factor: f64, _| format!("{:.0} %", factor * 100.0);
            let read = |text: &str| text.trim().trim_end_matches('%').trim().parse::<f64>().ok().map(|n| n / 100.0);
            let slider = Slider::new(&mut zoom, ZOOM).step_by(0.05).custom_formatter(show).custom_parser(read);
            let slider = ui.add(slider).labelled_by(label);
            if slider.dragged() {
                self.zoom = Some(zoom);
            } else if slider.changed() || self.zoom.is_some() {
                self.zoom = None;
                settings.zoom = Zoom::from(zoom);
                ui.set_zoom_factor(settings.zoom.into());
            }
            if ui.button("Reset").on_hover_text("Back to 100 %").clicked() {
                settings.zoom = Zoom::default();
                ui.set_zoom_factor(1.0);
            }
        });
        if ui.checkbox(&mut settings.reduced_motion, "Reduce motion (no animations)").changed() {
            theme::move_less(ui, frame_pace::still(ui, settings.reduced_motion));
        }
    }

    /// Shows the setting of the words of neurons across chats, its explanation, and a button that
    /// deletes the words.
    fn neuron_words(&mut self, ui: &mut Ui, shell: &mut Shell) {
        ui.checkbox(&mut shell.settings.keep_neuron_words, "Record which words make neurons fire, across chats");
        widgets::muted(
            ui,
            format!(
                "Off by default. Stores, for every answer, each word together with the neurons that fire mainly for this \
                word, in the chat file named above. At most {MOST_WORDS} words per neuron and {MOST_ROWS} entries are \
                stored. The entries remain if you delete a chat or turn this off. Delete them here."
            ),
        );
        let has_words = self.has_words(shell);
        if ui.add_enabled(has_words, Button::new("Delete the recorded words")).clicked() {
            let deleted = shell.store.delete_kept_words();
            shell.chat_controller.forget_words();
            if shell.toasts.check(deleted).is_some() {
                shell.toasts.success("The recorded words are deleted.");
            }
        }
    }

    /// True if the store has words of neurons. The store is queried only after a change.
    fn has_words(&mut self, shell: &mut Shell) -> bool {
        let Some(version) = shell.toasts.check(shell.store.version()) else { return false };
        if let Some((_, any)) = self.has_words.filter(|(read, _)| *read == version) {
            return any;
        }
        let any = shell.toasts.check(shell.store.has_kept_words()).unwrap_or(false);
        self.has_words = Some((version, any));
        any
    }
}

fn title(ui: &mut Ui, text: &str) {
    ui.label(RichText::new(text).font(theme::strong(15.0)));
}

/// Shows the folders that are searched for models.
fn folders(ui: &mut Ui, shell: &mut Shell) {
    title(ui, "Folders with models");
    widgets::muted(ui, format!("{} (downloads)", shell.folders.models().display()));
    let mut gone: Option<PathBuf> = None;
    for folder in &shell.settings.folders {
        ui.horizontal(|ui| {
            let name = folder.display().to_string();
            let remove = ui.button("Remove").accessible_name(format!("Remove {name}"));
            if remove.on_hover_text("Stops searching this folder. No file is deleted.").clicked() {
                gone = Some(folder.clone());
            }
            ui.label(name);
        });
    }
    if let Some(gone) = gone {
        shell.settings.folders.retain(|folder| *folder != gone);
    }
    if ui.button("Add folders on the Models page").clicked() {
        shell.queue_command(Command::Show(Page::Models));
    }
}

/// Shows where data is stored.
fn places(ui: &mut Ui, shell: &mut Shell) {
    title(ui, "Where data is stored");
    let (settings, chats) = (shell.folders.settings(), shell.folders.chats());
    let (models, cache) = (shell.folders.models(), shell.folders.cache.clone());
    let counts = shell.folders.counts();
    let palette = Palette::of(ui);
    let mut line = |what: &str, path: &Path| {
        ui.horizontal_wrapped(|ui| {
            ui.label(RichText::new(what).color(palette.muted));
            ui.label(RichText::new(path.display().to_string()).monospace().size(12.0));
            let copy = format!("Copy the path: {what}");
            if ui.button("Copy").accessible_name(&copy).on_hover_text(copy).clicked() {
                ui.copy_text(path.display().to_string());
            }
        });
    };
    line("Chats", &chats);
    line("Settings", &settings);
    line("Downloaded models", &models);
    line("Cache", &cache);
    line("Counts of firing neurons", &counts);
    let mut keep = !shell.settings.no_counts;
    let hint = "Stores how often each neuron fired, without any text. An unprepared model then starts with its most frequent \
        neurons in VRAM.";
    if ui.checkbox(&mut keep, "Keep these counts between runs").on_hover_text(hint).changed() {
        shell.settings.no_counts = !keep;
    }
}

#[cfg(test)]
mod tests;
