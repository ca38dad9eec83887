//! SVG elements, colours and the legend that all charts share.

use std::fmt::{self, Write};

/// Width of a chart, in pixels.
pub(super) const WIDTH: f64 = 720.0;
/// Left margin of titles and legends.
pub(super) const LEFT: f64 = 84.0;
/// Right margin.
pub(super) const RIGHT: f64 = 24.0;
/// Height of the title and subtitle.
pub(super) const TOP: f64 = 64.0;
/// Height of the horizontal axis with its title.
pub(super) const BOTTOM: f64 = 52.0;
/// Height of a row of the legend.
const LEGEND: f64 = 18.0;

/// Colours of series, distinguishable with most kinds of colour vision, on light and on dark.
const COLOURS: [&str; 7] = ["#2f7fd1", "#e07b1a", "#3a9e5c", "#c2528b", "#8a6fd1", "#b5952b", "#4aa5a8"];

/// Style sheet that follows the page's colour scheme; legible on white and black without one.
const STYLE: &str = "text{font-family:system-ui,sans-serif;font-size:12px;fill:#555}\
.title{font-size:15px;font-weight:600;fill:#333}.small{font-size:11px;fill:#777}\
.grid{stroke:#888;stroke-opacity:.25}.frame{stroke:#888;fill:none}.mark{stroke:#888;stroke-dasharray:5 4}\
.curve{fill:none;stroke-width:2;stroke-linejoin:round}\
@media(prefers-color-scheme:dark){text{fill:#bbb}.title{fill:#ddd}.small{fill:#999}}";

/// Names of the series in a chart, in order, with their colours and the layout of the legend.
pub(super) struct Legend<'a> {
    names: Vec<&'a str>,
    /// Names with their horizontal positions; no rows for a single name, which the axis gives.
    rows: Vec<Vec<(&'a str, f64)>>,
}

impl<'a> Legend<'a> {
    /// The legend of series with these names; empty names and repetitions are left out.
    pub fn new(all: impl Iterator<Item = &'a str>) -> Self {
        let mut names: Vec<&str> = Vec::new();
        for name in all {
            if !name.is_empty() && !names.contains(&name) {
                names.push(name);
            }
        }
        let (mut rows, mut x) = (vec![Vec::new()], LEFT);
        for name in &names {
            let width = 24.0 + text_width(name) + 20.0;
            if x + width > WIDTH - RIGHT && x > LEFT {
                rows.push(Vec::new());
                x = LEFT;
            }
            if let Some(row) = rows.last_mut() {
                row.push((*name, x));
            }
            x += width;
        }
        if names.len() < 2 {
            rows.clear();
        }
        Legend { names, rows }
    }

    /// Height of the legend, in pixels.
    pub fn height(&self) -> f64 {
        LEGEND * self.rows.len() as f64
    }

    /// Colour of the series `name`.
    pub fn colour(&self, name: &str) -> &'static str {
        let at = self.names.iter().position(|known| *known == name).unwrap_or(0);
        COLOURS[at % COLOURS.len()]
    }
}

/// Approximate width of a text, in pixels.
pub(super) fn text_width(text: &str) -> f64 {
    7.0 * text.chars().count() as f64
}

/// An SVG document being written.
pub(super) struct Drawing(String);

impl Drawing {
    /// A document of `height` pixels with title, subtitle and legend.
    pub fn new(height: f64, title: &str, subtitle: &str, legend: &Legend<'_>) -> Self {
        let mut drawing = Drawing(String::new());
        drawing.line(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">"#
        ));
        drawing.line(format_args!("<title>{}</title>", Escaped(title)));
        drawing.line(format_args!("<style>{STYLE}</style>"));
        drawing.text(LEFT, 24.0, "start", "title", title);
        drawing.text(LEFT, 44.0, "start", "small", subtitle);
        for (row, entries) in legend.rows.iter().enumerate() {
            for (name, x) in entries {
                let (y, end, colour) = (TOP + LEGEND * row as f64, x + 18.0, legend.colour(name));
                drawing.line(format_args!(
                    r#"<line x1="{x:.1}" y1="{y:.1}" x2="{end:.1}" y2="{y:.1}" stroke="{colour}" stroke-width="3"/>"#
                ));
                drawing.text(x + 24.0, y + 4.0, "start", "", name);
            }
        }
        drawing
    }

    /// Adds a line of markup.
    pub fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.0.write_fmt(line);
        self.0.push('\n');
    }

    /// Adds a text at `(x, y)`.
    pub fn text(&mut self, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
        let class = if class.is_empty() { String::new() } else { format!(r#" class="{class}""#) };
        self.line(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}"{class}>{}</text>"#,
            Escaped(text)
        ));
    }

    /// The text of the file.
    pub fn finish(mut self) -> String {
        self.line(format_args!("</svg>"));
        self.0
    }
}

/// Text with markup escaped. Characters that XML does not allow are replaced.
pub(super) struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
pub(super) mod tests {
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
}
