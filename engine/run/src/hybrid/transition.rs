//! Moving towards a placement. Parts that leave the device are freed at once. New parts are
//! uploaded a limited number of bytes at a time. Until then the CPU computes everything that is not
//! resident.

use std::{ops::ControlFlow, time::Instant};

use super::{
    planner::Moved,
    processor::{HybridProcessor, check},
};
use crate::{
    device::{
        device_model::DeviceModel,
        load::DevicePart,
        moves::{ResidentPart, UploadGoal},
    },
    placement::Placement,
    runtime::{KvCache, Residency},
};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::Recorder;
use thermocline_model::{Model, Resident};

impl HybridProcessor {
    /// Moves towards `placement`: frees what it does not contain, and uploads about `bytes` of what
    /// is missing. Call it again while [`Moved::more`] is true, but not within a chunk. `caches`
    /// must be all caches.
    ///
    /// # Errors
    /// As [`HybridProcessor::load`].
    pub fn apply(
        &mut self,
        model: &Model,
        placement: &Placement,
        caches: &mut [&mut KvCache],
        bytes: u64,
    ) -> Result<Moved> {
        self.release(model, placement, caches)?;
        self.advance(model, caches, bytes)
    }

    /// Makes `placement` the wanted one, and frees the resident parts that it does not contain.
    fn release(&mut self, model: &Model, placement: &Placement, caches: &mut [&mut KvCache]) -> Result<()> {
        check(model, placement)?;
        if *placement != self.wanted {
            self.wanted.clone_from(placement);
            self.settled = false;
        }
        let n_layer = model.config.n_layer();
        let predictors = self.wants_predictors();
        let Some(device) = &mut self.device else { return Ok(()) };
        device.drop_layers(model, placement.first_resident, caches)?;
        if device.layers.range().is_empty() {
            self.device = None;
        } else {
            if !placement.head {
                device.layers.drop_head();
            }
            for layer in device.layers.range() {
                if !predictors {
                    device.drop_predictor(layer)?;
                }
                let hot = placement.hot[layer].len();
                match device.resident_part(layer)? {
                    ResidentPart::Units(_) => device.drop_units(layer, hot)?,
                    ResidentPart::Whole(true) if hot < model.weights.layers[layer].ffn.units() => {
                        device.drop_units(layer, 0)?;
                    }
                    ResidentPart::Whole(_) => {}
                }
            }
            match device.make_room(model) {
                Err(Error::Memory { .. }) => {
                    device.drop_layers(model, n_layer, caches)?;
                    self.device = None;
                }
                done => done?,
            }
        }
        (0..n_layer).for_each(|layer| self.find_cold(model, layer));
        self.moves += 1;
        Ok(())
    }

    fn wants_predictors(&self) -> bool {
        self.load.predictors || self.predicts
    }

    /// Uploads about `bytes` of the wanted parts: first layers with their keys and values, then
    /// predictors, the head, and neurons. Parts that do not fit the budget stay where they are.
    fn advance(&mut self, model: &Model, caches: &mut [&mut KvCache], bytes: u64) -> Result<Moved> {
        if self.settled {
            return Ok(Moved::default());
        }
        let mut moved = Moved::default();
        let mut done = self.upload_wanted(model, caches, bytes, &mut moved);
        if matches!(done, Err(Error::Memory { .. })) && self.drop_streaming_buffer() {
            done = self.upload_wanted(model, caches, bytes, &mut moved);
        }
        self.streaming_due = true;
        (0..model.config.n_layer()).for_each(|layer| self.find_cold(model, layer));
        self.moves += 1;
        match done {
            Ok(more) => (moved.more, self.settled) = (more, !more),
            Err(error @ Error::Memory { .. }) => {
                tracing::info!(%error, "no more weights fit in VRAM");
                self.settled = true;
            }
            Err(error) => return Err(error),
        }
        Ok(moved)
    }

