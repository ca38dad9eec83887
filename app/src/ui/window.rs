//! The window: three columns that make room for each other, and what happens when something is asked for.

mod drops;
mod frame_throttle;
mod ground;

use std::time::{Duration, Instant};

use eframe::{CreationContext, NativeOptions};
use egui::{
    Align2, Area, CentralPanel, Color32, Context, Frame, Key, Margin, Modifiers, Order, Panel, ScrollArea, Shape,
    Stroke, Ui, Vec2,
};

use self::{drops::Destination, frame_throttle::FrameThrottle, ground::Ground};
use super::{
    areas::WindowArea,
    chats::ChatsPanel,
    command::{self, Command, Page},
    conversation::{Conversation, composer_id},
    fonts, frame_pace,
    icon::icon,
    keyboard,
    models::{ModelsPage, Offers},
    neurons::NeuronsPanel,
    opening::{self, Backend, BackendOrder, Chosen, NoWindow, Watch},
    preferences::{PreferencesPage, keys},
    shell::Shell,
    theme::{self, Palette},
    top_bar,
    vram::{self, VramPanel},
};
use crate::{engine_handle::ModelState, folders::Folders, library::ModelId, settings::Settings};

/// Title of the window.
const TITLE: &str = "Thermocline";

/// Identity of the program for the system.
const APPLICATION: &str = "org.thermocline.Thermocline";

/// Widths below which a side column lies over the middle one, in points.
const ROOM_FOR_NEURONS: f32 = 1100.0;
const ROOM_FOR_CHATS: f32 = 760.0;

/// Height of the right column below which its two panels scroll as one, in points.
const ROOM_FOR_BOTH: f32 = 720.0;

/// Longest time between two attempts to write what the disk has refused.
const RETRY: Duration = Duration::from_secs(1);

/// The cursor blinks for so long after the last input, because every blink is a frame.
const BLINKS: Duration = Duration::from_secs(10);

/// Around what a column shows.
const INSET: Margin = Margin { left: 16, right: 16, top: 12, bottom: 12 };

/// Widths of the side columns, in points, and those on a wide window.
const CHATS: f32 = 232.0;
const NEURONS: f32 = 448.0;
const WIDE: f32 = 1800.0;
const WIDE_CHATS: f32 = 288.0;
const WIDE_NEURONS: f32 = 0.29;

/// Opens the window and returns when it is closed. `model` is opened instead of the one used last. Graphics backends are tried
/// until one has drawn the first frame: the one that `WGPU_BACKEND` names and no other; else the one in the settings, the one that
/// drew last time, and the rest of this system's.
///
/// # Errors
/// Why there cannot be a window.
pub fn run(folders: &Folders, model: Option<&ModelId>) -> Result<(), NoWindow> {
    let only = std::env::var("WGPU_BACKEND").ok();
    let drawing = Settings::peek(&folders.settings()).drawing;
    let (first, worked) = (drawing.backend.as_deref(), drawing.worked.as_deref());
    let order = BackendOrder::new(Chosen { only: only.as_deref(), first, worked }, Backend::HERE)?;
    let mut desktop = opening::DesktopWindow::new()?;
    order.open(&mut |backend, software| {
        let create = |creation: &CreationContext<'_>, watch: Watch| {
            let mut window = create(creation, folders.clone(), model.cloned())?;
            window.opening = Some((watch, backend));
            Ok(window)
        };
        desktop.open(TITLE, backend, software, options(folders), create)
    })
}

fn options(folders: &Folders) -> NativeOptions {
    let viewport = egui::ViewportBuilder::default()
        .with_title(TITLE)
        .with_app_id(APPLICATION)
        .with_icon(icon())
        .with_inner_size([1440.0, 900.0])
        .with_min_inner_size([480.0, 400.0]);
    NativeOptions {
        viewport,
        persistence_path: Some(folders.config.join("window.ron")),
        // Nothing shades off so slowly that bands would be seen.
        dithering: false,
        ..NativeOptions::default()
    }
}

