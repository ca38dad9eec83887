//! Choice of expert outputs, for a tensor that takes its outputs from a tensor of two matrices.

/// Outputs of each expert that a tensor takes. Hugging Face interleaves the outputs of two
/// matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpertOutputs {
    /// All outputs.
    All,
    /// Outputs 0, 2, 4, ...: gates.
    Even,
    /// Outputs 1, 3, 5, ...: ups.
    Odd,
}

impl ExpertOutputs {
    /// Returns how many of `outputs` are taken.
    pub(super) fn count(self, outputs: usize) -> usize {
        match self {
            ExpertOutputs::All => outputs,
            ExpertOutputs::Even => outputs.div_ceil(2),
            ExpertOutputs::Odd => outputs / 2,
        }
    }

    /// Returns the source index of the taken output `at`.
    pub(super) fn source(self, at: usize) -> usize {
        match self {
            ExpertOutputs::All => at,
            ExpertOutputs::Even => 2 * at,
            ExpertOutputs::Odd => 2 * at + 1,
        }
    }
}
