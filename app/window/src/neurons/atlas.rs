//! The map's data: the neuron order of every layer, and the plane of bytes that the dots are made
//! from.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use thermocline_engine::{
    model::{NeuronIndex, mask},
    telemetry::neurons::{LayerTally, NeuronBoard, NeuronShape, TokenTrace},
};

use super::{
    grid::{Grid, View},
    layer_values::{Fold, LayerValues},
    mode::Mode,
    order::{NeuronOrder, sequence},
    plane::Plane,
};

/// The layout of the map.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MapLayout {
    /// The visible part.
    pub view: View,
    /// The grid of dots of a layer.
    pub grid: Grid,
    /// True if neurons are ordered by frequency, hot ones first. False for the model's order.
    pub by_frequency: bool,
}

/// Firing frequencies of a layer's neurons and selection frequencies of its experts, as fractions
/// of the tokens. Empty if unknown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LayerFrequencies {
    /// `[n_ff]`
    pub neurons: Vec<f32>,
    /// `[experts]`. Empty for a dense layer.
    pub experts: Vec<f32>,
}

/// The state of a layer, as of its last update.
#[derive(Debug, Clone, Default)]
struct MapLayer {
    order: NeuronOrder,
    frequencies: LayerFrequencies,
    hot: Vec<u32>,
    /// Neurons in RAM, if a pager decides which.
    in_ram: Option<Vec<u32>>,
    stale: bool,
}

impl MapLayer {
    /// The neurons in the requested order, grouped by expert.
    fn sorted(&self, shape: &NeuronShape, layer: usize, by_frequency: bool) -> NeuronOrder {
        let neurons = shape.neurons(layer);
        let order = match by_frequency {
            true => NeuronOrder::by_frequency(neurons, &self.frequencies.neurons, &self.hot),
            false => NeuronOrder::of_model(neurons),
        };
        let groups: Vec<Range<usize>> = (0..shape.groups(layer)).map(|group| shape.group(layer, group)).collect();
        if groups.is_empty() {
            return order;
        }
        let is_hot = |group: usize| groups[group].clone().next().is_some_and(|first| mask::contains(&self.hot, first));
        // The last group is the shared expert, which every token passes through.
        let chosen = |group: usize| match self.frequencies.experts.get(group) {
            Some(chosen) => *chosen,
            None => f32::from(u8::from(group == shape.experts(layer))),
        };
        let sequence = match by_frequency {
            true => sequence(groups.len(), is_hot, chosen),
            false => (0..groups.len()).collect(),
        };
        order.grouped(&groups, &sequence)
    }
}

/// The neuron under the pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointedNeuron {
    /// The place of the neuron.
    pub place: NeuronIndex,
    /// Number of neurons in its dot, including itself.
    pub crowd: usize,
}

/// A map of a model's neurons. Slow work is done in steps of limited time.
#[derive(Debug, Clone, Default)]
pub struct Atlas {
    /// The layout.
    pub layout: MapLayout,
    /// The model's layers.
    pub shape: Arc<NeuronShape>,
    states: Vec<MapLayer>,
    /// One byte per neuron, the input of the shader.
    pub plane: Plane,
    /// The next layer to draw if one frame cannot draw all, and the mode of the layers before it.
    next: usize,
    drawing: Option<Mode>,
    tally: LayerTally,
    /// Number of neurons in VRAM.
    pub hot: usize,
}

impl Atlas {
    /// Creates an empty map for a model of this shape.
    pub fn new(shape: &NeuronShape) -> Self {
        let state =
            |layer| MapLayer { order: NeuronOrder::of_model(shape.neurons(layer)), stale: true, ..MapLayer::default() };
        let states = (0..shape.layers()).map(state).collect();
        Atlas { states, plane: Plane::new(shape), shape: Arc::new(shape.clone()), ..Atlas::default() }
    }

    /// Sets the layout. True if the layers must be drawn again. A zoom alone needs no new bytes.
    pub fn lay_out(&mut self, layout: MapLayout) -> bool {
        if self.layout == layout {
            return false;
        }
        let resorted = self.layout.by_frequency != layout.by_frequency;
        if resorted {
            self.outdate(|_| true);
        }
        let before = self.shown();
        (self.layout, self.drawing) = (layout, None);
        resorted || self.shown() != before
    }

