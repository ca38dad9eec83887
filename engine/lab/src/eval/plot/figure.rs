//! Line charts: panels of curves, one below another.

use super::{
    Figure, Panel, Point,
    axis::Span,
    drawing::{BOTTOM, LEFT, Legend, RIGHT, SvgDrawing, TOP, WIDTH, escaped},
};

/// Height of a panel, in pixels.
const PANEL: f64 = 190.0;
/// Distance between panels, in pixels.
const GAP: f64 = 26.0;
/// Most points of a curve with markers.
const MAX_MARKERS: usize = 60;

/// Draws the figure as the text of an SVG file.
pub fn svg(figure: &Figure) -> String {
    let curves = || figure.panels.iter().flat_map(|panel| &panel.curves);
    let legend = Legend::new(curves().map(|curve| curve.name.as_str()));
    let top = TOP + legend.height();
    let count = figure.panels.len().max(1) as f64;
    let height = top + count * PANEL + (count - 1.0) * GAP + BOTTOM;
    let mut out = SvgDrawing::new(height, &figure.title, &figure.subtitle, &legend);
    let points = curves().flat_map(|curve| &curve.points);
    let x = figure.x.span(points.map(|point| point.x), [LEFT, WIDTH - RIGHT]);
    for (number, panel) in figure.panels.iter().enumerate() {
        let top = top + number as f64 * (PANEL + GAP);
        let points = panel.curves.iter().flat_map(|curve| &curve.points);
        let ends = points.flat_map(|point| [point.y, point.y + point.error, point.y - point.error]);
        let y = panel.y.span(ends.chain(panel.marks.iter().map(|(_, height)| *height)), [top + PANEL, top]);
        frame(&mut out, panel, [&x, &y], top, number + 1 == figure.panels.len());
        for it in &panel.curves {
            let points = it.points.iter().filter(|point| figure.x.holds(point.x) && panel.y.holds(point.y));
            let error = |point: &Point| panel.y.holds(point.y - point.error) && panel.y.holds(point.y + point.error);
            let points = points.map(|point| Point { error: if error(point) { point.error } else { 0.0 }, ..*point });
            let (points, marked): (Vec<_>, _) = (points.collect(), it.points.len() <= MAX_MARKERS);
            curve(&mut out, &points, marked, [&x, &y], legend.colour(&it.name));
        }
    }
    out.text([f64::midpoint(LEFT, WIDTH - RIGHT), height - 12.0], "middle", "", &figure.x.title());
    out.finish()
}

/// Draws the grid, the axes' texts and the marks of a panel whose top is at `top`.
fn frame(out: &mut SvgDrawing, panel: &Panel, [x, y]: [&Span; 2], top: f64, last: bool) {
    let (left, right, bottom) = (LEFT, WIDTH - RIGHT, top + PANEL);
    for tick in &y.ticks {
        let at = y.at(*tick);
        out.stroke([left, at], [right, at], r#"class="grid""#);
        out.text([left - 8.0, at + 4.0], "end", "", &y.text(*tick));
    }
    for tick in &x.ticks {
        let at = x.at(*tick);
        out.stroke([at, top], [at, bottom], r#"class="grid""#);
        if last {
            out.text([at, bottom + 18.0], "middle", "", &x.text(*tick));
        }
    }
    let (width, middle, title) = (right - left, top + PANEL / 2.0, escaped(&panel.y.title()));
    out.line(&format!(r#"<rect class="frame" x="{left}" y="{top:.1}" width="{width:.1}" height="{PANEL}"/>"#));
    out.line(&format!(
        r#"<text x="18" y="{middle:.1}" text-anchor="middle" transform="rotate(-90 18 {middle:.1})">{title}</text>"#
    ));
    for (name, height) in panel.marks.iter().filter(|(_, height)| panel.y.holds(*height)) {
        let at = y.at(*height);
        out.stroke([left, at], [right, at], r#"class="mark""#);
        out.text([right - 6.0, at - 5.0], "end", "small", name);
    }
}

/// Draws a curve through the points that have positions, with markers and errors if `marked` is
/// set.
fn curve(out: &mut SvgDrawing, points: &[Point], marked: bool, [x, y]: [&Span; 2], colour: &str) {
    if points.is_empty() {
        return;
    }
    let path: Vec<String> = points.iter().map(|point| format!("{:.1},{:.1}", x.at(point.x), y.at(point.y))).collect();
    out.line(&format!(r#"<polyline class="curve" stroke="{colour}" points="{}"/>"#, path.join(" ")));
    for point in points.iter().filter(|_| marked) {
        let (at, height) = (x.at(point.x), y.at(point.y));
        if point.error > 0.0 {
            let [low, high] = [point.y - point.error, point.y + point.error].map(|end| y.at(end));
            out.stroke([at, low], [at, high], &format!(r#"stroke="{colour}""#));
        }
        out.line(&format!(r#"<circle cx="{at:.1}" cy="{height:.1}" r="3.5" fill="{colour}"/>"#));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::plot::{Axis, Curve, drawing::tests::elements as elements_of};

    #[test]
    fn line_charts_are_well_formed_with_a_marker_per_point() {
        let points = (0..5).map(|i| Point { x: f64::from(i), y: 0.1 * f64::from(i * i), error: 0.05 }).collect();
        let name = "a < b & \"c\"\u{7}";
        let curve = Curve { name: name.to_owned(), points };
        let other = Curve::from_points("other", [(0.0, 1.0), (f64::NAN, 1.0), (4.0, f64::INFINITY)]);
        let panel =
            |y: Axis| Panel { y, curves: vec![curve.clone(), other.clone()], marks: vec![("dense".to_owned(), 0.7)] };
        let figure = Figure {
            title: "<script>".to_owned(),
            subtitle: "model, 100 tokens".to_owned(),
            x: Axis::new("active", "%"),
            panels: vec![panel(Axis::new("loss", "nats")), panel(Axis::new("loss", "nats").log())],
        };
        let text = svg(&figure);
        let elements = elements_of(&text);
        let count = |name: &str| elements.iter().filter(|element| *element == name).count();
        // Five points and a finite point. 0 has no position on the logarithmic axis.
        assert_eq!((count("svg"), count("circle"), count("polyline"), count("script")), (1, 6 + 5, 4, 0));
        assert!(
            text.contains("a &lt; b &amp; &quot;c&quot;\u{fffd}") && !text.contains("NaN") && !text.contains("inf")
        );
        let empty = Figure { panels: Vec::new(), ..figure.clone() };
        assert!(svg(&empty).ends_with("</svg>\n"));
        let nothing = Panel { curves: vec![Curve::from_points("", [])], ..panel(Axis::default()) };
        elements_of(&svg(&Figure { panels: vec![nothing], ..figure }));
    }
}
