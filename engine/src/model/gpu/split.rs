//! The FFN of a layer that is not all on the device. What was recorded so far is submitted, with the FFN's input copied behind
//! it; the resident neurons follow at once, and while the device is at them the other side computes the rest. Its sums go up
//! with whatever is recorded next.

use std::time::Instant;

use thermocline_shaders::limits::NO_NEURON;

use super::{
    cold::{ColdSide, ColdWork},
    experts::ExpertOps,
    ffn::FfnOps,
    firing::Entry,
    hot::{HotOps, Which},
    layer::{LayerOps, same},
    processor::GpuProcessor,
    registers::Registers,
};
use crate::{
    error::Result,
    model::{LayerFiring, Probe, Register, Sparsity, mask},
};

/// What is handed over, and brought back.
#[derive(Debug, Default)]
pub(super) struct HandOver {
    /// `[tokens, d_model]`
    x: Vec<f32>,
    residual: Vec<f32>,
    out: Vec<f32>,
    /// `out` in rows as the device has them.
    rows: Vec<f32>,
    /// `[tokens, used]`: the experts a mixture's tokens use, and their shares.
    ids: Vec<u32>,
    shares: Vec<f32>,
}

impl GpuProcessor {
    /// `Out = ffn(from)`, with `cold` for what is not resident.
    pub(crate) fn ffn_with(
        &mut self,
        layer: usize,
        from: Register,
        probe: &mut dyn Probe,
        cold: &mut dyn ColdSide,
    ) -> Result<()> {
        self.segment.enter(Some(layer));
        self.add_due();
        let tokens = self.tokens;
        let ops = self.layer(layer)?;
        same(ops.ffn_from, from)?;
        let work = ops.ffn.work() * tokens as u64;
        // Split borrows: the parts of a layer are only read.
        let layers = std::mem::take(&mut self.layers);
        let ops = &layers[layer - self.first_layer];
        let done = match &ops.ffn {
            FfnOps::Hot(hot) if hot.is_whole() => self.whole(hot, layer, probe),
            // An observer sees gate and up of all neurons where they are computed together, and only if all are.
            FfnOps::Hot(hot) if !probe.wants_ffn_hidden() || self.which(hot, layer) != Which::All => {
                self.split(hot, ops, layer, probe, cold)
            }
            FfnOps::Experts(experts) if !experts.is_whole() => self.split_experts(experts, ops, layer, probe, cold),
            FfnOps::Hot(_) | FfnOps::Away => self.elsewhere(ops, layer, probe, cold),
            ffn => ffn.record(&mut self.segment, (tokens, self.sparsity), layer, probe, &mut self.log),
        };
        self.layers = layers;
        done?;
        self.segment.worked(work, tokens)
    }

    /// Whether a layer's predictor is asked about this chunk.
    pub(super) fn asks(&self, hot: &HotOps) -> bool {
        self.tokens == 1 && self.sparsity == Sparsity::Predicted && hot.is_sparse() && hot.predictor.is_some()
    }

    /// What is computed of this chunk in a layer.
    fn which(&self, hot: &HotOps, layer: usize) -> Which {
        match (self.sparsity, hot.cut()) {
            (Sparsity::Threshold, Some(cut)) if self.tokens == 1 => Which::Above(cut),
            _ if self.asks(hot) && self.steering.audited != Some(layer) => Which::Predicted,
            _ => Which::All,
        }
    }

    fn whole(&mut self, hot: &HotOps, layer: usize, probe: &mut dyn Probe) -> Result<()> {
        let (tokens, which) = (self.tokens, self.which(hot, layer));
        let shares = hot.record(&mut self.segment, tokens, which, |segment| match probe.wants_ffn_hidden() {
            true => hot.show(segment, tokens, layer, probe),
            false => Ok(()),
        })?;
        if probe.wants_firing() {
            hot.record_cut(self.segment.recorder(), tokens, which);
            let slots = hot.record_fired(self.segment.recorder(), tokens);
            let guess = self.asks(hot).then(|| (hot.mask(), mask::words(hot.neurons()) as u64 * 4));
            let entry = Entry { complete: which != Which::Predicted, ..Entry::new(layer, tokens) };
            self.log.push(&mut self.segment, slots, guess, entry)?;
        }
        hot.sum.record(self.segment.recorder(), &shares);
        Ok(())
    }

