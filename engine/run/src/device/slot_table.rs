//! The slots of a layer on a device. Each slot has room for a unit: a neuron, or an expert of an
//! MoE layer. Slots are added and dropped in blocks, hottest units first. Each block has matrices
//! of its own, so dropping the last blocks frees their memory.

use std::ops::Range;

use thermocline_shaders::limits::NO_NEURON;

use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_model::mask;

/// Most blocks of a layer: the size of the device's table.
pub(crate) const MOST_BLOCKS: usize = 16;
/// Number of blocks from which the later half is merged with new units, because each block costs a
/// few dispatches per token.
const MANY_BLOCKS: usize = 8;
/// Blocks into which a load divides its hot units.
const BLOCKS_OF_LOAD: usize = 4;

/// The units of a layer that are resident, by slot.
#[derive(Debug)]
pub(crate) struct SlotTable {
    /// Unit of every slot; [`NO_NEURON`] for an empty slot.
    units: Vec<u32>,
    /// First slot of every block.
    starts: Vec<usize>,
    /// Mask of the resident units, and their number.
    pub resident: Vec<u32>,
    count: usize,
    /// Number of units in the layer, resident or not.
    pub of_layer: usize,
    /// The slots of a block are a multiple of this number.
    multiple: usize,
}

/// A block of slots that has not been added yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotBlock {
    /// Index among the layer's blocks.
    pub index: usize,
    /// First slot.
    pub start: usize,
    /// Unit of every slot; [`NO_NEURON`] for an empty slot.
    pub units: Vec<u32>,
}

impl SlotBlock {
    /// Range of the block's slots.
    pub fn slots(&self) -> Range<usize> {
        self.start..self.start + self.units.len()
    }
}

impl SlotTable {
    /// Makes a table without slots, for a layer of `of_layer` units.
    pub fn new(of_layer: usize, multiple: usize) -> Self {
        let resident = vec![0; mask::words(of_layer)];
        SlotTable { units: Vec::new(), starts: Vec::new(), resident, count: 0, of_layer, multiple }
    }

