//! Buffers that are kept as long as the [`Cpu`](super::Cpu), so that repeated products allocate
//! nothing.

use parking_lot::Mutex;

/// Bytes of a cache line, and of the widest vector.
pub(super) const LINE: usize = 64;

/// A growing buffer whose contents start on a cache line.
#[derive(Debug, Default)]
pub(super) struct AlignedBuffer<T>(Vec<T>);

impl<T: Copy + Default> AlignedBuffer<T> {
    /// Returns `n` elements with unspecified contents.
    pub fn take(&mut self, n: usize) -> &mut [T] {
        let spare = LINE / size_of::<T>();
        if self.0.len() < n + spare {
            self.0.resize(n + spare, T::default());
        }
        let start = self.start();
        &mut self.0[start..start + n]
    }

    /// Returns the first `n` elements of the last [`AlignedBuffer::take`].
    pub fn get(&self, n: usize) -> &[T] {
        let start = self.start();
        &self.0[start..start + n]
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (self.0.capacity() * size_of::<T>()) as u64
    }

    fn start(&self) -> usize {
        // The spare elements cover any offset. If the address cannot be aligned, the unaligned
        // buffer is only slower.
        self.0.as_ptr().align_offset(LINE).min(LINE / size_of::<T>())
    }
}

/// Scratch memory that is lent to one product at a time. If all of it is in use, more is allocated.
#[derive(Debug, Default)]
pub(super) struct ScratchPool<T>(Mutex<Vec<T>>);

impl<T: Default> ScratchPool<T> {
    /// Lends scratch memory to `f`.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let free = self.0.lock().pop();
        let mut scratch = free.unwrap_or_default();
        let result = f(&mut scratch);
        self.0.lock().push(scratch);
        result
    }
}
