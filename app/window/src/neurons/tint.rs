//! A pinned neuron or a held token in the chat: finds its tokens in an answer's text, and its
//! patches in pictures.

use std::{collections::HashMap, ops::Range, sync::Arc};

use egui::Color32;
use thermocline_engine::{
    model::{NeuronIndex, PictureCell, PictureGrid},
    pictures::PictureHash,
    telemetry::neurons::{PicturePatch, TokenTrace},
};

use super::pins::Pin;
use thermocline_rich_text::theme::Palette;

/// Marks that the neuron map sets in the chat, and the chat on the map.
#[derive(Debug, Default)]
pub struct NeuronMarks {
    /// The pinned neuron that tints the chat's words.
    pub tint: Option<Arc<Tint>>,
    /// The neurons that are ringed on the map.
    pub highlight: Option<RingedNeurons>,
    /// The token held on the map, to be marked in the chat.
    pub mark: Option<Tint>,
}

/// Neurons of a word or of a patch, ringed on the map.
#[derive(Debug, Clone, PartialEq)]
pub struct RingedNeurons {
    /// The neurons.
    pub places: Vec<NeuronIndex>,
    /// Their work, as inside a sentence.
    pub work: String,
}

/// A neuron's activation at the patches of a picture.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PatchTint {
    /// True if each token sees a cell of its own, in one grid.
    one_grid: bool,
    /// The cells that recorded tokens see, by the tokens.
    cells: Vec<Option<PictureCell>>,
    /// Strengths of the tokens from 0 to 1. `None` if the token is no longer recorded.
    strengths: Vec<Option<f32>>,
}

impl PatchTint {
    /// Adds the strength at a patch. A patch of a picture that was cut in another way starts again.
    fn add(&mut self, patch: PicturePatch, strength: f32) {
        let PicturePatch { token, tokens, rows, cols, index, .. } = patch;
        let grid = PictureGrid { rows: rows as usize, cols: cols as usize };
        let (at, cell) = (token as usize, PictureCell { grid, index: index as usize });
        let before = self.cells.get(at).copied().flatten();
        if self.cells.len() != tokens as usize || before.is_some_and(|before| before != cell) {
            let (cells, strengths) = (vec![None; tokens as usize], vec![None; tokens as usize]);
            *self = PatchTint { one_grid: grid.tokens() == tokens as usize, cells, strengths };
        }
        if let (Some(known), Some(seen)) = (self.strengths.get_mut(at), self.cells.get_mut(at)) {
            (*known, *seen) = (Some(strength), Some(cell));
        }
    }

    /// The cells at which the neuron fires, each with the highest strength of its tokens. Cells
    /// of an overview precede cells of slices.
    pub fn areas(&self) -> Vec<(PictureCell, f32)> {
        let mut areas: Vec<(PictureCell, f32)> = Vec::new();
        for (cell, strength) in self.fired().filter_map(|(at, strength)| Some((self.cells[at]?, strength))) {
            // Tokens of a cell follow one another.
            match areas.last_mut().filter(|(last, _)| *last == cell) {
                Some((_, most)) => *most = most.max(strength),
                None => areas.push((cell, strength)),
            }
        }
        areas
    }

    /// The patches at which the neuron fires, with their strengths.
    pub fn fired(&self) -> impl Iterator<Item = (usize, f32)> {
        let all = self.strengths.iter().enumerate();
        all.filter_map(|(at, strength)| Some((at, strength.filter(|strength| *strength > 0.0)?)))
    }

    /// How many of the patches fire, in words.
    pub fn count(&self) -> String {
        let (fired, known) = (self.fired().count(), self.strengths.iter().flatten().count());
        let forgotten = self.strengths.len() - known;
        let mut grids = self.cells.iter().flatten().map(|cell| cell.grid);
        let first = grids.next();
        let is_whole = grids.all(|grid| Some(grid) == first) && self.cells.iter().all(Option::is_some);
        let what = match () {
            () if self.one_grid => "patches",
            () if is_whole => "tokens",
            () => "tokens of the overview and slices",
        };
        let count = format!("{fired} of {known} {what}");
        if forgotten > 0 { format!("{count}, {forgotten} are no longer recorded") } else { count }
    }
}

/// The latest tokens as text, with a neuron's activation at each.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tint {
    /// The neuron's name, as inside a sentence.
    pub name: String,
    /// True if the neuron is in VRAM. The tint then has the colour of hot neurons.
    pub hot: bool,
    /// True for a token that the map holds.
    pub held: bool,
    text: Vec<u8>,
    /// End of each token in bytes of the text, and its strength from 0 to 1.
    tokens: Vec<(usize, f32)>,
    pictures: HashMap<PictureHash, PatchTint>,
}

