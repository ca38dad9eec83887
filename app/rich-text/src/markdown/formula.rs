//! A LaTeX formula, laid out by RaTeX with KaTeX's rules and fonts, and drawn with egui's painter.

use std::sync::Arc;

use egui::{
    Color32, FontId, Mesh, Painter, Pos2, Rect, Shape, Stroke, TextureId, Vec2,
    epaint::{Vertex, WHITE_UV},
};
use ratex_types::{
    color::Color,
    display_item::{DisplayItem, DisplayList},
    math_style::MathStyle,
    path_command::PathCommand,
};

use crate::fonts;

/// Longest formula that is laid out, in bytes of source. Longer formulas are shown as source.
const LONGEST: usize = 4096;

/// Points per curve of an outline.
const CURVE: usize = 8;

/// A filled outline as triangles, in em.
#[derive(Debug, Clone, PartialEq)]
struct FilledOutline {
    points: Vec<Vec2>,
    triangles: Vec<u32>,
    color: Color,
}

/// A formula. Lengths are in em.
#[derive(Debug, Clone)]
pub struct Formula {
    /// LaTeX source without delimiters.
    pub source: String,
    /// `true` if the formula is on a line of its own.
    pub display: bool,
    /// `None` if the formula cannot be laid out. The source is then shown.
    drawing: Option<Arc<(DisplayList, Vec<FilledOutline>)>>,
}

impl PartialEq for Formula {
    /// True if both have the same source and style, and therefore look the same.
    fn eq(&self, other: &Self) -> bool {
        (&self.source, self.display) == (&other.source, other.display)
    }
}

impl Formula {
    /// Lays out a formula.
    pub fn new(source: &str, display: bool) -> Self {
        let drawing = (source.len() <= LONGEST).then(|| drawing(source, display)).flatten();
        Formula { source: source.trim().to_owned(), display, drawing: drawing.map(Arc::new) }
    }

    /// LaTeX source with delimiters.
    pub fn written(&self) -> String {
        let marks = if self.display { "$$" } else { "$" };
        format!("{marks}{}{marks}", self.source)
    }

    /// Width, height above the baseline and depth below it, in em; `None` if the source is shown.
    pub fn size(&self) -> Option<(f32, f32, f32)> {
        self.drawing.as_deref().map(|(list, _)| (list.width as f32, list.height as f32, list.depth as f32))
    }

    /// Draws the formula with its left end and baseline at `at`. One em is `em` points.
    pub fn paint(&self, painter: &Painter, at: Pos2, em: f32, text: Color32) {
        let Some((list, outlines)) = self.drawing.as_deref() else { return };
        let origin = at - Vec2::new(0.0, list.height as f32 * em);
        let place = |x: f64, y: f64| origin + Vec2::new(x as f32, y as f32) * em;
        let mut outlines = outlines.iter();
        for item in &list.items {
            match item {
                DisplayItem::GlyphPath { x, y, scale, font, char_code, color } => {
                    let Some(letter) = char::from_u32(*char_code) else { continue };
                    let font = FontId::new(*scale as f32 * em, fonts::formula(font));
                    let galley = painter.layout_no_wrap(letter.to_string(), font, ink(color, text));
                    let baseline = galley.rows.first().and_then(|row| Some(row.pos.y + row.glyphs.first()?.pos.y));
                    let pos = place(*x, *y) - Vec2::new(0.0, baseline.unwrap_or_default());
                    painter.galley(pos, galley, text);
                }
                DisplayItem::Line { x, y, width, thickness, color, .. } => {
                    let size = Vec2::new(*width as f32 * em, (*thickness as f32 * em).max(1.0));
                    let rect = Rect::from_min_size(place(*x, y - thickness / 2.0), size);
                    painter.rect_filled(rect, 0.0, ink(color, text));
                }
                DisplayItem::Rect { x, y, width, height, color } => {
                    let size = Vec2::new(*width as f32, *height as f32) * em;
                    let size = size.max(Vec2::splat(1.0));
                    painter.rect_filled(Rect::from_min_size(place(*x, *y), size), 0.0, ink(color, text));
                }
                DisplayItem::Path { x, y, commands, fill, color } => {
                    let origin = place(*x, *y);
                    if let Some(outline) = outlines.next().filter(|_| *fill) {
                        fill_outline(painter, outline, origin, em, text);
                    } else {
                        let width = (0.04 * em).max(1.0);
                        for points in flat(commands) {
                            let points = points.into_iter().map(|point| origin + point * em).collect();
                            painter.add(Shape::line(points, Stroke::new(width, ink(color, text))));
                        }
                    }
                }
            }
        }
    }
}

fn drawing(source: &str, display: bool) -> Option<(DisplayList, Vec<FilledOutline>)> {
    let nodes = ratex_parser::parse(source.trim()).ok()?;
    let style = if display { MathStyle::Display } else { MathStyle::Text };
    let options = ratex_layout::LayoutOptions { style, ..ratex_layout::LayoutOptions::default() };
    let laid = ratex_layout::layout(&nodes, &options);
    ratex_layout::validate_layout(&laid).ok()?;
    let list = ratex_layout::to_display_list(&laid);
    let sizes = [list.width, list.height, list.depth];
    let outlines = list.items.iter().filter_map(|item| match item {
        DisplayItem::Path { commands, color, .. } => Some(outline(commands, *color)),
        _ => None,
    });
    let outlines = outlines.collect();
    sizes.iter().all(|size| size.is_finite() && size.abs() < 1000.0).then_some((list, outlines))
}

