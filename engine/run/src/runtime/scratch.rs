//! Growth of scratch buffers, which reports a lack of memory instead of aborting.

use thermocline_base::error::{Error, Result, ScarceMemory};

/// Makes `vec` at least `n` long; `None` is a length that overflows.
///
/// # Errors
/// [`Error::Memory`] if that much cannot be had.
pub(crate) fn grow(vec: &mut Vec<f32>, n: Option<usize>, what: &'static str) -> Result<()> {
    let n = n.unwrap_or(usize::MAX);
    if n <= vec.len() {
        return Ok(());
    }
    let more = n - vec.len();
    vec.try_reserve_exact(more).map_err(|_| {
        Error::memory(
            ScarceMemory::Ram,
            what,
            n.saturating_mul(size_of::<f32>()) as u64,
            (vec.capacity() * size_of::<f32>()) as u64,
        )
    })?;
    vec.resize(n, 0.0);
    Ok(())
}
