//! The files that accompany an engine's model: a draft model and a vision tower.

use std::sync::Arc;

use super::{EngineOptions, draft_model};
use thermocline_base::error::{Error, Result};
use thermocline_model::{Model, Tower};
use thermocline_text::Tokenizer;

/// The models that accompany a model.
#[derive(Debug)]
pub(super) struct CompanionModels {
    /// A small model with the same tokens, which proposes tokens to the model.
    pub draft: Option<Arc<Model>>,
    /// The vision tower.
    pub tower: Option<Arc<Tower>>,
}

impl CompanionModels {
    /// Opens the companions of `model`, which has the tokens of `tokenizer`.
    pub fn open(options: &EngineOptions, model: &Model, tokenizer: &Tokenizer) -> Result<Self> {
        let mode = options.read_mode;
        let draft = options.draft.as_deref().map(|path| draft_model::open(path, mode, model, tokenizer));
        let tower = match Tower::of_model(model, options.mmproj.as_deref(), mode)? {
            Some(tower) if !has_part_ends(&tower, tokenizer) => {
                let path = tower.checkpoint.path.display();
                let wanted = "a vocabulary with the tokens that follow parts of its pictures";
                if options.mmproj.is_some() {
                    return Err(Error::invalid("vision tower", wanted, path));
                }
                tracing::warn!(%path, "the vision tower is not used, because it needs {wanted}");
                None
            }
            tower => tower,
        };
        let tower = tower.map(|tower| Arc::new(tower.within(options.context_of(&model.config))));
        Ok(CompanionModels { draft: draft.transpose()?.map(Arc::new), tower })
    }

    /// Bytes of their weights.
    pub fn tensor_bytes(&self) -> u64 {
        let draft = self.draft.as_ref().map_or(0, |draft| draft.checkpoint.tensor_bytes());
        draft + self.tower.as_ref().map_or(0, |tower| tower.checkpoint.tensor_bytes())
    }

    /// Tokens of the largest picture if `model` computes a picture in one chunk, or else 0.
    pub fn whole_picture(&self, model: &Model) -> usize {
        let whole = model.config.attentions().any(|of| of.whole_pictures);
        self.tower.as_ref().filter(|_| whole).map_or(0, |tower| tower.most_tokens())
    }
}

/// True if `tokenizer` has the tokens that follow parts of the tower's pictures.
fn has_part_ends(tower: &Tower, tokenizer: &Tokenizer) -> bool {
    tower.part_ends().into_iter().all(|text| tokenizer.picture_part_end(text).is_some())
}
