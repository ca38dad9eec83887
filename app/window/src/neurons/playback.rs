//! The shown token: the latest one, or an earlier one that is held.

use std::ops::Range;

use thermocline_engine::telemetry::neurons::{NeuronBoard, TokenTrace};

/// Follows the latest token of a chat until a token is held.
#[derive(Debug, Default)]
pub struct Playback {
    held: Option<TokenTrace>,
    base: Option<TokenTrace>,
    /// Tokens stored with the chat, oldest first. They replace the tokens of the board. `None`
    /// while the board is followed.
    kept: Option<Vec<TokenTrace>>,
    /// Index of the chat's first token on the board.
    first: u64,
    /// Sessions of other chats.
    foreign: Vec<u64>,
    /// The chat's latest token on the board.
    latest: Option<TokenTrace>,
    /// Index of the board's next token to read.
    next: u64,
}

impl Playback {
    /// True while the latest token is shown.
    pub fn is_live(&self) -> bool {
        self.held.is_none()
    }

    /// Shows the latest token again.
    pub fn go_live(&mut self) {
        self.held = None;
    }

    /// Switches to another chat, without a held or compared token. The chat's tokens are at the end
    /// of `board`, with the session `own`. If there are none, they are `kept`, numbered from 0.
    pub fn show_chat(&mut self, board: &NeuronBoard, own: impl Fn(u64) -> bool, kept: Vec<TokenTrace>) {
        let range = board.kept().masks;
        let is_own = |index: &u64| board.token(*index).is_some_and(|token| own(token.session));
        let found = range.clone().rev().take_while(is_own).last();
        let first = found.unwrap_or(range.end);
        *self = Playback { first, next: first, ..Playback::default() };
        self.kept = found.is_none().then_some(kept);
    }

    /// Reads the new tokens of `board`. `is_foreign` is true for a session of another chat.
    pub fn follow(&mut self, board: &NeuronBoard, is_foreign: impl Fn(u64) -> bool) {
        let range = board.kept().masks;
        for token in board.tokens(self.next.max(range.start)..range.end) {
            self.next = token.index + 1;
            match is_foreign(token.session) {
                true if self.foreign.contains(&token.session) => {}
                true => self.foreign.push(token.session),
                false => {
                    if self.kept.take().is_some() {
                        (self.held, self.base) = (None, None);
                    }
                    self.latest = Some(token);
                }
            }
        }
    }

