//! Parameters of kernels that work per element or per row, or that test the device.

use bytemuck::{Pod, Zeroable};

use super::Params;

params! {
    /// `add` and similar kernels with one element per invocation
    Elements {
        /// Columns of a row, without padding.
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
        /// Neurons give 0 if the magnitude of their gate's activation is at most this value.
        /// Negative: no threshold.
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
        /// Columns of a row, without padding.
        cols: u32,
        /// Elements from one row to the next, in input and output.
        pitch: u32,
        /// Rows, one workgroup each.
        rows: u32,
        /// Workgroups in one row of the grid.
        stride: u32,
        /// Added under the square root.
        eps: f32,
    }

    /// `altup_predict`, `altup_correct` and `altup_add`
    Streams {
        /// Columns of a row, without padding.
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
        /// Columns of a row, without padding.
        cols: u32,
        /// Elements from one row of the gates, or of the result, to the next.
        pitch: u32,
        /// Rows.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Index of the first input element.
        first: u32,
    }

    /// `scale`
    Scale {
        /// Columns of a row, without padding.
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
        /// Columns of a row, without padding.
        cols: u32,
        /// Elements from one row to the next.
        pitch: u32,
        /// Rows.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Results are between `-cap` and `cap`.
        cap: f32,
    }

    /// `top_k`
    TopK {
        /// Values to choose from.
        len: u32,
        /// Values chosen per workgroup's range, at most [`TOP_K_MOST`](crate::limits::TOP_K_MOST).
        k: u32,
    }

    /// `subgroup_trial`
    SubgroupTrial {
        /// Value added to each invocation's index.
        value: u32,
    }
}
