//! Attention with linear biases (ALiBi, Press et al. 2022). Each score gets a bias that grows with
//! the position of its key. Queries and keys are not rotated.

use std::sync::Arc;

/// Biases that ALiBi adds to the attention scores of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyBias {
    /// Growth of each head's bias per position, `[n_head]`.
    pub slopes: Arc<[f32]>,
    /// Factor on the biases. It equals the factor on query-key products if the biases are added
    /// before that factor.
    pub scale: f32,
    /// True if biases fall with the distance of query and key instead (encoders).
    pub by_distance: bool,
}

impl KeyBias {
    /// Returns the biases of `n_head` heads, with slopes rounded to bfloat16 as in training.
    pub fn geometric(n_head: usize, most: f32, scale: f32) -> Self {
        let slopes = slopes(n_head, most).into_iter().map(|slope| half::bf16::from_f32(slope).to_f32()).collect();
        KeyBias { slopes, scale, by_distance: false }
    }

    /// Returns the biases by distance of `n_head` heads.
    pub fn by_distance(n_head: usize, most: f32) -> Self {
        KeyBias { slopes: slopes(n_head, most).into(), scale: 1.0, by_distance: true }
    }
}

/// Returns the slopes of `n_head` heads. With `n` the largest power of two up to `n_head`, the
/// first `n` slopes are a geometric series that starts at `2^(-most / n)`. The other heads take
/// every second slope of the series of `2n` heads.
fn slopes(n_head: usize, most: f32) -> Vec<f32> {
    let whole = if n_head == 0 { 1 } else { 1 << n_head.ilog2() };
    let slope = |of: usize, at: usize| (-most * at as f32 / of as f32).exp2();
    let series = (1..=whole).map(|at| slope(whole, at));
    let others = (0..).map(|at| slope(2 * whole, 2 * at + 1));
    series.chain(others).take(n_head).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_series_of_powers_of_two() {
        let slopes = |n_head| KeyBias::geometric(n_head, 8.0, 0.5).slopes.to_vec();
        assert_eq!(slopes(4), [0.25, 0.0625, 0.015_625, 0.003_906_25]);
        // Heads five and six get the first and the third slope of the series of eight.
        assert_eq!(slopes(6)[4..], [0.5, 0.125]);
        assert_eq!(slopes(1), [0.003_906_25]);
        assert!(slopes(0).is_empty());
    }
}