    /// The visible layers.
    pub fn shown(&self) -> Range<usize> {
        self.layout.view.layers(self.states.len())
    }

    /// The level of every dot, `[layers shown, lines, columns]`, equal to the shader's result.
    pub fn levels(&self, fold: Fold) -> Vec<u8> {
        let of = |layer| self.plane.levels(layer, self.ranks(layer), self.layout.grid, fold);
        self.shown().flat_map(of).collect()
    }

    /// The visible ranks of a layer's order.
    pub fn ranks(&self, layer: usize) -> Range<usize> {
        self.layout.view.ranks(self.states.get(layer).map_or(0, |state| state.order.len()))
    }

    /// The end of the hot neurons in `layer`, as a fraction of the width. `None` if hot and cold
    /// neurons are mixed or no neuron is hot.
    pub fn boundary(&self, layer: usize) -> Option<f32> {
        let state = self.states.get(layer).filter(|state| !state.order.is_empty())?;
        let ranks = self.layout.view.ranks(state.order.len());
        let at = state.order.boundary?.clamp(ranks.start, ranks.end) - ranks.start;
        Some(if at == ranks.len() { 1.0 } else { self.layout.grid.fraction(at, ranks.len()) })
    }

    /// The firing frequency of a neuron, if it is known.
    pub fn frequency(&self, layer: usize, neuron: usize) -> Option<f32> {
        self.states.get(layer)?.frequencies.neurons.get(neuron).copied()
    }

    /// The selection frequency of an expert, if it is known.
    pub fn chosen(&self, layer: usize, expert: usize) -> Option<f32> {
        self.states.get(layer)?.frequencies.experts.get(expert).copied()
    }

    /// True if a neuron is in VRAM.
    pub fn is_hot(&self, layer: usize, neuron: usize) -> bool {
        self.states.get(layer).is_some_and(|state| mask::contains(&state.hot, neuron))
    }

    /// Sets the neurons of a layer (or experts) that are in RAM. The shared expert is in RAM,
    /// because every token reads it.
    fn set_in_ram(&mut self, layer: usize, in_ram: Option<Vec<u32>>) {
        let shape = &self.shape;
        let expand = |mask: Vec<u32>| if shape.experts(layer) > 0 { shape.of_experts(layer, &mask) } else { mask };
        if let Some(state) = self.states.get_mut(layer) {
            state.in_ram = in_ram.map(expand);
        }
    }

    /// Fractions of the visible layers' neurons in VRAM, in RAM and only on disk, as far as they
    /// were drawn. `None` before that.
    pub fn tiers(&self) -> Option<[f64; 3]> {
        let mut counts = [0usize; 3];
        for layer in self.shown() {
            let state = self.states.get(layer)?;
            let (in_ram, hot) = (state.in_ram.as_ref()?, mask::count(&state.hot));
            let word = |at: usize| state.hot.get(at).copied().unwrap_or(0);
            let both: usize =
                in_ram.iter().enumerate().map(|(at, in_ram)| (in_ram & !word(at)).count_ones() as usize).sum();
            let parts = [hot, both, state.order.len().saturating_sub(hot + both)];
            counts.iter_mut().zip(parts).for_each(|(count, part)| *count += part);
        }
        let all = counts.iter().sum::<usize>().max(1) as f64;
        Some(counts.map(|count| count as f64 / all))
    }

    /// True if other neurons of `layer` were in VRAM when the token was computed.
    pub fn was_placed_otherwise(&self, token: &TokenTrace, layer: usize) -> bool {
        let (Some(_), Some(state)) = (&token.masks, self.states.get(layer)) else { return false };
        let then = token.hot(&self.shape, layer).unwrap_or_default();
        let words = then.len().max(state.hot.len());
        let word = |mask: &[u32], at: usize| mask.get(at).copied().unwrap_or(0);
        (0..words).any(|at| word(then, at) != word(&state.hot, at))
    }

