//! The panel: which map, of which token, and what stands beside it.

use std::sync::{Arc, mpsc};

use eframe::egui_wgpu::RenderState;
use egui::{Align, CollapsingHeader, Layout, RichText, ScrollArea, Slider, Ui, ViewportBuilder, ViewportId};
use egui_material_icons::icons::{
    ICON_CHEVRON_LEFT, ICON_CHEVRON_RIGHT, ICON_OPEN_IN_NEW, ICON_PAUSE, ICON_POWER_SETTINGS_NEW,
};
use thermocline_engine::{
    model::NeuronIndex,
    session::{DeviceStatus, Engine},
    telemetry::neurons::{NeuronBoard, Watch},
};

use super::{
    across_chats::AcrossChats,
    atlas::PointedNeuron,
    colours, cost,
    export::Saved,
    facts::quoted,
    figures::{self, Inequality, PinAct},
    grid::View,
    history::History,
    kind::Kind,
    lens::LensReader,
    map::{Map, MapMarks, MapOptions},
    mode::{Colours, Mode},
    pin_card::{self, CardAct},
    pins::{MOST_PINS, Pins},
    playback::Playback,
    search::SearchField,
    shader::Shader,
    switching_off,
    tint::Tint,
};
use crate::{
    chat::{NeuronQuery, remembered},
    engine_handle::ModelState,
    settings::HeatmapSettings,
    ui::{
        command::{Command, Page},
        shell::Shell,
        theme::Palette,
        widgets::framed_icon_button,
    },
};

/// Heights of the map in the column, in points.
const LOW: f32 = 240.0;
const HIGH: f32 = 320.0;

/// Most neurons that a search gets of those whose words are kept across chats.
const MOST_KEPT: usize = 6;

/// The firings of a pinned neuron with the tokens' text, made when they change.
#[derive(Debug)]
struct KeptTint {
    neuron: (usize, usize),
    /// Index of the token after the last one.
    end: u64,
    tint: Arc<Tint>,
}

/// State kept per model.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) board: Arc<NeuronBoard>,
    pub(super) map: Map,
    pub(super) playback: Playback,
    history: History,
    pub(super) pins: Pins,
    lenses: LensReader,
    across: AcrossChats,
    inequality: Inequality,
    pub(super) kind: Kind,
    search: SearchField,
    /// The pinned neuron whose card is shown.
    card: Option<(usize, usize)>,
    /// The pinned neuron as it was last shown in the words of the chat.
    tint: Option<KeptTint>,
    /// The token that is marked in the chat.
    mark: Option<Tint>,
    /// Number of the chat whose tokens were looked for.
    looked_for: Option<i64>,
}

impl Watched {
    fn new(engine: &Engine, shader: Option<Shader>) -> Self {
        Watched {
            board: Arc::clone(engine.neurons()),
            map: Map::new(engine, shader),
            playback: Playback::default(),
            history: History::default(),
            pins: Pins::default(),
            lenses: LensReader::default(),
            across: AcrossChats::default(),
            inequality: Inequality::default(),
            kind: Kind::of(engine.neurons()),
            search: SearchField::default(),
            card: None,
            tint: None,
            mark: None,
            looked_for: None,
        }
    }
}

/// The map and its figures.
#[derive(Debug)]
pub struct NeuronsPanel {
    pub(super) watched: Option<Watched>,
    detached: bool,
    shader: Option<Shader>,
    saved: (mpsc::Sender<Saved>, mpsc::Receiver<Saved>),
    /// True if it was shown in this frame.
    seen: bool,
    /// True if the whole map is to be shown.
    whole: bool,
    /// True if the field for searching is to have the keyboard.
    searching: bool,
}

impl Default for NeuronsPanel {
    fn default() -> Self {
        NeuronsPanel {
            watched: None,
            detached: false,
            shader: None,
            saved: mpsc::channel(),
            seen: false,
            whole: false,
            searching: false,
        }
    }
}

