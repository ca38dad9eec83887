//! Least work of a dispatch, computed from its parameters: the bytes and operations that a kernel's
//! time is compared with.

use bytemuck::{bytes_of, pod_read_unaligned};
use thermocline_shaders::{
    WeightType,
    params::{self, Params},
};

use super::Pipeline;

/// Work of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Bytes that the kernel must read and write at least once.
    pub bytes: u64,
    /// Floating-point operations, two per multiply-accumulate; 0 for kernels that only move bytes.
    pub flops: u64,
}

impl Work {
    /// Returns the work of `pipeline` with `params`, or no work if the parameters do not determine
    /// it (indirect grids, routing).
    pub(super) fn of<P: Params>(pipeline: &Pipeline, params: &P) -> Work {
        if P::FIELDS == params::Matmul::FIELDS {
            matmul(pipeline.weights, &same(params))
        } else if P::FIELDS == params::ExpertMatmul::FIELDS {
            expert_matmul(pipeline.weights, &same(params))
        } else if P::FIELDS == params::SparseDown::FIELDS {
            let at: params::SparseDown = same(params);
            let (rows, chunks, tokens) = (at.neurons, at.chunks, at.tokens);
            matmul(pipeline.weights, &params::Matmul { rows, chunks, tokens, ..params::Matmul::default() })
        } else if P::FIELDS == params::Attention::FIELDS {
            attention(pipeline, &same(params))
        } else if P::FIELDS == params::Norm::FIELDS {
            let at: params::Norm = same(params);
            Work { bytes: 8 * u64::from(at.rows) * u64::from(at.cols), flops: 0 }
        } else if P::FIELDS == params::Elements::FIELDS {
            // `add` and gated activations have two inputs and an output.
            let at: params::Elements = same(params);
            Work { bytes: 12 * u64::from(at.rows) * u64::from(at.cols), flops: 0 }
        } else if P::FIELDS == params::TopK::FIELDS {
            let at: params::TopK = same(params);
            Work { bytes: 4 * u64::from(at.len), flops: 0 }
        } else if P::FIELDS == params::Stream::FIELDS {
            let at: params::Stream = same(params);
            Work { bytes: 16 * u64::from(at.len), flops: 0 }
        } else {
            Work::default()
        }
    }
}

/// Converts `params` to the type with the same fields. Every field of both types has four bytes, so
/// equal fields mean equal layouts.
fn same<P: Params, Q: Params>(params: &P) -> Q {
    pod_read_unaligned(bytes_of(params))
}

fn matmul(weights: Option<WeightType>, at: &params::Matmul) -> Work {
    let (rows, cols, tokens) = (u64::from(at.rows), u64::from(at.chunks) * 32, u64::from(at.tokens));
    let row_bytes = weights.map_or(0, |ty| ty.device_row_bytes(cols as usize) as u64);
    Work { bytes: rows * row_bytes + 4 * tokens * (rows + cols), flops: 2 * rows * cols * tokens }
}

/// Assumes that all pairs use experts of this matrix, and as many different experts as possible.
fn expert_matmul(weights: Option<WeightType>, at: &params::ExpertMatmul) -> Work {
    let (rows, cols, pairs) = (u64::from(at.rows), u64::from(at.chunks) * 32, u64::from(at.pairs));
    let row_bytes = weights.map_or(0, |ty| ty.device_row_bytes(cols as usize) as u64);
    let experts = pairs.min(u64::from(at.experts));
    Work { bytes: experts * rows * row_bytes + 4 * pairs * (rows + cols), flops: 2 * rows * cols * pairs }
}

fn attention(pipeline: &Pipeline, at: &params::Attention) -> Work {
    let (tokens, position) = (u64::from(at.tokens), u64::from(at.position));
    let window = if at.window == 0 { u64::MAX } else { u64::from(at.window) };
    let visible = |token: u64| (position + token + 1).min(window);
    let pairs: u64 = (0..tokens).map(visible).sum();
    // The last token's visible keys, and earlier keys that only earlier tokens see.
    let keys = visible(tokens.saturating_sub(1)).saturating_add(tokens.saturating_sub(1)).min(position + tokens);
    let element = if pipeline.overridden("KV_F32").is_some_and(|on| on != 0.0) { 4 } else { 2 };
    let head = pipeline.overridden("HEAD_DIM").map_or(0, |elements| elements as u64);
    // Heads of the KV page.
    let kv_heads = u64::from(at.kv_heads);
    let n_head = kv_heads * u64::from(at.n_head / at.n_kv_head.max(1));
    Work { bytes: 2 * keys * kv_heads * head * element + 8 * tokens * n_head * head, flops: 4 * pairs * n_head * head }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gpu, GpuOptions};

    #[test]
    fn work_counts_bytes_and_operations_of_the_equations() {
        let gpu = Gpu::open(&GpuOptions::first()).unwrap();
        let gemv = gpu.pipelines().get("gemv", Some(WeightType::Q4_0), 64, &[]).unwrap();
        let product = params::Matmul { rows: 100, chunks: 4, tokens: 3, ..params::Matmul::default() };
        // A row of 128 columns is 4 chunks of 16 bytes and 4 scales of 2.
        let bytes = 100 * (4 * 16 + 4 * 2) + 3 * 4 * (128 + 100);
        assert_eq!(Work::of(&gemv, &product), Work { bytes, flops: 2 * 100 * 128 * 3 });

        let decode = gpu.pipelines().get("attention_decode", None, 64, &[("HEAD_DIM", 8.0)]).unwrap();
        let experts = params::ExpertMatmul { rows: 10, chunks: 4, pairs: 6, experts: 4, ..Default::default() };
        let bytes = 4 * 10 * (4 * 16 + 4 * 2) + 6 * 4 * (128 + 10);
        assert_eq!(expert_matmul(gemv.weights, &experts), Work { bytes, flops: 2 * 10 * 128 * 6 });

        let of = |tokens, position, window| {
            let (n_head, n_kv_head) = (4, 2);
            let all =
                params::Attention { n_head, n_kv_head, kv_heads: 2, tokens, position, window, ..Default::default() };
            let [half, whole] = [1, 2].map(|kv_heads| Work::of(&decode, &params::Attention { kv_heads, ..all }));
            assert_eq!(Work { bytes: 2 * half.bytes, flops: 2 * half.flops }, whole);
            whole
        };
        let moved = |keys: u64, tokens: u64| 2 * keys * 2 * 8 * 2 + 8 * tokens * 4 * 8;
        assert_eq!(of(1, 9, 0), Work { bytes: moved(10, 1), flops: 4 * 10 * 4 * 8 });
        assert_eq!(of(3, 0, 0), Work { bytes: moved(3, 3), flops: 4 * (1 + 2 + 3) * 4 * 8 });
        assert_eq!(of(2, 20, 5), Work { bytes: moved(6, 2), flops: 4 * (5 + 5) * 4 * 8 });
    }
}
