//! Positions: rotary embeddings with their scalings, and learned positions.

use thermocline_cpu::ops::ROPE_AXES;

/// Order in which a head's elements form rotated pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeOrder {
    /// Pairs of neighbours `(2i, 2i+1)`: GGUF files of the llama family.
    Normal,
    /// Pairs across halves `(i, i + dims/2)`: GPT-NeoX, Falcon, Qwen, Gemma, Phi, and every Hugging
    /// Face layout.
    NeoX,
}

/// Scaling of positions beyond the training length.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Unscaled positions.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// Ratio of the stretched to the original context length.
        factor: f32,
    },
    /// YaRN (Peng et al. 2023). Low frequencies are interpolated, high ones kept, and attention is
    /// rescaled.
    Yarn {
        /// Ratio of the stretched to the original context length.
        factor: f32,
        /// Context length of the training, in tokens.
        original_context: usize,
        /// Factor on cos and sin; computed from `factor` if the file has none.
        attention_factor: f32,
        /// Rotations over the trained length at or above which a dimension is kept (default 32).
        beta_fast: f32,
        /// Rotations over the trained length at or below which a dimension is interpolated (default
        /// 1).
        beta_slow: f32,
        /// True if the limits' dimensions are rounded outwards (default; gpt-oss does not).
        truncate: bool,
    },
    /// "Dynamic NTK": raises the base of the frequencies in contexts beyond the trained length. The
    /// original method uses the number of tokens so far. This engine uses the length of the
    /// context, so that cached keys keep their rotations.
    Dynamic {
        /// Ratio by which the base grows with the context length.
        factor: f32,
        /// Context length of the training, in tokens.
        original_context: usize,
    },
    /// One divisor per rotated pair, `[dims / 2]` (Llama 3.1's `rope_freqs.weight`, Phi-3's long
    /// and short factors).
    Factors {
        /// Divisors for contexts of at most `original_context`; for all contexts if there is only
        /// one set.
        short: Vec<f32>,
        /// Divisors for longer contexts.
        long: Option<Vec<f32>>,
        /// Context length of the training, in tokens.
        original_context: usize,
        /// Factor on cos and sin.
        attention_factor: f32,
    },
}

/// Rotary position embedding (Su et al. 2021): one rotation table, which any number of layers may
/// use.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Number of rotated elements of each head, from its first; fewer than `head_dim` if the
    /// rotation is partial.
    pub dims: usize,
    /// Base of the frequencies.
    pub base: f32,
    /// Order of the rotated pairs.
    pub order: RopeOrder,
    /// Scaling of positions.
    pub scaling: RopeScaling,
    /// Axes by which the pairs rotate. `None`: all tokens have one position, also those of
    /// pictures.
    pub sections: Option<RopeSections>,
}

/// Division of the rotated pairs among the axes of positions: time, row and column (M-RoPE, Wang et
/// al. 2024). It makes a difference for the tokens of pictures only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RopeSections {
    /// Number of pairs of each axis.
    pub pairs: [usize; ROPE_AXES],
    /// True if the axes take turns, as far as each has pairs left (Qwen 3 VL). Otherwise the pairs
    /// of an axis are consecutive (Qwen 2 VL).
    pub interleaved: bool,
}

impl RopeSections {
    /// Returns the axis by which `pair` rotates.
    pub fn axis(&self, pair: usize) -> usize {
        let [time, rows, columns] = self.pairs;
        match pair % ROPE_AXES {
            1 if self.interleaved && pair < rows.saturating_mul(ROPE_AXES) => 1,
            2 if self.interleaved && pair < columns.saturating_mul(ROPE_AXES) => 2,
            _ if self.interleaved || pair < time => 0,
            _ if pair < time + rows => 1,
            _ => 2,
        }
    }
}

/// Encoding of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Queries and keys are rotated in the layers that name a table
    /// ([`HeadPositions::rope`](super::HeadPositions::rope)). The other layers do not encode
    /// positions.
    Rotary,
    /// A row of `position_embd` is added to the embedding (OPT).
    Learned {
        /// Offset between a position and its row in the table (OPT: 2).
        offset: usize,
    },
}

/// Returns YaRN's factor on cos and sin for files that name none (equation 22 of the paper, with
/// `scale` 1).
pub(super) fn yarn_magnitude(factor: f32, scale: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_blocks_or_take_turns() {
        let axes = |pairs: [usize; ROPE_AXES], interleaved| {
            let sections = RopeSections { pairs, interleaved };
            (0..pairs.iter().sum::<usize>()).map(|pair| sections.axis(pair)).collect::<Vec<_>>()
        };
        assert_eq!(axes([2, 3, 3], false), [0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(axes([4, 3, 3], true), [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]);
        // Qwen 3 VL: the last pairs belong to time.
        assert_eq!(axes([4, 2, 2], true), [0, 1, 2, 0, 1, 2, 0, 0]);
        let of_head = axes([24, 20, 20], true);
        assert_eq!([0, 1, 2].map(|axis| of_head.iter().filter(|of| **of == axis).count()), [24, 20, 20]);
    }
}
