//! A canvas without a window for rectangles, pictures and text. The window's text library lays out
//! the text, and the CPU draws it.

use std::ops::Range;

use egui::{
    Align2, Color32, ColorImage, FontDefinitions, Pos2, Rect, Vec2,
    epaint::{
        Mesh,
        text::{Fonts, LayoutJob, TextOptions},
    },
};

/// Pixels, and the fonts for text. Positions are in points of `scale` pixels.
pub struct Canvas {
    /// The pixels.
    pub image: ColorImage,
    scale: f32,
    fonts: Fonts,
}

impl Canvas {
    /// Creates a canvas of `size` points in one colour.
    pub fn new(size: Vec2, scale: f32, ground: Color32, fonts: FontDefinitions) -> Self {
        let side = |points: f32| ((points * scale).round() as usize).max(1);
        let image = ColorImage::filled([side(size.x), side(size.y)], ground);
        Canvas { image, scale, fonts: Fonts::new(TextOptions::default(), fonts) }
    }

    /// `[columns, rows]` of the pixels of a rectangle.
    pub fn pixels(&self, rect: Rect) -> [usize; 2] {
        let (columns, rows) = self.area(rect);
        [columns.len(), rows.len()]
    }

    fn area(&self, rect: Rect) -> (Range<usize>, Range<usize>) {
        let [width, height] = self.image.size;
        let at = |points: f32, most: usize| ((points * self.scale).round().max(0.0) as usize).min(most);
        (at(rect.left(), width)..at(rect.right(), width), at(rect.top(), height)..at(rect.bottom(), height))
    }

    /// Fills a rectangle.
    pub fn fill(&mut self, rect: Rect, colour: Color32) {
        let (columns, rows) = self.area(rect);
        for y in rows {
            for x in columns.clone() {
                self.blend(x, y, colour);
            }
        }
    }

    fn blend(&mut self, x: usize, y: usize, colour: Color32) {
        let at = y * self.image.size[0] + x;
        self.image.pixels[at] = self.image.pixels[at].blend(colour);
    }

    /// Draws a picture into a rectangle, without interpolation.
    pub fn draw_image(&mut self, rect: Rect, image: &ColorImage) {
        let (columns, rows) = self.area(rect);
        let [width, height] = image.size;
        if width == 0 || height == 0 {
            return;
        }
        let (left, top) = (columns.start, rows.start);
        for y in rows.clone() {
            for x in columns.clone() {
                let (u, v) = ((x - left) * width / columns.len(), (y - top) * height / rows.len());
                self.blend(x, y, image.pixels[v * width + u]);
            }
        }
    }

    /// Writes text, aligned to a point by `align`.
    pub fn write(&mut self, at: Pos2, align: Align2, job: LayoutJob) {
        let galley = self.fonts.with_pixels_per_point(self.scale).layout_job(job);
        let min = align.anchor_size(at, galley.size()).min;
        // Rounds to whole pixels, because the glyphs were rasterised for them.
        let min = (min.to_vec2() * self.scale).round() / self.scale;
        for row in &galley.rows {
            self.draw_letters(min + row.pos.to_vec2(), &row.visuals.mesh);
        }
    }

    /// Draws the rectangles of a row of text: glyphs from the font atlas, and their backgrounds.
    fn draw_letters(&mut self, at: Vec2, mesh: &Mesh) {
        for corners in mesh.indices.chunks_exact(6) {
            let corners = || corners.iter().filter_map(|index| mesh.vertices.get(*index as usize));
            let Some(first) = corners().next() else { continue };
            let (mut place, mut texels) = (Rect::NOTHING, Rect::NOTHING);
            for corner in corners() {
                place.extend_with(corner.pos + at);
                texels.extend_with(corner.uv);
            }
            self.draw_letter(place, texels, first.color);
        }
    }

    fn draw_letter(&mut self, place: Rect, texels: Rect, colour: Color32) {
        let (columns, rows) = self.area(place);
        let (left, top) = (columns.start, rows.start);
        let along = |range: egui::Rangef, part: f32| (range.min + range.span() * part) as usize;
        for y in rows.clone() {
            for x in columns.clone() {
                let u = along(texels.x_range(), ((x - left) as f32 + 0.5) / columns.len() as f32);
                let v = along(texels.y_range(), ((y - top) as f32 + 0.5) / rows.len() as f32);
                let letters = self.fonts.texture_atlas().image();
                let Some(texel) = letters.pixels.get(v * letters.size[0] + u).copied() else { continue };
                // Glyphs are grey and take the text's colour. Emoji have their own colours.
                let grey = texel.r() == texel.g() && texel.g() == texel.b();
                self.blend(x, y, if grey { texel * colour } else { texel });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use egui::{FontId, pos2, vec2};

    use super::*;
    use thermocline_rich_text::fonts;

    const GROUND: Color32 = Color32::from_rgb(11, 20, 32);

    fn canvas(scale: f32) -> Canvas {
        Canvas::new(vec2(200.0, 100.0), scale, GROUND, fonts::definitions())
    }

    /// Bounds of the pixels that differ from the background.
    fn drawn(canvas: &Canvas) -> Rect {
        let [width, _] = canvas.image.size;
        let mut bounds = Rect::NOTHING;
        for at in (0..canvas.image.pixels.len()).filter(|at| canvas.image.pixels[*at] != GROUND) {
            bounds.extend_with(pos2((at % width) as f32, (at / width) as f32));
        }
        bounds
    }

    #[test]
    fn text_is_drawn_where_it_is_asked_for_in_its_colour() {
        for scale in [1.0, 0.5] {
            let job = || LayoutJob::simple("Hot".to_owned(), FontId::proportional(40.0), Color32::RED, f32::INFINITY);
            let mut left = canvas(scale);
            left.write(pos2(10.0, 20.0), Align2::LEFT_TOP, job());
            let mut right = canvas(scale);
            right.write(pos2(190.0, 20.0), Align2::RIGHT_TOP, job());
            let (a, b) = (drawn(&left), drawn(&right));
            assert!(a.left() >= 10.0 * scale && a.right() < 100.0 * scale && a.top() > 20.0 * scale, "{a:?}");
            assert!(b.left() > 100.0 * scale && b.right() <= 190.0 * scale, "{b:?}");
            assert!(a.height() > 20.0 * scale && a.height() < 50.0 * scale, "{a:?}");
            let is_red = |pixel: &Color32| pixel.r() > 150 && pixel.g() < 40;
            assert!(left.image.pixels.iter().any(is_red), "the middle of a stroke has its colour");
        }
    }

    #[test]
    fn pictures_keep_the_edges_of_their_dots() {
        let mut canvas = canvas(1.0);
        let image = ColorImage::new([2, 1], vec![Color32::RED, Color32::BLUE]);
        let place = Rect::from_min_size(pos2(10.0, 10.0), vec2(20.0, 4.0));
        canvas.draw_image(place, &image);
        assert_eq!(canvas.pixels(place), [20, 4]);
        let count = |colour| canvas.image.pixels.iter().filter(|pixel| **pixel == colour).count();
        assert_eq!((count(Color32::RED), count(Color32::BLUE)), (40, 40));
        assert_eq!(canvas.image.pixels[10 * 200 + 19], Color32::RED);
        assert_eq!(canvas.image.pixels[10 * 200 + 20], Color32::BLUE);
        canvas.draw_image(place, &ColorImage::new([0, 0], Vec::new()));
    }
}
