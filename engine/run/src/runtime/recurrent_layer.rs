//! The recurrent state of one layer in RAM.

use thermocline_model::StateShape;

/// The recurrent state of one layer.
#[derive(Debug, Clone, Default)]
pub struct RecurrentState {
    /// The inputs described by [`StateShape::conv`], the newest last.
    pub conv: Vec<f32>,
    /// The memory described by [`StateShape::scan`]: `[heads, k_dim, v_dim]` for a delta net,
    /// `[heads, state, head_dim]` for Mamba-2.
    pub scan: Vec<f32>,
}

impl RecurrentState {
    /// Makes a state of zeros. Returns `None` if there is no room.
    pub(super) fn new(shape: StateShape) -> Option<Self> {
        let zeros = |n: usize| {
            let mut zeros = Vec::new();
            zeros.try_reserve_exact(n).ok()?;
            zeros.resize(n, 0.0);
            Some(zeros)
        };
        let [conv, scan] = shape.floats();
        Some(RecurrentState { conv: zeros(conv)?, scan: zeros(scan)? })
    }

    /// Copies `from`, which must have the same sizes.
    pub(super) fn copy_from(&mut self, from: &Self) {
        self.conv.copy_from_slice(&from.conv);
        self.scan.copy_from_slice(&from.scan);
    }
}
