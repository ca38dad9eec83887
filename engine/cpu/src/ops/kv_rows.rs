//! Keys (or values) of one head, one row per position, in the cache's type. The rows form a ring.
//! If more rows are pushed than fit, the newest replace the oldest.

use std::ops::{Deref, DerefMut, Range};

use half::{f16, slice::HalfFloatSliceExt};

use super::PARALLEL_ELEMENTS;
use crate::{Cpu, prefetch, scratch::LINE};
use thermocline_base::error::{Error, Result, ScarceMemory};

/// Encoding of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum KvType {
    /// Half precision.
    #[default]
    F16,
    /// Single precision.
    F32,
    /// Eight-bit integers, with one half-precision scale per 32 elements of a row.
    Q8_0,
}

impl KvType {
    /// Upper-case name.
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F16 => "F16",
            KvType::F32 => "F32",
            KvType::Q8_0 => "Q8_0",
        }
    }

    /// The encoding of rows on a GPU. GPU kernels do not read eight-bit rows.
    pub const fn on_gpu(self) -> KvType {
        match self {
            KvType::Q8_0 => KvType::F16,
            ty => ty,
        }
    }

    /// Elements of a stored row of `head_dim` elements. Rows are padded with zeros to the widths
    /// that kernels read.
    pub const fn padded(self, head_dim: usize) -> usize {
        match self {
            KvType::F16 | KvType::F32 => head_dim.next_multiple_of(16),
            KvType::Q8_0 => head_dim.next_multiple_of(32),
        }
    }

    /// Bytes of a row of `head_dim` elements.
    pub const fn row_bytes(self, head_dim: usize) -> usize {
        let n = self.padded(head_dim);
        match self {
            KvType::F16 => n * 2,
            KvType::F32 => n * 4,
            KvType::Q8_0 => n / 32 * 34,
        }
    }
}

impl std::fmt::Display for KvType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for KvType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [KvType::F16, KvType::F32, KvType::Q8_0]
            .into_iter()
            .find(|ty| ty.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| Error::unsupported("KV cache type", text, "F16, F32, Q8_0"))
    }
}

/// A growing run of elements. It never moves, and starts on a cache line unless it is cloned.
#[derive(Debug, Clone)]
pub(super) struct AlignedRun<T> {
    memory: Vec<T>,
    start: usize,
}

impl<T: Copy + Default> AlignedRun<T> {
    /// Reserves room for `n` elements.
    fn new(n: Option<usize>) -> Result<Self> {
        let slack = LINE / size_of::<T>();
        let room = n.and_then(|n| n.checked_add(slack));
        let mut memory: Vec<T> = Vec::new();
        match room {
            Some(room) if memory.try_reserve_exact(room).is_ok() => {
                let start = memory.as_ptr().align_offset(LINE).min(slack);
                memory.resize(start, T::default());
                Ok(AlignedRun { memory, start })
            }
            _ => {
                let wanted = room.and_then(|n| n.checked_mul(size_of::<T>())).unwrap_or(usize::MAX);
                Err(Error::memory(ScarceMemory::KvCache, "KV cache", wanted as u64, 0))
            }
        }
    }

    fn bytes(&self) -> u64 {
        (self.memory.capacity() * size_of::<T>()) as u64
    }

    fn prefetch(&self, elements: Range<usize>) {
        let lines = (elements.len() * size_of::<T>()).div_ceil(LINE);
        let first = self.as_ptr().wrapping_add(elements.start).cast::<u8>();
        (0..lines).for_each(|line| prefetch(first.wrapping_add(line * LINE)));
    }

    fn resize(&mut self, n: usize) {
        self.memory.resize(self.start + n, T::default());
    }

    /// Appends elements of `from`, from this run's length on, up to `n` in all.
    fn extend_to(&mut self, from: &Self, n: usize) {
        let held = self.len();
        self.memory.extend_from_slice(&from[held..n]);
    }

    /// Copies `n` elements of `from`, from `at` on, to element `to` and the following ones.
    fn copy_from(&mut self, to: usize, from: &Self, at: usize, n: usize) {
        self[to..][..n].copy_from_slice(&from[at..][..n]);
    }
}

impl<T> Deref for AlignedRun<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.memory[self.start..]
    }
}

impl<T> DerefMut for AlignedRun<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.start..]
    }
}

/// Encoded rows.
#[derive(Debug, Clone)]
pub(super) enum RowData {
    F16(AlignedRun<f16>),
    F32(AlignedRun<f32>),
    Q8_0 { quants: AlignedRun<i8>, scales: AlignedRun<f16> },
}

/// Rows of one head: a ring of `room` places, with row `i` in place `i % room`. [`KvRows::new`]
/// reserves the memory, and pushing rows touches it. Rows more than `room` back are lost. The owner
/// tracks which rows are lost, and never reads them.
#[derive(Debug, Clone)]
pub struct KvRows {
    head_dim: usize,
    /// Elements from one row to the next.
    stride: usize,
    /// Number of places, at least 1.
    room: usize,
    /// Number of rows pushed, including lost rows.
    len: usize,
    data: RowData,
}

