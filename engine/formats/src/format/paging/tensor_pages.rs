//! [`TensorPages`]: a tensor of a mapped file, divided into pieces of whole pages.

use std::ops::Range;

use super::PagedAccess;
use thermocline_base::telemetry::DecayedCounts;

/// Bytes of a piece of a matrix that is read whole.
pub const WHOLE_PIECE: usize = 256 << 10;
/// Bytes of a piece of experts, which begin and end anywhere in their tensor.
pub const EXPERT_PIECE: usize = 64 << 10;
/// Tokens after which a use counts half.
const HALF_LIFE: f32 = 64.0;

/// Whether a piece is in memory, and how often it was used since it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Presence {
    /// Not in memory.
    #[default]
    Absent,
    /// Perhaps in memory, because the file was read before. It counts as in memory.
    Unknown,
    /// Read, or being read, before it is used.
    Ahead,
    /// Used once.
    Used,
    /// Used again, in another read.
    UsedAgain,
}

/// A piece's presence, its last use, and whether it is kept.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PieceState {
    pub presence: Presence,
    pub kept: bool,
    /// Number of the last pass that used the piece. It wraps around, so that a state stays small.
    pub pass: u16,
}

/// Consecutive pages of a file, as a range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageRun {
    /// Index of the file.
    pub file: usize,
    pub start: usize,
    pub end: usize,
}

impl PageRun {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// True if the runs have a page in common.
    pub fn overlaps(&self, other: &PageRun) -> bool {
        self.file == other.file && self.start < other.end && other.start < self.end
    }

    /// Appends the run to `runs`, or extends the last one if they touch.
    pub fn push_to(self, runs: &mut Vec<PageRun>) {
        match runs.last_mut() {
            Some(last) if last.file == self.file && last.end == self.start => last.end = self.end,
            _ => runs.push(self),
        }
    }
}

/// A tensor in a mapped file: a matrix, or those of all experts. Its pieces begin at the page of
/// the first byte.
#[derive(Debug)]
pub(super) struct TensorPages {
    /// Address of the first byte in the map.
    pub address: usize,
    /// Number of bytes.
    pub len: usize,
    /// How passes read it.
    pub access: PagedAccess,
    /// Bytes of a piece, whole pages.
    pub piece: usize,
    /// Bytes of a usual read request.
    pub request: usize,
    pub pieces: Vec<PieceState>,
    /// Recent uses of each piece.
    pub counts: DecayedCounts,
    /// True if any byte was read since the pager knows the tensor.
    pub used: bool,
    /// All pages of the matrix. The first and the last may be shared with neighbours.
    pages: PageRun,
    /// Bytes before the matrix in its first page.
    lead: usize,
}

impl TensorPages {
    /// Divides a tensor, `bytes` of a file that is mapped at `base`.
    pub fn new(base: usize, file: usize, bytes: Range<usize>, page: usize, access: PagedAccess) -> Self {
        let start = bytes.start / page * page;
        let pages = PageRun { file, start, end: bytes.end.div_ceil(page) * page };
        let piece = match access {
            PagedAccess::Matrix | PagedAccess::Table => WHOLE_PIECE,
            PagedAccess::Experts => EXPERT_PIECE,
        };
        let piece = piece.max(page);
        let pieces = vec![PieceState::default(); pages.len().div_ceil(piece)];
        let counts = DecayedCounts::new(pieces.len(), HALF_LIFE);
        let (address, lead, len) = (base + bytes.start, bytes.start - start, bytes.len());
        TensorPages { address, len, access, piece, request: piece, pieces, counts, used: false, pages, lead }
    }

    /// The pieces that contain `bytes` of the matrix.
    pub fn pieces_of(&self, bytes: Range<usize>) -> Range<usize> {
        (self.lead + bytes.start) / self.piece..(self.lead + bytes.end).div_ceil(self.piece).min(self.pieces.len())
    }

    /// The pages of a piece.
    pub fn run(&self, piece: usize) -> PageRun {
        let start = self.pages.start + piece * self.piece;
        PageRun { start, end: (start + self.piece).min(self.pages.end), ..self.pages }
    }

    /// The pages of a piece that belong to no neighbour of the tensor, of `page` bytes each.
    pub fn own_run(&self, piece: usize, page: usize) -> PageRun {
        let PageRun { file, start, end } = self.run(piece);
        let first = self.pages.start + if self.lead > 0 { page } else { 0 };
        let last = (self.pages.start + self.lead + self.len) / page * page;
        let start = start.max(first);
        PageRun { file, start, end: end.min(last).max(start) }
    }

    /// Bytes of a piece.
    pub fn bytes(&self, piece: usize) -> u64 {
        self.run(piece).len() as u64
    }

    /// True if a pass chooses the parts that it reads: experts, or neurons that fire.
    pub fn is_chosen(&self) -> bool {
        match self.access {
            PagedAccess::Matrix => self.piece < WHOLE_PIECE,
            PagedAccess::Experts => true,
            PagedAccess::Table => false,
        }
    }

    /// Bytes of all pieces.
    pub fn all_bytes(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Divides the tensor into pieces of one page, because only some of its records, of `record`
    /// bytes each, are read. Returns false if it was divided before.
    pub fn split_pieces(&mut self, page: usize, record: usize) -> bool {
        if self.piece == page {
            return false;
        }
        let of = self.piece / page;
        let n = self.pages.len() / page;
        let count = |piece: usize| self.counts.count(piece as u32) / self.counts.memory();
        let prior: Vec<f32> = (0..n).map(|piece| count(piece / of)).collect();
        self.counts = DecayedCounts::new(n, HALF_LIFE).with_prior(&prior);
        self.pieces = (0..n).map(|piece| self.pieces[piece / of]).collect();
        self.piece = page;
        // A record begins anywhere in a page.
        self.request = record + page;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A large model has millions of pages.
    #[test]
    fn state_of_a_piece_is_small() {
        assert!(size_of::<PieceState>() <= 4);
    }

    #[test]
    fn pieces_cover_the_matrix_and_splitting_keeps_their_state() {
        let page = 4096;
        let (start, len) = (3 * page + 100, 2 * WHOLE_PIECE);
        let mut tensor = TensorPages::new(1 << 20, 0, start..start + len, page, PagedAccess::Matrix);
        assert_eq!((tensor.pieces.len(), tensor.all_bytes()), (3, (len + page) as u64));
        assert_eq!((0..3).map(|piece| tensor.bytes(piece)).sum::<u64>(), tensor.all_bytes());
        assert_eq!(tensor.pieces_of(0..len), 0..3);
        assert_eq!(tensor.pieces_of(0..WHOLE_PIECE - 100), 0..1);
        tensor.pieces[1].presence = Presence::Used;
        tensor.counts.add(1);
        assert!(tensor.split_pieces(page, 2304) && !tensor.split_pieces(page, 2304));
        let present = tensor.pieces.iter().filter(|piece| piece.presence == Presence::Used).count();
        assert_eq!((present * page, tensor.pieces.len() * page), (WHOLE_PIECE, len + page));
        // Rows that share a page share a piece.
        assert_eq!((tensor.pieces_of(0..2304), tensor.pieces_of(2304..4608)), (0..1, 0..2));
        let piece = (WHOLE_PIECE / page) as u32;
        assert!((tensor.counts.count(piece) - 1.0).abs() < 1e-3 && tensor.counts.count(piece - 1) == 0.0);
    }
}
