//! Parameters of matrix products and related kernels: quantised inputs, rows of embeddings, and
//! sums of splits.

use bytemuck::{Pod, Zeroable};

use super::Params;

params! {
    /// `gemv`, `gemv_dot` and `gemm`
    Matmul {
        /// Rows of the bound weights.
        rows: u32,
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Rows of the input.
        tokens: u32,
        /// Elements from one input row to the next; a multiple of 32, zero past the columns.
        x_pitch: u32,
        /// Elements from one output row to the next.
        y_pitch: u32,
        /// Offset of the first row of weights in an output row.
        y_offset: u32,
        /// Offset of the bias of the first row of weights.
        bias_offset: u32,
        /// Workgroups in one row of the grid.
        stride: u32,
    }

    /// `quantise_q8`
    Quantise {
        /// 32-column chunks of a row.
        chunks: u32,
        /// Rows.
        tokens: u32,
        /// Elements from one row to the next; a multiple of 32, zero past the columns.
        x_pitch: u32,
        /// Invocations in one row of the grid.
        stride: u32,
    }

    /// `half_scale`
    HalfScale {
        /// 32-column chunks of a row.
        chunks: u32,
        /// Elements from one row to the next; a multiple of 32.
        x_pitch: u32,
    }

    /// `embedding`
    Embedding {
        /// The first bound row.
        first_row: u32,
        /// Number of bound rows.
        rows: u32,
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Rows of the output.
        tokens: u32,
        /// Elements from one row of the output to the next; a multiple of 32.
        pitch: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Factor on every element.
        scale: f32,
    }

    /// `sum_splits`
    SumSplits {
        /// Columns of a row, without padding.
        cols: u32,
        /// Elements from one row of the sum to the next.
        pitch: u32,
        /// Rows of the sum, and of each partial sum.
        tokens: u32,
        /// Partial sums.
        splits: u32,
        /// Elements from one partial sum to the next.
        partial_pitch: u32,
        /// Invocations in one row of the grid.
        stride: u32,
    }
}