    /// First rank of each expert of a layer. Empty for a dense layer.
    pub fn starts(&self, layer: usize) -> &[u32] {
        self.states.get(layer).map_or(&[], |state| &state.order.starts)
    }

    /// Marks the layers that must be sorted again.
    pub fn outdate(&mut self, which: impl Fn(usize) -> bool) {
        for (layer, state) in self.states.iter_mut().enumerate() {
            state.stale |= which(layer);
        }
    }

    /// Sets the neurons in VRAM. `hot` returns the mask of a layer's neurons (or experts). True if
    /// any placement has changed.
    pub fn set_hot(&mut self, hot: impl Fn(usize) -> Vec<u32>) -> bool {
        let mut moved = false;
        for (layer, state) in self.states.iter_mut().enumerate() {
            let mut hot = hot(layer);
            if self.shape.experts(layer) > 0 {
                hot = self.shape.of_experts(layer, &hot);
            }
            if state.hot != hot {
                (state.hot, state.stale, moved) = (hot, true, true);
            }
        }
        if moved {
            self.hot = self.states.iter().map(|state| mask::count(&state.hot)).sum();
        }
        moved
    }

    /// Sorts outdated layers by their `known` frequencies, visible layers first. Stops after
    /// `time`, or after one layer. Returns the changed visible layers, and true if outdated layers
    /// remain.
    pub fn sort(&mut self, time: Duration, known: impl Fn(usize) -> Option<LayerFrequencies>) -> (Vec<usize>, bool) {
        let (began, shown, mut changed) = (Instant::now(), self.shown(), Vec::new());
        let others = (0..self.states.len()).filter(|layer| !shown.contains(layer));
        for layer in shown.clone().chain(others) {
            let Some(state) = self.states.get_mut(layer).filter(|state| state.stale) else { continue };
            if began.elapsed() >= time {
                return (changed, true);
            }
            state.stale = false;
            state.frequencies = known(layer).unwrap_or_default();
            let order = state.sorted(&self.shape, layer, self.layout.by_frequency);
            if state.order != order {
                state.order = order;
                if shown.contains(&layer) {
                    changed.push(layer);
                }
            }
        }
        (changed, false)
    }

    /// Draws every visible layer of a token, in a mode of single tokens. With `before`, draws the
    /// difference from that token. Layers without recorded masks become empty.
    pub fn draw_token(&mut self, shape: &NeuronShape, mode: Mode, token: &TokenTrace, before: Option<&TokenTrace>) {
        self.begin();
        for layer in self.shown() {
            self.draw(layer, &LayerValues::of_token(shape, mode, token, before, layer));
        }
    }

    /// Draws an empty map.
    pub fn draw_nothing(&mut self) {
        self.begin();
        for layer in self.shown() {
            self.draw(layer, &LayerValues::Nothing);
        }
    }

    /// Draws the neurons in VRAM.
    pub fn draw_places(&mut self) {
        self.begin();
        for layer in self.shown() {
            if let Some(state) = self.states.get(layer) {
                self.plane.write(layer, &state.order.ranks, &LayerValues::Places(&state.hot));
            }
        }
    }

    /// Draws the places of neurons in a model that is larger than its RAM. `in_ram` returns the
    /// mask of a layer's neurons (or experts) in RAM. Works in steps as [`Atlas::draw_tally`].
    pub fn draw_tiers(&mut self, in_ram: impl Fn(usize) -> Option<Vec<u32>>, time: Duration) -> bool {
        self.draw_in_steps(Mode::Tiers, time, |atlas, layer| {
            atlas.set_in_ram(layer, in_ram(layer));
            let Some(state) = atlas.states.get(layer) else { return };
            let in_ram = state.in_ram.as_deref().unwrap_or_default();
            atlas.plane.write(layer, &state.order.ranks, &LayerValues::Tiers(&state.hot, in_ram));
        })
    }

