//! The window: three [`columns`] that make room for each other, two of them drawn at the [`sides`].
//! Panels send it [`commands`]. It asks a [question](leaving_question) before something is lost.
//! [`startup`] opens it.

mod columns;
mod commands;
mod drops;
mod frame_throttle;
mod ground;
mod leaving_question;
mod sides;
mod startup;

use std::time::{Duration, Instant};

use egui::{CentralPanel, Color32, Context, Event, Frame, Key, Modifiers, OutputCommand, Panel, Rect, Ui};

pub use self::startup::run;
use self::{
    columns::{CHATS, INSET, NEURONS, Rooms, SideColumn, over, place_over},
    drops::Destination,
    frame_throttle::FrameThrottle,
    ground::Ground,
    leaving_question::Leaving,
};
use crate::{
    areas::WindowArea,
    chats::ChatsPanel,
    command::{self, Command, Page},
    conversation::{Conversation, composer_id},
    keyboard,
    models::{DownloadOffers, ModelsPage},
    neurons::{NeuronsPanel, pin_card},
    opening::{Backend, FrameWatch},
    preferences::{PreferencesPage, keys},
    shell::Shell,
    spoken_text::SpokenText,
    top_bar,
    vram::{self, VramPanel},
};
use thermocline_host::{folders::Folders, library::ModelId};
use thermocline_rich_text::{
    frame_pace,
    theme::{self, Palette},
    waker::Waker,
};

/// Notice after a text was copied to the clipboard.
const COPIED: &str = "Copied to the clipboard";

/// Maximum time between two attempts to write what the disk has refused.
const RETRY: Duration = Duration::from_secs(1);

/// The cursor blinks for this long after the last input, because every blink is a frame.
const BLINKS: Duration = Duration::from_secs(10);

/// The window's contents.
pub struct Window {
    pub(super) shell: Shell,
    pub(super) page: Page,
    chats: ChatsPanel,
    pub(super) conversation: Conversation,
    neurons: NeuronsPanel,
    pub(super) vram: VramPanel,
    vram_height: f32,
    pub(super) models: ModelsPage,
    /// Models that suit this computer. Two pages show them.
    pub(super) offers: DownloadOffers,
    preferences: PreferencesPage,
    /// True while the list of keys is shown.
    keys: bool,
    /// The side column that overlays the middle column now.
    over: Option<SideColumn>,
    /// True if a field, a menu or an overlay had the keyboard focus at the end of the previous
    /// frame. Escape then belongs to it.
    keyboard_taken: bool,
    /// Time of the last input.
    touched: Instant,
    /// True if the surface's clear colour draws the background. With a software driver this saves
    /// half a window of pixels.
    cleared: bool,
    /// Present if the processor that computes the model also draws the window.
    frame_throttle: Option<FrameThrottle>,
    /// Fills the columns. Present if the processor that computes the model also draws the window.
    ground: Option<Ground>,
    /// The watch that waits for the first frame, and the backend that should draw it.
    opening: Option<(FrameWatch, Backend)>,
    /// Wakes the context that draws the window.
    waker: Waker,
    /// The question before something is lost.
    leaving: Leaving,
}

