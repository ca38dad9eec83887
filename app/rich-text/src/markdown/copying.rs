//! Copying of selected text as it is written. Formulas are drawn over placeholders, and
//! right-to-left lines are laid out in visual order. Neither may reach the clipboard. While text is
//! copied, each character of such a paragraph is therefore a private-use character. These are
//! replaced by the written text on the way to the clipboard.

use std::{collections::BTreeMap, sync::Arc};

use egui::{
    Context, Event, FullOutput, Galley, OutputCommand, Plugin, PointerButton, Pos2, Response, Stroke, Ui,
    text_selection::LabelSelectionState,
};

use super::{
    layout::ReadyLayout,
    paragraph::{PLACE, Paragraph},
};
use crate::theme::Palette;

/// The first private-use character, from Unicode's last plane, which no text font covers.
const FIRST: u32 = 0x0010_0000;

/// Number of private-use characters.
const COUNT: usize = 0xfffe;

/// A character of a paragraph, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CopiedCharacter {
    paragraph: usize,
    /// Byte of the paragraph's text; `None` if only the layout contains the character.
    origin: Option<usize>,
    text: String,
}

/// The characters behind the private-use characters of this frame.
#[derive(Debug, Default)]
pub struct Copying {
    written: Vec<CopiedCharacter>,
    paragraphs: usize,
}

impl Plugin for Copying {
    fn debug_name(&self) -> &'static str {
        "copied text"
    }

    fn output_hook(&mut self, _: &Context, output: &mut FullOutput) {
        for command in &mut output.platform_output.commands {
            if let OutputCommand::CopyText(text) | OutputCommand::TextSelectionSettled(text) = command {
                *text = self.decode(text);
            }
        }
        *self = Copying::default();
    }
}

impl Copying {
    /// Encodes a paragraph as one private-use character per character of the layout; `None` if too
    /// few are left.
    fn encode(&mut self, paragraph: &Paragraph, ready: &ReadyLayout) -> Option<String> {
        let first = self.written.len();
        if first + ready.text.origins.len() > COUNT {
            return None;
        }
        self.paragraphs += 1;
        let mut formulas = paragraph.text.match_indices(PLACE).zip(&paragraph.formulas);
        let formulas: BTreeMap<usize, String> =
            formulas.by_ref().map(|((at, _), formula)| (at, formula.written())).collect();
        for origin in &ready.text.origins {
            let text = origin.map(|at| match formulas.get(&at) {
                Some(source) => source.clone(),
                None => paragraph.text[at..].chars().take(1).collect(),
            });
            let written =
                CopiedCharacter { paragraph: self.paragraphs, origin: *origin, text: text.unwrap_or_default() };
            self.written.push(written);
        }
        (first..self.written.len()).map(|at| char::from_u32(FIRST + u32::try_from(at).ok()?)).collect()
    }

    /// Replaces private-use characters in `text` by the written text, in logical order within each
    /// paragraph.
    fn decode(&self, text: &str) -> String {
        let mut decoded = String::with_capacity(text.len());
        let mut run: Vec<&CopiedCharacter> = Vec::new();
        for c in text.chars() {
            let index = u32::from(c).checked_sub(FIRST).and_then(|at| usize::try_from(at).ok());
            let written = index.and_then(|at| self.written.get(at));
            let goes_on = written.zip(run.last()).is_none_or(|(one, last)| one.paragraph == last.paragraph);
            if written.is_none() || !goes_on {
                decoded.push_str(&ordered(&mut run));
            }
            match written {
                Some(written) => run.push(written),
                None => decoded.push(c),
            }
        }
        decoded + &ordered(&mut run)
    }
}

fn ordered(run: &mut Vec<&CopiedCharacter>) -> String {
    run.retain(|written| written.origin.is_some());
    run.sort_by_key(|written| written.origin);
    run.dedup_by_key(|written| written.origin);
    run.drain(..).map(|written| written.text.as_str()).collect()
}

/// Draws a paragraph whose text can be selected.
pub fn label(ui: &Ui, response: &Response, at: Pos2, galley: &Arc<Galley>, paragraph: &Paragraph, ready: &ReadyLayout) {
    let mut shown = Arc::clone(galley);
    if !ready.text.origins.is_empty() && is_copying(ui) {
        let text = ui.plugin_or_default::<Copying>().lock().encode(paragraph, ready);
        if let Some(text) = text {
            let galley = Arc::make_mut(&mut shown);
            Arc::make_mut(&mut galley.job).text = text;
        }
    }
    LabelSelectionState::label_text_selection(ui, response, at, shown, Palette::of(ui).text, Stroke::NONE);
}

/// True if the selected text may be copied in this frame: by a key, or at the end of a selection,
/// which some systems can paste.
fn is_copying(ui: &Ui) -> bool {
    ui.input(|input| {
        let copied = input.events.iter().any(|event| matches!(event, Event::Copy));
        let word = input.pointer.button_double_clicked(PointerButton::Primary)
            || input.pointer.button_triple_clicked(PointerButton::Primary);
        copied || (input.pointer.any_released() && !word)
    })
}
