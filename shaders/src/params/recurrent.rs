//! Parameters of recurrent mixers: short convolution, gated delta net, Mamba-2.

use bytemuck::{Pod, Zeroable};

use super::Params;

params! {
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
        /// 1 if the state is advanced past the tokens, which needs a grid of one run; else 0.
        save: u32,
        /// First row of this sequence's tokens in the buffers that sequences share.
        row: u32,
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
        /// Offset of the decays in a row of rates.
        decay_at: u32,
        /// Offset of the rates of the delta rule in a row of rates.
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
        /// Offset of the decays in a row of rates.
        decay_at: u32,
        /// Offset of the rates of the delta rule in a row of rates.
        rate_at: u32,
        /// Elements from one token's outputs to the next's.
        out_pitch: u32,
        /// First row of this sequence's tokens in the buffers that sequences share.
        row: u32,
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
        /// Offset of the steps in a row.
        steps_at: u32,
        /// Elements from one token's outputs to the next's.
        out_pitch: u32,
        /// Least step.
        least: f32,
        /// Largest step, finite.
        most: f32,
        /// First row of this sequence's tokens in the buffers that sequences share.
        row: u32,
    }

    /// `gated_norm`, grid (heads; tokens)
    GatedNorm {
        /// Elements of a head.
        dim: u32,
        /// Elements from one token's outputs to the next's.
        pitch: u32,
        /// Elements from one token's gates to the next's.
        gate_pitch: u32,
        /// Offset of the gates in a row.
        gate_at: u32,
        /// Added under the square root.
        eps: f32,
    }
}
