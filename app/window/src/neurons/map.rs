//! The map as it is drawn: dots from a texture or a shader, the line between hot and cold neurons,
//! and what is under the pointer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use egui::{
    Align2, Color32, FontId, Pos2, Rect, Response, RichText, Role, Sense, Stroke, TextureHandle, TextureOptions, Ui,
    Vec2, WidgetInfo,
};
use thermocline_engine::{
    model::NeuronIndex,
    placement::Resident,
    session::{Engine, FrequencySource},
    telemetry::neurons::{NeuronShape, TokenTrace},
};

use super::{
    atlas::{Atlas, LayerFrequencies, MapLayout, PointedNeuron},
    colours, expert_borders,
    facts::{self, Facts, Frequencies, NeuronPlace},
    grid::{Grid, View},
    layer_values::Fold,
    map_snapshot::MapSnapshot,
    mode::{Colours, Mode},
    playback::Playback,
    shader::{self, Shader},
};
use thermocline_rich_text::{frame_pace::FRAME, theme::Palette, widgets::small};

/// Time per frame for work that takes longer than a frame.
const SLICE: Duration = Duration::from_millis(1);

/// Interval at which a picture of all tokens so far is drawn again.
const PAUSE: Duration = Duration::from_millis(250);

/// Interval at which neurons are sorted again, if the engine is still counting firings.
const RESORT: Duration = Duration::from_secs(5);

/// Radius of the rings around a word's neurons, in points. They lie outside the rings of pinned
/// neurons.
pub const RING: f32 = 8.0;

/// Width of the layers' labels, in points.
const GUTTER: f32 = 32.0;

/// The display options of the map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MapOptions {
    /// Mode of the map.
    pub mode: Mode,
    /// Colour table of the map.
    pub colours: Colours,
    /// True if neurons are ordered by frequency. False for the model's order.
    pub by_frequency: bool,
    /// True on a light background.
    pub light: bool,
    /// True if a device computes, so that neurons may be in VRAM.
    pub placed: bool,
    /// True if the model is larger than its RAM, so that neurons may be only on disk.
    pub paged: bool,
}

impl MapOptions {
    /// The colours of the window's theme.
    pub fn palette(self) -> Palette {
        if self.light { Palette::LIGHT } else { Palette::DARK }
    }
}

/// Neurons that are marked on the map.
#[derive(Debug, Clone, Copy, Default)]
pub struct MapMarks<'a> {
    /// The pinned neurons.
    pub pins: &'a [NeuronIndex],
    /// The neurons of the chosen word of an answer, and the neuron pointed at in a list.
    pub ringed: &'a [NeuronIndex],
    /// The neuron whose card is shown.
    pub card: Option<NeuronIndex>,
}

/// The inputs of the drawn picture.
#[derive(Debug, Clone, Copy, PartialEq)]
struct DrawnMap {
    options: MapOptions,
    token: Option<u64>,
    base: Option<u64>,
}

/// The map of one model.
#[derive(Default)]
pub struct Map {
    /// The visible part.
    pub view: View,
    /// The data of the map.
    pub atlas: Atlas,
    /// True if the shader draws the dots. Otherwise they are a texture.
    shaded: bool,
    /// The texture of the dots and its layout.
    texture: Option<(TextureHandle, MapLayout)>,
    drawn: Option<DrawnMap>,
    drawn_at: Option<Instant>,
    /// True while a picture that takes several frames is incomplete.
    unfinished: bool,
    resident: Option<Arc<Resident>>,
    sorted: Option<(Instant, Option<u64>)>,
    counting: bool,
    /// The rectangle of the dots in the latest frame.
    rect: Option<Rect>,
    /// True if layers were drawn grey, because other neurons were in VRAM at that token.
    pub greyed: bool,
}

impl Map {
    /// Creates an empty map of a model. `shader` draws it if that is faster.
    pub fn new(engine: &Engine, shader: Option<Shader>) -> Self {
        let shape = engine.neurons().shape();
        let mut map = Map { atlas: Atlas::new(shape), ..Map::default() };
        map.draw_anew(shape, shader);
        map
    }

    /// Drops the picture, because its egui context is gone. `shader` draws the next pictures if
    /// that is faster for a model of this `shape`.
    pub fn draw_anew(&mut self, shape: &NeuronShape, shader: Option<Shader>) {
        self.shaded = shader.is_some_and(|shader| shader.pays(shape) && shader.holds(&self.atlas.plane));
        (self.texture, self.drawn, self.drawn_at, self.unfinished) = (None, None, None, false);
    }

    /// True if every visible dot is one neuron.
    pub fn is_by_neuron(&self) -> bool {
        let MapLayout { view, grid, .. } = self.atlas.layout;
        grid.is_by_neuron(view, &self.atlas.shape)
    }

