//! The drawing.

use std::fmt::Write;

use super::{
    Curve, Figure, Panel,
    axis::{Axis, Span},
};

const WIDTH: f64 = 720.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 64.0;
const PANEL: f64 = 190.0;
const GAP: f64 = 26.0;
const BOTTOM: f64 = 52.0;
const LEGEND: f64 = 18.0;

/// Told apart by most eyes, on light and on dark.
const COLOURS: [&str; 7] = ["#2f7fd1", "#e07b1a", "#3a9e5c", "#c2528b", "#8a6fd1", "#b5952b", "#4aa5a8"];

/// A style that follows the page's; whatever shows it without one sees it on white or black all the same.
const STYLE: &str = "text{font-family:system-ui,sans-serif;font-size:12px;fill:#555}\
.title{font-size:15px;font-weight:600;fill:#333}.small{font-size:11px;fill:#777}\
.grid{stroke:#888;stroke-opacity:.25}.frame{stroke:#888;fill:none}.mark{stroke:#888;stroke-dasharray:5 4}\
.curve{fill:none;stroke-width:2;stroke-linejoin:round}\
@media(prefers-color-scheme:dark){text{fill:#bbb}.title{fill:#ddd}.small{fill:#999}}";

/// The whole picture as the text of a file.
pub fn svg(figure: &Figure) -> String {
    let names = names(figure);
    let rows = legend_rows(&names);
    let top = TOP + LEGEND * rows.len() as f64;
    let count = figure.panels.len().max(1) as f64;
    let height = top + count * PANEL + (count - 1.0) * GAP + BOTTOM;
    let mut out = Drawing(String::new());
    out.line(format_args!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">"#
    ));
    out.line(format_args!("<title>{}</title>", Escaped(&figure.title)));
    out.line(format_args!("<style>{STYLE}</style>"));
    out.text((LEFT, 24.0), "start", "title", &figure.title);
    out.text((LEFT, 44.0), "start", "small", &figure.subtitle);
    for (row, entries) in rows.iter().enumerate() {
        for (name, x) in entries {
            let y = TOP + LEGEND * row as f64;
            let colour = colour(&names, name);
            out.line(format_args!(
                r#"<line x1="{x:.1}" y1="{y:.1}" x2="{:.1}" y2="{y:.1}" stroke="{colour}" stroke-width="3"/>"#,
                x + 18.0
            ));
            out.text((x + 24.0, y + 4.0), "start", "", name);
        }
    }
    let all = figure.panels.iter().flat_map(|panel| &panel.curves).flat_map(|curve| &curve.points);
    let x = figure.x.span(all.map(|point| point.x));
    for (number, panel) in figure.panels.iter().enumerate() {
        let frame = Frame { top: top + number as f64 * (PANEL + GAP), x: &x, x_axis: &figure.x };
        frame.draw(&mut out, panel, &names, number + 1 == figure.panels.len());
    }
    out.text(((LEFT + WIDTH - RIGHT) / 2.0, height - 12.0), "middle", "", &figure.x.title());
    out.line(format_args!("</svg>"));
    out.0
}

/// The curves' names, in order of their appearance.
fn names(figure: &Figure) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for curve in figure.panels.iter().flat_map(|panel| &panel.curves) {
        if !curve.name.is_empty() && !names.contains(&curve.name.as_str()) {
            names.push(&curve.name);
        }
    }
    names
}

/// Rows of names with the places they begin at; none for a single one, which the axis names.
fn legend_rows<'a>(names: &[&'a str]) -> Vec<Vec<(&'a str, f64)>> {
    let (mut rows, mut x) = (vec![Vec::new()], LEFT);
    if names.len() < 2 {
        return Vec::new();
    }
    for name in names {
        let width = 24.0 + 7.0 * name.chars().count() as f64 + 20.0;
        if x + width > WIDTH - RIGHT && x > LEFT {
            rows.push(Vec::new());
            x = LEFT;
        }
        if let Some(row) = rows.last_mut() {
            row.push((*name, x));
        }
        x += width;
    }
    rows
}

fn colour(names: &[&str], name: &str) -> &'static str {
    let at = names.iter().position(|known| *known == name).unwrap_or(0);
    COLOURS[at % COLOURS.len()]
}

/// Where a panel is drawn.
struct Frame<'a> {
    top: f64,
    x: &'a Span,
    x_axis: &'a Axis,
}

