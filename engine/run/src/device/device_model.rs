//! The part of a model in a device's memory: its last layers, and the resident parts of their FFNs.

use std::{ops::ControlFlow, time::Instant};

use super::{
    GpuLayers, GpuLoader,
    device_bytes::device_bytes,
    device_ffn::DeviceFfn,
    firing_log::{FiringLog, log_bytes},
    hand_over::{HandOver, hand_over_bytes},
    load::{DevicePart, FfnPart, GpuLoad, LoadBytes},
    resident_experts::LoggedExperts,
    streaming_buffer::StreamingBuffer,
};
use crate::runtime::{KvType, LayerFiring, Pass, Probe, Sequences};
use thermocline_base::{
    error::{Error, Result, ScarceMemory},
    telemetry::neurons::Strength,
};
use thermocline_gpu::{Gpu, Uploader, WorkKind, tokens_within};
use thermocline_model::{Model, Resident, mask};

/// Fewest tokens of a chunk when a prompt is divided because the device is slow.
const CHUNK_MULTIPLE: usize = 16;

/// The last layers of a model in a device's memory, with all dispatches prepared. The CPU computes
/// the cold part of their FFNs.
#[derive(Debug)]
pub(crate) struct DeviceModel {
    pub layers: GpuLayers,
    /// The FFN of each layer on the device.
    pub ffns: Vec<DeviceFfn>,
    pub log: FiringLog,
    pub hand_over: HandOver,
    /// Buffer through which cold neurons and experts pass in the chunks of a prompt. `None` if it
    /// does not pay or does not fit.
    pub streaming_buffer: Option<StreamingBuffer>,
    /// Masks for observers: fired neurons, and chosen experts.
    fired: Vec<u32>,
    chosen: Vec<u32>,
    /// Strengths for observers.
    strength: Vec<f32>,
}

impl DeviceModel {
    /// Uploads `part` of `model` and prepares everything except caches. `progress` receives the
    /// bytes of the file uploaded so far and their total, and may cancel.
    ///
    /// # Errors
    /// [`Error::Memory`] if the device's budget or limits are too small, [`Error::Unsupported`] for
    /// a variant without kernels, [`Error::Cancelled`], [`Error::Gpu`] if the device is lost. After
    /// an error all memory is free again.
    pub fn load(
        gpu: &Gpu,
        model: &Model,
        part: &DevicePart<'_>,
        load: &GpuLoad,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let chunk = device_bytes(gpu.caps(), model, load.chunk, KvType::F32)?.chunk;
        let LoadBytes { file: wanted, device } = LoadBytes::new(gpu.caps(), model, part, chunk)?;
        let available = gpu.arena().available();
        // No weight type is smaller on a device than in the file, so a load that cannot fit is
        // refused at once.
        if wanted > available {
            return Err(Error::memory(ScarceMemory::Gpu, "weights in GPU memory", wanted, available));
        }
        // The staging buffers use a quarter of the memory that the load leaves free.
        let mut uploader = Uploader::with_loads(gpu, available.saturating_sub(device) / 4, progress)?;
        uploader.expect(wanted);
        let threshold_ratio = load.threshold_ratio;
        let loader = GpuLoader { gpu, config: &model.config, chunk, threshold_ratio, uploader };
        Self::build(loader, model, part, load.submission)
    }

    /// Builds `part` of `model` on the device of `loader`, which may be a device that only counts.
    pub(super) fn build(
        mut loader: GpuLoader<'_, '_>,
        model: &Model,
        part: &DevicePart<'_>,
        submission: u64,
    ) -> Result<Self> {
        let mut device = Self::new(&mut loader, part.first_layer, submission)?;
        for ffn in &part.ffn {
            device.push(&mut loader, model, *ffn, part.predictors)?;
        }
        if part.head {
            device.layers.add_head(&mut loader, &model.weights)?;
        }
        loader.uploader.finish()?;
        device.fit_buffers(model)?;
        Ok(device)
    }

    /// Makes a model without layers. The first layer that [`DeviceModel::push`] adds is
    /// `first_layer`.
    pub(super) fn new(loader: &mut GpuLoader<'_, '_>, first_layer: usize, submission: u64) -> Result<Self> {
        Ok(DeviceModel {
            layers: GpuLayers::new(loader, first_layer, submission)?,
            ffns: Vec::new(),
            log: FiringLog::new(loader.gpu, 0)?,
            hand_over: HandOver::default(),
            streaming_buffer: None,
            fired: Vec::new(),
            strength: Vec::new(),
            chosen: Vec::new(),
        })
    }

