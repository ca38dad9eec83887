//! Recurrent states of a conversation, and the snapshots to which they can go back. A layer's state
//! is in the memory of the processor that computes the layer. Snapshots are in RAM.

use super::{
    off_host::OffHostState,
    recurrent_layer::RecurrentState,
    snapshots::{self, Snapshots},
};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_model::{LayerConfig, ModelConfig, StateShape};

/// A layer's state, in the memory of the processor that computes the layer.
#[derive(Debug)]
enum PlacedState {
    Ram(RecurrentState),
    OffHost(Box<dyn OffHostState>),
}

impl PlacedState {
    fn save(&self, to: &mut RecurrentState) -> Result<()> {
        match self {
            PlacedState::Ram(state) => {
                to.copy_from(state);
                Ok(())
            }
            PlacedState::OffHost(state) => state.save(to),
        }
    }

    /// Sets the state to `saved`. If its processor fails to restore it, the state is in RAM from
    /// then on.
    fn restore(&mut self, saved: &RecurrentState) {
        match self {
            PlacedState::Ram(state) => state.copy_from(saved),
            PlacedState::OffHost(state) => {
                if let Err(error) = state.restore(saved) {
                    tracing::warn!(%error, "a recurrent state moves to RAM because the device could not restore it");
                    *self = PlacedState::Ram(saved.clone());
                }
            }
        }
    }
}

/// The recurrent states of one conversation.
#[derive(Debug)]
pub(crate) struct RecurrentStates {
    /// The states, by layer.
    layers: Vec<Option<PlacedState>>,
    /// The shapes of these states.
    shapes: Vec<StateShape>,
    /// Snapshots of the layers that have a state.
    snapshots: Snapshots<Vec<RecurrentState>>,
    /// True during a chunk, when only some layers have seen its tokens.
    pub unfinished: bool,
}

impl RecurrentStates {
    /// Makes the states before the first token. Returns `None` for a model without states.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room.
    pub fn new(config: &ModelConfig) -> Result<Option<Self>> {
        if !config.is_recurrent() {
            return Ok(None);
        }
        let no_room = || Error::memory(ScarceMemory::Ram, "recurrent states", config.state_bytes(), 0);
        let states = config.layers.iter().map(|layer| match layer.state() {
            Some(shape) => RecurrentState::new(shape).map(PlacedState::Ram).map(Some).ok_or_else(no_room),
            None => Ok(None),
        });
        let layers = states.collect::<Result<Vec<_>>>()?;
        let shapes = config.layers.iter().filter_map(LayerConfig::state).collect();
        Ok(Some(RecurrentStates { layers, shapes, snapshots: Snapshots::default(), unfinished: false }))
    }

    /// The state of `layer`, if it is in RAM.
    pub fn layer(&self, layer: usize) -> Option<&RecurrentState> {
        match self.layers.get(layer)? {
            Some(PlacedState::Ram(state)) => Some(state),
            _ => None,
        }
    }

    /// The state of `layer`, if it is in RAM, mutably: the current chunk advances it.
    pub fn advance_layer(&mut self, layer: usize) -> Option<&mut RecurrentState> {
        self.unfinished = true;
        match self.layers.get_mut(layer)? {
            Some(PlacedState::Ram(state)) => Some(state),
            _ => None,
        }
    }

    /// The state of `layer`, if it is in another processor's memory. The current chunk advances it.
    pub fn advance_layer_off_host(&mut self, layer: usize) -> Option<&dyn OffHostState> {
        self.unfinished = true;
        self.layer_off_host(layer)
    }

    /// The state of `layer`, if it is in another processor's memory.
    pub fn layer_off_host(&self, layer: usize) -> Option<&dyn OffHostState> {
        match self.layers.get(layer)? {
            Some(PlacedState::OffHost(state)) => Some(&**state),
            _ => None,
        }
    }

    /// True if `layer` has a state.
    pub fn has_layer(&self, layer: usize) -> bool {
        matches!(self.layers.get(layer), Some(Some(_)))
    }