    /// Uploads about `limit` bytes of the wanted parts. Returns true if anything is left to upload.
    fn upload_wanted(
        &mut self,
        model: &Model,
        caches: &mut [&mut KvCache],
        limit: u64,
        moved: &mut Moved,
    ) -> Result<bool> {
        let n_layer = model.config.n_layer();
        if self.wanted.first_resident >= n_layer {
            return Ok(false);
        }
        if self.device.is_none() {
            let nothing = DevicePart { first_layer: n_layer, ffn: Vec::new(), head: false, predictors: false };
            let mut go_on = |_, _| ControlFlow::Continue(());
            let device = DeviceModel::load(&self.gpu, model, &nothing, &self.load, &mut go_on)?;
            self.device = Some(device);
        }
        let goal = UploadGoal { placement: &self.wanted, predictors: self.wants_predictors(), limit };
        let Some(device) = &mut self.device else { return Ok(false) };
        device.upload(model, |device, loader| {
            let more = device.upload_towards(loader, model, goal, caches, &mut moved.units);
            moved.bytes = loader.uploader.done();
            more
        })
    }

    /// Updates the list of a layer's cold neurons for the CPU.
    pub(super) fn find_cold(&mut self, model: &Model, layer: usize) {
        let device = self.device.as_ref().filter(|device| device.layers.range().contains(&layer));
        let neurons = device.and_then(|device| device.ffn(layer).ok()).and_then(|ffn| ffn.neurons());
        let all = 0..model.weights.layers[layer].ffn.units() as u32;
        let cold = &mut self.cold.neurons[layer];
        cold.clear();
        if let Some(neurons) = neurons {
            cold.extend(all.filter(|neuron| !neurons.slots.holds(*neuron)));
        }
    }
}

impl Residency for HybridProcessor {
    fn take_kv(&mut self, model: &Model, kv: &mut KvCache) -> Result<()> {
        if !kv.fits(&model.config) {
            return Err(Error::invalid("KV cache", "a KV cache of this model", "a KV cache of another shape"));
        }
        self.retry_without_streaming_buffer(|it| {
            it.device.as_mut().map_or(Ok(()), |device| device.layers.take_kv(model, kv))
        })
    }

    fn return_kv(&mut self, kv: &mut KvCache) -> Result<()> {
        self.device.as_mut().map_or(Ok(()), |device| device.layers.kv_to_ram(kv))
    }

    fn copy_to_ram(&mut self, layers: &[usize], kv: &mut KvCache) -> Result<()> {
        let Some(device) = &mut self.device else { return Ok(()) };
        layers.iter().try_for_each(|layer| device.layers.copy_to_ram(*layer, kv))
    }

    fn copy_prefix(&mut self, from: &KvCache, to: &mut KvCache, tokens: usize) -> Result<usize> {
        let mut recorder = Recorder::new(&self.gpu);
        let held = to.copy_prefix(from, tokens, Some(&mut recorder))?;
        recorder.submit()?;
        Ok(held)
    }

    fn set_budget(&mut self, model: &Model, bytes: u64, caches: &mut [&mut KvCache]) -> Result<()> {
        let Some(planner) = &mut self.planner else {
            return Err(Error::unsupported(
                "VRAM budget",
                "a change with a fixed placement",
                "a change with a planned placement",
            ));
        };
        let bytes = bytes.min(self.gpu.report().memory().unwrap_or(u64::MAX));
        let placement = planner.plan(model, bytes)?;
        self.drop_streaming_buffer();
        self.release(model, &placement, caches)?;
        self.gpu.arena().set_budget(bytes)
    }

    fn settle(&mut self, model: &Model, caches: &mut [&mut KvCache]) -> Result<bool> {
        let now = &self.wanted;
        let other = self.planner.as_mut().map_or(Ok(None), |planner| planner.revise(model, now))?;
        if let Some(placement) = other {
            self.release(model, &placement, caches)?;
        }
        if self.settled {
            self.plan_streaming(model)?;
            return Ok(false);
        }
        let bytes = self.planner.as_ref().map_or(u64::MAX, |planner| planner.bytes_per_move());
        let started = Instant::now();
        let moved = self.advance(model, caches, bytes)?;
        if let Some(planner) = self.planner.as_mut().filter(|_| moved.bytes > 0) {
            planner.uploaded(moved.bytes, started.elapsed());
        }
        // Once all wanted parts are resident, the streaming buffer may use the rest of the budget.
        Ok(moved.more || self.streaming_due)
    }

    fn resident(&self, model: &Model) -> Option<Resident> {
        self.device.as_ref().map(|device| device.resident(model))
    }

    fn moves(&self) -> u64 {
        self.moves
    }
}
