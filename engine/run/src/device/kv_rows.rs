//! Layout of the rows of keys and values on a device.

use std::ops::Range;

use half::f16;
use thermocline_shaders::head_pitch;

use crate::runtime::KvType;
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_model::AttentionConfig;

/// The layout of a layer's keys and values on the device. Pages hold whole heads:
/// `[heads, room, head_pitch]` of keys, and the same of values. A page is one binding, which
/// drivers limit to 2 GiB or less, so a long context needs several pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceRows {
    /// Elements that precede the latent in RAM and follow it on the device.
    pub rotated: usize,
    /// Number of positions.
    pub room: usize,
    /// Heads per page; the last page may have fewer.
    page_heads: usize,
    keys: RowLayout,
    /// Has no heads if keys are also values.
    values: RowLayout,
}

/// The layout of keys, or of values: rows of `head_pitch(dim)` elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowLayout {
    pub heads: usize,
    /// Elements per row.
    pub dim: usize,
    /// Bytes per element.
    pub bytes: usize,
}

/// Consecutive rows of one head's keys, or of its values.
#[derive(Debug)]
pub(super) struct KvRowRun {
    pub values: bool,
    pub head: usize,
    pub rows: Range<usize>,
}

/// Bytes of one element on the device.
fn element_bytes(ty: KvType) -> usize {
    if ty.on_gpu() == KvType::F32 { 4 } else { 2 }
}

impl DeviceRows {
    /// Makes the layout of `room` positions of an attention layer of this `shape`, in one page.
    pub fn new(shape: &AttentionConfig, room: usize, ty: KvType) -> Self {
        let rows = |(heads, dim)| RowLayout { heads, dim, bytes: element_bytes(ty) };
        let [keys, values] = shape.cached_heads().map(rows);
        DeviceRows { rotated: shape.latent_rope_dim(), room, page_heads: keys.heads.max(1), keys, values }
    }

    /// Divides the layout into as few pages as bindings of `most` bytes allow, each with about as
    /// many heads.
    ///
    /// # Errors
    /// [`Error::Memory`] if the keys or the values of a single head exceed `most`.
    pub fn in_pages(self, most: u64) -> Result<Self> {
        let wanted = self.keys.head_bytes(self.room).max(self.values.head_bytes(self.room));
        let fit = usize::try_from(most / wanted.max(1)).unwrap_or(usize::MAX);
        if fit == 0 {
            return Err(Error::memory(ScarceMemory::KvCache, "KV cache of one head", wanted, most));
        }
        let pages = self.keys.heads.div_ceil(fit).max(1);
        Ok(DeviceRows { page_heads: self.keys.heads.div_ceil(pages).max(1), ..self })
    }

    /// The heads of each page.
    pub fn pages(self) -> impl Iterator<Item = Range<usize>> {
        let heads = self.keys.heads;
        (0..heads).step_by(self.page_heads).map(move |first| first..heads.min(first + self.page_heads))
    }

    /// Index of the page that holds a head.
    pub fn page_of(&self, head: usize) -> usize {
        head / self.page_heads
    }

    /// The layout of values (if `values`) or of keys.
    pub fn of(&self, values: bool) -> RowLayout {
        if values { self.values } else { self.keys }
    }

    /// A buffer for one row of keys or values.
    pub fn row(&self) -> Vec<f32> {
        vec![0.0; self.keys.dim.max(self.values.dim)]
    }

    /// Bytes of all keys and all values.
    pub fn keys_and_values(self) -> u64 {
        let all = |of: RowLayout| of.head_bytes(self.room).saturating_mul(of.heads as u64);
        all(self.keys).saturating_add(all(self.values))
    }

    /// Byte offset within its page at which a row of a head begins.
    pub fn offset(&self, values: bool, head: usize, row: usize) -> u64 {
        (head % self.page_heads * self.room + row % self.room) as u64 * self.of(values).row_bytes() as u64
    }

    /// End of the contiguous run of rows that begins at `start`, at most `end`.
    fn run_end(self, start: usize, end: usize) -> usize {
        end.min(start.saturating_add(self.room - start % self.room))
    }