impl Frame<'_> {
    fn draw(&self, out: &mut Drawing, panel: &Panel, names: &[&str], last: bool) {
        let points = panel.curves.iter().flat_map(|curve| &curve.points);
        let ends = points.flat_map(|point| [point.y, point.y + point.error, point.y - point.error]);
        let y = panel.y.span(ends.chain(panel.marks.iter().map(|(_, height)| *height)));
        let (left, right, bottom) = (LEFT, WIDTH - RIGHT, self.top + PANEL);
        let at_x = |value: f64| left + self.x.place(value) * (right - left);
        let at_y = |value: f64| bottom - y.place(value) * PANEL;
        for tick in &y.ticks {
            let at = at_y(*tick);
            out.line(format_args!(r#"<line class="grid" x1="{left}" y1="{at:.1}" x2="{right}" y2="{at:.1}"/>"#));
            out.text((left - 8.0, at + 4.0), "end", "", &y.text(*tick));
        }
        for tick in &self.x.ticks {
            let at = at_x(*tick);
            out.line(format_args!(
                r#"<line class="grid" x1="{at:.1}" y1="{:.1}" x2="{at:.1}" y2="{bottom:.1}"/>"#,
                self.top
            ));
            if last {
                out.text((at, bottom + 18.0), "middle", "", &self.x.text(*tick));
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
            out.text((right - 6.0, at - 5.0), "end", "small", name);
        }
        for curve in &panel.curves {
            self.curve(out, curve, colour(names, &curve.name), &panel.y, &at_x, &at_y);
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
        // Many points are a line, few are measurements.
        if curve.points.len() > 60 {
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

/// Text being written.
struct Drawing(String);

impl Drawing {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Strings take everything.
        let _ = self.0.write_fmt(line);
        self.0.push('\n');
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: &str, class: &str, text: &str) {
        let class = if class.is_empty() { String::new() } else { format!(r#" class="{class}""#) };
        self.line(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}"{class}>{}</text>"#,
            Escaped(text)
        ));
    }
}

/// Text that is no markup. Characters XML cannot have are replaced.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}'),
            c if c.is_control() => f.write_char('\u{fffd}'),
            c => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::plot::Point;

    /// Checks that elements are closed in the order they were opened and attributes are quoted; returns the elements' names.
    pub fn elements(text: &str) -> Vec<String> {
        let (mut open, mut seen) = (Vec::new(), Vec::new());
        let mut rest = text;
        while let Some(at) = rest.find('<') {
            assert!(!rest[..at].contains('>'), "a stray > in {:?}", &rest[..at]);
            let end = at + rest[at..].find('>').unwrap();
            let tag = &rest[at + 1..end];
            let name = tag.trim_matches('/').split_whitespace().next().unwrap().to_owned();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name));
            } else {
                assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
                seen.push(name.clone());
                if !tag.ends_with('/') {
                    open.push(name);
                }
            }
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty(), "{open:?}");
        seen
    }

    #[test]
    fn pictures_are_well_formed_and_show_every_point() {
        let points = (0..5).map(|i| Point { x: f64::from(i), y: 0.1 * f64::from(i * i), error: 0.05 }).collect();
        let name = "a < b & \"c\"\u{7}";
        let curve = Curve { name: name.to_owned(), points };
        let other = Curve::of("other", [(0.0, 1.0), (f64::NAN, 1.0), (4.0, f64::INFINITY)]);
        let panel =
            |y: Axis| Panel { y, curves: vec![curve.clone(), other.clone()], marks: vec![("dense".to_owned(), 0.7)] };
        let figure = Figure {
            title: "<script>".to_owned(),
            subtitle: "model, 100 tokens".to_owned(),
            x: Axis::new("active", "%"),
            panels: vec![panel(Axis::new("loss", "nats")), panel(Axis::new("loss", "nats").log())],
        };
        let text = svg(&figure);
        let elements = elements(&text);
        let count = |name: &str| elements.iter().filter(|element| *element == name).count();
        // Five points and one that is finite; 0 has no place on the logarithmic axis.
        assert_eq!((count("svg"), count("circle"), count("polyline"), count("script")), (1, 6 + 5, 4, 0));
        assert!(
            text.contains("a &lt; b &amp; &quot;c&quot;\u{fffd}") && !text.contains("NaN") && !text.contains("inf")
        );
        let empty = Figure { panels: Vec::new(), ..figure.clone() };
        assert!(svg(&empty).ends_with("</svg>\n"));
        let nothing = Panel { curves: vec![Curve::of("", [])], ..panel(Axis::default()) };
        self::elements(&svg(&Figure { panels: vec![nothing], ..figure }));
    }
}
