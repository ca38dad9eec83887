//! The neurons of an open model: the map with its marks, the held token, pinned neurons and their
//! cards.

use std::sync::Arc;

use egui::{Align, CollapsingHeader, Layout, Pos2, RichText, Slider, Ui};
use egui_material_icons::icons::{ICON_CHEVRON_LEFT, ICON_CHEVRON_RIGHT, ICON_PAUSE};
use thermocline_engine::{
    model::NeuronIndex,
    session::{DeviceStatus, Engine},
    telemetry::neurons::{NeuronBoard, PicturePatch, TokenTrace},
};

use super::{
    across_chats::AcrossChats,
    atlas::PointedNeuron,
    colours,
    facts::{self, quoted},
    figures::{self, Inequality},
    grid::View,
    history::History,
    kind::NeuronKind,
    lens::LensReader,
    map::{Map, MapMarks, MapOptions},
    pin_card::{self, CardPlace, PinAct},
    pins::{MOST_PINS, Pins},
    playback::Playback,
    search::SearchField,
    shader::Shader,
    switching_off,
    tint::Tint,
};
use crate::shell::Shell;
use thermocline_chats::{
    chat::{NeuronQuery, remembered},
    store::ChatId,
};
use thermocline_host::engine_handle::ModelState;
use thermocline_rich_text::{
    theme::Palette,
    widgets::{framed_icon_button, muted},
};

/// Heights of the map in the column, in points, and the fraction of the column that the map uses.
const LOWEST: f32 = 140.0;
const LOW: f32 = 240.0;
const HIGH: f32 = 320.0;
const FRACTION: f32 = 0.4;

/// Maximum number of search results from the words stored across chats.
const MOST_KEPT: usize = 6;

/// The tint of a pinned neuron. It is made again when an input changes.
#[derive(Debug)]
struct KeptTint {
    neuron: NeuronIndex,
    /// Index of the token after the last one of the tint.
    end: u64,
    tint: Arc<Tint>,
}

/// The state for one model.
pub struct WatchedNeurons {
    pub board: Arc<NeuronBoard>,
    pub map: Map,
    pub playback: Playback,
    history: History,
    pub pins: Pins,
    lenses: LensReader,
    across: AcrossChats,
    inequality: Inequality,
    pub kind: NeuronKind,
    pub search: SearchField,
    /// The pinned neuron whose card is shown.
    pub card: Option<NeuronIndex>,
    /// The current tint.
    tint: Option<KeptTint>,
    /// The token that is marked in the chat.
    pub mark: Option<Tint>,
    /// Number of the chat whose tokens are shown. `Some(None)` for a new chat.
    chat: Option<Option<i64>>,
}

impl WatchedNeurons {
    /// Creates the state for an open model. `shader` draws large maps.
    pub fn new(engine: &Engine, shader: Option<Shader>) -> Self {
        WatchedNeurons {
            board: Arc::clone(engine.neurons()),
            map: Map::new(engine, shader),
            playback: Playback::default(),
            history: History::default(),
            pins: Pins::default(),
            lenses: LensReader::default(),
            across: AcrossChats::default(),
            inequality: Inequality::default(),
            kind: NeuronKind::of(engine.neurons()),
            search: SearchField::default(),
            card: None,
            tint: None,
            mark: None,
            chat: None,
        }
    }

    /// Shows the map and everything below it.
    pub fn show(&mut self, ui: &mut Ui, shell: &mut Shell, engine: &Engine, options: MapOptions, detached: bool) {
        let shown = shell.shown;
        let owner = |session| shell.chat_controller.chat_of(session).map(ChatId::number);
        self.playback.follow(&self.board, |session| owner(session).is_some_and(|chat| Some(chat) != shown));
        self.history.update(&self.board, engine.telemetry().decode_rate);
        self.pins.update(&self.board);
        self.lenses.update(ui, engine, &mut self.pins);
        self.across.update(ui, shell, engine, &mut self.pins);
        let height = map_height(self.board.shape().layers(), ui.clip_rect().height(), detached);
        self.navigation(ui, shell, options.placed);
        let pointed = self.search(ui, shell, engine);
        let (pins, highlight) = (self.pins.places(), shell.marks.highlight.clone());
        let highlighted = highlight.iter().flat_map(|of| of.places.iter().copied());
        let ringed: Vec<NeuronIndex> = highlighted.chain(pointed).collect();
        let marks = MapMarks { pins: &pins, ringed: &ringed, card: self.card };
        let clicked = self.map.show(ui, engine, options, &self.playback, marks, height);
        if let Some(PointedNeuron { place, .. }) = clicked {
            self.click(shell, place);
        }
        let rings: Vec<Pos2> = ringed.iter().filter_map(|place| self.map.position(*place)).collect();
        self.show_card(ui, shell, engine, options, &rings);
        self.sides(ui, engine, options);
        let (comparing, by_neuron) = (self.playback.base().is_some(), self.map.is_by_neuron());
        colours::legend(ui, options.mode, options.colours, comparing, by_neuron);
        if let Some(highlight) = &highlight {
            muted(ui, format!("Circled: the neurons that {}", highlight.work));
        }
        self.threshold(ui, shell, options);
        self.hint(ui, shell, options);
        self.scrub(ui, engine);
        self.mark(engine);
        self.pinned(ui, shell, engine, options);
        let token = self.playback.token();
        CollapsingHeader::new("Per layer").default_open(true).show(ui, |ui| match &token {
            Some(token) => figures::layers(ui, self.board.shape(), token, options.placed),
            None => _ = muted(ui, "Send a message to see what each layer does."),
        });
        CollapsingHeader::new("Over time").show(ui, |ui| figures::over_time(ui, &self.history, options.placed));
        CollapsingHeader::new("Inequality").show(ui, |ui| self.inequality.show(ui, &self.board, self.map.view.layer));
    }

