//! Conversations' caches on a device. Keys, values and recurrent states are on the processor that
//! computes their layer, and move with it.

use std::collections::BTreeSet;

use super::{GpuKv, GpuLayers, GpuState, attention::AttentionOps};
use crate::runtime::{KeptRows, KvCache, KvType, LayerRows, OffHostRows, OffHostState, Sequences};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_model::{LayerConfig, Model};

impl GpuLayers {
    /// Makes a cache for `capacity` tokens. Keys and values of the layers on this device are in its
    /// memory, all others in RAM.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room, [`Error::Invalid`] for a capacity of 0,
    /// [`Error::Gpu`] if the device is lost.
    pub fn kv_cache(&mut self, model: &Model, capacity: usize, ty: KvType) -> Result<KvCache> {
        // If layers here read the keys and values of an earlier layer, the device holds a copy of
        // them.
        let sources: BTreeSet<usize> = self.range().filter_map(|layer| model.config.kv_source(layer)).collect();
        let rows = sources.into_iter().filter_map(|layer| {
            let shape = model.config.layers[layer].attention.as_ref()?;
            Some(GpuKv::bytes_of(shape, KeptRows::room_for(&model.config, layer, capacity, self.chunk), ty))
        });
        let states = model.config.layers[self.range()].iter().filter_map(LayerConfig::state);
        let all = rows.chain(states.map(GpuState::bytes_of)).fold(0, u64::saturating_add);
        let available = self.gpu.arena().available();
        if all > available {
            return Err(Error::memory(ScarceMemory::KvCache, "KV cache", all, available));
        }
        let mut kv = KvCache::split(&model.config, capacity, ty, self.chunk, |layer, room| {
            let rows = if self.range().contains(&layer) { self.kv_layer(model, layer, room, ty)? } else { None };
            Ok(rows.map(|rows| Box::new(rows) as Box<dyn OffHostRows>))
        })?;
        self.bind_kv(model, &mut kv)?;
        self.range().try_for_each(|layer| self.state_to_device(layer, &mut kv))?;
        Ok(kv)
    }

    /// Makes the keys and values of `layer` with room for `room` positions. Returns `None` for a
    /// layer without keys and values of its own.
    fn kv_layer(&self, model: &Model, layer: usize, room: usize, ty: KvType) -> Result<Option<GpuKv>> {
        let own = |attention: &AttentionOps| attention.layout.shape.kv_from.is_none();
        if self.layer(layer)?.attention().is_some_and(own) {
            return self.new_kv(model, layer, room, ty);
        }
        Ok(None)
    }

    /// Makes room for `room` positions of the keys and values that `layer` reads: its own, or a
    /// copy of another layer's. The layer must be on the device. Returns `None` for a layer without
    /// attention.
    pub(super) fn new_kv(&self, model: &Model, layer: usize, room: usize, ty: KvType) -> Result<Option<GpuKv>> {
        let Some(attention) = self.layer(layer)?.attention() else { return Ok(None) };
        let rope = model.config.rope(layer);
        GpuKv::new(&self.gpu, &self.identity, rope, &self.parts.attention, attention, room, ty).map(Some)
    }

    /// True if keys, values and states of the device's layers are on this device, and all others in
    /// RAM.
    pub fn holds(&self, kv: &KvCache) -> bool {
        let has_rows = |layer: usize| self.layer(layer).is_ok_and(|steps| steps.attention().is_some());
        let rows = |layer| kv.rows_off_host(layer).is_some_and(|rows| self.owns_rows(rows));
        let state = |layer| kv.state_off_host(layer).is_some_and(|state| self.owns_state(state));
        let has_state = |layer| kv.states.as_ref().is_some_and(|states| states.has_layer(layer));
        let here = |layer| (!has_rows(layer) || rows(layer)) && (!has_state(layer) || state(layer));
        let in_ram = |layer| kv.rows_off_host(layer).is_none() && kv.state_off_host(layer).is_none();
        (0..self.range().start).all(in_ram) && self.range().all(here)
    }

