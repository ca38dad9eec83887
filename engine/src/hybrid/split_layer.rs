//! The FFN of a layer for one chunk, computed on both sides. If any of it is cold, the commands recorded so far are submitted with a
//! copy of the FFN's input behind them; the resident neurons (experts) follow at once, and while the device computes them the CPU
//! computes the cold ones. Its partial sum is uploaded with the commands recorded next.

use std::time::Instant;

use thermocline_shaders::limits::NO_NEURON;

use super::cold_side::ColdSide;
use crate::{
    device::{
        GpuLayers,
        firing_log::{ColdWork, FiringEntry, FiringLog},
        hand_over::HandOver,
        registers::{pad, unpad},
        resident_experts::ResidentExperts,
        resident_neurons::{NeuronSelection, ResidentNeurons},
    },
    error::Result,
    model::{BoundFfn, Register, mask},
    runtime::{ChosenExperts, LayerFiring, LayerInputs, Pass, Probe, TokenInputs},
};

/// One layer's FFN for one chunk.
pub(crate) struct SplitLayer<'a, 'p> {
    pub pass: &'a mut Pass<'p>,
    pub ffn: BoundFfn<'a>,
    pub layers: &'a mut GpuLayers,
    pub hand_over: &'a mut HandOver,
    pub log: &'a mut FiringLog,
    pub cold: &'a mut ColdSide,
}

impl SplitLayer<'_, '_> {
    /// The neurons of this chunk that the device computes.
    pub(super) fn selection(&mut self, neurons: &ResidentNeurons) -> NeuronSelection {
        neurons.selection(self.pass, self.ffn.layer)
    }

    /// All neurons are resident: records the FFN.
    pub(super) fn run_resident(&mut self, neurons: &ResidentNeurons) -> Result<()> {
        let (layer, tokens) = (self.ffn.layer, self.pass.tokens.len());
        let selection = self.selection(neurons);
        let (segment, probe) = (&mut self.layers.segment, &mut *self.pass.probe);
        let partials = neurons.record(segment, tokens, selection, |segment| match probe.wants_ffn_hidden() {
            true => neurons.show(segment, tokens, layer, probe),
            false => Ok(()),
        })?;
        if probe.wants_firing() {
            neurons.record_threshold(segment.recorder(), tokens, selection);
            let slots = neurons.record_fired(segment.recorder(), tokens);
            let predicted = neurons.predicts(self.pass).then(|| neurons.predicted_mask());
            let complete = selection != NeuronSelection::Predicted;
            self.log.push(segment, slots, predicted, FiringEntry { complete, ..FiringEntry::new(layer, tokens) })?;
        }
        neurons.sum.record(segment.recorder(), &partials);
        Ok(())
    }

    /// Some neurons are cold: the device computes the resident ones while the CPU computes those.
    pub(super) fn run_neurons(&mut self, neurons: &ResidentNeurons) -> Result<()> {
        let (layer, tokens) = (self.ffn.layer, self.pass.tokens.len());
        let (selection, observed) = (self.selection(neurons), self.pass.probe.wants_firing());
        let segment = &mut self.layers.segment;
        let registers = &self.layers.registers;
        let (d_model, row_bytes) = (registers.d_model, registers.row_bytes());
        // The FFN's input, and the predictor's mask.
        let mut pieces = vec![(registers.get(self.ffn.from), 0, tokens as u64 * row_bytes)];
        if neurons.predicts(self.pass) {
            let mask = neurons.predicted_mask();
            pieces.push((mask.buffer, 0, mask.bytes));
        }
        let mut bus_bytes: u64 = pieces.iter().map(|(.., bytes)| bytes).sum();
        let coming = segment.hand_over(&pieces)?;
        let mut partials = neurons.record(segment, tokens, selection, |_| Ok(()))?;
        let fired = observed.then(|| {
            neurons.record_threshold(segment.recorder(), tokens, selection);
            neurons.record_fired(segment.recorder(), tokens)
        });
        if neurons.slots() > 0 {
            segment.submit()?;
        }
        let started = Instant::now();
        let HandOver { x, out, rows, .. } = &mut *self.hand_over;
        let mut predicted = None;
        segment.take_hand_over(coming, |read| {
            let (read, mask) = read.split_at(tokens * row_bytes as usize);
            unpad(read, row_bytes as usize, d_model, x);
            predicted = (!mask.is_empty()).then(|| bytemuck::pod_collect_to_vec::<u8, u32>(mask));
        })?;
        let wait_ns = started.elapsed().as_nanos() as u64;
        out.clear();
        out.resize(tokens * d_model, 0.0);
        let followed = predicted.as_deref().filter(|_| selection == NeuronSelection::Predicted);
        let work = self.cold.compute_neurons(self.pass, layer, TokenInputs { x, tokens }, followed, observed, out)?;
        if work.any {
            let row = neurons.buffers.sums.row_bytes() / 4;
            pad(out, d_model, row, rows);
            let (to, offset) = neurons.buffers.sums.append(&mut partials);
            bus_bytes += size_of_val(&rows[..]) as u64;
            segment.upload(&[(bytemuck::cast_slice(rows), to, offset)])?;
        }
        if let Some(fired) = fired {
            let complete = selection != NeuronSelection::Predicted;
            let new = FiringEntry::new(layer, tokens);
            let entry = FiringEntry { work, predicted, complete, bus_bytes, wait_ns, ..new };
            self.log.push(segment, fired, None, entry)?;
        }
        neurons.sum.record(segment.recorder(), &partials);
        Ok(())
    }

