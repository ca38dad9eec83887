//! [`PagerState`]: which pieces are in memory. It decides what is read and what is dropped, and
//! does neither itself.

use std::{collections::VecDeque, ops::Range};

use super::{
    PagedAccess, PagedTensor, ReadRows, kept_pieces,
    read_ahead::ReadAhead,
    tensor_pages::{PageRun, Presence, TensorPages, WHOLE_PIECE},
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
    /// Pages that the announced product needs, and that were requested before.
    pub announced: Vec<PageRun>,
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
    /// Bytes of the budget that are not for kept pieces, by the last choice of these.
    window: u64,
    /// Pieces in memory that are not kept, in the order in which they leave. Some may have become
    /// kept or absent since.
    passing: VecDeque<PieceIndex>,
    /// Bytes in memory.
    present: u64,
    /// Bytes in memory that were not used since they were read.
    unused: u64,
    /// Bytes of the last product's pieces that are not kept.
    in_use: u64,
    /// Bytes read from files.
    read: u64,
    /// Read requests to the system.
    requests: u64,
    ahead: ReadAhead,
    /// True if uses are counted: in passes of one token.
    counts: bool,
    /// Passes of one token.
    passes: u32,
    /// Number of the current pass.
    pass: u16,
}

/// The map of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileBase {
    pub address: usize,
    pub len: usize,
}

/// Bytes of a file, by their addresses.
struct TensorBytes {
    start: usize,
    end: usize,
    access: PagedAccess,
}

impl TensorBytes {
    /// The bytes of `tensors` in the order of their addresses, each once. The experts of a matrix
    /// are joined, because a page at a border belongs to two of them.
    fn of(tensors: &[PagedTensor]) -> Vec<TensorBytes> {
        let bytes = |of: &PagedTensor| {
            let start = of.data.as_ptr().addr();
            TensorBytes { start, end: start + of.data.len(), access: of.access }
        };
        let mut all: Vec<TensorBytes> = tensors.iter().map(bytes).collect();
        all.sort_by_key(|it| (it.start, std::cmp::Reverse(it.end)));
        all.dedup_by(|later, first| {
            let of_experts = later.access == PagedAccess::Experts && first.access == PagedAccess::Experts;
            let is_joined = later.start < first.end || (later.start == first.end && of_experts);
            if later.start < first.end && later.access == PagedAccess::Matrix {
                // A head that is also the table of embeddings is read whole.
                first.access = PagedAccess::Matrix;
            }
            first.end = if is_joined { first.end.max(later.end) } else { first.end };
            is_joined
        });
        all
    }
}

impl PagerState {
    /// Creates the state of tensors of `files`. Pages of kept pieces may be in memory, and
    /// [`PagerState::absent`] must be dropped.
    pub fn new(tensors: &[PagedTensor], files: &[FileBase], budget: u64, page: usize) -> Self {
        let tensor = |TensorBytes { start, end, access }| {
            let contains = |file: &FileBase| file.address <= start && end <= file.address + file.len;
            let file = files.iter().position(contains)?;
            let address = files[file].address;
            Some(TensorPages::new(address, file, start - address..end - address, page, access))
        };
        let tensors: Vec<TensorPages> = TensorBytes::of(tensors).into_iter().filter_map(tensor).collect();
        let ahead = ReadAhead::new(tensors.len());
        let passing = VecDeque::new();
        let [window, present, unused, in_use, read, requests] = [0; 6];
        let mut new = PagerState {
            tensors,
            page,
            budget,
            window,
            passing,
            present,
            unused,
            in_use,
            read,
            requests,
            ahead,
            counts: false,
            passes: 0,
            pass: 1,
        };
        new.choose();
        for tensor in &mut new.tensors {
            for piece in (0..tensor.pieces.len()).filter(|piece| tensor.pieces[*piece].kept).collect::<Vec<_>>() {
                tensor.pieces[piece].presence = Presence::Unknown;
                new.present += tensor.bytes(piece);
            }
        }
        new
    }

