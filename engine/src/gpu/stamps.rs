//! Times of passes by the device's own clock.

use super::{Buffer, Gpu, Purpose, Usage};
use crate::error::Result;

/// Two timestamps for each of a number of passes, and where they become bytes.
#[derive(Debug)]
pub(super) struct Stamps {
    queries: wgpu::QuerySet,
    resolved: Buffer,
}

/// Bytes of one pass's timestamps.
pub(super) const PASS_BYTES: u64 = 16;

impl Stamps {
    /// For `passes` passes.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if there is no room, [`crate::Error::Gpu`] if the device is lost.
    pub fn new(gpu: &Gpu, passes: u32) -> Result<Self> {
        let bytes = u64::from(passes) * PASS_BYTES;
        let resolved = gpu.arena().buffer(Purpose::Staging, "timestamps", bytes, Usage::Query)?;
        let (label, ty) = (Some("timestamps"), wgpu::QueryType::Timestamp);
        let queries = gpu.device().create_query_set(&wgpu::QuerySetDescriptor { label, ty, count: 2 * passes });
        gpu.check()?;
        Ok(Stamps { queries, resolved })
    }

    /// Where pass `pass` writes its own.
    pub fn of(&self, pass: u32) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(2 * pass),
            end_of_pass_write_index: Some(2 * pass + 1),
        }
    }

    /// Records that those of the first `passes` passes, each of which was recorded, become bytes; returns where, and how many.
    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder, passes: u32) -> (&Buffer, u64) {
        encoder.resolve_query_set(&self.queries, 0..2 * passes, self.resolved.raw(), 0);
        (&self.resolved, u64::from(passes) * PASS_BYTES)
    }
}

/// When passes began and ended, from what [`Stamps::resolve`] left, in steps of the device's clock.
pub(super) fn passes(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let stamps = bytes.as_chunks::<16>().0.iter();
    stamps.map(|both| {
        let both = u128::from_le_bytes(*both);
        (both as u64, (both >> 64) as u64)
    })
}
