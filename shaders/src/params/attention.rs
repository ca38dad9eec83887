//! Parameters of attention: rotation and caches, scores, and gates of heads.

use bytemuck::{Pod, Zeroable};

use super::Params;

params! {
    /// `rope_append`, grid (`2 * kv_heads`, preceded by `n_head` if `first_kv_head` is 0; tokens)
    RopeAppend {
        /// Query heads.
        n_head: u32,
        /// Key/value heads.
        n_kv_head: u32,
        /// First key/value head of the page.
        first_kv_head: u32,
        /// Key/value heads of the page.
        kv_heads: u32,
        /// Elements of a query or key head.
        head_dim: u32,
        /// Elements of a value head.
        value_dim: u32,
        /// Rotated elements of a head, even.
        dims: u32,
        /// Elements from one token's stacked q, k, v to the next's.
        qkv_pitch: u32,
        /// Elements from one token's queries to the next's, a multiple of 4. Consecutive heads are
        /// [`head_pitch`](crate::head_pitch) apart.
        q_pitch: u32,
        /// Position of the first token. Its row in the caches is `position % capacity`.
        position: u32,
        /// Rows of each head in the caches, [`head_pitch`](crate::head_pitch) elements each.
        capacity: u32,
        /// Added under the square root of the heads' norms.
        eps: f32,
        /// Factor of the logarithm by which queries grow with their position.
        query_beta: f32,
        /// Positions per step of that growth, at least 1.
        query_length: u32,
        /// Offset added to positions in that growth.
        query_offset: u32,
        /// First row of this sequence's tokens in the buffers that sequences share.
        row: u32,
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
        /// Position of the first token. Its row in the cache is `position % capacity`.
        position: u32,
        /// Rows of the cache.
        capacity: u32,
        /// Added under the square root of the latent's norm.
        eps: f32,
        /// Factor of the logarithm by which queries grow with their position.
        query_beta: f32,
        /// Positions per step of that growth, at least 1.
        query_length: u32,
        /// Offset added to positions in that growth.
        query_offset: u32,
        /// First row of this sequence's tokens in the buffers that sequences share.
        row: u32,
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
        /// Elements of heads per gate, or elements per head if each gate follows the query of its
        /// head.
        gate_width: u32,
        /// Elements from one token's queries and gates to the next's.
        gate_pitch: u32,
        /// Index of a token's first gate, if the gates are separate.
        gate_first: u32,
    }

    /// `attention_decode` (grid: [`DecodeGrid`](crate::DecodeGrid)) and `attention_prompt` (grid:
    /// query heads of the page; groups of [`ATTENTION_QUERIES`](crate::limits::ATTENTION_QUERIES)
    /// tokens; groups of [`ATTENTION_OUT`](crate::limits::ATTENTION_OUT) elements)
    Attention {
        /// Query heads.
        n_head: u32,
        /// Key/value heads.
        n_kv_head: u32,
        /// First key/value head of the page.
        first_kv_head: u32,
        /// Key/value heads of the page.
        kv_heads: u32,
        /// Elements from one token's queries to the next's, a multiple of 4.
        q_pitch: u32,
        /// Elements from one token's output to the next's.
        out_pitch: u32,
        /// Tokens of the chunk.
        tokens: u32,
        /// Position of the first token.
        position: u32,
        /// Rows of each head in the caches. Each head is a ring with room for all keys that the
        /// tokens see and 64 more positions.
        capacity: u32,
        /// A query sees itself and the `window - 1` keys before it. 0: all keys.
        window: u32,
        /// Keys of one split (decoding only).
        span: u32,
        /// Splits (decoding only).
        splits: u32,
        /// Factor on query-key products.
        scale: f32,
        /// Scores are capped as `softcap * tanh(score / softcap)`. 0: no cap.
        softcap: f32,
        /// First row of this sequence's tokens in the buffers that sequences share.
        row: u32,
    }

    /// `attention_merge`, grid (`n_head`, tokens)
    AttentionMerge {
        /// Query heads.
        n_head: u32,
        /// Elements from one token's output to the next's.
        out_pitch: u32,
        /// Partials per head and token.
        splits: u32,
        /// First row of this sequence's tokens in the buffers that sequences share.
        row: u32,
    }
}
