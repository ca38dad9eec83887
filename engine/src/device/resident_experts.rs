//! The resident experts of an MoE layer: the device routes, and computes the resident ones of the experts that a token uses. They lie
//! in blocks, the hottest first, so that memory is freed by dropping the last ones. An expert is resident once all of it is there.

use std::collections::HashSet;

use thermocline_shaders::limits::{NO_NEURON, ROUTE_GROUPS, ROUTE_USED};

use super::{
    GpuLoader,
    elementwise::Elementwise,
    expert_block::{ExpertBlock, ExpertMatrices, ExpertUpload},
    expert_buffers::{ExpertBuffers, ExpertShape},
    ffn::DenseFfn,
    norm::{NormOp, NormWeights},
    product::Product,
    registers::Registers,
};
use crate::{
    error::{Error, Result},
    gpu::{Buffer, BufferRows, Epilogue, Gpu, Matmul, MatmulOutput, MemoryUse, Op, Purpose, Recorder, Usage, pitch},
    model::{ExpertWeights, Experts, Ffn, Register, SkipRule, mask},
    telemetry::neurons::LayerNeurons,
};

const WHAT: MemoryUse = MemoryUse { purpose: Purpose::Ffn, what: "experts" };
/// Blocks that experts are put into as they come, where only some of a layer's are resident; all of a layer's are one block.
const BLOCKS: usize = 4;
/// Most blocks of a layer: each costs a few dispatches per token.
const MOST_BLOCKS: usize = 8;

/// An MoE layer's FFN, prepared: router, shared expert and resident experts.
#[derive(Debug)]
pub(crate) struct ResidentExperts {
    pub(super) gpu: Gpu,
    experts: Experts,
    pub buffers: ExpertBuffers,
    /// Norm of the residual stream, where the router reads it.
    router_norm: Option<NormOp>,
    router: Product,
    /// `[experts]` u32: the place of every expert, [`NO_NEURON`] if it is not resident.
    table: Buffer,
    route: Op,
    /// True if experts are chosen ahead of the FFN.
    routes_early: bool,
    /// Hottest first.
    pub(super) blocks: Vec<ExpertBlock>,
    /// The expert that is being uploaded.
    upload: Option<ExpertUpload>,
    /// Gate, if it has one, and FFN of the shared expert.
    pub(super) shared: Option<(Option<Product>, DenseFfn)>,
    pub(super) latent: Option<ExpertLatentOps>,
    neurons: LayerNeurons,
    /// Masks of the resident experts, and of their neurons with the shared expert's.
    resident: Vec<u32>,
    resident_neurons: Vec<u32>,
    /// The neurons of experts that may be skipped.
    pub(super) rule: SkipRule,
    /// Input of the routed experts.
    from: Buffer,
    work: u64,
}

/// The routed experts' way into a latent and out of it.
#[derive(Debug)]
pub(super) struct ExpertLatentOps {
    pub down: Product,
    /// `Out = up(sum)`, and `Out += up(sum)`.
    pub up: Product,
    pub up_added: Vec<Matmul>,
    /// `Out +=` the shared expert's output.
    pub add_shared: Option<Elementwise>,
}

impl ExpertLatentOps {
    /// Uploads the two maps. The way in reads `from`, the way out writes to `registers`' `Out`.
    fn new(
        loader: &mut GpuLoader<'_, '_>,
        buffers: &ExpertBuffers,
        weights: &ExpertWeights,
        registers: &Registers,
        from: &Buffer,
    ) -> Result<Option<Self>> {
        let (Some(latent), Some(own)) = (&weights.latent, &buffers.latent) else { return Ok(None) };
        if buffers.shared.as_ref().is_some_and(|shared| shared.gate.is_some()) {
            return Err(Error::Unsupported {
                what: "experts on the GPU",
                got: "a latent beside a shared expert with a gate".to_owned(),
                supported: "a shared expert without one".to_owned(),
            });
        }
        let (out, pitch) = (registers.get(Register::Out), registers.pitch);
        let x = BufferRows { buffer: &own.x, pitch: buffers.row };
        let down = Product::new(loader, WHAT, &[&latent.down], from, x)?;
        let up = Product::new(loader, WHAT, &[&latent.up], &own.sum, registers.rows(Register::Out))?;
        let into = MatmulOutput { buffer: out, pitch, offset: 0, epilogue: Epilogue::Accumulate };
        let up_added = up.matrices.iter().map(|matrix| Matmul::with(loader.gpu, matrix, &own.sum, None, &into));
        let up_added = up_added.collect::<Result<_>>()?;
        let add_shared = buffers
            .shared
            .as_ref()
            .map(|shared| Elementwise::new(loader.gpu, "add", &[], &[out, &shared.output], registers.d_model, pitch));
        Ok(Some(ExpertLatentOps { down, up, up_added, add_shared: add_shared.transpose()? }))
    }
}

/// The registers that experts read and write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertRegisters<'a> {
    pub registers: &'a Registers,
    /// Their input.
    pub from: &'a Buffer,
    /// The input of a router that chooses ahead of them.
    pub router_from: Option<&'a Buffer>,
}

