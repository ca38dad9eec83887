//! Pictures in conversations. The tokens of a picture have ids of their own, above every
//! vocabulary. Equal pictures have equal ids, so that comparing tokens also compares pictures.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, OnceLock, Weak},
};

use thermocline_base::error::{Error, Result};
use thermocline_model::PictureGrid;
use thermocline_pictures::{Picture, PictureHash};
use thermocline_run::runtime::{PictureEmbeddings, PlacedPicture, Probe, TowerProcessor};

/// The first id of pictures' tokens.
const FIRST: u32 = 1 << 31;

/// A picture whose tokens have ids. Conversations with equal pictures share it.
#[derive(Debug)]
pub(super) struct NumberedPicture {
    /// The id of its first token. The ids of its tokens are consecutive.
    first: u32,
    grid: PictureGrid,
    /// Number of tokens that follow one another in a prompt: a row's, if tokens of the text end
    /// rows, or else all.
    run: usize,
    pixels: Picture,
    /// Its embeddings, once a conversation has needed them.
    embeddings: OnceLock<PictureEmbeddings>,
}

impl NumberedPicture {
    /// Computes the embeddings.
    ///
    /// # Errors
    /// The errors of [`TowerProcessor::embed`].
    pub fn embed(&self, tower: &mut TowerProcessor, probe: &mut dyn Probe) -> Result<()> {
        let embeddings = tower.embed(&self.pixels, probe)?;
        // Only this thread computes pictures.
        let _ = self.embeddings.set(embeddings);
        Ok(())
    }

    /// True if `id` is a token of the picture.
    fn contains(&self, id: u32) -> bool {
        id >= self.first && ((id - self.first) as usize) < self.grid.tokens()
    }

