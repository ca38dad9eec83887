//! Mixtures of experts: the device routes, and computes those of the experts a token uses that are resident. They lie in extents,
//! the hottest first, so that memory is freed by dropping the last ones. An expert is resident only when all of it is there.

use std::collections::HashSet;

use thermocline_shaders::limits::{NO_NEURON, ROUTE_USED};

use super::{
    expert_buffers::ExpertBuffers,
    expert_extent::{ExpertExtent, ExpertMatrices, Filling},
    ffn::DenseOps,
    firing::{Entry, FiringLog},
    loader::Loader,
    product::Product,
    segment::Segment,
};
use crate::{
    error::{Error, Result},
    gpu::{Buffer, Gpu, Op, Purpose, Recorder, Usage, pitch},
    model::{ExpertWeights, Experts, Ffn, Probe, Sparsity, mask},
    telemetry::neurons::LayerNeurons,
};

const WHAT: (Purpose, &str) = (Purpose::Ffn, "experts");
/// As many extents as experts are put into as they come, where some of a layer's are resident; all of them are one.
const EXTENTS: usize = 4;
/// Most extents of a layer: each costs a few dispatches per token.
const MOST_EXTENTS: usize = 8;

/// A mixture, prepared, with as many of its experts as are hot.
#[derive(Debug)]
pub(super) struct ExpertOps {
    gpu: Gpu,
    experts: Experts,
    pub buffers: ExpertBuffers,
    router: Product,
    /// The place of every expert, [`NO_NEURON`] where it is not here.
    table: Buffer,
    route: Op,
    /// Hottest first.
    extents: Vec<ExpertExtent>,
    filling: Option<Filling>,
    shared: Option<(Product, DenseOps)>,
    neurons: LayerNeurons,
    /// Masks of the experts that are here, and of their neurons with the shared expert's.
    held: Vec<u32>,
    resident: Vec<u32>,
    /// Of the layer.
    cut: Option<f32>,
    /// Whether silent neurons are zero exactly.
    sparse: bool,
    from: Buffer,
    work: u64,
}

/// Where masks of what fired will be, and their lengths in bytes: of the slots, and of the shared expert.
pub(super) type FiredMasks = ((Buffer, u64), Option<(Buffer, u64)>);

impl ExpertOps {
    /// Whether experts of `ffn` can be placed one by one.
    pub fn can_hold(ffn: &Ffn) -> bool {
        matches!(ffn, Ffn::Experts(weights) if ExpertMatrices::can_be(weights))
    }

    /// `before` is another layer's. With the weights comes the layer's cut, if it has one; `hot` are the experts that are to
    /// be resident, hottest first.
    pub fn new(
        loader: &mut Loader<'_, '_>,
        before: Option<&ExpertOps>,
        (weights, cut): (&ExpertWeights, Option<f32>),
        hot: &[u32],
        from: &Buffer,
        (out, out_pitch): (&Buffer, usize),
    ) -> Result<Self> {
        let (gpu, d_model) = (loader.gpu, loader.config.d_model);
        let Some(experts) = loader.config.experts else {
            return Err(Error::invalid("model", "a configuration of its experts", "none"));
        };
        let matrices = expert_matrices(gpu, weights)?;
        if experts.used > ROUTE_USED as usize {
            return Err(Error::Unsupported {
                what: "experts on the GPU",
                got: format!("{} of {} at a time", experts.used, experts.count),
                supported: format!("up to {ROUTE_USED} at a time"),
            });
        }
        let shared_ff = weights.shared.as_ref().map(|shared| shared.ffn.up.weight.rows());
        let buffers = match before.filter(|before| before.buffers.fits(shared_ff)) {
            Some(before) => before.buffers.clone(),
            None => ExpertBuffers::new(loader, &experts, shared_ff, out)?,
        };
        let bytes = (experts.count * 4) as u64;
        let table = gpu.arena().buffer(Purpose::Ffn, "places of experts", bytes, Usage::Storage)?;
        let route = buffers.route_op(gpu, &table)?;
        let router = Product::new(loader, WHAT, &[&weights.router], from, (&buffers.scores, pitch(experts.count)))?;
        let shared = match (&weights.shared, &buffers.shared) {
            (Some(shared), Some(buffers)) => {
                let gate = Product::new(loader, WHAT, &[&shared.gate], from, (&buffers.gate, pitch(1)))?;
                let into = (&buffers.output, out_pitch);
                Some((gate, DenseOps::new(loader, None, &buffers.hidden, &shared.ffn, from, into)?))
            }
            _ => None,
        };
        let work = router.work
            + (experts.used * experts.n_ff * d_model * 3) as u64
            + shared.as_ref().map_or(0, |(gate, ffn)| gate.work + ffn.work());
        let neurons =
            LayerNeurons::Mixture { experts: experts.count, width: experts.n_ff, shared: shared_ff.unwrap_or(0) };
        let mut ops = ExpertOps {
            gpu: gpu.clone(),
            experts,
            buffers,
            router,
            table,
            route,
            extents: Vec::new(),
            filling: None,
            shared,
            held: vec![0; mask::words(experts.count)],
            resident: vec![0; mask::words(neurons.count())],
            neurons,
            cut,
            sparse: loader.config.activation.is_sparse(),
            from: from.clone(),
            work,
        };
        ops.bring(loader, &matrices, hot, &HashSet::new(), u64::MAX)?;
        Ok(ops)
    }

