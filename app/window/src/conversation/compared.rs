//! Two answers side by side. The first different word is marked, and the cost of each answer is
//! shown.

use std::ops::Range;

use egui::{Label, RichText, TextFormat, Ui, text::LayoutJob};
use egui_material_icons::icons::ICON_CLOSE;

use super::explained::words;
use thermocline_chats::{
    chat::{AnswerComparison, SideState, SideText},
    store::MessageId,
};
use thermocline_rich_text::{
    theme::{Palette, strong},
    widgets::{icon_button, muted, small, two_columns},
};

/// The words of both answers, and the first difference.
#[derive(Debug, Default, PartialEq)]
struct Parting {
    /// Bytes of both texts that were split into words. `over` is true for a complete text.
    of: [usize; 2],
    over: [bool; 2],
    words: [Vec<Range<usize>>; 2],
    /// Index of the first word that differs.
    first: Option<usize>,
}

impl Parting {
    fn of(sides: &[SideText; 2]) -> Self {
        let over = sides.each_ref().map(|side| side.state == SideState::Ended);
        let words = sides.each_ref().map(|side| words(&side.text));
        // The last word of an unfinished answer may be incomplete.
        let known = [0, 1].map(|side| if over[side] { words[side].len() } else { words[side].len().saturating_sub(1) });
        let word = |side: usize, at: usize| words[side].get(at).and_then(|word| sides[side].text.get(word.clone()));
        let both = known[0].min(known[1]);
        let differs = (0..both).find(|at| word(0, *at) != word(1, *at));
        // One answer may continue after the other has ended.
        let ended = over == [true, true] && known[0] != known[1];
        let first = differs.or(ended.then_some(both));
        Parting { of: sides.each_ref().map(|side| side.text.len()), over, words, first }
    }

    fn is_of(&self, sides: &[SideText; 2]) -> bool {
        (0..2).all(|at| self.of[at] == sides[at].text.len() && self.over[at] == (sides[at].state == SideState::Ended))
    }
}

/// A comparison below the answer that it repeats.
#[derive(Debug)]
pub struct ComparisonView {
    /// The answer that is repeated.
    pub message: MessageId,
    comparison: AnswerComparison,
    parting: Parting,
}

impl ComparisonView {
    /// Creates the view of `comparison`, to be shown below `message`.
    pub fn new(message: MessageId, comparison: AnswerComparison) -> Self {
        ComparisonView { message, comparison, parting: Parting::default() }
    }

    /// True once both answers have ended.
    pub fn is_over(&self) -> bool {
        self.comparison.is_over()
    }

    /// Shows the comparison. True if the user closes it.
    pub fn show(&mut self, ui: &mut Ui) -> bool {
        ui.separator();
        let mut closed = false;
        ui.horizontal(|ui| {
            muted(ui, "The same answer again, with the same sampling settings and seed.");
            closed = icon_button(ui, ICON_CLOSE, "Close the comparison").clicked();
        });
        let ComparisonView { comparison, parting, .. } = self;
        let race = comparison.race;
        comparison.read(|sides| {
            if !parting.is_of(sides) {
                *parting = Parting::of(sides);
            }
            two_columns(ui, |ui, at| {
                side(ui, &sides[at], &parting.words[at], parting.first);
                if race {
                    figures(ui, &sides[at]);
                }
            });
            let over = sides.iter().all(|side| side.state == SideState::Ended);
            match parting.first {
                Some(first) => _ = muted(ui, format!("Marked: the first word that differs, word {}.", first + 1)),
                None if over => _ = muted(ui, "No word differs."),
                None => {}
            }
        });
        closed
    }
}

fn side(ui: &mut Ui, side: &SideText, words: &[Range<usize>], first: Option<usize>) {
    let palette = Palette::of(ui);
    ui.label(RichText::new(&side.title).font(strong(14.0)));
    let font = egui::TextStyle::Body.resolve(ui.style());
    let mut job = LayoutJob::default();
    for (at, word) in words.iter().enumerate() {
        let mut format = TextFormat { font_id: font.clone(), color: palette.text, ..TextFormat::default() };
        if first == Some(at) {
            format.background = palette.hot.gamma_multiply(0.45);
        }
        job.append(side.text.get(word.clone()).unwrap_or_default(), 0.0, format);
    }
    if !words.is_empty() {
        ui.add(Label::new(job).wrap());
    }
    match &side.state {
        SideState::Waiting => _ = muted(ui, "Waiting for the other answer …"),
        SideState::Writing if words.is_empty() => _ = muted(ui, "Reading the chat …"),
        SideState::Failed(why) => _ = ui.add(Label::new(small(why, palette.bad)).wrap()),
        SideState::Writing | SideState::Ended => {}
    }
}

/// Shows the speed and the reads of a side.
fn figures(ui: &mut Ui, side: &SideText) {
    let Some(stats) = &side.stats else { return };
    for line in [Some(stats.line()), stats.reads_line()].into_iter().flatten() {
        ui.add(Label::new(small(line, Palette::of(ui).muted)).wrap());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(texts: [&str; 2], states: [SideState; 2]) -> Option<usize> {
        let [one, other] = states;
        let side = |text: &str, state| SideText { text: text.to_owned(), state, ..SideText::default() };
        Parting::of(&[side(texts[0], one), side(texts[1], other)]).first
    }

    #[test]
    fn answers_part_at_the_first_word_that_differs() {
        let ended = || [SideState::Ended, SideState::Ended];
        let writing = || [SideState::Ended, SideState::Writing];
        assert_eq!(first(["A big dog ran.", "A big cat ran."], ended()), Some(2));
        assert_eq!(first(["A big dog", "A big dog"], ended()), None);
        assert_eq!(first(["A big dog", "A big dog ran"], ended()), Some(3), "one goes on");
        assert_eq!(first(["A big dog", "A b"], writing()), None, "a word may not be complete");
        assert_eq!(first(["A big dog", "A bad d"], writing()), Some(1));
        assert_eq!(first(["A big dog", ""], [SideState::Writing, SideState::Waiting]), None);
    }

    #[test]
    fn parting_is_read_again_when_a_text_grows_or_ends() {
        let side = |text: &str, state| SideText { text: text.to_owned(), state, ..SideText::default() };
        let sides = [side("A dog", SideState::Ended), side("A cat", SideState::Writing)];
        let parting = Parting::of(&sides);
        assert!(parting.is_of(&sides) && parting.first.is_none());
        let over = [side("A dog", SideState::Ended), side("A cat", SideState::Ended)];
        assert!(!parting.is_of(&over));
        assert_eq!(Parting::of(&over).first, Some(1));
    }
}
