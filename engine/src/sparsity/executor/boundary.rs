//! Moving what is resident. What has to go goes at once; what is to come comes up a bounded number of bytes at a time. In between
//! whatever is not resident is simply the CPU's.

use std::{collections::HashSet, ops::ControlFlow};

use super::{
    planner::Moved,
    processor::{HybridProcessor, check, neurons},
};
use crate::{
    error::{Error, Result},
    model::{
        GpuProcessor, KvCache, Model, Processor, Sparsity,
        gpu::{Holding, Loader, Share},
    },
    sparsity::placement::Placement,
};

impl HybridProcessor {
    /// Moves towards `placement`: releases what is not resident there, and brings up about `bytes` of the rest. Call it again
    /// with what is left to do. `caches` are all there are. Not to be called within a chunk.
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

    /// Wants `placement` from now on, and frees what is resident beyond it.
    pub(super) fn release(&mut self, model: &Model, placement: &Placement, caches: &mut [&mut KvCache]) -> Result<()> {
        check(model, placement)?;
        if *placement != self.wanted {
            self.wanted.clone_from(placement);
            self.settled = false;
        }
        let n_layer = model.config.n_layer();
        let asked = self.asks_predictors();
        let Some(device) = &mut self.device else { return Ok(()) };
        device.drop_layers(placement.first_resident, caches)?;
        if device.first_layer() == n_layer {
            self.device = None;
        } else {
            if !placement.head {
                device.drop_head();
            }
            for layer in device.first_layer()..n_layer {
                if !asked {
                    device.drop_predictor(layer)?;
                }
                let hot = placement.hot[layer].len();
                match device.holding(layer)? {
                    Holding::Neurons(_) => device.drop_neurons(layer, hot)?,
                    Holding::Whole(true) if hot < neurons(model, layer) => device.drop_neurons(layer, 0)?,
                    Holding::Whole(_) => {}
                }
            }
            match device.make_room(model) {
                Err(Error::Memory { .. }) => {
                    device.drop_layers(n_layer, caches)?;
                    self.device = None;
                }
                done => done?,
            }
        }
        (0..n_layer).for_each(|layer| self.find_cold(model, layer));
        self.moves += 1;
        Ok(())
    }

    fn asks_predictors(&self) -> bool {
        self.load.predictors || self.sparsity == Sparsity::Predicted
    }

    /// Brings up about `bytes` of what is wanted: layers with their keys and values first, then predictors, the head, and neurons.
    /// What does not fit the budget stays where it is.
    pub(super) fn advance(&mut self, model: &Model, caches: &mut [&mut KvCache], bytes: u64) -> Result<Moved> {
        if self.settled {
            return Ok(Moved::default());
        }
        let mut moved = Moved::default();
        let mut done = self.step(model, caches, bytes, &mut moved);
        if matches!(done, Err(Error::Memory { .. })) && self.drop_slab() {
            done = self.step(model, caches, bytes, &mut moved);
        }
        self.slab_due = true;
        (0..model.config.n_layer()).for_each(|layer| self.find_cold(model, layer));
        self.moves += 1;
        match done {
            Ok(more) => (moved.more, self.settled) = (more, !more),
            Err(error @ Error::Memory { .. }) => {
                tracing::info!(%error, "there is no room for more");
                self.settled = true;
            }
            Err(error) => return Err(error),
        }
        Ok(moved)
    }

    /// Whether anything is left to do.
    fn step(&mut self, model: &Model, caches: &mut [&mut KvCache], limit: u64, moved: &mut Moved) -> Result<bool> {
        let n_layer = model.config.n_layer();
        if self.wanted.first_resident >= n_layer {
            return Ok(false);
        }
        if self.device.is_none() {
            let share = Share { first_layer: n_layer, ffn: Vec::new(), head: false, predictors: false };
            let mut go_on = |_, _| ControlFlow::Continue(());
            let mut device = GpuProcessor::load_share(&self.gpu, model, &share, &self.load, &mut go_on)?;
            device.set_sparsity(self.sparsity);
            device.steer(&self.steering);
            self.device = Some(device);
        }
        let (wanted, asked) = (&self.wanted, self.asks_predictors());
        let Some(device) = &mut self.device else { return Ok(false) };
        device.bring_up(model, |device, loader| {
            let more = bring(device, loader, model, (wanted, asked), caches, limit, &mut moved.neurons);
            moved.bytes = loader.uploader.done();
            more
        })
    }
}

/// Brings up what is wanted until about `limit` bytes are on their way; whether anything is left.
fn bring(
    device: &mut GpuProcessor,
    loader: &mut Loader<'_, '_>,
    model: &Model,
    (wanted, predictors): (&Placement, bool),
    caches: &mut [&mut KvCache],
    limit: u64,
    count: &mut usize,
) -> Result<bool> {
    let n_layer = model.config.n_layer();
    while device.first_layer() > wanted.first_resident {
        if loader.uploader.done() >= limit {
            return Ok(true);
        }
        device.add_layer(loader, model, caches)?;
    }
    for layer in device.first_layer()..n_layer {
        if predictors && loader.uploader.done() >= limit {
            return Ok(true);
        }
        if predictors {
            device.add_predictor(loader, model, layer)?;
        }
    }
    if wanted.head && !device.has_head() {
        if loader.uploader.done() >= limit {
            return Ok(true);
        }
        device.add_head(loader, model)?;
    }
    for layer in device.first_layer()..n_layer {
        let hot = &wanted.hot[layer];
        let left = limit.saturating_sub(loader.uploader.done());
        match device.holding(layer)? {
            Holding::Neurons(here) => {
                let (all, held): (HashSet<u32>, HashSet<u32>) =
                    (hot.iter().copied().collect(), here.iter().copied().collect());
                let coming: Vec<u32> = hot.iter().filter(|neuron| !held.contains(neuron)).copied().collect();
                let going: HashSet<u32> = here.into_iter().filter(|neuron| !all.contains(neuron)).collect();
                if coming.is_empty() {
                    continue;
                }
                if left == 0 {
                    return Ok(true);
                }
                let (came, all) = device.add_neurons(loader, model, layer, (&coming, &going), left)?;
                *count += came;
                if !all {
                    return Ok(true);
                }
            }
            Holding::Whole(false) if hot.len() == neurons(model, layer) => {
                if left == 0 {
                    return Ok(true);
                }
                device.add_ffn(loader, model, layer)?;
            }
            Holding::Whole(_) => {}
        }
    }
    Ok(false)
}