/// Secondary text of the panel.
pub(super) fn small(ui: &Ui, text: impl Into<String>) -> RichText {
    RichText::new(text).size(12.0).color(Palette::of(ui).muted)
}

impl NeuronsPanel {
    /// Has large maps drawn by the window's GPU from now on, if that can.
    pub fn draw_on(&mut self, state: &RenderState) {
        self.shader = Shader::install(state);
    }

    /// Shows the whole map when it is shown next, however near it was looked at.
    pub fn show_whole(&mut self) {
        self.whole = true;
    }

    /// Gives the keyboard to the field in which neurons are searched, when it is shown next.
    pub fn focus_search(&mut self) {
        self.searching = true;
    }

    /// Shows it in its column.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell) {
        if !self.detached {
            self.contents(ui, shell, false);
            return;
        }
        ui.heading("Neurons");
        ui.label(small(ui, "The map is in a window of its own."));
        self.detached = !ui.button("Bring it back").clicked();
    }

    /// Shows it in a window of its own, if it is in one: whether or not there is a column, of which this comes after.
    pub fn show_detached(&mut self, ui: &Ui, shell: &mut Shell) {
        self.detach(ui, shell);
        // Strengths cost more to record than masks, and they are not shown now.
        if !std::mem::take(&mut self.seen)
            && let Some(engine) = shell.engine_handle.engine()
            && engine.neurons().watch() == Watch::Strength
        {
            engine.neurons().set_watch(Watch::Firing);
        }
    }

    fn detach(&mut self, ui: &Ui, shell: &mut Shell) {
        if !self.detached {
            return;
        }
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
        while let Ok(saved) = self.saved.1.try_recv() {
            if let Some(path) = shell.ok_or_show_error(saved) {
                shell.toasts.success(format!("Saved as {}", path.display()));
            }
        }
        let Some(engine) = shell.engine_handle.engine() else {
            (self.watched, shell.tint, shell.mark) = (None, None, None);
            ui.heading("Neurons");
            nothing(ui, shell);
            return;
        };
        let fresh = self.watched.take().filter(|watched| Arc::ptr_eq(&watched.board, engine.neurons()));
        let mut watched = fresh.unwrap_or_else(|| Watched::new(&engine, self.shader));
        if std::mem::take(&mut self.whole) {
            watched.map.view = View::default();
        }
        if std::mem::take(&mut self.searching) {
            watched.search.focus();
        }
        let placed = !matches!(engine.device(), DeviceStatus::Cpu { .. });
        self.head(ui, shell, &engine, &watched, detached, placed);
        let settings = &shell.settings.heatmap;
        let options = MapOptions {
            mode: watched.kind.chosen(settings, placed),
            colours: Colours::of(&settings.colours),
            by_frequency: settings.by_frequency,
            light: Palette::of(ui) == Palette::LIGHT,
            placed,
        };
        let (on, mass_percent) = (settings.on, settings.mass_percent);
        if watched.kind == Kind::Smooth {
            let mass = f32::from(mass_percent.clamp(1, 100)) / 100.0;
            if watched.board.mass() != Some(mass) {
                watched.board.set_mass(Some(mass));
            }
            engine.weigh_neurons();
        }
        watched.remember(shell, &engine);
        let watch = if on { watch_of(options.mode) } else { Watch::Off };
        if watched.board.watch() != watch {
            watched.board.set_watch(watch);
        }
        if watch == Watch::Off {
            let cost = cost::sentence(&watched.board, watch_of(options.mode));
            ui.label(small(ui, format!("Neurons are not recorded. {cost}")));
            if ui.button("Record neurons").clicked() {
                shell.settings.heatmap.on = true;
            }
        } else {
            watched.show(ui, shell, &engine, options, detached);
        }
        shell.tint = watched.tint(&engine);
        shell.mark = watched.mark.clone();
        self.watched = Some(watched);
    }

    fn head(
        &mut self,
        ui: &mut Ui,
        shell: &mut Shell,
        engine: &Engine,
        watched: &Watched,
        detached: bool,
        placed: bool,
    ) {
        ui.horizontal(|ui| {
            ui.heading("Neurons");
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                if !detached && framed_icon_button(ui, ICON_OPEN_IN_NEW, "Show the map in its own window").clicked() {
                    self.detached = true;
                }
                let settings = &mut shell.settings.heatmap;
                let name = if settings.on { "Stop recording neurons" } else { "Start recording neurons" };
                let switch = framed_icon_button(ui, ICON_POWER_SETTINGS_NEW, name);
                let watch = watch_of(watched.kind.chosen(settings, placed));
                if switch.on_hover_ui(|ui| _ = ui.label(cost::sentence(&watched.board, watch))).clicked() {
                    settings.on = !settings.on;
                }
                let save = |ui: &mut Ui| watched.save_menu(ui, &shell.engine_handle, engine, &self.saved.0);
                ui.menu_button("Save", save).response.on_hover_text("Save the map");
                ui.menu_button("Look", |ui| look(ui, settings)).response.on_hover_text("Order and colours of the map");
            });
        });
        let settings = &mut shell.settings.heatmap;
        if !settings.on {
            return;
        }
        let (kind, percent) = (watched.kind, settings.mass_percent);
        let chosen = kind.chosen(settings, placed);
        ui.horizontal_wrapped(|ui| {
            // All of them fit into the column as narrow as it usually is.
            ui.spacing_mut().item_spacing.x = 0.0;
            ui.spacing_mut().button_padding.x = 7.0;
            for mode in kind.modes(placed) {
                let title = RichText::new(mode.title()).size(12.0);
                let hover = match watch_of(mode) {
                    Watch::Strength => {
                        format!(
                            "{}. {}",
                            kind.explanation(mode, percent),
                            cost::sentence(&watched.board, Watch::Strength)
                        )
                    }
                    _ => kind.explanation(mode, percent),
                };
                if ui.selectable_label(mode == chosen, title).on_hover_text(hover).clicked() {
                    kind.choose(settings, mode);
                }
            }
        });
    }
}

