//! Outputs of experts that a tensor takes from one that holds those of two matrices.

/// Outputs of each expert that a tensor takes, where Hugging Face keeps those of two matrices by turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpertOutputs {
    /// All of them.
    All,
    /// 0, 2, 4, ...: gates.
    Even,
    /// 1, 3, 5, ...: ups.
    Odd,
}

impl ExpertOutputs {
    /// How many of `outputs` are taken.
    pub(super) fn count(self, outputs: usize) -> usize {
        match self {
            ExpertOutputs::All => outputs,
            ExpertOutputs::Even => outputs.div_ceil(2),
            ExpertOutputs::Odd => outputs / 2,
        }
    }

    /// The `at`-th that is taken.
    pub(super) fn source(self, at: usize) -> usize {
        match self {
            ExpertOutputs::All => at,
            ExpertOutputs::Even => 2 * at,
            ExpertOutputs::Odd => 2 * at + 1,
        }
    }
}