/// The window's contents, on what eframe draws it with.
fn create(creation: &CreationContext<'_>, folders: Folders, model: Option<ModelId>) -> Result<Window, String> {
    let drawn_by = creation.wgpu_render_state.as_ref().map(|state| state.adapter.get_info().device_type);
    frame_pace::set_draws_by_cpu(&creation.egui_ctx, drawn_by == Some(wgpu::DeviceType::Cpu));
    let mut window = Window::new(&creation.egui_ctx, folders, model)?;
    fonts::load_emoji(&creation.egui_ctx);
    if let Some(state) = &creation.wgpu_render_state {
        window.neurons.draw_on(state);
        if frame_pace::draws_by_cpu(&creation.egui_ctx) {
            window.ground = Ground::install(state);
            let device = state.device.clone();
            // A device that was lost has nothing to do any more.
            window.throttle_frames(FrameThrottle::new(move || drop(device.poll(wgpu::PollType::wait_indefinitely()))));
        }
    }
    Ok(window)
}

/// The window's contents.
#[derive(Debug)]
pub struct Window {
    pub(super) shell: Shell,
    pub(super) page: Page,
    chats: ChatsPanel,
    pub(super) conversation: Conversation,
    neurons: NeuronsPanel,
    pub(super) vram: VramPanel,
    vram_height: f32,
    pub(super) models: ModelsPage,
    /// Models that suit this computer, on two pages.
    pub(super) offers: Offers,
    preferences: PreferencesPage,
    /// True while the list of keys is shown over everything.
    keys: bool,
    /// Columns that lie over the middle one now.
    over: Option<Side>,
    /// True if a field, a menu or an overlay had the keyboard when the last frame ended: then Escape leaves that.
    keyboard_taken: bool,
    /// When there was input last.
    touched: Instant,
    /// True if the background is drawn by the surface's clear colour: with a software driver, half a window of pixels less.
    cleared: bool,
    /// Where the processor that computes the model draws the window.
    frame_throttle: Option<FrameThrottle>,
    /// The same: fills columns.
    ground: Option<Ground>,
    /// The watch that waits for the first frame, and the backend that is to draw it.
    opening: Option<(Watch, Backend)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Chats,
    Neurons,
}

/// True for each side column that has a place of its own in a window of this width.
#[derive(Debug, Clone, Copy)]
struct Rooms {
    chats: bool,
    neurons: bool,
}

impl Window {
    /// Everything below `folders`; opens `model`, or the one used last, or the built-in one.
    ///
    /// # Errors
    /// A sentence, if there is no place to keep chats.
    pub fn new(ctx: &Context, folders: Folders, model: Option<ModelId>) -> Result<Self, String> {
        theme::install(ctx);
        let mut shell = Shell::new(ctx, folders)?;
        let last = || shell.settings.recent.first().map(|key| ModelId::from_key(key));
        let model = model.or_else(last).unwrap_or(ModelId::Builtin);
        shell.open_model(model);
        Ok(Window {
            shell,
            page: Page::default(),
            chats: ChatsPanel::default(),
            conversation: Conversation::default(),
            neurons: NeuronsPanel::default(),
            vram: VramPanel::default(),
            vram_height: 96.0,
            models: ModelsPage::default(),
            offers: Offers::default(),
            preferences: PreferencesPage::default(),
            keys: false,
            over: None,
            keyboard_taken: false,
            touched: Instant::now(),
            cleared: false,
            frame_throttle: None,
            ground: None,
            opening: None,
        })
    }

    /// Leaves the processor to the model during answers: frames are drawn at the throttle's interval.
    pub fn throttle_frames(&mut self, throttle: FrameThrottle) {
        self.shell.chat_controller.set_deferred();
        self.frame_throttle = Some(throttle);
    }

    /// State shared by the panels.
    pub fn shell(&self) -> &Shell {
        &self.shell
    }

    /// Remembers the backend that drew the first frame: the next start tries it first.
    fn remember_backend(&mut self) {
        if let Some((_, backend)) = self.opening.take_if(|(watch, _)| watch.has_drawn()) {
            self.shell.settings.drawing.worked = Some(backend.name().to_owned());
        }
    }

    /// Work of every frame, visible or not.
    pub fn tick(&mut self, ctx: &Context) {
        self.shell.chat_controller.set_keeps_words(self.shell.settings.keep_neuron_words);
        self.conversation.tick(ctx, &mut self.shell);
        self.chats.tick(ctx, &mut self.shell);
        self.models.tick(ctx, &mut self.shell);
        self.vram.tick(ctx, &mut self.shell);
        self.preferences.tick(ctx, &mut self.shell);
        self.shell.serving.apply(&self.shell.settings.server, &self.shell.engine_handle);
        vram::keep_speed(&mut self.shell);
        self.shell.keep_settings(ctx, false);
        if self.shell.chat_controller.has_unsaved_text() {
            ctx.request_repaint_after(RETRY);
        }
    }