    /// True while tokens stored with the chat are shown.
    pub fn is_remembered(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| !kept.is_empty())
    }

    /// The token to show.
    pub fn token(&self) -> Option<TokenTrace> {
        let last = || self.kept.as_ref().map_or_else(|| self.latest.clone(), |kept| kept.last().cloned());
        self.held.clone().or_else(last)
    }

    /// The chat's token with this index.
    fn at(&self, board: &NeuronBoard, index: u64) -> Option<TokenTrace> {
        match &self.kept {
            Some(kept) => kept.get(usize::try_from(index).ok()?).cloned(),
            None => board.token(index).filter(|token| !self.foreign.contains(&token.session)),
        }
    }

    /// Indices and ids of the tokens that can be shown.
    pub fn ids(&self, board: &NeuronBoard) -> Vec<(u64, u32)> {
        self.last(board, usize::MAX).iter().map(|token| (token.index, token.token)).collect()
    }

    /// The last `count` tokens that can be shown neuron by neuron, oldest first.
    pub fn last(&self, board: &NeuronBoard, count: usize) -> Vec<TokenTrace> {
        let mut tokens = match &self.kept {
            Some(kept) => kept.clone(),
            None => board.tokens(self.range(board)),
        };
        tokens.retain(|token| !self.foreign.contains(&token.session));
        tokens.split_off(tokens.len().saturating_sub(count))
    }

    /// Index range of the tokens that can be shown neuron by neuron.
    pub fn range(&self, board: &NeuronBoard) -> Range<u64> {
        match (&self.kept, &self.latest) {
            (Some(kept), _) => 0..kept.len() as u64,
            (None, None) => 0..0,
            (None, Some(latest)) => {
                let masks = board.kept().masks;
                self.first.max(masks.start).min(latest.index)..latest.index + 1
            }
        }
    }

    /// Holds the token with this index, or the nearest available one, preferably before it. It
    /// stays even when the board drops it.
    pub fn hold(&mut self, board: &NeuronBoard, index: u64) {
        let range = self.range(board);
        let Some(last) = range.end.checked_sub(1).filter(|last| *last >= range.start) else { return };
        let index = index.clamp(range.start, last);
        let mut nearest = (range.start..=index).rev().chain(index..range.end);
        self.held = nearest.find_map(|index| self.at(board, index)).or_else(|| self.token());
        self.leave_base(board);
    }

    /// Moves to the token before the shown one, if there is one.
    pub fn step_back(&mut self, board: &NeuronBoard) {
        let Some(token) = self.token() else { return };
        let before = self.before(board, token.index);
        self.held = Some(before.unwrap_or(token));
        self.leave_base(board);
    }

    /// Moves to the token after the shown one, if there is one.
    pub fn step_on(&mut self, board: &NeuronBoard) {
        let Some(token) = self.token() else { return };
        let after = (token.index + 1..self.range(board).end).find_map(|index| self.at(board, index));
        self.held = Some(after.unwrap_or(token));
        self.leave_base(board);
    }

    /// The last token before `index` that can be shown.
    fn before(&self, board: &NeuronBoard, index: u64) -> Option<TokenTrace> {
        (self.range(board).start..index).rev().find_map(|index| self.at(board, index))
    }

    /// If the shown token would be compared with itself, compares it with the token before it.
    fn leave_base(&mut self, board: &NeuronBoard) {
        let shown = self.token().map(|token| token.index);
        if let Some(shown) = shown.filter(|shown| self.base.as_ref().is_some_and(|base| base.index == *shown)) {
            self.base = self.before(board, shown).or(self.base.take());
        }
    }

    /// The token that the shown one is compared with.
    pub fn base(&self) -> Option<&TokenTrace> {
        self.base.as_ref()
    }

    /// Starts to compare with the token before the shown one (with the shown one itself if there is
    /// none before), or stops comparing.
    pub fn compare(&mut self, board: &NeuronBoard, on: bool) {
        let shown = self.token().filter(|_| on);
        self.base = shown.map(|shown| {
            let before = self.before(board, shown.index);
            before.filter(|before| before.masks.is_some()).unwrap_or(shown)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use thermocline_engine::telemetry::neurons::{LayerFiring, NeuronRecorder, NeuronShape};

    use super::*;

    fn board() -> (Arc<NeuronBoard>, NeuronRecorder) {
        NeuronBoard::new(NeuronShape::new([32]))
    }

    fn fire_in(recorder: &mut NeuronRecorder, session: u64, position: usize) {
        recorder.begin(session, position, &[position as u32], true);
        recorder.layer(&LayerFiring { tokens: 1, fired: &[1], ..LayerFiring::default() });
        recorder.end();
    }

    fn fire(recorder: &mut NeuronRecorder, position: usize) {
        fire_in(recorder, 0, position);
    }

    fn index(playback: &Playback) -> Option<u64> {
        playback.token().map(|token| token.index)
    }

    fn last(playback: &Playback, board: &NeuronBoard, count: usize) -> Vec<u64> {
        playback.last(board, count).iter().map(|token| token.index).collect()
    }

    #[test]
    fn playback_holds_a_token_and_steps_stop_at_the_ends() {
        let (board, mut recorder) = board();
        let mut playback = Playback::default();
        let follow = |playback: &mut Playback| playback.follow(&board, |_| false);
        playback.step_back(&board);
        assert!(playback.is_live() && playback.token().is_none());
        (0..5).for_each(|position| fire(&mut recorder, position));
        follow(&mut playback);
        assert_eq!((index(&playback), playback.range(&board)), (Some(4), 0..5));
        assert_eq!((last(&playback, &board, 2), last(&playback, &board, 100).len()), (vec![3, 4], 5));
        playback.compare(&board, true);
        playback.step_back(&board);
        fire(&mut recorder, 5);
        follow(&mut playback);
        assert_eq!((index(&playback), playback.is_live()), (Some(3), false));
        assert_eq!(playback.base().map(|token| token.index), Some(2), "the token before the one shown, not that one");
        (0..9).for_each(|_| playback.step_back(&board));
        assert_eq!(index(&playback), Some(0));
        playback.step_on(&board);
        assert_eq!(index(&playback), Some(1));
        playback.hold(&board, 99);
        assert_eq!(index(&playback), Some(5));
        playback.step_on(&board);
        assert_eq!(index(&playback), Some(5));
        playback.go_live();
        playback.compare(&board, false);
        fire(&mut recorder, 6);
        follow(&mut playback);
        assert!(index(&playback) == Some(6) && playback.base().is_none());
    }

    #[test]
    fn kept_tokens_of_a_chat_are_shown_until_it_has_new_ones() {
        let (board, mut recorder) = board();
        let (earlier, mut writer) = super::tests::board();
        (0..3).for_each(|position| fire(&mut writer, position));
        let mut playback = Playback::default();
        playback.show_chat(&board, |_| false, earlier.tokens(0..3));
        playback.follow(&board, |_| false);
        assert_eq!((index(&playback), playback.range(&board), playback.is_live()), (Some(2), 0..3, true));
        playback.step_back(&board);
        playback.compare(&board, true);
        assert_eq!((index(&playback), playback.base().map(|token| token.index)), (Some(1), Some(0)));
        assert_eq!(playback.ids(&board), [(0, 0), (1, 1), (2, 2)]);
        assert_eq!(last(&playback, &board, 2), [1, 2]);
        fire(&mut recorder, 9);
        playback.follow(&board, |_| false);
        assert!(!playback.is_remembered() && playback.is_live() && playback.base().is_none());
        assert_eq!((index(&playback), playback.ids(&board)), (Some(0), vec![(0, 9)]));
    }

    #[test]
    fn another_chat_has_its_own_tokens_and_nothing_that_was_held() {
        let (board, mut recorder) = board();
        let mut playback = Playback::default();
        (0..4).for_each(|position| fire_in(&mut recorder, 1, position));
        playback.follow(&board, |_| false);
        playback.hold(&board, 1);
        playback.compare(&board, true);
        // A new chat shows nothing until it has a token.
        playback.show_chat(&board, |_| false, Vec::new());
        playback.follow(&board, |session| session == 1);
        assert!(playback.is_live() && playback.base().is_none() && index(&playback).is_none());
        assert!(playback.range(&board).is_empty() && playback.ids(&board).is_empty());
        // The other chat continues meanwhile.
        fire_in(&mut recorder, 1, 4);
        playback.follow(&board, |session| session == 1);
        assert_eq!(index(&playback), None, "another chat's token");
        fire_in(&mut recorder, 2, 0);
        fire_in(&mut recorder, 1, 5);
        fire_in(&mut recorder, 2, 1);
        fire_in(&mut recorder, 1, 6);
        playback.follow(&board, |session| session == 1);
        assert_eq!((index(&playback), last(&playback, &board, 9)), (Some(7), vec![5, 7]));
        playback.step_back(&board);
        assert_eq!(index(&playback), Some(5), "past the other chat's token");
        playback.step_back(&board);
        assert_eq!(index(&playback), Some(5), "the first of the chat");
        playback.step_on(&board);
        assert_eq!(index(&playback), Some(7));
        // Back to the first chat. Its tokens are at the end of the board.
        playback.show_chat(&board, |session| session == 1, Vec::new());
        playback.follow(&board, |session| session == 2);
        assert_eq!((index(&playback), playback.is_live()), (Some(8), true));
    }
}