    fn split(
        &mut self,
        hot: &HotOps,
        ops: &LayerOps,
        layer: usize,
        probe: &mut dyn Probe,
        cold: &mut dyn ColdSide,
    ) -> Result<()> {
        if let (2.., Some(piece)) = (self.tokens, &hot.piece)
            && let Some(streamed) = cold.streamed(layer)
        {
            return self.stream((hot, piece), layer, streamed, probe);
        }
        let (tokens, which, watched) = (self.tokens, self.which(hot, layer), probe.wants_firing());
        let (d_model, row_bytes) = (self.registers.d_model, self.registers.row_bytes());
        let words = mask::words(hot.neurons());
        let mut pieces = vec![(self.registers.get(ops.ffn_from), 0, tokens as u64 * row_bytes)];
        if self.asks(hot) {
            pieces.push((hot.mask(), 0, words as u64 * 4));
        }
        let mut bus_bytes: u64 = pieces.iter().map(|(.., bytes)| bytes).sum();
        let coming = self.segment.hand_over(&pieces)?;
        let mut shares = hot.record(&mut self.segment, tokens, which, |_| Ok(()))?;
        let fired = watched.then(|| {
            hot.record_cut(self.segment.recorder(), tokens, which);
            let (buffer, bytes) = hot.record_fired(self.segment.recorder(), tokens);
            (buffer.clone(), bytes)
        });
        if hot.slots() > 0 {
            self.segment.submit()?;
        }
        let started = Instant::now();
        let HandOver { x, out, rows, .. } = &mut self.hand_over;
        let mut predicted = None;
        self.segment.take(coming, |read| {
            let (read, mask) = read.split_at(tokens * row_bytes as usize);
            unpad(read, row_bytes as usize, d_model, x);
            predicted = (!mask.is_empty()).then(|| bytemuck::pod_collect_to_vec::<u8, u32>(mask));
        })?;
        let wait_ns = started.elapsed().as_nanos() as u64;
        out.clear();
        out.resize(tokens * d_model, 0.0);
        let followed = predicted.as_deref().filter(|_| which == Which::Predicted);
        let work = cold.partial(layer, x, out, followed, watched)?;
        if work.any {
            let row = hot.buffers.sums.row_bytes() / 4;
            pad(out, d_model, row, rows);
            let (to, offset) = hot.buffers.sums.append(&mut shares);
            bus_bytes += size_of_val(&rows[..]) as u64;
            self.segment.upload(&[(bytemuck::cast_slice(rows), to, offset)])?;
        }
        if let Some((buffer, bytes)) = fired {
            let complete = which != Which::Predicted;
            let entry = Entry { work, predicted, complete, bus_bytes, wait_ns, ..Entry::new(layer, tokens) };
            self.log.push(&mut self.segment, (&buffer, bytes), None, entry)?;
        }
        hot.sum.record(self.segment.recorder(), &shares);
        Ok(())
    }

    /// The same of a mixture, whose router has its say first: the other side computes the experts that tokens use and that are not
    /// here. If all are, it has nothing to do.
    fn split_experts(
        &mut self,
        experts: &ExpertOps,
        ops: &LayerOps,
        layer: usize,
        probe: &mut dyn Probe,
        cold: &mut dyn ColdSide,
    ) -> Result<()> {
        let (tokens, watched) = (self.tokens, probe.wants_firing());
        let (d_model, row_bytes) = (self.registers.d_model, self.registers.row_bytes());
        let (rows_bytes, slot_bytes) = (tokens as u64 * row_bytes, (tokens * experts.used() * 4) as u64);
        experts.route(self.segment.recorder(), tokens);
        let buffers = &experts.buffers;
        let pieces = [
            (self.registers.get(ops.ffn_from), 0, rows_bytes),
            (&buffers.ids, 0, slot_bytes),
            (&buffers.shares, 0, slot_bytes),
        ];
        let mut bus_bytes: u64 = pieces.iter().map(|(.., bytes)| bytes).sum();
        let coming = self.segment.hand_over(&pieces)?;
        experts.compute(self.segment.recorder(), tokens, experts.cut(self.sparsity, tokens));
        let fired = watched.then(|| experts.record_fired(self.segment.recorder(), tokens));
        if experts.computes() {
            self.segment.submit()?;
        }
        let started = Instant::now();
        let HandOver { x, out, rows, ids, shares, .. } = &mut self.hand_over;
        self.segment.take(coming, |read| {
            let (read, chosen) = read.split_at(rows_bytes as usize);
            unpad(read, row_bytes as usize, d_model, x);
            let (chosen, said) = chosen.split_at(slot_bytes as usize);
            let slots = chosen.len() / 4;
            ids.resize(slots, 0);
            bytemuck::cast_slice_mut(ids).copy_from_slice(chosen);
            shares.resize(slots, 0.0);
            bytemuck::cast_slice_mut(shares).copy_from_slice(said);
        })?;
        let wait_ns = started.elapsed().as_nanos() as u64;
        if probe.wants_router() {
            probe.router(layer, &ids.iter().map(|id| *id as usize).collect::<Vec<_>>());
        }
        ids.iter_mut().filter(|id| mask::contains(experts.held(), **id as usize)).for_each(|id| *id = NO_NEURON);
        let mut work = ColdWork::default();
        if ids.iter().any(|id| *id != NO_NEURON) {
            out.clear();
            out.resize(tokens * d_model, 0.0);
            work = cold.experts(layer, x, (ids, shares), out, watched)?;
        }
        if work.any {
            pad(out, d_model, self.registers.pitch, rows);
            bus_bytes += size_of_val(&rows[..]) as u64;
            self.segment.upload(&[(bytemuck::cast_slice(rows), self.registers.get(Register::Out), 0)])?;
        }
        experts.combine(self.segment.recorder(), tokens, work.any);
        if let Some(fired) = fired {
            let entry = Entry { work, complete: true, bus_bytes, wait_ns, ..Entry::new(layer, tokens) };
            experts.tell(&mut self.segment, fired, entry, &mut self.log)?;
        }
        Ok(())
    }

