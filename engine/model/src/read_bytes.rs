//! Bytes of weights that a token reads, which bound the speed of decoding.

use super::{Ffn, FfnWeights, Model};
use thermocline_formats::format::Matrix;

impl Model {
    /// Returns the bytes of weights that every token reads: all matrices outside FFNs, and one row
    /// of the embedding. Inputs that attention skips at the chosen level of input sparsity are not
    /// counted.
    pub fn always_read_bytes(&self) -> u64 {
        let layers =
            self.weights.layers.iter().flat_map(|layer| layer.mixers().map(|linear| matrix_bytes(&linear.weight)));
        let embedding = self.weights.token_embedding.row_bytes() as u64;
        let level = f64::from(self.weights.input_level.unwrap_or(0.0));
        let skipped = (level * self.input_copies(false).skippable as f64) as u64;
        layers.sum::<u64>() - skipped + matrix_bytes(&self.weights.output.weight) + embedding
    }

    /// Returns the bytes of FFN weights that a token reads if only the unchosen experts are
    /// skipped.
    pub fn dense_ffn_bytes(&self) -> u64 {
        let routed = self.config.experts.map_or(0, |experts| experts.used) as u64;
        let ffn = |ffn: &Ffn| match ffn {
            Ffn::None => 0,
            Ffn::Dense(ffn) => ffn_bytes(ffn),
            Ffn::Experts(weights) => {
                let all: u64 = weights.experts.iter().map(ffn_bytes).sum();
                let always: u64 = weights.always_read().map(|linear| matrix_bytes(&linear.weight)).sum();
                let experts = (weights.experts.len() as u64).max(1);
                always + all * routed / experts
            }
        };
        self.weights.layers.iter().map(|layer| ffn(&layer.ffn)).sum()
    }
}

fn matrix_bytes(matrix: &Matrix) -> u64 {
    matrix.byte_len() as u64
}

fn ffn_bytes(ffn: &FfnWeights) -> u64 {
    ffn.linears().map(|linear| matrix_bytes(&linear.weight)).sum()
}
