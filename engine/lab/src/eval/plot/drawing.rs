//! SVG elements, colours and the legend that all charts share.

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

/// Colours of series, distinguishable with most kinds of colour vision, on light and dark pages.
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
    /// Names with their horizontal positions. A single name has no row, because the axis shows it.
    rows: Vec<Vec<(&'a str, f64)>>,
}

impl<'a> Legend<'a> {
    /// Creates the legend of series with these names. Skips empty and repeated names.
    pub fn new(all: impl Iterator<Item = &'a str>) -> Self {
        let mut names: Vec<&str> = Vec::new();
        for name in all {
            if !name.is_empty() && !names.contains(&name) {
                names.push(name);
            }
        }
        let (mut rows, mut x) = (Vec::<Vec<_>>::new(), f64::INFINITY);
        for name in names.iter().filter(|_| names.len() > 1) {
            let width = 24.0 + text_width(name) + 20.0;
            if x + width > WIDTH - RIGHT && x > LEFT {
                rows.push(Vec::new());
                x = LEFT;
            }
            rows.last_mut().into_iter().for_each(|row| row.push((*name, x)));
            x += width;
        }
        Legend { names, rows }
    }

    /// Returns the height of the legend in pixels.
    pub fn height(&self) -> f64 {
        LEGEND * self.rows.len() as f64
    }

    /// Returns the colour of the series `name`.
    pub fn colour(&self, name: &str) -> &'static str {
        let at = self.names.iter().position(|known| *known == name).unwrap_or(0);
        COLOURS[at % COLOURS.len()]
    }
}

/// Returns the approximate width of a text in pixels.
pub(super) fn text_width(text: &str) -> f64 {
    7.0 * text.chars().count() as f64
}

/// An SVG document being written.
pub(super) struct SvgDrawing(String);

impl SvgDrawing {
    /// Starts a document of `height` pixels with title, subtitle and legend.
    pub fn new(height: f64, title: &str, subtitle: &str, legend: &Legend<'_>) -> Self {
        let size = format!(r#"viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}""#);
        let mut drawing = SvgDrawing(format!(r#"<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">"#));
        drawing.line(&format!("\n<title>{}</title>\n<style>{STYLE}</style>", escaped(title)));
        drawing.text([LEFT, 24.0], "start", "title", title);
        drawing.text([LEFT, 44.0], "start", "small", subtitle);
        for (row, entries) in legend.rows.iter().enumerate() {
            let y = TOP + LEGEND * row as f64;
            for (name, x) in entries {
                let style = format!(r#"stroke="{}" stroke-width="3""#, legend.colour(name));
                drawing.stroke([*x, y], [x + 18.0, y], &style);
                drawing.text([x + 24.0, y + 4.0], "start", "", name);
            }
        }
        drawing
    }

    /// Adds a line of markup.
    pub fn line(&mut self, line: &str) {
        self.0 += line;
        self.0.push('\n');
    }

    /// Adds a straight line with these attributes.
    pub fn stroke(&mut self, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], style: &str) {
        self.line(&format!(r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" {style}/>"#));
    }

    /// Adds a text at a position.
    pub fn text(&mut self, [x, y]: [f64; 2], anchor: &str, class: &str, text: &str) {
        let class = if class.is_empty() { String::new() } else { format!(r#" class="{class}""#) };
        self.line(&format!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}"{class}>{}</text>"#, escaped(text)));
    }

    /// Returns the text of the file.
    pub fn finish(self) -> String {
        self.0 + "</svg>\n"
    }
}

/// Returns `text` with escaped markup. Replaces characters that XML does not allow.
pub(super) fn escaped(text: &str) -> String {
    let text = text.replace(|c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'), "\u{fffd}");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
pub(super) mod tests {
    /// Checks that attributes are quoted and that elements are properly nested. Returns the names
    /// of the elements.
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