impl Tint {
    /// The tint of `pin`. `bytes` returns the text of a token.
    pub fn of<'a>(pin: &Pin, hot: bool, bytes: impl Fn(u32) -> &'a [u8]) -> Self {
        let mut tint = Tint { name: pin.name.clone(), hot, ..Tint::default() };
        for ((token, strength), patch) in pin.words.iter().zip(&pin.series).zip(&pin.patches) {
            if let Some(patch) = patch {
                tint.pictures.entry(PictureHash(patch.picture)).or_default().add(*patch, *strength);
                continue;
            }
            tint.text.extend_from_slice(bytes(*token));
            tint.tokens.push((tint.text.len(), *strength));
        }
        tint
    }

    /// A tint that marks `held` in its picture, or among the consecutive `tokens`.
    pub fn of_held<'a>(held: &TokenTrace, tokens: &[(u64, u32)], bytes: impl Fn(u32) -> &'a [u8]) -> Self {
        let Some(patch) = held.patch else { return Tint::of_token(tokens, held.index, bytes) };
        let mut marked = PatchTint::default();
        marked.add(patch, 1.0);
        marked.strengths.iter_mut().for_each(|strength| _ = strength.get_or_insert(0.0));
        let pictures = HashMap::from([(PictureHash(patch.picture), marked)]);
        Tint { name: format!("token {}", held.index), held: true, pictures, ..Tint::default() }
    }

    /// A tint that marks the token with this index among the consecutive `tokens`.
    fn of_token<'a>(tokens: &[(u64, u32)], index: u64, bytes: impl Fn(u32) -> &'a [u8]) -> Self {
        let mut tint = Tint { name: format!("token {index}"), held: true, ..Tint::default() };
        for (at, token) in tokens {
            tint.text.extend_from_slice(bytes(*token));
            tint.tokens.push((tint.text.len(), if *at == index { 1.0 } else { 0.0 }));
        }
        tint
    }

    /// The tinted patches of a picture. `None` if no token of the picture is recorded.
    pub fn picture(&self, picture: PictureHash) -> Option<&PatchTint> {
        self.pictures.get(&picture)
    }

    /// The colour of this strength over the chat.
    pub fn colour(&self, palette: &Palette, strength: f32) -> Color32 {
        let colour = match (self.held, self.hot) {
            (true, _) => palette.amber,
            (false, true) => palette.hot,
            (false, false) => palette.cold,
        };
        if strength > 0.0 { colour.gamma_multiply(0.2 + 0.4 * strength) } else { Color32::TRANSPARENT }
    }

    /// The sentence about what is tinted.
    pub fn sentence(&self) -> String {
        let name = &self.name;
        if self.held { format!("Marked: {name} on the map.") } else { format!("Coloured where {name} fires.") }
    }

    /// [`Tint::pieces`] of an answer, if any piece is tinted.
    pub fn marks(&self, answer: &str) -> Option<Vec<(Range<usize>, f32)>> {
        self.pieces(answer).filter(|pieces| pieces.iter().any(|(_, strength)| *strength > 0.0))
    }

    /// Splits all of `answer` into ranges with their strengths. `None` if these tokens do not
    /// contain the answer. At its beginning or end, tokens may be missing.
    pub fn pieces(&self, answer: &str) -> Option<Vec<(Range<usize>, f32)>> {
        let wanted = answer.trim();
        let skipped = answer.len() - answer.trim_start().len();
        if wanted.is_empty() || wanted.len() > self.text.len() {
            return None;
        }
        let last = self.text.len() - wanted.len();
        let at = (0..=last).rev().find(|at| self.text[*at..].starts_with(wanted.as_bytes()))?;
        let mut pieces = Vec::new();
        let mut done = 0;
        for (end, strength) in &self.tokens {
            let Some(end) = end.checked_sub(at).map(|end| (end + skipped).min(answer.len())) else { continue };
            // A character of several tokens belongs to the last of them.
            if end > done && answer.is_char_boundary(end) {
                pieces.push((done..end, *strength));
                done = end;
            }
        }
        if done < answer.len() {
            pieces.push((done..answer.len(), 0.0));
        }
        Some(pieces)
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::{
        model::NeuronIndex,
        telemetry::neurons::{BegunToken, LayerFiring, NeuronBoard, NeuronShape},
    };

    use super::*;
    use crate::neurons::pins::Pins;

    #[test]
    fn tint_pieces_match_an_answer_to_the_latest_tokens() {
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([32]));
        let vocabulary: [&[u8]; 6] = [b"<user>", b"Hi", b" th", b"\xc3", b"\xa9", b"ere "];
        for (position, (token, fired)) in [(0, 0), (1, 2), (2, 2), (3, 2), (4, 2), (5, 0)].into_iter().enumerate() {
            recorder.begin(0, position, &[token], position > 0);
            recorder.layer(&LayerFiring { tokens: 1, fired: &[fired], ..LayerFiring::default() });
            recorder.end();
        }
        let mut pins = Pins::default();
        assert!(pins.toggle(&board, NeuronIndex { layer: 0, neuron: 1 }));
        let tint = Tint::of(&pins.all[0], true, |token| vocabulary[token as usize]);
        assert_eq!(tint.name, "layer 0, neuron 1");
        assert_eq!(tint.pieces("Hi théere"), Some(vec![(0..2, 1.0), (2..5, 1.0), (5..7, 1.0), (7..10, 0.0)]));
        assert_eq!(tint.pieces("\n thé"), Some(vec![(0..4, 1.0), (4..6, 1.0)]));
        let tokens: Vec<(u64, u32)> = (0..6).map(|at| (at, at as u32)).collect();
        let held = Tint::of_token(&tokens, 2, |token| vocabulary[token as usize]);
        assert_eq!(held.marks("Hi thé"), Some(vec![(0..2, 0.0), (2..5, 1.0), (5..7, 0.0)]));
        assert_eq!(
            Tint::of_token(&tokens, 0, |token| vocabulary[token as usize]).marks("Hi thé"),
            None,
            "before the answer"
        );
        assert_eq!((tint.pieces("Ho"), tint.pieces(" "), tint.pieces("")), (None, None, None));
    }
    #[test]
    fn patches_of_a_picture_are_tinted_by_their_last_tokens() {
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([32]));
        let patch = |index| PicturePatch { picture: [7; 32], token: index, tokens: 4, rows: 2, cols: 2, index };
        let mut see = |index: Option<u32>, fired| {
            let token = BegunToken { session: 0, position: 0, id: 1, patch: index.map(patch) };
            recorder.begin_each([token].into_iter(), false);
            recorder.layer(&LayerFiring { tokens: 1, fired: &[fired], ..LayerFiring::default() });
            recorder.end();
        };
        // Text, a picture, and the second half of the picture once more.
        [(None, 1), (Some(0), 1), (Some(1), 1), (Some(2), 0), (Some(2), 1), (Some(3), 0)]
            .into_iter()
            .for_each(|(index, fired)| see(index, fired));
        let mut pins = Pins::default();
        assert!(pins.toggle(&board, NeuronIndex { layer: 0, neuron: 0 }));
        let pin = &pins.all[0];
        assert_eq!((pin.fired_patches, pin.top(9)), (3, vec![(1, 1)]), "patches are no words");
        let tint = Tint::of(pin, false, |_| b"pad");
        assert_eq!(tint.text, b"pad", "the text alone");
        let of_picture = tint.picture(PictureHash([7; 32])).unwrap();
        assert_eq!(of_picture.count(), "3 of 4 patches");
        let cell = |index| PictureCell { grid: PictureGrid { rows: 2, cols: 2 }, index };
        assert_eq!(of_picture.areas(), [(cell(0), 1.0), (cell(1), 1.0), (cell(2), 1.0)]);
        assert_eq!(of_picture.fired().map(|(at, _)| at).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(tint.picture(PictureHash([8; 32])), None);
        // Only the last two patches are recorded, of another grid.
        let mut cut = of_picture.clone();
        cut.add(PicturePatch { tokens: 3, rows: 1, cols: 3, ..patch(2) }, 0.0);
        assert_eq!(cut.count(), "0 of 1 patches, 2 are no longer recorded");
        let held = Tint::of_held(&board.token(2).unwrap(), &[], |_| b"");
        let marked = held.picture(PictureHash([7; 32])).unwrap();
        assert_eq!(
            (held.held, marked.count(), marked.fired().next()),
            (true, "1 of 4 patches".to_owned(), Some((1, 1.0)))
        );
    }

    /// Two queries read the overview, and two read each of two slices.
    #[test]
    fn slices_are_tinted_by_the_strongest_of_their_tokens() {
        let patch = |token: u32| PicturePatch {
            picture: [7; 32],
            token,
            tokens: 6,
            rows: 1,
            cols: if token < 2 { 1 } else { 2 },
            index: (token / 2).saturating_sub(1),
        };
        let mut tint = PatchTint::default();
        for (token, strength) in [(0, 0.25), (1, 0.75), (2, 0.0), (3, 0.0), (5, 0.5)] {
            tint.add(patch(token), strength);
        }
        let cell = |cols, index| PictureCell { grid: PictureGrid { rows: 1, cols }, index };
        assert_eq!(tint.areas(), [(cell(1, 0), 0.75), (cell(2, 1), 0.5)]);
        assert_eq!(tint.count(), "3 of 5 tokens of the overview and slices, 1 are no longer recorded");
        // The same number of tokens, cut in another way.
        tint.add(PicturePatch { rows: 2, cols: 1, ..patch(5) }, 1.0);
        assert_eq!(tint.fired().collect::<Vec<_>>(), [(5, 1.0)]);
    }

    #[test]
    fn small_picture_of_several_tokens_has_no_slices() {
        let mut tint = PatchTint::default();
        for token in 0..4 {
            let patch = PicturePatch { picture: [7; 32], token, tokens: 4, rows: 1, cols: 1, index: 0 };
            tint.add(patch, if token == 2 { 0.5 } else { 0.0 });
        }
        assert_eq!(tint.count(), "1 of 4 tokens");
    }
}
