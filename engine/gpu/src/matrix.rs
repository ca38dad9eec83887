//! A matrix on the device.

use std::ops::Range;

use thermocline_shaders::WeightType;

use super::{Binding, Buffer, Caps, Gpu, MemoryUse, Usage};
use thermocline_base::error::{Error, Result, ScarceMemory};

/// Most bytes of a part, because kernels index a buffer's 16-byte elements and words with 32 bits.
const MOST_BYTES: u64 = 1 << 31;

/// Weights `[rows, cols]` on the device, in as many buffers as the adapter's limits require.
#[derive(Debug, Clone)]
pub struct GpuMatrix {
    ty: WeightType,
    rows: usize,
    cols: usize,
    parts: Vec<MatrixPart>,
}

/// The shape of a [`GpuMatrix`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixLayout {
    /// Weight type.
    pub ty: WeightType,
    /// Rows, a multiple of `rows_together`.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Rows that always stay in one buffer.
    pub rows_together: usize,
}

/// Consecutive rows of a [`GpuMatrix`] in one buffer: the `main` stream, then the `aux` stream.
#[derive(Debug, Clone)]
pub struct MatrixPart {
    rows: Range<usize>,
    buffer: Buffer,
    /// Offset and bytes of the main stream, and of the auxiliary stream.
    main: (u64, u64),
    aux: (u64, u64),
}

impl GpuMatrix {
    /// Allocates the buffers of a matrix of zeros.
    pub(super) fn new(gpu: &Gpu, MemoryUse { purpose, what }: MemoryUse, layout: MatrixLayout) -> Result<Self> {
        let MatrixLayout { ty, rows, cols, .. } = layout;
        let plan = plan(gpu.caps(), what, layout)?;
        let parts = plan.into_iter().map(|rows| {
            let (main, aux, all) = streams(gpu.caps(), ty, rows.len(), cols);
            let buffer = gpu.arena().buffer(purpose, what, all, Usage::Storage)?;
            Ok(MatrixPart { rows, buffer, main: (0, main), aux })
        });
        Ok(GpuMatrix { ty, rows, cols, parts: parts.collect::<Result<_>>()? })
    }

    /// Places a matrix at `offset` in `buffer`, whose bytes other matrices may use at other times.
    /// The offset is aligned for a binding.
    ///
    /// # Errors
    /// [`Error::Memory`] if the matrix is longer than the rest of the buffer or than a binding.
    pub fn within(gpu: &Gpu, buffer: &Buffer, offset: u64, layout: MatrixLayout) -> Result<Self> {
        let MatrixLayout { ty, rows, cols, .. } = layout;
        let (main, (aux_offset, aux), wanted) = streams(gpu.caps(), ty, rows, cols);
        let available = buffer.bytes().saturating_sub(offset).min(gpu.caps().max_binding);
        if wanted > available || rows == 0 {
            return Err(Error::memory(ScarceMemory::Gpu, "a matrix in a buffer", wanted, available));
        }
        let (main, aux) = ((offset, main), (offset + aux_offset, aux));
        let part = MatrixPart { rows: 0..rows, buffer: buffer.clone(), main, aux };
        Ok(GpuMatrix { ty, rows, cols, parts: vec![part] })
    }

    /// Returns the weight type.
    pub fn ty(&self) -> WeightType {
        self.ty
    }

    /// Returns the number of rows, which are the outputs of `y = W x`.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns, which are the inputs of `y = W x`.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the 32-column chunks per row.
    pub fn chunks(&self) -> usize {
        self.cols.next_multiple_of(self.ty.block()) / 32
    }

    /// Returns the bytes of a row in the main stream and in the auxiliary stream.
    pub(super) fn row_bytes(&self) -> (usize, usize) {
        (self.ty.main_len(self.cols) * 16, self.ty.aux_len(self.cols) * 4)
    }

    /// Returns the buffers, in row order.
    pub fn parts(&self) -> &[MatrixPart] {
        &self.parts
    }

    /// Returns the bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.buffer.bytes()).sum()
    }

    /// Returns the bytes of a matrix on a device with these limits.
    ///
    /// # Errors
    /// [`Error::Memory`] if one row exceeds the limits.
    pub fn bytes_of(caps: &Caps, ty: WeightType, rows: usize, cols: usize) -> Result<u64> {
        let parts = plan(caps, "a matrix", MatrixLayout { ty, rows, cols, rows_together: 1 })?;
        let part = |rows: Range<usize>| streams(caps, ty, rows.len(), cols).2.max(1).next_multiple_of(16);
        Ok(parts.into_iter().map(part).sum())
    }
}