    fn owns_rows(&self, rows: &dyn OffHostRows) -> bool {
        rows.of::<GpuKv>().is_ok_and(|rows| rows.is_of(&self.identity))
    }

    fn owns_state(&self, state: &dyn OffHostState) -> bool {
        state.of::<GpuState>().is_ok_and(|state| state.is_of(&self.identity))
    }

    /// Moves the keys and values, or the recurrent state, of `layer` from RAM to the device. The
    /// layer must be on the device.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room, [`Error::Gpu`] if the device is lost. After an error
    /// they are still in RAM.
    pub fn kv_to_device(&mut self, model: &Model, layer: usize, kv: &mut KvCache) -> Result<()> {
        kv.drop_copies();
        self.layer_to_device(model, layer, kv)?;
        self.bind_kv(model, kv)
    }

    fn layer_to_device(&mut self, model: &Model, layer: usize, kv: &mut KvCache) -> Result<()> {
        self.state_to_device(layer, kv)?;
        if kv.rows_off_host(layer).is_some() {
            return Ok(());
        }
        let Some(to) = self.kv_layer(model, layer, kv.room(layer), kv.ty())? else { return Ok(()) };
        let held = kv.held(layer);
        if let Some(rows) = kv.rows_mut(layer)
            && let Some(ram) = &rows.ram
        {
            to.fill(ram, held, &mut self.segment)?;
            *rows = LayerRows { off_host: Some(Box::new(to)), ..LayerRows::default() };
        }
        Ok(())
    }

    /// Moves the recurrent state of `layer`, if it has one, from RAM to the device. The layer must
    /// be on the device.
    fn state_to_device(&self, layer: usize, kv: &mut KvCache) -> Result<()> {
        let Some(states) = kv.states.as_mut().filter(|states| states.layer_off_host(layer).is_none()) else {
            return Ok(());
        };
        self.new_state(layer)?.map_or(Ok(()), |state| states.move_off_host(layer, Box::new(state)))
    }

    /// Makes a recurrent state for `layer`, a layer on the device. Returns `None` for a layer
    /// without a recurrent state.
    pub(super) fn new_state(&self, layer: usize) -> Result<Option<GpuState>> {
        let ops = self.layer(layer)?.recurrent().zip(self.parts.recurrent.copies.as_ref());
        ops.map(|(ops, copies)| GpuState::new(&self.gpu, &self.identity, ops, copies)).transpose()
    }

    /// Moves the keys, values and state of `layer` from the device into RAM and frees their device
    /// memory.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room in RAM, [`Error::Gpu`] if the device is lost. After an
    /// error, what has not been moved is still on the device.
    fn layer_to_ram(&mut self, layer: usize, kv: &mut KvCache) -> Result<()> {
        kv.states.as_mut().map_or(Ok(()), |states| states.move_to_ram(layer))?;
        let Some(there) = kv.rows_off_host(layer) else { return Ok(()) };
        let Some(mut ram) = kv.room_in_ram(layer)? else { return Ok(()) };
        there.of::<GpuKv>()?.read(&mut ram, kv.held(layer), &mut self.segment)?;
        if let Some(rows) = kv.rows_mut(layer) {
            *rows = LayerRows { ram: Some(ram), ..LayerRows::default() };
        }
        Ok(())
    }

    /// Moves everything that this device holds of `kv` to RAM.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room in RAM, [`Error::Gpu`] if the device is lost.
    pub fn kv_to_ram(&mut self, kv: &mut KvCache) -> Result<()> {
        kv.drop_copies();
        for layer in 0..self.range().end {
            let rows = kv.rows_off_host(layer).is_some_and(|rows| self.owns_rows(rows));
            if rows || kv.state_off_host(layer).is_some_and(|state| self.owns_state(state)) {
                self.layer_to_ram(layer, kv)?;
            }
        }
        Ok(())
    }

