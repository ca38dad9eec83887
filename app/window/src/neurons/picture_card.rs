//! A card with the map, for people without the program: model, speed, map, legend, and the token in
//! its sentence.

use egui::{
    Align2, Color32, ColorImage, FontId, Pos2, Rect, TextFormat, Vec2,
    epaint::text::{LayoutJob, TextWrapping},
    pos2, vec2,
};

use super::{canvas::Canvas, colours, map_snapshot::MapSnapshot, sentence::Sentence};
use thermocline_rich_text::theme::strong;

/// Width of a card, and of its margins, in points.
pub const WIDTH: f32 = 1600.0;
const MARGIN: f32 = 64.0;

/// Width of the layers' labels, in points.
const GUTTER: f32 = 64.0;

/// The rectangles of a card's parts, in points.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PictureLayout {
    /// The model's name.
    pub title: Rect,
    /// The model's speed.
    pub speed: Rect,
    /// The map's mode, and what the token fires.
    pub summary: Rect,
    /// The dots.
    pub map: Rect,
    /// The legend of the colours.
    pub legend: Rect,
    /// The token in its sentence.
    pub sentence: Rect,
    /// The program's name.
    pub mark: Rect,
}

impl PictureLayout {
    /// The layout of a card whose map has `layers` layers.
    pub fn of(layers: usize) -> Self {
        let (left, right) = (MARGIN, WIDTH - MARGIN);
        let row = |top: f32, height: f32| Rect::from_min_max(pos2(left, top), pos2(right, top + height));
        let map = row(176.0, (layers as f32 * 48.0).clamp(320.0, 720.0));
        let map = Rect::from_min_max(pos2(left + GUTTER, map.top()), map.max);
        let legend = row(map.bottom() + 24.0, 52.0);
        let sentence = row(legend.bottom() + 28.0, 132.0);
        PictureLayout {
            title: Rect::from_min_max(pos2(left, 48.0), pos2(right - 344.0, 104.0)),
            speed: Rect::from_min_max(pos2(right - 328.0, 48.0), pos2(right, 104.0)),
            summary: row(116.0, 32.0),
            map,
            legend,
            sentence,
            mark: row(sentence.bottom() + 20.0, 32.0),
        }
    }

    /// Size of the card, in points.
    pub fn size(&self) -> Vec2 {
        vec2(WIDTH, self.mark.bottom() + 44.0)
    }
}

/// The texts of a card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PictureWords {
    /// The model's name.
    pub model: String,
    /// The model's speed, if it is known.
    pub rate: Option<String>,
    /// Statistics of the token's firings.
    pub summary: String,
    /// The token in its sentence.
    pub sentence: Sentence,
}

/// The contents of a card.
#[derive(Debug)]
pub struct PictureCard {
    /// The map.
    pub map: MapSnapshot,
    /// The texts.
    pub words: PictureWords,
    /// Minimum size of a dot of the map, in pixels.
    pub dot: usize,
}

impl PictureCard {
    /// The layout of the card.
    pub fn layout(&self) -> PictureLayout {
        PictureLayout::of(self.map.atlas.shown().len())
    }

    /// Draws the card as a picture of `scale` pixels per point.
    pub fn draw(&mut self, scale: f32, fonts: egui::FontDefinitions) -> ColorImage {
        let mut canvas = self.canvas(scale, fonts);
        self.draw_frame(&mut canvas);
        self.draw_token(&mut canvas);
        canvas.image
    }

    /// An empty canvas for the card.
    pub fn canvas(&self, scale: f32, fonts: egui::FontDefinitions) -> Canvas {
        Canvas::new(self.layout().size(), scale, self.map.options.palette().background, fonts)
    }

    /// Draws the parts that are equal for all tokens: model, speed, legend.
    pub fn draw_frame(&self, canvas: &mut Canvas) {
        let (palette, layout) = (self.map.options.palette(), self.layout());
        let title = line(&self.words.model, strong(44.0), palette.text, layout.title.width());
        canvas.write(layout.title.left_center(), Align2::LEFT_CENTER, title);
        if let Some(rate) = &self.words.rate {
            let rate = line(rate, strong(44.0), palette.amber, layout.speed.width());
            canvas.write(layout.speed.right_center(), Align2::RIGHT_CENTER, rate);
        }
        self.draw_legend(canvas, layout.legend);
        // Warm above cold, and the line between them.
        let Rect { min, .. } = layout.mark;
        for (part, colour) in [palette.hot, palette.boundary, palette.cold].into_iter().enumerate() {
            let top = min + vec2(0.0, 6.0 + 7.0 * part as f32);
            canvas.fill(Rect::from_min_size(top, vec2(28.0, if part == 1 { 3.0 } else { 7.0 })), colour);
        }
        let name = line("Thermocline", strong(22.0), palette.muted, layout.mark.width());
        canvas.write(layout.mark.left_center() + vec2(44.0, 0.0), Align2::LEFT_CENTER, name);
    }

