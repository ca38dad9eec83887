//! [`PagerState`]: which pieces are in memory. It decides what is read and what is dropped, and
//! does neither itself.

use std::{collections::VecDeque, ops::Range};

use super::{
    PagedTensor, ReadRows, kept_pieces,
    read_ahead::ReadAhead,
    tensor_pages::{PageRun, Presence, TensorPages},
};

/// Most pieces that leave the window for one read, as a limit of its time.
const MOST_EVICTIONS: usize = 1 << 16;
/// The kept pieces are chosen again after this many passes of one token.
const PASSES_PER_CHOICE: u32 = 16;

/// What to do about the pages of files.
#[derive(Debug, Default)]
pub(super) struct PageRequests {
    /// Pages to read for the announced product.
    pub needed: Vec<PageRun>,
    /// Pages to read for products that follow.
    pub ahead: Vec<PageRun>,
    /// Pages to drop.
    pub drops: Vec<PageRun>,
}

/// Reason of an announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Announced {
    /// A product reads the rows now.
    Now,
    /// A product will probably read the rows next.
    Soon,
}

/// A piece by its tensor and its index there.
#[derive(Debug, Clone, Copy)]
struct PieceIndex {
    tensor: u32,
    piece: u32,
}

/// The pieces of all matrices, and the window through which those that are not kept pass.
#[derive(Debug)]
pub(super) struct PagerState {
    /// In the order of their addresses.
    tensors: Vec<TensorPages>,
    /// Bytes of a page.
    page: usize,
    /// Most bytes in memory.
    budget: u64,
    /// Bytes of the budget that are not for kept pieces.
    window: u64,
    /// Pieces in memory that are not kept, in the order in which they leave. Some may have become
    /// kept or absent since.
    passing: VecDeque<PieceIndex>,
    /// Bytes in memory.
    present: u64,
    /// Bytes in memory that were not used since they were read.
    unused: u64,
    /// Bytes read from files.
    read: u64,
    ahead: ReadAhead,
    /// True if uses are counted: in passes of one token.
    counts: bool,
    /// Passes of one token.
    passes: u32,
}

/// A mapped file: the address of its map.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileBase {
    pub address: usize,
}

impl PagerState {
    /// Creates the state of tensors of `files`, none of whose pages is in memory.
    pub fn new(tensors: &[PagedTensor<'_>], files: &[FileBase], budget: u64, page: usize) -> Self {
        let tensor = |of: &PagedTensor<'_>| {
            let (address, len) = (of.data.as_ptr().addr(), of.data.len());
            let (file, base) =
                files.iter().enumerate().filter(|(_, file)| file.address <= address).max_by_key(|it| it.1.address)?;
            let start = address - base.address;
            Some(TensorPages::new(base.address, file, start..start + len, page, of.chosen))
        };
        let mut tensors: Vec<TensorPages> = tensors.iter().filter_map(tensor).collect();
        tensors.sort_by_key(|tensor| (tensor.address, std::cmp::Reverse(tensor.len)));
        tensors.dedup_by(|later, first| later.address < first.address + first.len);
        let all: u64 = tensors.iter().map(TensorPages::all_bytes).sum();
        let whole = tensors.iter().filter(|tensor| !tensor.chosen);
        let largest = whole.map(TensorPages::all_bytes).max().unwrap_or(0);
        // Room for the absent bytes of the largest matrix while those of the one before leave.
        let absent = (1.0 - budget as f64 / all.max(1) as f64).max(0.0) * 2.0 * largest as f64;
        let window = (absent as u64).min(budget / 4).max(budget / 8);
        let ahead = ReadAhead::new(tensors.len());
        let passing = VecDeque::new();
        let [present, unused, read] = [0; 3];
        let mut new = PagerState {
            tensors,
            page,
            budget,
            window,
            passing,
            present,
            unused,
            read,
            ahead,
            counts: false,
            passes: 0,
        };
        new.choose();
        new
    }

    /// Bytes in memory.
    pub fn present(&self) -> u64 {
        self.present
    }

    /// Bytes read from files so far.
    pub fn read(&self) -> u64 {
        self.read
    }

    /// Begins a pass. Uses are counted if it has one token: a prompt uses nearly everything.
    pub fn begin_pass(&mut self, single: bool) {
        self.counts = single;
        self.ahead.begin_pass(single);
        if single {
            self.passes += 1;
            self.tensors.iter_mut().for_each(|tensor| tensor.counts.next_token());
            if self.passes.is_power_of_two() && self.passes > 1 || self.passes.is_multiple_of(PASSES_PER_CHOICE) {
                self.choose();
            }
        }
    }

