//! An answer word by word. A click on a word (or the arrow keys) asks which neurons made it. Below
//! the words stand the neurons' parts of its logit, and how the answer would have continued without
//! the strongest neurons.

use std::ops::Range;

use egui::{Key, Label, Modifiers, Sense, TextFormat, Ui, text::LayoutJob};
use egui_material_icons::icons::{ICON_CHEVRON_LEFT, ICON_CHEVRON_RIGHT, ICON_CLOSE};
use thermocline_engine::session::Engine;

use super::neuron_table::{NeuronTableRow, neuron_table};
use crate::{
    keyboard,
    neurons::{RingedNeurons, facts::quoted},
};
use thermocline_chats::{
    chat::{Explained, Explanation, ExplanationProgress, SwitchedOff},
    store::MessageId,
};
use thermocline_rich_text::{
    theme::Palette,
    widgets::{icon_button, muted, small, two_columns},
};

/// An action of the view.
#[derive(Debug, Clone, PartialEq)]
pub enum WordAct {
    /// Explain the word at these bytes of the answer.
    Explain(Range<usize>),
    /// Show the map with the word's neurons ringed.
    Map,
    /// Close the view, and show the answer as before.
    Close,
}

/// The view of one answer, word by word.
#[derive(Debug)]
pub struct WordView {
    /// The answer that is shown.
    pub message: MessageId,
    /// Byte ranges of the words and punctuation of the text, each with the space before it.
    words: Vec<Range<usize>>,
    /// Length of the split text in bytes.
    len: usize,
    chosen: Option<usize>,
    /// The explanation shown below the words.
    pub explanation: Option<Explanation>,
}

impl WordView {
    /// Creates a view of `message` without a chosen word.
    pub fn new(message: MessageId) -> Self {
        WordView { message, words: Vec::new(), len: usize::MAX, chosen: None, explanation: None }
    }

    /// The chosen word with its neurons, if they are known and belong to `engine`.
    pub fn highlight(&self, engine: &Engine) -> Option<RingedNeurons> {
        let explanation = self.explanation.as_ref().filter(|explanation| explanation.is_of(engine))?;
        match explanation.progress() {
            ExplanationProgress::Explained(explained) => Some(RingedNeurons {
                places: explained.neurons.iter().map(|neuron| neuron.effect.place).collect(),
                work: format!("contribute most to {}", quoted(&explained.word)),
            }),
            ExplanationProgress::Reading | ExplanationProgress::Failed(_) => None,
        }
    }

    /// True once the explanation of the chosen word is complete.
    #[cfg(test)]
    pub fn is_complete(&self) -> bool {
        self.explanation.as_ref().is_some_and(|explanation| explanation.switched_off().is_some())
    }

    /// Shows the view of `text`. `arrows` lets the arrow keys move from word to word, because
    /// nothing else uses them.
    pub fn show(&mut self, ui: &mut Ui, text: &str, arrows: bool) -> Option<WordAct> {
        if self.len != text.len() {
            *self = WordView { words: pieces(text), len: text.len(), ..WordView::new(self.message) };
        }
        let (mut act, before) = (None, self.chosen);
        ui.horizontal(|ui| {
            let last = self.words.len().checked_sub(1);
            let pressed = |ui: &Ui, key: Key| arrows && keyboard::pressed(ui, Modifiers::NONE, key);
            if icon_button(ui, ICON_CHEVRON_LEFT, "Word before").clicked() || pressed(ui, Key::ArrowLeft) {
                self.chosen = self.chosen.map_or(last, |at| Some(at.saturating_sub(1)));
            }
            if icon_button(ui, ICON_CHEVRON_RIGHT, "Word after").clicked() || pressed(ui, Key::ArrowRight) {
                self.chosen = self.chosen.map_or(last.map(|_| 0), |at| last.map(|last| (at + 1).min(last)));
            }
            muted(ui, "Click a word to see which neurons made it.");
            if icon_button(ui, ICON_CLOSE, "Back to the answer").clicked() {
                act = Some(WordAct::Close);
            }
        });
        if let Some(clicked) = self.text(ui, text) {
            self.chosen = Some(clicked);
        }
        if self.chosen != before
            && let Some(word) = self.chosen.and_then(|at| self.words.get(at))
        {
            self.explanation = None;
            act = Some(WordAct::Explain(word.clone()));
        }
        let Some(explanation) = &self.explanation else { return act };
        match explanation.progress() {
            ExplanationProgress::Reading => {
                ui.horizontal(|ui| {
                    ui.spinner();
                    muted(ui, "Reading the text before the word …");
                });
            }
            ExplanationProgress::Failed(why) => {
                ui.add(Label::new(small(why, Palette::of(ui).bad)).wrap());
            }
            ExplanationProgress::Explained(explained) => {
                parts(ui, &explained);
                if ui.button("Show the neurons on the map").clicked() {
                    act = Some(WordAct::Map);
                }
                match explanation.switched_off() {
                    Some(off) => {
                        let chosen = self.chosen.and_then(|at| self.words.get(at));
                        without(ui, &off, chosen.and_then(|word| text.get(word.start..)).unwrap_or_default());
                    }
                    None => _ = muted(ui, "Computing the answer without the strongest neurons …"),
                }
            }
        }
        act
    }

