//! The resident neurons of a layer in one pass.

use std::time::Instant;

use thermocline_shaders::limits::NO_NEURON;

use super::{
    fired::DeviceMask,
    firing_log::{FiringEntry, FiringLog},
    neuron_block::PER_WORKGROUP,
    neuron_rows::PartialSums,
    neuron_weights::{NeuronWeights, SLOT_MULTIPLE},
    registers::Registers,
    resident_neurons::ResidentNeurons,
    resident_pass::{ResidentPass, SumPlace},
    segment::Segment,
    streamed_neurons::StreamedNeurons,
    streaming_buffer::StreamingBuffer,
};
use crate::runtime::Pass;
use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, Recorder, WorkKind, params, work_of};
use thermocline_model::Skips;

/// The resident neurons that a pass computes for a chunk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum NeuronSelection {
    /// All resident neurons.
    All,
    /// Neurons whose gate's activation exceeds a threshold in magnitude, for one token only, in
    /// layers with gates.
    Above(f32),
    /// Neurons in the predictor's mask, for one token only.
    Predicted,
}

/// The resident neurons of a layer in one pass.
#[derive(Debug)]
pub(crate) struct NeuronPass<'a> {
    neurons: &'a ResidentNeurons,
    layer: usize,
    tokens: usize,
    pub selection: NeuronSelection,
    /// True if the predictor was computed.
    predicts: bool,
    partials: PartialSums,
    /// Mask of the neurons that fired, one bit per slot, `[tokens, slots / 32]`.
    fired: Option<DeviceMask<'a>>,
    /// True if the hidden activations are wanted too.
    shows_strength: bool,
}

/// Cold neurons of a layer that pass through the streaming buffer.
#[derive(Debug)]
pub(crate) struct NeuronStream<'a> {
    pub buffer: &'a mut StreamingBuffer,
    pub streamed: &'a StreamedNeurons,
    pub weights: NeuronWeights<'a>,
    pub cold: &'a [u32],
}

impl<'a> NeuronPass<'a> {
    /// Chooses the neurons of `layer` that the pass computes. Silent neurons are computed too if
    /// gates do not decide which are silent. The predictor's mask is ignored while its recall is
    /// checked.
    pub fn new(neurons: &'a ResidentNeurons, pass: &mut Pass<'_>, layer: usize) -> Self {
        let shows = pass.probe.wants_ffn_hidden();
        let selection = match neurons.skips(pass, shows) {
            Skips::NotPredicted if !pass.checks_recall(layer) => NeuronSelection::Predicted,
            skips => {
                let threshold = skips.gate_threshold().filter(|_| neurons.rule.gated);
                threshold.map_or(NeuronSelection::All, NeuronSelection::Above)
            }
        };
        let tokens = pass.tokens.len();
        let partials = PartialSums::new(tokens, neurons.slots.len());
        let shows_strength = tokens == 1 && pass.probe.wants_device_strength();
        let predicts = neurons.predicts(pass);
        NeuronPass { neurons, layer, tokens, selection, predicts, partials, fired: None, shows_strength }
    }

    /// Records the whole FFN of a layer whose neurons are all resident. Fired masks go to `log`.
    /// Gate and up values of all neurons go to the observer if it wants them.
    pub fn record_whole(mut self, segment: &mut Segment, pass: &mut Pass<'_>, log: &mut FiringLog) -> Result<()> {
        let (neurons, layer, tokens, probe) = (self.neurons, self.layer, self.tokens, &mut *pass.probe);
        self.record_sums(segment, |segment| match probe.wants_ffn_hidden() {
            true => neurons.show(segment, tokens, layer, probe),
            false => Ok(()),
        })?;
        let entry = probe.wants_firing().then(|| FiringEntry::new(layer, tokens));
        if entry.is_some() {
            self.record_fired(segment.recorder());
        }
        self.finish(segment, log, false, entry)
    }

    /// Records the whole FFN for several tokens, with cold neurons passing through the streaming
    /// buffer. There is no hand-over, and the CPU waits only for room in the staging buffers.
    pub fn record_streamed(
        mut self,
        segment: &mut Segment,
        log: &mut FiringLog,
        stream: NeuronStream<'_>,
        observed: bool,
    ) -> Result<()> {
        let NeuronStream { buffer, streamed, weights, cold } = stream;
        (self.selection, self.predicts) = (NeuronSelection::All, false);
        let kind = WorkKind::of(self.tokens);
        segment.expect(kind, work_of(self.neurons.work(), self.tokens))?;
        self.record(segment, observed)?;
        self.log(segment, log, observed.then(|| FiringEntry::new(self.layer, self.tokens)))?;
        let (mut bus_bytes, mut cpu_ns, mut slots) = (0, 0, Vec::new());
        for piece in streamed.pieces(cold) {
            slots.clear();
            slots.extend_from_slice(piece);
            slots.resize(piece.len().next_multiple_of(SLOT_MULTIPLE), NO_NEURON);
            segment.expect(kind, work_of(self.neurons.work_of(slots.len()), self.tokens))?;
            let started = Instant::now();
            bus_bytes += streamed.load(segment.recorder(), buffer, weights, &slots)?;
            cpu_ns += started.elapsed().as_nanos() as u64;
            streamed.record(segment.recorder(), self.neurons, self.tokens, slots.len(), &mut self.partials);
            if observed {
                let fired = streamed.record_fired(segment.recorder(), self.neurons, self.tokens, slots.len());
                log.push_streamed(segment, fired, piece)?;
            }
            // The device starts with these neurons while the CPU repacks the next ones.
            segment.submit()?;
            buffer.rows.submitted();
        }
        if let Some(entry) = log.entries.last_mut().filter(|_| observed) {
            entry.bus_bytes = bus_bytes;
            entry.work.cpu_ns = cpu_ns;
        }
        self.neurons.sum.record(segment.recorder(), &self.partials);
        Ok(())
    }