impl KvRows {
    /// Reserves places for `room` rows of `head_dim` elements, at least one.
    ///
    /// # Errors
    /// [`Error::Memory`] if the memory cannot be reserved.
    pub fn new(ty: KvType, head_dim: usize, room: usize) -> Result<Self> {
        let (stride, room) = (ty.padded(head_dim), room.max(1));
        let elements = room.checked_mul(stride);
        let data = match ty {
            KvType::F16 => RowData::F16(AlignedRun::new(elements)?),
            KvType::F32 => RowData::F32(AlignedRun::new(elements)?),
            KvType::Q8_0 => {
                RowData::Q8_0 { quants: AlignedRun::new(elements)?, scales: AlignedRun::new(elements.map(|n| n / 32))? }
            }
        };
        Ok(KvRows { head_dim, stride, room, len: 0, data })
    }

    /// Bytes that [`KvRows::new`] reserves: the rows, and a cache line to align each run of
    /// elements.
    pub fn bytes_of(ty: KvType, head_dim: usize, room: usize) -> u64 {
        let runs = match ty {
            KvType::F16 | KvType::F32 => 1,
            KvType::Q8_0 => 2,
        };
        (room.max(1) as u64).saturating_mul(ty.row_bytes(head_dim) as u64).saturating_add(runs * LINE as u64)
    }

    /// Number of places for rows.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Place of row `i`.
    pub(super) fn place(&self, i: usize) -> usize {
        i % self.room
    }

    /// Number of rows pushed, which is the position of the next row. At most [`KvRows::room()`] of
    /// them are held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements from one row to the next: `head_dim`, padded.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Bytes reserved.
    pub fn bytes(&self) -> u64 {
        match &self.data {
            RowData::F16(data) => data.bytes(),
            RowData::F32(data) => data.bytes(),
            RowData::Q8_0 { quants, scales } => quants.bytes() + scales.bytes(),
        }
    }

    /// Encoded rows.
    pub(super) fn data(&self) -> &RowData {
        &self.data
    }

    /// Prefetches the lines of some rows, even if they are not written yet.
    pub(super) fn prefetch(&self, rows: Range<usize>) {
        let start = self.place(rows.start) * self.stride;
        let elements = start..start + rows.len() * self.stride;
        match &self.data {
            RowData::F32(data) => data.prefetch(elements),
            RowData::F16(data) => data.prefetch(elements),
            RowData::Q8_0 { quants, scales } => {
                scales.prefetch(elements.start / 32..elements.end / 32);
                quants.prefetch(elements);
            }
        }
    }

    /// Encodes and appends one row of `head_dim` elements.
    ///
    /// # Panics
    /// If the length of `row` is not `head_dim`.
    pub fn push(&mut self, row: &[f32]) {
        let i = self.len;
        self.grow_to(i + 1);
        self.set(i, row);
    }

    /// Continues with row `n`. Later rows are dropped. Earlier rows that were never pushed count as
    /// lost.
    pub fn begin_at(&mut self, n: usize) {
        if n < self.room {
            self.truncate(n);
        }
        self.grow_to(n);
    }

    /// Extends the rows to `n`. Rows not pushed yet contain zeros, or older rows that are lost.
    fn grow_to(&mut self, n: usize) {
        self.len = n;
        self.fit();
    }

    /// Resizes the memory to the rows that are held.
    fn fit(&mut self) {
        let end = self.len.min(self.room) * self.stride;
        match &mut self.data {
            RowData::F32(data) => data.resize(end),
            RowData::F16(data) => data.resize(end),
            RowData::Q8_0 { quants, scales } => {
                quants.resize(end);
                scales.resize(end / 32);
            }
        }
    }

    /// Encodes `row`, `head_dim` elements, as row `i`.
    ///
    /// # Panics
    /// If row `i` does not exist, or the length of `row` is not `head_dim`.
    pub fn set(&mut self, i: usize, row: &[f32]) {
        assert_eq!(row.len(), self.head_dim);
        let at = self.place(i) * self.stride;
        match &mut self.data {
            RowData::F32(data) => data[at..][..row.len()].copy_from_slice(row),
            RowData::F16(data) => data[at..][..row.len()].convert_from_f32_slice(row),
            RowData::Q8_0 { quants, scales } => {
                let quants = quants[at..][..row.len()].chunks_mut(32);
                for ((block, quants), scale) in row.chunks(32).zip(quants).zip(&mut scales[at / 32..]) {
                    let top = block.iter().fold(0f32, |top, x| top.max(x.abs()));
                    *scale = f16::from_f32(top / 127.0);
                    let inverse = if scale.to_f32() == 0.0 { 0.0 } else { 1.0 / scale.to_f32() };
                    for (q, x) in quants.iter_mut().zip(block) {
                        *q = (x * inverse).round_ties_even() as i8;
                    }
                }
            }
        }
    }