    /// The pages of `within` that are not in memory as far as this state knows. They include the
    /// pages outside the tensors.
    pub fn absent(&self, within: PageRun) -> Vec<PageRun> {
        let (mut runs, mut at) = (Vec::new(), within.start);
        let mut to = |end: usize, next: usize| {
            if at < end {
                PageRun { start: at, end, ..within }.push_to(&mut runs);
            }
            at = at.max(next);
        };
        for tensor in &self.tensors {
            let first = within.start.saturating_sub(tensor.run(0).start) / tensor.piece;
            let pieces = (first..tensor.pieces.len()).map(|piece| (tensor.run(piece), tensor.pieces[piece].presence));
            let near = pieces.take_while(|(run, _)| run.file == within.file && run.start < within.end);
            let present = near.filter(|(_, presence)| *presence != Presence::Absent);
            present.for_each(|(run, _)| to(run.start.min(within.end), run.end));
        }
        to(within.end, within.end);
        runs
    }

    /// Notes that pages in memory may have been dropped. Their next use requests them again.
    pub fn doubt(&mut self) {
        let pieces = self.tensors.iter_mut().flat_map(|tensor| &mut tensor.pieces);
        let present = pieces.filter(|piece| piece.presence != Presence::Absent);
        present.for_each(|piece| piece.presence = Presence::Unknown);
        self.unused = 0;
    }

