//! Nemotron H's own parts of a shape: one mixer per layer, Mamba-2 in most of them.

use super::{
    plan::{ATTENTION_GROWTH, Content, NORM_EPS, RESERVED, SILU_SECOND_MOMENT, SynthPlan},
    random::StreamPurpose,
    shape::{Mamba2Sizes, SynthFamily, SynthShape},
};
use crate::format::{Array, Value};

/// Rate at which the state decays, per unit of a token's step.
const DECAY: f32 = -1.0;
/// Bias of the steps: `softplus(-2)` is 0.13.
const STEP_BIAS: f32 = -2.0;

impl SynthShape {
    /// Factor of the sum of the experts that a token uses.
    pub(super) fn router_scale(&self) -> f32 {
        match self.family {
            SynthFamily::NemotronH => 2.5,
            SynthFamily::DeepSeek => 1.8,
            _ => 1.0,
        }
    }
}

/// Sets the metadata keys that only models with one mixer per layer have, without the architecture's prefix.
pub(super) fn set_keys(shape: &SynthShape, sizes: &Mamba2Sizes, set: &mut dyn FnMut(&str, Value)) {
    let size = |size: usize| Value::U32(size as u32);
    let mixers = &sizes.mixers.as_bytes()[..shape.n_layer];
    let where_it_is = |mixer: u8, size: usize| {
        Value::Array(Array::U32(mixers.iter().map(|at| if *at == mixer { size as u32 } else { 0 }).collect()))
    };
    set("attention.head_count_kv", where_it_is(b'*', shape.n_kv_head));
    set("feed_forward_length", where_it_is(b'E', shape.n_ff));
    set("ssm.conv_kernel", size(sizes.taps));
    set("ssm.state_size", size(sizes.state));
    set("ssm.group_count", size(sizes.groups));
    set("ssm.inner_size", size(sizes.inner()));
    set("ssm.time_step_rank", size(sizes.heads));
    // llama.cpp wants this one, too.
    set("attention.layer_norm_epsilon", Value::F32(NORM_EPS));
    set("rope.scaling.finetuned", Value::Bool(false));
}

impl SynthPlan {
    /// A Mamba-2 layer: its state forgets a tenth per token, its convolution averages the last inputs.
    pub(super) fn list_mamba2(&mut self, layer: usize, sizes: &Mamba2Sizes) {
        let SynthShape { d_model: d, n_layer, .. } = self.shape;
        let (inner, heads) = (sizes.inner(), sizes.heads);
        let at = |stem: &str| format!("blk.{layer}.{stem}");
        let std = self.keeping_std();
        self.norm(&at("attn_norm"), layer, 1.0, 0.0);
        let content = Content::Normal { purpose: StreamPurpose::AttentionQkv, std, quiet: 0 };
        self.matrix(at("ssm_in.weight"), layer, inner + sizes.channels() + heads, d, content);
        let taps = [sizes.channels(), sizes.taps];
        self.constant(&at("ssm_conv1d.weight"), layer, &taps, 1.0 / (sizes.taps as f32).sqrt());
        self.zeros(&at("ssm_conv1d.bias"), layer, &[sizes.channels()]);
        self.constant(&at("ssm_dt.bias"), layer, &[heads], STEP_BIAS);
        self.constant(&at("ssm_a"), layer, &[heads, 1], DECAY);
        self.constant(&at("ssm_d"), layer, &[heads, 1], 1.0);
        self.constant(&at("ssm_norm.weight"), layer, &[sizes.groups, inner / sizes.groups], 1.0);
        let growth = ATTENTION_GROWTH / n_layer as f64;
        let std = (growth / (inner as f64 * SILU_SECOND_MOMENT)).sqrt() as f32;
        let content = Content::Normal { purpose: StreamPurpose::AttentionOutput, std, quiet: RESERVED };
        self.matrix(at("ssm_out.weight"), layer, d, inner, content);
    }
}
