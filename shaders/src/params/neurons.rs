//! Parameters of sparse FFNs: which neurons fire, and products with only those neurons.

use bytemuck::{Pod, Zeroable};

use super::Params;

params! {
    /// `active_mask`
    ActiveMask {
        /// Neurons of the layer.
        neurons: u32,
        /// Elements from one token's scores to the next's; a multiple of 4.
        pitch: u32,
        /// Least score of a neuron that fires.
        threshold: f32,
    }

    /// `gate_excess`
    GateExcess {
        /// Gates of a row.
        cols: u32,
        /// Elements from one row to the next.
        pitch: u32,
        /// Rows, one workgroup each.
        rows: u32,
        /// Workgroups in one row of the grid.
        stride: u32,
        /// Standard deviations by which a gate must exceed its row's mean.
        deviations: f32,
    }

    /// `sparse_gate_up`
    SparseGateUp {
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Rows from one neuron's first row to the next's.
        step: u32,
        /// Rows from a neuron's gate row to its up row. 0 without a gate.
        up_at: u32,
        /// Workgroups in one row of the grid, as in [`SlotList`](super::SlotList).
        stride: u32,
        /// Number of neurons, if there is no list of neurons.
        count: u32,
        /// With `GATE_FIRST`, a neuron's up row is not read if the magnitude of its gate's
        /// activation is at most this value.
        threshold: f32,
    }

    /// `sparse_down` and `gemm_neurons`
    SparseDown {
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Rows of the weights.
        neurons: u32,
        /// Rows of the hidden activations.
        tokens: u32,
        /// Elements from one token's hidden activations to the next's; a multiple of 4.
        hidden_pitch: u32,
        /// Ranges of neurons. Each range has a row of `32 * chunks` partial sums per token.
        splits: u32,
        /// Index of the first partial sum, among the partial sums of all matrices.
        first: u32,
        /// 1 if the sums are added to the existing values, else 0.
        accumulate: u32,
    }
}
