//! The place of neurons on the map: maps a layer's neurons to dots and back.

use std::ops::Range;

use egui::Vec2;
use thermocline_engine::telemetry::neurons::NeuronShape;

/// The visible part of the neurons.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct View {
    /// The visible layer. `None` shows all layers.
    pub layer: Option<usize>,
    /// Begin of the visible part, as a fraction of every layer's neurons.
    pub from: f32,
    /// End of the visible part, as a fraction of every layer's neurons.
    pub to: f32,
}

impl Default for View {
    fn default() -> Self {
        View { layer: None, from: 0.0, to: 1.0 }
    }
}

/// Minimum fraction of a layer that fills the map.
const CLOSEST: f32 = 1.0 / 64.0;

impl View {
    /// A view of one whole layer.
    pub fn of_layer(layer: usize) -> Self {
        View { layer: Some(layer), ..View::default() }
    }

    /// Zooms in by `factor` around `at`, a fraction of the width.
    pub fn zoom(&mut self, factor: f32, at: f32) {
        let width = self.to - self.from;
        let new = (width / factor.max(0.01)).clamp(CLOSEST, 1.0);
        self.from = (self.from + at * (width - new)).clamp(0.0, 1.0 - new);
        self.to = self.from + new;
    }

    /// Moves the view by a fraction of its width.
    pub fn pan(&mut self, by: f32) {
        let width = self.to - self.from;
        self.from = (self.from + by * width).clamp(0.0, 1.0 - width);
        self.to = self.from + width;
    }

    /// True if the view hides a part of the layers.
    pub fn is_close(&self) -> bool {
        self.to - self.from < 0.999
    }

    /// The visible layers of a model with `layers` layers.
    pub fn layers(&self, layers: usize) -> Range<usize> {
        match self.layer {
            Some(layer) if layer < layers => layer..layer + 1,
            _ => 0..layers,
        }
    }

    /// The visible ranks of a layer with `neurons` neurons.
    pub fn ranks(&self, neurons: usize) -> Range<usize> {
        let at = |fraction: f32| ((f64::from(fraction) * neurons as f64).round() as usize).min(neurons);
        let from = at(self.from).min(neurons.saturating_sub(1));
        from..at(self.to).max(from + 1).min(neurons)
    }
}

/// Maximum number of dots of a layer that has more neurons than dots.
const MOST_SHARED: usize = (1 << 16) - 1;

/// The dots of a layer: a band of `lines` lines of `columns` dots. Neurons fill a column from top
/// to bottom, then the next one. Neurons with low ranks are therefore on the left. A dot is one
/// neuron if there are enough dots, otherwise a few neighbours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Grid {
    /// Dots from left to right.
    pub columns: usize,
    /// Dots of a layer from top to bottom.
    pub lines: usize,
}

impl Grid {
    /// Creates a grid for the part of a model that `view` shows, on `pixels` pixels, with at most
    /// `limit` dots per side. If experts have columns of their own, their borders align across
    /// layers.
    pub fn of_view(view: View, shape: &NeuronShape, pixels: Vec2, limit: usize) -> Self {
        let neurons = match view.layer {
            Some(layer) => shape.neurons(layer),
            None => shape.widest(),
        };
        let seen = view.ranks(neurons).len();
        let grid = Grid::new(view.layers(shape.layers()).len(), seen, pixels.x, pixels.y, limit);
        let widest = (0..shape.layers()).find(|layer| shape.neurons(*layer) == neurons);
        match view.layer.or(widest).filter(|_| !view.is_close()) {
            Some(layer) => grid.straight(shape.group(layer, 0).len(), seen, pixels.x, limit),
            None => grid,
        }
    }

    /// Creates a grid for `layers` layers of at most `neurons` neurons, on `width` x `height`
    /// pixels, with at most `limit` dots per side.
    pub fn new(layers: usize, neurons: usize, width: f32, height: f32, limit: usize) -> Self {
        let limit = limit.max(1);
        let (layers, neurons) = (layers.max(1), neurons.max(1));
        let (width, height) = (width.max(1.0), (height / layers as f32).max(1.0));
        let side = (width * height / neurons as f32).sqrt().max(1.0);
        let most = (limit / layers).clamp(1, neurons);
        let lines = ((height / side).round() as usize).clamp(1, most);
        let columns = neurons.div_ceil(lines).min(width as usize).clamp(1, limit);
        // If neurons share dots, the shader computes with 32-bit integers.
        let most = if neurons > columns * lines { (MOST_SHARED / columns).max(1) } else { lines };
        Grid { columns, lines: lines.min(most) }
    }

