//! The firing log of a chunk. Masks of fired neurons, and for single tokens the neurons' strengths
//! if wanted, are collected on the device. They are read back with the chunk's results.

use super::{Segment, device_ffn::DeviceFfn, fired::DeviceMask};

use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, Gpu, Purpose, Usage};

/// The masks that a chunk's layers have logged so far.
#[derive(Debug)]
pub(crate) struct FiringLog {
    /// Masks not read back yet, one after the other, and their bytes.
    device: Option<Buffer>,
    used: u64,
    /// Masks that have been read back.
    words: Vec<u32>,
    pub entries: Vec<FiringEntry>,
}

/// The work of the CPU on one split layer.
#[derive(Debug, Default)]
pub(crate) struct ColdWork {
    /// True if any neuron was active or any expert was computed. If false, the partial sum is zero.
    pub any: bool,
    /// `[tokens, words(n_ff)]`: mask of the cold neurons that fired; empty if not wanted.
    pub fired: Vec<u32>,
    /// `[n_ff]`: hidden activations of the cold neurons for a single token, 0 for all others; empty
    /// if not wanted.
    pub strength: Vec<f32>,
    /// Bytes of weights read, and the bytes of scattered rows among them.
    pub bytes: u64,
    pub scattered: u64,
    /// Nanoseconds.
    pub cpu_ns: u64,
}

/// One layer's masks and measurements.
#[derive(Debug, Default)]
pub(crate) struct FiringEntry {
    pub layer: usize,
    pub tokens: usize,
    /// Mask of the resident neurons, a bit per slot, and the predictor's mask.
    pub masks: LogPlace,
    pub predicted_at: Option<LogPlace>,
    /// Hidden activations of the resident neurons for a single token, one float per slot, if
    /// wanted.
    pub strength_at: Option<LogPlace>,
    /// For an MoE layer: the experts that tokens chose, whose masks are in `masks`, and the shared
    /// expert's mask.
    pub experts: Option<ExpertPlaces>,
    /// Masks of the neurons that passed through the streaming buffer, and the neurons.
    pub streamed: Vec<(LogPlace, Vec<u32>)>,
    /// The CPU's work, and the predictor's mask if the CPU received it.
    pub work: ColdWork,
    pub predicted: Option<Vec<u32>>,
    /// Mask of chosen experts, if the CPU computed the whole layer.
    pub chosen: Option<Vec<u32>>,
    /// See [`LayerFiring`](crate::runtime::LayerFiring).
    pub complete: bool,
    pub bus_bytes: u64,
    pub wait_ns: u64,
}

/// A range of the words read back: its first word and length.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogPlace {
    at: usize,
    len: usize,
}

/// The ranges of an MoE layer in the words read back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertPlaces {
    pub ids: LogPlace,
    pub shared: Option<LogPlace>,
    /// True if the device computed cold experts, too.
    pub streamed: bool,
}

impl FiringEntry {
    /// Makes an entry without masks.
    pub fn new(layer: usize, tokens: usize) -> Self {
        FiringEntry { layer, tokens, ..FiringEntry::default() }
    }
}

impl FiringLog {
    /// Makes a log with room for `bytes` bytes on the device. With 0 bytes it has no buffer.
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<Self> {
        let room = || gpu.arena().buffer(Purpose::Scratch, "masks of fired neurons", bytes, Usage::Storage);
        let device = (bytes > 0).then(room).transpose()?;
        Ok(FiringLog { device, used: 0, words: Vec::new(), entries: Vec::new() })
    }

    /// Room of the log on the device, in bytes.
    pub fn bytes(&self) -> u64 {
        self.device.as_ref().map_or(0, Buffer::bytes)
    }

    /// Empties the log for the next chunk.
    pub fn clear(&mut self) {
        self.used = 0;
        self.words.clear();
        self.entries.clear();
    }

    /// Adds a layer's masks: of its slots, and the predictor's unless the CPU received it. For a
    /// single token it adds the strengths.
    pub fn push(
        &mut self,
        segment: &mut Segment,
        masks: DeviceMask<'_>,
        predicted: Option<DeviceMask<'_>>,
        strength: Option<DeviceMask<'_>>,
        entry: FiringEntry,
    ) -> Result<()> {
        let masks = self.copy(segment, masks)?;
        let predicted_at = predicted.map(|mask| self.copy(segment, mask)).transpose()?;
        let strength_at = strength.map(|strength| self.copy(segment, strength)).transpose()?;
        self.entries.push(FiringEntry { masks, predicted_at, strength_at, ..entry });
        Ok(())
    }

