//! The latest tokens.

// Records move between lists in their boxes, so that they are not copied.
#![allow(clippy::vec_box)]

use std::collections::VecDeque;

use super::{MOST_TOKENS, NeuronShape, token_record::TokenRecord};

/// Number of spare records that are kept for later tokens.
pub(super) const SPARE: usize = 2;

/// The latest tokens, in order and without gaps.
#[derive(Debug, Default)]
pub(super) struct Ring {
    records: VecDeque<Box<TokenRecord>>,
    /// Number of the last tokens that have masks.
    masked: usize,
    /// Bytes of these masks.
    bytes: u64,
}

impl Ring {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Number of the last tokens that have masks, and the bytes of the masks.
    pub fn masked(&self) -> (usize, u64) {
        (self.masked, self.bytes)
    }

    /// Index of the oldest token.
    pub fn first(&self) -> Option<u64> {
        self.records.front().map(|record| record.index)
    }

    /// The token that is `at` places after the oldest.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut TokenRecord> {
        self.records.get_mut(at).map(Box::as_mut)
    }

    /// Appends `records` and drops the oldest tokens beyond the limit. If `spare` is short, it
    /// receives the memory of dropped tokens that no reader holds.
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
                // Only the latest tokens keep masks.
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

    /// Discards the masks of the `count` oldest tokens that have masks.
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