    /// An idle window draws no frames.
    fn come_to_rest(&mut self, ctx: &Context) {
        if ctx.input(|input| !input.events.is_empty()) {
            self.touched = Instant::now();
        }
        let blinks = self.touched.elapsed() < BLINKS && !frame_pace::still(ctx, &self.shell.settings);
        if ctx.global_style().visuals.text_cursor.blink != blinks {
            ctx.all_styles_mut(|style| style.visuals.text_cursor.blink = blinks);
        }
    }

    /// One frame.
    pub fn show(&mut self, ui: &mut Ui) {
        self.come_to_rest(ui);
        for command in command::typed(ui) {
            self.shell.queue_command(command);
        }
        self.escape(ui);
        for path in drops::dropped(ui) {
            match Destination::of(&path, self.page) {
                Destination::Message => self.conversation.attach(path),
                Destination::Chats => self.chats.takes(ui, path),
                Destination::Library => {
                    (self.page, self.over) = (Page::Models, None);
                    self.models.add(ui, &mut self.shell, path);
                }
            }
        }
        let (palette, width) = (Palette::of(ui), ui.available_width());
        let background = if self.cleared { Color32::TRANSPARENT } else { palette.background };
        let frame = Frame::new().fill(background).inner_margin(INSET);
        let (room_for_chats, room_for_neurons) = (width >= ROOM_FOR_CHATS, width >= ROOM_FOR_NEURONS);
        // What is dragged to another size is remembered for wide and for other windows.
        let wide = width >= WIDE;
        if room_for_chats && self.shell.settings.panels.chats {
            let (name, size) = if wide { ("wide chats", WIDE_CHATS) } else { ("chats", CHATS) };
            let column = Panel::left(name).default_size(size).size_range(180.0..=400.0);
            self.column(ui, column, |window, ui| window.chats.show(ui, &mut window.shell));
        }
        if room_for_neurons && self.shell.settings.panels.neurons {
            let (name, size) = if wide { ("wide neurons", WIDE_NEURONS * width) } else { ("neurons", NEURONS) };
            let column = Panel::right(name).default_size(size).size_range(360.0..=1100.0);
            self.column(ui, column, |window, ui| window.right(ui));
        }
        Panel::top("top").frame(frame).show(ui, |ui| top_bar::show(ui, &mut self.shell, self.page));
        let middle = CentralPanel::no_frame().frame(frame).show(ui, |ui| self.middle(ui));
        match self.over {
            Some(Side::Chats) if !room_for_chats => {
                over(ui, "chats over", Align2::LEFT_TOP, CHATS, palette, |ui| self.chats.show(ui, &mut self.shell));
            }
            Some(Side::Neurons) if !room_for_neurons => {
                over(ui, "neurons over", Align2::RIGHT_TOP, NEURONS.min(width), palette, |ui| self.right(ui));
            }
            _ => {}
        }
        self.neurons.show_detached(ui, &mut self.shell);
        if self.keys {
            self.keys = !keys::modal(ui);
        }
        self.preferences.show_overlay(ui);
        drops::invite(ui, self.page);
        self.shell.toasts.show(ui, middle.response.rect);
        for command in self.shell.take_commands() {
            let rooms = Rooms { chats: room_for_chats, neurons: room_for_neurons };
            match command {
                Command::NextArea | Command::PreviousArea => {
                    let now = WindowArea::focused(ui, middle.response.rect).unwrap_or(WindowArea::Composer);
                    self.lead(ui, now.neighbour(&self.areas(rooms), command == Command::NextArea));
                }
                Command::NextChat | Command::PreviousChat | Command::RenameChat | Command::DeleteChat => {
                    if command == Command::RenameChat {
                        self.show_chats(rooms);
                    }
                    self.chats.handle_command(ui, &command, &mut self.shell);
                    ui.request_repaint();
                }
                command => self.handle_command(command, rooms),
            }
        }
        self.keyboard_taken = keyboard::is_taken(ui, &[composer_id()]);
        if self.frame_throttle.is_some() && self.shell.chat_controller.will_start_answer(&self.shell.engine_handle) {
            // With a delay, because what is asked for at once is drawn twice.
            ui.request_repaint_after(Duration::from_millis(1));
        }
    }

