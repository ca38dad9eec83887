//! Places of the hidden values of an FFN task, and the rule by which they count as fired.

/// The rule by which held values count as fired.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) enum Fires {
    /// Those that are not zero.
    #[default]
    NonZero,
    /// All: silent neurons are no longer held.
    Held,
    /// Those whose gate's activation, in `scratch`, exceeds this threshold.
    Above(f32),
}

/// The outcome of a task, by which the neurons that fired are told.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct FfnOutcome {
    pub tokens: usize,
    pub fires: Fires,
    /// True if there was a prediction.
    pub predicted: bool,
    /// True if each token had neurons of its own (`CpuFfn::rows`).
    pub rows: bool,
    /// Values of all their neurons, zeros included.
    pub values: usize,
}

/// The place of a block's values.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockSpan {
    /// Neurons of the block.
    pub n_ff: usize,
    /// Values held of a token, and those of the blocks before.
    pub len: usize,
    pub first: usize,
    /// Where the list of them begins in `held`; `None`: they are all neurons.
    pub list: Option<usize>,
}

impl BlockSpan {
    /// The block's values among those of all blocks.
    pub fn values<'v>(&self, values: &'v [f32], tokens: usize) -> &'v [f32] {
        &values[tokens * self.first..][..tokens * self.len]
    }

    /// The same, to change them.
    pub fn values_mut<'v>(&self, values: &'v mut [f32], tokens: usize) -> &'v mut [f32] {
        &mut values[tokens * self.first..][..tokens * self.len]
    }

    /// The block's neurons among those held.
    pub fn listed<'h>(&self, held: &'h [u32]) -> Option<&'h [u32]> {
        self.list.map(|list| &held[list..][..self.len])
    }
}
