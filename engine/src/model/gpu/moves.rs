//! What a processor holds, changed between chunks. Every step leaves it ready to compute; those that free memory do so at once.

use std::{collections::HashSet, ops::ControlFlow};

use thermocline_shaders::limits::NO_NEURON;

use super::{
    GpuProcessor,
    bytes::neurons_of,
    experts::expert_matrices,
    extent::UNIT,
    ffn::FfnOps,
    firing::{firing_log, log_bytes},
    head::Head,
    hot::{HotOps, neuron_weights},
    layer::LayerOps,
    loader::{FfnShare, Loader},
    split::hand_over_bytes,
};
use crate::{
    error::{Error, Result},
    gpu::Uploader,
    model::{Ffn, KvCache, Model, Resident, mask},
};

/// What the FFN of a layer has on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Holding {
    /// All of it, or nothing.
    Whole(bool),
    /// These neurons, or experts of a mixture.
    Neurons(Vec<u32>),
}

impl GpuProcessor {
    /// The first layer that is here.
    pub(crate) fn first_layer(&self) -> usize {
        self.first_layer
    }

    /// Whether the head is.
    pub(crate) fn has_head(&self) -> bool {
        self.head.is_some()
    }

    /// What of a layer's FFN is here.
    pub(crate) fn holding(&self, layer: usize) -> Result<Holding> {
        Ok(match &self.layer(layer)?.ffn {
            FfnOps::Hot(hot) => Holding::Neurons(hot.by_slot().map(|(_, neuron)| neuron).collect()),
            FfnOps::Experts(experts) => Holding::Neurons(experts.by_place().collect()),
            ffn => Holding::Whole(ffn.is_whole()),
        })
    }

    /// What of `model` is here.
    pub(super) fn held(&self, model: &Model) -> Resident {
        let mut hot = vec![Vec::new(); self.first_layer];
        hot.extend(self.layers.iter().zip(&model.weights.layers[self.first_layer..]).map(|(ops, weights)| {
            let mut all = vec![0; mask::words(neurons_of(&weights.ffn))];
            match &ops.ffn {
                FfnOps::Hot(hot) => hot.resident.clone(),
                FfnOps::Experts(experts) => experts.held().to_vec(),
                ffn => {
                    mask::fill(&mut all, neurons_of(&weights.ffn), |_| ffn.is_whole());
                    all
                }
            }
        }));
        Resident { first_layer: self.first_layer, hot, head: self.head.is_some() }
    }

    /// Gives up the layers before `first`, whose keys and values go back to RAM.
    pub(crate) fn drop_layers(&mut self, first: usize, caches: &mut [&mut KvCache]) -> Result<()> {
        let first = first.min(self.first_layer + self.layers.len());
        for layer in self.first_layer..first {
            caches.iter_mut().try_for_each(|kv| kv.move_to_ram(layer, &mut self.segment))?;
            self.layers.remove(0);
            self.first_layer += 1;
        }
        Ok(())
    }

    /// Gives up the head.
    pub(crate) fn drop_head(&mut self) {
        self.head = None;
    }

    /// Gives up extents of a layer from the cold end on until it has room for no more than `neurons` neurons (experts, in a mixture),
    /// in whole units; or all of its FFN, if that is not made of neurons.
    pub(crate) fn drop_neurons(&mut self, layer: usize, neurons: usize) -> Result<()> {
        let ops = self.layer_mut(layer)?;
        match &mut ops.ffn {
            FfnOps::Hot(hot) => hot.drop_to(neurons.next_multiple_of(UNIT)),
            FfnOps::Experts(experts) => experts.drop_to(neurons),
            ffn => *ffn = FfnOps::Away,
        }
        Ok(())
    }

    /// Gives up a layer's predictor.
    pub(crate) fn drop_predictor(&mut self, layer: usize) -> Result<()> {
        if let FfnOps::Hot(hot) = &mut self.layer_mut(layer)?.ffn {
            hot.predictor = None;
        }
        Ok(())
    }

