//! The sequences of a pass, whose caches the rows of the pass read and extend.

use std::ops::Range;

use smallvec::SmallVec;
use thermocline_cpu::ops::RopePosition;

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
pub struct Sequences<'a> {
    all: SmallVec<[Sequence<'a>; 1]>,
    /// Rotations in place of those of the caches.
    rotary: Option<&'a Rotary>,
}

impl<'a> Sequences<'a> {
    /// One sequence with `tokens` tokens.
    pub fn one(kv: &'a mut KvCache, tokens: usize) -> Self {
        Sequences { all: SmallVec::from([Sequence::new(kv, tokens, false)]), rotary: None }
    }

    /// One sequence with a token that reads `kv` and adds nothing to it. `rotary` are the rotations
    /// of the reading model.
    pub(crate) fn reading(kv: &'a mut KvCache, rotary: Option<&'a Rotary>) -> Self {
        Sequences { all: SmallVec::from([Sequence { kv, tokens: 1 }]), rotary }
    }

    /// One or several sequences of separate tokens, each with its number of tokens.
    pub fn separate(all: impl IntoIterator<Item = (&'a mut KvCache, usize)>) -> Self {
        let all = all.into_iter().map(|(kv, tokens)| Sequence::new(kv, tokens, true)).collect();
        Sequences { all, rotary: None }
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// True if there are no sequences.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Number of rows of all sequences.
    pub fn rows(&self) -> usize {
        self.all.iter().map(|it| it.tokens).sum()
    }

    /// The place of every row in its sequence: the number of tokens before it.
    pub fn places(&self) -> impl Iterator<Item = usize> {
        self.all.iter().flat_map(|it| it.kv.len()..it.kv.len() + it.tokens)
    }

    /// The position by which every row is rotated.
    pub fn positions(&self) -> impl Iterator<Item = RopePosition> {
        let places = |it: &Sequence<'_>| it.kv.len()..it.kv.len() + it.tokens;
        self.all.iter().flat_map(move |it| places(it).map(move |place| it.kv.position(place)))
    }

    /// The rotations of positions, which are equal in every sequence.
    pub fn rotary(&self) -> Option<&Rotary> {
        self.rotary.or_else(|| self.all.first()?.kv.rotary())
    }

    /// The rows of each sequence, with its cache.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Range<usize>, &mut KvCache)> {
        let mut end = 0;
        self.all.iter_mut().map(move |it| {
            let start = end;
            end += it.tokens;
            (start..end, &mut *it.kv)
        })
    }

    /// Marks the rows of every sequence as complete.
    pub(crate) fn advance(&mut self) {
        self.all.iter_mut().for_each(|it| it.kv.advance(it.tokens));
    }
}
