//! The FFN of a layer that is not all on the device, for a chunk of so many tokens that its other neurons are worth sending there:
//! they pass through the [`Slab`] piece by piece, and each piece adds its share of the sum. Nothing is handed over, and nobody
//! waits for anything but room on the way.

use std::time::Instant;

use thermocline_shaders::limits::NO_NEURON;

use super::{
    extent::UNIT,
    firing::Entry,
    hot::{HotOps, Which, neuron_weights},
    processor::GpuProcessor,
    slab::{Piece, Slab},
};
use crate::{
    error::{Error, Result},
    model::{Ffn, Probe},
};

impl GpuProcessor {
    /// `Out = ffn`, with the rows of the neurons of `streamed` sent to the device.
    pub(super) fn stream(
        &mut self,
        ops: (&HotOps, &Piece),
        layer: usize,
        streamed: (&Ffn, &[u32]),
        probe: &mut dyn Probe,
    ) -> Result<()> {
        let none = || Error::invalid("neurons that pass through", "a place for them", "none");
        // Split borrows: it is filled while everything else is recorded.
        let mut slab = self.slab.take().ok_or_else(none)?;
        let done = self.stream_through(&mut slab, ops, layer, streamed, probe);
        self.slab = Some(slab);
        done
    }

    fn stream_through(
        &mut self,
        slab: &mut Slab,
        (hot, piece): (&HotOps, &Piece),
        layer: usize,
        (ffn, neurons): (&Ffn, &[u32]),
        probe: &mut dyn Probe,
    ) -> Result<()> {
        let (tokens, watched, weights) = (self.tokens, probe.wants_firing(), neuron_weights(ffn)?);
        let mut shares = hot.record(&mut self.segment, tokens, Which::All, |_| Ok(()))?;
        if watched {
            hot.record_cut(self.segment.recorder(), tokens, Which::All);
            let fired = hot.record_fired(self.segment.recorder(), tokens);
            self.log.push(&mut self.segment, fired, None, Entry { complete: true, ..Entry::new(layer, tokens) })?;
        }
        let (mut bus_bytes, mut cpu_ns, mut slots) = (0, 0, Vec::new());
        for some in piece.cut(neurons) {
            slots.clear();
            slots.extend_from_slice(some);
            slots.resize(some.len().next_multiple_of(UNIT), NO_NEURON);
            let started = Instant::now();
            bus_bytes += slab.load(self.segment.recorder(), piece, weights, &slots)?;
            cpu_ns += started.elapsed().as_nanos() as u64;
            piece.record(self.segment.recorder(), hot, tokens, slots.len(), &mut shares);
            if watched {
                let fired = piece.record_fired(self.segment.recorder(), hot, tokens, slots.len());
                self.log.push_streamed(&mut self.segment, fired, some)?;
            }
            // The device begins with these while the next are repacked.
            self.segment.submit()?;
            slab.rows.submitted();
        }
        if let Some(entry) = self.log.entries.last_mut().filter(|_| watched) {
            entry.bus_bytes = bus_bytes;
            entry.work.cpu_ns = cpu_ns;
        }
        hot.sum.record(self.segment.recorder(), &shares);
        Ok(())
    }
}
