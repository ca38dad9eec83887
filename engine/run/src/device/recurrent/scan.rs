//! Interface of a scan: what a recurrent mixer computes on the device between its convolution and its output matrix.

use std::{fmt::Debug, ops::Range};

use thermocline_shaders::limits::{SCAN_LANES, SCAN_ROWS};

use super::mixer_buffers::{MixerBuffers, RecurrentLayout};
use crate::device::state::StateOps;
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{Buffer, Gpu, Op, Recorder};

/// The scan of one layer, prepared.
pub(in crate::device) trait ScanOps: Debug + Send + Sync {
    /// The dispatch of a conversation whose memory is `state`.
    fn op(&self, gpu: &Gpu, buffers: &MixerBuffers, state: &Buffer) -> Result<Op>;

    /// Records it for `tokens` tokens, from convolved channels to normed heads; each of `states` is advanced by its rows.
    fn record(
        &self,
        recorder: &mut Recorder,
        layout: RecurrentLayout,
        states: &[(Range<usize>, &StateOps)],
        tokens: usize,
    );

    /// Multiply-adds of a token.
    fn work(&self) -> u64;
}

/// Refuses a state of more `rows`, of which `what` names the mixer and `of` the vectors, than a scan's lanes can hold.
///
/// # Errors
/// [`Error::Unsupported`].
pub(super) fn check_rows(what: &'static str, of: &str, rows: usize) -> Result<()> {
    let most = SCAN_LANES * SCAN_ROWS;
    if rows <= most as usize {
        return Ok(());
    }
    let (got, supported) = (format!("{of} of {rows} elements"), format!("up to {most}"));
    Err(Error::Unsupported { what, got, supported })
}

/// Lanes of a scan that share a column of a state of `rows` rows.
pub(super) fn scan_slices(rows: usize) -> u32 {
    (rows as u32).div_ceil(SCAN_ROWS).max(1)
}

/// Columns of a state of `rows` rows that a workgroup of a scan takes, of `width`.
pub(super) fn scan_columns(rows: usize, width: usize) -> u32 {
    (SCAN_LANES / scan_slices(rows)).clamp(1, (width as u32).next_multiple_of(16))
}
