//! A context: a KV cache together with the tokens it holds.

use thermocline_base::error::{Error, Result};
use thermocline_cpu::Isa;
use thermocline_run::runtime::{Forward, KvCache, KvType, Outputs, Probe, Shortlist};

/// The logits wanted of the last token of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WantedLogits {
    /// None: another chunk follows.
    Nothing,
    /// All.
    Logits,
    /// All, of every token of the chunk.
    EveryLogits,
    /// All, of a token and the drafts behind it: each as of a pass of its own.
    DraftLogits,
    /// This number of the largest.
    Shortlist(usize),
    /// None, but the hidden states of every token of the chunk.
    Hidden,
}

/// The logits that were computed.
#[derive(Debug)]
pub(super) enum ComputedLogits<'f> {
    Nothing,
    /// `[n, n_vocab]`, of the last token or of every token.
    Logits(&'f [f32]),
    Shortlist(Shortlist<'f>),
    /// `[n, d_model]`, the hidden states of every token.
    Hidden(&'f [f32]),
}

/// The context of a session. The cache holds exactly `tokens`, whatever fails in between; only after it had to be given up, with a
/// device that is lost, it holds fewer of them until [`SessionContext::settle`] has computed the rest again.
#[derive(Debug)]
pub(super) struct SessionContext {
    kv: Option<KvCache>,
    /// Most tokens it can hold.
    capacity: usize,
    /// Requested encoding.
    ty: KvType,
    /// Most bytes of the cache it was made with, with all snapshots that may be.
    reserved: u64,
    tokens: Vec<u32>,
    /// Number of tokens at the start whose entries are those of a fresh computation; those behind were computed before tokens in
    /// front of them were forgotten.
    exact: usize,
}

impl SessionContext {
    pub fn new(kv: KvCache) -> Self {
        let (capacity, ty, reserved) = (kv.capacity(), kv.ty(), kv.most_bytes());
        SessionContext { capacity, ty, reserved, kv: Some(kv), tokens: Vec::new(), exact: 0 }
    }

    /// The tokens it holds.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Most tokens it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of tokens it has room for.
    pub fn room(&self) -> usize {
        self.capacity() - self.tokens.len()
    }

    /// Bytes of the cache.
    pub fn bytes(&self) -> u64 {
        self.kv.as_ref().map_or(0, KvCache::bytes)
    }

    /// Most bytes that its cache takes, now or once it is made again.
    pub fn reserved(&self) -> u64 {
        self.reserved.max(self.bytes())
    }

    /// True if it has a cache with tokens.
    pub fn is_held(&self) -> bool {
        self.kv.is_some() && !self.tokens.is_empty()
    }

    /// Gives up cache and tokens.
    pub fn forget(&mut self) {
        (self.kv, self.exact) = (None, 0);
        self.tokens.clear();
    }

    /// Number of tokens at the start of a prompt, which is `first` and then `rest`, that it holds as computed from scratch.
    pub fn common(&self, first: &[u32], rest: &[u32]) -> usize {
        let prompt = first.iter().chain(rest);
        self.tokens[..self.exact].iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count()
    }

    /// Copies what `from` holds of `rest`, the tokens behind its own, up to `tokens` in all; both are settled. Returns the number of
    /// tokens copied.
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

    /// The cache; `None` if it was given up.
    pub fn kv_mut(&mut self) -> Option<&mut KvCache> {
        self.kv.as_mut()
    }

    /// True if the cache has recurrent states.
    pub fn is_recurrent(&self) -> bool {
        self.kv.as_ref().is_some_and(KvCache::is_recurrent)
    }

    /// Keeps a copy of recurrent states and windows, if there are any.
    pub fn take_snapshot(&mut self) {
        if let Some(kv) = self.kv.as_mut().filter(|kv| kv.len() == self.tokens.len()) {
            kv.take_snapshot();
        }
    }

    /// Gives up the cache, but not the tokens.
    pub fn drop_cache(&mut self) {
        self.kv = None;
    }

    /// Moves the cache from the device of `forward` into RAM; gives it up if that fails.
    pub fn move_to_ram(&mut self, forward: &mut Forward) {
        let Some(kv) = &mut self.kv else { return };
        let returned = forward.residency().is_none_or(|(_, residency)| residency.return_kv(kv).is_ok());
        if !returned || !kv.on_host() {
            self.kv = None;
        }
    }

    /// True if the cache is where `forward` works, and holds every token.
    pub fn is_settled(&self, forward: &Forward) -> bool {
        self.kv.as_ref().is_some_and(|kv| forward.holds(kv) && kv.len() == self.tokens.len())
    }

    /// Moves the cache to where `forward` works, and computes the next `chunk` of the tokens that are missing there. On an error it
    /// holds at least what it held before.
    pub fn settle(&mut self, forward: &mut Forward, chunk: usize, probe: &mut dyn Probe) -> Result<()> {
        if let Some(kv) = self.kv.as_mut().filter(|kv| !forward.holds(kv))
            && let Some((model, residency)) = forward.residency()
        {
            residency.take_kv(model, kv)?;
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
        // Drops the rest of a chunk that was not completed.
        kv.truncate(kv.len());
        computed
    }

    /// Forgets the tokens that `prompt` does not begin with, and at least its last token, whose logits are wanted. Returns the
    /// number of the prompt's tokens that are left to reuse.
    ///
    /// With recurrent states fewer are left: and with windows that are not held any more: those of the snapshot before.
    /// Entries that survived a shift are not reused: the answer to a prompt does not depend on earlier ones.
    pub fn reuse(&mut self, prompt: &[u32]) -> usize {
        let common = self.tokens.iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count();
        // What was computed last is a whole message, most likely: the next prompt may branch off here.
        self.take_snapshot();
        self.truncate(common.min(self.exact).min(prompt.len().saturating_sub(1)));
        if let Some(kv) = &self.kv {
            let held = kv.len().min(self.tokens.len());
            self.tokens.truncate(held);
            self.exact = self.exact.min(held);
        }
        self.tokens.len()
    }

    /// Computes `tokens`, for which there is room, behind those it holds; it must be settled. On an error it holds what it held
    /// before.
    pub fn compute<'f>(
        &mut self,
        forward: &'f mut Forward,
        tokens: &[u32],
        wanted: WantedLogits,
        probe: &mut dyn Probe,
    ) -> Result<ComputedLogits<'f>> {
        let Some(kv) = &mut self.kv else {
            return Err(Error::invalid("context", "a settled one", "one without its cache"));
        };
        let computed = match wanted {
            WantedLogits::Nothing => forward.run(tokens, kv, Outputs::None, probe).map(|_| ComputedLogits::Nothing),
            WantedLogits::Logits => forward.run(tokens, kv, Outputs::Last, probe).map(ComputedLogits::Logits),
            WantedLogits::EveryLogits => forward.run(tokens, kv, Outputs::All, probe).map(ComputedLogits::Logits),
            WantedLogits::DraftLogits => forward.run_batch(&mut [(kv, tokens)], probe).map(ComputedLogits::Logits),
            WantedLogits::Hidden => forward.hidden(tokens, kv, probe).map(ComputedLogits::Hidden),
            WantedLogits::Shortlist(k) => forward.top(tokens, kv, k, probe).map(ComputedLogits::Shortlist),
        };
        match &computed {
            Ok(_) => self.push(tokens),
            Err(_) => kv.truncate(self.tokens.len()),
        }
        computed
    }

    /// `tokens` were appended to its cache.
    pub fn push(&mut self, tokens: &[u32]) {
        if self.exact == self.tokens.len() {
            self.exact += tokens.len();
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// Drops what the cache holds beyond the tokens, after a pass that failed.
    pub fn drop_unfinished(&mut self) {
        if let Some(kv) = &mut self.kv {
            kv.truncate(self.tokens.len());
        }
    }

    /// Forgets the older half of the tokens behind the first `keep`. Returns the tokens to compute again: none if the cache can
    /// move its entries, which it does by `isa`, otherwise all behind the gap.
    pub fn shift(&mut self, isa: Isa, keep: usize) -> Vec<u32> {
        let keep = keep.min(self.tokens.len());
        let discard = (self.tokens.len() - keep).div_ceil(2);
        self.remove(isa, keep, discard)
    }

    /// Forgets tokens so that it holds `wanted`, which has fewer. Returns the tokens to compute again: none if these are the
    /// tokens it holds without some in a row and the cache can move its entries, otherwise all behind those they have in
    /// common.
    pub fn shorten(&mut self, isa: Isa, wanted: &[u32]) -> Vec<u32> {
        let keep = self.tokens.iter().zip(wanted).take_while(|(held, wanted)| held == wanted).count();
        let discard = self.tokens.len().saturating_sub(wanted.len());
        if self.tokens.get(keep + discard..) == Some(&wanted[keep..]) {
            return self.remove(isa, keep, discard);
        }
        self.truncate(keep);
        wanted[keep..].to_vec()
    }

    /// Forgets `discard` tokens behind the first `keep`, as [`SessionContext::shift`] does.
    fn remove(&mut self, isa: Isa, keep: usize, discard: usize) -> Vec<u32> {
        if self.kv.as_mut().is_some_and(|kv| kv.shift(isa, keep, discard).is_ok()) {
            self.tokens.drain(keep..keep + discard);
            self.exact = self.exact.min(keep);
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
        self.tokens.truncate(length);
        self.exact = self.exact.min(length);
    }
}