    /// Returns a grid with about as many dots in which every group of `group` of the `shown`
    /// neurons has columns of its own. Returns `self` if there is none.
    #[must_use]
    pub fn straight(self, group: usize, shown: usize, width: f32, limit: usize) -> Self {
        let groups = shown.checked_div(group).unwrap_or(0);
        if groups < 2 {
            return self;
        }
        if shown > self.dots() {
            let columns = (self.columns / groups * groups).max(1);
            return if columns < groups { self } else { Grid { columns, ..self } };
        }
        let near = |lines: &usize| lines.abs_diff(self.lines);
        let fits = |lines: &usize| shown.div_ceil(*lines) <= (width as usize).clamp(1, limit);
        let some = self.lines.div_ceil(2)..=(self.lines * 2).min(limit).max(self.lines);
        let lines = some.filter(|lines| group.is_multiple_of(*lines)).filter(fits).min_by_key(near);
        lines.map_or(self, |lines| Grid { columns: shown.div_ceil(lines), lines })
    }

    /// True if every dot of the visible part is one neuron.
    pub fn is_by_neuron(&self, view: View, shape: &NeuronShape) -> bool {
        view.layers(shape.layers()).all(|layer| view.ranks(shape.neurons(layer)).len() <= self.dots())
    }

    /// Number of dots of a layer.
    pub fn dots(&self) -> usize {
        self.columns * self.lines
    }

    /// The dot of the `at`-th of `shown` neurons, counted down the columns.
    pub fn dot(&self, at: usize, shown: usize) -> usize {
        if shown <= self.dots() { at } else { at * self.dots() / shown }
    }

    /// The neurons in a dot, as a range of the `shown` ones.
    pub fn neurons(&self, dot: usize, shown: usize) -> Range<usize> {
        if shown <= self.dots() {
            return dot.min(shown)..(dot + 1).min(shown);
        }
        let first = |dot: usize| (dot * shown).div_ceil(self.dots()).min(shown);
        first(dot)..first(dot + 1)
    }

    /// The index of the same dot in a picture, counted along the lines.
    pub fn texel(&self, dot: usize) -> usize {
        dot % self.lines * self.columns + dot / self.lines
    }

    /// Fraction of the width that the first `at` of `shown` neurons fill.
    pub fn fraction(&self, at: usize, shown: usize) -> f32 {
        let dots = if shown <= self.dots() { at as f32 } else { (at * self.dots()) as f32 / shown.max(1) as f32 };
        (dots / self.dots().max(1) as f32).min(1.0)
    }

