//! Shape of a layer's recurrent state. The state is kept, copied and moved by its shape, regardless
//! of its mixer.

/// Shape of a recurrent state. Either half may be empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateShape {
    /// Last inputs of a short convolution, `[taps - 1, channels]`.
    pub conv: [usize; 2],
    /// Memory of a scan, `[heads, rows, columns]`.
    pub scan: [usize; 3],
}

impl StateShape {
    /// Returns the number of floats of the last inputs and of the scan's memory.
    pub fn floats(&self) -> [usize; 2] {
        [self.conv.iter().product(), self.scan.iter().product()]
    }

    /// Returns the bytes of the last inputs and of the scan's memory together.
    pub fn bytes(&self) -> u64 {
        self.floats().map(|floats| (floats * size_of::<f32>()) as u64).iter().sum()
    }
}
