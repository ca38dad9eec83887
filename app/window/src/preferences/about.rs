//! The program itself: its version, the licences of its parts, and its log.

use std::sync::LazyLock;

use egui::{Frame, Id, Modal, RichText, ScrollArea, TextStyle, Ui};

use super::title;
use crate::shell::Shell;
use thermocline_chats::{
    download::agent,
    update::{self, Release},
};
use thermocline_host::log;
use thermocline_rich_text::{background::Background, text::TextField, theme::Palette, widgets};

/// The crates in the program and their licences; `packaging/licences.py` writes it.
const LICENCES: &str = include_str!("../../../../assets/licences.txt");

/// Height of a line of the log or a licence, in points.
const LINE: f32 = 15.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overlay {
    Licences,
    Log,
}

/// The card, the overlays, and the search for a newer version.
#[derive(Debug, Default)]
pub struct About {
    overlay: Option<Overlay>,
    asked: bool,
    asking: Background<Result<Option<Release>, String>>,
    newer: Option<Release>,
}

impl About {
    /// Asks for a newer version once, if that is switched on.
    pub fn tick(&mut self, ctx: &egui::Context, shell: &mut Shell) {
        if let Some(found) = self.asking.take() {
            match found {
                Ok(None) => {}
                Ok(Some(release)) => {
                    shell.toasts.info(format!("Version {} is there: see the settings.", release.version));
                    self.newer = Some(release);
                }
                Err(why) => tracing::warn!("a newer version was looked for: {why}"),
            }
        }
        let address = shell.settings.updates.address().to_owned();
        if shell.settings.updates.on && !self.asked && !address.is_empty() {
            self.asked = true;
            let work = move || update::newer(&agent(), &address).map_err(|error| error.to_string());
            // Without a thread nothing is asked.
            let _ = self.asking.start(ctx, work);
        }
    }

    /// Shows the card.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell) {
        title(ui, "About");
        ui.label(format!("Thermocline {}", env!("CARGO_PKG_VERSION")));
        widgets::muted(
            ui,
            "Runs models that are larger than the GPU's memory. Licensed under Apache-2.0 or MIT, as you prefer.",
        );
        ui.horizontal(|ui| {
            if ui.button("Licences").on_hover_text("Of the fonts, and of the work of others in this program").clicked()
            {
                self.overlay = Some(Overlay::Licences);
            }
            if ui.button("Log").on_hover_text("What happened since the program was started").clicked() {
                self.overlay = Some(Overlay::Log);
            }
        });
        let updates = &mut shell.settings.updates;
        let hint = "One request when the window opens, and nothing else. Off unless you switch it on";
        ui.checkbox(&mut updates.on, "Look for newer versions when the window opens").on_hover_text(hint);
        if updates.on {
            ui.horizontal(|ui| {
                let label = ui.label("Address").id;
                let mut address = updates.address().to_owned();
                let field = TextField::line(Id::unique("address of releases"), TextStyle::Body.resolve(ui.style()));
                let field =
                    field.show(ui, &mut address, |field| field.desired_width(f32::INFINITY).hint_text("https://…"));
                if field.labelled_by(label).changed() {
                    updates.address = Some(address.trim().to_owned());
                    self.asked = false;
                }
            });
            if updates.address().is_empty() {
                widgets::muted(ui, "This build names no place to look at: write the address of one.");
            }
        }
        if let Some(release) = &self.newer {
            let text = format!("Version {} is there.", release.version);
            ui.horizontal_wrapped(|ui| {
                ui.label(widgets::small(text, Palette::of(ui).good));
                if !release.page.is_empty() {
                    ui.hyperlink(&release.page);
                }
            });
        }
    }

    /// Shows the overlay that is open.
    pub fn show_overlay(&mut self, ui: &Ui) {
        let Some(overlay) = self.overlay else { return };
        let screen = ui.content_rect().size();
        let modal = Modal::new(Id::unique("about sheet")).frame(Frame::popup(ui.style()).inner_margin(24));
        let shown = modal.show(ui, |ui| {
            ui.set_width((screen.x * 0.8).min(860.0));
            let height = screen.y * 0.6;
            match overlay {
                Overlay::Licences => ui.scope(|ui| licences(ui, height)),
                Overlay::Log => ui.scope(|ui| lines(ui, height)),
            };
            ui.add_space(8.0);
            widgets::primary_button(ui, "Close", true).clicked()
        });
        if shown.inner || shown.should_close() {
            self.overlay = None;
        }
    }
}

fn licences(ui: &mut Ui, height: f32) {
    static LINES: LazyLock<Vec<&str>> = LazyLock::new(|| {
        let fonts = include_str!("../../../../assets/fonts/Inter-OFL.txt");
        let mono = include_str!("../../../../assets/fonts/JetBrainsMono-OFL.txt");
        let formulas = include_str!("../../../../assets/fonts/KaTeX-OFL.txt");
        let texts = [LICENCES, "\nInter\n", fonts, "\nJetBrains Mono\n", mono, "\nKaTeX\n", formulas];
        texts.into_iter().flat_map(str::lines).collect()
    });
    ui.heading("Licences");
    ui.spacing_mut().item_spacing.y = 0.0;
    let area = ScrollArea::vertical().id_salt("licences").max_height(height).auto_shrink(false);
    area.show_rows(ui, LINE, LINES.len(), |ui, rows| {
        for line in &LINES[rows] {
            ui.label(RichText::new(*line).size(12.0));
        }
    });
}

fn lines(ui: &mut Ui, height: f32) {
    ui.horizontal(|ui| {
        ui.heading("Log");
        let copy = "Copy the log";
        if ui.button("Copy").accessible_name(copy).on_hover_text("It has no text of your chats").clicked() {
            ui.copy_text(log::text());
        }
    });
    let all = log::lines();
    if all.is_empty() {
        widgets::muted(ui, "Nothing was logged.");
    }
    let palette = Palette::of(ui);
    ui.spacing_mut().item_spacing.y = 0.0;
    let area = ScrollArea::both().id_salt("log").max_height(height).auto_shrink(false).stick_to_bottom(true);
    area.show_rows(ui, LINE, all.len(), |ui, rows| {
        for line in &all[rows] {
            let colour = match line.level {
                tracing::Level::ERROR => palette.bad,
                tracing::Level::WARN => palette.amber,
                _ => palette.muted,
            };
            let text = RichText::new(format!("{} {}", line.level, line.text)).monospace().size(12.0).color(colour);
            ui.add(egui::Label::new(text).extend());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::LICENCES;

    /// New crates come and go between releases; a list that has most of them is one that is kept.
    #[test]
    fn licences_name_nine_in_ten_of_the_crates() {
        let lock = include_str!("../../../../Cargo.lock");
        let listed: Vec<&str> =
            LICENCES.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split(' ').next()).collect();
        let known = |name: &str| lock.contains(&format!("name = \"{name}\"\n"));
        let still = listed.iter().filter(|name| known(name)).count();
        assert!(
            listed.len() > 300 && 10 * still >= 9 * listed.len(),
            "{still} of {}: run packaging/licences.py",
            listed.len()
        );
        let manifest = include_str!("../../../../Cargo.toml");
        let part = manifest.split("[workspace.dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
        let direct: Vec<&str> = part.lines().filter_map(|line| line.split_once(" = ").map(|(name, _)| name)).collect();
        let others = direct.iter().filter(|name| !name.starts_with("thermocline"));
        let (has, all) = (others.clone().filter(|name| listed.contains(name)).count(), others.count());
        assert!(all > 20 && 10 * has >= 9 * all, "{has} of {all} dependencies: run packaging/licences.py");
    }
}
