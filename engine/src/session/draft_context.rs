//! A drafter's view of a conversation: its own KV cache, and the hidden states that are still to be
//! computed.

use thermocline_run::runtime::KvCache;

/// Most tokens of the context that a drafter has not computed before it drafts. It computes more of
/// them beforehand, in a pass of their own.
pub(super) const MOST_WAITING: usize = 128;

/// The entries that a drafter holds of a conversation. Entry `p` of its cache belongs to token `p`
/// of the context.
///
/// A draft model computes the tokens themselves, and keeps the entries of its drafts until it is
/// known which ones are accepted. A draft head computes entry `p` from the hidden state of token
/// `p` and from token `p + 1`, so states wait here until the next token is known. Where states are
/// missing, because another processor or another conversation computed the tokens, the head starts
/// anew: it only sees the tokens from there on. An assistant has no entries and needs only the last
/// state.
#[derive(Debug)]
pub(super) struct DraftContext {
    /// The drafter's cache.
    pub kv: KvCache,
    /// The token to which the first entry belongs.
    start: usize,
    /// Hidden states of the tokens after the entries, `[tokens, width]`; empty for a draft model.
    states: Vec<f32>,
    /// Width of a hidden state of the model; 0 for a draft model.
    width: usize,
    /// The tokens of a draft model's last entries that the context may not get.
    drafted: Vec<u32>,
}

impl DraftContext {
    /// Creates the view of a conversation that holds `tokens` tokens. `width` is the width of a
    /// hidden state, or 0 for a draft model.
    pub fn new(kv: KvCache, tokens: usize, width: usize) -> Self {
        let start = if width > 0 { tokens } else { 0 };
        DraftContext { kv, start, states: Vec::new(), width, drafted: Vec::new() }
    }

    /// The token after the tokens that have entries.
    pub fn end(&self) -> usize {
        self.start + self.kv.len()
    }

    /// The hidden states of the tokens from [`DraftContext::end`] on, and the cache.
    pub fn states_and_kv(&mut self) -> (&[f32], &mut KvCache) {
        (&self.states, &mut self.kv)
    }

    /// True for a draft head and an assistant, which read hidden states.
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

    /// Removes all states but the last. An assistant reads no others.
    pub fn keep_last_state(&mut self) {
        let earlier = self.waiting().saturating_sub(1);
        self.drop_states(earlier);
        self.start += earlier;
        self.states.shrink_to(self.width);
    }

    /// Takes over the positions of pictures in the conversation, whose cache is `kv`.
    pub fn follow_pictures(&mut self, kv: &KvCache) {
        self.kv.follow_pictures(kv, self.start);
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
        self.drafted.clear();
        self.start = if self.width > 0 { tokens } else { 0 };
    }

    /// Forgets the tokens after the first `tokens`.
    pub fn truncate(&mut self, tokens: usize) {
        let end = self.end();
        if self.width == 0 {
            let known = end - self.drafted.len();
            self.kv.truncate(tokens);
            self.drafted.truncate(self.end().saturating_sub(known));
            return;
        }
        if tokens > end || self.kv.is_empty() {
            let Some(kept) = tokens.checked_sub(end) else { return self.restart(tokens) };
            self.states.truncate(kept * self.width);
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

    /// Notes that a draft model computed the last entry from `token`, which the context may not
    /// get.
    pub fn add_draft(&mut self, token: u32) {
        self.drafted.push(token);
    }

    /// Forgets the drafts of a draft model that differ from `held`, the tokens of the context.
    pub fn settle(&mut self, held: &[u32]) {
        if self.drafted.is_empty() {
            return;
        }
        let known = self.end() - self.drafted.len();
        let later = held.get(known..).unwrap_or_default();
        let accepted = self.drafted.iter().zip(later).take_while(|(draft, token)| draft == token).count();
        self.truncate(known + accepted);
        self.drafted.clear();
    }

    /// Drops the entries of the drafts of a draft head: those from token `tokens` on.
    pub fn drop_entries(&mut self, tokens: usize) {
        self.kv.truncate(tokens.saturating_sub(self.start));
    }
}