    /// True if there is a picture to save.
    pub fn is_drawn(&self) -> bool {
        self.drawn.is_some()
    }

    /// The current picture.
    fn image(&self) -> Option<egui::ColorImage> {
        let DrawnMap { options, base, .. } = self.drawn?;
        let table = colours::table(options.mode, options.colours, base.is_some(), &options.palette());
        let levels = self.atlas.levels(Fold::of(options.mode, base.is_some()));
        Some(colours::image(&levels, self.atlas.layout.grid.columns, &table))
    }

    /// A copy of the current map that can be drawn elsewhere.
    pub fn snapshot(&self) -> Option<MapSnapshot> {
        let DrawnMap { options, base, .. } = self.drawn?;
        Some(MapSnapshot { atlas: self.atlas.clone(), options, comparing: base.is_some() })
    }

    /// Shows the map, `height` points high, with `marks`. Returns the clicked neuron.
    pub fn show(
        &mut self,
        ui: &mut Ui,
        engine: &Engine,
        options: MapOptions,
        playback: &Playback,
        marks: MapMarks<'_>,
        height: f32,
    ) -> Option<PointedNeuron> {
        let shape = engine.neurons().shape();
        let token = playback.token();
        let size = Vec2::new(ui.available_width(), height);
        let (whole, response) = ui.allocate_exact_size(size, Sense::click_and_drag());
        let rect = Rect::from_min_max(Pos2::new(whole.left() + GUTTER, whole.top()), whole.max);
        response.widget_info(|| {
            let tiers = (options.mode == Mode::Tiers).then(|| facts::tiers(&self.atlas)).flatten();
            let text = format!(
                "Map of neurons, {}: {}",
                options.mode.title(),
                tiers.unwrap_or_else(|| facts::summary(shape, token.as_ref(), options.placed))
            );
            WidgetInfo::labeled(Role::Image, true, text)
        });
        self.navigate(ui, &response, rect);
        if ui.is_rect_visible(whole) {
            self.refresh(ui, engine, options, playback, token.as_ref(), rect);
            self.paint(ui, rect, marks, token.as_ref());
        }
        self.rect = Some(rect);
        let of_token = options.mode.is_of_token();
        let otherwise = |layer| token.as_ref().is_some_and(|token| self.atlas.was_placed_otherwise(token, layer));
        self.greyed = of_token && self.atlas.shown().any(otherwise);
        let relative = |at: Pos2| ((at.x - rect.left()) / rect.width(), (at.y - rect.top()) / rect.height());
        let lit = |layer, neuron| token.as_ref().is_some_and(|t| facts::is_lit(shape, options.mode, t, layer, neuron));
        let pointed = response.hover_pos().map(relative).and_then(|(x, y)| self.atlas.at(x, y, lit));
        let clicked = response.clicked() || response.double_clicked();
        if let Some(pointed) = pointed {
            if response.double_clicked() {
                self.view =
                    if self.view.layer.is_some() { View::default() } else { View::of_layer(pointed.place.layer) };
            }
            let facts = self.facts(engine, token.as_ref(), pointed, options);
            // The card already shows these facts, and a tooltip would cover it.
            if marks.card != Some(pointed.place) {
                response.on_hover_ui_at_pointer(|ui| facts_ui(ui, &facts));
            }
        }
        pointed.filter(|_| clicked)
    }

    /// Facts about a neuron at a token, as shown for the neuron under the pointer.
    pub fn facts(
        &self,
        engine: &Engine,
        token: Option<&TokenTrace>,
        pointed: PointedNeuron,
        options: MapOptions,
    ) -> Facts {
        let place = self.place(engine, pointed.place, options);
        let (atlas, NeuronIndex { layer, neuron }) = (&self.atlas, pointed.place);
        let chosen = atlas.shape.member(layer, neuron).and_then(|(expert, _)| atlas.chosen(layer, expert));
        let frequencies = Frequencies { fires: atlas.frequency(layer, neuron), chosen };
        Facts::of(&atlas.shape, token, pointed, frequencies, place)
    }

    /// Where a neuron's weights are now. `None` if all weights are in RAM.
    pub fn place(&self, engine: &Engine, place: NeuronIndex, options: MapOptions) -> Option<NeuronPlace> {
        let (NeuronIndex { layer, neuron }, shape) = (place, &self.atlas.shape);
        let unit = shape.member(layer, neuron).map_or(neuron, |(expert, _)| expert);
        // Every token reads the shared expert, so it stays in RAM.
        let is_shared = shape.experts(layer) > 0 && unit >= shape.experts(layer);
        match () {
            () if !options.placed && !options.paged => None,
            () if self.atlas.is_hot(layer, neuron) => Some(NeuronPlace::Vram),
            () if !is_shared && engine.model().is_in_ram(layer, unit) == Some(false) => Some(NeuronPlace::Disk),
            () => Some(NeuronPlace::Ram),
        }
    }

