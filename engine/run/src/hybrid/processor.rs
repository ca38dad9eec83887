//! CPU and device as one [`Processor`].

use std::ops::{ControlFlow, Range};

use super::{cpu_share::CpuShare, planner::Planner, same_bits::same_bits};
use crate::{
    device::{
        device_ffn::DeviceFfn,
        device_model::DeviceModel,
        layers::GpuLayers,
        load::{DevicePart, FfnPart, GpuLoad},
    },
    placement::{Placement, Streaming},
    runtime::{CpuProcessor, KvCache, KvType, Pass, Processor, Residency, Sequences},
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, Isa};
use thermocline_gpu::{Gpu, Purpose};
use thermocline_model::{BoundOperation, BoundStep, Ffn, Model, Sparsity};

/// A model that is partly resident in a device's memory: its last layers, all or some of their
/// neurons, and perhaps the head.
#[derive(Debug)]
pub struct HybridProcessor {
    pub(super) gpu: Gpu,
    pub(super) cold: CpuShare,
    /// `None` while nothing is resident.
    pub(super) device: Option<DeviceModel>,
    pub(super) load: GpuLoad,
    /// The placement to reach, and whether it has been reached.
    pub(super) wanted: Placement,
    pub(super) settled: bool,
    pub(super) planner: Option<Box<dyn Planner>>,
    /// True if the next passes use predictors.
    pub(super) predicts: bool,
    /// True once the chunk's residual stream is on the device.
    residual_on_device: bool,
    /// Number of changes of the resident parts.
    pub(super) moves: u64,
    /// When cold units of prompts are streamed to the device, and whether the planner has to be
    /// asked again.
    pub(super) streaming: Streaming,
    pub(super) streaming_due: bool,
}

impl HybridProcessor {
    /// Uploads the part of `model` that `placement` names and prepares everything except caches.
    /// Neurons are placed one by one if the down projection has a row per neuron, and experts one
    /// by one in MoE layers. All other FFNs are entirely on one side. `progress` receives the bytes
    /// of the file uploaded so far and their total, and may cancel.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a placement that does not fit the model. [`Error::Memory`] if the
    /// device's budget or limits are too small, [`Error::Unsupported`] for a variant without
    /// kernels, [`Error::Cancelled`], [`Error::Gpu`] if the device is lost. After an error all
    /// memory is free again.
    pub fn load(
        gpu: &Gpu,
        cpu: Cpu,
        model: &Model,
        placement: &Placement,
        load: &GpuLoad,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        check(model, placement)?;
        let part =
            (placement.first_resident < model.config.n_layer()).then(|| device_part(model, placement, load.predictors));
        Self::load_part(gpu, cpu, model, placement.clone(), part, load, progress)
    }

    /// Uploads the whole `model`, with one block per layer in the file's order, for a model that
    /// stays on the device.
    ///
    /// # Errors
    /// As [`HybridProcessor::load`].
    pub fn load_whole(
        gpu: &Gpu,
        cpu: Cpu,
        model: &Model,
        load: &GpuLoad,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let hot = model.weights.layers.iter().map(|layer| (0..layer.ffn.units() as u32).collect());
        let placement = Placement { first_resident: 0, hot: hot.collect(), head: true };
        let part = DevicePart::all(model.config.n_layer());
        Self::load_part(gpu, cpu, model, placement, Some(part), load, progress)
    }

    fn load_part(
        gpu: &Gpu,
        cpu: Cpu,
        model: &Model,
        wanted: Placement,
        part: Option<DevicePart<'_>>,
        load: &GpuLoad,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let n_layer = model.config.n_layer();
        let device = part.map(|part| DeviceModel::load(gpu, model, &part, load, progress)).transpose()?;
        let mut processor = HybridProcessor {
            gpu: gpu.clone(),
            cold: CpuShare::new(cpu, n_layer),
            device,
            load: load.clone(),
            wanted,
            settled: true,
            planner: None,
            predicts: false,
            residual_on_device: false,
            moves: 0,
            streaming: Streaming::Never,
            streaming_due: true,
        };
        (0..n_layer).for_each(|layer| processor.find_cold(model, layer));
        Ok(processor)
    }