impl ResidentExperts {
    /// True if experts of `ffn` can be resident one by one.
    pub fn can_hold(ffn: &Ffn) -> bool {
        matches!(ffn, Ffn::Experts(weights) if ExpertMatrices::exist(weights))
    }

    /// Uploads the router, the shared expert and the experts `hot`, hottest first, with the
    /// rule by which their neurons are skipped.
    /// `before` is another layer's, whose buffers are shared where they fit.
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
            return Err(Error::invalid("model", "a configuration of its experts", "none"));
        };
        let matrices = expert_matrices(gpu, weights)?;
        check_routing(&experts)?;
        let shape = ExpertShape::of(weights);
        let buffers = match before.filter(|before| before.buffers.fits(shape)) {
            Some(before) => before.buffers.clone(),
            None => ExpertBuffers::new(loader, &experts, shape, out)?,
        };
        let bytes = (experts.count * 4) as u64;
        let table = gpu.arena().buffer(Purpose::Ffn, "places of experts", bytes, Usage::Storage)?;
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
        let shared_ff = shape.shared.map_or(0, |shared| shared.n_ff);
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
            blocks: Vec::new(),
            upload: None,
            shared,
            latent,
            resident: vec![0; mask::words(experts.count)],
            resident_neurons: vec![0; mask::words(neurons.count())],
            neurons,
            rule,
            from: experts_from,
            work,
        };
        ops.bring(loader, &matrices, hot, &HashSet::new(), u64::MAX)?;
        Ok(ops)
    }

    /// Uploads experts, about `bytes` of them: into free places, into the places of those in `unwanted`, then into new blocks.
    /// Returns how many of `wanted` are resident now, and true if nothing is left to upload.
    pub fn bring(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        matrices: &ExpertMatrices<'_>,
        wanted: &[u32],
        unwanted: &HashSet<u32>,
        bytes: u64,
    ) -> Result<(usize, bool)> {
        let mut left = wanted.to_vec();
        // An expert that is uploaded in part comes first, or gives way.
        let begun = self.upload.and_then(|upload| left.iter().position(|expert| *expert == upload.expert));
        match begun {
            Some(at) => left[..=at].rotate_right(1),
            None => self.upload = None,
        }
        let done = self.upload_experts(loader, matrices, &mut left, unwanted, bytes);
        let written = self.write_table(loader);
        done.and(written)?;
        Ok((wanted.iter().filter(|expert| mask::contains(&self.resident, **expert as usize)).count(), left.is_empty()))
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
                None => ExpertUpload { expert, at: self.free_place(loader, matrices, left, unwanted)?, rows: 0 },
            };
            let room = goal.saturating_sub(loader.uploader.done());
            if !self.blocks[upload.at.0].upload(loader, matrices, &mut upload, room)? {
                self.upload = Some(upload);
                return Ok(());
            }
            left.remove(0);
            if loader.uploader.done() >= goal {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A place that is free now: the block and the place in it. A new block has room for more of those that are `left`.
    fn free_place(
        &mut self,
        loader: &mut GpuLoader<'_, '_>,
        matrices: &ExpertMatrices<'_>,
        left: &mut Vec<u32>,
        unwanted: &HashSet<u32>,
    ) -> Result<(usize, usize)> {
        let find = |which: &dyn Fn(&u32) -> bool| {
            let mut blocks = self.blocks.iter().enumerate();
            blocks.find_map(|(at, block)| Some((at, block.experts.iter().position(which)?)))
        };
        if let Some(free) = find(&|expert| *expert == NO_NEURON).or_else(|| find(&|expert| unwanted.contains(expert))) {
            self.blocks[free.0].experts[free.1] = NO_NEURON;
            return Ok(free);
        }
        if self.blocks.len() == MOST_BLOCKS {
            // The last blocks are merged with the new experts.
            let small = self.blocks.drain(MOST_BLOCKS / 2..).flat_map(|block| block.experts);
            left.extend(small.filter(|expert| *expert != NO_NEURON));
        }
        let all = left.len() == self.experts.count || self.blocks.len() + 1 >= BLOCKS;
        let mut count = if all { left.len() } else { left.len().div_ceil(2) };
        loop {
            let places = self.places()..self.places() + count;
            match ExpertBlock::new(loader, &self.buffers, matrices, places, &self.from, self.experts.used) {
                Ok(block) => {
                    self.blocks.push(block);
                    return Ok((self.blocks.len() - 1, 0));
                }
                // Better some than none.
                Err(Error::Memory { .. }) if count > 1 => count /= 2,
                Err(error) => return Err(error),
            }
        }
    }

    /// Drops blocks from the end until there are at most `places` places. (The device's table is updated with the next upload; until
    /// then [`ExpertBuffers::combine`] leaves out places past the end.)
    pub fn drop_to(&mut self, places: usize) {
        while self.places() > places {
            self.blocks.pop();
        }
        self.upload = self.upload.filter(|upload| upload.at.0 < self.blocks.len());
        self.count();
    }

    /// Updates the table of places, here and on the device.
    fn write_table(&mut self, loader: &mut GpuLoader<'_, '_>) -> Result<()> {
        self.count();
        let mut table = vec![NO_NEURON; self.experts.count];
        for (place, expert) in (0..).zip(self.blocks.iter().flat_map(|block| &block.experts)) {
            if let Some(to) = table.get_mut(*expert as usize) {
                *to = place;
            }
        }
        loader.uploader.bytes(&self.table, 0, bytemuck::cast_slice(&table))
    }

    /// Updates the masks of resident experts and neurons.
    fn count(&mut self) {
        let here: Vec<u32> = self.by_place().collect();
        self.resident.fill(0);
        here.iter().for_each(|expert| mask::insert(&mut self.resident, *expert as usize));
        let (width, routed) = (self.experts.n_ff, self.experts.count * self.experts.n_ff);
        let (neurons, shared) = (&mut self.resident_neurons, routed..self.neurons.count());
        neurons.fill(0);
        let of_experts = here.iter().map(|expert| *expert as usize * width..(*expert as usize + 1) * width);
        of_experts.chain([shared]).for_each(|range| mask::insert_range(neurons, range));
    }

    /// The resident experts, by place.
    pub fn by_place(&self) -> impl Iterator<Item = u32> {
        self.blocks.iter().flat_map(|block| &block.experts).copied().filter(|expert| *expert != NO_NEURON)
    }

    /// Places of all blocks.
    pub fn places(&self) -> usize {
        self.blocks.last().map_or(0, |last| last.start + last.experts.len())
    }

    /// True if every expert is resident.
    pub fn is_whole(&self) -> bool {
        mask::count(&self.resident) == self.experts.count
    }

    /// Mask of the resident experts.
    pub fn resident(&self) -> &[u32] {
        &self.resident
    }

    /// Experts that each token uses.
    pub fn used(&self) -> usize {
        self.experts.used
    }

    /// Records the router's choice for the first `tokens` rows.
    pub fn route(&self, recorder: &mut Recorder, tokens: usize) {
        if let Some(norm) = &self.router_norm {
            norm.record(recorder, tokens, false);
        }
        self.router.record(recorder, tokens);
        self.buffers.route(recorder, &self.route, tokens);
    }

    /// The same as a part of the FFN, unless it was recorded ahead of it.
    pub fn route_late(&self, recorder: &mut Recorder, tokens: usize) {
        if !self.routes_early {
            self.route(recorder, tokens);
        }
    }

    /// Adds masks that were logged for `tokens` tokens to `fired`, `[tokens, words(neurons)]`, and to `chosen`,
    /// `[tokens, words(experts)]`. Masks of cold experts are left out: the CPU has those.
    pub fn add_fired(
        &self,
        pairs: &[u32],
        ids: &[u32],
        shared: Option<&[u32]>,
        tokens: usize,
        fired: &mut Vec<u32>,
        chosen: &mut Vec<u32>,
    ) {
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
            if mask::contains(&self.resident, expert) {
                mask::insert_shifted(&mut fired[token * words..][..words], expert * width, mask);
            }
        }
        let shared_words = mask::words(self.neurons.count() - count * width);
        let rows = shared.unwrap_or_default().chunks_exact(shared_words.max(1));
        for (fired, row) in fired.chunks_exact_mut(words.max(1)).zip(rows) {
            mask::insert_shifted(fired, count * width, row);
        }
    }

    /// Mask of the resident neurons, expert by expert.
    pub fn resident_neurons(&self) -> &[u32] {
        &self.resident_neurons
    }

    /// Words of one token in the firing log.
    pub fn logged_words(&self) -> usize {
        let shared = self.neurons.count() - self.experts.count * self.experts.n_ff;
        self.experts.used * (1 + mask::words(self.experts.n_ff)) + mask::words(shared)
    }

    /// Multiply-adds of a token.
    pub fn work(&self) -> u64 {
        self.work
    }
}

/// Refuses a router of which the kernel has no room for the choices.
fn check_routing(experts: &Experts) -> Result<()> {
    let groups = experts.router.groups.map_or(1, |groups| groups.count);
    if experts.used <= ROUTE_USED as usize && groups <= ROUTE_GROUPS as usize {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: "experts on the GPU",
        got: format!("{} of {} at a time in {groups} groups", experts.used, experts.count),
        supported: format!("up to {ROUTE_USED} at a time in {ROUTE_GROUPS} groups"),
    })
}

/// The matrices of experts that are to be resident one by one.
///
/// # Errors
/// [`Error::Unsupported`] for experts that cannot be.
pub(crate) fn expert_matrices<'a>(gpu: &Gpu, weights: &'a ExpertWeights) -> Result<ExpertMatrices<'a>> {
    ExpertMatrices::of(gpu, weights).ok_or_else(|| Error::Unsupported {
        what: "experts on the GPU",
        got: format!("{} of different shapes or types", weights.experts.len()),
        supported: format!(
            "up to {} of one shape and type, with gates or without, and a row of the down projection per output",
            thermocline_shaders::limits::ROUTE_EXPERTS
        ),
    })
}

#[cfg(test)]
mod tests;