    /// Announces that rows will be read. Returns the pages to read and to drop.
    pub fn announce<'r>(&mut self, reads: impl Iterator<Item = ReadRows<'r>>, when: Announced) -> PageRequests {
        let mut requests = PageRequests::default();
        for ReadRows { weight, rows } in reads {
            let Some((tensor, bytes)) = self.find(weight.data()) else { continue };
            let Some(rows) = rows else {
                let pieces = self.tensors[tensor].pieces_of(bytes);
                pieces.for_each(|piece| self.touch(tensor, piece, when, &mut requests.needed));
                if when == Announced::Now && !self.tensors[tensor].chosen {
                    self.ahead.note(tensor);
                }
                continue;
            };
            self.split(tensor);
            let mut done = 0..0;
            for row in rows {
                let first = bytes.start + *row as usize * weight.row_bytes();
                let pieces = self.tensors[tensor].pieces_of(first..first + weight.row_bytes());
                // Neighbouring rows share pieces.
                let from = if pieces.start >= done.start { pieces.start.max(done.end) } else { pieces.start };
                (from..pieces.end).for_each(|piece| self.touch(tensor, piece, when, &mut requests.needed));
                done = pieces;
            }
        }
        self.read_ahead(&mut requests.ahead);
        self.evict(&mut requests.drops);
        requests
    }

    /// The tensor that contains `data`, and the range of `data` in it.
    fn find(&self, data: &[u8]) -> Option<(usize, Range<usize>)> {
        let address = data.as_ptr().addr();
        let at = self.tensors.partition_point(|tensor| tensor.address <= address).checked_sub(1)?;
        let start = address - self.tensors[at].address;
        let end = start + data.len();
        (end <= self.tensors[at].len).then_some((at, start..end))
    }

    /// Divides a tensor for reads of single rows.
    fn split(&mut self, tensor: usize) {
        let of = &mut self.tensors[tensor];
        if of.split_pieces(self.page) {
            let passing = (0..).zip(&of.pieces).filter(|(_, piece)| !piece.kept && piece.presence != Presence::Absent);
            self.passing.extend(passing.map(|(piece, _)| PieceIndex { tensor: tensor as u32, piece }));
        }
    }

    /// Notes that a piece is announced, and reads it into `runs` if it is absent.
    fn touch(&mut self, tensor: usize, piece: usize, when: Announced, runs: &mut Vec<PageRun>) {
        let of = &mut self.tensors[tensor];
        let (bytes, now) = (of.bytes(piece), when == Announced::Now);
        if now && self.counts {
            of.counts.add(piece as u32);
        }
        let state = &mut of.pieces[piece];
        match state.presence {
            Presence::Absent => {
                state.presence = if now { Presence::Used } else { Presence::Ahead };
                if !state.kept {
                    self.passing.push_back(PieceIndex { tensor: tensor as u32, piece: piece as u32 });
                }
                self.present += bytes;
                self.read += bytes;
                self.unused += if now { 0 } else { bytes };
                of.run(piece).push_to(runs);
            }
            Presence::Ahead if now => {
                state.presence = Presence::Used;
                self.unused -= bytes;
                // The earlier request may still wait for its turn.
                of.run(piece).push_to(runs);
            }
            Presence::Used if now => state.presence = Presence::UsedAgain,
            _ => {}
        }
    }

    /// Requests pieces of the matrices that are expected next, up to half the window.
    fn read_ahead(&mut self, runs: &mut Vec<PageRun>) {
        while self.unused < self.window / 2 {
            let Some((tensor, from)) = self.ahead.next() else { return };
            let pieces = self.tensors[tensor].pieces.len();
            let mut piece = from;
            while piece < pieces && self.unused < self.window / 2 {
                self.touch(tensor, piece, Announced::Soon, runs);
                piece += 1;
            }
            self.ahead.advance(piece, pieces);
        }
    }

    /// Drops the oldest pieces of the window until the rest is within the budget. Pieces that were
    /// used again since stay for another round.
    fn evict(&mut self, drops: &mut Vec<PageRun>) {
        for _ in 0..MOST_EVICTIONS {
            if self.present <= self.budget {
                return;
            }
            let Some(index) = self.passing.pop_front() else { return };
            let tensor = &mut self.tensors[index.tensor as usize];
            let piece = index.piece as usize;
            let bytes = tensor.bytes(piece);
            let state = &mut tensor.pieces[piece];
            match state.presence {
                _ if state.kept => {}
                Presence::Absent => {}
                Presence::UsedAgain => {
                    state.presence = Presence::Used;
                    self.passing.push_back(index);
                }
                Presence::Ahead | Presence::Used => {
                    self.unused -= if state.presence == Presence::Ahead { bytes } else { 0 };
                    state.presence = Presence::Absent;
                    self.present -= bytes;
                    tensor.run(piece).push_to(drops);
                }
            }
        }
    }

    /// Chooses the kept pieces. Pieces in memory that are not kept any more enter the window.
    fn choose(&mut self) {
        let kept: Vec<Vec<bool>> =
            self.tensors.iter().map(|tensor| tensor.pieces.iter().map(|piece| piece.kept).collect()).collect();
        kept_pieces::choose(&mut self.tensors, self.budget - self.window);
        for ((at, tensor), kept) in (0..).zip(&self.tensors).zip(kept) {
            for ((piece, state), kept) in (0..).zip(&tensor.pieces).zip(kept) {
                if kept && !state.kept && state.presence != Presence::Absent {
                    self.passing.push_back(PieceIndex { tensor: at, piece });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        format::{Bytes, Matrix},
        quant::TensorType,
    };

    const PAGE: usize = 4096;
    const MATRIX: usize = 1 << 20;
    /// Floats of a row of half a page.
    const COLS: usize = PAGE / 8;

    /// Matrices of one file, which begins with the first.
    fn matrices(n: usize) -> Vec<Matrix> {
        // The bytes begin at a page, as a map does.
        let file = Bytes::new(crate::format::anonymous(n * MATRIX, "a file").unwrap());
        let data = |at: usize| file.slice(at * MATRIX..(at + 1) * MATRIX).unwrap();
        (0..n).map(|at| Matrix::new(TensorType::F32, MATRIX / PAGE * 2, COLS, data(at)).unwrap()).collect()
    }

    fn state(matrices: &[Matrix], chosen: bool, budget: usize) -> PagerState {
        let data: Vec<Bytes> = matrices.iter().map(|it| it.bytes().clone()).collect();
        let tensors: Vec<PagedTensor<'_>> = data.iter().map(|data| PagedTensor { data, chosen }).collect();
        let base = FileBase { address: matrices[0].data().as_ptr().addr() };
        PagerState::new(&tensors, &[base], budget as u64, PAGE)
    }

    fn bytes(runs: &[PageRun]) -> usize {
        runs.iter().map(PageRun::len).sum()
    }

    #[test]
    fn matrices_read_in_a_cycle_keep_what_fits_and_read_the_rest_ahead() {
        let matrices = matrices(8);
        let budget = 6 * MATRIX;
        let mut state = state(&matrices, false, budget);
        let (mut before, mut late) = (0, 0);
        for pass in 0..20 {
            state.begin_pass(true);
            before = state.read();
            late = 0;
            for (at, weight) in matrices.iter().enumerate() {
                let tensor = &state.tensors[at];
                let absent = |piece: &usize| tensor.pieces[*piece].presence == Presence::Absent;
                late += (0..tensor.pieces.len()).filter(absent).map(|piece| tensor.bytes(piece)).sum::<u64>();
                state.announce([ReadRows { weight, rows: None }].into_iter(), Announced::Now);
                assert!(state.present() <= budget as u64, "{pass}");
            }
        }
        let read = state.read() - before;
        // A cycle through the system's cache would read all 8 matrices.
        assert!(read <= 4 * MATRIX as u64, "{read}");
        assert!(late * 4 <= read, "{late} of {read} bytes were not read ahead");
    }

    #[test]
    fn rows_that_fire_often_stay_in_memory() {
        let matrices = matrices(4);
        let mut state = state(&matrices, false, MATRIX);
        let rows = matrices[0].rows() as u32;
        let (mut needed, mut used) = (0, 0);
        for pass in 0..200u32 {
            state.begin_pass(true);
            for (at, weight) in (0..).zip(&matrices) {
                // A tenth of the rows fires at every token, others in turn.
                let often = (0..rows / 10).map(|row| row * 10);
                let rare = (0..8).map(|k| (pass * 7919 + at * 31 + k * 977) % rows);
                let mut fires: Vec<u32> = often.chain(rare).collect();
                fires.sort_unstable();
                fires.dedup();
                let read = ReadRows { weight, rows: Some(&fires) };
                let requests = state.announce([read].into_iter(), Announced::Now);
                if pass >= 100 {
                    needed += bytes(&requests.needed);
                    used += fires.len() * PAGE / 2;
                }
                assert!(state.present() <= MATRIX as u64 + (fires.len() * PAGE) as u64, "{pass}");
            }
        }
        assert!(needed * 4 < used, "{needed} of {used} bytes were absent");
    }

    #[test]
    fn prompts_are_not_counted_and_foreign_bytes_are_left_alone() {
        let all = matrices(3);
        let mut state = state(&all[..2], true, MATRIX);
        state.begin_pass(false);
        let read = |weight| [ReadRows { weight, rows: None }].into_iter();
        assert!(bytes(&state.announce(read(&all[0]), Announced::Soon).needed) == MATRIX && state.unused > 0);
        let again = state.announce(read(&all[0]), Announced::Now);
        assert_eq!((bytes(&again.needed), bytes(&again.ahead), state.unused), (MATRIX, 0, 0));
        assert!((0..4).all(|piece| state.tensors[0].counts.count(piece) == 0.0));
        assert_eq!(bytes(&state.announce(read(&all[2]), Announced::Now).needed), 0);
        assert_eq!(state.read(), MATRIX as u64);
    }
}
