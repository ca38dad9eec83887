//! Pictures among the tokens of a cache, and the positions that follow from them.
//!
//! A token has a place and a position. The place is the number of tokens before it: the index of
//! its keys and values, by which windows are counted. The position is what rotates its queries and
//! keys. The two differ in models with positions of several axes
//! ([`RopeSections`](thermocline_model::RopeSections)), after the first picture.

use std::ops::Range;

use thermocline_base::error::{Error, Result};
use thermocline_cpu::ops::RopePosition;
use thermocline_model::{ModelConfig, PictureGrid};

/// A picture in a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PictureSpan {
    /// Place of its first token.
    pub start: usize,
    /// Its tokens.
    pub grid: PictureGrid,
    /// Number of its tokens in the sequence, from the first. It is less than the tokens of the grid
    /// only while the picture is incomplete.
    pub tokens: usize,
    /// True if its tokens have the positions of text.
    pub text_positions: bool,
}

impl PictureSpan {
    /// A complete picture whose tokens have positions of several axes.
    pub fn new(start: usize, grid: PictureGrid) -> Self {
        PictureSpan { start, grid, tokens: grid.tokens(), text_positions: false }
    }

    /// Positions of the token at `index`, for a picture that begins at position `base`.
    fn position(&self, base: usize, index: usize) -> RopePosition {
        if self.text_positions {
            return RopePosition::text(base + index);
        }
        let (row, column) = (index / self.grid.cols, index % self.grid.cols);
        RopePosition { axes: [base, base + row, base + column] }
    }

    /// Number of positions that its tokens take.
    fn positions(&self) -> usize {
        if self.text_positions { self.tokens } else { self.grid.positions(self.tokens) }
    }

    /// The places of its tokens.
    pub fn places(&self) -> Range<usize> {
        self.start..self.start.saturating_add(self.tokens)
    }
}

/// The pictures of a sequence, by ascending places.
#[derive(Debug, Clone, Default)]
pub(crate) struct PictureSpans {
    spans: Vec<PictureSpan>,
    /// True if the model has positions of several axes.
    axes: bool,
    /// True if the tokens of a picture read all of it.
    whole: bool,
    /// Number of tokens before the first one of the cache, if the pictures are those of another
    /// cache ([`PictureSpans::follow`]).
    origin: Option<usize>,
}

impl PictureSpans {
    /// Starts without pictures, for a model with this configuration.
    pub fn new(config: &ModelConfig) -> Self {
        let axes = config.ropes.iter().any(|rope| rope.sections.is_some());
        let whole = config.attentions().any(|of| of.whole_pictures);
        PictureSpans { spans: Vec::new(), axes, whole, origin: None }
    }

    /// The position of the token at `place`.
    pub fn position(&self, place: usize) -> RopePosition {
        if !self.axes || self.spans.is_empty() {
            return RopePosition::text(place);
        }
        let place = place + self.origin.unwrap_or(0);
        // Places minus positions, of all earlier pictures.
        let mut saved = 0;
        for span in self.spans.iter().take_while(|span| span.start <= place) {
            let (index, base) = (place - span.start, span.start - saved);
            if index < span.tokens {
                return span.position(base, index);
            }
            saved += span.tokens - span.positions();
        }
        RopePosition::text(place - saved)
    }

    /// Notes the pictures of tokens that follow the first `held`. A picture with some tokens in the
    /// cache continues if it is among `next`.
    pub fn extend(&mut self, held: usize, next: &[PictureSpan]) {
        if self.origin.is_some() {
            return;
        }
        self.truncate(held);
        for span in next.iter().filter(|span| span.places().end > held) {
            self.spans.pop_if(|last| last.start == span.start);
            self.spans.push(*span);
        }
    }

    /// Forgets the tokens from `place` on.
    pub fn truncate(&mut self, place: usize) {
        if self.origin.is_some() {
            return;
        }
        self.spans.retain(|span| span.start < place);
        if let Some(last) = self.spans.last_mut() {
            last.tokens = last.tokens.min(place - last.start);
        }
    }

    /// Takes over the pictures of `other`, for a cache whose first token is token `origin` of the
    /// other. Only the differences between positions matter, so they may begin anywhere.
    pub fn follow(&mut self, other: &Self, origin: usize) {
        self.spans.clone_from(&other.spans);
        // The follower reads the tokens of pictures as text.
        self.whole = false;
        self.origin = Some(origin);
    }

    /// The largest number of the first `tokens` tokens that leaves no picture incomplete whose
    /// tokens read all of it.
    pub fn whole_tokens(&self, tokens: usize) -> usize {
        if self.whole { self.cut_at(tokens).map_or(tokens, |span| span.start) } else { tokens }
    }

    /// The number of tokens of the next pass, which follows the first `held` tokens and would have
    /// `tokens`. A picture whose tokens read all of it is computed at once, in at most `most`
    /// tokens.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a picture of more tokens.
    pub fn whole_part(&self, held: usize, tokens: usize, most: usize) -> Result<usize> {
        let Some(cut) = self.cut_at(held + tokens).filter(|_| self.whole) else { return Ok(tokens) };
        match cut.start.saturating_sub(held) {
            0 if cut.tokens > most => {
                let got = format!("{} tokens", cut.tokens);
                Err(Error::unsupported("picture that is computed at once", got, format!("up to {most} tokens")))
            }
            0 => Ok(cut.tokens),
            before => Ok(before),
        }
    }

    /// The picture with tokens before and after `place`.
    pub fn cut_at(&self, place: usize) -> Option<&PictureSpan> {
        self.spans.iter().find(|span| span.start < place && place < span.start.saturating_add(span.grid.tokens()))
    }

