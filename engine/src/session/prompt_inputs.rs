//! A prompt as the inputs of passes beside the engine's sessions, which explain answers and
//! pictures.

use std::sync::Arc;

use super::{ChatOptions, Prompt, encoded_prompt::encode, engine::Engine, picture_ids::ConversationPictures};
use thermocline_base::error::Result;
use thermocline_cpu::Cpu;
use thermocline_model::Tower;
use thermocline_pictures::PictureHash;
use thermocline_run::{
    hybrid::PictureProcessor,
    runtime::{PlacedPicture, Probe},
};
use thermocline_text::EncodeOptions;

/// The tokens of a prompt, and its pictures.
#[derive(Debug)]
pub struct PromptInputs {
    /// Token ids. Ids of pictures are above the vocabulary.
    ids: Vec<u32>,
    /// `ids` as the model reads them.
    tokens: Vec<u32>,
    pictures: ConversationPictures,
    tower: Option<Arc<Tower>>,
}

impl Engine {
    /// The inputs of a request's prompt. `chat` holds the values for the chat template.
    ///
    /// # Errors
    /// The errors of [`Engine::prompt_tokens`].
    pub fn prompt_inputs(&self, prompt: Prompt, chat: &ChatOptions) -> Result<PromptInputs> {
        let encoded = encode(self.state(), prompt, chat, EncodeOptions::CHAT, None)?;
        let tokens = encoded.pictures.read(&encoded.tokens).into_owned();
        Ok(PromptInputs { ids: encoded.tokens, tokens, pictures: encoded.pictures, tower: self.tower().cloned() })
    }
}

impl PromptInputs {
    /// The tokens. The vocabulary's token replaces tokens of pictures.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Computes the embeddings of the pictures on `cpu`, except of pictures that the sessions know.
    ///
    /// # Errors
    /// The errors of [`PictureProcessor::embed`].
    pub fn embed(&self, cpu: Cpu, probe: &mut dyn Probe) -> Result<()> {
        let Some(tower) = &self.tower else { return Ok(()) };
        let mut processor = PictureProcessor::new(Arc::clone(tower), cpu);
        while let Some(picture) = self.pictures.next_to_embed(self.ids.iter()) {
            picture.embed(&mut processor, None, probe)?;
        }
        Ok(())
    }

    /// The pictures as embeddings at their places.
    ///
    /// # Errors
    /// [`Error::Invalid`](thermocline_base::error::Error::Invalid) before [`PromptInputs::embed`].
    pub fn placed(&self) -> Result<Vec<PlacedPicture<'_>>> {
        self.pictures.placed(&self.ids, 0)
    }

    /// Indices of a picture's tokens, row by row, where the prompt contains the picture last. Empty
    /// if the prompt does not contain it.
    pub fn patches(&self, picture: PictureHash) -> Vec<usize> {
        let patch = |id: &u32| self.pictures.patch(*id).filter(|patch| patch.picture == picture.0);
        let mut places = Vec::new();
        for (at, patch) in self.ids.iter().enumerate().filter_map(|(at, id)| Some((at, patch(id)?))) {
            if patch.token == 0 {
                places.clear();
            }
            places.push(at);
        }
        places
    }
}
