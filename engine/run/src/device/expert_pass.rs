//! The resident experts of an MoE layer in one pass.

use std::time::Instant;

use super::{
    expert_buffers::SummedExperts,
    expert_matrices::ExpertMatrices,
    fired::DeviceMask,
    firing_log::{FiringEntry, FiringLog},
    registers::Registers,
    resident_experts::ResidentExperts,
    resident_pass::{ResidentPass, SumPlace},
    segment::Segment,
    streamed_experts::{SortedPairs, StreamedExperts},
    streaming_buffer::StreamingBuffer,
};
use crate::runtime::Pass;
use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, Recorder, WorkKind, work_of};

/// The resident experts of an MoE layer in one pass, and its shared expert.
#[derive(Debug)]
pub(crate) struct ExpertPass<'a> {
    experts: &'a ResidentExperts,
    tokens: usize,
    /// Threshold for the magnitude of a gate's activation. Up rows of neurons at or below it are
    /// not read. `None` if gates do not decide which neurons are silent.
    threshold: Option<f32>,
    fired: Option<FiredMasks<'a>>,
    /// True if cold experts are streamed, so that the device computes all experts.
    streams: bool,
    /// True if the ranges of the router's values are handed over.
    ranges: bool,
}

/// Cold experts of a layer that pass through the streaming buffer.
#[derive(Debug)]
pub(crate) struct ExpertStream<'a> {
    pub buffer: &'a mut StreamingBuffer,
    pub streamed: &'a StreamedExperts,
    pub matrices: ExpertMatrices<'a>,
}

/// Masks of fired neurons: of the pairs (valid for resident experts only), and of the shared
/// expert.
#[derive(Debug, Clone, Copy)]
struct FiredMasks<'a> {
    pairs: DeviceMask<'a>,
    shared: Option<DeviceMask<'a>>,
}

impl<'a> ExpertPass<'a> {
    /// Starts a pass after the experts have been chosen. Observers do not see hidden values of
    /// experts on a device. With `ranges`, the router prefers resident experts, and the ranges of
    /// its values are handed over.
    pub fn new(experts: &'a ResidentExperts, pass: &Pass<'_>, ranges: bool) -> Self {
        let skips = experts.rule.skips(pass.sparsity, pass.is_single(), false);
        let threshold = skips.gate_threshold().filter(|_| experts.rule.gated);
        ExpertPass { experts, tokens: pass.tokens.len(), threshold, fired: None, streams: false, ranges }
    }

    /// Records all of an FFN whose experts are all resident. Fired masks go to `log`, if the
    /// observer wants them.
    pub fn record_whole(
        mut self,
        segment: &mut Segment,
        pass: &mut Pass<'_>,
        layer: usize,
        log: &mut FiringLog,
    ) -> Result<()> {
        if pass.probe.wants_router() {
            let chosen = segment.read(&[(&self.experts.buffers.ids, 0, self.pair_bytes())], |read| {
                bytemuck::pod_collect_to_vec::<u8, u32>(read).into_iter().map(|id| id as usize).collect::<Vec<_>>()
            })?;
            pass.probe.router(layer, &chosen);
        }
        self.compute(segment.recorder());
        self.combine(segment.recorder(), false);
        if pass.probe.wants_firing() {
            self.record_fired(segment.recorder());
            self.log(segment, log, Some(FiringEntry::new(layer, self.tokens)))?;
        }
        Ok(())
    }

    /// Records all of an FFN for several tokens, with the chosen cold experts passing through the
    /// streaming buffer. The CPU waits for the router's choice and for room in the staging buffers.
    /// Meanwhile the device computes the resident experts. Fired masks go to `log`, if the observer
    /// wants them.
    pub fn record_streamed(
        mut self,
        segment: &mut Segment,
        pass: &mut Pass<'_>,
        layer: usize,
        log: &mut FiringLog,
        stream: ExpertStream<'_>,
    ) -> Result<()> {
        (self.threshold, self.streams) = (None, true);
        let (experts, tokens) = (self.experts, self.tokens);
        let coming = segment.hand_over(&[(&experts.buffers.ids, 0, self.pair_bytes())])?;
        segment.expect(WorkKind::of(tokens), work_of(experts.work, tokens))?;
        self.compute(segment.recorder());
        segment.submit()?;
        let started = Instant::now();
        let ids = segment.take_hand_over(coming, bytemuck::pod_collect_to_vec::<u8, u32>)?;
        let wait_ns = started.elapsed().as_nanos() as u64;
        if pass.probe.wants_router() {
            pass.probe.router(layer, &ids.iter().map(|id| *id as usize).collect::<Vec<_>>());
        }
        let mut entry = FiringEntry { wait_ns, bus_bytes: self.pair_bytes(), ..FiringEntry::new(layer, tokens) };
        self.stream(segment, stream, &SortedPairs::new(&ids, &experts.slots.resident), &mut entry)?;
        self.combine(segment.recorder(), false);
        if pass.probe.wants_firing() {
            self.record_fired(segment.recorder());
            self.log(segment, log, Some(entry))?;
        }
        Ok(())
    }