    /// Uploads the next layer with `part` of its FFN, and its predictor if `with_predictor`.
    pub(super) fn push(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        model: &Model,
        part: FfnPart<'_>,
        with_predictor: bool,
    ) -> Result<()> {
        let layer = self.layers.push(loader, model)?;
        let ffn = self.upload_ffn(loader, model, layer, part, with_predictor)?;
        self.ffns.push(ffn);
        Ok(())
    }

    /// Uploads `part` of the FFN of `layer`, whose steps are already on the device, and its
    /// predictor if `with_predictor`.
    pub fn upload_ffn(
        &self,
        loader: &mut GpuLoader<'_, '_>,
        model: &Model,
        layer: usize,
        part: FfnPart<'_>,
        with_predictor: bool,
    ) -> Result<DeviceFfn> {
        let (weights, shape) = (&model.weights.layers[layer], &model.config.layers[layer]);
        DeviceFfn::new(loader, &self.ffns, weights, part, with_predictor, &self.layers.registers, shape)
    }

    /// Makes room for hand-overs, the firing log and the results of the current layers.
    pub fn fit_buffers(&mut self, model: &Model) -> Result<()> {
        let layers = &mut self.layers;
        layers.segment.reserve_hand_over(hand_over_bytes(&self.ffns, &layers.registers, layers.chunk))?;
        let logged = log_bytes(&self.ffns, model.config.n_layer(), layers.chunk);
        if self.log.bytes() < logged {
            self.log = FiringLog::new(&layers.gpu, logged)?;
        }
        layers.reserve_results(self.log.bytes())
    }

    /// The FFN of `layer`.
    pub fn ffn(&self, layer: usize) -> Result<&DeviceFfn> {
        self.layers.layer(layer)?;
        Ok(&self.ffns[layer - self.layers.range().start])
    }

    /// The FFN of `layer`, mutably.
    pub fn ffn_mut(&mut self, layer: usize) -> Result<&mut DeviceFfn> {
        self.layers.layer(layer)?;
        Ok(&mut self.ffns[layer - self.layers.range().start])
    }

    /// The parts of `model` that are on the device.
    pub fn resident(&self, model: &Model) -> Resident {
        let range = self.layers.range();
        let mut hot = vec![Vec::new(); range.start];
        hot.extend(self.ffns.iter().zip(&model.weights.layers[range.clone()]).map(
            |(ffn, weights)| match ffn.slots() {
                Some(slots) => slots.resident.clone(),
                None => {
                    let mut all = vec![0; mask::words(weights.ffn.units())];
                    mask::fill(&mut all, weights.ffn.units(), |_| ffn.is_whole());
                    all
                }
            },
        ));
        Resident { first_layer: range.start, hot, head: self.layers.has_head() }
    }

    /// Most tokens of a chunk in which no step takes the device too long, as a multiple of the
    /// tokens that a kernel computes together.
    pub fn paced_chunk(&self) -> usize {
        let heaviest = self.ffns.iter().map(DeviceFfn::work).fold(self.layers.heaviest_step(), u64::max);
        let tokens = tokens_within(self.layers.segment.most(WorkKind::Prompt), heaviest);
        (tokens / CHUNK_MULTIPLE * CHUNK_MULTIPLE).clamp(CHUNK_MULTIPLE, self.layers.chunk.max(CHUNK_MULTIPLE))
    }

    /// Starts a chunk of `sequences`' rows whose first layers the CPU computes.
    pub fn start_chunk(&mut self, pass: &Pass<'_>, sequences: &Sequences<'_>) {
        self.log.clear();
        self.layers.segment.time(pass.times);
        self.layers.start_chunk(sequences);
    }

    /// Begins a chunk.
    pub fn begin(&mut self, pass: &Pass<'_>, sequences: &Sequences<'_>) -> Result<()> {
        self.log.clear();
        self.layers.segment.time(pass.times);
        self.layers.begin(pass, sequences)
    }

