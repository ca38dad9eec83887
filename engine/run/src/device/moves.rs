//! Changes to the resident part of a model on a device, made between chunks. The device can compute
//! after every step, and a step that frees memory frees it at once.

use std::{collections::HashSet, ops::ControlFlow};

use super::{
    GpuLoader, device_ffn::DeviceFfn, device_model::DeviceModel, expert_matrices::expert_matrices, load::FfnPart,
    neuron_weights::NeuronWeights, slot_table::SlotTable,
};
use crate::{placement::Placement, runtime::KvCache};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::Uploader;
use thermocline_model::{Ffn, Model};

/// The resident part of a layer's FFN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResidentPart {
    /// The whole FFN (`true`) or nothing (`false`).
    Whole(bool),
    /// These neurons (experts in an MoE layer).
    Units(Vec<u32>),
}

/// The parts to make resident, and how much of them to upload at once.
#[derive(Clone, Copy)]
pub(crate) struct UploadGoal<'a> {
    pub placement: &'a Placement,
    /// True if predictors are wanted too.
    pub predictors: bool,
    /// Approximate number of bytes in flight at which the upload stops.
    pub limit: u64,
}

impl DeviceModel {
    /// Uploads wanted parts and counts units in `count`. Returns true if anything is left to
    /// upload.
    pub fn upload_towards(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        model: &Model,
        goal: UploadGoal<'_>,
        caches: &mut [&mut KvCache],
        count: &mut usize,
    ) -> Result<bool> {
        let UploadGoal { placement: wanted, predictors, limit } = goal;
        while self.layers.range().start > wanted.first_resident {
            if loader.uploader.done() >= limit {
                return Ok(true);
            }
            self.add_layer(loader, model, caches)?;
        }
        if predictors {
            for layer in self.layers.range() {
                if loader.uploader.done() >= limit {
                    return Ok(true);
                }
                self.add_predictor(loader, model, layer)?;
            }
        }
        if wanted.head && !self.layers.has_head() {
            if loader.uploader.done() >= limit {
                return Ok(true);
            }
            self.add_head(loader, model)?;
        }
        for layer in self.layers.range() {
            let hot = &wanted.hot[layer];
            let left = limit.saturating_sub(loader.uploader.done());
            match self.resident_part(layer)? {
                ResidentPart::Units(here) => {
                    let (all, held): (HashSet<u32>, HashSet<u32>) =
                        (hot.iter().copied().collect(), here.iter().copied().collect());
                    let coming: Vec<u32> = hot.iter().filter(|unit| !held.contains(unit)).copied().collect();
                    let going: HashSet<u32> = here.into_iter().filter(|unit| !all.contains(unit)).collect();
                    if coming.is_empty() {
                        continue;
                    }
                    if left == 0 {
                        return Ok(true);
                    }
                    let (came, all) = self.add_units(loader, model, layer, &coming, &going, left)?;
                    *count += came;
                    if !all {
                        return Ok(true);
                    }
                }
                ResidentPart::Whole(false) if hot.len() == model.weights.layers[layer].ffn.units() => {
                    if left == 0 {
                        return Ok(true);
                    }
                    self.add_ffn(loader, model, layer)?;
                }
                ResidentPart::Whole(_) => {}
            }
        }
        Ok(false)
    }

    /// The resident part of a layer's FFN.
    pub fn resident_part(&self, layer: usize) -> Result<ResidentPart> {
        let ffn = self.ffn(layer)?;
        Ok(match ffn.slots() {
            Some(slots) => ResidentPart::Units(slots.by_slot().map(|(_, unit)| unit).collect()),
            None => ResidentPart::Whole(ffn.is_whole()),
        })
    }

    /// Frees the layers before `first` and moves their keys and values to RAM.
    pub fn drop_layers(&mut self, model: &Model, first: usize, caches: &mut [&mut KvCache]) -> Result<()> {
        while self.layers.range().start < first && !self.layers.range().is_empty() {
            self.layers.pop_front(model, caches)?;
            self.ffns.remove(0);
        }
        Ok(())
    }

    /// Frees blocks of a layer, coldest first, until it has room for at most `units` of its units,
    /// rounded up to whole blocks. An FFN that cannot be resident in part is freed as a whole.
    pub fn drop_units(&mut self, layer: usize, units: usize) -> Result<()> {
        let ffn = self.ffn_mut(layer)?;
        match ffn.slots().map(|slots| slots.slots_for(units)) {
            Some(slots) => ffn.drop_to(slots),
            None => *ffn = DeviceFfn::Cold,
        }
        Ok(())
    }

    /// Frees a layer's predictor.
    pub fn drop_predictor(&mut self, layer: usize) -> Result<()> {
        if let DeviceFfn::Neurons(neurons) = self.ffn_mut(layer)? {
            neurons.predictor = None;
        }
        Ok(())
    }