    /// The layer's index among the visible ones, and the dot, at fractions `x` and `y` of a map of
    /// `layers` layers.
    pub fn at(&self, x: f32, y: f32, layers: usize) -> Option<(usize, usize)> {
        if !(0.0..1.0).contains(&x) || !(0.0..1.0).contains(&y) {
            return None;
        }
        let row = (y * (layers * self.lines) as f32) as usize;
        let (layer, line) = (row / self.lines.max(1), row % self.lines.max(1));
        let column = (x * self.columns as f32) as usize;
        (layer < layers).then_some((layer, column * self.lines + line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_dots_list_every_neuron_once() {
        for (columns, lines, shown) in
            [(7, 3, 20), (7, 3, 21), (7, 3, 22), (10, 1, 28_672), (400, 3, 28_672), (1, 1, 5)]
        {
            let grid = Grid { columns, lines };
            let mut seen = 0;
            for dot in 0..grid.dots() {
                for at in grid.neurons(dot, shown) {
                    assert_eq!((at, grid.dot(at, shown)), (seen, dot), "{grid:?} {shown}");
                    seen += 1;
                }
            }
            assert_eq!(seen, shown);
            let mut texels: Vec<_> = (0..grid.dots()).map(|dot| grid.texel(dot)).collect();
            texels.sort_unstable();
            assert!(texels.into_iter().eq(0..grid.dots()));
        }
    }

    #[test]
    fn dots_are_about_square_and_never_smaller_than_a_pixel() {
        // The built-in model: every neuron has a dot of its own.
        let small = Grid::new(6, 1024, 370.0, 290.0, 8192);
        assert!(small.dots() >= 1024 && small.dots() < 1100, "{small:?}");
        let (w, h) = (370.0 / small.columns as f32, 290.0 / 6.0 / small.lines as f32);
        assert!((0.6..1.6).contains(&(w / h)), "{w} x {h}");
        let large = Grid::new(80, 28_672, 400.0, 320.0, 8192);
        assert_eq!(large, Grid { columns: 400, lines: 4 });
        // One layer of that model in the same place has a pixel for every neuron.
        assert!(Grid::new(1, 28_672, 400.0, 320.0, 8192).dots() >= 28_672);
        let limited = Grid::new(80, 28_672, 4000.0, 3200.0, 1024);
        assert!(limited.columns <= 1024 && limited.lines * 80 <= 1024, "{limited:?}");
        assert_eq!(Grid::new(0, 0, 0.0, 0.0, 0), Grid { columns: 1, lines: 1 });
        // One MoE layer by itself.
        let wide = Grid::new(1, 114_688, 370.0, 290.0, 8192);
        assert!((60_000..1 << 16).contains(&wide.dots()), "{wide:?}");
        assert!(Grid::new(1, 114_688, 800.0, 600.0, 8192).dots() >= 114_688);
    }

    #[test]
    fn straight_grid_aligns_experts_with_columns() {
        let grid = Grid::new(2, 640, 370.0, 240.0, 8192);
        let straight = grid.straight(160, 640, 370.0, 8192);
        assert!(grid.lines.abs_diff(straight.lines) <= 3 && 160 % straight.lines == 0, "{grid:?} {straight:?}");
        assert_eq!(straight.dots(), 640);
        // Several neurons share a dot.
        let large = Grid { columns: 370, lines: 3 };
        assert_eq!(large.straight(14_336, 114_688, 370.0, 8192), Grid { columns: 368, lines: 3 });
        assert_eq!(large.straight(768, 98_304, 370.0, 8192), Grid { columns: 256, lines: 3 });
        assert_eq!(large.straight(10, 5_000, 370.0, 8192), large, "more experts than columns");
        // One FFN, and a group size that no number of lines divides.
        assert_eq!((grid.straight(0, 640, 370.0, 8192), grid.straight(640, 640, 370.0, 8192)), (grid, grid));
        assert_eq!(grid.straight(157, 628, 370.0, 8192), grid);
    }

    #[test]
    fn grid_position_maps_to_its_neuron_and_dot() {
        let grid = Grid { columns: 4, lines: 2 };
        assert_eq!(grid.at(0.0, 0.0, 3), Some((0, 0)));
        assert_eq!(grid.at(0.3, 0.2, 3), Some((0, 3)));
        assert_eq!(grid.at(0.99, 0.99, 3), Some((2, 7)));
        assert!(grid.at(1.0, 0.5, 3).is_none() && grid.at(0.5, -0.1, 3).is_none());
        assert_eq!((grid.fraction(4, 8), grid.fraction(8, 16), grid.fraction(2, 4)), (0.5, 0.5, 0.25));
    }

    #[test]
    fn view_zoom_and_pan_stay_within_the_neurons() {
        let mut view = View::default();
        assert!(!view.is_close());
        view.zoom(4.0, 0.5);
        assert_eq!((view.from, view.to), (0.375, 0.625));
        assert_eq!(view.ranks(1000), 375..625);
        view.pan(10.0);
        assert_eq!((view.from, view.to), (0.75, 1.0));
        view.pan(-10.0);
        assert_eq!((view.from, view.to), (0.0, 0.25));
        view.zoom(1e9, 0.0);
        assert_eq!(view.to, CLOSEST);
        assert_eq!((view.ranks(3), view.ranks(0)), (0..1, 0..0));
        view.zoom(1e-9, 0.7);
        assert!(!view.is_close() && view.ranks(5) == (0..5));
        assert_eq!((View::of_layer(2).layers(4), View::of_layer(9).layers(4), view.layers(4)), (2..3, 0..4, 0..4));
    }
}
