//! The pictures of a prompt, and the tokens that stand for them in its text.

use super::{
    Prompt,
    engine_state::EngineState,
    picture_ids::{ConversationPictures, FIRST},
};
use thermocline_base::error::{Error, Result};
use thermocline_model::{PictureCell, PictureGrid, PicturePart};
use thermocline_pictures::Picture;
use thermocline_text::{PictureMarks, Tokenizer};

/// The pictures of a chat, and how its text marks them.
pub(super) struct PromptPictures {
    pub all: Vec<PromptPicture>,
    pub marks: PictureMarks,
}

impl PromptPictures {
    /// The pictures of `prompt`; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the model has no vision tower or no token for pictures, or if the
    /// tower does not take a picture.
    pub fn of(state: &EngineState, prompt: &Prompt) -> Result<Option<Self>> {
        let pictures: Vec<Picture> = prompt.pictures().cloned().collect();
        if pictures.is_empty() {
            return Ok(None);
        }
        let tower = state.tower()?;
        let metadata = &state.model.checkpoint.metadata;
        let marks = state.text.tokenizer.picture_marks(metadata)?.ok_or_else(|| {
            Error::invalid("prompt", "no pictures, because the vocabulary has no token for them", pictures.len())
        })?;
        let all = pictures.into_iter().map(|picture| {
            let (width, height) = (picture.width(), picture.height());
            let parts = tower.parts(width, height)?.into_iter().map(|part| prompt_part(&state.text.tokenizer, part));
            let parts = parts.collect::<Result<_>>()?;
            let (grid, text_positions) = (tower.grid(width, height)?, tower.has_text_positions());
            let cells = tower.cells(width, height)?;
            Ok(PromptPicture { picture, grid, cells, parts, text_positions })
        });
        Ok(Some(PromptPictures { all: all.collect::<Result<_>>()?, marks }))
    }

    /// The tokens of `prompt` as the model reads them, with the vocabulary's token in place of each
    /// token of a picture. No pixels are read.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `prompt` has another number of pictures.
    pub fn count(&self, prompt: &[u32]) -> Result<Vec<u32>> {
        let token = self.marks.token;
        let mut tokens = replace_marks(prompt, &self.all, token, |_| Ok(FIRST))?;
        tokens.iter_mut().filter(|id| ConversationPictures::is_picture(**id)).for_each(|id| *id = token);
        Ok(tokens)
    }
}

/// A part of a picture with the ids of the tokens that follow it.
///
/// # Errors
/// [`Error::Invalid`] if the vocabulary has no such token.
fn prompt_part(tokenizer: &Tokenizer, PicturePart { grid, after }: PicturePart) -> Result<PromptPart> {
    let id = |text: &str| {
        let wanted = format!("the token {text:?} that follows parts of pictures");
        tokenizer.picture_part_end(text).ok_or_else(|| Error::invalid("vocabulary", wanted, "none"))
    };
    Ok(PromptPart { grid, after: after.into_iter().map(id).collect::<Result<_>>()? })
}

/// A part of a picture in a prompt.
#[derive(Debug, Clone)]
pub(super) struct PromptPart {
    pub grid: PictureGrid,
    /// Tokens of the text that follow it.
    pub after: Vec<u32>,
}

/// A picture in a prompt, and its tokens.
#[derive(Debug, Clone)]
pub(super) struct PromptPicture {
    pub picture: Picture,
    /// All tokens of the picture.
    pub grid: PictureGrid,
    /// What each token sees.
    pub cells: Vec<PictureCell>,
    /// Its parts, which have all of its tokens.
    pub parts: Vec<PromptPart>,
    /// True if its tokens have the positions of text.
    pub text_positions: bool,
}

impl PromptPicture {
    /// The tokens of the picture, from the id `first` on, and those of the text between its parts.
    fn tokens(&self, first: u32) -> Vec<u32> {
        let (mut tokens, mut next) = (Vec::new(), first);
        for PromptPart { grid, after } in &self.parts {
            let end = next + grid.tokens() as u32;
            tokens.extend(next..end);
            tokens.extend(after);
            next = end;
        }
        tokens
    }
}

/// Number of tokens at the beginning of `rest` that stand for a picture whose tokens are
/// `expanded`: as many as `expanded`, one and the token after the last part, or one.
fn stand_ins(rest: &[u32], token: u32, expanded: &[u32]) -> usize {
    let read = |id: u32| if ConversationPictures::is_picture(id) { token } else { id };
    if rest.len() >= expanded.len() && rest.iter().zip(expanded).all(|(id, wanted)| *id == read(*wanted)) {
        return expanded.len();
    }
    let ends =
        expanded.last().is_some_and(|last| !ConversationPictures::is_picture(*last) && rest.get(1) == Some(last));
    1 + usize::from(ends)
}

/// Puts the tokens of `pictures` in place of the occurrences of `token` in `prompt`. `first`
/// returns the id of a picture's first token.
pub(super) fn replace_marks(
    prompt: &[u32],
    pictures: &[PromptPicture],
    token: u32,
    mut first: impl FnMut(&PromptPicture) -> Result<u32>,
) -> Result<Vec<u32>> {
    let (mut tokens, mut rest, mut found) = (Vec::with_capacity(prompt.len()), prompt, 0);
    while let Some((id, after)) = rest.split_first() {
        let Some(picture) = pictures.get(found).filter(|_| *id == token) else {
            found += usize::from(*id == token);
            tokens.push(*id);
            rest = after;
            continue;
        };
        found += 1;
        let expanded = picture.tokens(first(picture)?);
        rest = &rest[stand_ins(rest, token, &expanded)..];
        tokens.extend(expanded);
    }
    if found != pictures.len() {
        let expected = format!("{} pictures in the text of the chat template", pictures.len());
        return Err(Error::invalid("prompt", expected, found));
    }
    Ok(tokens)
}