    /// Pins a clicked neuron, shows its card and tints the chat's words. Unpins a pinned neuron.
    pub fn click(&mut self, shell: &mut Shell, place: NeuronIndex) {
        if !self.pins.toggle(&self.board, place) {
            shell.toasts.info(format!("{MOST_PINS} neurons are already pinned. Unpin one first."));
        }
        self.card = self.pins.places().contains(&place).then_some(place);
    }

    /// Shows the search. A chosen neuron is pinned and its card shown. Returns the neuron that is
    /// pointed at.
    fn search(&mut self, ui: &mut Ui, shell: &mut Shell, engine: &Engine) -> Option<NeuronIndex> {
        let (playback, board) = (&self.playback, &self.board);
        let (store, model) = (&shell.store, self.across.model(shell));
        let query = |text: String| {
            let before = if playback.is_remembered() { playback.last(board, usize::MAX) } else { Vec::new() };
            // Without stored words, the search uses only the tokens and the weights.
            let kept = model.and_then(|model| store.neurons_of_word(model, &text, MOST_KEPT).ok()).unwrap_or_default();
            NeuronQuery { text, before, kept }
        };
        let response = self.search.show(ui, engine, query);
        if let Some(place) = response.chosen {
            match self.pins.places().contains(&place) {
                true => self.card = Some(place),
                false => self.click(shell, place),
            }
            if self.map.position(place).is_none() {
                self.map.view = View::default();
            }
        }
        response.pointed
    }

    /// Shows which part of the map is visible, with a button back to the whole map.
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

    /// Switches to the tokens of the shown chat: the tokens that the model just computed, or the
    /// tokens stored with the chat.
    pub fn follow_chat(&mut self, shell: &mut Shell, engine: &Engine) {
        if self.chat == Some(shell.shown) {
            return;
        }
        self.chat = Some(shell.shown);
        let (board, shown) = (Arc::clone(&self.board), shell.shown);
        let kept = self.kept_tokens(shell, engine);
        let owner = |session| shell.chat_controller.chat_of(session).map(ChatId::number);
        self.playback.show_chat(&board, |session| owner(session) == shown, kept);
    }

    /// The tokens stored with the shown chat.
    fn kept_tokens(&self, shell: &mut Shell, engine: &Engine) -> Vec<TokenTrace> {
        let (Some(number), ModelState::Ready { model, .. }) = (shell.shown, shell.engine_handle.state()) else {
            return Vec::new();
        };
        let read = |shell: &Shell| match shell.store.find_chat(number)? {
            Some(chat) => shell.store.neuron_map(chat.id, &model.key()),
            None => Ok(None),
        };
        let read = read(shell);
        let bytes = shell.toasts.check(read).flatten().unwrap_or_default();
        remembered::read(&bytes, self.board.shape(), engine.tokenizer().vocab_len())
    }

    /// Shows the card of the last pinned neuron at its dot. `rings` are positions that it should
    /// not cover.
    fn show_card(&mut self, ui: &Ui, shell: &mut Shell, engine: &Engine, options: MapOptions, rings: &[Pos2]) {
        let Some(at) = self.card.filter(|at| self.pins.places().contains(at)) else { return };
        let Some(dot) = self.map.position(at).filter(|dot| ui.clip_rect().contains(*dot)) else { return };
        let token = self.playback.token();
        let facts = self.map.facts(engine, token.as_ref(), PointedNeuron { place: at, crowd: 1 }, options);
        let Some(pin) = self.pins.all.iter().find(|pin| pin.place == at) else { return };
        let words = figures::favourites(engine, pin);
        let tints = self.pins.tinting().is_some_and(|pin| pin.place == at);
        if let Some(act) = pin_card::show(ui, CardPlace { dot, rings }, &facts, &words, pin, tints) {
            self.act(shell, at, act);
        }
    }

    /// Carries out an action on the pinned neuron at `place`.
    fn act(&mut self, shell: &mut Shell, place: NeuronIndex, act: PinAct) {
        match act {
            PinAct::Close => self.card = None,
            PinAct::Unpin => {
                self.pins.toggle(&self.board, place);
                self.card = self.card.filter(|card| *card != place);
            }
            PinAct::Tint => self.pins.toggle_tint(place),
            PinAct::Without => {
                let title = format!("Without {}", facts::name(self.board.shape(), place));
                shell.queue_command(switching_off::without(title, vec![place]));
            }
        }
    }

