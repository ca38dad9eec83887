//! The settings view: the window's looks, the server ([`serving`]), [`tools`], folders, the list of [`keys`], and what program this is
//! ([`about`]).

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

/// Sizes of everything that can be chosen.
const ZOOM: std::ops::RangeInclusive<f32> = 0.5..=3.0;

/// What leaves the computer.
const OFFLINE: &str = "Nothing leaves this computer. The network is used for downloads you start, programs you let in, and servers and tools you add, and for nothing else.";

/// The page.
#[derive(Debug, Default)]
pub struct PreferencesPage {
    /// The zoom while it is dragged: the window must not grow under the pointer.
    zoom: Option<f32>,
    serving: Serving,
    tools: ToolsCard,
    /// The program itself, which has an overlay.
    pub about: About,
    /// True if the store keeps words of neurons across chats, and its version when it was asked that last.
    has_words: Option<((u64, i64), bool)>,
}

impl PreferencesPage {
    /// Says what was typed and not added: another page is shown now.
    pub fn leave(&self, shell: &mut Shell) {
        if self.tools.is_typed() {
            shell
                .toasts
                .warning("The tool server was not added. Its text is still in Settings: press Enter there to add it.");
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
        // The keys that zoom do so without asking.
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

    /// The words of neurons across chats: whether they are kept, what that means, and a button that deletes them.
    fn neuron_words(&mut self, ui: &mut Ui, shell: &mut Shell) {
        ui.checkbox(&mut shell.settings.keep_neuron_words, "Keep the words at which neurons fire, across chats");
        widgets::muted(
            ui,
            format!(
                "Off unless you switch it on. Of every answer the neurons that fire at a word and at little else are then kept with \
                 the word, in the file of chats above: at most {MOST_WORDS} words of a neuron and {MOST_ROWS} lines in all. They \
                 stay when a chat is deleted, and when this is switched off, until you delete them here."
            ),
        );
        let has_words = self.has_words(shell);
        if ui.add_enabled(has_words, Button::new("Delete the words of neurons")).clicked() {
            let deleted = shell.store.delete_kept_words();
            shell.chat_controller.forget_words();
            if shell.toasts.check(deleted).is_some() {
                shell.toasts.success("The words of neurons are deleted.");
            }
        }
    }

    /// True if the store keeps words of neurons. It is asked only after it has changed.
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

/// Folders that models are looked for in.
fn folders(ui: &mut Ui, shell: &mut Shell) {
    title(ui, "Folders with models");
    widgets::muted(ui, format!("{} (downloads)", shell.folders.models().display()));
    let mut gone: Option<PathBuf> = None;
    for folder in &shell.settings.folders {
        ui.horizontal(|ui| {
            let name = folder.display().to_string();
            let remove = ui.button("Remove").accessible_name(format!("Remove {name}"));
            if remove.on_hover_text("Look no longer there; nothing is deleted").clicked() {
                gone = Some(folder.clone());
            }
            ui.label(name);
        });
    }
    if let Some(gone) = gone {
        shell.settings.folders.retain(|folder| *folder != gone);
    }
    if ui.button("Add folders on the page of models").clicked() {
        shell.queue_command(Command::Show(Page::Models));
    }
}

/// Where data is kept.
fn places(ui: &mut Ui, shell: &mut Shell) {
    title(ui, "Where data is kept");
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
    let hint = "How often each neuron fired, without any text: a model that is not prepared then starts with the neurons in VRAM that fire most often";
    if ui.checkbox(&mut keep, "Keep these counts between runs").on_hover_text(hint).changed() {
        shell.settings.no_counts = !keep;
    }
}

#[cfg(test)]
mod tests;