    /// Draws firing frequencies or ages. Continues where the last call stopped. Stops after `time`,
    /// or after one layer. True if the map is complete.
    pub fn draw_tally(&mut self, board: &NeuronBoard, mode: Mode, time: Duration) -> bool {
        self.draw_in_steps(mode, time, |atlas, layer| {
            let mut tally = std::mem::take(&mut atlas.tally);
            board.read_tally(layer, &mut tally);
            atlas.draw(layer, &LayerValues::of_tally(mode, &tally));
            atlas.tally = tally;
        })
    }

    fn draw_in_steps(&mut self, mode: Mode, time: Duration, draw: impl Fn(&mut Self, usize)) -> bool {
        let (began, shown) = (Instant::now(), self.shown());
        let goes_on = self.drawing == Some(mode) && shown.contains(&self.next);
        self.begin();
        self.drawing = Some(mode);
        if !goes_on {
            self.next = shown.start;
        }
        while shown.contains(&self.next) {
            let layer = self.next;
            self.next += 1;
            draw(self, layer);
            if began.elapsed() >= time && shown.contains(&self.next) {
                return false;
            }
        }
        true
    }

    fn begin(&mut self) {
        self.drawing = None;
        self.plane.begin();
    }

    fn draw(&mut self, layer: usize, values: &LayerValues<'_>) {
        if let Some(state) = self.states.get(layer) {
            self.plane.write(layer, &state.order.ranks, values);
        }
    }

    /// The neuron at fractions `x` and `y` of the map. If a dot has several neurons, the first that
    /// `prefers` accepts, otherwise the first of all.
    pub fn at(&self, x: f32, y: f32, prefers: impl Fn(usize, usize) -> bool) -> Option<PointedNeuron> {
        let shown = self.shown();
        let MapLayout { view, grid, .. } = self.layout;
        let (at, dot) = grid.at(x, y, shown.len())?;
        let layer = shown.start + at;
        let state = self.states.get(layer)?;
        let ranks = view.ranks(state.order.len());
        let some = grid.neurons(dot, ranks.len());
        let crowd = some.len();
        let neurons = || some.clone().filter_map(|at| state.order.neuron(ranks.start + at));
        let neuron = neurons().find(|neuron| prefers(layer, *neuron)).or_else(|| neurons().next())?;
        Some(PointedNeuron { place: NeuronIndex { layer, neuron }, crowd })
    }