    /// Brings more up with `bring`, which has [`Uploader::done`] to see how much that was, and waits for nothing.
    pub(crate) fn bring_up<R>(
        &mut self,
        model: &Model,
        bring: impl FnOnce(&mut Self, &mut Loader<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        let gpu = self.gpu.clone();
        let mut go_on = |_, _| ControlFlow::Continue(());
        let uploader = Uploader::new(&gpu, &mut go_on)?;
        let mut loader = Loader { gpu: &gpu, config: &model.config, chunk: self.chunk, predictors: true, uploader };
        let done = bring(self, &mut loader);
        // What came before an error is in use.
        loader.uploader.flush()?;
        done
    }

    /// Makes the layer before the first one resident, without its FFN, together with its keys and values.
    pub(crate) fn add_layer(
        &mut self,
        loader: &mut Loader<'_, '_>,
        model: &Model,
        caches: &mut [&mut KvCache],
    ) -> Result<()> {
        let Some(layer) = self.first_layer.checked_sub(1) else { return Ok(()) };
        let before: Vec<&FfnOps> = self.layers.iter().map(|layer| &layer.ffn).collect();
        loader.predictors = false;
        let ops = LayerOps::new(loader, &self.registers, &self.attention, &before, model, layer, FfnShare::None)?;
        loader.predictors = true;
        self.layers.insert(0, ops);
        self.first_layer = layer;
        let moved = self.fit_rings(model).and_then(|()| {
            caches.iter_mut().try_for_each(|kv| {
                let to = self.kv_layer(model, layer, kv.rotary(), (kv.capacity(), kv.ty()))?;
                kv.move_to_device(layer, to, &mut self.segment)
            })
        });
        if moved.is_err() {
            self.drop_layers(layer + 1, caches)?;
        }
        moved
    }

    /// Brings the head up.
    pub(crate) fn add_head(&mut self, loader: &mut Loader<'_, '_>, model: &Model) -> Result<()> {
        let head = Head::new(loader, &self.registers, &model.weights)?;
        self.segment.reserve_down(head.bytes() + self.log.bytes())?;
        self.head = Some(head);
        Ok(())
    }

    /// Brings a layer's predictor up, if it has one and neurons are placed one by one; whether anything was done.
    pub(crate) fn add_predictor(&mut self, loader: &mut Loader<'_, '_>, model: &Model, layer: usize) -> Result<bool> {
        let at = layer - self.first_layer;
        let from = self.layer(layer)?.ffn_from;
        let Some(predictor) = &model.weights.layers[layer].predictor else { return Ok(false) };
        let FfnOps::Hot(hot) = &mut self.layers[at].ffn else { return Ok(false) };
        if hot.predictor.is_some() {
            return Ok(false);
        }
        hot.add_predictor(loader, predictor, (&self.registers, from))?;
        Ok(true)
    }

    /// Brings the whole FFN of a layer up that is not made of neurons.
    pub(crate) fn add_ffn(&mut self, loader: &mut Loader<'_, '_>, model: &Model, layer: usize) -> Result<()> {
        let at = layer - self.first_layer;
        let from = self.layer(layer)?.ffn_from;
        let out = (self.registers.get(crate::model::Register::Out), self.registers.pitch);
        let before: Vec<&FfnOps> = self.layers.iter().map(|layer| &layer.ffn).collect();
        let weights = &model.weights.layers[layer];
        let ffn = FfnOps::new(loader, &before, weights, FfnShare::All, (&self.registers, from), out)?;
        self.layers[at].ffn = ffn;
        let fitted = self.fit_rings(model);
        if fitted.is_err() {
            self.layers[at].ffn = FfnOps::Away;
        }
        fitted
    }

    /// Brings neurons of a layer up, or experts: into the places of those in `unwanted`, into free slots, then into new extents. At
    /// most about `bytes`; returns how many of `wanted` came up, and whether nothing is left to do.
    pub(crate) fn add_neurons(
        &mut self,
        loader: &mut Loader<'_, '_>,
        model: &Model,
        layer: usize,
        (wanted, unwanted): (&[u32], &HashSet<u32>),
        bytes: u64,
    ) -> Result<(usize, bool)> {
        let ffn = &model.weights.layers[layer].ffn;
        let brought = match (&mut self.layer_mut(layer)?.ffn, ffn) {
            (FfnOps::Hot(hot), ffn) => {
                let weights = neuron_weights(ffn)?;
                let most = (bytes / weights.bytes().max(1)).max(1) as usize;
                let brought = hot.bring(loader, weights, &wanted[..wanted.len().min(most)], unwanted);
                brought.map(|came| (came, came == wanted.len()))
            }
            (FfnOps::Experts(experts), Ffn::Experts(weights)) => {
                let matrices = expert_matrices(loader.gpu, weights)?;
                experts.bring(loader, &matrices, wanted, unwanted, bytes)
            }
            _ => return Ok((0, true)),
        };
        self.fit_rings(model)?;
        brought
    }

    /// Makes room for what the layers that are here now hand over, now that some of them may be split: where there is none,
    /// neurons of the layer with most of them give way.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is none without any neuron either.
    pub(crate) fn make_room(&mut self, model: &Model) -> Result<()> {
        loop {
            let error = match self.fit_rings(model) {
                Err(error @ Error::Memory { .. }) => error,
                done => return done,
            };
            if self.drop_slab() {
                continue;
            }
            let split = self.layers.iter_mut().filter_map(|layer| match &mut layer.ffn {
                FfnOps::Hot(hot) if hot.slots() > 0 => Some(hot),
                _ => None,
            });
            if let Some(largest) = split.max_by_key(|hot| hot.slots()) {
                largest.drop_to(largest.slots() - 1);
                continue;
            }
            let mixtures = self.layers.iter_mut().filter_map(|layer| match &mut layer.ffn {
                FfnOps::Experts(experts) if experts.places() > 0 => Some(experts),
                _ => None,
            });
            let Some(largest) = mixtures.max_by_key(|experts| experts.places()) else { return Err(error) };
            largest.drop_to(largest.places() - 1);
        }
    }

    /// Room for what the layers that are here now hand over and tell.
    fn fit_rings(&mut self, model: &Model) -> Result<()> {
        self.segment.reserve(hand_over_bytes(&self.layers, &self.registers, self.chunk))?;
        if self.log.bytes() < log_bytes(&self.layers, model.config.n_layer(), self.chunk) {
            self.log = firing_log(&self.gpu, &self.layers, model.config.n_layer(), self.chunk)?;
            let residual = self.chunk as u64 * self.registers.row_bytes();
            let results = self.head.as_ref().map_or(residual, Head::bytes);
            self.segment.reserve_down(results + self.log.bytes())?;
        }
        Ok(())
    }

    fn layer_mut(&mut self, layer: usize) -> Result<&mut LayerOps> {
        self.layer(layer)?;
        Ok(&mut self.layers[layer - self.first_layer])
    }
}

impl HotOps {
    /// Drops extents from the end until at most `slots` slots are left. (The device learns of it with the next table; until then
    /// nobody looks at the places that are gone.)
    fn drop_to(&mut self, slots: usize) {
        while self.slots() > slots {
            self.extents.pop();
        }
        self.count();
    }

