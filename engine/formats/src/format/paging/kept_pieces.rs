//! Chooses the pieces that stay in memory. A piece's score is the number of its recent uses, times
//! the time that the disk takes to read one of its bytes.

use super::tensor_pages::TensorPages;

/// Fixed cost of a read request, as the bytes that the disk reads in the same time. Measured:
/// 47,000 scattered requests per second, and 1.6 GB per second of large reads.
pub const REQUEST_BYTES: usize = 32 << 10;
/// Factor of the score of a kept piece. Without it, pieces of similar score would replace each
/// other.
const KEPT: f32 = 1.25;
/// Uses of a piece of a tensor that was read, if only other pieces were used or none was counted.
const UNCOUNTED: f32 = 1e-3;
/// Scores are compared by these leading bits of a float: sign, exponent and seven bits more.
const SCORE_SHIFT: u32 = 16;

/// Marks the pieces with the highest scores as kept, up to `room` bytes. Among pieces of equal
/// score the kept ones are spread evenly, so that reads of the others can overlap with computing.
pub(super) fn choose(tensors: &mut [TensorPages], room: u64) {
    let mut bytes = vec![0u64; 1 << (32 - SCORE_SHIFT)];
    for tensor in &*tensors {
        for piece in 0..tensor.pieces.len() {
            bytes[class(tensor, piece)] += tensor.bytes(piece);
        }
    }
    let (mut above, mut least) = (0, bytes.len());
    while least > 0 && above + bytes[least - 1] <= room {
        least -= 1;
        above += bytes[least];
    }
    // Only some pieces of the class below are kept.
    let mut share = ClassShare { rest: room - above, all: if least > 0 { bytes[least - 1] } else { 0 }, owed: 0 };
    for tensor in tensors {
        for piece in 0..tensor.pieces.len() {
            let class = class(tensor, piece);
            let kept = class >= least || (class + 1 == least && share.take(tensor.bytes(piece)));
            tensor.pieces[piece].kept = kept;
        }
    }
}

/// Hands out `rest` of `all` bytes evenly.
struct ClassShare {
    rest: u64,
    all: u64,
    /// Bytes times `rest` that were asked for and not taken yet.
    owed: u128,
}

impl ClassShare {
    /// True if the next `bytes` are among those handed out.
    fn take(&mut self, bytes: u64) -> bool {
        self.owed += u128::from(bytes) * u128::from(self.rest);
        let price = u128::from(bytes) * u128::from(self.all);
        let taken = self.owed >= price && price > 0;
        self.owed -= if taken { price } else { 0 };
        taken
    }
}

/// The class of a piece's score. A higher class is kept first. Tensors that were never read come
/// last: they may be in a GPU's memory.
fn class(tensor: &TensorPages, piece: usize) -> usize {
    if !tensor.used {
        return 0;
    }
    let cost = 1.0 + REQUEST_BYTES as f32 / tensor.request as f32;
    let held = if tensor.pieces[piece].kept { KEPT } else { 1.0 };
    let score = (tensor.counts.count(piece as u32) + UNCOUNTED) * cost * held;
    (score.to_bits() >> SCORE_SHIFT) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::paging::{PagedAccess, tensor_pages::WHOLE_PIECE};

    const PAGE: usize = 4096;

    fn kept(tensor: &TensorPages) -> Vec<usize> {
        (0..tensor.pieces.len()).filter(|piece| tensor.pieces[*piece].kept).collect()
    }

    #[test]
    fn pieces_of_equal_score_are_kept_evenly_up_to_the_room() {
        let mut tensors = [TensorPages::new(0, 0, 0..12 * WHOLE_PIECE, PAGE, PagedAccess::Matrix)];
        choose(&mut tensors, 4 * WHOLE_PIECE as u64);
        assert_eq!(kept(&tensors[0]), [2, 5, 8, 11]);
        choose(&mut tensors, u64::MAX);
        assert_eq!(kept(&tensors[0]).len(), 12);
        choose(&mut tensors, 0);
        assert_eq!(kept(&tensors[0]), [0; 0]);
    }

    #[test]
    fn tensors_that_are_never_read_are_kept_last() {
        let tensor = |at: usize| {
            TensorPages::new(0, 0, at * 8 * WHOLE_PIECE..(at + 1) * 8 * WHOLE_PIECE, PAGE, PagedAccess::Matrix)
        };
        let mut tensors = [tensor(0), tensor(1)];
        tensors[1].used = true;
        choose(&mut tensors, 10 * WHOLE_PIECE as u64);
        assert_eq!([0, 1].map(|at| kept(&tensors[at]).len()), [2, 8]);
    }

    #[test]
    fn frequent_pieces_are_kept_first_and_small_ones_count_more() {
        let tensor = |at: usize| {
            TensorPages::new(0, 0, at * 8 * WHOLE_PIECE..(at + 1) * 8 * WHOLE_PIECE, PAGE, PagedAccess::Matrix)
        };
        let mut tensors = [tensor(0), tensor(1)];
        tensors[1].split_pieces(PAGE, PAGE);
        for token in 0..40 {
            for tensor in &mut tensors {
                tensor.used = true;
                tensor.counts.next_token();
            }
            tensors[0].counts.add(3);
            if token % 2 == 0 {
                tensors[0].counts.add(5);
                tensors[1].counts.add(7);
            }
        }
        choose(&mut tensors, (WHOLE_PIECE + PAGE) as u64);
        assert_eq!((kept(&tensors[0]), kept(&tensors[1])), (vec![3], vec![7]));
        choose(&mut tensors, PAGE as u64);
        assert_eq!((kept(&tensors[0]), kept(&tensors[1])), (vec![], vec![7]));
    }
}