    /// The position of a neuron's dot on the screen, if it is visible.
    pub fn position(&self, place: NeuronIndex) -> Option<Pos2> {
        self.rect.and_then(|rect| self.position_on(rect, place))
    }

    /// The position of a neuron's dot on a map drawn on `rect`.
    fn position_on(&self, rect: Rect, NeuronIndex { layer, neuron }: NeuronIndex) -> Option<Pos2> {
        let (x, y) = self.atlas.find(layer, neuron)?;
        Some(Pos2::new(rect.left() + x * rect.width(), rect.top() + y * rect.height()))
    }

    fn navigate(&mut self, ui: &Ui, response: &Response, rect: Rect) {
        if let Some(at) = response.hover_pos() {
            let factor = ui.input(|input| input.zoom_delta());
            if factor != 1.0 {
                self.view.zoom(factor, ((at.x - rect.left()) / rect.width()).clamp(0.0, 1.0));
            }
        }
        if response.dragged() && self.view.is_close() {
            self.view.pan(-response.drag_delta().x / rect.width());
        }
    }

    /// Updates everything that has changed.
    fn refresh(
        &mut self,
        ui: &Ui,
        engine: &Engine,
        options: MapOptions,
        playback: &Playback,
        token: Option<&TokenTrace>,
        rect: Rect,
    ) {
        let shape = engine.neurons().shape();
        let index = token.map(|token| token.index);
        let limit = ui.input(|input| input.max_texture_side);
        let grid = Grid::of_view(self.view, shape, rect.size() * ui.pixels_per_point(), limit);
        let mut anew = self.atlas.lay_out(MapLayout { view: self.view, grid, by_frequency: options.by_frequency });

        let resident = engine.resident();
        let same = match (&self.resident, &resident) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (None, None) => true,
            _ => false,
        };
        if !same {
            let hot = |layer| resident.as_ref().and_then(|resident| resident.hot.get(layer)).cloned();
            anew |= self.atlas.set_hot(|layer| hot(layer).unwrap_or_default());
            self.resident = resident;
        }
        let due = self.sorted.is_none_or(|(at, token)| at.elapsed() >= RESORT && token != index);
        if due && self.counting && playback.is_live() {
            self.atlas.outdate(|_| true);
            self.sorted = Some((Instant::now(), index));
        }
        let counting = std::cell::Cell::new(self.counting || self.sorted.is_none());
        let (changed, left) = self.atlas.sort(SLICE, |layer| {
            let known = engine.frequencies(layer);
            let profiled = known.as_ref().is_some_and(|known| known.source == FrequencySource::Profile);
            counting.set(!profiled && shape.neurons(layer) > 0 || counting.get() && shape.neurons(layer) == 0);
            known.map(|known| LayerFrequencies { neurons: known.values, experts: known.experts })
        });
        self.counting = counting.get();
        self.sorted.get_or_insert((Instant::now(), index));
        anew |= !changed.is_empty();

