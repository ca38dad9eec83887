//! The sequences of a pass, whose caches the rows of the pass read and extend.

use std::ops::Range;

use smallvec::SmallVec;

use super::{KvCache, Rotary};

/// Tokens of one sequence that a pass computes: their number, and the cache to which they are
/// appended.
#[derive(Debug)]
struct Sequence<'a> {
    kv: &'a mut KvCache,
    tokens: usize,
}

impl<'a> Sequence<'a> {
    fn new(kv: &'a mut KvCache, tokens: usize, separate: bool) -> Self {
        kv.begin(tokens, separate);
        Sequence { kv, tokens }
    }
}

/// The sequences of a pass, one or several. The rows of one sequence are consecutive tokens, and
/// sequences follow each other. Weights are read once for all rows. Each sequence has its own cache
/// and recurrent states.
#[derive(Debug)]
pub struct Sequences<'a>(SmallVec<[Sequence<'a>; 1]>);

impl<'a> Sequences<'a> {
    /// One sequence with `tokens` tokens.
    pub fn one(kv: &'a mut KvCache, tokens: usize) -> Self {
        Sequences(SmallVec::from([Sequence::new(kv, tokens, false)]))
    }

    /// One or several sequences of separate tokens, each with its number of tokens.
    pub fn separate(all: impl IntoIterator<Item = (&'a mut KvCache, usize)>) -> Self {
        Sequences(all.into_iter().map(|(kv, tokens)| Sequence::new(kv, tokens, true)).collect())
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are no sequences.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of rows of all sequences.
    pub fn rows(&self) -> usize {
        self.0.iter().map(|it| it.tokens).sum()
    }

    /// The position of every row in its sequence.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.0.iter().flat_map(|it| it.kv.len()..it.kv.len() + it.tokens)
    }

    /// The rotations of positions, which are equal in every sequence.
    pub fn rotary(&self) -> Option<&Rotary> {
        self.0.first()?.kv.rotary()
    }

    /// The rows of each sequence, with its cache.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Range<usize>, &mut KvCache)> {
        let mut end = 0;
        self.0.iter_mut().map(move |it| {
            let start = end;
            end += it.tokens;
            (start..end, &mut *it.kv)
        })
    }

    /// Marks the rows of every sequence as complete.
    pub(crate) fn advance(&mut self) {
        self.0.iter_mut().for_each(|it| it.kv.advance(it.tokens));
    }
}
