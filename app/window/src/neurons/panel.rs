//! The panel of neurons: the map of a token, and everything beside it.

use std::sync::Arc;

use eframe::egui_wgpu::RenderState;
use egui::{Align, Layout, RichText, ScrollArea, Ui, ViewportBuilder, ViewportId};
use egui_material_icons::icons::{ICON_OPEN_IN_NEW, ICON_POWER_SETTINGS_NEW};
use thermocline_engine::{session::Engine, telemetry::neurons::Watch};

use super::{
    cost,
    export::{self, Export, Saved, SavedFiles},
    grid::View,
    kind::NeuronKind,
    map::MapOptions,
    mode::{Colours, Mode},
    shader::Shader,
    watched::{WatchedNeurons, is_placed},
};
use crate::{
    command::{Command, Page},
    path_field::{PathField, Typed},
    shell::Shell,
};
use thermocline_chats::settings::HeatmapSettings;
use thermocline_host::engine_handle::ModelState;
use thermocline_rich_text::{
    theme::Palette,
    widgets::{framed_icon_button, muted},
};

/// The map and its figures.
#[derive(Default)]
pub struct NeuronsPanel {
    pub watched: Option<WatchedNeurons>,
    detached: bool,
    shader: Option<Shader>,
    saved: SavedFiles,
    /// The path field of the export, on desktops without a file dialog.
    typed: Option<PathField<Export>>,
    /// True if the panel was shown in this frame.
    seen: bool,
    /// True if the next frame should show the whole map, whatever the zoom.
    pub whole: bool,
    /// True if the search field should get the keyboard focus when it is next shown.
    pub searching: bool,
}

impl NeuronsPanel {
    /// Closes the card of the last pinned neuron. The neuron stays pinned.
    pub fn close_card(&mut self) {
        if let Some(watched) = &mut self.watched {
            watched.card = None;
        }
    }

    /// Lets the window's GPU draw large maps from now on, if it can. Drops pictures of an earlier
    /// egui context.
    pub fn draw_on(&mut self, state: &RenderState) {
        self.shader = Shader::install(state);
        if let Some(watched) = &mut self.watched {
            watched.map.draw_anew(watched.board.shape(), self.shader);
        }
    }