impl Window {
    /// Creates the window on the files below `folders`. Opens `model`, otherwise the last used
    /// model, otherwise the built-in one.
    ///
    /// # Errors
    /// Returns a sentence if chats cannot be stored anywhere.
    pub fn new(ctx: &Context, folders: Folders, model: Option<ModelId>) -> Result<Self, String> {
        theme::install(ctx);
        ctx.add_plugin(SpokenText);
        let waker = Waker::of(ctx);
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
            offers: DownloadOffers::default(),
            preferences: PreferencesPage::default(),
            keys: false,
            over: None,
            keyboard_taken: false,
            touched: Instant::now(),
            cleared: false,
            frame_throttle: None,
            ground: None,
            opening: None,
            waker,
            leaving: Leaving::default(),
        })
    }

    /// Moves the contents to `ctx`, because the previous device was lost. Chats, answers and served
    /// programs continue.
    pub fn move_to(&mut self, ctx: &Context) {
        theme::install(ctx);
        ctx.add_plugin(SpokenText);
        self.shell.move_to(ctx, &self.waker);
        self.over = None;
        (self.cleared, self.ground, self.opening) = (false, None, None);
        self.throttle_frames(None);
    }

    /// Sets the throttle. With a throttle, frames are drawn at its interval during answers, so that
    /// the model gets the processor.
    pub fn throttle_frames(&mut self, throttle: Option<FrameThrottle>) {
        self.shell.chat_controller.set_deferred(throttle.is_some());
        self.frame_throttle = throttle;
    }

    /// State shared by the panels.
    pub fn shell(&self) -> &Shell {
        &self.shell
    }

    /// Remembers the backend that drew the first frame. The next start tries it first.
    fn remember_backend(&mut self) {
        if let Some((_, backend)) = self.opening.take_if(|(watch, _)| watch.has_drawn()) {
            self.shell.settings.drawing.worked = Some(backend.name().to_owned());
        }
    }

    /// Does the work of every frame, also while the window is hidden.
    pub fn tick(&mut self, ctx: &Context) {
        self.shell.chat_controller.set_keeps_words(self.shell.settings.keep_neuron_words);
        self.shell.try_changes(ctx);
        self.conversation.tick(ctx, &mut self.shell);
        self.chats.tick(ctx, &mut self.shell);
        self.models.tick(ctx, &mut self.shell);
        self.shell.choose_passage_model();
        self.vram.tick(ctx, &mut self.shell);
        self.preferences.about.tick(ctx, &mut self.shell);
        self.shell.serving.apply(&self.shell.settings.server, &self.shell.engine_handle);
        vram::keep_speed(&mut self.shell);
        self.shell.keep_settings(ctx, false);
        if self.shell.chat_controller.has_unsaved_text() {
            ctx.request_repaint_after(RETRY);
        }
    }

    /// Stops the cursor from blinking after a while: an idle window draws no frames.
    fn come_to_rest(&mut self, ctx: &Context) {
        if ctx.input(|input| !input.events.is_empty()) {
            self.touched = Instant::now();
        }
        let blinks = self.touched.elapsed() < BLINKS && !frame_pace::still(ctx, self.shell.settings.reduced_motion);
        if ctx.global_style().visuals.text_cursor.blink != blinks {
            ctx.all_styles_mut(|style| style.visuals.text_cursor.blink = blinks);
        }
    }

    /// Draws one frame.
    pub fn show(&mut self, ui: &mut Ui) {
        self.come_to_rest(ui);
        let page = self.page;
        let (palette, width) = (Palette::of(ui), ui.available_width());
        for command in command::typed(ui) {
            match command {
                // Letters typed after the key within this frame belong to the field.
                Command::SearchNeurons => self.handle_command(command, Rooms::of(width, self.over)),
                command => self.shell.queue_command(command),
            }
        }
        let rooms = Rooms::of(width, self.over);
        self.escape(ui, rooms);
        for path in drops::dropped(ui) {
            match Destination::of(&path, self.page) {
                Destination::Message => self.conversation.attach(path),
                Destination::Chats => self.chats.files.drop(ui, path),
                Destination::Library => {
                    (self.page, self.over) = (Page::Models, None);
                    self.models.add(ui, &mut self.shell, path);
                }
            }
        }
        let background = if self.cleared { Color32::TRANSPARENT } else { palette.background };
        let frame = Frame::new().fill(background).inner_margin(INSET);
        self.side_columns(ui, rooms, width);
        Panel::top("top").frame(frame).show(ui, |ui| top_bar::show(ui, &mut self.shell, self.page));
        let middle = CentralPanel::no_frame().frame(frame).show(ui, |ui| {
            self.shell.toasts.show_trouble(ui);
            self.middle(ui);
        });
        let place = |column, width| place_over(ui.content_rect(), middle.response.rect.top(), column, width);
        match self.over {
            Some(column @ SideColumn::Chats) if !rooms.chats => {
                let place = place(column, CHATS);
                over(ui, "chats over", place, palette, |ui| self.chats.show(ui, &mut self.shell));
            }
            Some(column @ SideColumn::Neurons) if !rooms.neurons && !rooms.neurons_instead && self.has_neurons() => {
                over(ui, "neurons over", place(column, NEURONS), palette, |ui| self.right(ui));
            }
            _ => {}
        }
        self.neurons.show_detached(ui, &mut self.shell);
        if self.keys {
            self.keys = !keys::modal(ui);
        }
        self.preferences.about.show_overlay(ui);
        drops::invite(ui, self.page);
        if was_copied(ui) {
            self.shell.toasts.success(COPIED);
        }
        self.shell.toasts.show(ui, middle.response.rect);
        self.carry_out_commands(ui, rooms, middle.response.rect);
        self.shell.try_changes(ui);
        if page == Page::Preferences && self.page != page {
            self.preferences.leave(&mut self.shell);
        }
        self.keyboard_taken = keyboard::is_taken(ui, &[composer_id()]);
        if self.frame_throttle.is_some() && self.shell.chat_controller.will_start_answer() {
            // The delay is needed because a request without one draws the frame twice.
            ui.request_repaint_after(Duration::from_millis(1));
        }
    }

    /// Carries out the commands of panels and keys in this frame. `middle` is the rectangle of the
    /// page.
    fn carry_out_commands(&mut self, ui: &Ui, rooms: Rooms, middle: Rect) {
        for command in self.shell.take_commands() {
            match command {
                Command::NextArea | Command::PreviousArea => {
                    let now = WindowArea::focused(ui, middle).unwrap_or(WindowArea::Composer);
                    self.lead(ui, now.neighbour(&self.areas(rooms), command == Command::NextArea));
                }
                Command::NextChat | Command::PreviousChat | Command::RenameChat | Command::DeleteChat => {
                    if command == Command::RenameChat {
                        self.show_chats(rooms);
                    }
                    self.chats.handle_command(ui, &command, &mut self.shell);
                    ui.request_repaint();
                }
                command if self.holds(&command) => {}
                command => self.handle_command(command, rooms),
            }
        }
        if let Some(command) = self.ask_before_leaving(ui) {
            self.handle_command(command, rooms);
        }
    }

    /// Handles Escape: closes a side column that overlays the others, leaves a page, or removes the
    /// card of a pinned neuron. In a chat the conversation handles Escape.
    fn escape(&mut self, ctx: &Context, rooms: Rooms) {
        let over = self.over.is_some() && !rooms.neurons_instead;
        let away = self.page != Page::Chat;
        let opened = over || away || pin_card::is_shown(ctx);
        if opened && !self.keyboard_taken && ctx.input_mut(|input| input.consume_key(Modifiers::NONE, Key::Escape)) {
            match (over, away) {
                (true, _) => self.over = None,
                (false, true) => self.page = Page::Chat,
                (false, false) => self.neurons.close_card(),
            }
            self.conversation.handle_command(&Command::Compose, &mut self.shell);
        }
    }

    /// Shows the page, with a button back to the chat on the other pages.
    fn middle(&mut self, ui: &mut Ui) {
        WindowArea::Middle.stop(
            ui,
            match self.page {
                Page::Chat => "Chat",
                Page::Models => "Models page",
                Page::Preferences => "Settings page",
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
}

/// True if a button copied a text to the clipboard in this frame. Ctrl+C in a field or on a
/// selection needs no notice.
fn was_copied(ctx: &Context) -> bool {
    let by_key = |event: &Event| matches!(event, Event::Copy | Event::Cut);
    let copied = |command: &OutputCommand| matches!(command, OutputCommand::CopyText(_) | OutputCommand::CopyImage(_));
    ctx.output(|output| output.commands.iter().any(copied)) && !ctx.input(|input| input.events.iter().any(by_key))
}

impl eframe::App for Window {
    fn logic(&mut self, ctx: &Context, _frame: &mut eframe::Frame) {
        self.remember_backend();
        if let Some(throttle) = &mut self.frame_throttle {
            throttle.before_answers(&self.shell.chat_controller);
        }
        self.tick(ctx);
        self.hold_close(ctx);
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
        self.shell.finish_changes();
        self.shell.keep_settings(&Context::default(), true);
    }
}

#[cfg(test)]
mod tests;
