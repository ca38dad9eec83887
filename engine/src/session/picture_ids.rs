//! Pictures in conversations. The tokens of a picture have ids of their own, above every
//! vocabulary. Equal pictures have equal ids, so that comparing tokens also compares pictures.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use thermocline_base::error::{Error, Result};
use thermocline_model::PictureGrid;
use thermocline_pictures::PictureHash;
use thermocline_run::runtime::PlacedPicture;

/// The first id of pictures' tokens.
const FIRST: u32 = 1 << 31;

/// A picture as embeddings of the model. Pictures with equal hashes are equal.
#[derive(Debug, Clone)]
pub struct PromptPicture {
    /// Hash of the picture's size and pixels.
    pub hash: PictureHash,
    /// Its tokens.
    pub grid: PictureGrid,
    /// Inputs of the first layer, `[tokens, d_model]`.
    pub embeddings: Vec<f32>,
    /// Values added after each of the first layers, `[tokens, d_model]`.
    pub deepstack: Vec<Vec<f32>>,
}

impl PartialEq for PromptPicture {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for PromptPicture {}

/// The ids of all pictures that an engine has seen.
#[derive(Debug)]
pub(super) struct PictureIds {
    /// The first id of each picture, by hash.
    known: HashMap<PictureHash, u32>,
    next: u32,
}

impl Default for PictureIds {
    fn default() -> Self {
        PictureIds { known: HashMap::new(), next: FIRST }
    }
}

impl PictureIds {
    /// The first id of `picture`, whose tokens have consecutive ids.
    fn first_of(&mut self, picture: &PromptPicture) -> Result<u32> {
        if let Some(first) = self.known.get(&picture.hash) {
            return Ok(*first);
        }
        let tokens = u32::try_from(picture.grid.tokens()).ok();
        let Some(next) = tokens.and_then(|tokens| self.next.checked_add(tokens)) else {
            return Err(Error::invalid("picture", "fewer pictures since the model was opened", "too many tokens"));
        };
        let first = std::mem::replace(&mut self.next, next);
        self.known.insert(picture.hash, first);
        Ok(first)
    }
}

/// A picture and the first id of its tokens.
#[derive(Debug, Clone)]
struct NumberedPicture {
    first: u32,
    picture: Arc<PromptPicture>,
}

/// The pictures of a conversation.
#[derive(Debug, Clone, Default)]
pub(super) struct ConversationPictures {
    all: Vec<NumberedPicture>,
    /// The token of the vocabulary in whose place pictures are.
    token: u32,
}

impl ConversationPictures {
    /// Puts the ids of `pictures` in place of the occurrences of `token` in `prompt`: one
    /// occurrence, or as many as a picture has tokens.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `prompt` has another number of pictures.
    pub fn expand(
        prompt: Vec<u32>,
        pictures: &[Arc<PromptPicture>],
        token: Option<u32>,
        ids: &mut PictureIds,
    ) -> Result<(Vec<u32>, Self)> {
        let none = || Error::invalid("prompt", "no pictures, because the model has no token for pictures", "pictures");
        if pictures.is_empty() {
            return Ok((prompt, ConversationPictures::default()));
        }
        let token = token.ok_or_else(none)?;
        let mut conversation = ConversationPictures { all: Vec::new(), token };
        let (mut tokens, mut rest, mut found) = (Vec::with_capacity(prompt.len()), &prompt[..], 0);
        while let Some((id, after)) = rest.split_first() {
            let Some(picture) = pictures.get(found).filter(|_| *id == token) else {
                found += usize::from(*id == token);
                tokens.push(*id);
                rest = after;
                continue;
            };
            found += 1;
            let first = ids.first_of(picture)?;
            let count = picture.grid.tokens();
            tokens.extend(first..first + count as u32);
            conversation.all.push(NumberedPicture { first, picture: Arc::clone(picture) });
            let repeated = rest.iter().take(count).all(|id| *id == token) && rest.len() >= count;
            rest = &rest[if repeated { count } else { 1 }..];
        }
        if found != pictures.len() {
            let expected = format!("{} pictures in the text of the chat template", pictures.len());
            return Err(Error::invalid("prompt", expected, found));
        }
        Ok((tokens, conversation))
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// True if `id` is a token of a picture.
    pub fn is_picture(id: u32) -> bool {
        id >= FIRST
    }

    /// `tokens` as the model and the sampler read them, with the vocabulary's token in place of
    /// each picture's.
    pub fn read<'t>(&self, tokens: &'t [u32]) -> Cow<'t, [u32]> {
        if self.all.is_empty() {
            return Cow::Borrowed(tokens);
        }
        tokens.iter().map(|id| if Self::is_picture(*id) { self.token } else { *id }).collect()
    }

