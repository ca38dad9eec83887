//! Mamba-2 layers, which several families have: their sizes, weights and names in folders.
//!
//! GGUF and Hugging Face have gates, inputs, `B`, `C` and steps in one matrix, in this order.

use std::sync::Arc;

use super::{
    Loader,
    parts::{short_conv, split},
};
use crate::{
    error::Result,
    format::{Array, Value},
    model::{
        Mamba2Shape, Mamba2Weights, ModelConfig, RecurrentConfig, RecurrentWeights,
        import::{Draft, Gather, HfConfig, Transform},
    },
};

/// Taps of a convolution, and heads, groups or elements that are believed.
const MOST_TAPS: usize = 64;
const LARGEST: usize = 1 << 16;
/// Least and largest step of a token, a key of this engine's own; without it there are no limits.
const STEP_LIMITS: &str = "ssm.time_step_limit";

/// Sizes of the Mamba-2 layers, checked against each other.
pub(super) fn config(loader: &Loader<'_>) -> Result<RecurrentConfig> {
    let size = |key: &str, most: usize| loader.required_size(key, 1..=most);
    let taps = size("ssm.conv_kernel", MOST_TAPS)?;
    let (heads, groups) = (size("ssm.time_step_rank", LARGEST)?, size("ssm.group_count", LARGEST)?);
    let (inner, state) = (size("ssm.inner_size", LARGEST * LARGEST)?, size("ssm.state_size", LARGEST)?);
    if !heads.is_multiple_of(groups) {
        return Err(loader.key_error("ssm.group_count", format!("a divisor of time_step_rank {heads}"), groups));
    }
    if !inner.is_multiple_of(heads) {
        return Err(loader.key_error("ssm.inner_size", format!("a multiple of time_step_rank {heads}"), inner));
    }
    let step_limits = match loader.floats(STEP_LIMITS, 2)?.as_deref() {
        Some(&[least, most]) if (0.0..=most).contains(&least) => [least, most],
        Some(other) => return Err(loader.key_error(STEP_LIMITS, "two ascending numbers from 0", format!("{other:?}"))),
        None => [0.0, f32::INFINITY],
    };
    let shape = Mamba2Shape { heads, head_dim: inner / heads, groups, state };
    Ok(RecurrentConfig::Mamba2 { shape, taps, step_limits })
}

/// Weights of layer `n`, if `config` says that it is such a layer.
pub(super) fn weights(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<Option<RecurrentWeights>> {
    let Some(RecurrentConfig::Mamba2 { shape, taps, .. }) = &config.layers[n].recurrent else { return Ok(None) };
    let (d, heads, inner, channels) = (config.d_model, shape.heads, shape.inner(), shape.channels());
    let stem = |role: &str| format!("blk.{n}.{role}");
    let [gate, xbc, dt] = split(loader, &stem("ssm_in"), d, [inner, channels, heads])?;
    let by_head = |role: &str| loader.vector_of_shape(&stem(role), &[&[heads], &[heads, 1]]);
    let by_group = [shape.groups, inner / shape.groups];
    Ok(Some(RecurrentWeights::Mamba2(Box::new(Mamba2Weights {
        gate,
        xbc,
        dt,
        conv: short_conv(loader, &stem("ssm_conv1d"), channels, *taps)?,
        dt_bias: loader.vector(&stem("ssm_dt.bias"), heads)?,
        a: by_head("ssm_a")?,
        d: by_head("ssm_d")?,
        norm: loader.vector_of_shape(&stem("ssm_norm.weight"), &[&[inner], &by_group])?,
        output: loader.linear(&stem("ssm_out"), d, inner)?,
    }))))
}

/// Sizes of the Mamba-2 layers of a folder.
pub(super) struct HfMamba2 {
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    pub(super) groups: usize,
    pub(super) state: usize,
    pub(super) taps: usize,
}

impl HfMamba2 {
    /// Sets the keys, and the names of the tensors under `model.layers.N.{stem}`.
    pub(super) fn draft(&self, hf: &HfConfig, draft: &mut Draft, stem: &str) -> Result<()> {
        let sizes = [self.heads, self.head_dim, self.groups, self.state, self.taps];
        if let Some(size) = sizes.iter().find(|size| !(1..=LARGEST).contains(*size)) {
            return Err(hf.error("Mamba-2 sizes", format!("numbers from 1 to {LARGEST}"), size));
        }
        let inner = self.heads * self.head_dim;
        draft.set_size("ssm.conv_kernel", self.taps)?;
        draft.set_size("ssm.state_size", self.state)?;
        draft.set_size("ssm.group_count", self.groups)?;
        draft.set_size("ssm.time_step_rank", self.heads)?;
        draft.set_size("ssm.inner_size", inner)?;
        if let Some(limits @ [least, most]) = hf.limits("time_step_limit")?
            && (least > 0.0 || most.is_finite())
        {
            draft.set(STEP_LIMITS, Value::Array(Array::F32(limits.to_vec())));
        }
        let channels = inner + 2 * self.groups * self.state;
        let all = |rows: usize| Arc::new(Gather::new(rows, [(0, rows)]));
        for (hf, gguf) in [("in_proj", "ssm_in"), ("norm", "ssm_norm"), ("out_proj", "ssm_out")] {
            draft.naming.add(format!("model.layers.*.{stem}.{hf}"), format!("blk.*.{gguf}"));
        }
        for (hf, gguf, transform) in [
            ("conv1d.weight", "ssm_conv1d.weight", Transform::Rows(all(channels))),
            ("conv1d.bias", "ssm_conv1d.bias", Transform::None),
            ("A_log", "ssm_a", Transform::Decay(all(self.heads))),
            ("D", "ssm_d", Transform::None),
            ("dt_bias", "ssm_dt.bias", Transform::None),
        ] {
            draft.naming.whole(format!("model.layers.*.{stem}.{hf}"), format!("blk.*.{gguf}"), transform);
        }
        Ok(())
    }
}