    /// The centre of a neuron's dot, as fractions of width and height, if it is visible.
    pub fn find(&self, layer: usize, neuron: usize) -> Option<(f32, f32)> {
        let shown = self.shown();
        let state = self.states.get(layer).filter(|_| shown.contains(&layer))?;
        let MapLayout { view, grid, .. } = self.layout;
        let ranks = view.ranks(state.order.len());
        let at = (*state.order.ranks.get(neuron)? as usize).checked_sub(ranks.start)?;
        let dot = grid.dot(at, ranks.len());
        let (column, line) = (dot / grid.lines.max(1), dot % grid.lines.max(1));
        let rows = (shown.len() * grid.lines) as f32;
        let row = ((layer - shown.start) * grid.lines + line) as f32;
        (at < ranks.len()).then_some(((column as f32 + 0.5) / grid.columns as f32, (row + 0.5) / rows))
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::telemetry::neurons::{LayerFiring, LayerNeurons};

    use super::*;
    use crate::neurons::layer_values::code;

    const SOON: Duration = Duration::from_secs(120);

    fn frequencies(neurons: &[f32]) -> LayerFrequencies {
        LayerFrequencies { neurons: neurons.to_vec(), ..LayerFrequencies::default() }
    }

    /// A map of two layers of four neurons on two columns of two dots. Neurons 3 and 1 of the first
    /// layer are hot.
    fn atlas() -> (Atlas, NeuronShape) {
        let shape = NeuronShape::new([4, 4]);
        let mut atlas = Atlas::new(&shape);
        let layout = MapLayout { view: View::default(), grid: Grid { columns: 2, lines: 2 }, by_frequency: true };
        assert!(atlas.lay_out(layout) && !atlas.lay_out(layout));
        assert!(atlas.set_hot(|layer| if layer == 0 { vec![0b1010] } else { Vec::new() }));
        let (changed, left) = atlas.sort(SOON, |_| Some(frequencies(&[0.1, 0.2, 0.3, 0.4])));
        assert_eq!((changed, left), (vec![0, 1], false));
        (atlas, shape)
    }

    #[test]
    fn tiers_are_drawn_in_steps_and_counted() {
        let (mut atlas, _) = atlas();
        assert_eq!(atlas.tiers(), None, "nothing is known");
        let in_ram = |layer: usize| Some(vec![[0b0011, 0b0110][layer]]);
        assert!(!atlas.draw_tiers(in_ram, Duration::ZERO) && atlas.tiers().is_none(), "one layer at a time");
        assert!(atlas.draw_tiers(in_ram, SOON));
        // Hot neurons 3 and 1 of the first layer, neuron 0 in RAM, neuron 2 on disk; in the second
        // layer, neurons 1 and 2 in RAM. The most frequent come first.
        let [vram, ram, disk] = [code::VRAM, code::RAM, code::DISK];
        assert_eq!(atlas.levels(Fold::of(Mode::Tiers, false)), [vram, disk, vram, ram, disk, ram, ram, disk]);
        assert_eq!(atlas.tiers(), Some([0.25, 0.375, 0.375]));
        let moe = LayerNeurons::Experts { experts: 2, width: 2, shared: 2 };
        let mut atlas = Atlas::new(&NeuronShape::of([moe]));
        assert!(atlas.draw_tiers(|_| Some(vec![0b10]), SOON));
        assert_eq!(atlas.tiers(), Some([0.0, 4.0 / 6.0, 2.0 / 6.0]), "an expert and the shared one are in RAM");
    }

    /// A neuron of the first layer.
    fn pointed(neuron: usize, crowd: usize) -> Option<PointedNeuron> {
        Some(PointedNeuron { place: NeuronIndex { layer: 0, neuron }, crowd })
    }

    #[test]
    fn atlas_marks_hot_experts_and_the_shared_expert() {
        let shape = NeuronShape::of([LayerNeurons::Experts { experts: 2, width: 2, shared: 1 }]);
        let mut atlas = Atlas::new(&shape);
        let hot = |atlas: &Atlas| (0..5).filter(|neuron| atlas.is_hot(0, *neuron)).collect::<Vec<_>>();
        // The shared expert is hot whenever the layer has any placement.
        for (experts, wanted) in [(0b10, &[2, 3, 4][..]), (0b01, &[0, 1, 4]), (0b11, &[0, 1, 2, 3, 4]), (0, &[4])] {
            assert!(atlas.set_hot(|_| vec![experts]));
            assert_eq!((hot(&atlas), atlas.hot), (wanted.to_vec(), wanted.len()), "{experts:b}");
        }
        assert!(atlas.set_hot(|_| Vec::new()) && atlas.hot == 0);
    }

    #[test]
    fn atlas_sorts_by_frequency_and_finds_neurons_by_position() {
        let (mut atlas, _) = atlas();
        assert_eq!((atlas.boundary(0), atlas.boundary(1), atlas.boundary(2)), (Some(0.5), None, None));
        // Layer 0: 3 1 2 0, down the columns.
        assert_eq!(atlas.at(0.1, 0.1, |_, _| false), pointed(3, 1));
        assert_eq!(atlas.at(0.9, 0.3, |_, _| false), pointed(0, 1));
        assert_eq!(atlas.find(0, 0), Some((0.75, 0.375)));
        assert_eq!((atlas.frequency(0, 2), atlas.frequency(0, 4)), (Some(0.3), None));
        assert!(!atlas.set_hot(|layer| if layer == 0 { vec![0b1010] } else { Vec::new() }));
        assert_eq!(atlas.sort(SOON, |_| None), (Vec::new(), false));
        let model = MapLayout { by_frequency: false, ..atlas.layout };
        atlas.lay_out(model);
        atlas.sort(SOON, |_| None);
        assert_eq!(
            (atlas.boundary(0), atlas.at(0.1, 0.1, |_, _| false).map(|pointed| pointed.place.neuron)),
            (None, Some(0))
        );
        atlas.lay_out(MapLayout { view: View::of_layer(1), ..model });
        assert_eq!(
            (
                atlas.levels(Fold::Fraction).len(),
                atlas.find(0, 0),
                atlas.at(0.1, 0.9, |_, _| false).unwrap().place.layer
            ),
            (4, None, 1)
        );
    }

    #[test]
    fn dot_of_several_neurons_names_the_preferred_one() {
        let (mut atlas, _) = atlas();
        atlas.lay_out(MapLayout { grid: Grid { columns: 1, lines: 1 }, ..atlas.layout });
        assert_eq!(atlas.at(0.5, 0.2, |_, neuron| neuron == 2), pointed(2, 4));
        assert_eq!(atlas.at(0.5, 0.2, |_, _| false), pointed(3, 4));
    }

    #[test]
    fn atlas_levels_match_the_board_in_every_mode() {
        let (mut atlas, shape) = atlas();
        let (board, mut recorder) = NeuronBoard::new(shape.clone());
        for (position, fired) in [(0, [0b1000]), (1, [0b0011])] {
            recorder.begin(1, position, &[5], true);
            for layer in 0..2 {
                let predicted = Some(&[0b0101][..]);
                let firing = LayerFiring { layer, tokens: 1, fired: &fired, predicted, ..LayerFiring::default() };
                recorder.layer(&firing);
            }
            recorder.end();
        }
        let (before, now) = (board.token(0).unwrap(), board.latest().unwrap());
        // Dots of both layers: 3 2, 1 0 (down the columns: 3 1 2 0) and 3 1, 2 0 (3 2 1 0).
        atlas.draw_token(&shape, Mode::Fired, &now, None);
        assert_eq!(atlas.levels(Fold::of(Mode::Fired, false)), [0, 0, 255, 255, 0, 255, 0, 255]);
        atlas.draw_token(&shape, Mode::Predictor, &now, None);
        assert_eq!(atlas.levels(Fold::of(Mode::Predictor, false))[..4], [0, 2, 3, 1]);
        atlas.draw_token(&shape, Mode::Fired, &now, Some(&before));
        assert_eq!(atlas.levels(Fold::of(Mode::Fired, true))[..4], [2, 0, 1, 1]);
        atlas.draw_token(&shape, Mode::Strength, &now, None);
        assert_eq!(atlas.levels(Fold::of(Mode::Strength, false)), [0; 8], "it was not recorded");
        atlas.draw_places();
        assert_eq!(atlas.levels(Fold::Placement), [255, 1, 255, 1, 1, 1, 1, 1]);
        assert!(!atlas.draw_tally(&board, Mode::Recency, Duration::ZERO), "a layer at a time");
        assert!(atlas.draw_tally(&board, Mode::Recency, Duration::ZERO));
        assert_eq!(atlas.levels(Fold::of(Mode::Recency, false))[..4], [229, 0, 255, 255]);
        // A drawing of another mode or of other layers is not continued.
        assert!(!atlas.draw_tally(&board, Mode::Frequency, Duration::ZERO));
        assert!(atlas.draw_tally(&board, Mode::Recency, SOON));
        assert_eq!(atlas.levels(Fold::of(Mode::Recency, false))[..4], [229, 0, 255, 255]);
        let whole = atlas.layout;
        atlas.lay_out(MapLayout { view: View::of_layer(0), ..whole });
        assert!(atlas.draw_tally(&board, Mode::Recency, SOON));
        atlas.lay_out(whole);
        assert!(atlas.draw_tally(&board, Mode::Recency, SOON));
        assert_eq!(atlas.levels(Fold::of(Mode::Recency, false))[..4], [229, 0, 255, 255]);
        assert!(atlas.draw_tally(&board, Mode::Frequency, SOON));
        let frequencies = &atlas.levels(Fold::of(Mode::Frequency, false))[..4];
        assert!(frequencies[2] >= frequencies[0] && frequencies[0] > 150 && frequencies[1] == 0, "{frequencies:?}");
    }
}