    /// Splits the part of `rows` that both rings hold into pieces that wrap in neither ring.
    pub fn pieces(self, other: &Self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (other, end) = (*other, rows.end);
        let mut start = rows.start.max(end.saturating_sub(self.room.min(other.room)));
        std::iter::from_fn(move || {
            let piece = start..other.run_end(start, self.run_end(start, end));
            start = piece.end;
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// Splits the rows `all` of every head's keys and values into loads of `room` bytes.
    pub fn loads(self, all: Range<usize>, room: u64) -> Result<Vec<Vec<KvRowRun>>> {
        let wanted = self.keys.row_bytes().max(self.values.row_bytes()) as u64;
        if room < wanted {
            return Err(Error::memory(ScarceMemory::KvCache, "staging for one row of the KV cache", wanted, room));
        }
        let most = (room / wanted) as usize;
        let (mut loads, mut load, mut left) = (Vec::new(), Vec::new(), most);
        for (values, heads) in [(false, self.keys.heads), (true, self.values.heads)] {
            for head in 0..heads {
                let mut start = all.start;
                while start < all.end {
                    let end = self.run_end(start, all.end.min(start + left));
                    left -= end - start;
                    load.push(KvRowRun { values, head, rows: start..end });
                    start = end;
                    if left == 0 {
                        loads.push(std::mem::take(&mut load));
                        left = most;
                    }
                }
            }
        }
        loads.extend((!load.is_empty()).then_some(load));
        Ok(loads)
    }
}

impl RowLayout {
    /// Bytes between the starts of consecutive rows.
    pub fn row_bytes(self) -> usize {
        head_pitch(self.dim as u32) as usize * self.bytes
    }

    /// Bytes of a head's rows, with room for `room` positions.
    pub fn head_bytes(self, room: usize) -> u64 {
        (self.row_bytes() as u64).saturating_mul(room as u64)
    }

    /// Appends a row's bytes, including the zeros up to its pitch.
    pub fn encode(self, row: &[f32], into: &mut Vec<u8>) {
        let end = into.len() + self.row_bytes();
        if self.bytes == 4 {
            into.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        } else {
            into.extend(row.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()));
        }
        into.resize(end, 0);
    }

    /// Decodes a row.
    pub fn decode(self, from: &[u8], row: &mut [f32]) {
        for (x, bytes) in row.iter_mut().zip(from.chunks_exact(self.bytes)) {
            *x = match *bytes {
                [a, b] => f16::from_le_bytes([a, b]).to_f32(),
                [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
                _ => 0.0,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_loads_hold_every_row_once_within_the_ring() {
        let of = |heads, dim| RowLayout { heads, dim, bytes: 2 };
        let rows = DeviceRows { rotated: 0, room: 50, page_heads: 3, keys: of(3, 6), values: of(2, 4) };
        for room in [16, 40, 16 * 7, 1 << 20] {
            for len in [0, 1, 13] {
                let mut seen = Vec::new();
                for load in rows.loads(0..len, room).unwrap() {
                    let bytes: usize = load.iter().map(|run| run.rows.len() * rows.of(run.values).row_bytes()).sum();
                    assert!(bytes > 0 && bytes as u64 <= room);
                    seen.extend(load.into_iter().flat_map(|run| run.rows.map(move |row| (run.values, run.head, row))));
                }
                let all = [false, true].into_iter();
                let all = all.flat_map(|values| {
                    let heads = 0..rows.of(values).heads;
                    heads.flat_map(move |head| (0..len).map(move |row| (values, head, row)))
                });
                assert_eq!(seen, all.collect::<Vec<_>>(), "{len} rows, {room} bytes");
            }
        }
        assert!(matches!(rows.loads(0..1, 15), Err(Error::Memory { wanted: 16, available: 15, .. })));
    }

    #[test]
    fn pieces_of_rings_wrap_in_neither_and_are_the_newest_rows() {
        let of = RowLayout { heads: 1, dim: 8, bytes: 2 };
        let ring = |room| DeviceRows { rotated: 0, room, page_heads: 1, keys: of, values: of };
        for (to, from) in [(8, 8), (8, 12), (12, 8), (50, 8), (50, 60)] {
            for (start, end) in (0..40).flat_map(|start| (start..40).map(move |end| (start, end))) {
                let pieces: Vec<_> = ring(to).pieces(&ring(from), start..end).collect();
                let rows: Vec<usize> = pieces.iter().flat_map(|piece| piece.clone()).collect();
                let wanted: Vec<usize> = (start.max(end.saturating_sub(to.min(from)))..end).collect();
                assert_eq!(rows, wanted, "{start}..{end} from {from} to {to}");
                for (room, piece) in [to, from].into_iter().flat_map(|room| pieces.iter().map(move |it| (room, it))) {
                    assert_eq!(piece.start / room, (piece.end - 1) / room, "{piece:?} of {room}");
                }
            }
        }
    }

    #[test]
    fn pages_hold_whole_heads_within_a_binding() {
        let of = |heads, dim| RowLayout { heads, dim, bytes: 2 };
        let rows =
            |heads| DeviceRows { rotated: 0, room: 10, page_heads: heads, keys: of(heads, 8), values: of(heads, 4) };
        // A head's keys take 160 bytes.
        for (heads, most, sizes) in [
            (8, 1280, &[8][..]),
            (8, 1279, &[4, 4]),
            (8, 480, &[3, 3, 2]),
            (5, 800, &[5]),
            (5, 500, &[3, 2]),
            (3, 160, &[1, 1, 1]),
        ] {
            let rows = rows(heads).in_pages(most).unwrap();
            let pages: Vec<_> = rows.pages().collect();
            assert_eq!(pages.iter().map(Range::len).collect::<Vec<_>>(), sizes, "{heads} heads in {most} bytes");
            for head in 0..heads {
                let page = &pages[rows.page_of(head)];
                assert!(page.contains(&head), "{head} of {pages:?}");
                let at = ((head - page.start) * 10 + 3) as u64;
                assert_eq!([false, true].map(|values| rows.offset(values, head, 13)), [at * 16, at * 8]);
            }
        }
        let error = rows(8).in_pages(159).unwrap_err();
        assert!(matches!(error, Error::Memory { wanted: 160, available: 159, .. }), "{error}");
    }
}
