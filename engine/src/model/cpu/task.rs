//! What of FFNs is to be computed, and what that came to.

use crate::{
    format::Matrix,
    model::{Activation, FfnWeights, Predictor, Sparsity},
};

/// From this share of a matrix's rows on all are read, one after the other, which memory does faster than rows here and there.
const MOST_ROWS: f64 = 0.6;

/// An FFN, or a part of it: one of a mixture's experts, or all there is.
#[derive(Debug, Clone, Copy)]
pub struct FfnBlock<'a> {
    /// The FFN.
    pub ffn: &'a FfnWeights,
    /// What it counts in the sum.
    pub share: f32,
    /// The neurons that count, ascending; `None` for all.
    pub neurons: Option<&'a [u32]>,
}

impl<'a> FfnBlock<'a> {
    /// All of `ffn`, which counts in full.
    pub fn whole(ffn: &'a FfnWeights) -> Self {
        FfnBlock { ffn, share: 1.0, neurons: None }
    }
}

/// FFNs that see the same inputs and whose outputs are added up, and what of them is to be computed.
#[derive(Debug, Clone, Copy)]
pub struct FfnTask<'a> {
    /// The FFNs. They are computed together, so that workers are busy however small each is.
    pub blocks: &'a [FfnBlock<'a>],
    /// Their activation.
    pub activation: Activation,
    /// What of them may be skipped, where there is one token.
    pub sparsity: Sparsity,
    /// Which neurons of a single FFN may fire, for [`Sparsity::Predicted`].
    pub guess: Option<Guess<'a>>,
    /// Whether the guess is only to be held against the truth: it rules nobody out.
    pub audited: bool,
    /// The cut of [`Sparsity::Threshold`].
    pub cut: Option<f32>,
    /// Inputs, `[tokens, d]`.
    pub x: &'a [f32],
    /// How many.
    pub tokens: usize,
    /// Whether it will be asked afterwards which neurons fired ([`CpuFfn::fired`](super::CpuFfn::fired)): some modes have to work
    /// for that.
    pub observed: bool,
}

/// A guess at what fires.
#[derive(Debug, Clone, Copy)]
pub enum Guess<'a> {
    /// A [`mask`](crate::model::mask) of all neurons, guessed elsewhere.
    Mask(&'a [u32]),
    /// To be asked here.
    Predictor {
        /// Whom.
        predictor: &'a Predictor,
        /// What it sees, `[d]`.
        x: &'a [f32],
        /// Added to its threshold.
        shift: f32,
    },
}

impl FfnTask<'_> {
    /// The mode, after what it needs turned out to be missing.
    pub(super) fn mode(&self) -> Sparsity {
        match self.sparsity {
            _ if self.tokens != 1 => Sparsity::Dense,
            Sparsity::Exact | Sparsity::Predicted if !self.activation.is_sparse() => Sparsity::Dense,
            Sparsity::Predicted if self.guess.is_none() || self.blocks.len() != 1 => Sparsity::Exact,
            Sparsity::Threshold if !self.gated() || self.cut.is_none() => Sparsity::Dense,
            mode => mode,
        }
    }

    /// Whether the FFNs have gates: all of them or none.
    pub(super) fn gated(&self) -> bool {
        self.blocks.iter().any(|block| block.ffn.gate.is_some())
    }
}

/// What a task came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FfnWork {
    /// Neurons with a part in the output, for any of the tokens.
    pub active: usize,
    /// Bytes of weights read one after the other.
    pub sequential: u64,
    /// Bytes of weights read as rows here and there.
    pub scattered: u64,
}

impl FfnWork {
    /// All bytes of weights read.
    pub fn bytes(&self) -> u64 {
        self.sequential + self.scattered
    }

    /// Adds another task's.
    pub(super) fn add(&mut self, other: FfnWork) {
        self.active += other.active;
        self.sequential += other.sequential;
        self.scattered += other.scattered;
    }

    pub(super) fn read_all(&mut self, matrix: &Matrix) {
        self.sequential += matrix.data().len() as u64;
    }

    pub(super) fn read_rows(&mut self, matrix: &Matrix, rows: usize) {
        let bytes = (rows * matrix.row_bytes()) as u64;
        match is_most(rows, matrix) {
            true => self.sequential += bytes,
            false => self.scattered += bytes,
        }
    }
}

/// Whether so many rows of a matrix are better read with all the others.
pub(super) fn is_most(rows: usize, matrix: &Matrix) -> bool {
    rows as f64 > MOST_ROWS * matrix.rows() as f64
}