    /// Records the neurons' partial sums. `before` may read gate and up values before the sums.
    fn record_sums(&mut self, segment: &mut Segment, before: impl FnOnce(&mut Segment) -> Result<()>) -> Result<()> {
        let (neurons, slots) = (self.neurons, self.neurons.slots.len());
        if slots == 0 {
            return Ok(());
        }
        let recorder = segment.recorder();
        let stride = neurons.gpu.caps().max_groups;
        let firing = |recorder: &mut Recorder, listed: bool, threshold: f32| {
            let blocks = neurons.blocks.iter();
            blocks.for_each(|block| block.record_firing(recorder, &neurons.buffers, listed, stride, threshold));
        };
        match self.selection {
            NeuronSelection::Predicted => {
                let params = params::SlotList { per_workgroup: PER_WORKGROUP, stride };
                recorder.dispatch(&neurons.list, &params, [neurons.blocks.len() as u32, 1, 1]);
                firing(recorder, true, 0.0);
            }
            NeuronSelection::Above(threshold) => firing(recorder, false, threshold),
            NeuronSelection::All => {
                neurons.blocks.iter().for_each(|block| block.product.record(recorder, self.tokens));
                before(segment)?;
                neurons.buffers.activation.record(segment.recorder(), self.tokens, slots, None);
            }
        }
        let (recorder, skip) =
            (segment.recorder(), neurons.rule.sparse_activation || self.selection != NeuronSelection::All);
        for block in &neurons.blocks {
            block.rows.record(recorder, neurons.buffers.slots, skip, &mut self.partials);
        }
        Ok(())
    }

    /// Records, after the sums, the mask of neurons that fired. If all neurons were computed, a
    /// neuron counts as fired above the layer's activation threshold, if there is one. Activations
    /// that the observer wants are restored afterwards.
    fn record_fired(&mut self, recorder: &mut Recorder) {
        let (neurons, slots) = (self.neurons, self.neurons.slots.len());
        let above = neurons.fires_above().filter(|_| self.selection == NeuronSelection::All && slots > 0);
        let activate = |recorder: &mut Recorder, threshold| {
            neurons.buffers.activation.record(recorder, self.tokens, slots, threshold);
        };
        if above.is_some() {
            activate(recorder, above);
        }
        self.fired = Some(neurons.buffers.fired.record(recorder, self.tokens, slots));
        if above.is_some() && self.shows_strength {
            activate(recorder, None);
        }
    }

    /// Copies the mask of fired neurons to `log`, and the predictor's mask unless the CPU received
    /// it.
    fn log(&mut self, segment: &mut Segment, log: &mut FiringLog, entry: Option<FiringEntry>) -> Result<()> {
        let Some((fired, entry)) = self.fired.take().zip(entry) else { return Ok(()) };
        let on_device = self.predicts && entry.predicted.is_none();
        let predicted = on_device.then(|| self.neurons.predicted_mask());
        let complete = self.selection != NeuronSelection::Predicted;
        let hidden = DeviceMask { buffer: &self.neurons.buffers.hidden, bytes: self.neurons.slots.len() as u64 * 4 };
        let strength = self.shows_strength.then_some(hidden);
        log.push(segment, fired, predicted, strength, FiringEntry { complete, ..entry })
    }
}

impl ResidentPass for NeuronPass<'_> {
    /// The predictor's mask, if there is one.
    fn handed_over<'s>(&'s self, _: &'s Registers) -> Vec<(&'s Buffer, u64, u64)> {
        let mask = self.predicts.then(|| self.neurons.predicted_mask());
        mask.into_iter().map(|mask| (mask.buffer, 0, mask.bytes)).collect()
    }

    fn record(&mut self, segment: &mut Segment, observed: bool) -> Result<()> {
        self.record_sums(segment, |_| Ok(()))?;
        if observed {
            self.record_fired(segment.recorder());
        }
        Ok(())
    }

    fn computes(&self) -> bool {
        self.neurons.slots.len() > 0
    }

    fn sum_place<'s>(&'s mut self, _: &'s Registers) -> SumPlace<'s> {
        let sums = &self.neurons.buffers.sums;
        let (buffer, offset) = sums.append(&mut self.partials);
        SumPlace { buffer, offset, row: sums.row_bytes() / 4 }
    }

    fn finish(mut self, segment: &mut Segment, log: &mut FiringLog, _: bool, entry: Option<FiringEntry>) -> Result<()> {
        self.log(segment, log, entry)?;
        self.neurons.sum.record(segment.recorder(), &self.partials);
        Ok(())
    }
}