    /// Shows the words. Returns the index of a clicked word.
    fn text(&self, ui: &mut Ui, text: &str) -> Option<usize> {
        let palette = Palette::of(ui);
        let font = egui::TextStyle::Body.resolve(ui.style());
        let mut job = LayoutJob::default();
        job.wrap.max_width = ui.available_width();
        for (number, word) in self.words.iter().enumerate() {
            let mut format = TextFormat { font_id: font.clone(), color: palette.text, ..TextFormat::default() };
            if self.chosen == Some(number) {
                format.background = palette.hot.gamma_multiply(0.35);
            }
            job.append(&text[word.clone()], 0.0, format);
        }
        let galley = ui.fonts_mut(|fonts| fonts.layout_job(job));
        let shown = ui.add(Label::new(galley.clone()).selectable(false).sense(Sense::click()));
        let position = shown.interact_pointer_pos().filter(|_| shown.clicked())?;
        let at = galley.cursor_from_pos(position - shown.rect.min).index.0;
        let byte = text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
        self.words.iter().position(|word| word.contains(&byte))
    }
}

/// Byte ranges that split all of `text` into words, each with the white space before it.
pub(super) fn words(text: &str) -> Vec<Range<usize>> {
    let mut words: Vec<Range<usize>> = Vec::new();
    let mut spaces = true;
    for (at, letter) in text.char_indices() {
        let space = letter.is_whitespace();
        if (space && !spaces) || words.is_empty() {
            words.push(at..at);
        }
        spaces = space;
        if let Some(word) = words.last_mut() {
            word.end = at + letter.len_utf8();
        }
    }
    words
}

/// Byte ranges that split all of `text` into words and punctuation, each with the white space
/// before it.
fn pieces(text: &str) -> Vec<Range<usize>> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut pieces = Vec::new();
    for word in words(text) {
        let (mut start, mut before) = (word.start, None);
        let mut letters = text[word.clone()].char_indices().peekable();
        while let Some((at, letter)) = letters.next() {
            let after = letters.peek().is_some_and(|(_, next)| is_word(*next));
            // Within a word, an apostrophe or hyphen belongs to the word.
            let joins = matches!(letter, '\'' | '’' | '-') && before == Some(true) && after;
            let now = is_word(letter) || joins;
            if letter.is_whitespace() {
                continue;
            }
            if before.is_some_and(|before| before != now) {
                pieces.push(start..word.start + at);
                start = word.start + at;
            }
            before = Some(now);
        }
        pieces.push(start..word.end);
    }
    pieces
}

fn parts(ui: &mut Ui, explained: &Explained) {
    let of = &explained.attribution;
    let neurons: f32 = of.layers.iter().sum();
    let logits = match explained.tokens {
        1 => format!("its logit {:.2}", of.logit),
        tokens => format!("the logits of its {tokens} tokens, together {:.2},", of.logit),
    };
    let line = format!(
        "“{}”: probability {:.2}. Of {logits} the neurons add {neurons:.2}; the embedding, attention and biases add {:.2}.",
        explained.word, of.probability, of.residual
    );
    ui.add(Label::new(line).wrap());
    let rows = explained.neurons.iter().map(|neuron| NeuronTableRow {
        place: neuron.effect.place,
        part: format!("{:+.2}", neuron.effect.logit),
        words: Some(neuron.words.clone()),
    });
    neuron_table(ui, "Adds", rows);
}

/// Shows the effect of turning neurons off. `rest` is the original answer from the word on.
fn without(ui: &mut Ui, off: &SwitchedOff, rest: &str) {
    let falls: Vec<String> = off.logit.falls.iter().map(|fall| format!("{fall:.2}")).collect();
    let line = format!(
        "Turning off the {} strongest neurons lowers the logit from {:.2} to {:.2} (by {}; effects through later layers included).",
        falls.len(),
        off.logit.whole,
        off.logit.without,
        falls.join(", ")
    );
    ui.add(Label::new(line).wrap());
    let muted = Palette::of(ui).muted;
    let sides = [
        ("With these neurons (the answer)", beginning(rest, off.without.len())),
        ("Without these neurons", off.without.clone()),
    ];
    two_columns(ui, |ui, at| {
        let (title, text) = &sides[at];
        ui.label(small(*title, muted));
        ui.add(Label::new(text.trim()).wrap());
    });
}

/// The words of `text` that begin within its first `bytes` bytes.
fn beginning(text: &str, bytes: usize) -> String {
    match words(text).into_iter().find(|word| word.start > bytes) {
        Some(word) => format!("{} …", &text[..word.start]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{beginning, pieces, words};

    #[test]
    fn marks_are_pieces_beside_their_word_and_within_one_part_of_it() {
        let split = |text: &'static str| pieces(text).into_iter().map(|piece| &text[piece]).collect::<Vec<_>>();
        assert_eq!(split("At the station. \"Don't!\""), ["At", " the", " station", ".", " \"", "Don't", "!\""]);
        assert_eq!(split(" well-known, …\n'ok' x"), [" well-known", ",", " …", "\n'", "ok", "'", " x"]);
        assert_eq!(split("دانه. 你好。"), ["دانه", ".", " 你好", "。"]);
        assert!(pieces("").is_empty());
    }

    #[test]
    fn beginning_of_an_answer_ends_with_a_whole_word() {
        assert_eq!(beginning("station. A dog ran", 11), "station. A dog …");
        assert_eq!(beginning("station.", 100), "station.");
    }

    #[test]
    fn words_begin_with_their_spaces_and_are_all_of_the_text() {
        let text = "  Once upon\n\na tïme. ";
        let pieces: Vec<&str> = words(text).into_iter().map(|word| &text[word]).collect();
        assert_eq!(pieces, ["  Once", " upon", "\n\na", " tïme.", " "]);
        assert_eq!(pieces.concat(), text);
        assert!(words("").is_empty());
    }
}