    /// The places of the pictures with tokens among `places`, if their tokens read all of them.
    pub fn among(&self, places: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let all = self.spans.iter().filter(|_| self.whole).map(PictureSpan::places);
        all.filter(move |picture| picture.start < places.end && places.start < picture.end)
    }

    /// Forgets `discard` tokens after the first `keep`, and moves the later ones down. Returns by
    /// how much their positions become smaller. `None` if a picture would be cut; nothing then
    /// changes.
    pub fn remove(&mut self, keep: usize, discard: usize) -> Option<usize> {
        let end = keep + discard;
        if [keep, end].into_iter().any(|place| self.cut_at(place).is_some()) {
            return None;
        }
        let [to, from] = [keep, end].map(|place| self.position(place).axes[0]);
        self.spans.retain(|span| span.start < keep || span.start >= end);
        self.spans.iter_mut().filter(|span| span.start >= end).for_each(|span| span.start -= discard);
        Some(from - to)
    }

    /// Replaces the tokens after the first `held` by those of `from`, up to `tokens`.
    pub fn copy(&mut self, from: &Self, held: usize, tokens: usize) {
        self.truncate(held);
        self.extend(held, &from.spans);
        self.truncate(tokens);
    }

    /// The pictures.
    pub fn all(&self) -> &[PictureSpan] {
        &self.spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(axes: bool, whole: bool) -> PictureSpans {
        PictureSpans { spans: Vec::new(), axes, whole, origin: None }
    }

    fn axes(spans: &PictureSpans, places: Range<usize>) -> Vec<[usize; 3]> {
        places.map(|place| spans.position(place).axes).collect()
    }

    /// Two tokens, a picture of two rows and three columns, a token, a picture of three rows and
    /// one column, and text.
    fn two_pictures() -> PictureSpans {
        let mut spans = spans(true, false);
        let [wide, high] =
            [(2, 2, 3), (9, 3, 1)].map(|(start, rows, cols)| PictureSpan::new(start, PictureGrid { rows, cols }));
        spans.extend(0, &[wide, high]);
        spans
    }

    #[test]
    fn text_continues_after_the_largest_position_of_a_picture() {
        let all = two_pictures();
        let expected = [
            [0, 0, 0],
            [1, 1, 1],
            [2, 2, 2],
            [2, 2, 3],
            [2, 2, 4],
            [2, 3, 2],
            [2, 3, 3],
            [2, 3, 4],
            [5, 5, 5],
            [6, 6, 6],
            [6, 7, 6],
            [6, 8, 6],
            [9, 9, 9],
            [10, 10, 10],
        ];
        assert_eq!(axes(&all, 0..14), expected);
        let mut like_text = all.clone();
        like_text.spans.iter_mut().for_each(|span| span.text_positions = true);
        assert_eq!(axes(&like_text, 0..14), (0..14).map(|place| [place; 3]).collect::<Vec<_>>());
        let one_axis = PictureSpans { axes: false, ..all };
        assert_eq!(axes(&one_axis, 0..14), (0..14).map(|place| [place; 3]).collect::<Vec<_>>());
    }

    #[test]
    fn a_picture_continues_or_ends_where_it_is_cut() {
        let mut cut = two_pictures();
        let all = cut.spans.clone();
        cut.truncate(6);
        assert_eq!(cut.cut_at(6).map(|span| span.tokens), Some(4));
        // Other text follows: the picture keeps the positions of its first four tokens.
        assert_eq!(axes(&cut, 5..8), [[2, 3, 2], [5, 5, 5], [6, 6, 6]]);
        cut.extend(6, &all);
        assert_eq!(cut.all(), all);
        // Only pictures whose tokens read all of it go back to their beginning.
        assert_eq!(cut.whole_tokens(6), 6);
        cut.whole = true;
        assert_eq!([1, 2, 3, 7, 8, 9, 10, 12].map(|n| cut.whole_tokens(n)), [1, 2, 2, 2, 8, 9, 9, 12]);
        let parts = [(0, 2), (0, 3), (2, 1), (2, 6), (2, 8), (8, 1)].map(|(held, n)| cut.whole_part(held, n, 6).ok());
        assert_eq!(parts, [Some(2), Some(2), Some(6), Some(6), Some(7), Some(1)]);
        assert!(cut.whole_part(2, 1, 5).is_err());
        assert_eq!(cut.among(0..2).count(), 0);
        assert_eq!(cut.among(7..10).collect::<Vec<_>>(), [2..8, 9..12]);
    }

    #[test]
    fn removed_tokens_move_later_positions() {
        let mut all = two_pictures();
        assert_eq!(all.clone().remove(3, 5), None);
        assert_eq!(all.clone().remove(1, 9), None);
        // One token and the first picture take four positions.
        assert_eq!(all.remove(1, 7), Some(4));
        assert_eq!(axes(&all, 0..6), [[0; 3], [1; 3], [2, 2, 2], [2, 3, 2], [2, 4, 2], [5; 3]]);
    }

    #[test]
    fn a_follower_has_the_positions_of_the_followed_tokens() {
        let (all, mut head) = (two_pictures(), spans(true, false));
        assert_eq!(axes(&head, 0..2), [[0; 3], [1; 3]]);
        head.follow(&all, 4);
        head.truncate(0);
        head.extend(0, &[]);
        assert_eq!(axes(&head, 0..9), axes(&all, 4..13));
    }

    #[test]
    fn pictures_are_copied_with_their_tokens() {
        let (from, mut to) = (two_pictures(), spans(true, false));
        to.copy(&from, 0, 4);
        assert_eq!(axes(&to, 0..4), axes(&from, 0..4));
        to.copy(&from, 4, 14);
        assert_eq!(axes(&to, 0..14), axes(&from, 0..14));
    }
}
