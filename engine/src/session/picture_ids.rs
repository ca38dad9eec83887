//! Pictures in conversations. The tokens of a picture have ids of their own, above every
//! vocabulary. Equal pictures have equal ids, so that comparing tokens also compares pictures.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, OnceLock, Weak},
};

use super::prompt_pictures::{PromptPicture, replace_marks};
use parking_lot::Mutex;
use thermocline_base::{
    error::{Error, Result},
    telemetry::neurons::PicturePatch,
};
use thermocline_model::{PictureCell, PictureGrid};
use thermocline_pictures::{Picture, PictureHash};
use thermocline_run::{
    hybrid::{PictureDevice, PictureProcessor},
    runtime::{PictureEmbeddings, PlacedPicture, Probe},
};

/// The first id of pictures' tokens.
pub(super) const FIRST: u32 = 1 << 31;

/// A picture whose tokens have ids. Conversations with equal pictures share it.
#[derive(Debug)]
pub(super) struct NumberedPicture {
    /// The id of its first token. The ids of its tokens are consecutive.
    first: u32,
    hash: PictureHash,
    /// All of its tokens.
    grid: PictureGrid,
    /// The cell that each token sees.
    cells: Vec<PictureCell>,
    /// The parts of the picture, in order. In a prompt, tokens of the text separate the parts.
    parts: Vec<PictureGrid>,
    /// True if its tokens have the positions of text.
    text_positions: bool,
    /// The pixels, until the embeddings are known. Nothing reads them afterwards. A conversation
    /// that holds the picture has its embeddings. A prompt brings a dropped picture's pixels again.
    pixels: Mutex<Option<Picture>>,
    /// Its embeddings, once a conversation has needed them.
    embeddings: OnceLock<PictureEmbeddings>,
}

impl NumberedPicture {
    /// Computes the embeddings, and releases the pixels.
    ///
    /// # Errors
    /// The errors of [`PictureProcessor::embed`].
    pub fn embed(
        &self,
        tower: &mut PictureProcessor,
        device: Option<PictureDevice<'_>>,
        probe: &mut dyn Probe,
    ) -> Result<()> {
        let pixels = self.pixels.lock().clone();
        if let Some(pixels) = pixels {
            self.keep(tower.embed(&pixels, device, probe)?);
        }
        Ok(())
    }

    /// Keeps the embeddings in place of the pixels.
    fn keep(&self, embeddings: PictureEmbeddings) {
        // Another thread may have computed equal embeddings meanwhile.
        let _ = self.embeddings.set(embeddings);
        *self.pixels.lock() = None;
    }

    /// True if `id` is a token of the picture.
    fn contains(&self, id: u32) -> bool {
        id >= self.first && ((id - self.first) as usize) < self.grid.tokens()
    }

    /// The part that contains the token at `index`, and the index of its first token.
    fn part(&self, index: usize) -> (PictureGrid, usize) {
        let mut first = 0;
        for part in &self.parts {
            if index < first + part.tokens() {
                return (*part, first);
            }
            first += part.tokens();
        }
        (self.grid, 0)
    }

    /// The part whose first token is at `first`, in a prompt in which the part starts at `start`.
    /// `None` without embeddings.
    fn placed(&self, grid: PictureGrid, first: usize, start: usize) -> Option<PlacedPicture<'_>> {
        let PictureEmbeddings { embeddings, deepstack, .. } = self.embeddings.get()?;
        let d_model = embeddings.len() / self.grid.tokens();
        let embeddings = &embeddings[first * d_model..][..grid.tokens() * d_model];
        // No tower whose pictures have parts has additions.
        let deepstack = if self.parts.len() == 1 { &deepstack[..] } else { &[] };
        Some(PlacedPicture { start, grid, embeddings, deepstack, text_positions: self.text_positions })
    }
}

/// A picture that an engine has seen.
#[derive(Debug)]
struct KnownPicture {
    first: u32,
    /// The picture, as long as a conversation has it.
    held: Weak<NumberedPicture>,
}

/// Most pictures whose ids are remembered while no conversation holds them.
const MOST_KNOWN: usize = 4096;