    /// Escape closes a column that lies over the others, and leaves a page; in a chat the conversation has it.
    fn escape(&mut self, ctx: &Context) {
        let opened = self.over.is_some() || self.page != Page::Chat;
        if opened && !self.keyboard_taken && ctx.input_mut(|input| input.consume_key(Modifiers::NONE, Key::Escape)) {
            if self.over.take().is_none() {
                self.page = Page::Chat;
            }
            self.conversation.handle_command(&Command::Compose, &mut self.shell);
        }
    }

    /// The page, with the way back to the chat from another one.
    fn middle(&mut self, ui: &mut Ui) {
        WindowArea::Middle.stop(
            ui,
            match self.page {
                Page::Chat => "Chat",
                Page::Models => "Page of models",
                Page::Preferences => "Page of settings",
            },
        );
        if self.page != Page::Chat && ui.button("Back to the chat").on_hover_text("Esc").clicked() {
            self.shell.queue_command(Command::Compose);
        }
        match self.page {
            Page::Chat => self.conversation.show(ui, &mut self.shell, &mut self.offers),
            Page::Models => self.models.show(ui, &mut self.shell, &mut self.offers),
            Page::Preferences => self.preferences.show(ui, &mut self.shell),
        }
    }

    /// A side column.
    fn column(&mut self, ui: &mut Ui, column: Panel, contents: impl FnOnce(&mut Self, &mut Ui)) {
        let (frame, fill) = (Frame::new().inner_margin(INSET), Palette::of(ui).panel);
        let Some(ground) = self.ground else {
            column.frame(frame.fill(fill)).show(ui, |ui| contents(self, ui));
            return;
        };
        let below = ui.painter().add(Shape::Noop);
        let shown = column.frame(frame).show(ui, |ui| contents(self, ui));
        ui.painter().set(below, ground.fill(shown.response.rect, fill));
    }

    /// The map and what memory it has. Both are seen at once where there is room for both.
    fn right(&mut self, ui: &mut Ui) {
        WindowArea::Neurons.stop(ui, "Neurons and memory");
        let scroll = |id: &str| ScrollArea::vertical().id_salt(id).auto_shrink([false, true]);
        if ui.available_height() < ROOM_FOR_BOTH {
            scroll("right").auto_shrink(false).show(ui, |ui| {
                self.neurons.show(ui, &mut self.shell);
                ui.separator();
                self.vram.show(ui, &mut self.shell);
            });
            return;
        }
        let height = self.vram_height.min(ui.available_height() / 2.0);
        let frame = Frame::new().inner_margin(Margin { top: 12, ..Margin::ZERO });
        Panel::bottom("vram").exact_size(height).frame(frame).show(ui, |ui| {
            let shown = scroll("vram").show(ui, |ui| self.vram.show(ui, &mut self.shell));
            // As high as what it shows, from the next frame on.
            self.vram_height = shown.content_size.y + 24.0;
        });
        scroll("map").auto_shrink(false).show(ui, |ui| self.neurons.show(ui, &mut self.shell));
    }

    /// The areas that can be seen, from left to right.
    fn areas(&self, rooms: Rooms) -> Vec<WindowArea> {
        let panels = self.shell.settings.panels;
        let chats = if rooms.chats { panels.chats } else { self.over == Some(Side::Chats) };
        let neurons = if rooms.neurons { panels.neurons } else { self.over == Some(Side::Neurons) };
        let all = [
            (chats, WindowArea::Chats),
            (true, WindowArea::Middle),
            (self.page == Page::Chat, WindowArea::Composer),
            (neurons, WindowArea::Neurons),
        ];
        all.into_iter().filter(|(seen, _)| *seen).map(|(_, area)| area).collect()
    }

    /// Leads the keyboard to an area.
    fn lead(&mut self, ctx: &Context, area: WindowArea) {
        match area {
            WindowArea::Chats => self.chats.focus_list(),
            WindowArea::Composer => self.conversation.handle_command(&Command::Compose, &mut self.shell),
            WindowArea::Middle | WindowArea::Neurons => ctx.memory_mut(|memory| memory.request_focus(area.id())),
        }
        ctx.request_repaint();
    }