impl MatrixPart {
    /// Returns the part's rows of the matrix.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Returns binding 0 of kernels: codes or values.
    pub fn main(&self) -> Binding {
        let (offset, bytes) = self.main;
        Binding::part(&self.buffer, offset, bytes)
    }

    /// Returns binding 1 of kernels: scales, or `nothing` if the weight type has none.
    pub fn aux(&self, nothing: &Buffer) -> Binding {
        let (offset, bytes) = self.aux;
        if bytes == 0 { nothing.into() } else { Binding::part(&self.buffer, offset, bytes) }
    }

    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Returns the offset of the main stream in the buffer, in bytes.
    pub(super) fn main_offset(&self) -> u64 {
        self.main.0
    }

    /// Returns the offset of the auxiliary stream in the buffer, in bytes.
    pub(super) fn aux_offset(&self) -> u64 {
        self.aux.0
    }
}

/// Returns the bytes of both streams.
fn bytes(ty: WeightType, rows: usize, cols: usize) -> (u64, u64) {
    let stream = |row: usize| rows as u64 * row as u64;
    (stream(ty.main_len(cols) * 16), stream(ty.aux_len(cols) * 4))
}

/// Returns the bytes of the main stream, the offset and bytes of the auxiliary stream, and the
/// bytes of both.
fn streams(caps: &Caps, ty: WeightType, rows: usize, cols: usize) -> (u64, (u64, u64), u64) {
    let (main, aux) = bytes(ty, rows, cols);
    let offset = main.next_multiple_of(caps.binding_alignment.max(16));
    (main, (offset, aux), if aux > 0 { offset + aux } else { main })
}

/// Divides the rows into as few parts as the limits allow, of about equal length.
fn plan(caps: &Caps, what: &'static str, layout: MatrixLayout) -> Result<Vec<Range<usize>>> {
    let MatrixLayout { ty, rows, cols, rows_together } = layout;
    if rows == 0 || cols == 0 || rows_together == 0 || !rows.is_multiple_of(rows_together) {
        let got = format!("{rows} rows of {cols} columns in units of {rows_together} rows");
        return Err(Error::invalid("a matrix on the GPU", "columns, and rows in whole units", got));
    }
    let align = caps.binding_alignment.max(16);
    let most = caps.max_buffer.min(caps.max_binding).min(MOST_BYTES).saturating_sub(align);
    let bytes = (ty.device_row_bytes(cols) as u64).saturating_mul(rows_together as u64);
    let groups = (most / bytes.max(1)) as usize;
    if groups == 0 {
        return Err(Error::memory(ScarceMemory::Gpu, what, bytes, most));
    }
    let (all, parts) = (rows / rows_together, (rows / rows_together).div_ceil(groups));
    let step = all.div_ceil(parts) * rows_together;
    Ok((0..rows).step_by(step).map(|start| start..(start + step).min(rows)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_parts_keep_to_the_limits() {
        let caps = Caps { max_buffer: 1 << 20, max_binding: 1 << 16, binding_alignment: 256, ..Caps::default() };
        for ty in WeightType::ALL {
            for (rows, rows_together) in [(1, 1), (1000, 1), (4096, 16)] {
                let parts = plan(&caps, "test", MatrixLayout { ty, rows, cols: 512, rows_together }).unwrap();
                assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, rows));
                assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{ty}");
                for part in parts {
                    let (main, aux) = bytes(ty, part.len(), 512);
                    assert!(main.next_multiple_of(256) + aux <= 1 << 16, "{ty}");
                    assert!(part.len() % rows_together == 0 && !part.is_empty(), "{ty}");
                }
            }
        }
        let floats = |rows, cols, rows_together| {
            plan(&caps, "test", MatrixLayout { ty: WeightType::F32, rows, cols, rows_together })
        };
        let refused = floats(3, 1 << 15, 1);
        assert!(matches!(refused, Err(Error::Memory { wanted, .. }) if wanted == 1 << 17));
        assert!(floats(3, 32, 2).is_err());
        assert!(floats(0, 32, 1).is_err());
    }
}
