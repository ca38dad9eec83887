//! The FFN of a layer for one chunk, computed on both sides. The recorded commands are submitted,
//! followed by a copy of the FFN's input and then by the resident units. While the device computes
//! these, the CPU computes the cold units. The CPU's partial sum is uploaded with the next
//! commands.

use std::time::Instant;

use super::cpu_share::{ColdInput, ColdPart, CpuShare};
use crate::{
    device::{
        GpuLayers,
        firing_log::{FiringEntry, FiringLog},
        hand_over::HandOver,
        registers::{pad, unpad},
        resident_pass::ResidentPass,
    },
    runtime::Pass,
};
use thermocline_base::error::Result;
use thermocline_gpu::WorkKind;
use thermocline_model::BoundFfn;

/// One layer's FFN for one chunk.
pub(crate) struct SplitLayer<'a, 'p> {
    pub pass: &'a mut Pass<'p>,
    pub ffn: BoundFfn<'a>,
    pub layers: &'a mut GpuLayers,
    pub hand_over: &'a mut HandOver,
    pub log: &'a mut FiringLog,
    pub cold: &'a mut CpuShare,
    /// Work of the resident part.
    pub work: u64,
}

impl SplitLayer<'_, '_> {
    /// Computes `Out = ffn`: the device computes the `resident` part while the CPU computes the
    /// cold part. If the CPU has nothing to add, no partial sum is uploaded.
    pub fn run(self, mut resident: impl ResidentPass, part: ColdPart<'_>) -> Result<()> {
        let SplitLayer { pass, ffn, layers, hand_over, log, cold, work } = self;
        let (tokens, observed) = (pass.tokens.len(), pass.probe.wants_firing());
        let GpuLayers { segment, registers, .. } = layers;
        let (d_model, row_bytes) = (registers.d_model, registers.row_bytes() as usize);
        let input_bytes = tokens * row_bytes;
        let mut pieces = vec![(registers.get(ffn.from), 0, input_bytes as u64)];
        pieces.extend(resident.handed_over(registers));
        let mut bus_bytes: u64 = pieces.iter().map(|(.., bytes)| bytes).sum();
        let coming = segment.hand_over(&pieces)?;
        if resident.computes() {
            segment.expect(WorkKind::of(tokens), work)?;
        }
        resident.record(segment, observed)?;
        if resident.computes() {
            segment.submit()?;
        }
        let started = Instant::now();
        let HandOver { x, out, rows } = hand_over;
        segment.take_hand_over(coming, |read| {
            let (input, more) = read.split_at(input_bytes);
            unpad(input, row_bytes, d_model, x);
            cold.receive(part, more, registers);
        })?;
        let wait_ns = started.elapsed().as_nanos() as u64;
        out.clear();
        out.resize(tokens * d_model, 0.0);
        let entry = cold.compute(pass, &ffn, part, ColdInput { x, observed }, out)?;
        let added = entry.work.any;
        if added {
            let to = resident.sum_place(registers);
            pad(out, d_model, to.row, rows);
            bus_bytes += size_of_val(&rows[..]) as u64;
            segment.upload(&[(bytemuck::cast_slice(rows), to.buffer, to.offset)])?;
        }
        let entry = observed.then_some(FiringEntry { bus_bytes, wait_ns, ..entry });
        resident.finish(segment, log, added, entry)
    }
}
