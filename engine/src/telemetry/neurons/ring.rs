//! The latest tokens.

// Tokens go from one list to another, and their boxes with them, so that they are not copied.
#![allow(clippy::vec_box)]

use std::collections::VecDeque;

use super::{MOST_TOKENS, NeuronShape, slot::Slot};

/// Memory that is kept for tokens to come.
pub(super) const SPARE: usize = 2;

/// The latest tokens, in order and without gaps.
#[derive(Debug, Default)]
pub(super) struct Ring {
    slots: VecDeque<Box<Slot>>,
    /// How many of the last have masks.
    masked: usize,
    /// Bytes of these.
    bytes: u64,
}

impl Ring {
    /// Tokens held.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// How many of the last have masks, and their bytes.
    pub fn masked(&self) -> (usize, u64) {
        (self.masked, self.bytes)
    }

    /// Index of the oldest.
    pub fn first(&self) -> Option<u64> {
        self.slots.front().map(|slot| slot.index)
    }

    /// The one so far behind the oldest.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut Slot> {
        self.slots.get_mut(at).map(Box::as_mut)
    }

    /// Appends `slots` and drops the oldest beyond the limit; the memory of those that no reader holds comes back in `spare`, if that is
    /// short.
    pub fn append(
        &mut self,
        slots: impl Iterator<Item = Box<Slot>>,
        budget: u64,
        shape: &NeuronShape,
        spare: &mut Vec<Box<Slot>>,
    ) {
        for slot in slots {
            if self.slots.back().is_some_and(|last| last.index + 1 != slot.index) {
                *self = Ring::default();
            }
            if slot.is_masked() {
                self.bytes += slot.bytes(self.slots.back().filter(|_| self.masked > 0).map(Box::as_ref));
                self.masked += 1;
            } else {
                // Masks are kept of the latest only.
                self.thin(self.masked, shape, spare);
            }
            self.slots.push_back(slot);
            while self.bytes > budget && self.masked > 0 {
                self.thin(1, shape, spare);
            }
            if self.slots.len() > MOST_TOKENS {
                self.forget_oldest(spare);
            }
        }
    }

    fn forget_oldest(&mut self, spare: &mut Vec<Box<Slot>>) {
        let masked = self.masked == self.slots.len();
        let Some(mut oldest) = self.slots.pop_front() else { return };
        if masked {
            self.masked -= 1;
            self.bytes = self.bytes.saturating_sub(oldest.bytes(self.slots.front().map(Box::as_ref)));
        }
        oldest.retire();
        keep(spare, oldest);
    }

    /// Forgets the masks of the `count` oldest tokens that have any.
    fn thin(&mut self, count: usize, shape: &NeuronShape, spare: &mut Vec<Box<Slot>>) {
        for _ in 0..count {
            let at = self.slots.len() - self.masked;
            let bytes = match (self.slots.get(at), self.slots.get(at + 1)) {
                (Some(slot), next) => slot.bytes(next.map(Box::as_ref)),
                (None, _) => return,
            };
            self.masked -= 1;
            self.bytes = self.bytes.saturating_sub(bytes);
            if let Some(free) = self.slots.get_mut(at).and_then(|slot| slot.thin(shape)) {
                keep(spare, free);
            }
        }
    }
}

fn keep(spare: &mut Vec<Box<Slot>>, slot: Box<Slot>) {
    if spare.len() < SPARE {
        spare.push(slot);
    }
}