    /// True if any state is in another processor's memory.
    pub fn off_host(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer, Some(PlacedState::OffHost(_))))
    }

    /// Moves the state of `layer` from RAM into `to`. A state that is already in another
    /// processor's memory stays there.
    ///
    /// # Errors
    /// The errors of [`OffHostState::restore`]; the state is then still in RAM.
    pub fn move_off_host(&mut self, layer: usize, to: Box<dyn OffHostState>) -> Result<()> {
        if let Some(Some(place @ PlacedState::Ram(_))) = self.layers.get_mut(layer) {
            if let PlacedState::Ram(state) = place {
                to.restore(state)?;
            }
            *place = PlacedState::OffHost(to);
        }
        Ok(())
    }

    /// Moves the state of `layer` into RAM and frees its memory elsewhere.
    ///
    /// # Errors
    /// The errors of [`OffHostState::save`]; the state then stays where it is.
    pub fn move_to_ram(&mut self, layer: usize) -> Result<()> {
        if let Some(Some(place @ PlacedState::OffHost(_))) = self.layers.get_mut(layer) {
            let mut state = RecurrentState::default();
            place.save(&mut state)?;
            *place = PlacedState::Ram(state);
        }
        Ok(())
    }

    /// Notes that every layer has seen the chunk: the states are now after `tokens` tokens.
    pub fn finish(&mut self, tokens: usize) {
        self.unfinished = false;
        if self.snapshots.is_due(tokens) {
            self.take_snapshot(tokens);
        }
    }

    /// Keeps a copy of the states after `tokens` tokens, if there is room for it.
    pub fn take_snapshot(&mut self, tokens: usize) {
        if self.unfinished || self.snapshots.is_known(tokens) {
            return;
        }
        let one = self.one();
        let states = match self.snapshots.take_redundant(one) {
            Some(states) => Some(states),
            None => self.shapes.iter().map(|shape| RecurrentState::new(*shape)).collect(),
        };
        let Some(mut states) = states else {
            tracing::debug!(tokens, bytes = one, "no snapshot of the recurrent states is made because RAM is short");
            return;
        };
        let mut all = states.iter_mut().zip(self.layers.iter().flatten());
        match all.try_for_each(|(to, from)| from.save(to)) {
            Ok(()) => self.snapshots.push(tokens, states),
            Err(error) => tracing::debug!(tokens, %error, "the snapshot of the recurrent states failed"),
        }
    }

    /// Takes the states, which are after `now` tokens, back to at most `tokens` tokens. Returns the
    /// number of tokens reached.
    pub fn rewind(&mut self, tokens: usize, now: usize) -> usize {
        if tokens >= now && !self.unfinished {
            return now;
        }
        self.unfinished = false;
        self.snapshots.truncate(tokens);
        let states = self.layers.iter_mut().flatten();
        match self.snapshots.last() {
            Some(last) => {
                states.zip(&last.of).for_each(|(state, saved)| state.restore(saved));
                last.tokens
            }
            None => {
                let zeros = |shape: &StateShape| {
                    let [conv, scan] = shape.floats().map(|floats| vec![0.0; floats]);
                    RecurrentState { conv, scan }
                };
                states.zip(&self.shapes).for_each(|(state, shape)| state.restore(&zeros(shape)));
                0
            }
        }
    }

    /// The largest number of tokens, at most `tokens`, after which these states can be copied to
    /// another conversation. The states are after `now` tokens.
    pub fn latest(&self, tokens: usize, now: usize) -> usize {
        if now <= tokens && !self.unfinished {
            return now;
        }
        self.snapshots.until(tokens).next().map_or(0, |snapshot| snapshot.tokens)
    }

    /// Copies the states of `from`, which is after `now` tokens, as they were after `tokens`
    /// tokens. [`RecurrentStates::latest`] returned that number.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost, [`Error::Memory`] if there is no room for a copy.
    /// After an error nothing has changed.
    pub fn copy_from(&mut self, from: &Self, tokens: usize, now: usize) -> Result<()> {
        let snapshot = from.snapshots.until(tokens).next().filter(|snapshot| snapshot.tokens == tokens);
        let saved = match snapshot {
            Some(snapshot) => snapshot.of.clone(),
            None if tokens == now && !from.unfinished => {
                let room = from.shapes.iter().map(|shape| RecurrentState::new(*shape)).collect::<Option<Vec<_>>>();
                let no_room = || Error::memory(ScarceMemory::Ram, "recurrent states", from.bytes(), 0);
                let mut states = room.ok_or_else(no_room)?;
                let mut all = states.iter_mut().zip(from.layers.iter().flatten());
                all.try_for_each(|(to, from)| from.save(to))?;
                states
            }
            None => return Err(Error::invalid("recurrent states", "a number of tokens with a snapshot", tokens)),
        };
        self.layers.iter_mut().flatten().zip(&saved).for_each(|(state, saved)| state.restore(saved));
        self.unfinished = false;
        self.take_snapshot(tokens);
        Ok(())
    }

    /// Bytes of the states, or of one copy of them.
    fn one(&self) -> u64 {
        self.shapes.iter().map(StateShape::bytes).sum()
    }

    /// Bytes of the states and their snapshots.
    pub fn bytes(&self) -> u64 {
        self.one() * (1 + self.snapshots.iter().count() as u64)
    }

    /// Bytes of the states and of the most snapshots that a conversation of at most `capacity`
    /// tokens may have.
    pub fn most_bytes(&self, capacity: usize) -> u64 {
        self.one().saturating_add(snapshots::most_bytes(self.one(), capacity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::snapshots::{INTERVAL, MOST_SNAPSHOTS};

    fn states() -> RecurrentStates {
        let shape = StateShape { conv: [1, 2], scan: [1, 1, 3] };
        let state = RecurrentState::new(shape).map(PlacedState::Ram);
        RecurrentStates {
            layers: vec![None, state],
            shapes: vec![shape],
            snapshots: Snapshots::default(),
            unfinished: false,
        }
    }

    /// The first element of layer 1's memory.
    fn memory(states: &RecurrentStates) -> f32 {
        match &states.layers[1] {
            Some(PlacedState::Ram(state)) => state.scan[0],
            other => panic!("{other:?}"),
        }
    }

    /// Computes tokens one by one. The state counts the tokens it has seen.
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
        assert_eq!(memory(&states), 512.0);
        compute(&mut states, 512..530);
        states.take_snapshot(530);
        compute(&mut states, 530..540);
        assert_eq!(states.rewind(535, 540), 530);
        // An incomplete chunk.
        states.advance_layer(1).unwrap().scan[0] = -1.0;
        assert!(states.unfinished);
        assert_eq!(states.rewind(530, 530), 530);
        assert_eq!(memory(&states), 530.0);
        assert_eq!(states.rewind(100, 530), 0);
        assert_eq!(memory(&states), 0.0);
        assert!(states.layers[0].is_none() && states.snapshots.last().is_none());
    }

    #[test]
    fn states_are_given_to_another_conversation_as_far_as_snapshots_go() {
        let (mut from, mut to) = (states(), states());
        compute(&mut from, 0..300);
        assert_eq!((from.latest(400, 300), from.latest(299, 300), from.latest(200, 300)), (300, 256, 0));
        to.copy_from(&from, 256, 300).unwrap();
        assert_eq!((memory(&to), to.latest(256, 256)), (256.0, 256));
        compute(&mut to, 256..260);
        assert_eq!((to.rewind(258, 260), memory(&to)), (256, 256.0));
        to.copy_from(&from, 300, 300).unwrap();
        assert_eq!(memory(&to), 300.0);
        assert!(to.copy_from(&from, 200, 300).is_err());
    }

    #[test]
    fn snapshots_are_counted() {
        let mut states = states();
        compute(&mut states, 0..100 * INTERVAL);
        assert_eq!(states.bytes(), 20 * (1 + MOST_SNAPSHOTS as u64));
        assert_eq!(states.most_bytes(100 * INTERVAL), states.bytes());
    }
}
