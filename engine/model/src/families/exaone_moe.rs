//! K-EXAONE: norms precede attention and FFN, and query and key heads have norms. Three of four
//! layers have a window, and only these layers are rotated. After some dense layers, the other
//! layers choose experts by sigmoid and bias, and have a shared expert.

use super::{exaone, prelude::*};

pub(super) const FAMILY: Family =
    Family { architectures: &["exaone-moe"], model_types: &["exaone_moe"], config, layer: usual_layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.experts = Some(loader.required_experts(Router::sigmoid(true), |_| 0)?);
    loader.apply_window(&mut config, None, exaone::INTERVAL)?;
    exaone::rotate_windows(loader, &mut config)?;
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let sizes = draft.usual(hf, "exaone-moe", 10_000.0, Activation::Silu)?;
    exaone::import_windows(hf, draft, sizes.n_layer)?;
    draft.experts(hf, &["num_experts"], &["num_experts_per_tok"], &["moe_intermediate_size"])?;
    draft.set_size("expert_shared_count", hf.or_default(&["num_shared_experts"], 0)?)?;
    draft.router(hf, Router::sigmoid(true))?;
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.norms_of_heads();
    naming.mlp_experts();
    naming.shared_expert("mlp.shared_experts");
    for stem in ["mlp", "mlp.gate"] {
        naming.selection_bias(&format!("{stem}.e_score_correction_bias"));
    }
    Ok(())
}
