//! The colours of code. Finding them takes time, and so does laying out what has many of them: short code has them at once, of long
//! code they are found beside the frames, and then each frame lays out one part of it anew.

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

/// Bytes of code up to which it has colours.
const COLOURED: usize = 24 * 1024;

/// Grammars and themes, which take longer to load than a frame may.
static GRAMMARS: LazyLock<SyntectSettings> = LazyLock::new(SyntectSettings::default);

thread_local! {
    static FOUND: Cell<usize> = const { Cell::new(0) };
}

/// Bytes of code whose colours were found on this thread so far.
pub fn coloured_bytes() -> usize {
    FOUND.get()
}

/// Everything that the colours of a text depend on.
#[derive(Debug, Clone, PartialEq)]
struct ColourKey {
    dark: bool,
    font: FontId,
}

/// The colours of one text, in the parts that it is shown in.
#[derive(Debug, Default)]
pub struct CodeColours {
    key: Option<ColourKey>,
    work: Background<Vec<Arc<LayoutJob>>>,
    parts: Vec<Arc<LayoutJob>>,
    /// Parts that are shown with their colours.
    shown: usize,
}

impl CodeColours {
    /// Loads the grammars beside the frames: code is being written.
    pub fn prepare() {
        static BEGUN: Once = Once::new();
        // Without a thread they are loaded when they are needed.
        BEGUN.call_once(|| _ = thread::Builder::new().name("grammars".to_owned()).spawn(|| LazyLock::force(&GRAMMARS)));
    }

    /// Parts of `text`, all of which is there, that have colours in this frame. Later ones have none yet.
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
                // Code without colours can be read, too.
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

/// The parts of a text with colours.
fn colours(style: &Style, language: &str, text: &str) -> Vec<Arc<LayoutJob>> {
    FOUND.set(FOUND.get() + text.len());
    let theme = CodeTheme::from_style(style);
    // A context of its own: that of the window would be locked meanwhile.
    let job = highlight_with(&Context::default(), style, &theme, text, extension(language), &GRAMMARS);
    part_ranges(text).into_iter().map(|range| Arc::new(part(&job, &range))).collect()
}

/// A part of a text that is laid out, with the colours it has there.
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

/// File extension of a language, by which the highlighter knows it.
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

    /// The colours, the number of parts that had them with each frame, and the bytes whose colours frames found.
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
        // A comment that begins in one part and ends in another.
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

    /// Short code at once; long code one part a frame, once colours were found on another thread; the longest not at all.
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