    /// Decodes row `i` into `out`, `head_dim` elements.
    ///
    /// # Panics
    /// If row `i` does not exist, or the length of `out` is not `head_dim`.
    pub fn get(&self, i: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.head_dim);
        let at = self.place(i) * self.stride;
        match &self.data {
            RowData::F32(data) => out.copy_from_slice(&data[at..][..self.head_dim]),
            RowData::F16(data) => data[at..][..self.head_dim].convert_to_f32_slice(out),
            RowData::Q8_0 { quants, scales } => {
                for (j, (out, q)) in out.iter_mut().zip(&quants[at..]).enumerate() {
                    *out = f32::from(*q) * scales[(at + j) / 32].to_f32();
                }
            }
        }
    }

    /// Appends rows of `from`, which has the same type and width, from this length on up to `n`
    /// rows in all. Copies only rows that both rings have places for.
    ///
    /// # Panics
    /// If `from` has fewer rows, or another type.
    pub fn extend_to(&mut self, from: &Self, n: usize) {
        assert!(self.stride == from.stride && self.len <= n && n <= from.len, "rows of the same width");
        if n > self.room.min(from.room) || from.len > from.room {
            let first = self.len.max(from.len.saturating_sub(from.room)).max(n.saturating_sub(self.room));
            self.grow_to(n);
            (first..n).for_each(|i| self.copy_row(i, from, i));
            return;
        }
        let end = n * self.stride;
        match (&mut self.data, &from.data) {
            (RowData::F32(to), RowData::F32(from)) => to.extend_to(from, end),
            (RowData::F16(to), RowData::F16(from)) => to.extend_to(from, end),
            (RowData::Q8_0 { quants, scales }, RowData::Q8_0 { quants: from, scales: of }) => {
                quants.extend_to(from, end);
                scales.extend_to(of, end / 32);
            }
            _ => panic!("rows of another type"),
        }
        self.len = n;
    }

    /// Copies row `i` of `from`, which has the same type and width, to row `to`.
    fn copy_row(&mut self, to: usize, from: &Self, i: usize) {
        let (to, at, n) = (self.place(to) * self.stride, from.place(i) * self.stride, self.stride);
        match (&mut self.data, &from.data) {
            (RowData::F32(data), RowData::F32(from)) => data.copy_from(to, from, at, n),
            (RowData::F16(data), RowData::F16(from)) => data.copy_from(to, from, at, n),
            (RowData::Q8_0 { quants, scales }, RowData::Q8_0 { quants: from, scales: of }) => {
                quants.copy_from(to, from, at, n);
                scales.copy_from(to / 32, of, at / 32, n / 32);
            }
            _ => panic!("rows of another type"),
        }
    }

    /// Removes `count` rows from row `start` on, and moves later rows down.
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn remove(&mut self, start: usize, count: usize) {
        if self.len > self.room {
            // In a ring, a row may move to the place of a row that must still move.
            let before = self.clone();
            let held = (start + count).max(self.len - self.room)..self.len;
            held.for_each(|i| self.copy_row(i - count, &before, i));
            self.truncate(self.len - count);
            return;
        }
        let from = (start + count) * self.stride;
        let (to, end) = (start * self.stride, self.len * self.stride);
        match &mut self.data {
            RowData::F32(data) => data.copy_within(from..end, to),
            RowData::F16(data) => data.copy_within(from..end, to),
            RowData::Q8_0 { quants, scales } => {
                quants.copy_within(from..end, to);
                scales.copy_within(from / 32..end / 32, to / 32);
            }
        }
        self.truncate(self.len - count);
    }

    /// Keeps the first `n` rows.
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n);
        self.fit();
    }
}

impl Cpu {
    /// Drops the rows from `from` on, then appends `x`, `[tokens, heads.len() * head_dim]`, to
    /// every head's rows.
    ///
    /// # Panics
    /// If sizes disagree.
    pub fn push_rows(&self, heads: &mut [KvRows], from: usize, x: &[f32], row: usize) {
        let n = heads.len();
        let dim = row / n;
        let push = |head: usize, rows: &mut KvRows| {
            rows.truncate(from);
            for token in x.chunks_exact(row) {
                rows.push(&token[head * dim..][..dim]);
            }
        };
        if x.len() < PARALLEL_ELEMENTS || n == 1 {
            // The heads' lines are far apart in memory. Prefetching loads them together instead of
            // one after the other.
            heads.iter().for_each(|rows| rows.prefetch(from..from + x.len() / row));
            heads.iter_mut().enumerate().for_each(|(head, rows)| push(head, rows));
            return;
        }
        let mut heads: Vec<_> = heads.iter_mut().enumerate().collect();
        self.pool().for_each(&mut heads, |_, (head, rows)| push(*head, rows));
    }
}

#[cfg(test)]
mod tests;