    /// Brings up `wanted`, and says how many it were: on an error as many as came before it.
    fn bring(
        &mut self,
        loader: &mut Loader<'_, '_>,
        weights: super::extent::NeuronWeights<'_>,
        wanted: &[u32],
        unwanted: &HashSet<u32>,
    ) -> Result<usize> {
        let places: Vec<(usize, usize)> = self
            .extents
            .iter()
            .enumerate()
            .flat_map(|(at, extent)| extent.neurons.iter().enumerate().map(move |(slot, neuron)| (at, slot, *neuron)))
            .filter(|(.., neuron)| *neuron == NO_NEURON || unwanted.contains(neuron))
            .map(|(at, slot, _)| (at, slot))
            .collect();
        let mut left = wanted;
        let mut done = Ok(());
        for (at, slot) in places {
            let Some((neuron, later)) = left.split_first() else { break };
            done = self.extents[at].put(loader, weights, slot, *neuron);
            if done.is_err() {
                break;
            }
            left = later;
        }
        if done.is_ok() && !left.is_empty() {
            let mut more = left.to_vec();
            if self.extents.len() >= super::hot::MOST_EXTENTS / 2 {
                // Many small ones cost dispatches: the last become one with what is new.
                let kept = self.extents.len() / 2;
                let small: Vec<u32> = self.extents.drain(kept..).flat_map(|extent| extent.neurons).collect();
                more.splice(0..0, small.into_iter().filter(|neuron| *neuron != NO_NEURON));
            }
            done = self.append(loader, weights, &more, 1);
            left = &[];
        } else {
            done = done.and(self.write_table(loader));
        }
        self.count();
        done.map(|()| wanted.len() - left.len())
    }
}
