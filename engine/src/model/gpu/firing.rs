//! Which neurons fired in a chunk, for an observer: masks gather on the device and come down with the chunk's results.

use super::segment::Segment;
use crate::{error::Result, gpu::Buffer, model::gpu::cold::ColdWork};

/// What a chunk's layers had to tell so far.
#[derive(Debug)]
pub(super) struct FiringLog {
    /// Masks that have not come down yet, one after the other.
    device: Option<Buffer>,
    used: u64,
    /// Those that have.
    words: Vec<u32>,
    pub entries: Vec<Entry>,
}

/// One layer's.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub layer: usize,
    pub tokens: usize,
    /// Words of the resident neurons' mask, slot by slot, and of the predictor's: places in what has come down.
    pub slots: (usize, usize),
    pub guess: Option<(usize, usize)>,
    /// What the neurons elsewhere did, and the predictor's mask if they were told.
    pub work: ColdWork,
    pub predicted: Option<Vec<u32>>,
    /// See [`LayerFiring`](crate::model::LayerFiring).
    pub complete: bool,
    pub bus_bytes: u64,
    pub wait_ns: u64,
}

impl Entry {
    pub fn new(layer: usize, tokens: usize) -> Self {
        Entry { layer, tokens, ..Entry::default() }
    }
}

impl FiringLog {
    /// With room for as many bytes as `device` has.
    pub fn new(device: Option<Buffer>) -> Self {
        FiringLog { device, used: 0, words: Vec::new(), entries: Vec::new() }
    }

    /// Bytes there is room for.
    pub fn bytes(&self) -> u64 {
        self.device.as_ref().map_or(0, Buffer::bytes)
    }

    /// Another chunk begins.
    pub fn clear(&mut self) {
        self.used = 0;
        self.words.clear();
        self.entries.clear();
    }

    /// Adds a layer's masks: of its slots, and of the predictor if nobody has seen it yet.
    pub fn push(
        &mut self,
        segment: &mut Segment,
        slots: (&Buffer, u64),
        guess: Option<(&Buffer, u64)>,
        entry: Entry,
    ) -> Result<()> {
        let slots = self.keep(segment, slots)?;
        let guess = guess.map(|guess| self.keep(segment, guess)).transpose()?;
        self.entries.push(Entry { slots, guess, ..entry });
        Ok(())
    }

    fn keep(&mut self, segment: &mut Segment, (from, bytes): (&Buffer, u64)) -> Result<(usize, usize)> {
        let Some(device) = &self.device else { return Ok((0, 0)) };
        if self.used + bytes > device.bytes() {
            // Long chunks have more than there is room for.
            segment.bring(device, self.used);
            segment.read(&[], |_| ())?;
            self.words.extend(bytemuck::pod_collect_to_vec::<u8, u32>(segment.brought()));
            self.used = 0;
        }
        let at = self.words.len() + self.used as usize / 4;
        if bytes > 0 {
            segment.recorder().copy(from, 0, device, self.used, bytes);
        }
        self.used += bytes;
        Ok((at, bytes as usize / 4))
    }

    /// What is still on the device comes down with the next read; whether there is any.
    pub fn bring(&self, segment: &mut Segment) -> bool {
        let Some(device) = self.device.as_ref().filter(|_| self.used > 0) else { return false };
        segment.bring(device, self.used);
        true
    }

    /// It has come down.
    pub fn brought(&mut self, segment: &Segment) {
        if std::mem::take(&mut self.used) > 0 {
            self.words.extend(bytemuck::pod_collect_to_vec::<u8, u32>(segment.brought()));
        }
    }

    /// The masks of an entry.
    pub fn masks<'a>(&'a self, entry: &'a Entry) -> (&'a [u32], Option<&'a [u32]>) {
        let words = |(at, len): (usize, usize)| self.words.get(at..at + len).unwrap_or(&[]);
        (words(entry.slots), entry.predicted.as_deref().or(entry.guess.map(words)))
    }
}