    /// Shows the panel in its column.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell) {
        if !self.detached {
            self.contents(ui, shell, false);
            return;
        }
        ui.heading("Neurons");
        muted(ui, "The map is in its own window.");
        self.detached = !ui.button("Move it back here").clicked();
    }

    /// Shows the panel in a window of its own if it is detached, whether or not its column is
    /// visible. Called after the column.
    pub fn show_detached(&mut self, ui: &Ui, shell: &mut Shell) {
        if self.detached {
            self.detach(ui, shell);
        }
        // Recording strengths costs more than recording masks, and strengths are not visible now.
        if !std::mem::take(&mut self.seen)
            && let Some(engine) = shell.engine_handle.engine()
            && engine.neurons().watch() == Watch::Strength
        {
            engine.neurons().set_watch(Watch::Firing);
        }
    }

    fn detach(&mut self, ui: &Ui, shell: &mut Shell) {
        let builder = ViewportBuilder::default().with_title("Thermocline: neurons").with_inner_size([960.0, 720.0]);
        let ctx = ui.ctx().clone();
        let closed = ctx.show_viewport_immediate(ViewportId::from_hash_of("neurons"), builder, |ui, _class| {
            egui::CentralPanel::default().show(ui, |ui| {
                ScrollArea::vertical().auto_shrink(false).show(ui, |ui| self.contents(ui, shell, true));
            });
            ui.input(|input| input.viewport().close_requested())
        });
        self.detached = !closed;
    }

    fn contents(&mut self, ui: &mut Ui, shell: &mut Shell, detached: bool) {
        self.seen = true;
        self.take_saved(ui, shell);
        let Some(engine) = shell.engine_handle.engine() else {
            (self.watched, shell.marks.tint, shell.marks.mark) = (None, None, None);
            ui.heading("Neurons");
            nothing(ui, shell);
            return;
        };
        let fresh = self.watched.take().filter(|watched| Arc::ptr_eq(&watched.board, engine.neurons()));
        let mut watched = fresh.unwrap_or_else(|| WatchedNeurons::new(&engine, self.shader));
        if std::mem::take(&mut self.whole) {
            watched.map.view = View::default();
        }
        if std::mem::take(&mut self.searching) {
            watched.search.focus = true;
        }
        let placed = is_placed(&engine);
        self.head(ui, shell, &engine, &watched, detached);
        let settings = &shell.settings.heatmap;
        let paged = engine.model().pager().is_some();
        let options = MapOptions {
            mode: watched.kind.chosen(settings, placed || paged).paged(paged),
            colours: Colours::of(&settings.colours),
            by_frequency: settings.by_frequency,
            light: Palette::of(ui) == Palette::LIGHT,
            placed,
            paged,
        };
        let (on, mass_percent) = (settings.on, settings.mass_percent);
        if watched.kind == NeuronKind::Smooth {
            let mass = f32::from(mass_percent.clamp(1, 100)) / 100.0;
            if watched.board.mass() != Some(mass) {
                watched.board.set_mass(Some(mass));
            }
            engine.weigh_neurons();
        }
        watched.follow_chat(shell, &engine);
        let watch = if on { watch_of(options.mode) } else { Watch::Off };
        if watched.board.watch() != watch {
            watched.board.set_watch(watch);
        }
        if watch == Watch::Off {
            let cost = cost::sentence(&watched.board, watch_of(options.mode));
            muted(ui, format!("Neurons are not recorded. {cost}"));
            if ui.button("Record neurons").clicked() {
                shell.settings.heatmap.on = true;
            }
        } else {
            watched.show(ui, shell, &engine, options, detached);
        }
        shell.marks.tint = watched.tint(&engine);
        shell.marks.mark = watched.mark.clone();
        self.watched = Some(watched);
    }

    /// Reports what was saved. Shows a path field if the system has no file dialog.
    fn take_saved(&mut self, ui: &Ui, shell: &mut Shell) {
        for saved in std::mem::take(&mut *self.saved.lock()) {
            match saved {
                Saved::Written(path) => shell.toasts.success(format!("Saved as {}", path.display())),
                Saved::Failed(why) => shell.show_error(why),
                Saved::NoDialog(export, path) => {
                    self.typed = Some(PathField::new(export.title(), path.display().to_string(), export));
                }
            }
        }
        let Some(typed) = self.typed.as_mut().and_then(|field| field.show(ui)) else { return };
        let Some(export) = self.typed.take().map(|field| field.then) else { return };
        match typed {
            Typed::Nothing => {}
            Typed::Path(path) if path.exists() => {
                shell.show_error(format!("{} already exists. Choose another name.", path.display()));
                self.typed = Some(PathField::new(export.title(), path.display().to_string(), export));
            }
            Typed::Path(path) => export::save_at(ui, export, path, Arc::clone(&self.saved)),
        }
    }

    fn head(&mut self, ui: &mut Ui, shell: &mut Shell, engine: &Engine, watched: &WatchedNeurons, detached: bool) {
        let placed = is_placed(engine) || engine.model().pager().is_some();
        ui.horizontal(|ui| {
            ui.heading("Neurons");
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                if !detached && framed_icon_button(ui, ICON_OPEN_IN_NEW, "Show the map in its own window").clicked() {
                    self.detached = true;
                }
                let on = shell.settings.heatmap.on;
                let name = if on { "Stop recording neurons" } else { "Start recording neurons" };
                let switch = framed_icon_button(ui, ICON_POWER_SETTINGS_NEW, name);
                let watch = watch_of(watched.kind.chosen(&shell.settings.heatmap, placed));
                if switch.on_hover_ui(|ui| _ = ui.label(cost::sentence(&watched.board, watch))).clicked() {
                    shell.settings.heatmap.on = !on;
                }
                let save = |ui: &mut Ui| watched.save_menu(ui, shell, engine, &self.saved);
                ui.menu_button("Save", save).response.on_hover_text("Save the map");
                ui.menu_button("Display", |ui| look(ui, &mut shell.settings.heatmap))
                    .response
                    .on_hover_text("Order and colours of the map");
            });
        });
        let settings = &mut shell.settings.heatmap;
        if !settings.on {
            return;
        }
        let (kind, percent) = (watched.kind, settings.mass_percent);
        let chosen = kind.chosen(settings, placed);
        ui.horizontal_wrapped(|ui| {
            // All buttons fit into the column at its usual minimum width.
            ui.spacing_mut().item_spacing.x = 0.0;
            ui.spacing_mut().button_padding.x = 7.0;
            for mode in kind.modes(placed) {
                let title = RichText::new(mode.title()).size(12.0);
                let mut hover = kind.explanation(mode.paged(engine.model().pager().is_some()), percent);
                if mode == Mode::Strength {
                    hover += &format!(". {}", cost::sentence(&watched.board, Watch::Strength));
                }
                if ui.selectable_label(mode == chosen, title).on_hover_text(hover).clicked() {
                    kind.choose(settings, mode);
                }
            }
        });
    }
}

/// The level of recording that a mode needs.
fn watch_of(mode: Mode) -> Watch {
    if mode == Mode::Strength { Watch::Strength } else { Watch::Firing }
}

/// Shows the text of the panel without a model.
fn nothing(ui: &mut Ui, shell: &mut Shell) {
    let text = match shell.engine_handle.state() {
        ModelState::Remote { .. } => "The neurons of a model on a server cannot be shown.",
        ModelState::Opening(_) => "The map appears when the model is open.",
        _ => "Open a model to see its neurons.",
    };
    muted(ui, text);
    if !matches!(shell.engine_handle.state(), ModelState::Opening(_)) && ui.button("Open a model").clicked() {
        shell.queue_command(Command::Show(Page::Models));
    }
}

fn look(ui: &mut Ui, settings: &mut HeatmapSettings) {
    muted(ui, "Order");
    ui.radio_value(&mut settings.by_frequency, true, "Most frequent first");
    ui.radio_value(&mut settings.by_frequency, false, "As in the model");
    muted(ui, "Colours");
    let mut chosen = Colours::of(&settings.colours);
    for colours in Colours::ALL {
        if ui.radio_value(&mut chosen, colours, colours.title()).clicked() {
            settings.colours = colours.key();
        }
    }
}