    /// Bytes of all tensors.
    pub fn all_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.len as u64).sum()
    }

    /// Bytes in memory.
    pub fn present(&self) -> u64 {
        self.present
    }

    /// Bytes read from files so far.
    pub fn read(&self) -> u64 {
        self.read
    }

    /// Read requests to the system so far. Each is for consecutive pages.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Begins a pass. Uses are counted if it has one token: a prompt uses nearly everything.
    pub fn begin_pass(&mut self, single: bool) {
        self.counts = single;
        self.pass = self.pass.wrapping_add(1);
        self.ahead.begin_pass(single);
        // The first pass shows which tensors are in use.
        let mut is_due = self.passes == 0 && self.tensors.iter().any(|tensor| tensor.used);
        if single {
            self.passes += 1;
            self.tensors.iter_mut().for_each(|tensor| tensor.counts.next_token());
            is_due |= self.passes.is_power_of_two() && self.passes > 1;
            is_due |= self.passes.is_multiple_of(PASSES_PER_CHOICE);
        }
        if is_due {
            self.choose();
        }
    }

    /// Announces that rows will be read. Returns the pages to read and to drop.
    pub fn announce<'r>(&mut self, reads: impl Iterator<Item = ReadRows<'r>>, when: Announced) -> PageRequests {
        let mut requests = PageRequests::default();
        if when == Announced::Now {
            self.in_use = 0;
        }
        for ReadRows { weight, rows } in reads {
            let Some((tensor, bytes)) = self.find(weight.data()) else { continue };
            let Some(rows) = rows else {
                let pieces = self.tensors[tensor].pieces_of(bytes);
                pieces.for_each(|piece| self.need(tensor, piece, when, &mut requests));
                if when == Announced::Now && self.tensors[tensor].access == PagedAccess::Matrix {
                    self.ahead.note(tensor);
                }
                continue;
            };
            self.split(tensor, weight.stride());
            let mut done = 0..0;
            for row in rows {
                // The other rows of the record are read next.
                let record = weight.record(bytes.start, *row as usize);
                let pieces = self.tensors[tensor].pieces_of(record);
                // Neighbouring rows share pieces.
                let from = if pieces.start >= done.start { pieces.start.max(done.end) } else { pieces.start };
                (from..pieces.end).for_each(|piece| self.need(tensor, piece, when, &mut requests));
                done = pieces;
            }
        }
        self.read_ahead(&mut requests.ahead);
        self.evict(&mut requests.drops);
        requests
    }

    /// True if `data` is in memory as far as this state knows, or is not in a tensor.
    pub fn is_present(&self, data: &[u8]) -> bool {
        let Some((tensor, bytes)) = self.find(data) else { return true };
        let tensor = &self.tensors[tensor];
        tensor.pieces_of(bytes).all(|piece| tensor.pieces[piece].presence != Presence::Absent)
    }

    /// The tensor that contains `data`, and the range of `data` in it.
    fn find(&self, data: &[u8]) -> Option<(usize, Range<usize>)> {
        let address = data.as_ptr().addr();
        let at = self.tensors.partition_point(|tensor| tensor.address <= address).checked_sub(1)?;
        let start = address - self.tensors[at].address;
        let end = start + data.len();
        (end <= self.tensors[at].len).then_some((at, start..end))
    }

    /// Divides a tensor for reads of single records.
    fn split(&mut self, tensor: usize, record: usize) {
        let of = &mut self.tensors[tensor];
        if of.split_pieces(self.page, record) {
            let passing = (0..).zip(&of.pieces).filter(|(_, piece)| !piece.kept && piece.presence != Presence::Absent);
            self.passing.extend(passing.map(|(piece, _)| PieceIndex { tensor: tensor as u32, piece }));
        }
    }

    /// Notes that a product reads a piece, and requests it if it is absent.
    fn need(&mut self, tensor: usize, piece: usize, when: Announced, requests: &mut PageRequests) {
        let was_ahead = self.tensors[tensor].pieces[piece].presence == Presence::Ahead;
        if was_ahead && when == Announced::Now {
            self.tensors[tensor].run(piece).push_to(&mut requests.announced);
        }
        self.touch(tensor, piece, when, &mut requests.needed);
    }

    /// Notes that a piece is announced, and puts it into `runs` if it is absent. Several products
    /// of a pass that read the piece count as one use.
    fn touch(&mut self, tensor: usize, piece: usize, when: Announced, runs: &mut Vec<PageRun>) {
        let of = &mut self.tensors[tensor];
        let (bytes, now, begun) = (of.bytes(piece), when == Announced::Now, runs.len());
        let state = &mut of.pieces[piece];
        let is_new_use = now && std::mem::replace(&mut state.pass, self.pass) != self.pass;
        if is_new_use && self.counts {
            of.counts.add(piece as u32);
        }
        of.used |= now;
        self.in_use += if now && !state.kept { bytes } else { 0 };
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
                self.requests += (runs.len() - begun) as u64;
            }
            Presence::Unknown => {
                state.presence = if now { Presence::Used } else { Presence::Ahead };
                self.read += bytes;
                self.unused += if now { 0 } else { bytes };
                of.run(piece).push_to(runs);
                self.requests += (runs.len() - begun) as u64;
            }
            Presence::Ahead if now => {
                state.presence = Presence::Used;
                self.unused -= bytes;
            }
            Presence::Used if is_new_use => state.presence = Presence::UsedAgain,
            _ => {}
        }
    }

    /// Requests pieces of the matrices that are expected next, up to half the window. All but one
    /// leave room for the product's own pieces, which might be dropped before it reads them.
    fn read_ahead(&mut self, runs: &mut Vec<PageRun>) {
        let room = self.window.saturating_sub(self.in_use).max(WHOLE_PIECE as u64);
        let most = room.min(self.window / 2);
        while self.unused < most {
            let Some((tensor, from)) = self.ahead.next() else { return };
            let pieces = self.tensors[tensor].pieces.len();
            let mut piece = from;
            while piece < pieces && self.unused < most {
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
                Presence::Ahead | Presence::Used | Presence::Unknown => {
                    self.unused -= if state.presence == Presence::Ahead { bytes } else { 0 };
                    state.presence = Presence::Absent;
                    self.present -= bytes;
                    let own = tensor.own_run(piece, self.page);
                    if own.len() > 0 {
                        own.push_to(drops);
                    }
                }
            }
        }
    }

    /// Bytes for pieces that pass through: room for the absent bytes of the largest matrix while
    /// those of the one before leave. Rows and experts that a token chooses need more, because they
    /// stay in the window until they were used often enough to be kept.
    ///
    /// Tensors that no pass has read do not count. They may be in a GPU's memory.
    fn window(&self) -> u64 {
        let is_known = self.tensors.iter().any(|tensor| tensor.used);
        let used = || self.tensors.iter().filter(|tensor| tensor.used || !is_known);
        let all: u64 = used().map(TensorPages::all_bytes).sum();
        let largest =
            used().filter(|tensor| tensor.access == PagedAccess::Matrix).map(TensorPages::all_bytes).max().unwrap_or(0);
        let absent = (1.0 - self.budget as f64 / all.max(1) as f64).max(0.0) * 2.0 * largest as f64;
        let least = if used().any(TensorPages::is_chosen) { self.budget / 8 } else { 0 };
        (absent as u64).min(self.budget / 4).max(least)
    }

    /// Chooses the kept pieces. Pieces in memory that are not kept any more enter the window.
    fn choose(&mut self) {
        self.window = self.window();
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
        format::{Bytes, Matrix, RecordPart},
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

    fn state(matrices: &[Matrix], access: PagedAccess, budget: usize) -> PagerState {
        let tensors = matrices.iter().map(|it| PagedTensor { data: it.bytes().clone(), access });
        let tensors: Vec<PagedTensor> = tensors.collect();
        let base = FileBase { address: matrices[0].data().as_ptr().addr(), len: matrices.len() * MATRIX };
        PagerState::new(&tensors, &[base], budget as u64, PAGE)
    }

    fn bytes(runs: &[PageRun]) -> usize {
        runs.iter().map(PageRun::len).sum()
    }

    #[test]
    fn matrices_read_in_a_cycle_keep_what_fits_and_read_the_rest_ahead() {
        let matrices = matrices(8);
        let budget = 6 * MATRIX;
        let mut state = state(&matrices, PagedAccess::Matrix, budget);
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
        // A cycle through the system's cache would read all 8 matrices. 2 do not fit, and their
        // window takes a half.
        assert!(state.window <= (MATRIX / 2) as u64 && read <= (MATRIX * 5 / 2) as u64, "{read}");
        assert!(late * 4 <= read, "{late} of {read} bytes were not read ahead");
    }

    #[test]
    fn rows_that_fire_often_stay_in_memory() {
        let matrices = matrices(4);
        let mut state = state(&matrices, PagedAccess::Matrix, MATRIX);
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
    fn rows_of_a_table_do_not_enlarge_the_window() {
        let matrices = matrices(8);
        let tensor = |weight: &Matrix, access| PagedTensor { data: weight.bytes().clone(), access };
        let mut tensors: Vec<_> = matrices[1..].iter().map(|weight| tensor(weight, PagedAccess::Matrix)).collect();
        tensors.push(tensor(&matrices[0], PagedAccess::Table));
        let base = FileBase { address: matrices[0].data().as_ptr().addr(), len: 8 * MATRIX };
        let mut state = PagerState::new(&tensors, &[base], 7 * MATRIX as u64 - 8192, PAGE);
        for _ in 0..8 {
            state.begin_pass(true);
            state.announce([ReadRows { weight: &matrices[0], rows: Some(&[7]) }].into_iter(), Announced::Now);
            matrices[1..].iter().for_each(|weight| {
                state.announce([ReadRows { weight, rows: None }].into_iter(), Announced::Now);
            });
        }
        assert!(state.window < (MATRIX / 2) as u64, "{}", state.window);
        let rows = state.tensors[0].pieces.iter().filter(|piece| piece.presence != Presence::Absent).count();
        assert!(rows <= 3, "{rows} pages of the table are in memory");
        // Rows of other matrices need a larger one.
        state.announce([ReadRows { weight: &matrices[1], rows: Some(&[7]) }].into_iter(), Announced::Now);
        assert!(state.window() >= (7 * MATRIX as u64 - 8192) / 8);
    }

    #[test]
    fn pages_that_are_not_kept_are_absent_at_first() {
        let matrices = matrices(4);
        let mut state = state(&matrices[1..3], PagedAccess::Matrix, MATRIX);
        let absent = state.absent(PageRun { file: 0, start: 0, end: 4 * MATRIX });
        assert_eq!(bytes(&absent) + state.present() as usize, 4 * MATRIX);
        assert!(state.present() > 0 && state.present() <= MATRIX as u64);
        assert_eq!((absent[0].start, absent[absent.len() - 1].end), (0, 4 * MATRIX));
        // A piece that may be in memory is requested and counted once.
        let before = state.present();
        state.begin_pass(true);
        let requests = state.announce([ReadRows { weight: &matrices[1], rows: None }].into_iter(), Announced::Now);
        assert_eq!(bytes(&requests.needed), MATRIX);
        assert!(state.present() <= MATRIX as u64 && state.present() <= before + MATRIX as u64);
    }

    #[test]
    fn rows_of_a_record_are_one_request_and_one_use() {
        let files = [0, 1].map(|_| Bytes::new(crate::format::anonymous(2 * MATRIX, "a file").unwrap()));
        let rows = MATRIX / PAGE * 2;
        let apart = [0, 1].map(|at| {
            let data = files[0].slice(at * MATRIX..(at + 1) * MATRIX).unwrap();
            Matrix::new(TensorType::F32, rows, COLS, data).unwrap()
        });
        // Two rows of half a page, and padding.
        let record = PAGE + 512;
        let records = files[1].slice(0..2 * MATRIX / record * record).unwrap();
        let bundled = [0, PAGE / 2]
            .map(|start| Matrix::in_records(TensorType::F32, COLS, RecordPart { record, start }, &records).unwrap());
        let fire = [3, 4, 50, 81];
        let requests = [&apart, &bundled].map(|matrices| {
            let tensors =
                matrices.each_ref().map(|it| PagedTensor { data: it.bytes().clone(), access: PagedAccess::Matrix });
            let base = FileBase { address: matrices[0].data().as_ptr().addr(), len: 2 * MATRIX };
            let mut state = PagerState::new(&tensors, &[base], (MATRIX / 4) as u64, PAGE);
            state
                .tensors
                .iter_mut()
                .flat_map(|tensor| &mut tensor.pieces)
                .for_each(|piece| *piece = Default::default());
            state.begin_pass(true);
            let reads = || matrices.iter().map(|weight| ReadRows { weight, rows: Some(&fire) });
            let requested = state.announce(reads(), Announced::Soon);
            assert_eq!(requested.needed.len() as u64, state.requests());
            reads().for_each(|read| drop(state.announce([read].into_iter(), Announced::Now)));
            let read = state.read();
            assert_eq!(bytes(&requested.needed) as u64, read, "each page is read once");
            for tensor in &state.tensors {
                let uses = (0..tensor.pieces.len() as u32).map(|piece| tensor.counts.count(piece));
                assert!(uses.fold(0.0, f32::max) < 1.5, "a page was counted twice");
                assert!(tensor.pieces.iter().all(|piece| piece.presence != Presence::UsedAgain));
            }
            state.requests()
        });
        // Rows 3 and 4 are in neighbouring pages.
        assert_eq!(requests, [6, 3]);
    }

    #[test]
    fn prompts_are_not_counted_and_foreign_bytes_are_left_alone() {
        let all = matrices(3);
        let mut state = state(&all[..2], PagedAccess::Experts, 2 * MATRIX);
        state.begin_pass(false);
        let read = |weight| [ReadRows { weight, rows: None }].into_iter();
        assert!(bytes(&state.announce(read(&all[0]), Announced::Soon).needed) == MATRIX && state.unused > 0);
        let again = state.announce(read(&all[0]), Announced::Now);
        let pages = [&again.needed, &again.announced, &again.ahead].map(|runs| bytes(runs));
        assert_eq!((pages, state.unused), ([0, MATRIX, 0], 0));
        assert!((0..4).all(|piece| state.tensors[0].counts.count(piece) == 0.0));
        assert_eq!(bytes(&state.announce(read(&all[2]), Announced::Now).needed), 0);
        assert_eq!(state.read(), MATRIX as u64);
    }
}
