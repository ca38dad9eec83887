//! The page of `thermocline report`: HTML that needs no other files.

use std::{fmt::Write as _, time::Duration};

use serde_json::Value;

/// A self-contained HTML page.
pub struct ReportPage(String);

impl ReportPage {
    /// Creates a page with its title.
    pub fn new() -> Self {
        let style = "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em;color:#222}\
            table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left}\
            @media(prefers-color-scheme:dark){body{background:#181a1b;color:#ddd}td,th{border-color:#444}}";
        ReportPage(format!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n\
             <title>Thermocline report</title><style>{style}</style>\n<h1>Thermocline report</h1>\n"
        ))
    }

    /// Begins a section.
    pub fn section(&mut self, title: &str) {
        let _ = writeln!(self.0, "<h2>{}</h2>", escaped(title));
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.0, "<p>{}</p>", escaped(text));
    }

    /// Adds a section that shows a step's result or error. Returns true if the step found
    /// something.
    pub fn step(
        &mut self,
        title: &str,
        found: Result<Value, String>,
        show: impl FnOnce(&Value, &mut ReportPage) -> bool,
    ) -> bool {
        self.section(title);
        match found {
            Ok(found) => show(&found, self),
            Err(error) => {
                self.paragraph(&format!("failed: {error}"));
                false
            }
        }
    }

    /// Adds a table with column names and rows.
    pub fn table(&mut self, heads: &[&str], rows: &[Vec<String>]) {
        let line = |cells: &mut dyn Iterator<Item = &str>, tag: &str| {
            let cells: String = cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
            format!("<tr>{cells}</tr>\n")
        };
        self.0 += "<table>\n";
        self.0 += &line(&mut heads.iter().copied(), "th");
        for row in rows {
            self.0 += &line(&mut row.iter().map(String::as_str), "td");
        }
        self.0 += "</table>\n";
    }

    /// The HTML so far.
    #[cfg(test)]
    pub fn html(&self) -> &str {
        &self.0
    }

    /// Returns the whole page, with the time the measurements took.
    pub fn finish(mut self, took: Duration) -> String {
        self.paragraph(&format!("Measured in {:.0} s.", took.as_secs_f64()));
        self.0 + "</html>\n"
    }
}

/// Escapes text for HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_escape_what_drivers_say() {
        let mut page = ReportPage::new();
        assert!(!page.step("A", Err("<b> & \"c\"".to_owned()), |_, _| true));
        page.table(&["x"], &[vec!["<script>".to_owned()]]);
        let text = page.finish(Duration::from_secs(3));
        assert!(text.contains("&lt;b&gt; &amp; &quot;c&quot;") && text.contains("<td>&lt;script&gt;</td>"), "{text}");
        assert!(!text.contains("<script>") && text.ends_with("</html>\n"));
    }
}