    /// The pictures among `tokens`, which follow `held` tokens of the conversation.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an id without a picture.
    pub fn placed(&self, tokens: &[u32], held: usize) -> Result<Vec<PlacedPicture<'_>>> {
        let (mut placed, mut at) = (Vec::new(), 0);
        while let Some(id) = tokens.get(at) {
            if !Self::is_picture(*id) {
                at += 1;
                continue;
            }
            let has = |it: &&NumberedPicture| *id >= it.first && ((*id - it.first) as usize) < it.picture.grid.tokens();
            let Some(NumberedPicture { first, picture }) = self.all.iter().find(has) else {
                return Err(Error::invalid("prompt", "token ids of the vocabulary", id));
            };
            let before = (*id - first) as usize;
            let PromptPicture { grid, embeddings, deepstack, .. } = &**picture;
            placed.push(PlacedPicture { start: held + at - before, grid: *grid, embeddings, deepstack });
            at += grid.tokens() - before;
        }
        Ok(placed)
    }

    /// The length of a chunk of `tokens` that would have `len` tokens and cut no picture. A picture
    /// at its beginning makes it longer.
    pub fn whole_chunk(&self, tokens: &[u32], len: usize) -> usize {
        let continues = |at: usize| tokens.get(at).is_some_and(|id| Self::is_picture(*id) && !self.begins(*id));
        if !continues(len) {
            return len;
        }
        match (1..len).rev().find(|at| !continues(*at)) {
            Some(at) => at,
            None => (len..tokens.len()).find(|at| !continues(*at)).unwrap_or(tokens.len()),
        }
    }

    /// True if `id` is the first token of a picture.
    fn begins(&self, id: u32) -> bool {
        self.all.iter().any(|it| it.first == id)
    }

    /// Keeps the pictures of `self` that `tokens` contain, and adds those of `other`.
    pub fn merge(&mut self, tokens: &[u32], other: Self) {
        self.all.retain(|it| tokens.contains(&it.first));
        if !other.is_empty() {
            self.token = other.token;
        }
        for new in other.all {
            if self.all.iter().all(|it| it.first != new.first) {
                self.all.push(new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: u32 = 7;

    fn picture(name: u8, rows: usize, cols: usize) -> Arc<PromptPicture> {
        let grid = PictureGrid { rows, cols };
        let embeddings = vec![f32::from(name); grid.tokens() * 2];
        Arc::new(PromptPicture { hash: PictureHash([name; 32]), grid, embeddings, deepstack: Vec::new() })
    }

    fn expanded(prompt: &[u32], pictures: &[Arc<PromptPicture>]) -> (Vec<u32>, ConversationPictures) {
        ConversationPictures::expand(prompt.to_vec(), pictures, Some(TOKEN), &mut PictureIds::default()).unwrap()
    }

    #[test]
    fn equal_pictures_have_equal_ids() {
        let (a, b) = (picture(1, 2, 2), picture(2, 1, 3));
        let mut ids = PictureIds::default();
        let mut of = |prompt: &[u32], pictures: &[Arc<PromptPicture>]| {
            ConversationPictures::expand(prompt.to_vec(), pictures, Some(TOKEN), &mut ids).unwrap().0
        };
        let both = of(&[1, 7, 2, 7, 3], &[a.clone(), b.clone()]);
        let of_a: Vec<u32> = (FIRST..FIRST + 4).collect();
        let of_b: Vec<u32> = (FIRST + 4..FIRST + 7).collect();
        assert_eq!(both, [&[1], &of_a[..], &[2], &of_b, &[3]].concat());
        // One occurrence stands for a picture, and so do as many as it has tokens.
        assert_eq!(of(&[1, 7, 7, 7, 7, 7, 7, 7], &[a.clone(), b.clone()]), [&[1], &of_a[..], &of_b].concat());
        assert_eq!(of(&[7, 9], &[picture(2, 1, 3)]), [&of_b[..], &[9]].concat());
        assert_eq!(of(&[7, 9], &[]), [7, 9]);
    }

    #[test]
    fn prompts_with_another_number_of_pictures_are_refused() {
        let of = |prompt: &[u32], token| {
            let pictures = [picture(1, 2, 2), picture(2, 2, 2)];
            let expanded = ConversationPictures::expand(prompt.to_vec(), &pictures, token, &mut PictureIds::default());
            expanded.unwrap_err().to_string()
        };
        assert!(of(&[1, 7, 2], Some(TOKEN)).contains("2 pictures in the text"));
        assert!(of(&[1, 7, 7, 7], Some(TOKEN)).contains("got 3"));
        assert!(of(&[1, 7, 7], None).contains("no token for pictures"));
    }

    #[test]
    fn pictures_are_placed_and_cut_nowhere() {
        let (tokens, pictures) = expanded(&[1, 7, 2, 7, 3], &[picture(1, 2, 2), picture(2, 1, 3)]);
        assert_eq!(&*pictures.read(&tokens), [1, 7, 7, 7, 7, 2, 7, 7, 7, 3]);
        assert_eq!(&*pictures.read(&tokens[5..6]), [2]);
        let starts = |from: usize| -> Vec<usize> {
            pictures.placed(&tokens[from..], from).unwrap().iter().map(|of| of.start).collect()
        };
        assert_eq!((starts(0), starts(3), starts(5), starts(9)), (vec![1, 6], vec![1, 6], vec![6], vec![]));
        assert!(ConversationPictures::default().placed(&tokens, 0).is_err());
        let chunks = |from: usize| (1..=4).map(|len| pictures.whole_chunk(&tokens[from..], len)).collect::<Vec<_>>();
        assert_eq!(chunks(0), [1, 1, 1, 1]);
        assert_eq!(chunks(1), [4, 4, 4, 4]);
        assert_eq!(chunks(5), [1, 1, 1, 4]);
        assert_eq!(pictures.whole_chunk(&tokens, 10), 10);
    }

    #[test]
    fn pictures_are_kept_as_long_as_their_tokens() {
        let (a, b) = (picture(1, 2, 2), picture(2, 1, 3));
        let mut ids = PictureIds::default();
        let mut of = |prompt: &[u32], pictures: &[Arc<PromptPicture>]| {
            ConversationPictures::expand(prompt.to_vec(), pictures, Some(TOKEN), &mut ids).unwrap()
        };
        let ((first, mut held), (both, more)) = (of(&[1, 7], std::slice::from_ref(&a)), of(&[1, 7, 7], &[a, b]));
        held.merge(&first, more);
        assert_eq!(held.placed(&both, 0).unwrap().len(), 2);
        held.merge(&first[..1], ConversationPictures::default());
        assert!(held.is_empty());
    }
}
