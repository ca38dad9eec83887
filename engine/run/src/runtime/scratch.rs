//! Growth of scratch buffers. A lack of memory is reported instead of aborting.

use thermocline_base::error::{Error, Result, ScarceMemory};

/// Makes `vec` at least `n` long and returns its first `n` elements. `None` stands for a length
/// that overflows.
///
/// # Errors
/// [`Error::Memory`] if there is not enough memory.
pub(crate) fn grow<'v>(vec: &'v mut Vec<f32>, n: Option<usize>, what: &'static str) -> Result<&'v mut [f32]> {
    let n = n.unwrap_or(usize::MAX);
    if n > vec.len() {
        vec.try_reserve_exact(n - vec.len()).map_err(|_| {
            let [wanted, held] = [n, vec.capacity()].map(|len| len.saturating_mul(size_of::<f32>()) as u64);
            Error::memory(ScarceMemory::Ram, what, wanted, held)
        })?;
        vec.resize(n, 0.0);
    }
    Ok(&mut vec[..n])
}

/// Bytes that `buffers` hold.
pub(crate) fn held_bytes<'v, T: 'v>(buffers: impl IntoIterator<Item = &'v Vec<T>>) -> u64 {
    buffers.into_iter().map(|buffer| (buffer.capacity() * size_of::<T>()) as u64).sum()
}
