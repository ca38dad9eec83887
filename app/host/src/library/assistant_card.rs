//! The card of an assistant, which drafts tokens for a model and is not a model by itself.

use std::path::Path;

use thermocline_engine::{
    Result,
    format::ReadMode,
    model::{AssistantBase, Model},
    tokenizer::Tokenizer,
};

use super::{ModelCard, ModelId};

/// Properties of an assistant that decide for which models it can draft.
#[derive(Debug, Clone, PartialEq)]
pub struct AssistantCard {
    /// Identity.
    pub id: ModelId,
    /// Bytes of weights.
    pub bytes: u64,
    base: AssistantBase,
    /// Hash of its tokens. `None` without a usable tokenizer.
    tokens: Option<u64>,
}

impl AssistantCard {
    /// Reads the card of the file or folder `path`; `None` if this is not an assistant.
    ///
    /// # Errors
    /// The reason why the file cannot be read.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let checkpoint = Model::open_checkpoint(path, ReadMode::Map)?;
        let Some(base) = AssistantBase::of(&checkpoint) else { return Ok(None) };
        let tokens = Tokenizer::from_checkpoint(&checkpoint).ok().map(|tokenizer| tokenizer.hash_of_tokens());
        let id = ModelId::Path(path.to_owned());
        Ok(Some(AssistantCard { id, bytes: checkpoint.tensor_bytes(), base, tokens }))
    }

    /// `true` if this assistant can be the draft model of `model`.
    pub fn drafts_for(&self, model: &ModelCard) -> bool {
        let AssistantBase { architecture, d_model } = self.base;
        let same_tokens = self.tokens.is_some() && self.tokens == model.tokens;
        same_tokens && model.architecture == architecture && model.width == d_model
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assistants_draft_for_models_of_their_architecture_and_width() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let assistant = AssistantCard::read(&fixtures.join("assistants/gemma4")).unwrap().unwrap();
        let model = |name: &str| ModelCard::read(&ModelId::Path(fixtures.join("models").join(name))).unwrap();
        assert!(assistant.bytes > 0 && assistant.drafts_for(&model("gemma4")));
        assert!(!assistant.drafts_for(&model("gemma3")), "another architecture");
        let wider = ModelCard { width: 65, ..model("gemma4") };
        assert!(!assistant.drafts_for(&wider));
        let other_tokens = ModelCard { tokens: Some(1), ..model("gemma4") };
        assert!(!assistant.drafts_for(&other_tokens));
        assert_eq!(AssistantCard::read(&fixtures.join("models/gemma4")).unwrap(), None);
    }
}
