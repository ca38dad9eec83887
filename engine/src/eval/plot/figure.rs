//! Line charts: panels of curves one below the other.

use super::{
    Curve, Figure, Panel,
    axis::{Axis, Span},
    drawing::{BOTTOM, Drawing, Escaped, LEFT, Legend, RIGHT, TOP, WIDTH},
};

/// Height of a panel, in pixels.
const PANEL: f64 = 190.0;
/// Distance between panels, in pixels.
const GAP: f64 = 26.0;
/// Curves of more points than this are drawn without markers.
const MAX_MARKERS: usize = 60;

/// The figure as the text of an SVG file.
pub fn svg(figure: &Figure) -> String {
    let curves = || figure.panels.iter().flat_map(|panel| &panel.curves);
    let legend = Legend::new(curves().map(|curve| curve.name.as_str()));
    let top = TOP + legend.height();
    let count = figure.panels.len().max(1) as f64;
    let height = top + count * PANEL + (count - 1.0) * GAP + BOTTOM;
    let mut out = Drawing::new(height, &figure.title, &figure.subtitle, &legend);
    let x = figure.x.span(curves().flat_map(|curve| &curve.points).map(|point| point.x));
    for (number, panel) in figure.panels.iter().enumerate() {
        let frame = Frame { top: top + number as f64 * (PANEL + GAP), x: &x, x_axis: &figure.x };
        frame.draw(&mut out, panel, &legend, number + 1 == figure.panels.len());
    }
    out.text(f64::midpoint(LEFT, WIDTH - RIGHT), height - 12.0, "middle", "", &figure.x.title());
    out.finish()
}

/// Position of a panel and the horizontal axis.
struct Frame<'a> {
    top: f64,
    x: &'a Span,
    x_axis: &'a Axis,
}

impl Frame<'_> {
    fn draw(&self, out: &mut Drawing, panel: &Panel, legend: &Legend<'_>, last: bool) {
        let points = panel.curves.iter().flat_map(|curve| &curve.points);
        let ends = points.flat_map(|point| [point.y, point.y + point.error, point.y - point.error]);
        let y = panel.y.span(ends.chain(panel.marks.iter().map(|(_, height)| *height)));
        let (left, right, bottom) = (LEFT, WIDTH - RIGHT, self.top + PANEL);
        let at_x = |value: f64| left + self.x.position(value) * (right - left);
        let at_y = |value: f64| bottom - y.position(value) * PANEL;
        for tick in &y.ticks {
            let at = at_y(*tick);
            out.line(format_args!(r#"<line class="grid" x1="{left}" y1="{at:.1}" x2="{right}" y2="{at:.1}"/>"#));
            out.text(left - 8.0, at + 4.0, "end", "", &y.text(*tick));
        }
        for tick in &self.x.ticks {
            let at = at_x(*tick);
            out.line(format_args!(
                r#"<line class="grid" x1="{at:.1}" y1="{:.1}" x2="{at:.1}" y2="{bottom:.1}"/>"#,
                self.top
            ));
            if last {
                out.text(at, bottom + 18.0, "middle", "", &self.x.text(*tick));
            }
        }
        out.line(format_args!(
            r#"<rect class="frame" x="{left}" y="{:.1}" width="{:.1}" height="{PANEL}"/>"#,
            self.top,
            right - left
        ));
        let middle = self.top + PANEL / 2.0;
        out.line(format_args!(
            r#"<text x="18" y="{middle:.1}" text-anchor="middle" transform="rotate(-90 18 {middle:.1})">{}</text>"#,
            Escaped(&panel.y.title())
        ));
        for (name, height) in panel.marks.iter().filter(|(_, height)| panel.y.holds(*height)) {
            let at = at_y(*height);
            out.line(format_args!(r#"<line class="mark" x1="{left}" y1="{at:.1}" x2="{right}" y2="{at:.1}"/>"#));
            out.text(right - 6.0, at - 5.0, "end", "small", name);
        }
        for curve in &panel.curves {
            self.curve(out, curve, legend.colour(&curve.name), &panel.y, &at_x, &at_y);
        }
    }

    fn curve(
        &self,
        out: &mut Drawing,
        curve: &Curve,
        colour: &str,
        y_axis: &Axis,
        at_x: &dyn Fn(f64) -> f64,
        at_y: &dyn Fn(f64) -> f64,
    ) {
        let points = || curve.points.iter().filter(|point| self.x_axis.holds(point.x) && y_axis.holds(point.y));
        let mut path = String::new();
        for point in points() {
            path += &format!("{:.1},{:.1} ", at_x(point.x), at_y(point.y));
        }
        if path.is_empty() {
            return;
        }
        out.line(format_args!(r#"<polyline class="curve" stroke="{colour}" points="{}"/>"#, path.trim_end()));
        if curve.points.len() > MAX_MARKERS {
            return;
        }
        for point in points() {
            let (x, y) = (at_x(point.x), at_y(point.y));
            let (low, high) = (point.y - point.error, point.y + point.error);
            if point.error > 0.0 && y_axis.holds(low) && y_axis.holds(high) {
                out.line(format_args!(
                    r#"<line x1="{x:.1}" y1="{:.1}" x2="{x:.1}" y2="{:.1}" stroke="{colour}"/>"#,
                    at_y(low),
                    at_y(high)
                ));
            }
            out.line(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"/>"#));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::plot::{Point, drawing::tests::elements as elements_of};

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
        // Five points and a finite one; 0 has no position on the logarithmic axis.
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
