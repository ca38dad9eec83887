//! Attention with linear biases (ALiBi, Press et al. 2022): scores grow with the position of their key instead of rotations.

use std::sync::Arc;

/// Biases of a layer's scores.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyBias {
    /// `[n_head]`, growth per position, rounded to bfloat16 as models are trained with.
    pub slopes: Arc<[f32]>,
    /// Factor on biases: that on query-key products where they are added ahead of it.
    pub scale: f32,
}

impl KeyBias {
    /// Biases of `n_head` heads, the steepest growing by `2^(-most / n)` per position: slopes are a geometric series for the largest
    /// power of two `n` within `n_head`, and every second one of the series of twice that for the other heads.
    pub fn geometric(n_head: usize, most: f32, scale: f32) -> Self {
        let whole = if n_head == 0 { 1 } else { 1 << n_head.ilog2() };
        let slope = |of: usize, at: usize| (-most * at as f32 / of as f32).exp2();
        let series = (1..=whole).map(|at| slope(whole, at));
        let others = (0..).map(|at| slope(2 * whole, 2 * at + 1));
        let slopes = series.chain(others).take(n_head);
        KeyBias { slopes: slopes.map(|slope| half::bf16::from_f32(slope).to_f32()).collect(), scale }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_series_of_powers_of_two() {
        let slopes = |n_head| KeyBias::geometric(n_head, 8.0, 0.5).slopes.to_vec();
        assert_eq!(slopes(4), [0.25, 0.0625, 0.015_625, 0.003_906_25]);
        // The two heads beyond four have the first and the third of the series of eight.
        assert_eq!(slopes(6)[4..], [0.5, 0.125]);
        assert_eq!(slopes(1), [0.003_906_25]);
        assert!(slopes(0).is_empty());
    }
}
