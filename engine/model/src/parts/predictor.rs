//! Activation predictor of a dense FFN.

use std::sync::OnceLock;

use thermocline_cpu::InputMajor;
use thermocline_formats::format::Matrix;

/// Activation predictor of one layer. Neuron `i` may fire if `score(x)[i] >= threshold`.
#[derive(Debug, Clone)]
pub struct Predictor {
    /// Matrices that compute the scores.
    pub kind: PredictorKind,
    /// Vector that the predictor reads.
    pub input: PredictorInput,
    /// Threshold on the scores.
    pub threshold: f32,
    /// Quality, if measured.
    pub quality: Option<PredictorQuality>,
    /// Second layer in input-major order for single tokens, made on first use.
    pub by_input: OnceLock<Option<InputMajor>>,
}

impl Predictor {
    /// Returns the first matrix: `[rank, d]` of a low-rank predictor, else `[n_ff, d]`.
    pub fn first(&self) -> &Matrix {
        match &self.kind {
            PredictorKind::LowRank { fc1: first, .. } | PredictorKind::Rows { rows: first, .. } => first,
        }
    }

    /// Returns the number of predicted neurons, `n_ff`.
    pub fn neurons(&self) -> usize {
        match &self.kind {
            PredictorKind::LowRank { fc2: rows, .. } | PredictorKind::Rows { rows, .. } => rows.rows(),
        }
    }

    /// Returns the bytes of the matrices: the most that one token reads.
    pub fn bytes(&self) -> u64 {
        let size = |matrix: &Matrix| matrix.data().len() as u64;
        match &self.kind {
            PredictorKind::LowRank { fc1, fc2 } => size(fc1) + size(fc2),
            PredictorKind::Rows { rows, .. } => size(rows),
        }
    }

    /// Returns the bytes of the input-major copy of the second layer; 0 without a copy. A CPU that
    /// rounds activations to 8 bits makes the copy for the first single token.
    pub fn copied_bytes(&self) -> u64 {
        match &self.kind {
            PredictorKind::LowRank { fc2, .. } => InputMajor::bytes(fc2).unwrap_or(0),
            PredictorKind::Rows { .. } => 0,
        }
    }
}

/// Quality of a predictor on held-out text: means over tokens, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictorQuality {
    /// Fraction of the firing neurons that the predictor names.
    pub recall: f32,
    /// Recall weighted by the neurons' mass `|a_i| * |down_i|`.
    pub mass_recall: f32,
    /// Fraction of the named neurons that fire.
    pub precision: f32,
    /// Fraction of all neurons that the predictor names.
    pub density: f32,
}

/// Weights of a predictor.
#[derive(Debug, Clone)]
pub enum PredictorKind {
    /// `score = fc2 relu(fc1 x)`, no biases (Deja Vu, PowerInfer).
    LowRank {
        /// `[rank, d]`
        fc1: Matrix,
        /// `[n_ff, rank]`
        fc2: Matrix,
    },
    /// `score = rows x`: a copy of the firing rows (the gate's, or the up matrix's without a gate)
    /// in fewer bits. It needs no training.
    Rows {
        /// `[n_ff, d]`
        rows: Matrix,
        /// Biases of the firing rows, `[n_ff]`.
        bias: Option<Vec<f32>>,
    },
}

/// Vector that a predictor reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PredictorInput {
    /// The residual stream before the FFN's norm (PowerInfer).
    Residual,
    /// The FFN's input.
    Normed,
}