    /// Computes the predictor of `layer` if the pass uses it. The layer must be on the device.
    pub fn predict(&mut self, pass: &Pass<'_>, layer: usize) {
        let neurons = self.ffns[layer - self.layers.range().start].neurons();
        let asked = neurons.filter(|neurons| neurons.predicts(pass));
        if let Some(predictor) = asked.and_then(|neurons| neurons.predictor.as_ref()) {
            predictor.record(self.layers.segment.recorder(), pass.threshold_shift(layer));
        }
    }

    /// Ends the chunk: reads back the firing log together with what `read` reads of the layers.
    pub fn end(&mut self, read: impl FnOnce(&mut GpuLayers) -> Result<()>) -> Result<()> {
        self.log.read_back(&mut self.layers.segment);
        read(&mut self.layers)?;
        self.log.collect(&self.layers.segment);
        Ok(())
    }

    /// Ends a chunk without computing logits.
    pub fn finish(&mut self) -> Result<()> {
        self.layers.forget_due();
        let segment = &mut self.layers.segment;
        if !self.log.read_back(segment) && !segment.is_timed() {
            return segment.submit();
        }
        segment.read(&[], |_| ())?;
        self.log.collect(segment);
        Ok(())
    }

    /// Passes the firing log of the finished chunk to `probe`.
    pub fn report(&mut self, probe: &mut dyn Probe) {
        let first = self.layers.range().start;
        for entry in &self.log.entries {
            let reporting = Some(Instant::now());
            let ffn = entry.layer.checked_sub(first).and_then(|at| self.ffns.get(at));
            let (masks, predicted) = self.log.masks(entry);
            self.fired.clear();
            self.fired.extend(&entry.work.fired);
            let strengths = self.log.strengths(entry);
            self.strength.clear();
            self.strength.extend(&entry.work.strength);
            self.chosen.clear();
            self.chosen.extend(entry.chosen.iter().flatten());
            match ffn {
                Some(DeviceFfn::Neurons(neurons)) => {
                    self.fired.resize(entry.tokens * mask::words(neurons.neurons()), 0);
                    neurons.add_fired(masks, &mut self.fired);
                    if let Some(strengths) = strengths {
                        self.strength.resize(neurons.neurons(), 0.0);
                        neurons.add_strengths(strengths, &mut self.strength);
                    }
                    for (place, streamed) in &entry.streamed {
                        let (read, words) = (self.log.words(*place), mask::words(neurons.neurons()));
                        let row = read.len() / entry.tokens.max(1);
                        for (read, fired) in read.chunks_exact(row.max(1)).zip(self.fired.chunks_exact_mut(words)) {
                            let of_slots = streamed.iter().enumerate().filter(|(slot, _)| mask::contains(read, *slot));
                            of_slots.for_each(|(_, neuron)| mask::insert(fired, *neuron as usize));
                        }
                    }
                }
                Some(DeviceFfn::Whole(_)) => {
                    self.fired.extend(masks);
                    self.strength.extend(strengths.into_iter().flatten());
                }
                Some(DeviceFfn::Experts(experts)) => {
                    if let Some(places) = entry.experts {
                        let logged = LoggedExperts {
                            pairs: masks,
                            ids: self.log.words(places.ids),
                            shared: places.shared.map(|shared| self.log.words(shared)),
                            streamed: places.streamed,
                        };
                        experts.add_fired(&logged, entry.tokens, &mut self.fired, &mut self.chosen);
                    }
                }
                Some(DeviceFfn::Cold | DeviceFfn::Absent) | None => {}
            }
            probe.firing(&LayerFiring {
                layer: entry.layer,
                tokens: entry.tokens,
                fired: &self.fired,
                chosen: (!self.chosen.is_empty()).then_some(&self.chosen[..]),
                predicted,
                hot: ffn.and_then(DeviceFfn::resident_neurons),
                complete: entry.complete,
                strength: (!self.strength.is_empty()).then_some(Strength::All(&self.strength)),
                cpu_bytes: entry.work.bytes,
                cpu_scattered: entry.work.scattered,
                bus_bytes: entry.bus_bytes,
                gpu_ns: self.layers.segment.nanoseconds(entry.layer),
                cpu_ns: entry.work.cpu_ns,
                wait_ns: entry.wait_ns,
                reporting,
            });
        }
    }
}