    /// Adds a planner, which is asked when the budget changes.
    #[must_use]
    pub fn with_planner(mut self, planner: Box<dyn Planner>) -> Self {
        self.planner = Some(planner);
        self
    }

    /// The placement to reach. [`Residency::settle`] uploads the parts that are not resident yet.
    pub fn placement(&self) -> &Placement {
        &self.wanted
    }

    /// True if the whole `model`, which this processor computes, is to be on the device.
    pub fn places_all_of(&self, model: &Model) -> bool {
        let Placement { first_resident, hot, head } = &self.wanted;
        let mut layers = model.weights.layers.iter().zip(hot);
        *first_resident == 0 && *head && layers.all(|(layer, hot)| hot.len() == layer.ffn.units())
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Copies the residual stream to the device before the first step of a resident layer.
    fn enter_layer(&mut self, pass: &Pass<'_>, layer: usize) -> Result<()> {
        if let Some(device) = &mut self.device
            && !self.residual_on_device
            && layer >= device.layers.range().start
        {
            let range = device.layers.range();
            device.layers.begin_with(self.cold.cpu.current_streams(pass), self.cold.cpu.per_layer_inputs(range))?;
            self.residual_on_device = true;
        }
        Ok(())
    }

    /// The side that holds the residual stream.
    fn side(&mut self) -> StreamSide<'_> {
        match &mut self.device {
            Some(device) if self.residual_on_device => StreamSide::Device(device),
            _ => StreamSide::Cpu(&mut self.cold),
        }
    }