    /// The part of the picture in a prompt from the token at index `at` of the picture to the end
    /// of its run. The run starts at `start`. `None` without embeddings.
    fn placed(&self, at: usize, start: usize) -> Option<PlacedPicture<'_>> {
        let PictureEmbeddings { embeddings, deepstack, .. } = self.embeddings.get()?;
        if self.run == self.grid.tokens() {
            return Some(PlacedPicture { start, grid: self.grid, embeddings, deepstack });
        }
        let d_model = embeddings.len() / self.grid.tokens();
        let first = at / self.run * self.run;
        let embeddings = &embeddings[first * d_model..][..self.run * d_model];
        // No tower with ends of rows has additions.
        Some(PlacedPicture { start, grid: PictureGrid { rows: 1, cols: self.run }, embeddings, deepstack: &[] })
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
    /// [`Error::Invalid`] if all ids are used.
    fn number(&mut self, picture: &PromptPicture) -> Result<Arc<NumberedPicture>> {
        let PromptPicture { picture, grid, row_ends } = picture;
        let (grid, run) = (*grid, if row_ends.is_some() { grid.cols } else { grid.tokens() });
        let known = self.known.get(&(picture.hash(), grid));
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
        let (pixels, embeddings) = (picture.clone(), OnceLock::new());
        let numbered = Arc::new(NumberedPicture { first, grid, run, pixels, embeddings });
        self.known.insert((picture.hash(), grid), KnownPicture { first, held: Arc::downgrade(&numbered) });
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

/// Tokens of the text that end the rows of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowEndTokens {
    /// After every row but the last.
    pub between: u32,
    /// After the last row.
    pub last: u32,
}

/// A picture in a prompt, and its tokens.
#[derive(Debug, Clone)]
pub(super) struct PromptPicture {
    pub picture: Picture,
    pub grid: PictureGrid,
    pub row_ends: Option<RowEndTokens>,
}

impl PromptPicture {
    /// The tokens of the picture, from the id `first` on, and those that end its rows.
    fn tokens(&self, first: u32) -> Vec<u32> {
        let all: Vec<u32> = (first..first + self.grid.tokens() as u32).collect();
        let Some(RowEndTokens { between, last }) = self.row_ends else { return all };
        let mut tokens: Vec<u32> = all.chunks(self.grid.cols).flat_map(|row| [row, &[between]].concat()).collect();
        tokens.pop();
        tokens.push(last);
        tokens
    }
}

/// Number of tokens at the beginning of `rest` that stand for a picture whose tokens are
/// `expanded`: as many as `expanded`, one and the end of the last row, or one.
fn stand_ins(rest: &[u32], token: u32, expanded: &[u32]) -> usize {
    let read = |id: u32| if ConversationPictures::is_picture(id) { token } else { id };
    if rest.len() >= expanded.len() && rest.iter().zip(expanded).all(|(id, wanted)| *id == read(*wanted)) {
        return expanded.len();
    }
    let ends =
        expanded.last().is_some_and(|last| !ConversationPictures::is_picture(*last) && rest.get(1) == Some(last));
    1 + usize::from(ends)
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
    /// occurrence, or as many as a picture has tokens. Tokens that end rows follow the rows.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `prompt` has another number of pictures.
    pub fn expand(
        prompt: &[u32],
        pictures: &[PromptPicture],
        token: u32,
        ids: &mut PictureIds,
    ) -> Result<(Vec<u32>, Self)> {
        let mut conversation = ConversationPictures { all: Vec::new(), token };
        let (mut tokens, mut rest, mut found) = (Vec::with_capacity(prompt.len()), prompt, 0);
        while let Some((id, after)) = rest.split_first() {
            let Some(picture) = pictures.get(found).filter(|_| *id == token) else {
                found += usize::from(*id == token);
                tokens.push(*id);
                rest = after;
                continue;
            };
            found += 1;
            let numbered = ids.number(picture)?;
            let expanded = picture.tokens(numbered.first);
            rest = &rest[stand_ins(rest, token, &expanded)..];
            tokens.extend(expanded);
            conversation.all.push(numbered);
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
            let Some(numbered) = self.all.iter().find(|it| it.contains(*id)) else {
                return Err(Error::invalid("prompt", "token ids of the vocabulary", id));
            };
            let index = (*id - numbered.first) as usize;
            let before = index % numbered.run;
            let Some(start) = (held + at).checked_sub(before) else {
                return Err(Error::invalid("prompt", "pictures from their first tokens on", id));
            };
            let Some(part) = numbered.placed(index, start) else {
                return Err(Error::invalid("picture", "embeddings of the vision tower", "none"));
            };
            placed.push(part);
            at += numbered.run - before;
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

    /// True if `id` is the first token of a picture, or of a row that tokens of the text end.
    fn begins(&self, id: u32) -> bool {
        self.all.iter().any(|it| it.contains(id) && ((id - it.first) as usize).is_multiple_of(it.run))
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

    fn picture(name: u8, rows: usize, cols: usize) -> PromptPicture {
        let picture = Picture::from_rgb(1, 1, vec![name; 3]).unwrap();
        PromptPicture { picture, grid: PictureGrid { rows, cols }, row_ends: None }
    }

    /// The prompt and its pictures, with embeddings.
    fn expanded(prompt: &[u32], pictures: &[PromptPicture], ids: &mut PictureIds) -> (Vec<u32>, ConversationPictures) {
        let expanded = ConversationPictures::expand(prompt, pictures, TOKEN, ids).unwrap();
        for it in &expanded.1.all {
            let (grid, hash) = (it.grid, it.pixels.hash());
            let embeddings = (0..grid.tokens()).map(|at| at as f32).collect();
            let embeddings = PictureEmbeddings { grid, embeddings, deepstack: Vec::new(), hash };
            it.embeddings.get_or_init(|| embeddings);
        }
        expanded
    }

    #[test]
    fn equal_pictures_have_equal_ids() {
        let (a, b) = (picture(1, 2, 2), picture(2, 1, 3));
        let mut ids = PictureIds::default();
        let mut of = |prompt: &[u32], pictures: &[PromptPicture]| expanded(prompt, pictures, &mut ids).0;
        let both = of(&[1, 7, 2, 7, 3], &[a.clone(), b.clone()]);
        let of_a: Vec<u32> = (FIRST..FIRST + 4).collect();
        let of_b: Vec<u32> = (FIRST + 4..FIRST + 7).collect();
        assert_eq!(both, [&[1], &of_a[..], &[2], &of_b, &[3]].concat());
        // One occurrence stands for a picture, and so do as many as it has tokens.
        assert_eq!(of(&[1, 7, 7, 7, 7, 7, 7, 7], &[a.clone(), b.clone()]), [&[1], &of_a[..], &of_b].concat());
        assert_eq!(of(&[7, 9], &[b]), [&of_b[..], &[9]].concat());
        // The same pixels with another grid have other embeddings.
        let wider = PromptPicture { grid: PictureGrid { rows: 1, cols: 4 }, ..a };
        assert_eq!(of(&[7], &[wider]), [FIRST + 7, FIRST + 8, FIRST + 9, FIRST + 10]);
    }

    #[test]
    fn ids_of_dropped_pictures_are_used_again_before_they_run_out() {
        let mut ids = PictureIds::default();
        let (of_a, held) = expanded(&[7], &[picture(1, 2, 2)], &mut ids);
        ids.next = u32::MAX - 2;
        // The next picture needs three ids, and a conversation holds the first four.
        let (of_b, _) = expanded(&[7], &[picture(2, 1, 3)], &mut ids);
        assert_eq!((of_a[0], of_b[0]), (FIRST, FIRST + 4));
        drop(held);
        ids.next = u32::MAX - 2;
        assert_eq!(expanded(&[7], &[picture(3, 1, 3)], &mut ids).0[0], FIRST);
    }

    #[test]
    fn a_picture_is_embedded_once_while_a_conversation_holds_it() {
        let (a, b) = (picture(1, 2, 2), picture(2, 1, 3));
        let mut ids = PictureIds::default();
        let (first, held) = expanded(&[1, 7], std::slice::from_ref(&a), &mut ids);
        assert!(held.next_to_embed(first.iter()).is_none());
        let mut again = || ConversationPictures::expand(&[7, 7, 2], &[a.clone(), b.clone()], TOKEN, &mut ids).unwrap();
        let (tokens, both) = again();
        let next = |tokens: &[u32], of: &ConversationPictures| of.next_to_embed(tokens.iter()).map(|it| it.first);
        assert_eq!(next(&tokens, &both), Some(FIRST + 4));
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
        let (tokens, pictures) = expanded(&[1, 7, 2, 7, 3], &pictures, &mut PictureIds::default());
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
        let row_ends = Some(RowEndTokens { between: 8, last: 9 });
        let broken = PromptPicture { row_ends, ..picture(1, 2, 3) };
        let mut ids = PictureIds::default();
        let (tokens, pictures) = expanded(&[1, 7, 2], std::slice::from_ref(&broken), &mut ids);
        assert_eq!(&*pictures.read(&tokens), [1, 7, 7, 7, 8, 7, 7, 7, 9, 2]);
        // The prompt may have the tokens of all rows, or the end of the last one.
        for prompt in [&[1, 7, 7, 7, 8, 7, 7, 7, 9, 2][..], &[1, 7, 9, 2]] {
            assert_eq!(expanded(prompt, std::slice::from_ref(&broken), &mut ids).0, tokens);
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

    #[test]
    fn pictures_are_kept_as_long_as_their_tokens() {
        let (a, b) = (picture(1, 2, 2), picture(2, 1, 3));
        let mut ids = PictureIds::default();
        let mut of = |prompt: &[u32], pictures: &[PromptPicture]| expanded(prompt, pictures, &mut ids);
        let ((first, mut held), (both, more)) = (of(&[1, 7], std::slice::from_ref(&a)), of(&[1, 7, 7], &[a, b]));
        held.merge(&first, more);
        assert_eq!(held.placed(&both, 0).unwrap().len(), 2);
        held.merge(&first[..1], ConversationPictures::default());
        assert!(held.is_empty());
    }
}
