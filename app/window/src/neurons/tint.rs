//! A pinned neuron or a held token in the chat's words: finds its tokens in an answer's text.

use std::{ops::Range, sync::Arc};

use super::pins::Pin;
use thermocline_chats::chat::Explained;

/// Marks that the neuron map sets in the chat, and the chat on the map.
#[derive(Debug, Default)]
pub struct NeuronMarks {
    /// The pinned neuron that tints the chat's words.
    pub tint: Option<Arc<Tint>>,
    /// The word of an answer whose neurons are ringed on the map.
    pub highlight: Option<Arc<Explained>>,
    /// The token held on the map, to be marked in the chat's words.
    pub mark: Option<Tint>,
}

/// The latest tokens as text, with a neuron's activation at each.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tint {
    /// The neuron's name, as inside a sentence.
    pub name: String,
    /// True if the neuron is in VRAM. The tint then has the colour of hot neurons.
    pub hot: bool,
    text: Vec<u8>,
    /// End of each token in bytes of the text, and its strength from 0 to 1.
    tokens: Vec<(usize, f32)>,
}

impl Tint {
    /// The tint of `pin`. `bytes` returns the text of a token.
    pub fn of<'a>(pin: &Pin, hot: bool, bytes: impl Fn(u32) -> &'a [u8]) -> Self {
        let mut tint = Tint { name: pin.name.clone(), hot, ..Tint::default() };
        for (token, strength) in pin.words.iter().zip(&pin.series) {
            tint.text.extend_from_slice(bytes(*token));
            tint.tokens.push((tint.text.len(), *strength));
        }
        tint
    }

    /// A tint that marks the token with this index among the consecutive `tokens`.
    pub fn of_token<'a>(tokens: &[(u64, u32)], index: u64, bytes: impl Fn(u32) -> &'a [u8]) -> Self {
        let mut tint = Tint { name: format!("token {index}"), ..Tint::default() };
        for (at, token) in tokens {
            tint.text.extend_from_slice(bytes(*token));
            tint.tokens.push((tint.text.len(), if *at == index { 1.0 } else { 0.0 }));
        }
        tint
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
        telemetry::neurons::{LayerFiring, NeuronBoard, NeuronShape},
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
}
