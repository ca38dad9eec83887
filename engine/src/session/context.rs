//! A KV cache together with the tokens it holds.

use crate::{
    error::{Error, Result},
    model::{Forward, KvCache, KvType, Outputs, Probe, Shortlist},
};

/// What is wanted of the last token that is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Nothing: another follows.
    Nothing,
    /// All logits.
    Logits,
    /// So many of the largest.
    Shortlist(usize),
}

/// What became of it.
#[derive(Debug)]
pub(super) enum Computed<'f> {
    Nothing,
    Logits(&'f [f32]),
    Shortlist(Shortlist<'f>),
}

/// What a session remembers. The cache holds exactly `tokens`, whatever fails in between; only after it had to be given up,
/// with a device that is gone, it holds fewer of them until [`Context::settle`] has computed the rest again.
#[derive(Debug)]
pub(super) struct Context {
    kv: Option<KvCache>,
    /// How many tokens it can hold.
    capacity: usize,
    /// Encoding asked for.
    ty: KvType,
    tokens: Vec<u32>,
    /// So many tokens at the start have the entries a fresh computation would give them; those behind were computed
    /// before something in front of them was forgotten.
    exact: usize,
}

impl Context {
    pub fn new(kv: KvCache) -> Self {
        Context { capacity: kv.capacity(), ty: kv.ty(), kv: Some(kv), tokens: Vec::new(), exact: 0 }
    }

    /// The tokens it holds.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many more it can hold.
    pub fn room(&self) -> usize {
        self.capacity() - self.tokens.len()
    }

    /// Bytes of the cache.
    pub fn bytes(&self) -> u64 {
        self.kv.as_ref().map_or(0, KvCache::bytes)
    }

    /// Whether its cache is on a device.
    pub fn on_device(&self) -> bool {
        self.kv.as_ref().is_some_and(|kv| !kv.on_host())
    }

    /// The cache, unless it was given up.
    pub fn kv_mut(&mut self) -> Option<&mut KvCache> {
        self.kv.as_mut()
    }

    /// Gives up the cache, but not the tokens.
    pub fn release(&mut self) {
        self.kv = None;
    }

    /// Moves what `forward` has of the cache on a device into RAM. Gives it up if that cannot be done.
    pub fn bring_home(&mut self, forward: &mut Forward) {
        let Some(kv) = &mut self.kv else { return };
        if forward.return_kv(kv).is_err() || !kv.on_host() {
            self.kv = None;
        }
    }

    /// Whether the cache is where `forward` works and holds every token.
    pub fn is_settled(&self, forward: &Forward) -> bool {
        self.kv.as_ref().is_some_and(|kv| forward.holds(kv) && kv.len() == self.tokens.len())
    }

    /// Moves to where `forward` works and computes again, of the tokens that are missing there, the next `chunk`. On an error
    /// it holds what it held before, at least.
    pub fn settle(&mut self, forward: &mut Forward, chunk: usize, probe: &mut dyn Probe) -> Result<()> {
        if let Some(kv) = self.kv.as_mut().filter(|kv| !forward.holds(kv)) {
            forward.take_kv(kv)?;
        }
        if self.kv.as_ref().is_none_or(|kv| !forward.holds(kv)) {
            // The old one first, so that there is room for the new.
            self.kv = None;
            self.exact = self.tokens.len();
        }
        let kv = match &mut self.kv {
            Some(kv) => kv,
            none => none.insert(forward.kv_cache(self.capacity, self.ty)?),
        };
        let missing = &self.tokens[kv.len().min(self.tokens.len())..];
        let next = &missing[..chunk.min(missing.len())];
        if next.is_empty() {
            return Ok(());
        }
        let computed = forward.run(next, kv, Outputs::None, probe).map(drop);
        // What is left of a chunk that was not completed.
        kv.truncate(kv.len());
        computed
    }

    /// Forgets what `prompt` does not begin with, and at least its last token, whose logits are wanted. Returns how many
    /// tokens of the prompt are left to reuse.
    ///
    /// Entries that survived a shift are not reused: the answer to a prompt does not depend on what went before it.
    pub fn reuse(&mut self, prompt: &[u32]) -> usize {
        let common = self.tokens.iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count();
        self.truncate(common.min(self.exact).min(prompt.len().saturating_sub(1)));
        self.tokens.len()
    }

    /// Computes `tokens`, which there must be room for, behind those it holds; it must be settled. On an error it holds what
    /// it held before.
    pub fn compute<'f>(
        &mut self,
        forward: &'f mut Forward,
        tokens: &[u32],
        wanted: Wanted,
        probe: &mut dyn Probe,
    ) -> Result<Computed<'f>> {
        let Some(kv) = &mut self.kv else {
            return Err(Error::invalid("context", "a settled one", "one without its cache"));
        };
        let computed = match wanted {
            Wanted::Nothing => forward.run(tokens, kv, Outputs::None, probe).map(|_| Computed::Nothing),
            Wanted::Logits => forward.run(tokens, kv, Outputs::Last, probe).map(Computed::Logits),
            Wanted::Shortlist(k) => forward.top(tokens, kv, k, probe).map(Computed::Shortlist),
        };
        match &computed {
            Ok(_) => {
                if self.exact == self.tokens.len() {
                    self.exact += tokens.len();
                }
                self.tokens.extend_from_slice(tokens);
            }
            Err(_) => kv.truncate(self.tokens.len()),
        }
        computed
    }

    /// Forgets the older half of what is behind the first `keep` tokens. Returns the tokens that then have to be computed
    /// again: none when the cache can move its entries, otherwise all that were behind the gap.
    pub fn shift(&mut self, keep: usize) -> Vec<u32> {
        let keep = keep.min(self.tokens.len());
        let discard = (self.tokens.len() - keep).div_ceil(2);
        if self.kv.as_mut().is_some_and(|kv| kv.shift(keep, discard).is_ok()) {
            self.tokens.drain(keep..keep + discard);
            self.exact = self.exact.min(keep);
            return Vec::new();
        }
        let again = self.tokens.split_off(keep + discard);
        self.truncate(keep);
        again
    }

    /// Keeps only the first `length` tokens.
    fn truncate(&mut self, length: usize) {
        if let Some(kv) = &mut self.kv {
            kv.truncate(length);
        }
        self.tokens.truncate(length);
        self.exact = self.exact.min(length);
    }
}
