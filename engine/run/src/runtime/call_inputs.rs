//! The tokens of a call, and the pictures among them.

use std::ops::Range;

use smallvec::SmallVec;

use super::{InputRows, KvCache, PictureSpan};
use thermocline_base::error::{Error, Result};
use thermocline_model::{ModelConfig, PictureGrid};

/// A picture among the tokens of a sequence, as embeddings of the model.
#[derive(Debug, Clone, Copy)]
pub struct PlacedPicture<'p> {
    /// Place of its first token in the sequence: the number of tokens before it.
    pub start: usize,
    /// Its tokens, row by row.
    pub grid: PictureGrid,
    /// Inputs of the first layer, `[tokens, d_model]`.
    pub embeddings: &'p [f32],
    /// Values added to the residual stream after each of the first layers, `[tokens, d_model]`.
    pub deepstack: &'p [Vec<f32>],
    /// True if its tokens have the positions of text, even in models with positions of several
    /// axes.
    pub text_positions: bool,
}

/// The tokens of a call, and what it reads beside them. Calls without pictures are made of tokens
/// alone.
#[derive(Debug, Clone, Copy)]
pub struct CallInputs<'t> {
    /// The tokens.
    pub tokens: &'t [u32],
    /// Pictures of the sequence, by ascending places. The tokens at their places are not read.
    /// Pictures outside the call's tokens are ignored.
    pub pictures: &'t [PlacedPicture<'t>],
    /// Hidden states that a draft head reads beside the tokens, `[tokens, d_model]`.
    pub(super) states: Option<&'t [f32]>,
    /// Index of the first token of the second text, if the tokens are a pair of texts.
    pub(super) second_at: Option<usize>,
}

impl<'t> From<&'t [u32]> for CallInputs<'t> {
    fn from(tokens: &'t [u32]) -> Self {
        CallInputs { tokens, pictures: &[], states: None, second_at: None }
    }
}

impl<'t> From<&'t Vec<u32>> for CallInputs<'t> {
    fn from(tokens: &'t Vec<u32>) -> Self {
        tokens.as_slice().into()
    }
}

impl<'t, const N: usize> From<&'t [u32; N]> for CallInputs<'t> {
    fn from(tokens: &'t [u32; N]) -> Self {
        tokens.as_slice().into()
    }
}

impl<'t> CallInputs<'t> {
    /// Tokens with pictures of their sequence.
    pub fn with_pictures(tokens: &'t [u32], pictures: &'t [PlacedPicture<'t>]) -> Self {
        CallInputs { pictures, ..tokens.into() }
    }

    /// Other tokens of the same sequence.
    pub fn with_tokens(self, tokens: &'t [u32]) -> Self {
        CallInputs { tokens, ..self }
    }

    /// The inputs with the index of the second text's first token, if the tokens are a pair of
    /// texts.
    pub fn with_second_text(self, second_at: Option<usize>) -> Self {
        CallInputs { second_at, ..self }
    }

    /// The spans of the pictures that have tokens among those of the call, which follow the first
    /// `held` of the sequence.
    pub(super) fn spans(&self, held: usize) -> SmallVec<[PictureSpan; 2]> {
        let end = held + self.tokens.len();
        let all = self.pictures.iter().map(|picture| PictureSpan {
            text_positions: picture.text_positions,
            ..PictureSpan::new(picture.start, picture.grid)
        });
        all.filter(|span| span.start < end && held < span.places().end).collect()
    }

    /// The inputs of the tokens at `places`.
    pub(super) fn rows(&self, places: &Range<usize>, d_model: usize) -> SmallVec<[InputRows<'t>; 2]> {
        let rows = self.pictures.iter().filter_map(|picture| {
            let start = picture.start.max(places.start);
            let end = picture.start.saturating_add(picture.grid.tokens()).min(places.end);
            let of = start.checked_sub(picture.start)? * d_model..end.checked_sub(picture.start)? * d_model;
            (start < end).then(|| InputRows {
                rows: start - places.start..end - places.start,
                values: &picture.embeddings[of.clone()],
                added: picture.deepstack.iter().map(|values| &values[of.clone()]).collect(),
            })
        });
        rows.collect()
    }

    /// Checks the pictures against each other, against a model, and against the cache to which the
    /// tokens are appended.
    ///
    /// # Errors
    /// [`Error::Invalid`] names what does not fit.
    pub(super) fn check(&self, config: &ModelConfig, kv: &KvCache) -> Result<()> {
        let (held, d_model) = (kv.len(), config.d_model);
        let whole = config.attentions().any(|of| of.whole_pictures);
        let mut end = 0;
        for picture in self.pictures {
            let PlacedPicture { start, grid, embeddings, deepstack, .. } = *picture;
            let tokens = grid.tokens();
            if tokens == 0 || start < end {
                let got = format!("{} rows of {} tokens at token {start}", grid.rows, grid.cols);
                return Err(Error::invalid("picture", format!("tokens from token {end} on"), got));
            }
            end = start.saturating_add(tokens);
            let lens = std::iter::once(embeddings.len()).chain(deepstack.iter().map(Vec::len));
            if let Some(len) = lens.into_iter().find(|len| Some(*len) != tokens.checked_mul(d_model)) {
                let expected = format!("{tokens} embeddings of {d_model} numbers");
                return Err(Error::invalid("picture", expected, format!("{len} numbers")));
            }
            if deepstack.len() > config.n_layer() {
                let expected = format!("additions after at most {} layers", config.n_layer());
                return Err(Error::invalid("picture", expected, deepstack.len()));
            }
        }
        for span in self.spans(held) {
            let begun = span.start < held;
            let known =
                || kv.pictures().all().last().is_some_and(|last| (last.start, last.grid) == (span.start, span.grid));
            if begun && (whole || !known()) {
                let expected = format!("a picture from token {held} on");
                return Err(Error::invalid("picture", expected, format!("a picture from token {} on", span.start)));
            }
            let given = held + self.tokens.len();
            if whole && span.places().end > given {
                let expected = format!("all {} tokens of a picture in one call", span.tokens);
                return Err(Error::invalid("picture", expected, given - span.start));
            }
        }
        Ok(())
    }
}
