//! Random rows. ChaCha8, a counter-based generator, can make any row independently of the others.
//! Sums of four of its bytes are near enough to normal for weights and cost a few instructions.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// Purpose of a random stream. Streams of different purposes are independent.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub(super) enum StreamPurpose {
    Embedding,
    Positions,
    Output,
    AttentionQkv,
    AttentionQ,
    AttentionK,
    AttentionV,
    AttentionOutput,
    Direction,
    RowTerms,
    Firing,
    Up,
    Down,
    Order,
    SampleTokens,
    SampleNoise,
    Router,
    Experts,
    SharedGate,
    SharedUp,
    SharedDown,
    PerLayerTable,
    PerLayerProjection,
    PerLayerGate,
    PerLayerOutput,
    LatentQueries,
    LatentKeys,
    FirstGate,
    FirstUp,
    FirstDown,
    Agreement,
}

/// First stream for purposes without a name here; the last is the 255th.
const NAMED: u64 = 64;

impl StreamPurpose {
    /// Returns the purpose of a matrix's weights, if it is known; `recurrent` is true for layers
    /// without attention.
    pub fn of_weights(stem: &str, recurrent: bool) -> Option<Self> {
        Some(match stem {
            "output" => StreamPurpose::Output,
            "attn_qkv" | "ssm_in" => StreamPurpose::AttentionQkv,
            "attn_q" | "attn_q_b" => StreamPurpose::AttentionQ,
            "attn_gate" if recurrent => StreamPurpose::AttentionQ,
            "attn_k" | "attn_k_b" | "ssm_alpha" => StreamPurpose::AttentionK,
            "attn_v" | "attn_v_b" | "ssm_beta" => StreamPurpose::AttentionV,
            "attn_output" | "ssm_out" => StreamPurpose::AttentionOutput,
            "attn_q_a" => StreamPurpose::LatentQueries,
            "attn_kv_a_mqa" => StreamPurpose::LatentKeys,
            "ffn_gate_shexp" => StreamPurpose::SharedGate,
            "ffn_up_shexp" => StreamPurpose::SharedUp,
            "ffn_down_shexp" => StreamPurpose::SharedDown,
            "ffn_gate" => StreamPurpose::FirstGate,
            "ffn_up" => StreamPurpose::FirstUp,
            "ffn_down" => StreamPurpose::FirstDown,
            "per_layer_token_embd" => StreamPurpose::PerLayerTable,
            "per_layer_model_proj" => StreamPurpose::PerLayerProjection,
            "inp_gate" => StreamPurpose::PerLayerGate,
            "proj" => StreamPurpose::PerLayerOutput,
            _ => return None,
        })
    }

    /// Returns the stream of a matrix without a known purpose, from its name.
    pub fn of_name(stem: &str) -> u64 {
        let hash = stem.bytes().fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        NAMED + hash % (256 - NAMED)
    }
}

impl From<StreamPurpose> for u64 {
    fn from(purpose: StreamPurpose) -> u64 {
        purpose as u64
    }
}

/// Source of random rows: a seed and a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowSource {
    pub(super) seed: u64,
    pub(super) layer: usize,
}

impl RowSource {
    /// Returns the stream of one row; a purpose is a number below 256.
    pub fn stream(self, purpose: impl Into<u64>, row: usize) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream((self.layer as u64) << 40 | purpose.into() << 32 | row as u64);
        rng
    }

    /// Fills `row` with numbers of mean 0 and standard deviation `std`.
    pub fn normal(self, purpose: impl Into<u64>, at: usize, std: f32, row: &mut [f32]) {
        fill_normal(&mut self.stream(purpose, at), std, row);
    }
}

/// Fills `out` with numbers of mean 0 and standard deviation `std`, none beyond 3.5 standard
/// deviations.
pub(super) fn fill_normal(rng: &mut ChaCha8Rng, std: f32, out: &mut [f32]) {
    // Four bytes, each uniform over 0..256: mean 4 * 127.5, variance 4 * (256^2 - 1) / 12.
    let factor = std / ((65536.0f32 - 1.0) / 3.0).sqrt();
    let mut bytes = [0; 4096];
    for out in out.chunks_mut(bytes.len() / 4) {
        let bytes = &mut bytes[..4 * out.len()];
        rng.fill_bytes(bytes);
        for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
            let word = u32::from_le_bytes(*bytes);
            let pairs = (word & 0x00ff_00ff) + (word >> 8 & 0x00ff_00ff);
            let sum = (pairs & 0xffff) + (pairs >> 16);
            *out = (sum as i32 - 510) as f32 * factor;
        }
    }
}

/// Returns a permutation of `0..n`.
pub(super) fn permutation(rng: &mut ChaCha8Rng, n: usize) -> Vec<usize> {
    let mut keys: Vec<(u64, usize)> = (0..n).map(|at| (rng.next_u64(), at)).collect();
    keys.sort_unstable();
    keys.into_iter().map(|(_, at)| at).collect()
}
