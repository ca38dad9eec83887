//! Parameters of MoE layers: routing, pairs of a token and an expert, and their products.

use bytemuck::{Pod, Zeroable};

use super::Params;

params! {
    /// `route`
    Route {
        /// Experts to choose from, at most [`ROUTE_EXPERTS`](crate::limits::ROUTE_EXPERTS).
        experts: u32,
        /// Elements from one token's scores to the next's.
        pitch: u32,
        /// Experts per token, at most [`ROUTE_USED`](crate::limits::ROUTE_USED) and at most
        /// `experts`.
        used: u32,
        /// Rows of scores.
        tokens: u32,
        /// 1 if the router weights of the chosen experts are divided by their sum, else 0.
        renormalise: u32,
        /// Groups of experts, at most [`ROUTE_GROUPS`](crate::limits::ROUTE_GROUPS). 0: no groups.
        groups: u32,
        /// Groups whose experts may be chosen.
        groups_used: u32,
        /// A group is ranked by the sum of this many of its best experts.
        groups_best: u32,
        /// Factor on the router weights.
        scale: f32,
    }

    /// `group_slots`
    GroupSlots {
        /// Experts to choose from, at most [`ROUTE_EXPERTS`](crate::limits::ROUTE_EXPERTS).
        experts: u32,
        /// Pairs of a token and one of its experts.
        pairs: u32,
        /// Tiles of the next kernel's grid: [`expert_tiles`](crate::limits::expert_tiles).
        tiles: u32,
    }

    /// `slot_list`, with one workgroup per neuron block
    SlotList {
        /// Neurons per workgroup of the kernel that runs over the list.
        per_workgroup: u32,
        /// Workgroups in one row of that kernel's grid.
        stride: u32,
    }

    /// `expert_gemv` and `expert_gemm`
    ExpertMatmul {
        /// Rows of an expert.
        rows: u32,
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Pairs of a token and one of its experts.
        pairs: u32,
        /// Consecutive pairs that read the same row of the input.
        pairs_per_row: u32,
        /// Elements from one input row to the next; a multiple of 32, zero past the columns.
        x_pitch: u32,
        /// Elements from one pair's output to the next's.
        y_pitch: u32,
        /// Offset of the first row of weights in a pair's output.
        y_offset: u32,
        /// The first bound expert.
        first_expert: u32,
        /// Number of bound experts.
        experts: u32,
        /// The first expert with bound biases.
        first_bias: u32,
        /// Workgroups in one row of the grid.
        stride: u32,
    }

    /// `expert_gate_up`
    ExpertGateUp {
        /// Neurons of an expert.
        neurons: u32,
        /// Rows of an expert in the weights.
        rows: u32,
        /// Rows from a neuron's gate row to its up row. 0 if the gates are known.
        up_at: u32,
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Pairs of a token and one of its experts.
        pairs: u32,
        /// Consecutive pairs that read the same row of the input.
        pairs_per_row: u32,
        /// Elements from one input row to the next; a multiple of 32, zero past the columns.
        x_pitch: u32,
        /// Elements from one pair's gates to the next's, if the gates are known.
        gates_pitch: u32,
        /// Elements from one pair's hidden activations to the next's.
        hidden_pitch: u32,
        /// The first bound expert.
        first_expert: u32,
        /// Number of bound experts.
        experts: u32,
        /// The first expert with bound biases.
        first_bias: u32,
        /// Workgroups in one row of the grid.
        stride: u32,
        /// A neuron's up row is not read if the magnitude of its gate's activation is at most this
        /// value.
        threshold: f32,
    }

    /// `combine`
    Combine {
        /// Columns of a row, without padding.
        cols: u32,
        /// Elements from one row to the next, in the outputs of the experts and of the shared
        /// expert, and in the sum.
        pitch: u32,
        /// Rows of the sum.
        tokens: u32,
        /// Experts a token uses.
        used: u32,
        /// Elements from one token's gate to the next's.
        gate_pitch: u32,
        /// Number of experts on the device. Outputs of experts with a place at or above it are
        /// ignored.
        resident: u32,
        /// 1 if the existing output value is part of the sum, else 0.
        add: u32,
        /// Invocations in one row of the grid.
        stride: u32,
    }
}
