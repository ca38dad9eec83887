//! The token shown: the latest, or an earlier one that is held.

use std::ops::Range;

use thermocline_engine::telemetry::neurons::{NeuronBoard, TokenTrace};

/// Follows the latest token until one is held.
#[derive(Debug, Default)]
pub struct Playback {
    held: Option<TokenTrace>,
    base: Option<TokenTrace>,
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

    /// The token to show.
    pub fn token(&self, board: &NeuronBoard) -> Option<TokenTrace> {
        self.held.clone().or_else(|| board.latest())
    }

    /// Tokens that can be shown neuron by neuron.
    pub fn range(board: &NeuronBoard) -> Range<u64> {
        board.kept().masks
    }

    /// Holds the token of that index, or the nearest there is. It stays, even when the board forgets it.
    pub fn hold(&mut self, board: &NeuronBoard, index: u64) {
        let range = Self::range(board);
        if let Some(last) = range.end.checked_sub(1).filter(|last| *last >= range.start) {
            self.held = board.token(index.clamp(range.start, last)).or_else(|| board.latest());
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

    /// Compares what is shown from now on with the token that is shown now, or with none.
    pub fn compare(&mut self, board: &NeuronBoard, on: bool) {
        self.base = if on { self.token(board) } else { None };
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
        assert_eq!((index(&playback), Playback::range(&board)), (Some(4), 0..5));
        playback.compare(&board, true);
        playback.step(&board, -1);
        fire(&mut recorder, 5);
        assert_eq!((index(&playback), playback.is_live()), (Some(3), false));
        assert_eq!(playback.base().map(|token| token.index), Some(4));
        playback.step(&board, -99);
        assert_eq!(index(&playback), Some(0));
        playback.hold(&board, 99);
        assert_eq!(index(&playback), Some(5));
        playback.go_live();
        playback.compare(&board, false);
        fire(&mut recorder, 6);
        assert!(index(&playback) == Some(6) && playback.base().is_none());
    }
}
