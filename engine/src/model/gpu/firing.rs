//! Which neurons fired in a chunk, for an observer: masks gather on the device and come down with the chunk's results.

use std::time::Instant;

use super::{cold::ColdWork, ffn::FfnOps, layer::LayerOps, processor::GpuProcessor, segment::Segment};
use crate::{
    error::Result,
    gpu::{Buffer, Gpu, Purpose, Usage},
    model::{LayerFiring, Probe, mask},
};

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
    /// Where the FFN is a mixture: the experts of every slot, whose masks are in `slots`, and the shared expert's mask.
    pub experts: Option<ExpertPlaces>,
    /// Words of the masks of neurons that passed through the slab, and which these were.
    pub streamed: Vec<((usize, usize), Vec<u32>)>,
    /// What the neurons elsewhere did, and the predictor's mask if they were told.
    pub work: ColdWork,
    pub predicted: Option<Vec<u32>>,
    /// What a mixture elsewhere has chosen.
    pub chosen: Option<Vec<u32>>,
    /// See [`LayerFiring`](crate::model::LayerFiring).
    pub complete: bool,
    pub bus_bytes: u64,
    pub wait_ns: u64,
}

/// What a mixture on the device told, as places in what has come down.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpertPlaces {
    pub ids: (usize, usize),
    pub shared: Option<(usize, usize)>,
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

    /// Adds the mask of `neurons` that passed through the slab, `[tokens, slots / 32]`, to the layer that was added last.
    pub fn push_streamed(&mut self, segment: &mut Segment, mask: (&Buffer, u64), neurons: &[u32]) -> Result<()> {
        let place = self.keep(segment, mask)?;
        if let Some(entry) = self.entries.last_mut() {
            entry.streamed.push((place, neurons.to_vec()));
        }
        Ok(())
    }

    /// Adds those of a mixture's slots, the experts these are of, and the shared expert's.
    pub fn push_experts(
        &mut self,
        segment: &mut Segment,
        (slots, ids): ((&Buffer, u64), (&Buffer, u64)),
        shared: Option<(&Buffer, u64)>,
        entry: Entry,
    ) -> Result<()> {
        let [slots, ids] = [self.keep(segment, slots)?, self.keep(segment, ids)?];
        let shared = shared.map(|shared| self.keep(segment, shared)).transpose()?;
        self.entries.push(Entry { slots, experts: Some(ExpertPlaces { ids, shared }), ..entry });
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
        (self.words(entry.slots), entry.predicted.as_deref().or(entry.guess.map(|guess| self.words(guess))))
    }

    /// What has come down at a place.
    pub fn words(&self, (at, len): (usize, usize)) -> &[u32] {
        self.words.get(at..at + len).unwrap_or(&[])
    }
}

/// Bytes of the masks of a token in every layer, or of a chunk in one.
pub(super) fn log_bytes(layers: &[LayerOps], n_layer: usize, chunk: usize) -> u64 {
    let words = layers.iter().map(|layer| layer.ffn.logged()).max().unwrap_or(0);
    (words * 4 * n_layer.max(chunk)) as u64
}

/// Room for these.
pub(super) fn firing_log(gpu: &Gpu, layers: &[LayerOps], n_layer: usize, chunk: usize) -> Result<FiringLog> {
    let bytes = log_bytes(layers, n_layer, chunk);
    if bytes == 0 {
        return Ok(FiringLog::new(None));
    }
    let buffer = gpu.arena().buffer(Purpose::Scratch, "masks of neurons that fired", bytes, Usage::Storage)?;
    Ok(FiringLog::new(Some(buffer)))
}

impl GpuProcessor {
    /// Tells `probe` what the chunk's layers had to tell.
    pub(super) fn report_firing(&mut self, probe: &mut dyn Probe) {
        for entry in &self.log.entries {
            let reporting = Some(Instant::now());
            let ffn = self.layers.get(entry.layer - self.first_layer).map(|layer| &layer.ffn);
            let (hot, experts) = (ffn.and_then(FfnOps::hot), ffn.and_then(FfnOps::experts));
            let (slots, predicted) = self.log.masks(entry);
            self.fired.clear();
            self.fired.extend(&entry.work.fired);
            self.chosen.clear();
            self.chosen.extend(entry.chosen.iter().flatten());
            if let Some(hot) = hot {
                self.fired.resize(entry.tokens * mask::words(hot.neurons()), 0);
                hot.spread(slots, &mut self.fired);
                for (place, neurons) in &entry.streamed {
                    let (read, words) = (self.log.words(*place), mask::words(hot.neurons()));
                    let row = read.len() / entry.tokens.max(1);
                    for (read, fired) in read.chunks_exact(row.max(1)).zip(self.fired.chunks_exact_mut(words)) {
                        let of_slots = neurons.iter().enumerate().filter(|(slot, _)| mask::contains(read, *slot));
                        of_slots.for_each(|(_, neuron)| mask::insert(fired, *neuron as usize));
                    }
                }
            }
            if let Some(FfnOps::Dense(_)) = ffn {
                self.fired.extend(slots);
            }
            if let (Some(experts), Some(places)) = (experts, entry.experts) {
                let shared = places.shared.map(|shared| self.log.words(shared));
                let told = (slots, self.log.words(places.ids), shared);
                experts.spread(told, entry.tokens, &mut self.fired, &mut self.chosen);
            }
            probe.firing(&LayerFiring {
                layer: entry.layer,
                tokens: entry.tokens,
                fired: &self.fired,
                chosen: (!self.chosen.is_empty()).then_some(&self.chosen[..]),
                predicted,
                hot: ffn.and_then(FfnOps::resident),
                complete: entry.complete,
                strength: None,
                cpu_bytes: entry.work.bytes,
                cpu_scattered: entry.work.scattered,
                bus_bytes: entry.bus_bytes,
                gpu_ns: self.segment.nanoseconds(entry.layer),
                cpu_ns: entry.work.cpu_ns,
                wait_ns: entry.wait_ns,
                reporting,
            });
        }
    }
}
