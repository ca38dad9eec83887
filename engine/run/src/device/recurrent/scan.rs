//! Interface of a scan: what a recurrent mixer computes between its convolution and its output
//! matrix.

use std::fmt::Debug;

use thermocline_shaders::limits::{SCAN_LANES, SCAN_ROWS};

use super::mixer_buffers::{MixerBuffers, RecurrentLayout};
use crate::device::state::GpuRowsState;
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{Buffer, Gpu, Op, Recorder};

/// The scan of one layer, prepared.
pub(in crate::device) trait ScanOps: Debug + Send + Sync {
    /// Prepares the dispatch of a conversation with the memory `state`.
    fn op(&self, gpu: &Gpu, buffers: &MixerBuffers, state: &Buffer) -> Result<Op>;

    /// Records the scan for `tokens` tokens, from convolved channels to normed heads. The rows of
    /// each entry of `states` advance that state.
    fn record(&self, recorder: &mut Recorder, layout: RecurrentLayout, states: &[GpuRowsState<'_>], tokens: usize);

    /// Multiply-adds per token.
    fn work(&self) -> u64;
}

/// Returns an error for a state with more `rows` than a scan's lanes can hold. `what` names the
/// mixer, and `of` names the vectors.
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

/// Number of a scan's lanes that share a column of a state with `rows` rows.
pub(super) fn scan_slices(rows: usize) -> u32 {
    (rows as u32).div_ceil(SCAN_ROWS).max(1)
}

/// Number of columns that a scan's workgroup computes, of a state with `rows` rows and `width`
/// columns.
pub(super) fn scan_columns(rows: usize, width: usize) -> u32 {
    (SCAN_LANES / scan_slices(rows)).clamp(1, (width as u32).next_multiple_of(16))
}
