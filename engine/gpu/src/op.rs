//! Dispatches that are prepared once and recorded any number of times.

use std::sync::Arc;

use super::{Buffer, Gpu, Pipeline};
use thermocline_base::error::{Error, Result, ScarceMemory};

/// Rows of numbers in a buffer.
#[derive(Debug, Clone, Copy)]
pub struct BufferRows<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// Elements from one row to the next.
    pub pitch: usize,
}

/// A part of a buffer that is bound to a kernel.
#[derive(Debug, Clone)]
pub struct Binding {
    buffer: Buffer,
    offset: u64,
    bytes: u64,
}

impl Binding {
    /// Binds `bytes` of `buffer` from `offset`, which is a multiple of
    /// [`super::Caps::binding_alignment`].
    pub fn part(buffer: &Buffer, offset: u64, bytes: u64) -> Self {
        Binding { buffer: buffer.clone(), offset, bytes }
    }
}

impl From<&Buffer> for Binding {
    fn from(buffer: &Buffer) -> Self {
        Binding { buffer: buffer.clone(), offset: 0, bytes: buffer.bytes() }
    }
}

/// A kernel with its buffers. The arena counts the buffers as used until the `Op` is dropped.
#[derive(Debug, Clone)]
pub struct Op {
    pub(super) pipeline: Arc<Pipeline>,
    /// `None` on a device that only counts.
    pub(super) group: Option<wgpu::BindGroup>,
    /// Keeps the arena's entries of the buffers. The bind group keeps only the driver's buffers.
    buffers: Arc<[Buffer]>,
}

impl Op {
    /// Prepares `pipeline` with `bindings` in the order of its kernel's, and with the code book of
    /// its weight type.
    ///
    /// # Errors
    /// [`Error::Memory`] if a binding is larger than the device allows, [`Error::Invalid`] if the
    /// number of bindings is wrong, [`Error::Gpu`] if the device is lost.
    pub fn new(gpu: &Gpu, pipeline: &Arc<Pipeline>, bindings: &[Binding]) -> Result<Self> {
        gpu.check()?;
        let expected = pipeline.kernel.bindings.len();
        if bindings.len() != expected {
            return Err(Error::invalid("bindings of a kernel", expected.to_string(), bindings.len()));
        }
        let code_book = pipeline.weights.map(|ty| gpu.code_book(ty)).transpose()?.flatten();
        let bindings: Vec<Binding> = bindings.iter().cloned().chain(code_book.as_ref().map(Binding::from)).collect();
        let most = gpu.caps().max_binding;
        if let Some(large) = bindings.iter().find(|binding| binding.bytes > most) {
            return Err(Error::memory(ScarceMemory::Gpu, "a buffer binding", large.bytes, most));
        }
        let group = gpu.device().and_then(|device| bind_group(device, pipeline, &bindings));
        #[cfg(any(test, feature = "test-hooks"))]
        gpu.counts().bind_groups.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        gpu.check()?;
        let buffers = bindings.iter().map(|binding| binding.buffer.clone()).collect();
        Ok(Op { pipeline: Arc::clone(pipeline), group, buffers })
    }

    /// Prepares the kernel `name`, which reads no weights, with whole `buffers`.
    ///
    /// # Errors
    /// As [`Op::new`] and [`Pipelines::get`](super::Pipelines::get).
    pub fn of(
        gpu: &Gpu,
        kernel: &'static str,
        workgroup: u32,
        overrides: &[(&'static str, f64)],
        buffers: &[&Buffer],
    ) -> Result<Self> {
        let bindings: Vec<Binding> = buffers.iter().map(|buffer| Binding::from(*buffer)).collect();
        Op::new(gpu, &gpu.pipelines().get(kernel, None, workgroup, overrides)?, &bindings)
    }

    /// Returns this op with another variant of its kernel, or with another kernel that has the same
    /// bindings.
    pub fn variant(&self, pipeline: &Arc<Pipeline>) -> Op {
        Op { pipeline: Arc::clone(pipeline), group: self.group.clone(), buffers: Arc::clone(&self.buffers) }
    }

    /// Returns the pipeline.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }
}

/// Creates the driver's bind group of `bindings`.
fn bind_group(device: &wgpu::Device, pipeline: &Pipeline, bindings: &[Binding]) -> Option<wgpu::BindGroup> {
    let layout = &pipeline.compiled.as_ref()?.layout;
    let places = pipeline.kernel.bindings_of(pipeline.weights).zip(bindings);
    let entries = places.map(|((binding, _), part)| {
        let size = std::num::NonZeroU64::new(part.bytes);
        let range = wgpu::BufferBinding { buffer: part.buffer.raw()?, offset: part.offset, size };
        Some(wgpu::BindGroupEntry { binding, resource: wgpu::BindingResource::Buffer(range) })
    });
    let entries: Vec<_> = entries.collect::<Option<_>>()?;
    let label = Some(pipeline.kernel.name);
    Some(device.create_bind_group(&wgpu::BindGroupDescriptor { label, layout, entries: &entries }))
}

/// Returns the elements from one row of `cols` columns to the next. Rows are padded so that kernels
/// can read whole chunks of 32 columns.
pub const fn pitch(cols: usize) -> usize {
    cols.next_multiple_of(32)
}

/// Returns a two-dimensional grid of at least `groups` workgroups, at most `most` in each
/// dimension.
pub fn grid(groups: usize, most: u32) -> [u32; 2] {
    let rows = groups.div_ceil(most as usize).max(1);
    [groups.div_ceil(rows).max(1) as u32, rows as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_holds_every_group_within_the_limit() {
        for groups in [1, 2, 65_535, 65_536, 131_070, 131_071, 1_000_000] {
            let [x, y] = grid(groups, 65_535);
            assert!(x <= 65_535 && y <= 65_535 && x as usize * y as usize >= groups);
            assert!((x as usize) * (y as usize) < groups + y as usize + 1, "{groups}: {x} x {y}");
        }
        assert_eq!(grid(0, 65_535), [1, 1]);
    }
}
