//! The sequences of a pass: whose caches its rows read and are appended to.

use std::ops::Range;

use smallvec::SmallVec;

use super::{KvCache, Rotary};

/// Tokens of one sequence that a pass computes: their number, and the cache at whose end they are.
#[derive(Debug)]
struct Sequence<'a> {
    kv: &'a mut KvCache,
    tokens: usize,
}

impl<'a> Sequence<'a> {
    fn new(kv: &'a mut KvCache, tokens: usize) -> Self {
        kv.begin(tokens);
        Sequence { kv, tokens }
    }
}

/// The sequences of a pass, one or several. Their rows follow each other, and rows of one sequence are tokens that follow each
/// other. Weights are read once for all rows; caches and recurrent states are each sequence's own.
#[derive(Debug)]
pub struct Sequences<'a>(SmallVec<[Sequence<'a>; 1]>);

impl<'a> Sequences<'a> {
    /// `tokens` tokens of one sequence.
    pub fn one(kv: &'a mut KvCache, tokens: usize) -> Self {
        Sequences(SmallVec::from([Sequence::new(kv, tokens)]))
    }

    /// Several, each with the number of its tokens.
    pub fn several(all: impl IntoIterator<Item = (&'a mut KvCache, usize)>) -> Self {
        Sequences(all.into_iter().map(|(kv, tokens)| Sequence::new(kv, tokens)).collect())
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Rows of all sequences.
    pub fn rows(&self) -> usize {
        self.0.iter().map(|it| it.tokens).sum()
    }

    /// The position of every row in its sequence.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.0.iter().flat_map(|it| it.kv.len()..it.kv.len() + it.tokens)
    }

    /// The rotations of positions, which are the same in every sequence.
    pub fn rotary(&self) -> Option<&Rotary> {
        self.0.first()?.kv.rotary()
    }

    /// The rows of each sequence, and its cache.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Range<usize>, &mut KvCache)> {
        let mut end = 0;
        self.0.iter_mut().map(move |it| {
            let start = end;
            end += it.tokens;
            (start..end, &mut *it.kv)
        })
    }

    /// Declares the rows of every sequence complete.
    pub(crate) fn advance(&mut self) {
        self.0.iter_mut().for_each(|it| it.kv.advance(it.tokens));
    }
}
