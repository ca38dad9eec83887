//! A KV cache together with the tokens it holds.

use crate::{
    error::Result,
    model::{Forward, KvCache, Outputs, Probe},
};

/// What a session remembers. The cache always holds exactly `tokens`, whatever fails in between.
#[derive(Debug)]
pub(super) struct Context {
    kv: KvCache,
    tokens: Vec<u32>,
    /// So many tokens at the start have the entries a fresh computation would give them; those behind were computed
    /// before something in front of them was forgotten.
    exact: usize,
}

impl Context {
    pub fn new(kv: KvCache) -> Self {
        Context { kv, tokens: Vec::new(), exact: 0 }
    }

    /// The tokens it holds.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many it can hold.
    pub fn capacity(&self) -> usize {
        self.kv.capacity()
    }

    /// How many more it can hold.
    pub fn room(&self) -> usize {
        self.capacity() - self.tokens.len()
    }

    /// Bytes of the cache.
    pub fn bytes(&self) -> u64 {
        self.kv.bytes()
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

    /// Computes `tokens`, which there must be room for, behind those it holds. On an error it holds what it held before.
    pub fn compute<'f>(
        &mut self,
        forward: &'f mut Forward,
        tokens: &[u32],
        outputs: Outputs,
        probe: &mut dyn Probe,
    ) -> Result<&'f [f32]> {
        match forward.run(tokens, &mut self.kv, outputs, probe) {
            Ok(logits) => {
                if self.exact == self.tokens.len() {
                    self.exact += tokens.len();
                }
                self.tokens.extend_from_slice(tokens);
                Ok(logits)
            }
            Err(error) => {
                self.kv.truncate(self.tokens.len());
                Err(error)
            }
        }
    }

    /// Forgets the older half of what is behind the first `keep` tokens. Returns the tokens that then have to be computed
    /// again: none when the cache can move its entries, otherwise all that were behind the gap.
    pub fn shift(&mut self, keep: usize) -> Vec<u32> {
        let keep = keep.min(self.tokens.len());
        let discard = (self.tokens.len() - keep).div_ceil(2);
        if self.kv.shift(keep, discard).is_ok() {
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
        self.kv.truncate(length);
        self.tokens.truncate(length);
        self.exact = self.exact.min(length);
    }
}
