//! The resident experts of an MoE layer. The device routes, and computes the resident experts that
//! a token uses. An expert is resident once it is completely uploaded.

use std::collections::HashSet;

use thermocline_shaders::limits::{ROUTE_GROUPS, ROUTE_USED};

use super::{
    GpuLoader,
    expert_block::{ExpertBlock, ExpertUpload},
    expert_buffers::{ExpertBuffers, ExpertShape},
    expert_latent::ExpertLatentOps,
    expert_matrices::{ExpertMatrices, expert_matrices},
    ffn::DenseFfn,
    norm::{NormOp, NormWeights},
    product::Product,
    registers::Registers,
    slot_table::SlotTable,
    streamed_experts::StreamedExperts,
};
use crate::runtime::LayerPreference;
use thermocline_base::{
    error::{Error, Result},
    telemetry::neurons::LayerNeurons,
};
use thermocline_gpu::{Buffer, BufferRows, Gpu, MemoryUse, Op, Purpose, Recorder, Usage, pitch};
use thermocline_model::{ExpertWeights, Experts, Register, SkipRule, mask};

/// Memory use of experts.
pub(super) const WHAT: MemoryUse = MemoryUse { purpose: Purpose::Ffn, what: "experts" };
/// An MoE layer's FFN, prepared: router, shared expert and resident experts.
#[derive(Debug)]
pub(crate) struct ResidentExperts {
    pub gpu: Gpu,
    pub experts: Experts,
    pub buffers: ExpertBuffers,
    /// Norm of the residual stream, if the router reads the residual stream.
    router_norm: Option<NormOp>,
    router: Product,
    /// Input of `route`: [`SlotTable::slot_words`].
    table: Buffer,
    route: Op,
    /// True if experts are chosen before the FFN.
    routes_early: bool,
    /// The experts by slot, and the weights of every block of slots.
    pub slots: SlotTable,
    pub(super) blocks: Vec<ExpertBlock>,
    /// The expert that is being uploaded.
    upload: Option<ExpertUpload>,
    /// The shared expert's gate, if it has one, and its FFN.
    pub(super) shared: Option<(Option<Product>, DenseFfn)>,
    pub(super) latent: Option<ExpertLatentOps>,
    /// Computes the cold experts that pass through the streaming buffer, if there is a buffer.
    pub streamed: Option<StreamedExperts>,
    neurons: LayerNeurons,
    /// Mask of the neurons of the resident experts, and of the shared expert.
    pub resident_neurons: Vec<u32>,
    /// Rule for the neurons of experts that may be skipped.
    pub(super) rule: SkipRule,
    /// Input of the routed experts.
    pub(super) from: Buffer,
    /// Multiply-adds per token.
    pub work: u64,
}

/// The registers that experts read and write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertRegisters<'a> {
    pub registers: &'a Registers,
    /// Input of the experts.
    pub from: &'a Buffer,
    /// Input of a router that chooses before the FFN.
    pub router_from: Option<&'a Buffer>,
}

/// The masks of an MoE layer in the firing log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoggedExperts<'a> {
    /// Masks of the pairs' neurons, and the pairs' experts.
    pub pairs: &'a [u32],
    pub ids: &'a [u32],
    /// Masks of the shared expert.
    pub shared: Option<&'a [u32]>,
    /// True if the device computed cold experts, too.
    pub streamed: bool,
}