/// Level of recording that a mode needs.
fn watch_of(mode: Mode) -> Watch {
    if mode == Mode::Strength { Watch::Strength } else { Watch::Firing }
}

/// Text of the panel without a model.
fn nothing(ui: &mut Ui, shell: &mut Shell) {
    let text = match shell.engine_handle.state() {
        ModelState::Remote { .. } => "Neurons of a model on another computer cannot be seen.",
        ModelState::Opening(_) => "The map appears when the model is open.",
        _ => "Open a model to see its neurons.",
    };
    ui.label(small(ui, text));
    if !matches!(shell.engine_handle.state(), ModelState::Opening(_)) && ui.button("Open a model").clicked() {
        shell.queue_command(Command::Show(Page::Models));
    }
}

fn look(ui: &mut Ui, settings: &mut HeatmapSettings) {
    ui.label(small(ui, "Order"));
    ui.radio_value(&mut settings.by_frequency, true, "Hot first, by frequency");
    ui.radio_value(&mut settings.by_frequency, false, "As in the model");
    ui.label(small(ui, "Colours"));
    let mut chosen = Colours::of(&settings.colours);
    for colours in Colours::ALL {
        if ui.radio_value(&mut chosen, colours, colours.title()).clicked() {
            settings.colours = colours.key().to_owned();
        }
    }
}

