//! Parameters of a dispatch, as they lie in a kernel's `var<immediate>`. Every field is four bytes, so that Rust and
//! WGSL lay them out alike; a test holds names, offsets and sizes against the kernels' own structs.

use bytemuck::{Pod, Zeroable};

/// Immediates of a kernel.
pub trait Params: Pod {
    /// Names and byte offsets of the fields.
    const FIELDS: &'static [(&'static str, usize)];
}

/// Defines parameter structs together with the list of their fields.
macro_rules! params {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $ty,)* }

        impl Params for $name {
            const FIELDS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*];
        }
    )* };
}

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
        /// Standard deviations above a row's mean that a gate has to exceed.
        deviations: f32,
    }

    /// `rope_append`, grid (`n_head + 2 * n_kv_head`, tokens)
    RopeAppend {
        /// Query heads.
        n_head: u32,
        /// Key/value heads.
        n_kv_head: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Rotated elements of a head, even.
        dims: u32,
        /// Elements from one token's stacked q, k, v to the next's.
        qkv_pitch: u32,
        /// Elements from one token's queries to the next's, a multiple of 4; heads are [`head_pitch`](crate::head_pitch) apart.
        q_pitch: u32,
        /// Position of the first token: its row of the caches.
        position: u32,
        /// Rows of each head in the caches, [`head_pitch`](crate::head_pitch) elements each.
        capacity: u32,
        /// Added under the root of the heads' norms.
        eps: f32,
        /// Weight of the logarithm by which queries grow with their position.
        query_beta: f32,
        /// Positions per step of that growth, at least 1.
        query_length: u32,
    }

    /// `latent_append`, grid (`n_head + 1`; tokens)
    LatentAppend {
        /// Query heads.
        n_head: u32,
        /// Elements of a head's query that are not rotated.
        nope_dim: u32,
        /// Rotated elements of a query or a key, even.
        rope_dim: u32,
        /// Elements of a latent.
        rank: u32,
        /// Elements from one token's queries to the next's.
        queries_pitch: u32,
        /// Elements from one token's projected latent and key to the next's.
        projected_pitch: u32,
        /// Elements from one head's input to the next's.
        inputs_pitch: u32,
        /// Position of the first token: its row of the cache.
        position: u32,
        /// Added under the root of the latent's norm.
        eps: f32,
    }

    /// `gate_heads`
    GateHeads {
        /// Elements of all heads together.
        cols: u32,
        /// Elements from one token's heads to the next's.
        pitch: u32,
        /// Tokens.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Elements of heads per gate; of a head, where gates stand behind the queries of their head.
        gate_width: u32,
        /// Elements from one token's queries and gates to the next's.
        gate_pitch: u32,
        /// The first gate of a token, where gates stand by themselves.
        gate_first: u32,
    }

    /// `short_conv`, grid (channels in groups of a workgroup's invocations; runs of `span` tokens)
    ShortConv {
        /// Channels.
        channels: u32,
        /// Taps, at least 1.
        taps: u32,
        /// Tokens of the chunk.
        tokens: u32,
        /// Elements from one token's inputs to the next's.
        x_pitch: u32,
        /// Elements from one token's outputs to the next's.
        y_pitch: u32,
        /// Tokens of a run.
        span: u32,
        /// 1 if the state is brought behind the tokens, by a grid of one run; else 0.
        save: u32,
    }

    /// `delta_inputs`, grid (`2 * k_heads + 1`; tokens)
    DeltaInputs {
        /// Heads of queries and keys.
        k_heads: u32,
        /// Heads of values.
        v_heads: u32,
        /// Elements of a query or key.
        k_dim: u32,
        /// Elements from one token's queries, keys and values to the next's.
        qkv_pitch: u32,
        /// Elements from one token's rates to the next's.
        rates_pitch: u32,
        /// Where the decays are in a row of rates.
        decay_at: u32,
        /// Where the rates of the delta rule are.
        rate_at: u32,
    }

    /// `delta_net`, grid (columns of the state in groups of `COLUMNS`; `v_heads`)
    DeltaNet {
        /// Tokens of the chunk.
        tokens: u32,
        /// Heads of queries and keys.
        k_heads: u32,
        /// Heads of values, a multiple of `k_heads`.
        v_heads: u32,
        /// Elements of a value.
        v_dim: u32,
        /// Elements from one token's queries, keys and values to the next's.
        qkv_pitch: u32,
        /// Elements from one token's rates to the next's.
        rates_pitch: u32,
        /// Where the decays are in a row of rates.
        decay_at: u32,
        /// Where the rates of the delta rule are.
        rate_at: u32,
        /// Elements from one token's outputs to the next's.
        out_pitch: u32,
    }

    /// `mamba2_scan`, grid (columns of the state in groups of `COLUMNS`; `heads`)
    Mamba2Scan {
        /// Tokens of the chunk.
        tokens: u32,
        /// Heads.
        heads: u32,
        /// Groups of consecutive heads, a divisor of `heads`.
        groups: u32,
        /// Elements of a head's input.
        width: u32,
        /// Elements from one token's inputs, `B` and `C` to the next's.
        vectors_pitch: u32,
        /// Elements from one token's steps to the next's.
        rates_pitch: u32,
        /// Where the steps are in a row.
        steps_at: u32,
        /// Elements from one token's outputs to the next's.
        out_pitch: u32,
        /// Least step.
        least: f32,
        /// Largest step, finite.
        most: f32,
    }

    /// `gated_norm`, grid (heads; tokens)
    GatedNorm {
        /// Elements of a head.
        dim: u32,
        /// Elements from one token's outputs to the next's.
        pitch: u32,
        /// Elements from one token's gates to the next's.
        gate_pitch: u32,
        /// Where the gates are in a row.
        gate_at: u32,
        /// Added under the root.
        eps: f32,
    }

    /// `attention_decode` (grid: [`DecodeGrid`](crate::DecodeGrid)) and `attention_prompt` (grid: `n_head`, then groups of
    /// [`ATTENTION_QUERIES`](crate::limits::ATTENTION_QUERIES) tokens)
    Attention {
        /// Query heads.
        n_head: u32,
        /// Key/value heads.
        n_kv_head: u32,
        /// Elements from one token's queries to the next's, a multiple of 4.
        q_pitch: u32,
        /// Elements from one token's output to the next's.
        out_pitch: u32,
        /// Tokens of the chunk.
        tokens: u32,
        /// Position of the first.
        position: u32,
        /// Rows of each head in the caches.
        capacity: u32,
        /// A query sees itself and the `window - 1` keys before it; 0: all.
        window: u32,
        /// Keys of one split (decoding only).
        span: u32,
        /// Splits (decoding only).
        splits: u32,
        /// Factor on query-key products.
        scale: f32,
        /// `cap * tanh(score / cap)`; 0: none.
        softcap: f32,
    }

    /// `attention_merge`, grid (`n_head`, tokens)
    AttentionMerge {
        /// Query heads.
        n_head: u32,
        /// Elements from one token's output to the next's.
        out_pitch: u32,
        /// Partials per head and token.
        splits: u32,
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

    /// `gemv`, `gemv_dot` and `gemm`
    Matmul {
        /// Rows of the weights bound.
        rows: u32,
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Rows of the input.
        tokens: u32,
        /// Elements from one input row to the next; a multiple of 32, zero past the columns.
        x_pitch: u32,
        /// Elements from one output row to the next.
        y_pitch: u32,
        /// Where the first row of weights writes in an output row.
        y_offset: u32,
        /// Where its bias is.
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

    /// `embedding`
    Embedding {
        /// The first row bound.
        first_row: u32,
        /// Rows bound.
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

    /// `group_slots`
    GroupSlots {
        /// Experts to choose from, at most [`ROUTE_EXPERTS`](crate::limits::ROUTE_EXPERTS).
        experts: u32,
        /// Pairs of a token and one of its experts.
        slots: u32,
        /// Tiles of the grid that follows: [`expert_tiles`](crate::limits::expert_tiles).
        tiles: u32,
    }

    /// `expert_gemv` and `expert_gemm`
    ExpertMatmul {
        /// Rows of an expert.
        rows: u32,
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Pairs of a token and one of its experts.
        slots: u32,
        /// Slots in a row that read one row of the input.
        slots_per_row: u32,
        /// Elements from one input row to the next; a multiple of 32, zero past the columns.
        x_pitch: u32,
        /// Elements from one slot's output to the next's.
        y_pitch: u32,
        /// Where the first row of weights writes in a slot's output.
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

    /// `top_k`
    TopK {
        /// Values to choose from.
        len: u32,
        /// Values wanted of each workgroup's range, at most [`TOP_K_MOST`](crate::limits::TOP_K_MOST).
        k: u32,
    }

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

    /// `active_mask`
    ActiveMask {
        /// Neurons of the layer.
        neurons: u32,
        /// Elements from one token's scores to the next's; a multiple of 4.
        pitch: u32,
        /// Least score of a neuron that fires.
        threshold: f32,
    }

    /// `active_list`
    ActiveList {
        /// Neurons of the layer.
        neurons: u32,
        /// Neurons a workgroup of the kernel that runs over the list takes.
        per_workgroup: u32,
        /// Its workgroups in one row of the grid.
        stride: u32,
    }

    /// `count_fired`
    CountFired {
        /// Neurons of the layer.
        neurons: u32,
        /// Rows of the mask.
        tokens: u32,
    }

    /// `slot_list`, one workgroup per neuron block
    SlotList {
        /// Neurons a workgroup of the kernel that runs over the list takes.
        per_workgroup: u32,
        /// Its workgroups in one row of the grid.
        stride: u32,
    }

    /// `sparse_gate_up`
    SparseGateUp {
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Rows from one neuron's first row to the next's.
        step: u32,
        /// Rows from a neuron's gate to its up (0 without a gate).
        up_at: u32,
        /// Workgroups in one row of the grid, as in [`ActiveList`].
        stride: u32,
        /// Neurons, where there is no list of them.
        count: u32,
        /// Magnitude of the gate's activation at or below which a neuron's up row is not read, with `GATE_FIRST`.
        threshold: f32,
    }

    /// `sparse_down` and `gemm_neurons`
    SparseDown {
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Rows of the weights (with `DENSE`; otherwise the list says how many).
        neurons: u32,
        /// Rows of the hidden activations.
        tokens: u32,
        /// Elements from one token's hidden activations to the next's; a multiple of 4.
        hidden_pitch: u32,
        /// Ranges the neurons are split into, each with a row of `32 * chunks` partial sums per token.
        splits: u32,
        /// Index of the first partial sum among those of all matrices.
        first: u32,
        /// 1 if the sums are added to the values there, else 0.
        accumulate: u32,
    }

    /// `sum_splits`
    SumSplits {
        /// Elements of a row that count.
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