    /// Uploads more with `bring`, without waiting. `bring` reads the bytes uploaded so far from
    /// [`Uploader::done`].
    pub fn upload<R>(
        &mut self,
        model: &Model,
        bring: impl FnOnce(&mut Self, &mut GpuLoader<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        let gpu = self.layers.gpu.clone();
        let mut go_on = |_, _| ControlFlow::Continue(());
        let uploader = Uploader::new(&gpu, &mut go_on)?;
        let (chunk, threshold_ratio) = (self.layers.chunk, self.layers.threshold_ratio);
        let mut loader = GpuLoader { gpu: &gpu, config: &model.config, chunk, threshold_ratio, uploader };
        let done = bring(self, &mut loader);
        // Weights uploaded before an error are already in use.
        loader.uploader.flush()?;
        done
    }

    /// Makes the layer before the first one resident with its keys and values, but without its FFN.
    fn add_layer(&mut self, loader: &mut GpuLoader<'_, '_>, model: &Model, caches: &mut [&mut KvCache]) -> Result<()> {
        let Some(layer) = self.layers.range().start.checked_sub(1) else { return Ok(()) };
        self.layers.push_front(loader, model, layer)?;
        match self.upload_ffn(loader, model, layer, FfnPart::None, false) {
            Ok(ffn) => self.ffns.insert(0, ffn),
            Err(error) => {
                self.layers.pop_front(model, &mut [])?;
                return Err(error);
            }
        }
        let moved = self
            .fit_buffers(model)
            .and_then(|()| caches.iter_mut().try_for_each(|kv| self.layers.kv_to_device(model, layer, kv)));
        if moved.is_err() {
            self.drop_layers(model, layer + 1, caches)?;
        }
        moved
    }

    /// Uploads the head.
    fn add_head(&mut self, loader: &mut GpuLoader<'_, '_>, model: &Model) -> Result<()> {
        self.layers.add_head(loader, &model.weights)?;
        let fitted = self.layers.reserve_results(self.log.bytes());
        if fitted.is_err() {
            self.layers.drop_head();
        }
        fitted
    }

    /// Uploads a layer's predictor, if it has one and its neurons are placed one by one.
    fn add_predictor(&mut self, loader: &mut GpuLoader<'_, '_>, model: &Model, layer: usize) -> Result<()> {
        let of = (model.config.layers[layer].ffn_input(), &model.weights.layers[layer].predictor);
        let (Some(from), Some(predictor)) = of else { return Ok(()) };
        let ffn = &mut self.ffns[layer - self.layers.range().start];
        let Some(neurons) = ffn.neurons_mut().filter(|neurons| neurons.predictor.is_none()) else { return Ok(()) };
        neurons.add_predictor(loader, predictor, &self.layers.registers, from)
    }

    /// Uploads the FFN of a layer that cannot be resident in part.
    fn add_ffn(&mut self, loader: &mut GpuLoader<'_, '_>, model: &Model, layer: usize) -> Result<()> {
        let ffn = self.upload_ffn(loader, model, layer, FfnPart::All, true)?;
        *self.ffn_mut(layer)? = ffn;
        let fitted = self.fit_buffers(model);
        if fitted.is_err() {
            *self.ffn_mut(layer)? = DeviceFfn::Cold;
        }
        fitted
    }

    /// Uploads about `bytes` of a layer's units: first into empty slots and slots of units in
    /// `unwanted`, then into new blocks. Returns how many of `wanted` were uploaded, and true if
    /// none is left.
    fn add_units(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        model: &Model,
        layer: usize,
        wanted: &[u32],
        unwanted: &HashSet<u32>,
        bytes: u64,
    ) -> Result<(usize, bool)> {
        let ffn = &model.weights.layers[layer].ffn;
        let brought = match (self.ffn_mut(layer)?, ffn) {
            (DeviceFfn::Neurons(neurons), ffn) => {
                let weights = NeuronWeights::of_ffn(ffn)?;
                let most = (bytes / weights.bytes().max(1)).max(1) as usize;
                let brought = neurons.bring(loader, weights, &wanted[..wanted.len().min(most)], unwanted);
                brought.map(|count| (count, count == wanted.len()))
            }
            (DeviceFfn::Experts(experts), Ffn::Experts(weights)) => {
                let matrices = expert_matrices(loader.gpu, weights)?;
                experts.bring(loader, &matrices, wanted, unwanted, bytes)
            }
            _ => return Ok((0, true)),
        };
        self.fit_buffers(model)?;
        brought
    }

    /// Makes room for hand-overs and the firing log, because layers may now be split that were
    /// whole before. If there is no room, the layer with the most units loses some.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room even without units.
    pub fn make_room(&mut self, model: &Model) -> Result<()> {
        loop {
            let error = match self.fit_buffers(model) {
                Err(error @ Error::Memory { .. }) => error,
                done => return done,
            };
            if self.drop_streaming_buffer() {
                continue;
            }
            // Layers of neurons lose units before layers of experts.
            let slots = |ffn: &DeviceFfn| ffn.slots().map_or(0, SlotTable::len);
            let used = self.ffns.iter_mut().filter(|ffn| slots(ffn) > 0);
            let Some(largest) = used.max_by_key(|ffn| (ffn.neurons().is_some(), slots(ffn))) else { return Err(error) };
            largest.drop_to(slots(largest) - 1);
        }
    }
}