impl Watched {
    fn show(&mut self, ui: &mut Ui, shell: &mut Shell, engine: &Engine, options: MapOptions, detached: bool) {
        self.playback.follow(&self.board);
        self.history.update(&self.board, engine.telemetry().decode_rate);
        self.pins.update(&self.board);
        self.lenses.update(ui, engine, &mut self.pins);
        self.across.update(ui, shell, engine, &mut self.pins);
        let layers = self.board.shape().layers() as f32;
        let tall = ui.clip_rect().height();
        let height = if detached { (tall * 0.6).max(HIGH) } else { (layers * 4.0).clamp(LOW, HIGH).max(tall * 0.4) };
        self.navigation(ui, shell, options.placed);
        let pointed = self.search(ui, shell, engine);
        let (pins, word) = (self.pins.places(), shell.highlight.clone());
        let of_word = word.iter().flat_map(|word| &word.neurons).map(|neuron| neuron.effect.place);
        let ringed: Vec<NeuronIndex> = of_word.chain(pointed).collect();
        let marks = MapMarks { pins: &pins, ringed: &ringed };
        let clicked = self.map.show(ui, engine, options, &self.playback, marks, height);
        if let Some(pointed) = clicked {
            self.click(shell, pointed);
        }
        self.show_card(ui, shell, engine, options);
        self.sides(ui, engine, options);
        colours::legend(ui, options.mode, options.colours, self.playback.base().is_some());
        if let Some(word) = &word {
            ui.label(small(ui, format!("Ringed: the neurons that count most for {}", quoted(&word.token))));
        }
        self.threshold(ui, shell, options);
        self.hint(ui, shell, options);
        self.scrub(ui, engine);
        self.mark(engine);
        let token = self.playback.token(&self.board);
        CollapsingHeader::new("Per layer").default_open(true).show(ui, |ui| match &token {
            Some(token) => figures::layers(ui, self.board.shape(), token, options.placed),
            None => _ = ui.label(small(ui, "Send a message to see what each layer does.")),
        });
        CollapsingHeader::new("Over time").show(ui, |ui| figures::over_time(ui, &self.history, options.placed));
        CollapsingHeader::new("How unequal").show(ui, |ui| self.inequality.show(ui, &self.board, self.map.view.layer));
        self.pinned(ui, shell, engine);
    }

    /// Pins a neuron that was clicked, with its card and its firings in the words of the chat, or lets it go.
    pub(super) fn click(&mut self, shell: &mut Shell, pointed: PointedNeuron) {
        if !self.pins.toggle(&self.board, pointed.layer, pointed.neuron) {
            shell.toasts.info(format!("{MOST_PINS} neurons are pinned already: let one go first."));
        }
        let at = (pointed.layer, pointed.neuron);
        self.card = self.pins.places().contains(&at).then_some(at);
    }

    /// The search by a word. A neuron that is chosen is pinned and has its card; the one that is pointed at is returned.
    fn search(&mut self, ui: &mut Ui, shell: &mut Shell, engine: &Engine) -> Option<NeuronIndex> {
        let (playback, board) = (&self.playback, &self.board);
        let (store, model) = (&shell.store, self.across.model(shell));
        let query = |text: String| {
            let before = if playback.is_remembered() { playback.last(board, usize::MAX) } else { Vec::new() };
            // Without them the search finds what the tokens and the weights say.
            let kept = model.and_then(|model| store.neurons_of_word(model, &text, MOST_KEPT).ok()).unwrap_or_default();
            NeuronQuery { text, before, kept }
        };
        let response = self.search.show(ui, engine, query);
        if let Some(NeuronIndex { layer, neuron }) = response.chosen {
            match self.pins.places().contains(&(layer, neuron)) {
                true => self.card = Some((layer, neuron)),
                false => self.click(shell, PointedNeuron { layer, neuron, crowd: 1 }),
            }
            if self.map.position(layer, neuron).is_none() {
                self.map.view = View::default();
            }
        }
        response.pointed
    }

