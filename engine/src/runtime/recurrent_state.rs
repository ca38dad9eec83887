//! Recurrent states of a conversation in RAM, and the snapshots to which they can be taken back.
//!
//! A state holds all earlier tokens and cannot forget the last of them. So copies are kept: at the borders of messages, where the next
//! prompt is likely to branch off, and every [`INTERVAL`] tokens. Taking a conversation back to any token restores the snapshot before
//! it; the tokens in between are computed again.

use crate::{
    error::{Error, Result},
    model::ModelConfig,
};

/// Tokens after which a snapshot is taken at the latest.
const INTERVAL: usize = 256;
/// Most snapshots, and most bytes of them; a few are kept in any case.
const MOST_SNAPSHOTS: usize = 16;
const MOST_BYTES: u64 = 512 << 20;
const FEW_SNAPSHOTS: usize = 4;
/// Newest snapshots that are not given up for others.
const NEWEST: usize = 2;

/// The recurrent state of one layer.
#[derive(Debug, Clone, Default)]
pub struct RecurrentState {
    /// Last inputs of the short convolution, `[taps - 1, channels]`, the newest last.
    pub conv: Vec<f32>,
    /// Memory of the scan: `[heads, k_dim, v_dim]` of a delta net, `[heads, state, head_dim]` of Mamba-2.
    pub scan: Vec<f32>,
}

impl RecurrentState {
    fn new(floats: [usize; 2]) -> Option<Self> {
        let zeros = |n: usize| {
            let mut zeros = Vec::new();
            zeros.try_reserve_exact(n).ok()?;
            zeros.resize(n, 0.0);
            Some(zeros)
        };
        Some(RecurrentState { conv: zeros(floats[0])?, scan: zeros(floats[1])? })
    }

    fn copy_from(&mut self, from: &Self) {
        self.conv.copy_from_slice(&from.conv);
        self.scan.copy_from_slice(&from.scan);
    }

    fn clear(&mut self) {
        self.conv.fill(0.0);
        self.scan.fill(0.0);
    }
}

/// The states behind some number of tokens, of the layers that have one.
#[derive(Debug)]
struct Snapshot {
    tokens: usize,
    states: Vec<RecurrentState>,
}

/// The recurrent states of one conversation.
#[derive(Debug)]
pub(crate) struct RecurrentStates {
    /// By layer.
    layers: Vec<Option<RecurrentState>>,
    /// Floats of each layer's state.
    floats: Vec<[usize; 2]>,
    /// By number of tokens, ascending.
    snapshots: Vec<Snapshot>,
    /// True while a chunk is computed: some layers have seen it and others have not.
    unfinished: bool,
}

impl RecurrentStates {
    /// The states before the first token; `None` for a model without any.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room.
    pub fn new(config: &ModelConfig) -> Result<Option<Self>> {
        if !config.is_recurrent() {
            return Ok(None);
        }
        let no_room = || Error::Memory { what: "recurrent states", wanted: config.state_bytes(), available: 0 };
        let states = config.layers.iter().map(|layer| match &layer.recurrent {
            Some(of) => RecurrentState::new(of.state()).map(Some).ok_or_else(no_room),
            None => Ok(None),
        });
        let layers = states.collect::<Result<Vec<_>>>()?;
        let floats = config.layers.iter().filter_map(|layer| layer.recurrent.as_ref()).map(|of| of.state()).collect();
        Ok(Some(RecurrentStates { layers, floats, snapshots: Vec::new(), unfinished: false }))
    }

    /// The state of `layer`.
    pub fn layer(&self, layer: usize) -> Option<&RecurrentState> {
        self.layers.get(layer)?.as_ref()
    }

    /// The state of `layer`, to be advanced by the chunk that is computed.
    pub fn advance_layer(&mut self, layer: usize) -> Option<&mut RecurrentState> {
        self.unfinished = true;
        self.layers.get_mut(layer)?.as_mut()
    }

    /// Every layer has seen the chunk: `tokens` tokens now.
    pub fn finish(&mut self, tokens: usize) {
        self.unfinished = false;
        let last = self.snapshots.last().map_or(0, |last| last.tokens);
        if tokens >= last + INTERVAL {
            self.take_snapshot(tokens);
        }
    }

    /// True while some layers have seen a chunk and others have not.
    pub fn is_unfinished(&self) -> bool {
        self.unfinished
    }

