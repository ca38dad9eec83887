//! Parameters of kernels that work element by element, row by row, or on the device itself.

use bytemuck::{Pod, Zeroable};

use super::Params;

params! {
    /// One element per invocation: `add` and its like.
    Elements {
        /// Elements of a row that count.
        cols: u32,
        /// Elements from one row to the next.
        pitch: u32,
        /// Rows.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
    }

    /// `activation`
    Activation {
        /// Neurons.
        cols: u32,
        /// Elements from one row of the output to the next.
        pitch: u32,
        /// Rows.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Neurons whose gate's activation is not above this, as a magnitude, give 0; negative: none.
        threshold: f32,
    }

    /// `read_bandwidth`
    Stream {
        /// 16-byte elements to read.
        len: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Invocations of the grid.
        invocations: u32,
    }

    /// `norm`
    Norm {
        /// Elements of a row that count.
        cols: u32,
        /// Elements from one row to the next, in input and output.
        pitch: u32,
        /// Rows, one workgroup each.
        rows: u32,
        /// Workgroups in one row of the grid.
        stride: u32,
        /// Added under the root.
        eps: f32,
    }

    /// `altup_predict`, `altup_correct` and `altup_add`
    Streams {
        /// Elements of a row that count.
        cols: u32,
        /// Elements from one row to the next.
        pitch: u32,
        /// Rows of a stream.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Elements from one stream to the next.
        stream_pitch: u32,
        /// Elements from one token's modalities to the next's.
        modalities_pitch: u32,
    }

    /// `gated_input`
    GatedInput {
        /// Elements of a row that count.
        cols: u32,
        /// Elements from one row of the gates, or of the result, to the next.
        pitch: u32,
        /// Rows.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// The first element of the inputs.
        first: u32,
    }

    /// `scale`
    Scale {
        /// Elements of a row that count.
        cols: u32,
        /// Elements from one row to the next.
        pitch: u32,
        /// Rows.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Factor on every element.
        factor: f32,
    }

    /// `soft_cap`
    SoftCap {
        /// Elements of a row that count.
        cols: u32,
        /// Elements from one row to the next.
        pitch: u32,
        /// Rows.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// The result lies between `-cap` and `cap`.
        cap: f32,
    }

    /// `top_k`
    TopK {
        /// Values to choose from.
        len: u32,
        /// Values wanted of each workgroup's range, at most [`TOP_K_MOST`](crate::limits::TOP_K_MOST).
        k: u32,
    }

    /// `subgroup_trial`
    SubgroupTrial {
        /// Added to each invocation's index.
        value: u32,
    }
}