    /// Shows the column of chats.
    fn show_chats(&mut self, rooms: Rooms) {
        if rooms.chats {
            self.shell.settings.panels.chats = true;
        } else {
            self.over = Some(Side::Chats);
        }
    }

    fn handle_command(&mut self, command: Command, rooms: Rooms) {
        let Rooms { chats: room_for_chats, neurons: room_for_neurons } = rooms;
        let panels = &mut self.shell.settings.panels;
        let switch = |over: &mut Option<Side>, side| *over = if *over == Some(side) { None } else { Some(side) };
        match command {
            Command::NewChat
            | Command::OpenChat(_)
            | Command::OpenMessage(..)
            | Command::Compose
            | Command::Compare(_)
            | Command::Attach => {
                (self.page, self.over) = (Page::Chat, None);
                self.conversation.handle_command(&command, &mut self.shell);
            }
            Command::Stop | Command::Regenerate | Command::CopyAnswer | Command::ToEnd => {
                self.conversation.handle_command(&command, &mut self.shell);
            }
            Command::Search => {
                self.show_chats(rooms);
                self.chats.focus_search();
            }
            Command::OpenModel(model) => self.shell.open_model(model),
            Command::ReopenModel => {
                if let ModelState::Ready { model, .. } | ModelState::Failed { model, .. } =
                    self.shell.engine_handle.state()
                {
                    self.shell.open_model(model);
                } else if let ModelState::Remote { model, .. } = self.shell.engine_handle.state() {
                    self.shell.open_model(ModelId::Remote(model));
                }
            }
            Command::CloseModel => self.shell.engine_handle.close(),
            Command::Show(page) => (self.page, self.over) = (if self.page == page { Page::Chat } else { page }, None),
            Command::ToggleChats if room_for_chats => panels.chats = !panels.chats,
            Command::ToggleChats => switch(&mut self.over, Side::Chats),
            Command::ToggleNeurons if room_for_neurons => panels.neurons = !panels.neurons,
            Command::ToggleNeurons => switch(&mut self.over, Side::Neurons),
            Command::ShowMap | Command::SearchNeurons => {
                if room_for_neurons {
                    panels.neurons = true;
                } else {
                    self.over = Some(Side::Neurons);
                }
                match command {
                    Command::SearchNeurons => self.neurons.focus_search(),
                    _ => self.neurons.show_whole(),
                }
            }
            Command::CheatSheet => self.keys = !self.keys,
            // Those need to know where the keyboard is.
            Command::NextArea | Command::PreviousArea => {}
            Command::NextChat | Command::PreviousChat | Command::RenameChat | Command::DeleteChat => {}
        }
    }
}

/// A column over the middle one.
fn over(ui: &Ui, id: &str, corner: Align2, width: f32, palette: Palette, contents: impl FnOnce(&mut Ui)) {
    let height = ui.content_rect().height();
    Area::new(egui::Id::unique(id)).order(Order::Middle).anchor(corner, Vec2::ZERO).show(ui, |ui| {
        let frame = Frame::new().fill(palette.panel).stroke(Stroke::new(1.0, palette.line)).inner_margin(INSET);
        frame.show(ui, |ui| {
            ui.set_width(width - 32.0);
            ui.set_height(height - 24.0);
            contents(ui);
        });
    });
}

impl eframe::App for Window {
    fn logic(&mut self, ctx: &Context, _frame: &mut eframe::Frame) {
        self.remember_backend();
        if let Some(throttle) = &mut self.frame_throttle {
            throttle.before_answers(&self.shell.chat_controller, &self.shell.engine_handle);
        }
        self.tick(ctx);
    }

    fn ui(&mut self, ui: &mut Ui, _frame: &mut eframe::Frame) {
        let waited = self
            .frame_throttle
            .as_mut()
            .is_some_and(|throttle| throttle.before_frame(&self.shell.chat_controller, &self.shell.serving));
        if waited {
            self.tick(ui);
        }
        self.cleared = true;
        self.show(ui);
        if let Some((watch, _)) = &self.opening {
            watch.made();
        }
    }

    fn clear_color(&self, visuals: &egui::Visuals) -> [f32; 4] {
        Palette::with(visuals).background.to_normalized_gamma_f32()
    }

    fn on_exit(&mut self) {
        self.remember_backend();
        self.conversation.leave(&mut self.shell);
        self.shell.keep_settings(&Context::default(), true);
    }
}

#[cfg(test)]
mod tests;