    /// Marks the held token in the chat.
    fn mark(&mut self, engine: &Engine) {
        let held = self.playback.token().filter(|_| !self.playback.is_live());
        let name = held.as_ref().map(|token| format!("token {}", token.index));
        if self.mark.as_ref().map(|mark| &mark.name) != name.as_ref() {
            let ids = self.playback.ids(&self.board);
            let bytes = |token| engine.tokenizer().token_bytes(token);
            self.mark = held.map(|token| Tint::of_held(&token, &ids, bytes));
        }
    }

    /// Shows the controls that choose the token.
    fn scrub(&mut self, ui: &mut Ui, engine: &Engine) {
        let range = self.playback.range(&self.board);
        let Some(token) = self.playback.token().filter(|_| !range.is_empty()) else { return };
        let palette = Palette::of(ui);
        ui.horizontal(|ui| {
            if framed_icon_button(ui, ICON_CHEVRON_LEFT, "Token before").clicked() {
                self.playback.step_back(&self.board);
            }
            if self.playback.is_live() {
                if framed_icon_button(ui, ICON_PAUSE, "Hold this token").clicked() {
                    self.playback.hold(&self.board, token.index);
                }
            } else if framed_icon_button(ui, ICON_CHEVRON_RIGHT, "Token after").clicked() {
                self.playback.step_on(&self.board);
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
            let kind = if token.decoded { "answer" } else { "prompt" };
            let what = match token.patch.map(PicturePatch::place) {
                Some([row, column]) => format!("row {row}, column {column} of a picture"),
                None => quoted(&engine.tokenizer().decode(&[token.token], false)),
            };
            let text = format!("token {} {what}, {kind}", token.index);
            muted(ui, text);
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                let base = self.playback.base().map(|base| base.index);
                let text = base.map_or("Compare".to_owned(), |index| format!("Compared with token {index}"));
                let button = ui.selectable_label(base.is_some(), RichText::new(text).size(12.0));
                let hover = "Shows how the firing neurons of this token and of every token you select differ from those of \
                    the token before it";
                if button.on_hover_text(hover).clicked() {
                    self.playback.compare(&self.board, base.is_none());
                }
            });
        });
    }

    fn pinned(&mut self, ui: &mut Ui, shell: &mut Shell, engine: &Engine, options: MapOptions) {
        CollapsingHeader::new("Pinned neurons").default_open(true).show(ui, |ui| {
            if self.pins.all.is_empty() {
                muted(ui, "Click a neuron on the map to pin it. Double-click to see its layer alone.");
            }
            let mut action = None;
            let tinting = self.pins.tinting().map(|pin| pin.place);
            for pin in &self.pins.all {
                let (place, tints) = (self.map.place(engine, pin.place, options), tinting == Some(pin.place));
                if let Some(act) = figures::pinned(ui, engine, pin, &self.map.atlas, place, tints) {
                    action = Some((pin.place, act));
                }
            }
            self.offer_without_pins(ui, shell);
            if let Some((place, act)) = action {
                self.act(shell, place, act);
            }
        });
    }

    /// The tint of the pinned neuron, if it tints the chat's words.
    pub fn tint(&mut self, engine: &Engine) -> Option<Arc<Tint>> {
        let pin = self.pins.tinting()?;
        let (neuron, end) = (pin.place, pin.next);
        let hot = self.map.atlas.is_hot(neuron.layer, neuron.neuron);
        let same = |kept: &&KeptTint| kept.neuron == neuron && kept.end == end && kept.tint.hot == hot;
        if let Some(kept) = self.tint.as_ref().filter(same) {
            return Some(Arc::clone(&kept.tint));
        }
        let tint = Arc::new(Tint::of(pin, hot, |token| engine.tokenizer().token_bytes(token)));
        self.tint = Some(KeptTint { neuron, end, tint: Arc::clone(&tint) });
        Some(tint)
    }
}

/// True if a device computes the model, so that neurons may be in VRAM.
pub fn is_placed(engine: &Engine) -> bool {
    !matches!(engine.device(), DeviceStatus::Cpu { .. })
}

/// Height of the map of a model with `layers` layers, in a column with `tall` visible points. The
/// timeline and the pinned neurons must stay visible below it. `detached` means a window of its
/// own.
fn map_height(layers: usize, tall: f32, detached: bool) -> f32 {
    match detached {
        true => (tall * 0.6).max(HIGH),
        false if tall * FRACTION < LOW => (tall * FRACTION).max(LOWEST),
        false => (layers as f32 * 4.0).clamp(LOW, HIGH).max(tall * FRACTION),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_column_has_a_low_map() {
        assert_eq!(map_height(6, 1200.0, false), 480.0);
        assert_eq!((map_height(6, 610.0, false), map_height(80, 610.0, false)), (244.0, 320.0));
        assert_eq!((map_height(80, 400.0, false), map_height(6, 100.0, false)), (160.0, LOWEST));
        assert_eq!((map_height(6, 400.0, true), map_height(6, 1000.0, true)), (HIGH, 600.0));
    }
}