    /// Brings experts up, about `bytes` of them: into free places, into the places of those in `unwanted`, then into new extents.
    /// How many of `wanted` are here now, and whether nothing is left to bring.
    pub fn bring(
        &mut self,
        loader: &mut Loader<'_, '_>,
        matrices: &ExpertMatrices<'_>,
        wanted: &[u32],
        unwanted: &HashSet<u32>,
        bytes: u64,
    ) -> Result<(usize, bool)> {
        let mut left = wanted.to_vec();
        // What is half there comes first, or gives way.
        let begun = self.filling.and_then(|filling| left.iter().position(|expert| *expert == filling.expert));
        match begun {
            Some(at) => left[..=at].rotate_right(1),
            None => self.filling = None,
        }
        let done = self.fill(loader, matrices, &mut left, unwanted, bytes);
        let told = self.write_table(loader);
        done.and(told)?;
        Ok((wanted.iter().filter(|expert| mask::contains(&self.held, **expert as usize)).count(), left.is_empty()))
    }

    fn fill(
        &mut self,
        loader: &mut Loader<'_, '_>,
        matrices: &ExpertMatrices<'_>,
        left: &mut Vec<u32>,
        unwanted: &HashSet<u32>,
        bytes: u64,
    ) -> Result<()> {
        let goal = loader.uploader.done().saturating_add(bytes);
        while let Some(expert) = left.first().copied() {
            let mut filling = match self.filling.take() {
                Some(filling) => filling,
                None => Filling { expert, at: self.place(loader, matrices, left, unwanted)?, rows: 0 },
            };
            let room = goal.saturating_sub(loader.uploader.done());
            if !self.extents[filling.at.0].fill(loader, matrices, &mut filling, room)? {
                self.filling = Some(filling);
                return Ok(());
            }
            left.remove(0);
            if loader.uploader.done() >= goal {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A place that is free now; an extent that is made for it has room for more of those that are `left` to come.
    fn place(
        &mut self,
        loader: &mut Loader<'_, '_>,
        matrices: &ExpertMatrices<'_>,
        left: &mut Vec<u32>,
        unwanted: &HashSet<u32>,
    ) -> Result<(usize, usize)> {
        let find = |which: &dyn Fn(&u32) -> bool| {
            let mut extents = self.extents.iter().enumerate();
            extents.find_map(|(at, extent)| Some((at, extent.experts.iter().position(which)?)))
        };
        if let Some(free) = find(&|expert| *expert == NO_NEURON).or_else(|| find(&|expert| unwanted.contains(expert))) {
            self.extents[free.0].experts[free.1] = NO_NEURON;
            return Ok(free);
        }
        if self.extents.len() == MOST_EXTENTS {
            // The last become one with what is new.
            let small = self.extents.drain(MOST_EXTENTS / 2..).flat_map(|extent| extent.experts);
            left.extend(small.filter(|expert| *expert != NO_NEURON));
        }
        let all = left.len() == self.experts.count || self.extents.len() + 1 >= EXTENTS;
        let mut count = if all { left.len() } else { left.len().div_ceil(2) };
        loop {
            let places = (self.places(), count);
            let with = (&self.from, self.experts.used);
            match ExpertExtent::new(loader, &self.buffers, matrices, places, with) {
                Ok(extent) => {
                    self.extents.push(extent);
                    return Ok((self.extents.len() - 1, 0));
                }
                // Better some than none.
                Err(Error::Memory { .. }) if count > 1 => count /= 2,
                Err(error) => return Err(error),
            }
        }
    }

    /// Drops extents from the end until there are at most `places` places. (The device learns of it with the next table; until then
    /// places past the end are nobody's.)
    pub fn drop_to(&mut self, places: usize) {
        while self.places() > places {
            self.extents.pop();
        }
        self.filling = self.filling.filter(|filling| filling.at.0 < self.extents.len());
        self.count();
    }

    /// Notes where the experts are, here and on the device.
    fn write_table(&mut self, loader: &mut Loader<'_, '_>) -> Result<()> {
        self.count();
        let mut table = vec![NO_NEURON; self.experts.count];
        for (place, expert) in (0..).zip(self.extents.iter().flat_map(|extent| &extent.experts)) {
            if let Some(to) = table.get_mut(*expert as usize) {
                *to = place;
            }
        }
        loader.uploader.bytes(&self.table, 0, bytemuck::cast_slice(&table))
    }

    fn count(&mut self) {
        let here: Vec<u32> = self.by_place().collect();
        self.held.fill(0);
        here.iter().for_each(|expert| mask::insert(&mut self.held, *expert as usize));
        let (width, routed) = (self.experts.n_ff, self.experts.count * self.experts.n_ff);
        let is_here = |neuron| neuron >= routed || mask::contains(&self.held, neuron / width);
        mask::fill(&mut self.resident, self.neurons.count(), is_here);
    }

    /// Experts that are resident, by place.
    pub fn by_place(&self) -> impl Iterator<Item = u32> {
        self.extents.iter().flat_map(|extent| &extent.experts).copied().filter(|expert| *expert != NO_NEURON)
    }

    /// Places of all extents.
    pub fn places(&self) -> usize {
        self.extents.last().map_or(0, |last| last.start + last.experts.len())
    }

    /// Whether every expert is resident.
    pub fn is_whole(&self) -> bool {
        mask::count(&self.held) == self.experts.count
    }

    /// A mask of the experts that are.
    pub fn held(&self) -> &[u32] {
        &self.held
    }

    /// Experts that a token uses.
    pub fn used(&self) -> usize {
        self.experts.used
    }

    /// The magnitude of the gate's activation up to which neurons of `tokens` tokens are left out in a mode. They are computed all
    /// the same: what counts is that they do not count.
    pub fn cut(&self, sparsity: Sparsity, tokens: usize) -> Option<f32> {
        self.cut.filter(|_| sparsity == Sparsity::Threshold && tokens == 1)
    }

    /// Records all of it for the first `tokens` rows, every expert being resident; neurons up to `cut` do not count. What fires
    /// goes to `log`, if `probe` wants that.
    pub fn record(
        &self,
        segment: &mut Segment,
        (tokens, cut): (usize, Option<f32>),
        layer: usize,
        probe: &mut dyn Probe,
        log: &mut FiringLog,
    ) -> Result<()> {
        self.route(segment.recorder(), tokens);
        if probe.wants_router() {
            let slots = tokens * self.experts.used;
            let chosen = segment.read(&[(&self.buffers.ids, 0, (slots * 4) as u64)], |read| {
                bytemuck::pod_collect_to_vec::<u8, u32>(read).into_iter().map(|id| id as usize).collect::<Vec<_>>()
            })?;
            probe.router(layer, &chosen);
        }
        self.compute(segment.recorder(), tokens, cut);
        self.combine(segment.recorder(), tokens, false);
        if probe.wants_firing() {
            let fired = self.record_fired(segment.recorder(), tokens);
            let entry = Entry { complete: true, ..Entry::new(layer, tokens) };
            self.tell(segment, fired, entry, log)?;
        }
        Ok(())
    }

    /// Records which experts the first `tokens` rows use, with what shares.
    pub fn route(&self, recorder: &mut Recorder, tokens: usize) {
        self.router.record(recorder, tokens);
        self.buffers.route(recorder, &self.route, tokens);
    }

    /// Records what those of them that are resident say, and the shared expert; neurons up to `cut` do not count.
    pub fn compute(&self, recorder: &mut Recorder, tokens: usize, cut: Option<f32>) {
        let (slots, buffers) = (tokens * self.experts.used, &self.buffers);
        if !self.extents.is_empty() {
            let grouped = buffers.groups.pay(slots);
            if grouped {
                buffers.groups.record(recorder, slots);
            }
            self.extents.iter().for_each(|extent| extent.record_gate_up(recorder, slots, grouped));
            buffers.hidden.activate(recorder, slots, cut);
            self.extents.iter().for_each(|extent| extent.record_down(recorder, slots, grouped));
        }
        if let Some((gate, ffn)) = &self.shared {
            gate.record(recorder, tokens);
            ffn.record_gate_up(recorder, tokens);
            ffn.record_down(recorder, tokens, cut);
        }
    }

    /// Whether [`ExpertOps::compute`] does anything.
    pub fn computes(&self) -> bool {
        !self.extents.is_empty() || self.shared.is_some()
    }

    /// Records the sum of all that; with `add`, what lies in its place is part of it.
    pub fn combine(&self, recorder: &mut Recorder, tokens: usize, add: bool) {
        self.buffers.combine(&self.gpu, recorder, tokens, self.places(), add);
    }

    /// Records which neurons of the chosen experts fired: a mask per slot, of which those of resident experts count.
    pub fn record_fired(&self, recorder: &mut Recorder, tokens: usize) -> FiredMasks {
        let (slots, buffers) = (tokens * self.experts.used, &self.buffers);
        let cut = self.cut.filter(|_| !self.sparse);
        let (fired, bytes) = buffers.hidden.record_fired(recorder, slots, cut);
        let fired = (fired.clone(), bytes);
        let shared = buffers.shared.as_ref().map(|shared| {
            let (fired, bytes) = shared.hidden.record_fired(recorder, tokens, cut);
            (fired.clone(), bytes)
        });
        (fired, shared)
    }

    /// Keeps them, and whose they are, in `log`.
    pub fn tell(&self, segment: &mut Segment, fired: FiredMasks, entry: Entry, log: &mut FiringLog) -> Result<()> {
        let ((slots, bytes), shared) = &fired;
        let ids = (&self.buffers.ids, (entry.tokens * self.experts.used * 4) as u64);
        let shared = shared.as_ref().map(|(buffer, bytes)| (buffer, *bytes));
        log.push_experts(segment, ((slots, *bytes), ids), shared, entry)
    }

    /// Adds what that told, of `tokens` tokens, to masks of the layer's neurons and of its experts. Experts that were not chosen
    /// did nothing, and of those that are elsewhere others tell.
    pub fn spread(
        &self,
        (slots, ids, shared): (&[u32], &[u32], Option<&[u32]>),
        tokens: usize,
        fired: &mut Vec<u32>,
        chosen: &mut Vec<u32>,
    ) {
        let (count, width, used) = (self.experts.count, self.experts.n_ff, self.experts.used.max(1));
        let (words, expert_words) = (mask::words(self.neurons.count()), mask::words(count));
        fired.resize(tokens * words, 0);
        chosen.resize(tokens * expert_words, 0);
        let masks = slots.chunks_exact(mask::words(width).max(1));
        for (slot, (expert, mask)) in ids.iter().zip(masks).enumerate() {
            let (token, expert) = (slot / used, *expert as usize);
            if token >= tokens || expert >= count {
                continue;
            }
            mask::insert(&mut chosen[token * expert_words..], expert);
            if mask::contains(&self.held, expert) {
                mask::place(&mut fired[token * words..][..words], expert * width, mask);
            }
        }
        let shared_words = mask::words(self.neurons.count() - count * width);
        let rows = shared.unwrap_or_default().chunks_exact(shared_words.max(1));
        for (fired, row) in fired.chunks_exact_mut(words.max(1)).zip(rows) {
            mask::place(fired, count * width, row);
        }
    }

    /// A mask of the layer's neurons that are here.
    pub fn resident(&self) -> &[u32] {
        &self.resident
    }

    /// Words it tells of a token's firings.
    pub fn logged(&self) -> usize {
        logged(&self.experts, self.neurons.count() - self.experts.count * self.experts.n_ff)
    }

    /// Multiply-adds of a token.
    pub fn work(&self) -> u64 {
        self.work
    }
}

/// Words that a mixture with a shared expert of so many neurons tells of a token's firings.
pub(super) const fn logged(experts: &Experts, shared: usize) -> usize {
    experts.used * (1 + mask::words(experts.n_ff)) + mask::words(shared)
}

/// The experts of a mixture that [`ExpertOps::can_hold`].
pub(super) fn expert_matrices<'a>(gpu: &Gpu, weights: &'a ExpertWeights) -> Result<ExpertMatrices<'a>> {
    ExpertMatrices::of(gpu, weights).ok_or_else(|| Error::Unsupported {
        what: "experts on the GPU",
        got: format!("{} that are not, or not all alike", weights.experts.len()),
        supported: format!(
            "up to {} alike, with gates and rows of outputs",
            thermocline_shaders::limits::ROUTE_EXPERTS
        ),
    })
}

#[cfg(test)]
mod tests;