/// Replaces black by the colour of the surrounding text.
fn ink(color: &Color, text: Color32) -> Color32 {
    if *color == Color::BLACK {
        return text;
    }
    let part = |value: f32| (value.clamp(0.0, 1.0) * 255.0).round() as u8;
    Color32::from_rgba_unmultiplied(part(color.r), part(color.g), part(color.b), part(color.a))
}

/// Polylines along an outline, one per subpath.
fn flat(commands: &[PathCommand]) -> Vec<Vec<Vec2>> {
    let mut parts: Vec<Vec<Vec2>> = Vec::new();
    let point = |x: f64, y: f64| Vec2::new(x as f32, y as f32);
    for command in commands {
        if let PathCommand::MoveTo { x, y } = command {
            parts.push(vec![point(*x, *y)]);
            continue;
        }
        let Some(part) = parts.last_mut() else { continue };
        let Some(&from) = part.last() else { continue };
        match command {
            PathCommand::LineTo { x, y } => part.push(point(*x, *y)),
            PathCommand::QuadTo { x1, y1, x, y } => {
                let (by, to) = (point(*x1, *y1), point(*x, *y));
                part.extend((1..=CURVE).map(|step| {
                    let t = step as f32 / CURVE as f32;
                    from * (1.0 - t) * (1.0 - t) + by * 2.0 * t * (1.0 - t) + to * t * t
                }));
            }
            PathCommand::CubicTo { x1, y1, x2, y2, x, y } => {
                let (one, two, to) = (point(*x1, *y1), point(*x2, *y2), point(*x, *y));
                part.extend((1..=CURVE).map(|step| {
                    let (t, s) = (step as f32 / CURVE as f32, 1.0 - step as f32 / CURVE as f32);
                    from * s * s * s + one * 3.0 * t * s * s + two * 3.0 * t * t * s + to * t * t * t
                }));
            }
            PathCommand::MoveTo { .. } | PathCommand::Close => {}
        }
    }
    parts
}

fn outline(commands: &[PathCommand], color: Color) -> FilledOutline {
    let (mut points, mut triangles) = (Vec::new(), Vec::new());
    let mut earcut = earcut::Earcut::new();
    for part in flat(commands) {
        let mut indices: Vec<u32> = Vec::new();
        earcut.earcut(part.iter().map(|point| [point.x, point.y]), &[], &mut indices);
        let first = points.len() as u32;
        triangles.extend(indices.into_iter().map(|index| first + index));
        points.extend(part);
    }
    FilledOutline { points, triangles, color }
}

fn fill_outline(painter: &Painter, outline: &FilledOutline, origin: Pos2, em: f32, text: Color32) {
    let color = ink(&outline.color, text);
    let vertex = |point: &Vec2| Vertex { pos: origin + *point * em, uv: WHITE_UV, color };
    let vertices = outline.points.iter().map(vertex).collect();
    let mesh = Mesh { indices: outline.triangles.clone(), vertices, texture_id: TextureId::default() };
    painter.add(Shape::mesh(mesh));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_of_every_sort_are_laid_out() {
        for source in [
            "a^2 + b_1^2 = c^2",
            "\\frac{-b \\pm \\sqrt{b^2 - 4ac}}{2a}",
            "\\sum_{i=0}^{n} \\int_0^\\infty e^{-x^2}\\,dx \\le \\prod_k \\alpha_k",
            "\\begin{pmatrix} 1 & 0 \\\\ 0 & 1 \\end{pmatrix}",
            "f(x) = \\begin{cases} 1 & x > 0 \\\\ 0 & \\text{otherwise} \\end{cases}",
            "\\begin{aligned} a &= b \\\\ &= c \\end{aligned}",
            "\\mathbb{R} \\to \\mathcal{L}, \\hat{x} \\cdot \\vec{y} \\in \\left\\{ \\dfrac{1}{2} \\right\\}",
            "\\sqrt[3]{\\Gamma\\Omega} \\neq \\lim_{x\\to 0} \\operatorname{sin} x",
        ] {
            let (width, height, depth) = Formula::new(source, true).size().unwrap_or_else(|| panic!("{source}"));
            assert!(width > 0.5 && height > 0.3 && depth >= 0.0, "{source}: {width} {height} {depth}");
        }
    }

    #[test]
    fn what_is_no_formula_keeps_its_source() {
        for source in ["\\frac{1", "\\unknowncommand{x}", "}", &"x^{".repeat(300), &"x".repeat(LONGEST + 1)] {
            let formula = Formula::new(source, false);
            assert!(formula.size().is_none(), "{source}");
            assert_eq!(formula.source, source);
        }
    }

    #[test]
    fn display_style_is_larger_than_text_style() {
        let height = |display| Formula::new("\\sum_{i}^{n} \\frac{1}{2}", display).size().unwrap().1;
        assert!(height(true) > height(false));
    }
}
