//! Recurrent state of one layer, in RAM.

/// The recurrent state of one layer.
#[derive(Debug, Clone, Default)]
pub struct RecurrentState {
    /// Last inputs of the short convolution, `[taps - 1, channels]`, the newest last.
    pub conv: Vec<f32>,
    /// Memory of the scan: `[heads, k_dim, v_dim]` of a delta net, `[heads, state, head_dim]` of Mamba-2.
    pub scan: Vec<f32>,
}

impl RecurrentState {
    /// Zeros, so many for each of the two; `None` if there is no room.
    pub(super) fn new(floats: [usize; 2]) -> Option<Self> {
        let zeros = |n: usize| {
            let mut zeros = Vec::new();
            zeros.try_reserve_exact(n).ok()?;
            zeros.resize(n, 0.0);
            Some(zeros)
        };
        Some(RecurrentState { conv: zeros(floats[0])?, scan: zeros(floats[1])? })
    }

    /// Becomes equal to `from`, of the same sizes.
    pub(super) fn copy_from(&mut self, from: &Self) {
        self.conv.copy_from_slice(&from.conv);
        self.scan.copy_from_slice(&from.scan);
    }
}