    /// Keeps a copy of the states, behind `tokens` tokens. Without room for it there is none.
    pub fn take_snapshot(&mut self, tokens: usize) {
        let known = self.snapshots.iter().any(|snapshot| snapshot.tokens == tokens);
        if tokens == 0 || self.unfinished || known {
            return;
        }
        let one = self.floats.iter().flatten().map(|n| (n * size_of::<f32>()) as u64).sum::<u64>().max(1);
        let most = MOST_SNAPSHOTS.min((MOST_BYTES / one) as usize).max(FEW_SNAPSHOTS);
        let states = match self.redundant().filter(|_| self.snapshots.len() >= most) {
            Some(at) => Some(self.snapshots.remove(at).states),
            None => self.floats.iter().map(|floats| RecurrentState::new(*floats)).collect(),
        };
        let Some(mut states) = states else {
            tracing::debug!(tokens, bytes = one, "no room for a snapshot of the recurrent states");
            return;
        };
        states.iter_mut().zip(self.layers.iter().flatten()).for_each(|(to, from)| to.copy_from(from));
        self.snapshots.push(Snapshot { tokens, states });
    }

    /// The snapshot with the nearest neighbours, which is missed least.
    fn redundant(&self) -> Option<usize> {
        let tokens = |at: usize| self.snapshots[at].tokens;
        let old = 0..self.snapshots.len().saturating_sub(NEWEST);
        old.min_by_key(|at| tokens(at + 1) - at.checked_sub(1).map_or(0, tokens))
    }

    /// Takes the states, which are behind `now` tokens, back to at most `tokens`: returns the number of tokens they are behind then.
    pub fn rewind(&mut self, tokens: usize, now: usize) -> usize {
        if tokens >= now && !self.unfinished {
            return now;
        }
        self.unfinished = false;
        self.snapshots.retain(|snapshot| snapshot.tokens <= tokens);
        let states = self.layers.iter_mut().flatten();
        match self.snapshots.last() {
            Some(last) => {
                states.zip(&last.states).for_each(|(state, saved)| state.copy_from(saved));
                last.tokens
            }
            None => {
                states.for_each(RecurrentState::clear);
                0
            }
        }
    }

    /// Bytes of the states and their snapshots.
    pub fn bytes(&self) -> u64 {
        let one: u64 = self.floats.iter().flatten().map(|n| (n * size_of::<f32>()) as u64).sum();
        one * (1 + self.snapshots.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> RecurrentStates {
        let state = RecurrentState::new([2, 3]);
        RecurrentStates { layers: vec![None, state], floats: vec![[2, 3]], snapshots: Vec::new(), unfinished: false }
    }

    /// Computes tokens one by one: the state says how many it has seen.
    fn compute(states: &mut RecurrentStates, tokens: std::ops::Range<usize>) {
        for token in tokens {
            let state = states.advance_layer(1).unwrap();
            state.scan[0] += 1.0;
            state.conv[1] = token as f32;
            states.finish(token + 1);
        }
    }

    #[test]
    fn states_go_back_to_the_snapshot_before_a_token() {
        let mut states = states();
        compute(&mut states, 0..700);
        assert_eq!(states.rewind(700, 700), 700);
        assert_eq!(states.rewind(600, 700), 512);
        assert_eq!(states.layers[1].as_ref().unwrap().scan[0], 512.0);
        compute(&mut states, 512..530);
        states.take_snapshot(530);
        compute(&mut states, 530..540);
        assert_eq!(states.rewind(535, 540), 530);
        // A chunk that was not completed.
        states.advance_layer(1).unwrap().scan[0] = -1.0;
        assert!(states.is_unfinished());
        assert_eq!(states.rewind(530, 530), 530);
        assert_eq!(states.layers[1].as_ref().unwrap().scan[0], 530.0);
        assert_eq!(states.rewind(100, 530), 0);
        assert_eq!(states.layers[1].as_ref().unwrap().scan[0], 0.0);
        assert!(states.layers[0].is_none() && states.snapshots.is_empty());
    }

    #[test]
    fn snapshots_are_few_and_spread_out() {
        let mut states = states();
        compute(&mut states, 0..100 * INTERVAL);
        assert_eq!(states.snapshots.len(), MOST_SNAPSHOTS);
        let tokens: Vec<usize> = states.snapshots.iter().map(|snapshot| snapshot.tokens).collect();
        assert!(tokens.is_sorted() && *tokens.last().unwrap() == 100 * INTERVAL, "{tokens:?}");
        let gap = tokens.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap().max(tokens[0]);
        assert!(gap <= 16 * INTERVAL, "{tokens:?}");
        assert_eq!(states.bytes(), 20 * 17);
    }
}
