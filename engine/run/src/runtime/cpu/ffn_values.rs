//! Ranges of the hidden values of an FFN task, and the rule that decides which values count as
//! fired.

/// The rule that decides which held values count as fired.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) enum Fires {
    /// Values that are not zero.
    #[default]
    NonZero,
    /// All values, because silent neurons are not held any more.
    Held,
    /// Values whose gate's activation, times its scale, in `scratch`, exceeds this threshold.
    Above(f32),
}

/// The outcome of a task, which determines the neurons that fired.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct FfnOutcome {
    pub tokens: usize,
    pub fires: Fires,
    /// True if there was a prediction.
    pub predicted: bool,
    /// True if each token had its own neurons (`CpuFfn::rows`).
    pub rows: bool,
    /// Number of values of all neurons of all tokens, zeros included.
    pub values: usize,
}

/// The range of a block's values.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockSpan {
    /// Neurons of the block.
    pub n_ff: usize,
    /// Values held per token, and values held by earlier blocks.
    pub len: usize,
    pub first: usize,
    /// Start of the block's list in `held`. `None` if all neurons are held.
    pub list: Option<usize>,
}

impl BlockSpan {
    /// The block's values among those of all blocks.
    pub fn values<'v>(&self, values: &'v [f32], tokens: usize) -> &'v [f32] {
        &values[tokens * self.first..][..tokens * self.len]
    }

    /// The block's values among those of all blocks, mutably.
    pub fn values_mut<'v>(&self, values: &'v mut [f32], tokens: usize) -> &'v mut [f32] {
        &mut values[tokens * self.first..][..tokens * self.len]
    }

    /// The block's neurons among those held.
    pub fn listed<'h>(&self, held: &'h [u32]) -> Option<&'h [u32]> {
        self.list.map(|list| &held[list..][..self.len])
    }
}