    /// Adds the mask of `neurons`, `[tokens, slots / 32]`, to the layer added last. These neurons
    /// passed through the streaming buffer.
    pub fn push_streamed(&mut self, segment: &mut Segment, mask: DeviceMask<'_>, neurons: &[u32]) -> Result<()> {
        let place = self.copy(segment, mask)?;
        if let Some(entry) = self.entries.last_mut() {
            entry.streamed.push((place, neurons.to_vec()));
        }
        Ok(())
    }

    /// Adds the masks of an MoE layer's pairs, the pairs' experts, and the shared expert's mask.
    /// `streamed`: the device computed cold experts, too.
    pub fn push_experts(
        &mut self,
        segment: &mut Segment,
        masks: DeviceMask<'_>,
        ids: DeviceMask<'_>,
        shared: Option<DeviceMask<'_>>,
        streamed: bool,
        entry: FiringEntry,
    ) -> Result<()> {
        let [masks, ids] = [self.copy(segment, masks)?, self.copy(segment, ids)?];
        let shared = shared.map(|shared| self.copy(segment, shared)).transpose()?;
        self.entries.push(FiringEntry { masks, experts: Some(ExpertPlaces { ids, shared, streamed }), ..entry });
        Ok(())
    }

    /// Records a copy of a mask to the log and returns its range.
    fn copy(&mut self, segment: &mut Segment, mask: DeviceMask<'_>) -> Result<LogPlace> {
        let DeviceMask { buffer: from, bytes } = mask;
        let Some(device) = &self.device else { return Ok(LogPlace::default()) };
        if self.used + bytes > device.bytes() {
            // A long chunk can log more than the buffer holds.
            segment.read_along(device, self.used);
            segment.read(&[], |_| ())?;
            self.words.extend(bytemuck::pod_collect_to_vec::<u8, u32>(segment.along()));
            self.used = 0;
        }
        let at = self.words.len() + self.used as usize / 4;
        if bytes > 0 {
            segment.recorder().copy(from, 0, device, self.used, bytes);
        }
        self.used += bytes;
        Ok(LogPlace { at, len: bytes as usize / 4 })
    }

    /// Makes the segment's next read include the masks that are still on the device. Returns false
    /// if there are none.
    pub fn read_back(&self, segment: &mut Segment) -> bool {
        let Some(device) = self.device.as_ref().filter(|_| self.used > 0) else { return false };
        segment.read_along(device, self.used);
        true
    }

    /// Takes the masks that the segment has read back.
    pub fn collect(&mut self, segment: &Segment) {
        if std::mem::take(&mut self.used) > 0 {
            self.words.extend(bytemuck::pod_collect_to_vec::<u8, u32>(segment.along()));
        }
    }

    /// The mask of the resident neurons and the predictor's mask in an entry.
    pub fn masks<'a>(&'a self, entry: &'a FiringEntry) -> (&'a [u32], Option<&'a [u32]>) {
        (self.words(entry.masks), entry.predicted.as_deref().or(entry.predicted_at.map(|at| self.words(at))))
    }

    /// The strengths of the resident neurons in an entry, one float per slot.
    pub fn strengths(&self, entry: &FiringEntry) -> Option<&[f32]> {
        entry.strength_at.map(|place| bytemuck::cast_slice(self.words(place)))
    }

    /// The words read back in a range.
    pub fn words(&self, place: LogPlace) -> &[u32] {
        self.words.get(place.at..place.at + place.len).unwrap_or(&[])
    }
}

/// Bytes of one token's masks and strengths in all layers, or of a chunk's masks in one layer,
/// whichever is more.
pub(crate) fn log_bytes(ffns: &[DeviceFfn], n_layer: usize, chunk: usize) -> u64 {
    let words = ffns.iter().map(DeviceFfn::logged_words).max().unwrap_or(0);
    let strengths = ffns.iter().map(DeviceFfn::logged_strengths).sum::<usize>();
    let of_token = words * n_layer + strengths;
    (4 * of_token.max(words * chunk)) as u64
}