        let drawn = DrawnMap { options, token: index, base: playback.base().map(|base| base.index) };
        let of_token = options.mode.is_of_token() || drawn.base.is_some();
        let other = self.drawn.is_none_or(|was| DrawnMap { token: index, ..was } != drawn);
        let new = self.drawn.is_none_or(|was| was != drawn);
        let pause = if of_token { FRAME } else { PAUSE };
        let rested = self.drawn_at.map_or(pause, |at| at.elapsed());
        let now = anew || other || self.unfinished || (new && (rested >= pause || !playback.is_live()));
        if now {
            self.draw(engine, options, playback, token);
            self.drawn = Some(drawn);
            self.drawn_at = Some(Instant::now());
        }
        let layout = self.atlas.layout;
        if !self.shaded
            && (now || self.texture.as_ref().is_none_or(|(_, of)| *of != layout))
            && let Some(image) = self.image()
        {
            match &mut self.texture {
                Some((texture, of)) => {
                    texture.set(image, TextureOptions::NEAREST);
                    *of = layout;
                }
                None => self.texture = Some((ui.load_texture("neurons", image, TextureOptions::NEAREST), layout)),
            }
        }
        if left || self.unfinished {
            ui.request_repaint();
        } else if new && !now {
            ui.request_repaint_after(pause.saturating_sub(rested));
        }
    }

    fn draw(&mut self, engine: &Engine, options: MapOptions, playback: &Playback, token: Option<&TokenTrace>) {
        let board = engine.neurons();
        self.unfinished = false;
        match (options.mode, token, playback.base()) {
            (mode, Some(token), Some(base)) => self.atlas.draw_token(board.shape(), mode, token, Some(base)),
            (mode, Some(token), None) if mode.is_of_token() => {
                self.atlas.draw_token(board.shape(), mode, token, None);
            }
            (Mode::Placement, ..) => self.atlas.draw_places(),
            (Mode::Tiers, ..) => {
                self.unfinished = !self.atlas.draw_tiers(|layer| engine.model().in_ram(layer), SLICE);
            }
            (mode @ (Mode::Frequency | Mode::Recency), ..) => {
                self.unfinished = !self.atlas.draw_tally(board, mode, SLICE);
            }
            _ => self.atlas.draw_nothing(),
        }
    }

    fn paint(&self, ui: &Ui, rect: Rect, marks: MapMarks<'_>, token: Option<&TokenTrace>) {
        let (painter, palette) = (ui.painter_at(rect.expand2(Vec2::new(GUTTER, 4.0))), Palette::of(ui));
        let Some(DrawnMap { options, base, .. }) = self.drawn else { return };
        let table = colours::table(options.mode, options.colours, base.is_some(), &palette);
        if self.shaded {
            painter.extend(shader::shape(rect, &self.atlas, Fold::of(options.mode, base.is_some()), &table));
        } else if let Some((texture, _)) = &self.texture {
            let uv = Rect::from_min_max(Pos2::ZERO, Pos2::new(1.0, 1.0));
            painter.image(texture.id(), rect, uv, Color32::WHITE);
        }
        let shown = self.atlas.shown();
        let band = rect.height() / shown.len().max(1) as f32;
        let top = |layer: usize| rect.top() + band * (layer - shown.start) as f32;
        if let Some(token) = token.filter(|_| options.mode.is_of_token()) {
            for layer in shown.clone().filter(|layer| self.atlas.was_placed_otherwise(token, *layer)) {
                let row = Rect::from_x_y_ranges(rect.x_range(), top(layer)..=top(layer) + band);
                painter.rect_filled(row, 0.0, palette.muted.gamma_multiply(0.35));
            }
        }
        // As many layer labels as fit.
        let every = (14.0 / band).ceil().max(1.0) as usize;
        for layer in shown.clone().step_by(every) {
            let at = Pos2::new(rect.left() - 8.0, top(layer) + (band * 0.5).max(6.0).min(rect.height()));
            painter.text(at, Align2::RIGHT_CENTER, format!("L{layer}"), FontId::proportional(11.0), palette.muted);
        }
        let separator = colours::separator(&table);
        if band >= 12.0 {
            for layer in shown.clone().skip(1) {
                painter.hline(rect.x_range(), top(layer), Stroke::new(1.0, separator));
            }
        }
        for border in expert_borders::lines(&self.atlas, rect) {
            painter.line(border, Stroke::new(2.0, separator));
        }
        // The line between hot and cold neurons runs down through the layers, with a step where
        // they differ.
        let mut line = Vec::new();
        for layer in shown.clone() {
            match self.atlas.boundary(layer) {
                Some(fraction) => {
                    let x = rect.left() + fraction * rect.width();
                    line.extend([Pos2::new(x, top(layer)), Pos2::new(x, top(layer) + band)]);
                }
                None => draw_boundary(&painter, std::mem::take(&mut line), &palette),
            }
        }
        draw_boundary(&painter, line, &palette);
        let ring = |place: &NeuronIndex, radius, colour| {
            if let Some(at) = self.position_on(rect, *place) {
                painter.circle_stroke(at, radius, Stroke::new(3.0, palette.background));
                painter.circle_stroke(at, radius, Stroke::new(1.5, colour));
            }
        };
        marks.pins.iter().for_each(|place| ring(place, 5.0, palette.text));
        marks.ringed.iter().for_each(|place| ring(place, RING, palette.amber));
    }
}

fn draw_boundary(painter: &egui::Painter, line: Vec<Pos2>, palette: &Palette) {
    if line.len() > 1 {
        painter.line(line.clone(), Stroke::new(4.0, palette.background.gamma_multiply(0.6)));
        painter.line(line, Stroke::new(2.0, palette.boundary));
    }
}

/// Shows a neuron's facts, one label per line.
pub fn facts_ui(ui: &mut Ui, facts: &Facts) {
    let palette = Palette::of(ui);
    ui.spacing_mut().item_spacing.y = 4.0;
    ui.label(RichText::new(&facts.title).strong());
    for (text, colour) in [
        (Some(&*facts.value), palette.text),
        (facts.frequency.as_deref(), palette.muted),
        (facts.expert.as_deref(), palette.muted),
        (facts.place.map(NeuronPlace::title), facts.place.map_or(palette.cold, |place| place.colour(&palette))),
        (facts.predicted, palette.text),
        (facts.crowd.as_deref(), palette.muted),
    ] {
        if let Some(text) = text {
            ui.label(small(text, colour));
        }
    }
}