/// The ids of the pictures that an engine has seen.
#[derive(Debug)]
pub(super) struct PictureIds {
    known: HashMap<(PictureHash, PictureGrid), KnownPicture>,
    next: u32,
}

impl Default for PictureIds {
    fn default() -> Self {
        PictureIds { known: HashMap::new(), next: FIRST }
    }
}

impl PictureIds {
    /// The ids of `picture`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if all ids are used; the errors of [`Picture::hash`].
    fn number(&mut self, picture: &PromptPicture) -> Result<Arc<NumberedPicture>> {
        let PromptPicture { picture, grid, cells, parts, text_positions } = picture;
        let (grid, text_positions) = (*grid, *text_positions);
        let key = (picture.hash()?, grid);
        let known = self.known.get(&key);
        if let Some(held) = known.and_then(|known| known.held.upgrade()) {
            return Ok(held);
        }
        let first = match known {
            Some(known) => known.first,
            None => {
                if self.known.len() >= MOST_KNOWN {
                    self.forget_dropped();
                }
                self.take(grid.tokens())?
            }
        };
        let (pixels, embeddings) = (Mutex::new(Some(picture.clone())), OnceLock::new());
        let parts = parts.iter().map(|part| part.grid).collect();
        let (hash, cells) = (key.0, cells.clone());
        let numbered = NumberedPicture { first, hash, grid, cells, parts, text_positions, pixels, embeddings };
        let numbered = Arc::new(numbered);
        self.known.insert(key, KnownPicture { first, held: Arc::downgrade(&numbered) });
        Ok(numbered)
    }

    /// Forgets the pictures that no conversation holds. No context has their tokens.
    fn forget_dropped(&mut self) {
        self.known.retain(|_, known| known.held.strong_count() > 0);
    }

    /// The first of `tokens` new ids. If none are left, ids of pictures that no conversation holds
    /// are used again.
    fn take(&mut self, tokens: usize) -> Result<u32> {
        let after = |next: u32| u32::try_from(tokens).ok().and_then(|tokens| next.checked_add(tokens));
        if after(self.next).is_none() {
            self.forget_dropped();
            let ends = self.known.iter().map(|((_, grid), known)| known.first + grid.tokens() as u32);
            self.next = ends.max().unwrap_or(FIRST);
        }
        let next = after(self.next).ok_or_else(|| {
            Error::invalid("picture", "fewer tokens of pictures in all conversations", "too many tokens")
        })?;
        Ok(std::mem::replace(&mut self.next, next))
    }
}

/// The pictures of a conversation.
#[derive(Debug, Clone, Default)]
pub(super) struct ConversationPictures {
    all: Vec<Arc<NumberedPicture>>,
    /// The token of the vocabulary in whose place pictures are.
    token: u32,
}

impl ConversationPictures {
    /// Puts the ids of `pictures` in place of the occurrences of `token` in `prompt`: one
    /// occurrence, or as many as a picture has tokens. Tokens of the text follow the parts.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `prompt` has another number of pictures.
    pub fn expand(
        prompt: &[u32],
        pictures: &[PromptPicture],
        token: u32,
        ids: &mut PictureIds,
    ) -> Result<(Vec<u32>, Self)> {
        let mut all = Vec::new();
        let tokens = replace_marks(prompt, pictures, token, |picture| {
            let numbered = ids.number(picture)?;
            let first = numbered.first;
            all.push(numbered);
            Ok(first)
        })?;
        Ok((tokens, ConversationPictures { all, token }))
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
        tokens.iter().map(|id| self.read_one(*id)).collect()
    }

    /// A token as the model and the sampler read it.
    pub fn read_one(&self, id: u32) -> u32 {
        if Self::is_picture(id) { self.token } else { id }
    }