    /// Where on the map one is, when it is not everywhere.
    fn navigation(&mut self, ui: &mut Ui, shell: &mut Shell, placed: bool) {
        let layers = self.board.shape().layers();
        if self.map.view == View::default() {
            return;
        }
        ui.horizontal_wrapped(|ui| {
            if let Some(layer) = self.map.view.layer {
                let before = ui
                    .add_enabled_ui(layer > 0, |ui| framed_icon_button(ui, ICON_CHEVRON_LEFT, "Layer above").clicked());
                ui.label(RichText::new(format!("Layer {layer}")).strong());
                let more = layer + 1 < layers;
                let after =
                    ui.add_enabled_ui(more, |ui| framed_icon_button(ui, ICON_CHEVRON_RIGHT, "Layer below").clicked());
                if before.inner {
                    self.map.view = View::of_layer(layer - 1);
                }
                if after.inner {
                    self.map.view = View::of_layer(layer + 1);
                }
            }
            if ui.button("Whole map").clicked() {
                self.map.view = View::default();
            }
            if let Some(layer) = self.map.view.layer {
                self.offer_without_cold(ui, shell, layer, placed);
            }
        });
    }

    /// The tokens of the chat from before the model was opened, while it has computed none.
    fn remember(&mut self, shell: &mut Shell, engine: &Engine) {
        if self.board.latest().is_some() || self.looked_for == shell.shown {
            return;
        }
        self.looked_for = shell.shown;
        let (Some(number), ModelState::Ready { model, .. }) = (shell.shown, shell.engine_handle.state()) else {
            self.playback.remember(Vec::new());
            return;
        };
        let read = |shell: &Shell| match shell.store.find_chat(number)? {
            Some(chat) => shell.store.neuron_map(chat.id, &model.key()),
            None => Ok(None),
        };
        let read = read(shell);
        let bytes = shell.ok_or_show_error(read).flatten().unwrap_or_default();
        let vocab = engine.tokenizer().vocab_len();
        self.playback.remember(remembered::read(&bytes, self.board.shape(), vocab));
    }

    /// The card of the neuron that was pinned last, at its dot.
    fn show_card(&mut self, ui: &Ui, shell: &mut Shell, engine: &Engine, options: MapOptions) {
        let Some(at) = self.card.filter(|at| self.pins.places().contains(at)) else { return };
        let Some(dot) = self.map.position(at.0, at.1).filter(|dot| ui.clip_rect().contains(*dot)) else { return };
        let token = self.playback.token(&self.board);
        let facts = self.map.facts(engine, token.as_ref(), at.0, at.1, options.placed);
        let Some(pin) = self.pins.all().iter().find(|pin| (pin.layer, pin.neuron) == at) else { return };
        let words = figures::favourites(engine, pin);
        let tints = self.pins.tinting().is_some_and(|pin| (pin.layer, pin.neuron) == at);
        match pin_card::show(ui, dot, &facts, &words, pin, tints) {
            Some(CardAct::Close) => self.card = None,
            Some(CardAct::Unpin) => {
                self.pins.toggle(&self.board, at.0, at.1);
                self.card = None;
            }
            Some(CardAct::Tint) => self.pins.toggle_tint(at.0, at.1),
            Some(CardAct::Without) => {
                let neurons = vec![NeuronIndex { layer: at.0, neuron: at.1 }];
                shell.queue_command(switching_off::without(format!("Without {}", pin.name), neurons));
            }
            None => {}
        }
    }

    /// Marks the token that is held in the chat.
    fn mark(&mut self, engine: &Engine) {
        let held = self.playback.token(&self.board).filter(|_| !self.playback.is_live());
        let name = held.as_ref().map(|token| format!("token {}", token.index));
        if self.mark.as_ref().map(|mark| &mark.name) != name.as_ref() {
            let ids = self.playback.ids(&self.board);
            let bytes = |token| engine.tokenizer().token_bytes(token);
            self.mark = held.map(|token| Tint::of_token(&ids, token.index, bytes));
        }
    }

