//! Parameters of MoE layers: routing, pairs of a token and an expert, their products.

use bytemuck::{Pod, Zeroable};

use super::Params;

params! {
    /// `route`
    Route {
        /// Experts to choose from, at most [`ROUTE_EXPERTS`](crate::limits::ROUTE_EXPERTS).
        experts: u32,
        /// Elements from one token's scores to the next's.
        pitch: u32,
        /// Experts a token uses, at most [`ROUTE_USED`](crate::limits::ROUTE_USED) and at most as many as there are.
        used: u32,
        /// Rows of scores.
        tokens: u32,
        /// 1 if the router weights of the chosen experts are divided by their sum, else 0.
        renormalise: u32,
        /// Groups of experts, at most [`ROUTE_GROUPS`](crate::limits::ROUTE_GROUPS); 0: none.
        groups: u32,
        /// Groups whose experts may be chosen.
        groups_used: u32,
        /// Best experts of a group whose sum says how good it is.
        groups_best: u32,
        /// Factor on the weights.
        scale: f32,
    }

    /// `group_slots`
    GroupSlots {
        /// Experts to choose from, at most [`ROUTE_EXPERTS`](crate::limits::ROUTE_EXPERTS).
        experts: u32,
        /// Pairs of a token and one of its experts.
        pairs: u32,
        /// Tiles of the grid that follows: [`expert_tiles`](crate::limits::expert_tiles).
        tiles: u32,
    }

    /// `slot_list`, one workgroup per neuron block
    SlotList {
        /// Neurons a workgroup of the kernel that runs over the list takes.
        per_workgroup: u32,
        /// Its workgroups in one row of the grid.
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
        /// Pairs in a row that read one row of the input.
        pairs_per_row: u32,
        /// Elements from one input row to the next; a multiple of 32, zero past the columns.
        x_pitch: u32,
        /// Elements from one pair's output to the next's.
        y_pitch: u32,
        /// Where the first row of weights writes in a pair's output.
        y_offset: u32,
        /// The first expert bound.
        first_expert: u32,
        /// Experts bound.
        experts: u32,
        /// The expert whose biases are the first.
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
        /// Rows from a neuron's gate to its up (0 where the gates are known).
        up_at: u32,
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Pairs of a token and one of its experts.
        pairs: u32,
        /// Pairs in a row that read one row of the input.
        pairs_per_row: u32,
        /// Elements from one input row to the next; a multiple of 32, zero past the columns.
        x_pitch: u32,
        /// Elements from one pair's gates to the next's, where they are known.
        gates_pitch: u32,
        /// Elements from one pair's hidden activations to the next's.
        hidden_pitch: u32,
        /// The first expert bound.
        first_expert: u32,
        /// Experts bound.
        experts: u32,
        /// The expert whose biases are the first.
        first_bias: u32,
        /// Workgroups in one row of the grid.
        stride: u32,
        /// Magnitude of the gate's activation at or below which a neuron's up row is not read.
        threshold: f32,
    }

    /// `combine`
    Combine {
        /// Elements of a row that count.
        cols: u32,
        /// Elements from one row to the next, in the experts' outputs, the shared expert's and the sum.
        pitch: u32,
        /// Rows of the sum.
        tokens: u32,
        /// Experts a token uses.
        used: u32,
        /// Elements from one token's gate to the next's.
        gate_pitch: u32,
        /// Experts on the device: the outputs of those whose place is not below this are not looked at.
        resident: u32,
        /// 1 if the value at the destination is part of the sum, else 0.
        add: u32,
        /// Invocations in one row of the grid.
        stride: u32,
    }
}
