//! The token shown: the latest, or an earlier one that is held.

use std::ops::Range;

use thermocline_engine::telemetry::neurons::{NeuronBoard, TokenTrace};

/// Follows the latest token until one is held.
#[derive(Debug, Default)]
pub struct Playback {
    held: Option<TokenTrace>,
    base: Option<TokenTrace>,
    /// Tokens of the chat from before the model was opened, oldest first: shown until it has computed one.
    remembered: Vec<TokenTrace>,
}

impl Playback {
    /// True while it follows the latest token.
    pub fn is_live(&self) -> bool {
        self.held.is_none()
    }

    /// Follows the latest again.
    pub fn go_live(&mut self) {
        self.held = None;
    }

    /// Shows these tokens, numbered from 0, until there are others.
    pub fn remember(&mut self, tokens: Vec<TokenTrace>) {
        *self = Playback { remembered: tokens, ..Playback::default() };
    }

    /// Leaves the tokens from before the model was opened as soon as it has computed one.
    pub fn follow(&mut self, board: &NeuronBoard) {
        if !self.remembered.is_empty() && board.latest().is_some() {
            *self = Playback::default();
        }
    }

    /// True while tokens from before the model was opened are shown.
    pub fn is_remembered(&self) -> bool {
        !self.remembered.is_empty()
    }

    /// The token to show.
    pub fn token(&self, board: &NeuronBoard) -> Option<TokenTrace> {
        self.held.clone().or_else(|| self.remembered.last().cloned()).or_else(|| board.latest())
    }

    /// The token of that index.
    fn at(&self, board: &NeuronBoard, index: u64) -> Option<TokenTrace> {
        match self.is_remembered() {
            true => self.remembered.get(usize::try_from(index).ok()?).cloned(),
            false => board.token(index),
        }
    }

    /// Indices and ids of the tokens that can be shown.
    pub fn ids(&self, board: &NeuronBoard) -> Vec<(u64, u32)> {
        let pair = |token: &TokenTrace| (token.index, token.token);
        match self.is_remembered() {
            true => self.remembered.iter().map(pair).collect(),
            false => board.tokens(self.range(board)).iter().map(pair).collect(),
        }
    }

    /// The last `count` tokens that can be shown neuron by neuron, oldest first.
    pub fn last(&self, board: &NeuronBoard, count: usize) -> Vec<TokenTrace> {
        let range = self.range(board);
        let from = range.end.saturating_sub(count as u64).max(range.start);
        match self.is_remembered() {
            true => self.remembered.iter().skip(from as usize).cloned().collect(),
            false => board.tokens(from..range.end),
        }
    }

    /// Tokens that can be shown neuron by neuron.
    pub fn range(&self, board: &NeuronBoard) -> Range<u64> {
        if self.is_remembered() { 0..self.remembered.len() as u64 } else { board.kept().masks }
    }

    /// Holds the token of that index, or the nearest there is. It stays, even when the board forgets it.
    pub fn hold(&mut self, board: &NeuronBoard, index: u64) {
        let range = self.range(board);
        if let Some(last) = range.end.checked_sub(1).filter(|last| *last >= range.start) {
            self.held = self.at(board, index.clamp(range.start, last)).or_else(|| board.latest());
        }
    }

    /// Goes some tokens back or on from the one that is shown.
    pub fn step(&mut self, board: &NeuronBoard, by: i64) {
        if let Some(token) = self.token(board) {
            self.hold(board, token.index.saturating_add_signed(by));
        }
    }

    /// The token that the shown one is compared with.
    pub fn base(&self) -> Option<&TokenTrace> {
        self.base.as_ref()
    }

    /// Compares what is shown from now on with the token before the one that is shown now (with that one itself if there is none
    /// before), or with none.
    pub fn compare(&mut self, board: &NeuronBoard, on: bool) {
        let shown = self.token(board).filter(|_| on);
        self.base = shown.map(|shown| {
            let before = shown.index.checked_sub(1).and_then(|index| self.at(board, index));
            before.filter(|before| before.masks.is_some()).unwrap_or(shown)
        });
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::telemetry::neurons::{LayerFiring, NeuronRecorder, NeuronShape};

    use super::*;

    fn fire(recorder: &mut NeuronRecorder, position: usize) {
        recorder.begin(0, position, &[position as u32], true);
        recorder.layer(&LayerFiring { tokens: 1, fired: &[1], ..LayerFiring::default() });
        recorder.end();
    }

    #[test]
    fn playback_holds_a_token_and_steps_stop_at_the_ends() {
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([32]));
        let mut playback = Playback::default();
        playback.step(&board, -1);
        assert!(playback.is_live() && playback.token(&board).is_none());
        (0..5).for_each(|position| fire(&mut recorder, position));
        let index = |playback: &Playback| playback.token(&board).map(|token| token.index);
        assert_eq!((index(&playback), playback.range(&board)), (Some(4), 0..5));
        let last = |playback: &Playback, count| -> Vec<u64> {
            playback.last(&board, count).iter().map(|token| token.index).collect()
        };
        assert_eq!((last(&playback, 2), last(&playback, 100).len()), (vec![3, 4], 5));
        playback.compare(&board, true);
        playback.step(&board, -1);
        fire(&mut recorder, 5);
        assert_eq!((index(&playback), playback.is_live()), (Some(3), false));
        assert_eq!(playback.base().map(|token| token.index), Some(3), "the token before the one shown");
        playback.step(&board, -99);
        assert_eq!(index(&playback), Some(0));
        playback.hold(&board, 99);
        assert_eq!(index(&playback), Some(5));
        playback.go_live();
        playback.compare(&board, false);
        fire(&mut recorder, 6);
        assert!(index(&playback) == Some(6) && playback.base().is_none());
    }

    #[test]
    fn remembered_tokens_are_shown_until_the_model_has_computed_one() {
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([32]));
        let (earlier, mut writer) = NeuronBoard::new(NeuronShape::new([32]));
        (0..3).for_each(|position| fire(&mut writer, position));
        let mut playback = Playback::default();
        playback.remember(earlier.tokens(0..3));
        playback.follow(&board);
        let index = |playback: &Playback| playback.token(&board).map(|token| token.index);
        assert_eq!((index(&playback), playback.range(&board), playback.is_live()), (Some(2), 0..3, true));
        playback.step(&board, -1);
        playback.compare(&board, true);
        assert_eq!((index(&playback), playback.base().map(|token| token.index)), (Some(1), Some(0)));
        assert_eq!(playback.ids(&board), [(0, 0), (1, 1), (2, 2)]);
        assert_eq!(playback.last(&board, 2).iter().map(|token| token.index).collect::<Vec<_>>(), [1, 2]);
        fire(&mut recorder, 9);
        playback.follow(&board);
        assert!(!playback.is_remembered() && playback.is_live() && playback.base().is_none());
        assert_eq!((index(&playback), playback.ids(&board)), (Some(0), vec![(0, 9)]));
    }
}
