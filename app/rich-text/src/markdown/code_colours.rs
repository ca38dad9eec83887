//! Colours of code. Both highlighting and laying out coloured text take time. Short code is
//! highlighted at once. Long code is highlighted on a thread, and each frame then lays out one more
//! part of it.

use std::{
    cell::Cell,
    ops::Range,
    sync::{Arc, LazyLock, Once},
    thread,
};

use egui::{Context, FontId, Style, TextStyle, Ui, epaint::text::ByteIndex, text::LayoutJob};
use egui_extras::syntax_highlighting::{CodeTheme, SyntectSettings, highlight_with};

use super::code::{PART, part_ranges};
use crate::{background::Background, text::to_the_right};

/// Longest code that is highlighted, in bytes.
const COLOURED: usize = 24 * 1024;

/// Grammars and themes. Loading them takes longer than a frame.
static GRAMMARS: LazyLock<SyntectSettings> = LazyLock::new(SyntectSettings::default);

thread_local! {
    static FOUND: Cell<usize> = const { Cell::new(0) };
}

/// Number of bytes highlighted on this thread so far.
pub fn coloured_bytes() -> usize {
    FOUND.get()
}

/// Everything that the colours of a text depend on, apart from the text.
#[derive(Debug, Clone, PartialEq)]
struct ColourKey {
    dark: bool,
    font: FontId,
}

/// The colours of one text, in parts as it is shown.
#[derive(Debug, Default)]
pub struct CodeColours {
    key: Option<ColourKey>,
    work: Background<Vec<Arc<LayoutJob>>>,
    parts: Vec<Arc<LayoutJob>>,
    /// Number of parts shown with colours.
    shown: usize,
}

impl CodeColours {
    /// Loads the grammars on a thread. Called when code begins to arrive.
    pub fn prepare() {
        static BEGUN: Once = Once::new();
        // Without a thread, the grammars are loaded at first use.
        BEGUN.call_once(|| _ = thread::Builder::new().name("grammars".to_owned()).spawn(|| LazyLock::force(&GRAMMARS)));
    }

    /// The parts of the complete `text` that have colours in this frame. Later parts have none yet.
    pub fn of(&mut self, ui: &Ui, language: &str, text: &str) -> &[Arc<LayoutJob>] {
        if text.len() > COLOURED {
            return &[];
        }
        let key = ColourKey { dark: ui.visuals().dark_mode, font: TextStyle::Monospace.resolve(ui.style()) };
        if self.key.as_ref() != Some(&key) {
            *self = CodeColours { key: Some(key), ..CodeColours::default() };
            let (style, language, text) = (Arc::clone(ui.style()), language.to_owned(), text.to_owned());
            if text.len() <= PART {
                self.parts = colours(&style, &language, &text);
                self.shown = self.parts.len();
            } else {
                // Without a thread, the code is shown without colours.
                let _ = self.work.start(ui, move || colours(&style, &language, &text));
            }
        }
        if let Some(parts) = self.work.take() {
            self.parts = parts;
        }
        if self.shown < self.parts.len() {
            self.shown += 1;
            ui.request_repaint();
        }
        &self.parts[..self.shown]
    }
}

/// Highlights a text and returns its parts.
fn colours(style: &Style, language: &str, text: &str) -> Vec<Arc<LayoutJob>> {
    FOUND.set(FOUND.get() + text.len());
    let theme = CodeTheme::from_style(style);
    // A separate context, because the window's context would be locked meanwhile.
    let job = highlight_with(&Context::default(), style, &theme, text, extension(language), &GRAMMARS);
    part_ranges(text).into_iter().map(|range| Arc::new(part(&job, &range))).collect()
}

/// Cuts a part out of a highlighted text, with its colours.
fn part(job: &LayoutJob, range: &Range<usize>) -> LayoutJob {
    let mut part = LayoutJob { text: job.text[range.clone()].to_owned(), ..LayoutJob::default() };
    for section in &job.sections {
        let (from, to) = (section.byte_range.start.0.max(range.start), section.byte_range.end.0.min(range.end));
        if from < to {
            let byte_range = ByteIndex(from - range.start)..ByteIndex(to - range.start);
            part.sections.push(egui::text::LayoutSection { byte_range, ..section.clone() });
        }
    }
    to_the_right(part)
}