    /// Some experts are cold: the device routes and computes the resident ones of the experts that tokens use, while the CPU computes
    /// the others. If all of those are resident, the CPU has nothing to do.
    pub(super) fn run_experts(&mut self, experts: &ResidentExperts) -> Result<()> {
        let (layer, tokens) = (self.ffn.layer, self.pass.tokens.len());
        let observed = self.pass.probe.wants_firing();
        let segment = &mut self.layers.segment;
        let registers = &self.layers.registers;
        let (d_model, row_bytes) = (registers.d_model, registers.row_bytes());
        let (rows_bytes, pair_bytes) = (tokens as u64 * row_bytes, (tokens * experts.used() * 4) as u64);
        experts.route_late(segment.recorder(), tokens);
        let buffers = &experts.buffers;
        let pieces = [
            (registers.get(self.ffn.from), 0, rows_bytes),
            (&buffers.ids, 0, pair_bytes),
            (&buffers.router_weights, 0, pair_bytes),
        ];
        let mut bus_bytes: u64 = pieces.iter().map(|(.., bytes)| bytes).sum();
        let coming = segment.hand_over(&pieces)?;
        let threshold = experts.threshold(self.pass);
        experts.compute(segment.recorder(), tokens, threshold);
        let fired = observed.then(|| experts.record_fired(segment.recorder(), tokens, threshold));
        if experts.computes() {
            segment.submit()?;
        }
        let started = Instant::now();
        let HandOver { x, out, rows, ids, router_weights, .. } = &mut *self.hand_over;
        segment.take_hand_over(coming, |read| {
            let (read, choice) = read.split_at(rows_bytes as usize);
            unpad(read, row_bytes as usize, d_model, x);
            let (chosen, weights) = choice.split_at(pair_bytes as usize);
            let pairs = chosen.len() / 4;
            ids.resize(pairs, 0);
            bytemuck::cast_slice_mut(ids).copy_from_slice(chosen);
            router_weights.resize(pairs, 0.0);
            bytemuck::cast_slice_mut(router_weights).copy_from_slice(weights);
        })?;
        let wait_ns = started.elapsed().as_nanos() as u64;
        if self.pass.probe.wants_router() {
            self.pass.probe.router(layer, &ids.iter().map(|id| *id as usize).collect::<Vec<_>>());
        }
        let is_resident = |id: &&mut u32| mask::contains(experts.resident(), **id as usize);
        ids.iter_mut().filter(is_resident).for_each(|id| *id = NO_NEURON);
        let mut work = ColdWork::default();
        if ids.iter().any(|id| *id != NO_NEURON) {
            out.clear();
            out.resize(tokens * d_model, 0.0);
            work = self.cold.compute_experts(
                self.pass,
                &self.ffn,
                TokenInputs { x, tokens },
                ChosenExperts { ids, router_weights },
                observed,
                out,
            )?;
        }
        if work.any {
            pad(out, d_model, registers.pitch, rows);
            bus_bytes += size_of_val(&rows[..]) as u64;
            segment.upload(&[(bytemuck::cast_slice(rows), registers.get(Register::Out), 0)])?;
        }
        experts.combine(segment.recorder(), tokens, work.any);
        if let Some(fired) = fired {
            let entry = FiringEntry { work, complete: true, bus_bytes, wait_ns, ..FiringEntry::new(layer, tokens) };
            experts.log_fired(segment, fired, entry, self.log)?;
        }
        Ok(())
    }

    /// The CPU computes all of the FFN.
    pub(super) fn run_cold(&mut self) -> Result<()> {
        let tokens = self.pass.tokens.len();
        let segment = &mut self.layers.segment;
        let registers = &self.layers.registers;
        let (d_model, row_bytes) = (registers.d_model, registers.row_bytes());
        let bytes = tokens as u64 * row_bytes;
        let read = [registers.get(self.ffn.from), registers.get(Register::Residual)];
        let coming = segment.hand_over(&read.map(|register| (register, 0, bytes)))?;
        let started = Instant::now();
        let HandOver { x, residual, out, rows, .. } = &mut *self.hand_over;
        segment.take_hand_over(coming, |read| {
            let (input, stream) = read.split_at(bytes as usize);
            unpad(input, row_bytes as usize, d_model, x);
            unpad(stream, row_bytes as usize, d_model, residual);
        })?;
        let wait_ns = started.elapsed().as_nanos() as u64;
        out.clear();
        out.resize(tokens * d_model, 0.0);
        let residual = self.ffn.keeps_residual.then_some(&residual[..]);
        let Pass { model, tokens: ids, separate, sparsity, correction, times, ref mut probe } = *self.pass;
        let mut deferred = DeferredFiring { probe: &mut **probe, entry: None };
        let mut pass = Pass { model, tokens: ids, separate, sparsity, correction, times, probe: &mut deferred };
        self.cold.compute_ffn(&mut pass, &self.ffn, LayerInputs { x, residual, tokens }, out)?;
        if let Some(entry) = deferred.entry {
            self.log.entries.push(FiringEntry { bus_bytes: 3 * bytes, wait_ns, ..entry });
        }
        pad(out, d_model, registers.pitch, rows);
        segment.upload(&[(bytemuck::cast_slice(rows), registers.get(Register::Out), 0)])
    }
}

/// An observer of an FFN that the CPU computes: keeps its firing for the log, so that layers are reported in order when the chunk
/// ends, and passes everything else on at once.
struct DeferredFiring<'a> {
    probe: &'a mut dyn Probe,
    entry: Option<FiringEntry>,
}

impl Probe for DeferredFiring<'_> {
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
        let new = FiringEntry::new(firing.layer, firing.tokens);
        self.entry = Some(FiringEntry { work, predicted, chosen, complete, ..new });
    }

    fn wants_router(&mut self) -> bool {
        self.probe.wants_router()
    }

    fn router(&mut self, layer: usize, chosen: &[usize]) {
        self.probe.router(layer, chosen);
    }
}
