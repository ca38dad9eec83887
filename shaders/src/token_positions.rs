//! Positions of a dispatch's tokens, and the growth of queries with them.

use crate::params::params;

params! {
    /// Positions of a dispatch's tokens, and the growth of queries with their position `p`:
    /// `q *= 1 + beta * ln(1 + floor((p + offset) / length))`. The kernels that append keys read
    /// it.
    TokenPositions {
        /// Position of the first token.
        first: u32,
        /// Weight of the logarithm.
        beta: f32,
        /// Positions per step of the growth, at least 1.
        length: u32,
        /// Offset on positions in the growth.
        offset: u32,
    }
}

impl TokenPositions {
    /// Factor on the query of `token`, with the override `QUERY_SCALE`.
    pub(crate) fn growth(&self, token: u32) -> f64 {
        1.0 + f64::from(self.beta) * f64::from(1 + (self.first + token + self.offset) / self.length).ln()
    }
}