/// File extension by which the highlighter knows a language.
fn extension(language: &str) -> &str {
    match language.to_ascii_lowercase().as_str() {
        "rust" => "rs",
        "python" => "py",
        "javascript" | "jsx" | "typescript" | "ts" => "js",
        "bash" | "shell" | "console" => "sh",
        "c++" => "cpp",
        "c#" | "csharp" => "cs",
        "golang" => "go",
        "ruby" => "rb",
        "perl" => "pl",
        "haskell" => "hs",
        _ => language,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use egui_kittest::Harness;

    use super::*;
    use thermocline_host::testing::PATIENCE;

    /// The colours, the number of coloured parts in each frame, and the bytes highlighted by
    /// frames.
    type Shown = (CodeColours, Vec<usize>, usize);

    fn count(parts: &[Arc<LayoutJob>]) -> usize {
        let of_part = |part: &Arc<LayoutJob>| part.sections.iter().map(|it| it.format.color).collect::<Vec<_>>();
        parts.iter().flat_map(of_part).collect::<HashSet<_>>().len()
    }

    #[test]
    fn code_is_highlighted_by_common_language_names() {
        let style = Context::default().global_style();
        let count = |language: &str, text: &str| count(&colours(&style, language, text));
        for language in ["rust", "Rust", "rs"] {
            assert!(count(language, "fn main() { let x = \"text\"; } // end") > 2, "{language}");
        }
        for language in ["python", "py"] {
            assert!(count(language, "def f(x):\n    return 'text' # end") > 2, "{language}");
        }
        assert!(count("c++", "int main() { return 0; } // end") > 2 && count("no language", "fn main() {}") == 1);
    }

    #[test]
    fn parts_have_the_colours_of_the_whole() {
        // A comment that spans two parts.
        let text = format!("/* {}*/\nfn main() {{}}\n", "one line of it\n".repeat(400));
        let (style, whole) = (Context::default().global_style(), text.trim_end());
        let parts = colours(&style, "rust", whole);
        assert!(parts.len() > 2, "{}", parts.len());
        let words: Vec<&str> = parts.iter().map(|part| &*part.text).collect();
        assert_eq!(words.join("\n"), whole, "line ends between parts are in neither");
        let colour = |section: Option<&egui::text::LayoutSection>| section.map(|it| it.format.color);
        assert_eq!(colour(parts[0].sections.last()), colour(parts[1].sections.first()), "still the comment");
        for part in &parts {
            let ends = part.sections.windows(2).all(|pair| pair[0].byte_range.end == pair[1].byte_range.start);
            let last = part.sections.last().map(|it| it.byte_range.end.0);
            assert!(ends && part.sections[0].byte_range.start.0 == 0 && last == Some(part.text.len()), "{part:?}");
        }
    }

    /// Short code gets colours at once. Long code gets one part per frame after a thread has
    /// highlighted it. Very long code gets none.
    #[test]
    fn long_code_gets_its_colours_part_by_part() {
        let line = "let value = \"text\"; // end\n";
        let short = "fn main() {}";
        let long = line.repeat(600);
        let longest = line.repeat(COLOURED / line.len() + 1);
        assert!((2 * PART..COLOURED).contains(&long.len()));
        let shown = |text: String| {
            let ui = move |ui: &mut Ui, (colours, counts, found): &mut Shown| {
                let before = coloured_bytes();
                counts.push(colours.of(ui, "rust", &text).len());
                *found += coloured_bytes() - before;
            };
            Harness::builder().with_max_steps(4).build_ui_state(ui, Shown::default())
        };
        let it = shown(short.to_owned());
        assert_eq!((it.state().1[0], it.state().2), (1, short.len()));
        let mut it = shown(longest);
        it.run_steps(3);
        assert!(it.state().1.iter().all(|count| *count == 0) && it.state().0.key.is_none());
        let parts = part_ranges(&long).len();
        let mut it = shown(long);
        let began = std::time::Instant::now();
        while it.state().1.last() != Some(&parts) {
            assert!(began.elapsed() < PATIENCE, "{:?}", it.state().1);
            it.step();
        }
        let (_, counts, found) = it.state();
        assert!(counts.windows(2).all(|pair| pair[1] - pair[0] <= 1), "{counts:?}");
        assert_eq!(*found, 0, "no frame waited for colours");
    }
}