    /// Draws the parts of the token: map, summary, sentence.
    pub fn draw_token(&mut self, canvas: &mut Canvas) {
        let (palette, layout) = (self.map.options.palette(), self.layout());
        for place in [layout.summary, layout.sentence] {
            canvas.fill(place, palette.background);
        }
        let summary = format!("{}: {}", self.map.options.mode.title(), self.words.summary);
        let summary = line(&summary, FontId::proportional(22.0), palette.muted, layout.summary.width());
        canvas.write(layout.summary.left_center(), Align2::LEFT_CENTER, summary);
        let image = self.map.image(self.dots(canvas));
        canvas.draw_image(layout.map, &image);
        self.draw_lines(canvas, layout.map);
        let mut sentence = LayoutJob::default();
        sentence.wrap = TextWrapping { max_width: layout.sentence.width(), max_rows: 3, ..TextWrapping::default() };
        let plain = TextFormat::simple(FontId::proportional(30.0), palette.text);
        let marked = TextFormat { background: palette.amber.gamma_multiply(0.4), ..plain.clone() };
        let Sentence { before, token, after } = &self.words.sentence;
        for (text, format) in [(before, &plain), (token, &marked), (after, &plain)] {
            sentence.append(text, 0.0, format.clone());
        }
        canvas.write(layout.sentence.left_top(), Align2::LEFT_TOP, sentence);
    }

    /// Maximum number of dots of the map, in columns and rows.
    fn dots(&self, canvas: &Canvas) -> [usize; 2] {
        canvas.pixels(self.layout().map).map(|pixels| (pixels / self.dot).max(1))
    }

    /// Draws the layers' labels, and the line between hot and cold neurons.
    fn draw_lines(&self, canvas: &mut Canvas, map: Rect) {
        let (palette, layers) = (self.map.options.palette(), self.map.atlas.shown());
        let band = map.height() / layers.len().max(1) as f32;
        let every = (24.0 / band).ceil().max(1.0) as usize;
        for (at, layer) in layers.enumerate() {
            let top = map.top() + band * at as f32;
            if at.is_multiple_of(every) {
                let middle = Pos2::new(map.left() - 16.0, top + (band * 0.5).max(10.0));
                let name = line(&format!("L{layer}"), FontId::proportional(20.0), palette.muted, GUTTER);
                canvas.fill(Rect::from_center_size(middle - vec2(20.0, 0.0), vec2(48.0, 24.0)), palette.background);
                canvas.write(middle, Align2::RIGHT_CENTER, name);
            }
            if let Some(fraction) = self.map.atlas.boundary(layer) {
                let x = map.left() + fraction * map.width();
                let right = (x + 2.0).clamp(map.left() + 4.0, map.right());
                canvas.fill(Rect::from_x_y_ranges(right - 4.0..=right, top..=top + band), palette.boundary);
            }
        }
    }

    fn draw_legend(&self, canvas: &mut Canvas, place: Rect) {
        let (palette, options) = (self.map.options.palette(), self.map.options);
        let font = FontId::proportional(20.0);
        let by_neuron = self.map.is_by_neuron(self.dots(canvas));
        let meanings = colours::named(options.mode, self.map.comparing, by_neuron, &self.map.table(), &palette);
        let column = place.width() / meanings.len().max(1) as f32;
        for (at, (colour, meaning)) in meanings.iter().enumerate() {
            let left = place.left_top() + vec2(column * at as f32, 0.0);
            let swatch = Rect::from_min_size(left + vec2(0.0, 4.0), Vec2::splat(24.0));
            canvas.fill(swatch.expand(2.0), palette.line);
            canvas.fill(swatch, *colour);
            let meaning = line(meaning, font.clone(), palette.muted, column - 48.0);
            canvas.write(left + vec2(40.0, 16.0), Align2::LEFT_CENTER, meaning);
        }
        if !meanings.is_empty() {
            return;
        }
        let scale = ColorImage::new([256, 1], self.map.table().to_vec());
        let bar = Rect::from_min_size(place.min, vec2(place.width(), 16.0));
        canvas.fill(bar.expand(2.0), palette.line);
        canvas.draw_image(bar, &scale);
        let Some(ticks) = options.mode.ticks() else { return };
        let places =
            [(bar.left(), Align2::LEFT_TOP), (bar.center().x, Align2::CENTER_TOP), (bar.right(), Align2::RIGHT_TOP)];
        for (text, (x, align)) in ticks.into_iter().zip(places) {
            let text = line(text, font.clone(), palette.muted, place.width());
            canvas.write(pos2(x, bar.bottom() + 8.0), align, text);
        }
    }
}

/// Lays out a line of text, shortened to `width` points.
fn line(text: &str, font: FontId, colour: Color32, width: f32) -> LayoutJob {
    let mut job = LayoutJob::simple_singleline(text.to_owned(), font, colour);
    job.wrap = TextWrapping::truncate_at_width(width);
    job
}