    /// Merges the streams of `tokens` on the CPU if both the streams and the head are on the
    /// device. The merged rows become the first rows of the device's residual stream, where the
    /// head reads them. Returns true if it merged.
    fn merge_streams(&mut self, model: &Model, tokens: Range<usize>) -> Result<bool> {
        match &mut self.device {
            Some(device) if self.residual_on_device && device.layers.has_head() && model.config.streams() > 1 => {
                let cpu = &mut self.cold.cpu;
                device.end(|layers| layers.read_streams(tokens.clone()))?;
                cpu.take_streams(model, device.layers.residual(), tokens.len())?;
                device.layers.replace_residual(cpu.merged_streams(model, 0..tokens.len())?)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Copies the residual stream of `tokens`, or all streams, back to the CPU if it is on the
    /// device and the head is not. The device's part of the chunk then ends. Returns true if it
    /// copied.
    fn bring_back(&mut self, model: &Model, tokens: Range<usize>) -> Result<bool> {
        let on_device = self.device.as_mut().filter(|_| self.residual_on_device);
        let Some(device) = on_device.filter(|device| !device.layers.has_head()) else { return Ok(false) };
        device.end(|layers| copy_streams(layers, &mut self.cold.cpu, model, tokens))?;
        Ok(true)
    }
}

/// Copies the residual stream of `tokens`, or all streams, from the device to the CPU.
fn copy_streams(layers: &mut GpuLayers, cpu: &mut CpuProcessor, model: &Model, tokens: Range<usize>) -> Result<()> {
    let n = tokens.len();
    if model.config.streams() > 1 {
        layers.read_streams(tokens)?;
        return cpu.take_streams(model, layers.residual(), n);
    }
    layers.read_residual(tokens)?;
    cpu.take_residual(model, layers.residual(), n)
}

/// The side that holds the residual stream.
enum StreamSide<'a> {
    Cpu(&'a mut CpuShare),
    Device(&'a mut DeviceModel),
}

/// Returns an error for a placement that does not fit the model.
pub(super) fn check(model: &Model, placement: &Placement) -> Result<()> {
    let invalid = |expected: String, got: String| Err(Error::invalid("placement", expected, got));
    let n_layer = model.config.n_layer();
    if placement.hot.len() != n_layer || placement.first_resident > n_layer {
        let got =
            format!("{} layers, of which layer {} is the first in VRAM", placement.hot.len(), placement.first_resident);
        return invalid(format!("{n_layer} layers"), got);
    }
    if placement.head && placement.first_resident == n_layer {
        return invalid("the last layer in VRAM if the head is in VRAM".to_owned(), "the head alone".to_owned());
    }
    for (layer, hot) in placement.hot.iter().enumerate() {
        let n = model.weights.layers[layer].ffn.units();
        if layer < placement.first_resident && !hot.is_empty() {
            return invalid(
                format!("hot neurons only from layer {} on", placement.first_resident),
                format!("hot neurons in layer {layer}"),
            );
        }
        let mut seen = vec![false; n];
        for neuron in hot {
            match seen.get_mut(*neuron as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => {
                    return invalid(
                        format!("each of the {n} neurons of layer {layer} at most once"),
                        neuron.to_string(),
                    );
                }
            }
        }
    }
    Ok(())
}

/// The part of the model that `placement` puts on the device.
fn device_part<'a>(model: &Model, placement: &'a Placement, predictors: bool) -> DevicePart<'a> {
    let ffn = placement.hot.iter().enumerate().skip(placement.first_resident).map(|(layer, hot)| {
        let weights = &model.weights.layers[layer];
        let (ffn, by_unit) = (&weights.ffn, DeviceFfn::places_units(weights));
        match hot.len() {
            0 => FfnPart::None,
            n if !by_unit && n == ffn.units() => FfnPart::All,
            // Experts of different shapes are resident only together.
            _ if !by_unit && matches!(ffn, Ffn::Experts(_)) => FfnPart::None,
            _ => FfnPart::Hot(hot),
        }
    });
    DevicePart { first_layer: placement.first_resident, ffn: ffn.collect(), head: placement.head, predictors }
}

impl Processor for HybridProcessor {
    fn isa(&self) -> Isa {
        self.cold.cpu.isa()
    }

    fn max_chunk(&self) -> usize {
        self.device.as_ref().map_or(usize::MAX, |device| device.layers.chunk)
    }

    fn streamed_chunk(&self) -> usize {
        let streams = self.device.as_ref().filter(|device| device.streaming_buffer.is_some());
        streams.map_or(0, |device| device.layers.chunk)
    }

    fn paced_chunk(&self) -> usize {
        self.device.as_ref().map_or(usize::MAX, DeviceModel::paced_chunk)
    }

    fn kv_cache(&mut self, model: &Model, capacity: usize, ty: KvType) -> Result<KvCache> {
        self.retry_without_streaming_buffer(|it| match &mut it.device {
            Some(device) => device.layers.kv_cache(model, capacity, ty),
            None => it.cold.cpu.kv_cache(model, capacity, ty),
        })
    }

    fn holds(&self, kv: &KvCache) -> bool {
        match &self.device {
            Some(device) => device.layers.holds(kv),
            None => self.cold.cpu.holds(kv),
        }
    }

    fn begin(&mut self, pass: &Pass<'_>, sequences: &Sequences<'_>) -> Result<()> {
        self.residual_on_device = false;
        match &mut self.device {
            // Everything else that is made from embeddings is computed by the CPU, because its
            // weights are not on the device.
            Some(device) if device.layers.range().start == 0 && pass.model.begins_with_embeddings() => {
                self.residual_on_device = true;
                device.begin(pass, sequences)
            }
            Some(device) => {
                device.start_chunk(pass, sequences);
                self.cold.cpu.begin(pass, sequences)
            }
            None => self.cold.cpu.begin(pass, sequences),
        }
    }

    fn step(&mut self, pass: &mut Pass<'_>, step: &BoundStep<'_>, sequences: &mut Sequences<'_>) -> Result<()> {
        self.enter_layer(pass, step.layer)?;
        let streams = matches!(step.operation, BoundOperation::Ffn(_)) && self.streams(pass, step.layer);
        match &mut self.device {
            Some(device) if self.residual_on_device => device.step(pass, step, sequences, &mut self.cold, streams),
            Some(device) if matches!(step.operation, BoundOperation::Attention(_)) => {
                self.cold.cpu.step(pass, step, sequences)?;
                device.layers.update_copies(step.layer, sequences)
            }
            _ => self.cold.cpu.step(pass, step, sequences),
        }
    }

    fn add_inputs(&mut self, pass: &Pass<'_>, layer: usize) -> Result<()> {
        match self.side() {
            StreamSide::Device(device) => device.layers.add_inputs(pass, layer),
            StreamSide::Cpu(cold) => cold.cpu.add_inputs(pass, layer),
        }
    }

    fn residual(&mut self, pass: &Pass<'_>) -> Result<&[f32]> {
        match self.side() {
            StreamSide::Device(device) => {
                device.layers.read_residual(0..pass.tokens.len())?;
                Ok(device.layers.residual())
            }
            StreamSide::Cpu(cold) => cold.cpu.residual(pass),
        }
    }

    fn head(&mut self, pass: &Pass<'_>, tokens: Range<usize>, logits: &mut [f32]) -> Result<()> {
        if self.bring_back(pass.model, tokens.clone())? {
            return self.cold.cpu.head(pass, 0..tokens.len(), logits);
        }
        let merged = self.merge_streams(pass.model, tokens.clone())?;
        match self.side() {
            StreamSide::Device(device) if merged => device.layers.logits(0..tokens.len(), logits),
            StreamSide::Device(device) => device.end(|layers| layers.logits(tokens, logits)),
            StreamSide::Cpu(cold) => cold.cpu.head(pass, tokens, logits),
        }
    }

    fn hidden(&mut self, pass: &Pass<'_>, out: &mut [f32]) -> Result<()> {
        if let Some(device) = self.device.as_mut().filter(|_| self.residual_on_device) {
            copy_streams(&mut device.layers, &mut self.cold.cpu, pass.model, 0..pass.tokens.len())?;
        }
        self.cold.cpu.hidden(pass, out)
    }

    fn top(&mut self, pass: &Pass<'_>, token: usize, ids: &mut [u32], logits: &mut [f32]) -> Result<()> {
        if self.bring_back(pass.model, token..token + 1)? {
            return self.cold.cpu.top(pass, 0, ids, logits);
        }
        let merged = self.merge_streams(pass.model, token..token + 1)?;
        match self.side() {
            StreamSide::Device(device) if merged => device.layers.top(0, ids, logits),
            StreamSide::Device(device) => device.end(|layers| layers.top(token, ids, logits)),
            StreamSide::Cpu(cold) => cold.cpu.top(pass, token, ids, logits),
        }
    }

    fn finish(&mut self) -> Result<()> {
        match self.side() {
            StreamSide::Device(device) => device.finish(),
            StreamSide::Cpu(cold) => cold.cpu.finish(),
        }
    }

    fn report(&mut self, pass: &mut Pass<'_>) {
        if let StreamSide::Device(device) = self.side() {
            device.report(pass.probe);
        }
    }

    fn same_bits(&self, model: &Model, mode: Sparsity) -> usize {
        same_bits(self.cold.cpu.same_bits(model, mode), model, mode)
    }

    fn keeps_bits(&self) -> bool {
        self.gpu.keeps_bits()
    }

    fn expect_sparsity(&mut self, mode: Sparsity) {
        self.predicts = mode == Sparsity::Predicted;
        // Predictors may have to be loaded or freed.
        self.settled &= self.load.predictors;
    }

    fn residency(&mut self) -> Option<&mut dyn Residency> {
        Some(self)
    }

    fn scratch_bytes(&self) -> u64 {
        let arena = self.gpu.arena();
        let device = arena.used_for(Purpose::Scratch) + arena.used_for(Purpose::Staging);
        self.cold.cpu.scratch_bytes() + self.device.as_ref().map_or(0, |_| device)
    }
}

#[cfg(test)]
mod tests;
