//! Mamba-2 layers, shared by several families, and their names in folders.

use std::sync::Arc;

use super::prelude::*;
use crate::recurrent::{Mamba2Config, Mamba2Weights, STEP_LIMITS};

/// Largest accepted number of heads, groups or elements.
const LARGEST: usize = 1 << 16;

/// Reads the sizes of the Mamba-2 layers.
pub(super) fn config(loader: &Loader<'_>) -> Result<RecurrentConfig> {
    Mamba2Config::read(loader).map(RecurrentConfig::Mamba2)
}

/// Reads the Mamba-2 weights of layer `n`; `None` if `config` gives the layer another mixer.
pub(super) fn weights(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<Option<RecurrentWeights>> {
    let Some(RecurrentConfig::Mamba2(of)) = &config.layers[n].recurrent else { return Ok(None) };
    let weights = Mamba2Weights::load(&config.layer_tensors(loader, n), of)?;
    Ok(Some(RecurrentWeights::Mamba2(Box::new(weights))))
}

/// Sizes of the Mamba-2 layers of a folder.
pub(super) struct HfMamba2 {
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    pub(super) groups: usize,
    pub(super) state: usize,
    pub(super) taps: usize,
    /// Lower bound on a token's step, in addition to the limits that a folder may name.
    pub(super) least_step: f32,
}

impl HfMamba2 {
    /// Sets the keys, and the names of the tensors under `model.layers.N.{stem}`.
    pub fn draft(&self, hf: &HfConfig, draft: &mut Draft, stem: &str) -> Result<()> {
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
        let [least, most] = hf.limits("time_step_limit")?.unwrap_or([0.0, f32::INFINITY]);
        let least = least.max(self.least_step).min(most);
        if least > 0.0 || most.is_finite() {
            draft.set(STEP_LIMITS, Value::Array(Array::F32(vec![least, most])));
        }
        let channels = inner + 2 * self.groups * self.state;
        let all = |rows: usize| Arc::new(Gather::new(rows, [(0, rows)]));
        let names = [("in_proj", "ssm_in"), ("norm", "ssm_norm"), ("out_proj", "ssm_out")];
        draft.naming.layers(&format!("{stem}."), &names);
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
