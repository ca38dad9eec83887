//! The assistant of a Gemma 4 model, which drafts tokens for it. Its layers are Gemma 4's with
//! queries only. They read the keys and values of the model.
//! [`Model::drafting_for`](crate::Model::drafting_for) combines both.

use super::{gemma4, prelude::*};
use thermocline_cpu::ops::AttentionWindow;

pub(super) const FAMILY: Family = Family {
    architectures: &["gemma4-assistant"],
    model_types: &["gemma4_assistant", "gemma4_unified_assistant"],
    config,
    layer: gemma4::layer,
    import,
};

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = gemma4::without_sharing(loader, sizes)?;
    config.reads_other_keys = true;
    for attention in config.attentions_mut() {
        // The layers of the other model are known only together with it.
        attention.kv_from = Some(0);
        // The first key is a whole window away from the last one, not from the drafted token.
        let window = attention.window.map(|window| AttentionWindow::sliding(window.length.saturating_add(1)));
        attention.window = window;
    }
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    gemma4::import_as("gemma4-assistant", hf, draft)?;
    draft.set_size("embedding_length_out", hf.or_default(&["backbone_hidden_size"], 1536)?)?;
    draft.set_size("centroid_intermediate_top_k", hf.or_default(&["centroid_intermediate_top_k"], 32)?)?;
    let naming = &mut draft.naming;
    naming.add("pre_projection", "nextn.pre_projection");
    naming.add("post_projection", "nextn.post_projection");
    naming.add("masked_embedding.centroids", "masked_embd_centroids");
    naming.whole("masked_embedding.token_ordering", "masked_embd_ordering", Transform::None);
    Ok(())
}
