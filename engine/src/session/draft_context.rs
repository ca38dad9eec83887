//! A drafter's view of a conversation: its own KV cache, and the hidden states that are still to be
//! computed.

use thermocline_run::runtime::KvCache;

/// Most tokens of the context that a drafter has not computed before it drafts. It computes more of
/// them beforehand, in a pass of their own.
pub(super) const MOST_WAITING: usize = 128;

/// What a drafter holds of a conversation. Entry `p` of its cache belongs to token `p` of the
/// context.
///
/// A draft model computes the tokens themselves. A draft head computes entry `p` from the hidden
/// state of token `p` and from token `p + 1`, so states wait here until the next token is known.
/// Where states are missing, because another processor or another conversation computed the tokens,
/// the head starts anew: it only sees the tokens from there on.
#[derive(Debug)]
pub(super) struct DraftContext {
    /// The drafter's cache.
    pub kv: KvCache,
    /// The token to which the first entry belongs.
    start: usize,
    /// Hidden states of the tokens after the entries, `[tokens, d_model]`; empty for a draft model.
    states: Vec<f32>,
    /// Width of a hidden state; 0 for a draft model.
    width: usize,
}

impl DraftContext {
    /// Creates the view of a conversation that holds `tokens` tokens. `width` is the width of a
    /// hidden state, or 0 for a draft model.
    pub fn new(kv: KvCache, tokens: usize, width: usize) -> Self {
        DraftContext { kv, start: if width > 0 { tokens } else { 0 }, states: Vec::new(), width }
    }

    /// The token after those that have entries.
    pub fn end(&self) -> usize {
        self.start + self.kv.len()
    }

    /// The hidden states of the tokens from [`DraftContext::end`] on, and the cache.
    pub fn states_and_kv(&mut self) -> (&[f32], &mut KvCache) {
        (&self.states, &mut self.kv)
    }

    /// True for a draft head, which reads hidden states.
    pub fn reads_states(&self) -> bool {
        self.width > 0
    }

    /// True if the token after the next one can be drafted, in a context of `tokens` tokens.
    pub fn is_ready(&self, tokens: usize) -> bool {
        match self.reads_states() {
            true => self.waiting() > 0 && self.end() + self.waiting() == tokens,
            false => self.end() + MOST_WAITING >= tokens,
        }
    }

    /// Number of tokens whose states are known but not computed.
    pub fn waiting(&self) -> usize {
        self.states.len().checked_div(self.width).unwrap_or(0)
    }

    /// Removes the states of `tokens` tokens, which have entries now.
    pub fn drop_states(&mut self, tokens: usize) {
        self.states.drain(..tokens * self.width);
    }

    /// Adds the states of the tokens from `first` on. Empty `states` are unknown.
    pub fn add_states(&mut self, first: usize, tokens: usize, states: &[f32]) {
        if self.width == 0 {
            return;
        }
        if states.len() != tokens * self.width {
            self.restart(first + tokens);
            return;
        }
        if self.end() + self.waiting() != first {
            self.restart(first);
        }
        self.states.extend_from_slice(states);
    }

    /// Forgets everything about the tokens before `tokens`.
    pub fn restart(&mut self, tokens: usize) {
        self.kv.truncate(0);
        self.states.clear();
        self.start = if self.width > 0 { tokens } else { 0 };
    }

    /// Forgets the tokens after the first `tokens`.
    pub fn truncate(&mut self, tokens: usize) {
        if self.width == 0 {
            self.kv.truncate(tokens);
            return;
        }
        let end = self.end();
        if tokens > end || self.kv.is_empty() {
            self.states.truncate((tokens - end) * self.width);
            return;
        }
        // The last of the remaining tokens has another successor now, so its entry goes as well.
        // Its state is no longer known: the head reads a state of zeros.
        let Some(kept) = tokens.checked_sub(self.start + 1) else { return self.restart(tokens) };
        self.drop_entries(self.start + kept);
        if self.end() != self.start + kept {
            return self.restart(tokens);
        }
        self.states.clear();
        self.states.resize(self.width, 0.0);
    }

    /// Drops the entries of drafts: those from token `tokens` on.
    pub fn drop_entries(&mut self, tokens: usize) {
        self.kv.truncate(tokens.saturating_sub(self.start));
    }
}