    /// Controls that choose the token shown.
    fn scrub(&mut self, ui: &mut Ui, engine: &Engine) {
        let range = self.playback.range(&self.board);
        let Some(token) = self.playback.token(&self.board).filter(|_| !range.is_empty()) else { return };
        let palette = Palette::of(ui);
        ui.horizontal(|ui| {
            if framed_icon_button(ui, ICON_CHEVRON_LEFT, "Token before").clicked() {
                self.playback.step(&self.board, -1);
            }
            if self.playback.is_live() {
                if framed_icon_button(ui, ICON_PAUSE, "Hold this token").clicked() {
                    self.playback.hold(&self.board, token.index);
                }
            } else if framed_icon_button(ui, ICON_CHEVRON_RIGHT, "Token after").clicked() {
                self.playback.step(&self.board, 1);
            }
            let mut at = token.index;
            ui.spacing_mut().slider_width = (ui.available_width() - 80.0).max(80.0);
            let slider = Slider::new(&mut at, range.start..=range.end - 1).show_value(false);
            let slider = ui.add(slider);
            slider.widget_info(|| egui::WidgetInfo::slider(true, at as f64, "Token to look at"));
            if slider.changed() {
                self.playback.hold(&self.board, at);
            }
            let live = self.playback.is_live();
            let text = RichText::new("Live").color(palette.text);
            if ui.selectable_label(live, text).on_hover_text("Follow the latest token").clicked() {
                self.playback.go_live();
            }
        });
        ui.horizontal(|ui| {
            let word = engine.tokenizer().decode(&[token.token], false);
            let kind = if token.decoded { "answer" } else { "prompt" };
            let text = format!("token {} {}, {kind}", token.index, quoted(&word));
            ui.label(small(ui, text));
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                let base = self.playback.base().map(|base| base.index);
                let text = base.map_or("Compare".to_owned(), |index| format!("Compared with token {index}"));
                let button = ui.selectable_label(base.is_some(), RichText::new(text).size(12.0));
                let hover = "Show how the firings of this token, and of those you go to, differ from those of the token before it";
                if button.on_hover_text(hover).clicked() {
                    self.playback.compare(&self.board, base.is_none());
                }
            });
        });
    }

    fn pinned(&mut self, ui: &mut Ui, shell: &mut Shell, engine: &Engine) {
        CollapsingHeader::new("Pinned neurons").default_open(true).show(ui, |ui| {
            if self.pins.all().is_empty() {
                ui.label(small(ui, "Click a neuron on the map to pin it. Double-click to see its layer alone."));
            }
            let mut action = None;
            let tinting = self.pins.tinting().map(|pin| (pin.layer, pin.neuron));
            for pin in self.pins.all() {
                let place = (pin.layer, pin.neuron);
                let (frequency, hot) = (self.map.frequency(place.0, place.1), self.map.is_hot(place.0, place.1));
                if let Some(act) = figures::pinned(ui, engine, pin, frequency, hot, tinting == Some(place)) {
                    action = Some((place, act));
                }
            }
            self.offer_without_pins(ui, shell);
            match action {
                Some(((layer, neuron), PinAct::Unpin)) => _ = self.pins.toggle(&self.board, layer, neuron),
                Some(((layer, neuron), PinAct::Tint)) => self.pins.toggle_tint(layer, neuron),
                None => {}
            }
        });
    }

    /// The neuron that is shown in the words of the chat.
    fn tint(&mut self, engine: &Engine) -> Option<Arc<Tint>> {
        let pin = self.pins.tinting()?;
        let (neuron, end) = ((pin.layer, pin.neuron), pin.end());
        let hot = self.map.is_hot(pin.layer, pin.neuron);
        let same = |kept: &&KeptTint| kept.neuron == neuron && kept.end == end && kept.tint.hot == hot;
        if let Some(kept) = self.tint.as_ref().filter(same) {
            return Some(Arc::clone(&kept.tint));
        }
        let tint = Arc::new(Tint::of(pin, hot, |token| engine.tokenizer().token_bytes(token)));
        self.tint = Some(KeptTint { neuron, end, tint: Arc::clone(&tint) });
        Some(tint)
    }
}