    /// Records the cold experts of `sorted` piece by piece, and adds bytes and times to `entry`.
    fn stream(
        &self,
        segment: &mut Segment,
        stream: ExpertStream<'_>,
        sorted: &SortedPairs,
        entry: &mut FiringEntry,
    ) -> Result<()> {
        let ExpertStream { buffer, streamed, matrices } = stream;
        if sorted.experts.is_empty() {
            return Ok(());
        }
        let (pairs, buffers) = (self.tokens * self.experts.experts.used, &self.experts.buffers);
        let mut order = Some(&sorted.order[..]);
        for (at, (held, stack)) in streamed.stacks.iter().zip(&matrices.stacks).enumerate() {
            if at + 1 == streamed.stacks.len() {
                buffers.ffn.activate(segment.recorder(), pairs, None);
            }
            for piece in held.pieces(&sorted.experts) {
                segment.expect(WorkKind::of(self.tokens), held.work(stack, piece))?;
                let started = Instant::now();
                let (recorder, groups) = (segment.recorder(), &buffers.groups);
                entry.bus_bytes += held.record(recorder, buffer, stack, groups, piece, order.take())?;
                entry.work.cpu_ns += started.elapsed().as_nanos() as u64;
                // The device starts with these experts while the CPU repacks the next ones.
                segment.submit()?;
                buffer.rows.submitted();
            }
        }
        Ok(())
    }

    /// Bytes of the pairs' experts, or of their router weights.
    fn pair_bytes(&self) -> u64 {
        (self.tokens * self.experts.experts.used * 4) as u64
    }

    /// Records the chosen experts that are resident, and the shared expert, without neurons below
    /// the threshold.
    fn compute(&self, recorder: &mut Recorder) {
        let (experts, tokens) = (self.experts, self.tokens);
        let (pairs, buffers) = (tokens * experts.experts.used, &experts.buffers);
        if !experts.blocks.is_empty() || self.streams {
            experts.latent.iter().for_each(|latent| latent.down.record(recorder, tokens));
        }
        if !experts.blocks.is_empty() {
            let grouped = buffers.groups.pay(tokens, pairs);
            if grouped {
                buffers.groups.record(recorder, pairs);
            }
            match self.threshold.filter(|_| buffers.ffn.gated) {
                Some(threshold) => {
                    experts.blocks.iter().for_each(|block| block.record_firing(recorder, pairs, threshold));
                }
                None => {
                    experts.blocks.iter().for_each(|block| block.record_gate_up(recorder, pairs, grouped));
                    buffers.ffn.activate(recorder, pairs, self.threshold);
                }
            }
            experts.blocks.iter().for_each(|block| block.record_down(recorder, pairs, grouped));
        }
        if let Some((gate, ffn)) = &experts.shared {
            gate.iter().for_each(|gate| gate.record(recorder, tokens));
            ffn.record(recorder, tokens, self.threshold);
        }
    }

    /// Records `Out =` the weighted sum of the experts. With `add`, the sum is added to `Out`.
    fn combine(&self, recorder: &mut Recorder, add: bool) {
        let (experts, tokens) = (self.experts, self.tokens);
        let combine = |recorder: &mut Recorder, add: bool| {
            let summed = if self.streams { SummedExperts::All } else { SummedExperts::Resident(experts.slots.len()) };
            experts.buffers.combine(&experts.gpu, recorder, tokens, summed, add);
        };
        let Some(latent) = &experts.latent else { return combine(recorder, add) };
        combine(recorder, false);
        if add {
            latent.up_added.iter().for_each(|up| up.record(recorder, tokens));
        } else {
            latent.up.record(recorder, tokens);
        }
        latent.add_shared.iter().for_each(|add| add.record(recorder, tokens));
    }

    /// Records the masks of neurons that fired.
    fn record_fired(&mut self, recorder: &mut Recorder) {
        let (pairs, buffers) = (self.tokens * self.experts.experts.used, &self.experts.buffers);
        // If a threshold was applied, neurons below it are already zero.
        let threshold = self.experts.rule.fires_above().filter(|_| self.threshold.is_none());
        let fired = buffers.ffn.record_fired(recorder, pairs, threshold);
        let shared = buffers.shared.as_ref().map(|shared| shared.ffn.record_fired(recorder, self.tokens, threshold));
        self.fired = Some(FiredMasks { pairs: fired, shared });
    }

    /// Copies fired masks, and the experts of their pairs, to `log`.
    fn log(&mut self, segment: &mut Segment, log: &mut FiringLog, entry: Option<FiringEntry>) -> Result<()> {
        let Some((FiredMasks { pairs, shared }, entry)) = self.fired.take().zip(entry) else { return Ok(()) };
        let ids = DeviceMask { buffer: &self.experts.buffers.ids, bytes: self.pair_bytes() };
        log.push_experts(segment, pairs, ids, shared, self.streams, FiringEntry { complete: true, ..entry })
    }
}

impl ResidentPass for ExpertPass<'_> {
    /// The chosen experts, their router weights, and the ranges of the router's values behind
    /// these.
    fn handed_over<'s>(&'s self, _: &'s Registers) -> Vec<(&'s Buffer, u64, u64)> {
        let (buffers, of_tokens) = (&self.experts.buffers, (self.tokens * 4) as u64);
        let weights = self.pair_bytes() + if self.ranges { of_tokens } else { 0 };
        vec![(&buffers.ids, 0, self.pair_bytes()), (&buffers.router_weights, 0, weights)]
    }

    fn record(&mut self, segment: &mut Segment, observed: bool) -> Result<()> {
        self.compute(segment.recorder());
        if observed {
            self.record_fired(segment.recorder());
        }
        Ok(())
    }

    fn computes(&self) -> bool {
        !self.experts.blocks.is_empty() || self.experts.shared.is_some()
    }

    fn sum_place<'s>(&'s mut self, registers: &'s Registers) -> SumPlace<'s> {
        SumPlace::out(registers)
    }

    fn finish(
        mut self,
        segment: &mut Segment,
        log: &mut FiringLog,
        added: bool,
        entry: Option<FiringEntry>,
    ) -> Result<()> {
        self.combine(segment.recorder(), added);
        self.log(segment, log, entry)
    }
}