impl ResidentExperts {
    /// Uploads the router, the shared expert and the experts `hot`, hottest first. The rule says
    /// which of their neurons are skipped. Buffers are shared with the layers in `before` if they
    /// fit.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        before: Option<&ResidentExperts>,
        weights: &ExpertWeights,
        rule: SkipRule,
        hot: &[u32],
        inputs: ExpertRegisters<'_>,
    ) -> Result<Self> {
        let ExpertRegisters { registers, from, router_from } = inputs;
        let (out, out_pitch) = (registers.get(Register::Out), registers.pitch);
        let (gpu, d_model) = (loader.gpu, loader.config.d_model);
        let Some(experts) = loader.config.experts else {
            return Err(Error::invalid("model", "a configuration of its experts", "no such configuration"));
        };
        let matrices = expert_matrices(gpu, weights)?;
        check(&experts)?;
        let shape = ExpertShape::of(weights);
        let buffers = match before.filter(|before| before.buffers.fits(shape)) {
            Some(before) => before.buffers.clone(),
            None => ExpertBuffers::new(loader, &experts, shape, out)?,
        };
        let bytes = (experts.count * 4) as u64;
        let table = gpu.arena().buffer(Purpose::Ffn, "slots of experts", bytes, Usage::Storage)?;
        let bias = weights.selection_bias.as_ref();
        let bias = bias.map(|bias| loader.vector("selection bias of experts", bias)).transpose()?;
        let scale = weights.scale.as_ref();
        let scale = scale.map(|scale| loader.vector("factors of experts", scale)).transpose()?;
        let route = buffers.route_op(gpu, &table, bias.as_ref(), scale.as_ref())?;
        let router_norm = match (&weights.router_norm, &buffers.router_input) {
            (Some(norm), Some(into)) => {
                let norm = NormWeights::new(loader, norm)?;
                Some(NormOp::new(loader, &norm, registers.get(Register::Residual), None, into)?)
            }
            _ => None,
        };
        let routes_early = router_from.is_some();
        let router_from = router_from.or(buffers.router_input.as_ref()).unwrap_or(from);
        let scores = BufferRows { buffer: &buffers.scores, pitch: pitch(experts.count) };
        let router = Product::new(loader, WHAT, &[&weights.router], router_from, scores)?;
        let shared = match (&weights.shared, &buffers.shared) {
            (Some(shared), Some(buffers)) => {
                let gate = shared.gate.as_ref().zip(buffers.gate.as_ref());
                let gate = gate.map(|(gate, buffer)| {
                    Product::new(loader, WHAT, &[gate], from, BufferRows { buffer, pitch: pitch(1) })
                });
                let gate = gate.transpose()?;
                let into = BufferRows { buffer: &buffers.output, pitch: out_pitch };
                let before = before.and_then(|before| before.shared.as_ref()).map(|(_, ffn)| ffn);
                Some((gate, DenseFfn::new(loader, before, &buffers.ffn, &shared.ffn, from, into)?))
            }
            _ => None,
        };
        let latent = ExpertLatentOps::new(loader, &buffers, weights, registers, from)?;
        let experts_from = buffers.latent.as_ref().map_or(from, |latent| &latent.x).clone();
        let work = router.work
            + latent.as_ref().map_or(0, |latent| latent.down.work + latent.up.work)
            + (experts.used * experts.n_ff * shape.latent.unwrap_or(d_model) * if shape.gated { 3 } else { 2 }) as u64
            + shared.as_ref().map_or(0, |(gate, ffn)| gate.as_ref().map_or(0, |gate| gate.work) + ffn.work());
        let shared_ff = shape.shared.map_or(0, |shared| shared.ffn.n_ff);
        let neurons = LayerNeurons::Experts { experts: experts.count, width: experts.n_ff, shared: shared_ff };
        let mut ops = ResidentExperts {
            gpu: gpu.clone(),
            experts,
            buffers,
            router_norm,
            router,
            table,
            route,
            routes_early,
            slots: SlotTable::new(experts.count, 1),
            blocks: Vec::new(),
            upload: None,
            shared,
            latent,
            streamed: None,
            resident_neurons: vec![0; mask::words(neurons.count())],
            neurons,
            rule,
            from: experts_from,
            work,
        };
        ops.bring(loader, &matrices, hot, &HashSet::new(), u64::MAX)?;
        Ok(ops)
    }

    /// Uploads about `bytes` of experts: first into empty slots and slots of experts in `unwanted`,
    /// then into new blocks. Returns how many of `wanted` are now resident, and true if nothing is
    /// left to upload.
    pub fn bring(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        matrices: &ExpertMatrices<'_>,
        wanted: &[u32],
        unwanted: &HashSet<u32>,
        bytes: u64,
    ) -> Result<(usize, bool)> {
        let mut left = wanted.to_vec();
        // A partly uploaded expert is finished first or dropped.
        let begun = self.upload.and_then(|upload| left.iter().position(|expert| *expert == upload.expert));
        match begun {
            Some(at) => left[..=at].rotate_right(1),
            None => self.upload = None,
        }
        let done = self.upload_experts(loader, matrices, &mut left, unwanted, bytes);
        self.mark_neurons();
        let written = loader.uploader.bytes(&self.table, 0, bytemuck::cast_slice(&self.slots.slot_words()));
        done.and(written)?;
        Ok((wanted.iter().filter(|expert| self.slots.holds(**expert)).count(), left.is_empty()))
    }

    fn upload_experts(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        matrices: &ExpertMatrices<'_>,
        left: &mut Vec<u32>,
        unwanted: &HashSet<u32>,
        bytes: u64,
    ) -> Result<()> {
        let goal = loader.uploader.done().saturating_add(bytes);
        while let Some(expert) = left.first().copied() {
            let mut upload = match self.upload.take() {
                Some(upload) => upload,
                None => ExpertUpload { expert, slot: self.free_slot(loader, matrices, left, unwanted)?, rows: 0 },
            };
            let room = goal.saturating_sub(loader.uploader.done());
            let Some((block, at)) = self.slots.block_of(upload.slot) else { continue };
            if !self.blocks[block].upload(loader, matrices, &mut upload, at, room)? {
                self.upload = Some(upload);
                return Ok(());
            }
            self.slots.put(upload.slot, expert);
            left.remove(0);
            if loader.uploader.done() >= goal {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Finds a free slot. If it makes a new block, the block has room for more of the experts
    /// `left`.
    fn free_slot(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        matrices: &ExpertMatrices<'_>,
        left: &mut Vec<u32>,
        unwanted: &HashSet<u32>,
    ) -> Result<usize> {
        let empty = self.slots.empty().next();
        let free = empty.or_else(|| self.slots.slots_of(|expert| unwanted.contains(&expert)).next());
        if let Some(slot) = free {
            self.slots.vacate(slot);
            return Ok(slot);
        }
        // If there are many blocks, the later ones are merged with the new experts.
        left.extend(self.slots.drop_small());
        self.blocks.truncate(self.slots.blocks());
        let all = left.len() == self.experts.count;
        let mut count = if all { left.len() } else { self.slots.units_of_next(left.len()) };
        loop {
            let block = self.slots.next_block(&[], count)?;
            match ExpertBlock::new(loader, &self.buffers, matrices, block.slots(), &self.from) {
                Ok(made) => {
                    let slot = block.start;
                    self.blocks.push(made);
                    self.slots.push(block);
                    return Ok(slot);
                }
                // With too little memory for all, try half as many.
                Err(Error::Memory { .. }) if count > 1 => count /= 2,
                Err(error) => return Err(error),
            }
        }
    }

    /// Drops blocks from the end until at most `slots` slots are left. The device's table is
    /// updated with the next upload. Until then [`ExpertBuffers::combine`] skips slots past the
    /// end.
    pub fn drop_to(&mut self, slots: usize) {
        self.slots.drop_to(slots);
        self.blocks.truncate(self.slots.blocks());
        self.upload = self.upload.filter(|upload| upload.slot < self.slots.len());
        self.mark_neurons();
    }

    /// Updates the mask of resident experts' neurons.
    fn mark_neurons(&mut self) {
        let (width, routed) = (self.experts.n_ff, self.experts.count * self.experts.n_ff);
        let (neurons, shared) = (&mut self.resident_neurons, routed..self.neurons.count());
        neurons.fill(0);
        let here = (0..self.experts.count).filter(|expert| mask::contains(&self.slots.resident, *expert));
        let of_experts = here.map(|expert| expert * width..(expert + 1) * width);
        of_experts.chain([shared]).for_each(|range| mask::insert_range(neurons, range));
    }

    /// Records the router's choice for the first `tokens` rows.
    pub fn route(&self, recorder: &mut Recorder, tokens: usize, preference: Option<LayerPreference<'_>>) {
        if let Some(norm) = &self.router_norm {
            norm.record(recorder, tokens, false);
        }
        self.router.record(recorder, tokens);
        self.buffers.route(recorder, &self.route, tokens, preference);
    }

    /// Records the router's choice as a part of the FFN, unless it was recorded before the FFN.
    pub fn route_late(&self, recorder: &mut Recorder, tokens: usize, preference: Option<LayerPreference<'_>>) {
        if !self.routes_early {
            self.route(recorder, tokens, preference);
        }
    }

    /// Adds the masks logged for `tokens` tokens to `fired`, `[tokens, words(neurons)]`, and to
    /// `chosen`, `[tokens, words(experts)]`. Masks of cold experts are skipped unless they were
    /// streamed, because the CPU adds them.
    pub fn add_fired(&self, logged: &LoggedExperts<'_>, tokens: usize, fired: &mut Vec<u32>, chosen: &mut Vec<u32>) {
        let LoggedExperts { pairs, ids, shared, streamed } = *logged;
        let (count, width, used) = (self.experts.count, self.experts.n_ff, self.experts.used.max(1));
        let (words, expert_words) = (mask::words(self.neurons.count()), mask::words(count));
        fired.resize(tokens * words, 0);
        chosen.resize(tokens * expert_words, 0);
        let masks = pairs.chunks_exact(mask::words(width).max(1));
        for (pair, (expert, mask)) in ids.iter().zip(masks).enumerate() {
            let (token, expert) = (pair / used, *expert as usize);
            if token >= tokens || expert >= count {
                continue;
            }
            mask::insert(&mut chosen[token * expert_words..], expert);
            if streamed || mask::contains(&self.slots.resident, expert) {
                mask::insert_shifted(&mut fired[token * words..][..words], expert * width, mask);
            }
        }
        let shared_words = mask::words(self.neurons.count() - count * width);
        let rows = shared.unwrap_or_default().chunks_exact(shared_words.max(1));
        for (fired, row) in fired.chunks_exact_mut(words.max(1)).zip(rows) {
            mask::insert_shifted(fired, count * width, row);
        }
    }

    /// Words per token in the firing log.
    pub fn logged_words(&self) -> usize {
        let shared = self.neurons.count() - self.experts.count * self.experts.n_ff;
        self.experts.used * (1 + mask::words(self.experts.n_ff)) + mask::words(shared)
    }
}

/// Returns an error if a router makes more choices than the kernel supports.
pub(super) fn check(experts: &Experts) -> Result<()> {
    if experts.router.weighs_inputs {
        let got = "router weights on expert inputs".to_owned();
        return Err(Error::unsupported("experts on the GPU", got, "router weights on expert outputs"));
    }
    let groups = experts.router.groups.map_or(1, |groups| groups.count);
    if experts.used <= ROUTE_USED as usize && groups <= ROUTE_GROUPS as usize {
        return Ok(());
    }
    Err(Error::unsupported(
        "experts on the GPU",
        format!("{} of {} experts per token in {groups} groups", experts.used, experts.count),
        format!("up to {ROUTE_USED} experts per token in {ROUTE_GROUPS} groups"),
    ))
}

#[cfg(test)]
mod tests;
