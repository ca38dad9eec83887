//! Latent attention (MLA), and the dense layer ahead of the experts.

use super::{
    plan::{ATTENTION_GROWTH, Content, FFN_GROWTH, RESERVED, SILU_SECOND_MOMENT, SynthPlan},
    random::StreamPurpose,
    shape::{LatentSizes, SynthShape},
};
use crate::format::Value;

/// Sets the metadata keys of latent attention, without the architecture's prefix.
pub(super) fn set_keys(sizes: &LatentSizes, set: &mut dyn FnMut(&str, Value)) {
    for (key, size) in [
        ("leading_dense_block_count", 1),
        ("attention.q_lora_rank", sizes.queries),
        ("attention.kv_lora_rank", sizes.keys),
        ("attention.key_length", sizes.keys + sizes.rotated),
        ("attention.value_length", sizes.keys),
        ("attention.key_length_mla", sizes.plain + sizes.rotated),
        ("attention.value_length_mla", sizes.value),
        ("expert_group_count", 1),
        ("expert_group_used_count", 1),
    ] {
        set(key, Value::U32(size as u32));
    }
}

impl SynthPlan {
    /// Attention whose keys and values are compressed together.
    pub(super) fn list_latent_attention(&mut self, layer: usize, sizes: &LatentSizes) {
        let SynthShape { d_model: d, n_layer, n_head, .. } = self.shape;
        let at = |stem: &str| format!("blk.{layer}.{stem}");
        let normal = |purpose, cols: usize| Content::Normal { purpose, std: 1.0 / (cols as f32).sqrt(), quiet: 0 };
        let (queries, keys) = (sizes.queries, sizes.keys);
        self.norm(&at("attn_norm"), layer, 1.0, 0.0);
        self.constant(&at("attn_kv_a_norm.weight"), layer, &[keys], 1.0);
        self.constant(&at("attn_q_a_norm.weight"), layer, &[queries], 1.0);
        self.matrix(at("attn_q_a.weight"), layer, queries, d, normal(StreamPurpose::LatentQueries, d));
        let q_rows = n_head * (sizes.plain + sizes.rotated);
        self.matrix(at("attn_q_b.weight"), layer, q_rows, queries, normal(StreamPurpose::AttentionQ, queries));
        self.matrix(at("attn_kv_a_mqa.weight"), layer, keys + sizes.rotated, d, normal(StreamPurpose::LatentKeys, d));
        let k_b = [n_head, keys, sizes.plain];
        self.stacked(at("attn_k_b.weight"), layer, k_b, normal(StreamPurpose::AttentionK, sizes.plain));
        self.stacked(
            at("attn_v_b.weight"),
            layer,
            [n_head, sizes.value, keys],
            normal(StreamPurpose::AttentionV, keys),
        );
        let values = n_head * sizes.value;
        let std = (ATTENTION_GROWTH / n_layer as f64 / values as f64).sqrt() as f32;
        let content = Content::Normal { purpose: StreamPurpose::AttentionOutput, std, quiet: RESERVED };
        self.matrix(at("attn_output.weight"), layer, d, values, content);
    }

    /// The FFN of layer 0, which has `n_ff` neurons and no experts.
    pub(super) fn list_first_ffn(&mut self, n_ff: usize) {
        let SynthShape { d_model: d, n_layer, .. } = self.shape;
        let std = self.keeping_std();
        self.norm("blk.0.ffn_norm", 0, 1.0, 0.0);
        for (stem, purpose) in [("gate", StreamPurpose::FirstGate), ("up", StreamPurpose::FirstUp)] {
            let name = format!("blk.0.ffn_{stem}.weight");
            self.matrix(name, 0, n_ff, d, Content::Normal { purpose, std, quiet: 0 });
        }
        let growth = FFN_GROWTH / n_layer as f64;
        let std = (growth / (n_ff as f64 * SILU_SECOND_MOMENT)).sqrt() as f32;
        let content = Content::Normal { purpose: StreamPurpose::FirstDown, std, quiet: RESERVED };
        self.matrix("blk.0.ffn_down.weight", 0, d, n_ff, content);
    }
}