#[cfg(test)]
pub(super) mod tests {
    use thermocline_engine::telemetry::neurons::{LayerFiring, NeuronBoard, NeuronShape, TokenTrace};

    use super::*;
    use crate::neurons::{atlas::Atlas, facts, map::MapOptions, mode::Mode};
    use thermocline_rich_text::fonts;

    /// Tokens of a model with two layers of `neurons` neurons. Each token fires 1 in 16 neurons,
    /// others than the token before it.
    pub fn tokens(neurons: usize, count: usize) -> Vec<TokenTrace> {
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([neurons, neurons]));
        for position in 0..count {
            recorder.begin(0, position, &[position as u32], true);
            for layer in 0..2 {
                let by = |word: usize| (word as u32 + 7 * position as u32 + 1).wrapping_mul(0x9E37_79B9) >> 27;
                let fire = |word: usize| if word.is_multiple_of(2) { 0b1011u32 } else { 1 }.rotate_left(by(word));
                let fired: Vec<u32> = (0..neurons / 32).map(fire).collect();
                recorder.layer(&LayerFiring { layer, tokens: 1, fired: &fired, ..LayerFiring::default() });
            }
            recorder.end();
        }
        board.tokens(0..u64::MAX)
    }

    /// A card for such a model.
    pub fn card(mode: Mode, neurons: usize) -> PictureCard {
        let (shape, token) = (NeuronShape::new([neurons, neurons]), &tokens(neurons, 1)[0]);
        let options = MapOptions { mode, placed: true, ..MapOptions::default() };
        let mut map = MapSnapshot { atlas: Atlas::new(&shape), options, comparing: false };
        map.draw_token(token);
        let words = PictureWords {
            model: "A model".to_owned(),
            rate: Some("20 tok/s".to_owned()),
            summary: facts::summary(&shape, Some(token), true),
            sentence: Sentence {
                before: "Once upon a".to_owned(),
                token: " time".to_owned(),
                after: " there was a cat.".to_owned(),
            },
        };
        PictureCard { map, words, dot: 1 }
    }

    /// The colours within a rectangle of a picture at scale 1.
    fn colours_in(image: &ColorImage, place: Rect) -> Vec<Color32> {
        let rows = place.top() as usize..place.bottom() as usize;
        let row = |y: usize| &image.pixels[y * image.size[0]..][place.left() as usize..place.right() as usize];
        rows.flat_map(|y| row(y).to_vec()).collect()
    }

    #[test]
    fn card_is_1600_wide_and_has_all_words_in_their_places() {
        let mut card = card(Mode::Fired, 64);
        let (layout, ground) = (card.layout(), card.map.options.palette().background);
        let image = card.draw(1.0, fonts::definitions());
        assert_eq!(image.size, [1600, layout.size().y as usize]);
        let written = |image: &ColorImage, place| colours_in(image, place).iter().filter(|it| **it != ground).count();
        let parts = [layout.title, layout.speed, layout.summary, layout.legend, layout.sentence, layout.mark];
        for place in parts {
            assert!(written(&image, place) > 100, "{place:?}");
        }
        // Without texts, the rectangles are empty.
        card.words = PictureWords::default();
        let empty = card.draw(1.0, fonts::definitions());
        for place in [layout.title, layout.speed, layout.sentence] {
            assert_eq!(written(&empty, place), 0, "{place:?}");
        }
        let marked = colours_in(&image, layout.sentence);
        let behind = ground.blend(card.map.options.palette().amber.gamma_multiply(0.4));
        assert!(marked.contains(&behind), "the token is marked");
    }

    #[test]
    fn card_has_the_colours_of_its_map_and_legend() {
        for mode in [Mode::Fired, Mode::Placement, Mode::Predictor, Mode::Strength] {
            let mut card = card(mode, 64);
            let (layout, palette, table) = (card.layout(), card.map.options.palette(), card.map.table());
            let image = card.draw(1.0, fonts::definitions());
            let legend = colours_in(&image, layout.legend);
            // Each of the 64 neurons has a dot.
            let named = colours::named(mode, false, true, &table, &palette);
            for (colour, meaning) in &named {
                assert!(legend.contains(colour), "{mode:?}: {meaning}");
            }
            if named.is_empty() {
                let steps = table.iter().filter(|colour| legend.contains(colour)).count();
                assert_eq!(steps, 256, "a scale of all levels");
            }
            let map = colours_in(&image, layout.map);
            assert!(map.iter().all(|colour| table.contains(colour)), "{mode:?}: dots only");
        }
        let mut card = card(Mode::Fired, 64);
        let (layout, table) = (card.layout(), card.map.table());
        let map = colours_in(&card.draw(1.0, fonts::definitions()), layout.map);
        let lit = map.iter().filter(|colour| **colour == table[255]).count() as f32 / map.len() as f32;
        // A layer of 64 neurons has two mask words. One fires 3 neurons, the other fires 1.
        assert!((lit - 4.0 / 64.0).abs() < 0.01, "{lit}");
    }
}