    /// Moves the caches of layers before the device's first layer to RAM, and those of the device's
    /// layers to the device.
    ///
    /// # Errors
    /// As [`GpuLayers::kv_to_device`] and [`GpuLayers::kv_to_ram`].
    pub fn take_kv(&mut self, model: &Model, kv: &mut KvCache) -> Result<()> {
        kv.drop_copies();
        (0..self.range().start).try_for_each(|layer| self.layer_to_ram(layer, kv))?;
        self.range().try_for_each(|layer| self.layer_to_device(model, layer, kv))?;
        self.bind_kv(model, kv)
    }

    /// Frees the device's first layer. Its keys and values move to RAM in all `caches`.
    pub fn pop_front(&mut self, model: &Model, caches: &mut [&mut KvCache]) -> Result<()> {
        let first = self.range().start;
        for kv in caches.iter_mut() {
            kv.drop_copies();
            self.layer_to_ram(first, kv)?;
        }
        self.layers.remove(0);
        self.first_layer += 1;
        caches.iter_mut().try_for_each(|kv| self.bind_kv(model, kv))
    }

    /// Gives layers access to the keys and values of other layers that they read. If such a layer
    /// is in RAM, its rows are copied to the device.
    fn bind_kv(&mut self, model: &Model, kv: &mut KvCache) -> Result<()> {
        let ty = kv.ty();
        for (layer, steps) in self.range().zip(&self.layers) {
            let Some(source) = model.config.kv_source(layer).filter(|source| *source != layer) else { continue };
            let Some(attention) = steps.attention() else { continue };
            let (held, room) = (kv.held(source), kv.room(source));
            let Some(rows) = kv.rows_mut(source) else { continue };
            let (gpu, buffers, rope) = (&self.gpu, &self.parts.attention, model.config.rope(layer));
            if let LayerRows { ram: Some(ram), off_host: off_host @ None, .. } = rows {
                let copy = GpuKv::new(gpu, &self.identity, rope, buffers, attention, room, ty)?;
                copy.fill(ram, held, &mut self.segment)?;
                *off_host = Some(Box::new(copy));
            }
            let Some(there) = &rows.off_host else { continue };
            let shared = there.of::<GpuKv>()?.shared_with(gpu, rope, buffers, attention)?;
            if let Some(LayerRows { ram: None, off_host: off_host @ None, .. }) = kv.rows_mut(layer) {
                *off_host = Some(Box::new(shared));
            }
        }
        Ok(())
    }

    /// Copies the keys and values of `layer` to RAM, as far as the copy there lacks them. Does
    /// nothing if they are in RAM.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room in RAM, [`Error::Gpu`] if the device is lost.
    pub fn copy_to_ram(&mut self, layer: usize, kv: &mut KvCache) -> Result<()> {
        if kv.rows_off_host(layer).is_none() {
            return Ok(());
        }
        let copy = kv.rows_mut(layer).and_then(|rows| rows.copy.take());
        let Some(mut copy) = copy.map_or_else(|| kv.room_in_ram(layer), |copy| Ok(Some(copy)))? else { return Ok(()) };
        let held = kv.held(layer);
        let missing = held.start.max(copy.len())..held.end;
        if let Some(there) = kv.rows_off_host(layer).filter(|_| !missing.is_empty()) {
            there.of::<GpuKv>()?.read(&mut copy, missing, &mut self.segment)?;
        }
        if let Some(rows) = kv.rows_mut(layer) {
            rows.copy = Some(copy);
        }
        Ok(())
    }

    /// Copies the chunk's keys and values of `layer`, which the CPU has appended, to the copies on
    /// the device, if there are any.
    pub fn update_copies(&mut self, layer: usize, sequences: &mut Sequences<'_>) -> Result<()> {
        sequences.iter_mut().try_for_each(|(rows, kv)| match kv.rows(layer) {
            Some(LayerRows { ram: Some(ram), off_host: Some(copy), .. }) => {
                copy.of::<GpuKv>()?.fill(ram, kv.len()..kv.len() + rows.len(), &mut self.segment)
            }
            _ => Ok(()),
        })
    }
}