    /// The other side computes all of it.
    fn elsewhere(
        &mut self,
        ops: &LayerOps,
        layer: usize,
        probe: &mut dyn Probe,
        cold: &mut dyn ColdSide,
    ) -> Result<()> {
        let (tokens, d_model, row_bytes) = (self.tokens, self.registers.d_model, self.registers.row_bytes());
        let bytes = tokens as u64 * row_bytes;
        let registers = [self.registers.get(ops.ffn_from), self.registers.get(Register::Residual)];
        let coming = self.segment.hand_over(&registers.map(|register| (register, 0, bytes)))?;
        let started = Instant::now();
        let HandOver { x, residual, out, rows, .. } = &mut self.hand_over;
        self.segment.take(coming, |read| {
            let (read, beside) = read.split_at(bytes as usize);
            unpad(read, row_bytes as usize, d_model, x);
            unpad(beside, row_bytes as usize, d_model, residual);
        })?;
        let wait_ns = started.elapsed().as_nanos() as u64;
        out.clear();
        out.resize(tokens * d_model, 0.0);
        let residual = ops.keeps_residual.then_some(&residual[..]);
        let mut overheard = Overheard { probe, entry: None };
        cold.whole(layer, x, residual, out, &mut overheard)?;
        if let Some(entry) = overheard.entry {
            let bus_bytes = 3 * bytes;
            self.log.entries.push(Entry { bus_bytes, wait_ns, ..entry });
        }
        pad(out, d_model, self.registers.pitch, rows);
        self.segment.upload(&[(bytemuck::cast_slice(rows), self.registers.get(Register::Out), 0)])
    }
}

/// Bytes handed over at most where a layer is not all here.
pub(super) fn hand_over_bytes(layers: &[LayerOps], registers: &Registers, chunk: usize) -> u64 {
    let rows = chunk as u64 * registers.row_bytes();
    let split = layers.iter().map(|layer| &layer.ffn).filter(|ffn| !ffn.is_whole());
    let bytes = split.map(|ffn| match ffn {
        FfnOps::Hot(hot) => 2 * rows + mask::words(hot.neurons()) as u64 * 4,
        FfnOps::Experts(experts) => rows + handed_slots(chunk, experts.used()),
        FfnOps::Dense(_) | FfnOps::Away => 2 * rows,
    });
    bytes.max().unwrap_or(0)
}

/// Bytes of the experts that tokens use, and of their shares.
pub(super) fn handed_slots(chunk: usize, used: usize) -> u64 {
    2 * (chunk * used * 4) as u64
}

/// Passes on what an observer wants to see at once, and keeps for later what it is told when the chunk ends.
struct Overheard<'a> {
    probe: &'a mut dyn Probe,
    entry: Option<Entry>,
}

impl Probe for Overheard<'_> {
    fn wants_ffn_hidden(&mut self) -> bool {
        self.probe.wants_ffn_hidden()
    }

    fn ffn_hidden(&mut self, layer: usize, tokens: usize, gate: &[f32], up: &[f32]) {
        self.probe.ffn_hidden(layer, tokens, gate, up);
    }

    fn wants_firing(&mut self) -> bool {
        self.probe.wants_firing()
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let work = ColdWork {
            any: true,
            fired: firing.fired.to_vec(),
            bytes: firing.cpu_bytes,
            scattered: firing.cpu_scattered,
            cpu_ns: firing.cpu_ns,
        };
        let [predicted, chosen] = [firing.predicted, firing.chosen].map(|mask| mask.map(<[u32]>::to_vec));
        let complete = firing.complete;
        self.entry = Some(Entry { work, predicted, chosen, complete, ..Entry::new(firing.layer, firing.tokens) });
    }

    fn wants_router(&mut self) -> bool {
        self.probe.wants_router()
    }

    fn router(&mut self, layer: usize, chosen: &[usize]) {
        self.probe.router(layer, chosen);
    }
}

/// Rows of `row_bytes` bytes, of which the first `cols` floats count.
pub(super) fn unpad(read: &[u8], row_bytes: usize, cols: usize, to: &mut Vec<f32>) {
    to.resize(read.len() / row_bytes * cols, 0.0);
    for (to, from) in to.chunks_exact_mut(cols).zip(read.chunks_exact(row_bytes)) {
        bytemuck::cast_slice_mut(to).copy_from_slice(&from[..cols * 4]);
    }
}

/// Rows of `cols` floats, `pitch` apart, zeros between them.
pub(super) fn pad(from: &[f32], cols: usize, pitch: usize, to: &mut Vec<f32>) {
    to.clear();
    to.resize(from.len() / cols * pitch, 0.0);
    for (to, from) in to.chunks_exact_mut(pitch).zip(from.chunks_exact(cols)) {
        to[..cols].copy_from_slice(from);
    }
}