    /// Number of slots in all blocks.
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.starts.len()
    }

    /// Unit of every slot; [`NO_NEURON`] for an empty slot.
    pub fn units(&self) -> &[u32] {
        &self.units
    }

    /// Slot and unit of every resident unit.
    pub fn by_slot(&self) -> impl Iterator<Item = (usize, u32)> {
        self.units.iter().copied().enumerate().filter(|(_, unit)| *unit != NO_NEURON)
    }

    /// True if `unit` is resident.
    pub fn holds(&self, unit: u32) -> bool {
        mask::contains(&self.resident, unit as usize)
    }

    /// True if every unit is resident.
    pub fn is_whole(&self) -> bool {
        self.count == self.of_layer
    }

    /// The empty slots.
    pub fn empty(&self) -> impl Iterator<Item = usize> {
        self.slots_of(|unit| unit == NO_NEURON)
    }

    /// The slots for whose unit `is_one` is true; it receives [`NO_NEURON`] for an empty slot.
    pub fn slots_of(&self, is_one: impl Fn(u32) -> bool) -> impl Iterator<Item = usize> {
        self.units.iter().enumerate().filter(move |(_, unit)| is_one(**unit)).map(|(slot, _)| slot)
    }

    /// Index of the block that holds `slot`, and the index of the slot in that block.
    pub fn block_of(&self, slot: usize) -> Option<(usize, usize)> {
        let block = self.starts.partition_point(|start| *start <= slot).checked_sub(1)?;
        (slot < self.len()).then(|| (block, slot - self.starts[block]))
    }

    /// Puts `unit` into `slot`, replacing the unit there.
    pub fn put(&mut self, slot: usize, unit: u32) {
        self.vacate(slot);
        if let Some(to) = self.units.get_mut(slot) {
            *to = unit;
            self.mark(unit, true);
        }
    }

    /// Empties `slot`.
    pub fn vacate(&mut self, slot: usize) {
        if let Some(unit) = self.units.get_mut(slot) {
            let unit = std::mem::replace(unit, NO_NEURON);
            self.mark(unit, false);
        }
    }

    /// Marks `unit` as resident or not resident; [`NO_NEURON`] is ignored.
    fn mark(&mut self, unit: u32, resident: bool) {
        let Some(word) = self.resident.get_mut(unit as usize / 32) else { return };
        let bit = 1 << (unit % 32);
        match (*word & bit != 0, resident) {
            (false, true) => self.count += 1,
            (true, false) => self.count -= 1,
            _ => {}
        }
        *word = if resident { *word | bit } else { *word & !bit };
    }

    /// Number of units for the next block if `left` are still to be loaded: half of them, or all in
    /// a load's last block.
    pub fn units_of_next(&self, left: usize) -> usize {
        let all = self.blocks() + 1 >= BLOCKS_OF_LOAD;
        if all { left } else { self.slots_for(left.div_ceil(2)).min(left) }
    }

    /// Makes the next block, with at least `slots` slots, of which the first hold `units`.
    ///
    /// # Errors
    /// [`Error::Memory`] if there are too many blocks, or more slots than the layer has units.
    pub fn next_block(&self, units: &[u32], slots: usize) -> Result<SlotBlock> {
        let len = self.slots_for(slots.max(units.len()));
        if self.blocks() == MOST_BLOCKS || self.len() + len > self.slots_for(self.of_layer) {
            let wanted = self.blocks() as u64 + 1;
            return Err(Error::memory(ScarceMemory::Gpu, "unit blocks of a layer", wanted, MOST_BLOCKS as u64));
        }
        let mut units = units.to_vec();
        units.resize(len, NO_NEURON);
        Ok(SlotBlock { index: self.blocks(), start: self.len(), units })
    }

    /// Adds a block made by [`SlotTable::next_block`].
    pub fn push(&mut self, block: SlotBlock) {
        self.starts.push(self.len());
        block.units.iter().for_each(|unit| self.mark(*unit, true));
        self.units.extend(block.units);
    }

    /// Number of slots for `units` units.
    pub fn slots_for(&self, units: usize) -> usize {
        units.next_multiple_of(self.multiple)
    }

    /// Drops blocks from the end until at most `slots` slots are left.
    pub fn drop_to(&mut self, slots: usize) {
        while self.len() > slots
            && let Some(start) = self.starts.pop()
        {
            (start..self.len()).for_each(|slot| self.vacate(slot));
            self.units.truncate(start);
        }
    }

    /// If there are many blocks, drops those that are to be merged with others and returns their
    /// units.
    pub fn drop_small(&mut self) -> Vec<u32> {
        if self.blocks() < MANY_BLOCKS {
            return Vec::new();
        }
        let start = self.starts[self.blocks() / 2];
        let small = self.units[start..].iter().copied().filter(|unit| *unit != NO_NEURON).collect();
        self.drop_to(start);
        small
    }

    /// The device's table of units: first slot and length of each of [`MOST_BLOCKS`] blocks, then
    /// the unit of every slot.
    pub fn unit_words(&self) -> Vec<u32> {
        let mut words = vec![0; 2 * MOST_BLOCKS];
        let ends = self.starts.iter().skip(1).copied().chain([self.len()]);
        for (range, (start, end)) in words.chunks_exact_mut(2).zip(self.starts.iter().zip(ends)) {
            range.copy_from_slice(&[*start as u32, (end - start) as u32]);
        }
        words.extend(&self.units);
        words
    }

    /// The device's table of slots: the slot of every unit; [`NO_NEURON`] for a unit that is not
    /// resident.
    pub fn slot_words(&self) -> Vec<u32> {
        let mut words = vec![NO_NEURON; self.of_layer];
        for (slot, unit) in self.by_slot() {
            if let Some(to) = words.get_mut(unit as usize) {
                *to = slot as u32;
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Units of the tested layers, and the multiple of a block's slots.
    const UNITS: usize = 70;
    const MULTIPLE: usize = 4;

    /// The simplest form of a table: the unit of every slot, block by block.
    type Plain = Vec<Vec<Option<u32>>>;

    /// A change of a table; its numbers are taken modulo the available range.
    #[derive(Debug, Clone)]
    enum Change {
        Push { units: usize, room: usize },
        Put { slot: usize, unit: usize },
        Vacate(usize),
        DropTo(usize),
        DropSmall,
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![
            4 => (0..9usize, 1..9usize).prop_map(|(units, room)| Change::Push { units, room }),
            4 => (0..UNITS, 0..UNITS).prop_map(|(slot, unit)| Change::Put { slot, unit }),
            2 => (0..UNITS).prop_map(Change::Vacate),
            1 => (0..UNITS).prop_map(Change::DropTo),
            1 => Just(Change::DropSmall),
        ];
        prop::collection::vec(change, 0..60)
    }

    /// Units that are in no slot.
    fn cold(plain: &[Vec<Option<u32>>]) -> Vec<u32> {
        (0..UNITS as u32).filter(|unit| !plain.iter().flatten().any(|it| *it == Some(*unit))).collect()
    }

    fn change(table: &mut SlotTable, plain: &mut Plain, change: &Change) {
        let (cold, slots) = (cold(plain), plain.iter().map(Vec::len).sum::<usize>());
        match *change {
            Change::Push { units, room } => {
                let units = &cold[..units.min(cold.len())];
                let len = units.len().max(room).next_multiple_of(MULTIPLE);
                let fits = plain.len() < MOST_BLOCKS && slots + len <= UNITS.next_multiple_of(MULTIPLE);
                let block = table.next_block(units, room);
                assert_eq!(block.is_ok(), fits);
                let Ok(block) = block else { return };
                assert_eq!((block.index, block.slots()), (plain.len(), slots..slots + len));
                table.push(block);
                let mut made: Vec<_> = units.iter().copied().map(Some).collect();
                made.resize(len, None);
                plain.push(made);
            }
            Change::Put { slot, unit } if slots > 0 && !cold.is_empty() => {
                let (slot, unit) = (slot % slots, cold[unit % cold.len()]);
                table.put(slot, unit);
                *plain.iter_mut().flatten().nth(slot).unwrap() = Some(unit);
            }
            Change::Vacate(slot) if slots > 0 => {
                table.vacate(slot % slots);
                *plain.iter_mut().flatten().nth(slot % slots).unwrap() = None;
            }
            Change::DropTo(slots) => {
                table.drop_to(slots);
                while plain.iter().map(Vec::len).sum::<usize>() > slots {
                    plain.pop();
                }
            }
            Change::DropSmall => {
                let kept = if plain.len() < MANY_BLOCKS { plain.len() } else { plain.len() / 2 };
                let small: Vec<u32> = plain.drain(kept..).flatten().flatten().collect();
                assert_eq!(table.drop_small(), small);
            }
            Change::Put { .. } | Change::Vacate(_) => {}
        }
    }

    fn check(table: &SlotTable, plain: &[Vec<Option<u32>>]) {
        let all: Vec<Option<u32>> = plain.iter().flatten().copied().collect();
        let slots = || all.iter().enumerate();
        assert_eq!((table.len(), table.blocks()), (all.len(), plain.len()));
        assert_eq!(
            table.by_slot().collect::<Vec<_>>(),
            slots().filter_map(|(slot, unit)| Some((slot, (*unit)?))).collect::<Vec<_>>()
        );
        assert_eq!(
            table.empty().collect::<Vec<_>>(),
            slots().filter(|(_, unit)| unit.is_none()).map(|(slot, _)| slot).collect::<Vec<_>>()
        );
        let mut expected = vec![NO_NEURON; UNITS];
        slots().for_each(|(slot, unit)| unit.iter().for_each(|unit| expected[*unit as usize] = slot as u32));
        assert_eq!(table.slot_words(), expected);
        assert!((0..UNITS as u32).all(|unit| table.holds(unit) == (expected[unit as usize] != NO_NEURON)));
        assert_eq!(mask::count(&table.resident), all.iter().flatten().count());
        assert_eq!(table.is_whole(), all.iter().flatten().count() == UNITS);
        let places = plain.iter().enumerate().flat_map(|(at, block)| (0..block.len()).map(move |slot| (at, slot)));
        assert!(places.enumerate().all(|(slot, place)| table.block_of(slot) == Some(place)));
        assert_eq!(table.block_of(all.len()), None);
        let mut words = vec![0; 2 * MOST_BLOCKS];
        for (at, block) in plain.iter().enumerate() {
            words[2 * at] = plain[..at].iter().map(Vec::len).sum::<usize>() as u32;
            words[2 * at + 1] = block.len() as u32;
        }
        words.extend(all.iter().map(|unit| unit.unwrap_or(NO_NEURON)));
        assert_eq!(table.unit_words(), words);
    }

    proptest! {
        /// After any sequence of changes, a table equals a list of every slot's unit.
        #[test]
        fn tables_say_what_their_slots_hold(changes in changes()) {
            let (mut table, mut plain) = (SlotTable::new(UNITS, MULTIPLE), Plain::new());
            for it in &changes {
                change(&mut table, &mut plain, it);
                check(&table, &plain);
            }
        }
    }

    #[test]
    fn hot_units_are_put_into_a_few_blocks_each_half_of_what_is_left() {
        let blocks_of = |units: usize, multiple: usize| {
            let (mut table, mut left, mut lens) = (SlotTable::new(units, multiple), units, Vec::new());
            while left > 0 {
                let now = table.units_of_next(left);
                let block = table.next_block(&vec![0; now], 0).unwrap();
                lens.push(block.units.len());
                table.push(block);
                left -= now;
            }
            lens
        };
        assert_eq!(blocks_of(1024, 64), [512, 256, 128, 128]);
        assert_eq!(blocks_of(200, 64), [128, 64, 64]);
        assert_eq!(blocks_of(64, 64), [64]);
        assert_eq!(blocks_of(5, 1), [3, 1, 1]);
        assert_eq!(blocks_of(128, 1), [64, 32, 16, 16]);
    }
}