    /// The place in its picture of a picture's token. `None` for tokens of the text.
    pub fn patch(&self, id: u32) -> Option<PicturePatch> {
        let of = self.all.iter().find(|it| it.contains(id))?;
        let (token, tokens) = (id - of.first, of.grid.tokens() as u32);
        let PictureCell { grid, index } = *of.cells.get(token as usize)?;
        let [rows, cols, index] = [grid.rows, grid.cols, index].map(|count| count as u32);
        Some(PicturePatch { picture: of.hash.0, token, tokens, rows, cols, index })
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
            let Some(numbered) = self.all.iter().find(|it| it.contains(*id)) else {
                return Err(Error::invalid("prompt", "token ids of the vocabulary", id));
            };
            let index = (*id - numbered.first) as usize;
            let (grid, first) = numbered.part(index);
            let before = index - first;
            let Some(start) = (held + at).checked_sub(before) else {
                return Err(Error::invalid("prompt", "pictures from their first tokens on", id));
            };
            let Some(part) = numbered.placed(grid, first, start) else {
                return Err(Error::invalid("picture", "embeddings of the vision tower", "none"));
            };
            placed.push(part);
            at += grid.tokens() - before;
        }
        Ok(placed)
    }

    /// The first picture among `tokens` whose embeddings are unknown.
    pub fn next_to_embed<'t>(&self, tokens: impl Iterator<Item = &'t u32>) -> Option<&Arc<NumberedPicture>> {
        let unknown: Vec<&Arc<NumberedPicture>> = self.all.iter().filter(|it| it.embeddings.get().is_none()).collect();
        if unknown.is_empty() {
            return None;
        }
        let mut of_pictures = tokens.filter(|id| Self::is_picture(**id));
        of_pictures.find_map(|id| unknown.iter().copied().find(|it| it.contains(*id)))
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

    /// True if `id` is the first token of a part of a picture.
    fn begins(&self, id: u32) -> bool {
        let begins = |it: &NumberedPicture| {
            let index = (id - it.first) as usize;
            it.part(index).1 == index
        };
        self.all.iter().any(|it| it.contains(id) && begins(it))
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
    use crate::session::prompt_pictures::PromptPart;

    const TOKEN: u32 = 7;

    fn picture(name: u8, rows: usize, cols: usize) -> PromptPicture {
        let picture = Picture::from_rgb(1, 1, vec![name; 3]).unwrap();
        let grid = PictureGrid { rows, cols };
        let parts = vec![PromptPart { grid, after: Vec::new() }];
        let cells = (0..grid.tokens()).map(|index| PictureCell { grid, index }).collect();
        PromptPicture { picture, grid, cells, parts, text_positions: false }
    }

    /// The prompt and its pictures, with embeddings.
    fn embedded(prompt: &[u32], pictures: &[PromptPicture], ids: &mut PictureIds) -> (Vec<u32>, ConversationPictures) {
        let expanded = ConversationPictures::expand(prompt, pictures, TOKEN, ids).unwrap();
        for it in &expanded.1.all {
            let grid = it.grid;
            let embeddings = (0..grid.tokens()).map(|at| at as f32).collect();
            it.keep(PictureEmbeddings { grid, embeddings, deepstack: Vec::new() });
        }
        expanded
    }

    #[test]
    fn equal_pictures_have_equal_ids() {
        let (a, b) = (picture(1, 2, 2), picture(2, 1, 3));
        let mut ids = PictureIds::default();
        let mut of = |prompt: &[u32], pictures: &[PromptPicture]| embedded(prompt, pictures, &mut ids).0;
        let both = of(&[1, 7, 2, 7, 3], &[a.clone(), b.clone()]);
        let of_a: Vec<u32> = (FIRST..FIRST + 4).collect();
        let of_b: Vec<u32> = (FIRST + 4..FIRST + 7).collect();
        assert_eq!(both, [&[1], &of_a[..], &[2], &of_b, &[3]].concat());
        // One occurrence stands for a picture, and so do as many as it has tokens.
        assert_eq!(of(&[1, 7, 7, 7, 7, 7, 7, 7], &[a.clone(), b.clone()]), [&[1], &of_a[..], &of_b].concat());
        assert_eq!(of(&[7, 9], &[b]), [&of_b[..], &[9]].concat());
        // The same pixels with another grid have other embeddings.
        let wider = PromptPicture { picture: a.picture, ..picture(0, 1, 4) };
        assert_eq!(of(&[7], &[wider]), [FIRST + 7, FIRST + 8, FIRST + 9, FIRST + 10]);
    }

    #[test]
    fn ids_of_dropped_pictures_are_used_again_before_they_run_out() {
        let mut ids = PictureIds::default();
        let (of_a, held) = embedded(&[7], &[picture(1, 2, 2)], &mut ids);
        ids.next = u32::MAX - 2;
        // The next picture needs three ids, and a conversation holds the first four.
        let (of_b, _) = embedded(&[7], &[picture(2, 1, 3)], &mut ids);
        assert_eq!((of_a[0], of_b[0]), (FIRST, FIRST + 4));
        drop(held);
        ids.next = u32::MAX - 2;
        assert_eq!(embedded(&[7], &[picture(3, 1, 3)], &mut ids).0[0], FIRST);
    }

    #[test]
    fn a_picture_is_embedded_once_while_a_conversation_holds_it() {
        let (a, b) = (picture(1, 2, 2), picture(2, 1, 3));
        let mut ids = PictureIds::default();
        let (first, held) = embedded(&[1, 7], std::slice::from_ref(&a), &mut ids);
        assert!(held.next_to_embed(first.iter()).is_none());
        let has_pixels = |of: &ConversationPictures, at: usize| of.all[at].pixels.lock().is_some();
        assert!(!has_pixels(&held, 0));
        let mut again = || ConversationPictures::expand(&[7, 7, 2], &[a.clone(), b.clone()], TOKEN, &mut ids).unwrap();
        let (tokens, both) = again();
        let next = |tokens: &[u32], of: &ConversationPictures| of.next_to_embed(tokens.iter()).map(|it| it.first);
        assert_eq!(next(&tokens, &both), Some(FIRST + 4));
        assert!(!has_pixels(&both, 0) && has_pixels(&both, 1));
        assert_eq!(next(&tokens[7..], &both), None);
        assert!(both.placed(&tokens, 0).is_err());
        drop((held, both));
        let (tokens, both) = again();
        assert_eq!((next(&tokens, &both), next(&tokens[6..], &both)), (Some(FIRST), Some(FIRST + 4)));
    }

    #[test]
    fn prompts_with_another_number_of_pictures_are_refused() {
        let of = |prompt: &[u32]| {
            let pictures = [picture(1, 2, 2), picture(2, 2, 2)];
            let expanded = ConversationPictures::expand(prompt, &pictures, TOKEN, &mut PictureIds::default());
            expanded.unwrap_err().to_string()
        };
        assert!(of(&[1, 7, 2]).contains("2 pictures in the text"));
        assert!(of(&[1, 7, 7, 7]).contains("got 3"));
    }

    #[test]
    fn pictures_are_placed_and_cut_nowhere() {
        let pictures = [picture(1, 2, 2), picture(2, 1, 3)];
        let (tokens, pictures) = embedded(&[1, 7, 2, 7, 3], &pictures, &mut PictureIds::default());
        assert_eq!(&*pictures.read(&tokens), [1, 7, 7, 7, 7, 2, 7, 7, 7, 3]);
        assert_eq!(&*pictures.read(&tokens[5..6]), [2]);
        let starts = |from: usize| -> Vec<usize> {
            pictures.placed(&tokens[from..], from).unwrap().iter().map(|of| of.start).collect()
        };
        assert_eq!((starts(0), starts(3), starts(5), starts(9)), (vec![1, 6], vec![1, 6], vec![6], vec![]));
        assert!(pictures.placed(&tokens[3..], 1).is_err());
        assert!(ConversationPictures::default().placed(&tokens, 0).is_err());
        let chunks = |from: usize| (1..=4).map(|len| pictures.whole_chunk(&tokens[from..], len)).collect::<Vec<_>>();
        assert_eq!(chunks(0), [1, 1, 1, 1]);
        assert_eq!(chunks(1), [4, 4, 4, 4]);
        assert_eq!(chunks(5), [1, 1, 1, 4]);
        assert_eq!(pictures.whole_chunk(&tokens, 10), 10);
    }

    /// Tokens 8 and 9 end rows.
    #[test]
    fn rows_with_ends_are_placed_one_by_one() {
        let row = |end: u32| PromptPart { grid: PictureGrid { rows: 1, cols: 3 }, after: vec![end] };
        let broken = PromptPicture { parts: vec![row(8), row(9)], ..picture(1, 2, 3) };
        let mut ids = PictureIds::default();
        let (tokens, pictures) = embedded(&[1, 7, 2], std::slice::from_ref(&broken), &mut ids);
        assert_eq!(&*pictures.read(&tokens), [1, 7, 7, 7, 8, 7, 7, 7, 9, 2]);
        // The prompt may have the tokens of all rows, or the end of the last one.
        for prompt in [&[1, 7, 7, 7, 8, 7, 7, 7, 9, 2][..], &[1, 7, 9, 2]] {
            assert_eq!(embedded(prompt, std::slice::from_ref(&broken), &mut ids).0, tokens);
        }
        let rows = |from: usize| -> Vec<(usize, Vec<f32>)> {
            let placed = pictures.placed(&tokens[from..], from).unwrap();
            assert!(placed.iter().all(|of| of.grid == PictureGrid { rows: 1, cols: 3 }));
            placed.iter().map(|of| (of.start, of.embeddings.to_vec())).collect()
        };
        let (first, second) = ((1, vec![0.0, 1.0, 2.0]), (5, vec![3.0, 4.0, 5.0]));
        assert_eq!(rows(0), [first.clone(), second.clone()]);
        assert_eq!((rows(2), rows(4)), (vec![first, second.clone()], vec![second.clone()]));
        assert_eq!(rows(6), [second]);
        // A chunk may end between two rows.
        assert_eq!((1..8).map(|len| pictures.whole_chunk(&tokens, len)).collect::<Vec<_>>(), [1, 1, 1, 4, 5, 5, 5]);
    }

    /// Tokens 7 are in place of a picture's. An overview of two tokens and 8 and 9 precede a slice
    /// of one token and 9, whose tokens have the positions of text.
    #[test]
    fn parts_of_different_lengths_are_placed_one_by_one() {
        let part = |cols: usize, after: &[u32]| PromptPart { grid: PictureGrid { rows: 1, cols }, after: after.into() };
        let parts = vec![part(2, &[8, 9]), part(1, &[9])];
        let sliced = PromptPicture { parts, text_positions: true, ..picture(1, 1, 3) };
        let mut ids = PictureIds::default();
        let (tokens, pictures) = embedded(&[7, 7, 5], &[sliced.clone(), sliced], &mut ids);
        assert_eq!(&*pictures.read(&tokens), [7, 7, 8, 9, 7, 9, 7, 7, 8, 9, 7, 9, 5]);
        let of = |from: usize| -> Vec<(usize, Vec<f32>)> {
            let placed = pictures.placed(&tokens[from..], from).unwrap();
            assert!(placed.iter().all(|of| of.text_positions));
            placed.iter().map(|of| (of.start, of.embeddings.to_vec())).collect()
        };
        let (overview, slice) = (|start: usize| (start, vec![0.0, 1.0]), |start: usize| (start, vec![2.0]));
        assert_eq!(of(0), [overview(0), slice(4), overview(6), slice(10)]);
        assert_eq!((of(1), of(7)), (of(0), vec![overview(6), slice(10)]));
        assert_eq!((1..6).map(|len| pictures.whole_chunk(&tokens, len)).collect::<Vec<_>>(), [2, 2, 3, 4, 5]);
    }

    #[test]
    fn pictures_are_kept_as_long_as_their_tokens() {
        let (a, b) = (picture(1, 2, 2), picture(2, 1, 3));
        let mut ids = PictureIds::default();
        let mut of = |prompt: &[u32], pictures: &[PromptPicture]| embedded(prompt, pictures, &mut ids);
        let ((first, mut held), (both, more)) = (of(&[1, 7], std::slice::from_ref(&a)), of(&[1, 7, 7], &[a, b]));
        held.merge(&first, more);
        assert_eq!(held.placed(&both, 0).unwrap().len(), 2);
        held.merge(&first[..1], ConversationPictures::default());
        assert!(held.is_empty());
    }
}
