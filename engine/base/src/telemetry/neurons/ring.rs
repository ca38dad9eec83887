//! The latest tokens.

// Tokens go from one list to another, and their boxes with them, so that they are not copied.
#![allow(clippy::vec_box)]

use std::collections::VecDeque;

use super::{MOST_TOKENS, NeuronShape, token_record::TokenRecord};

/// Memory that is kept for tokens to come.
pub(super) const SPARE: usize = 2;

/// The latest tokens, in order and without gaps.
#[derive(Debug, Default)]
pub(super) struct Ring {
    records: VecDeque<Box<TokenRecord>>,
    /// How many of the last have masks.
    masked: usize,
    /// Bytes of these.
    bytes: u64,
}

impl Ring {
    /// Tokens held.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// How many of the last have masks, and their bytes.
    pub fn masked(&self) -> (usize, u64) {
        (self.masked, self.bytes)
    }

    /// Index of the oldest.
    pub fn first(&self) -> Option<u64> {
        self.records.front().map(|record| record.index)
    }

    /// The one so far behind the oldest.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut TokenRecord> {
        self.records.get_mut(at).map(Box::as_mut)
    }

    /// Appends `records` and drops the oldest beyond the limit; the memory of those that no reader holds comes back in `spare`, if that is
    /// short.
    pub fn append(
        &mut self,
        records: impl Iterator<Item = Box<TokenRecord>>,
        budget: u64,
        shape: &NeuronShape,
        spare: &mut Vec<Box<TokenRecord>>,
    ) {
        for record in records {
            if self.records.back().is_some_and(|last| last.index + 1 != record.index) {
                *self = Ring::default();
            }
            if record.is_masked() {
                self.bytes += record.bytes(self.records.back().filter(|_| self.masked > 0).map(Box::as_ref));
                self.masked += 1;
            } else {
                // Masks are kept of the latest only.
                self.thin(self.masked, shape, spare);
            }
            self.records.push_back(record);
            while self.bytes > budget && self.masked > 0 {
                self.thin(1, shape, spare);
            }
            if self.records.len() > MOST_TOKENS {
                self.forget_oldest(spare);
            }
        }
    }

    fn forget_oldest(&mut self, spare: &mut Vec<Box<TokenRecord>>) {
        let masked = self.masked == self.records.len();
        let Some(mut oldest) = self.records.pop_front() else { return };
        if masked {
            self.masked -= 1;
            self.bytes = self.bytes.saturating_sub(oldest.bytes(self.records.front().map(Box::as_ref)));
        }
        oldest.retire();
        keep(spare, oldest);
    }

    /// Forgets the masks of the `count` oldest tokens that have any.
    fn thin(&mut self, count: usize, shape: &NeuronShape, spare: &mut Vec<Box<TokenRecord>>) {
        for _ in 0..count {
            let at = self.records.len() - self.masked;
            let bytes = match (self.records.get(at), self.records.get(at + 1)) {
                (Some(record), next) => record.bytes(next.map(Box::as_ref)),
                (None, _) => return,
            };
            self.masked -= 1;
            self.bytes = self.bytes.saturating_sub(bytes);
            if let Some(free) = self.records.get_mut(at).and_then(|record| record.thin(shape)) {
                keep(spare, free);
            }
        }
    }
}

fn keep(spare: &mut Vec<Box<TokenRecord>>, record: Box<TokenRecord>) {
    if spare.len() < SPARE {
        spare.push(record);
    }
}
