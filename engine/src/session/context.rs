//! A context: a KV cache together with the tokens it holds.

use std::{borrow::Cow, sync::Arc};

use super::{
    draft_context::DraftContext,
    drafter::Drafter,
    picture_ids::{ConversationPictures, NumberedPicture},
    speculation::DraftController,
};
use thermocline_base::{
    error::{Error, Result},
    telemetry::neurons::BegunToken,
};
use thermocline_cpu::Isa;
use thermocline_run::runtime::{CallInputs, Forward, KvCache, KvType, Outputs, Probe, Shortlist};

/// The logits to compute for a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WantedLogits {
    /// No logits, because another chunk follows.
    Nothing,
    /// All logits of the last token.
    Logits,
    /// All logits of every token of the chunk.
    EveryLogits,
    /// All logits of a token and the drafts after it, each as in a pass of its own.
    DraftLogits,
    /// This number of the largest logits of the last token.
    Shortlist(usize),
    /// The hidden states of every token of the chunk, and no logits.
    Hidden {
        /// Index of the first token of the second text, in a pair of texts.
        second_at: Option<usize>,
    },
}

/// The result of computing a chunk.
#[derive(Debug)]
pub(super) enum ComputedLogits<'f> {
    Nothing,
    /// `[n, n_vocab]`, of the last token or of every token.
    Logits(&'f [f32]),
    Shortlist(Shortlist<'f>),
    /// `[n, d_model]`, hidden states of every token.
    Hidden(&'f [f32]),
}

/// The context of a session. The cache holds exactly `tokens`, even after a failure. Only a cache
/// that was given up with a lost device holds fewer tokens, until [`SessionContext::settle`] has
/// computed the rest again.
#[derive(Debug)]
pub(super) struct SessionContext {
    kv: Option<KvCache>,
    /// Largest number of tokens.
    capacity: usize,
    /// Requested type of keys and values.
    ty: KvType,
    /// Largest size of the cache in bytes, with all possible snapshots.
    reserved: u64,
    /// Token ids. Ids of pictures are above the vocabulary ([`ConversationPictures`]).
    tokens: Vec<u32>,
    /// The pictures among the tokens, and the pictures of the prompt that is being computed.
    pictures: ConversationPictures,
    /// Number of tokens at the start whose entries equal those of a fresh computation. Later
    /// entries were computed before tokens in front of them were forgotten.
    exact: usize,
    /// The drafter's entries of the conversation, if it has drafted for it.
    pub draft: Option<DraftContext>,
    /// Decides about drafts. It keeps its measurements from answer to answer.
    pub controller: DraftController,
}

/// The parts of a context that a drafter uses.
#[derive(Debug)]
pub(super) struct DraftingParts<'c> {
    /// The drafter's view of the conversation.
    pub draft: Option<&'c mut DraftContext>,
    /// The tokens of the context.
    pub held: Cow<'c, [u32]>,
    /// The cache of the model.
    pub kv: Option<&'c mut KvCache>,
    /// Decides about drafts.
    pub controller: &'c mut DraftController,
}

impl SessionContext {
    /// A context without tokens. A drafter's view of it may take `of_drafter` bytes more.
    pub fn new(kv: KvCache, of_drafter: u64) -> Self {
        let (capacity, ty, reserved) = (kv.capacity(), kv.ty(), kv.most_bytes().saturating_add(of_drafter));
        SessionContext {
            capacity,
            ty,
            reserved,
            kv: Some(kv),
            tokens: Vec::new(),
            pictures: ConversationPictures::default(),
            exact: 0,
            draft: None,
            controller: DraftController::new(),
        }
    }

    /// The tokens in the context.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens in the context as the model and the sampler read them. The vocabulary's token
    /// replaces tokens of pictures.
    pub fn read_tokens(&self) -> Cow<'_, [u32]> {
        self.pictures.read(&self.tokens)
    }

    /// `tokens` as the model reads them.
    pub fn read<'t>(&self, tokens: &'t [u32]) -> Cow<'t, [u32]> {
        self.pictures.read(tokens)
    }

    /// `tokens`, which follow those of the context, as the neuron map names them.
    pub fn begun(&self, session: u64, tokens: &[u32]) -> impl Iterator<Item = BegunToken> {
        let places = tokens.iter().zip(self.tokens.len()..);
        places.map(move |(id, position)| BegunToken {
            session,
            position,
            id: self.pictures.read_one(*id),
            patch: self.pictures.patch(*id),
        })
    }

    /// Takes over the pictures of a prompt whose common tokens are kept
    /// ([`SessionContext::reuse`]).
    pub fn add_pictures(&mut self, pictures: ConversationPictures) {
        self.pictures.merge(&self.tokens, pictures);
    }

    /// The length of a chunk of `tokens` that would have `len` tokens. A picture whose tokens read
    /// all of it is not divided.
    pub fn whole_chunk(&self, forward: &Forward, tokens: &[u32], len: usize) -> usize {
        let whole = !self.pictures.is_empty() && forward.model().config.attentions().any(|of| of.whole_pictures);
        if whole { self.pictures.whole_chunk(tokens, len) } else { len }
    }

    /// The next picture to compute before `rest`, the tokens that follow the context. Pictures in
    /// the cache are known already.
    pub fn next_picture(&self, rest: &[u32]) -> Option<Arc<NumberedPicture>> {
        let held = self.kv.as_ref().map_or(0, KvCache::len).min(self.tokens.len());
        self.pictures.next_to_embed(self.tokens[held..].iter().chain(rest)).cloned()
    }

    /// Largest number of tokens that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of tokens that still fit.
    pub fn room(&self) -> usize {
        self.capacity() - self.tokens.len()
    }

    /// Bytes of the cache now.
    pub fn bytes(&self) -> u64 {
        let draft = self.draft.as_ref().map_or(0, |draft| draft.kv.bytes());
        self.kv.as_ref().map_or(0, KvCache::bytes) + draft
    }

    /// Largest size of its cache in bytes, whether or not the cache exists now.
    pub fn reserved(&self) -> u64 {
        self.reserved.max(self.bytes())
    }

    /// True if it has a cache with tokens.
    pub fn is_held(&self) -> bool {
        self.kv.is_some() && !self.tokens.is_empty()
    }

    /// Drops the cache and the tokens.
    pub fn forget(&mut self) {
        (self.kv, self.draft, self.exact) = (None, None, 0);
        self.tokens.clear();
        self.pictures = ConversationPictures::default();
    }

    /// Number of prompt tokens at the start that the context holds as computed from scratch. The
    /// prompt is `first` followed by `rest`.
    pub fn common(&self, first: &[u32], rest: &[u32]) -> usize {
        let prompt = first.iter().chain(rest);
        self.tokens[..self.exact].iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count()
    }

    /// Copies entries of `rest`, the tokens after its own, from `from`, up to `tokens` tokens in
    /// all. Both contexts must be settled. Returns the number of copied tokens.
    pub fn copy_prefix(&mut self, from: &Self, rest: &[u32], tokens: usize, forward: &mut Forward) -> Result<usize> {
        let (Some(kv), Some(from)) = (&mut self.kv, &from.kv) else { return Ok(0) };
        let copied = forward.copy_prefix(from, kv, tokens)?.saturating_sub(self.tokens.len());
        self.push(&rest[..copied.min(rest.len())]);
        Ok(copied)
    }

    /// True if its cache is on a device.
    pub fn on_device(&self) -> bool {
        self.kv.as_ref().is_some_and(|kv| !kv.on_host())
    }

    /// The cache; `None` if it was dropped.
    pub fn kv_mut(&mut self) -> Option<&mut KvCache> {
        self.kv.as_mut()
    }

    /// True if the cache has recurrent states.
    pub fn is_recurrent(&self) -> bool {
        self.kv.as_ref().is_some_and(KvCache::is_recurrent)
    }

    /// Takes a snapshot of recurrent states and windows, if the cache has any.
    pub fn take_snapshot(&mut self) {
        if let Some(kv) = self.kv.as_mut().filter(|kv| kv.len() == self.tokens.len()) {
            kv.take_snapshot();
        }
    }

    /// Makes memory for a pass of at most `tokens` separate tokens, any of which may be forgotten
    /// after it. Returns the most tokens of such a pass, at least 1.
    pub fn reserve_separate(&mut self, tokens: usize) -> usize {
        self.kv.as_mut().map_or(1, |kv| kv.reserve_separate(tokens))
    }

    /// Frees the memory of [`SessionContext::reserve_separate`], and the same of the drafter.
    pub fn free_separate(&mut self) {
        let of_drafter = self.draft.as_mut().map(|draft| &mut draft.kv);
        self.kv.iter_mut().chain(of_drafter).for_each(KvCache::free_separate);
    }

    /// Drops the cache, but not the tokens.
    pub fn drop_cache(&mut self) {
        self.kv = None;
    }

    /// Moves the cache from the device of `forward` into RAM. Drops the cache if that fails.
    pub fn move_to_ram(&mut self, forward: &mut Forward) {
        let Some(kv) = &mut self.kv else { return };
        let returned = forward.residency().is_none_or(|(_, residency)| residency.return_kv(kv).is_ok());
        if !returned || !kv.on_host() {
            self.kv = None;
        }
    }

    /// True if the cache is on the processor of `forward` and holds every token.
    pub fn is_settled(&self, forward: &Forward) -> bool {
        self.kv.as_ref().is_some_and(|kv| forward.holds(kv) && kv.len() == self.tokens.len())
    }

    /// Moves the cache to the processor of `forward`, and computes the next `chunk` of the tokens
    /// that are missing from it. On an error the cache holds at least what it held before.
    pub fn settle(&mut self, forward: &mut Forward, chunk: usize, probe: &mut dyn Probe) -> Result<()> {
        if let Some(kv) = self.kv.as_mut().filter(|kv| !forward.holds(kv))
            && let Some((model, residency)) = forward.residency()
        {
            residency.take_kv(model, kv)?;
        }
        if self.kv.as_ref().is_none_or(|kv| !forward.holds(kv)) {
            // Drops the old cache first to make room for the new one.
            self.kv = None;
            self.exact = self.tokens.len();
        }
        if self.kv.is_none() {
            self.kv = Some(forward.kv_cache(self.capacity, self.ty)?);
        }
        let held = self.kv.as_ref().map_or(0, KvCache::len).min(self.tokens.len());
        let missing = &self.tokens[held..];
        let next = &missing[..self.whole_chunk(forward, missing, chunk.min(missing.len()))];
        let Some(kv) = self.kv.as_mut().filter(|_| !next.is_empty()) else { return Ok(()) };
        let (read, pictures) = (self.pictures.read(next), self.pictures.placed(next, held)?);
        let inputs = CallInputs::with_pictures(&read, &pictures);
        let computed = forward.run(inputs, kv, Outputs::None, probe).map(drop);
        // Drops the rest of an incomplete chunk.
        kv.truncate(kv.len());
        computed
    }

    /// Keeps only the tokens that `prompt` starts with, and never its last token, whose logits are
    /// needed. Returns the number of prompt tokens to reuse.
    ///
    /// Recurrent states, and windows that are no longer held, can only return to their last
    /// snapshot, which leaves fewer tokens. Entries that survived a shift are not reused, so that
    /// an answer never depends on earlier answers.
    pub fn reuse(&mut self, prompt: &[u32]) -> usize {
        let common = self.tokens.iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count();
        // The latest tokens are most likely a whole message, and the next prompt may branch off
        // here.
        self.take_snapshot();
        self.truncate(common.min(self.exact).min(prompt.len().saturating_sub(1)));
        if let Some(kv) = &self.kv {
            let held = kv.len().min(self.tokens.len());
            self.truncate(held);
        }
        self.tokens.len()
    }

    /// Computes `tokens` after the context, which must be settled and have room. On an error the
    /// context is unchanged.
    pub fn compute<'f>(
        &mut self,
        forward: &'f mut Forward,
        tokens: &[u32],
        wanted: WantedLogits,
        probe: &mut dyn Probe,
    ) -> Result<ComputedLogits<'f>> {
        let Some(kv) = &mut self.kv else {
            return Err(Error::invalid("context", "a context with a KV cache", "a context without a KV cache"));
        };
        let (read, pictures) = (self.pictures.read(tokens), self.pictures.placed(tokens, self.tokens.len())?);
        let inputs = CallInputs::with_pictures(&read, &pictures);
        let computed = match wanted {
            WantedLogits::Nothing => forward.run(inputs, kv, Outputs::None, probe).map(|_| ComputedLogits::Nothing),
            WantedLogits::Logits => forward.run(inputs, kv, Outputs::Last, probe).map(ComputedLogits::Logits),
            WantedLogits::EveryLogits => forward.run(inputs, kv, Outputs::All, probe).map(ComputedLogits::Logits),
            WantedLogits::DraftLogits => forward.run_batch(&mut [(kv, &*read)], probe).map(ComputedLogits::Logits),
            WantedLogits::Hidden { second_at } => {
                forward.hidden(inputs.with_second_text(second_at), kv, probe).map(ComputedLogits::Hidden)
            }
            WantedLogits::Shortlist(k) => forward.top(inputs, kv, k, probe).map(ComputedLogits::Shortlist),
        };
        match &computed {
            Ok(_) => self.push(tokens),
            Err(_) => kv.truncate(self.tokens.len()),
        }
        computed
    }

    /// Makes the drafter's view of the conversation, if there is none that it can use.
    ///
    /// # Errors
    /// The errors of [`Drafter::context`].
    pub fn open_draft(&mut self, drafter: &mut Drafter) -> Result<()> {
        if self.draft.as_ref().is_none_or(|draft| !drafter.holds(draft)) {
            // Frees the old view first to make room for the new one.
            self.draft = None;
            self.draft = Some(drafter.context(self.tokens.len(), self.capacity, self.ty)?);
        }
        Ok(())
    }

    /// True if the drafter can draft the token after the next one, if the context suits it.
    pub fn is_drafter_ready(&self) -> bool {
        self.draft.as_ref().is_some_and(|draft| draft.is_ready(self.tokens.len()))
    }

    /// The parts of the context that a drafter uses.
    pub fn drafting(&mut self) -> DraftingParts<'_> {
        if let (Some(draft), Some(kv)) = (&mut self.draft, &self.kv) {
            draft.follow_pictures(kv);
        }
        DraftingParts {
            draft: self.draft.as_mut(),
            held: self.pictures.read(&self.tokens),
            kv: self.kv.as_mut(),
            controller: &mut self.controller,
        }
    }

    /// Gives the drafter the hidden states of the last `tokens` tokens; empty if they are unknown.
    pub fn add_states(&mut self, tokens: usize, states: &[f32]) {
        if let Some(draft) = &mut self.draft {
            draft.add_states(self.tokens.len() - tokens, tokens, states);
        }
    }

    /// Records that `tokens` were appended to the cache.
    pub fn push(&mut self, tokens: &[u32]) {
        if self.exact == self.tokens.len() {
            self.exact += tokens.len();
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// Drops cache entries beyond the tokens, after a failed pass.
    pub fn drop_unfinished(&mut self) {
        if let Some(kv) = &mut self.kv {
            kv.truncate(self.tokens.len());
        }
    }

    /// Forgets the older half of the tokens after the first `keep`. Returns the tokens to compute
    /// again. There are none if the cache can move its entries, with kernels for `isa`; otherwise
    /// they are all tokens after the gap.
    pub fn shift(&mut self, isa: Isa, keep: usize) -> Vec<u32> {
        let keep = keep.min(self.tokens.len());
        let discard = (self.tokens.len() - keep).div_ceil(2);
        self.remove(isa, keep, discard)
    }

    /// Forgets tokens so that the context holds the shorter `wanted`. Returns the tokens to compute
    /// again. There are none if `wanted` lacks one consecutive run of tokens and the cache can move
    /// its entries. Otherwise they are all tokens after the common prefix.
    pub fn shorten(&mut self, isa: Isa, wanted: &[u32]) -> Vec<u32> {
        let keep = self.tokens.iter().zip(wanted).take_while(|(held, wanted)| held == wanted).count();
        let discard = self.tokens.len().saturating_sub(wanted.len());
        if self.tokens.get(keep + discard..) == Some(&wanted[keep..]) {
            return self.remove(isa, keep, discard);
        }
        self.truncate(keep);
        wanted[keep..].to_vec()
    }

    /// Forgets `discard` tokens after the first `keep`, as [`SessionContext::shift`] does.
    fn remove(&mut self, isa: Isa, keep: usize, discard: usize) -> Vec<u32> {
        if self.kv.as_mut().is_some_and(|kv| kv.shift(isa, keep, discard).is_ok()) {
            self.tokens.drain(keep..keep + discard);
            self.exact = self.exact.min(keep);
            if let Some(draft) = &mut self.draft {
                draft.restart(self.tokens.len());
            }
            return Vec::new();
        }
        let again = self.tokens.split_off(keep + discard);
        self.truncate(keep);
        again
    }

    /// Keeps only the first `length` tokens.
    pub fn truncate(&mut self, length: usize) {
        if let Some(kv) = &mut self.kv {
            kv.truncate(length);
        }
        if let Some(draft) = &mut self.draft {
            draft.truncate(length);
        }
        self.tokens.truncate(length);
        self.exact = self.exact.min(length);
    }
}
