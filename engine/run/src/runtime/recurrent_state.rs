//! Recurrent states of a conversation, and the planes and snapshots to which they can go back. A
//! layer's state and planes are in the memory of the processor that computes the layer. Snapshots
//! are in RAM.

use std::ops::Range;

use super::{
    off_host::OffHostState,
    placed_state::{AdvancedState, PlacedState, RamState},
    recurrent_layer::RecurrentState,
    snapshots::{self, Snapshots},
};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_gpu::Recorder;
use thermocline_model::{LayerConfig, ModelConfig, StateShape};

/// Most planes of a state: copies of it after each token of a pass of separate tokens, except the
/// last, or before each of several passes. A plane takes as much memory as the state, often more
/// than 50 MB in all layers, and each further draft of a pass is accepted less often.
pub const MOST_PLANES: usize = 4;

/// The recurrent states of one conversation.
#[derive(Debug)]
pub(crate) struct RecurrentStates {
    /// The states, by layer.
    layers: Vec<Option<PlacedState>>,
    /// The shapes of these states.
    shapes: Vec<StateShape>,
    /// Snapshots of the layers that have a state.
    snapshots: Snapshots<Vec<RecurrentState>>,
    /// Number of planes that the current pass saves.
    saved_planes: usize,
    /// Numbers of tokens after which the planes hold the states, in the order of the planes.
    plane_tokens: Range<usize>,
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
        let in_ram = |state| PlacedState::Ram(RamState::new(state));
        let states = config.layers.iter().map(|layer| match layer.state() {
            Some(shape) => RecurrentState::new(shape).map(in_ram).map(Some).ok_or_else(no_room),
            None => Ok(None),
        });
        let layers = states.collect::<Result<Vec<_>>>()?;
        let shapes = config.layers.iter().filter_map(LayerConfig::state).collect();
        Ok(Some(Self::of(layers, shapes)))
    }

    fn of(layers: Vec<Option<PlacedState>>, shapes: Vec<StateShape>) -> Self {
        RecurrentStates {
            layers,
            shapes,
            snapshots: Snapshots::default(),
            saved_planes: 0,
            plane_tokens: 0..0,
            unfinished: false,
        }
    }

    /// The state of `layer`, if it is in RAM.
    pub fn layer(&self, layer: usize) -> Option<&RecurrentState> {
        match self.layers.get(layer)? {
            Some(PlacedState::Ram(it)) => Some(&it.state),
            _ => None,
        }
    }

    /// Makes memory for as many planes as possible, up to `planes` and [`MOST_PLANES`]. Returns
    /// their number.
    pub fn reserve_planes(&mut self, planes: usize) -> usize {
        let planes = planes.min(MOST_PLANES);
        for wanted in self.planes() + 1..=planes {
            let mut layers = self.layers.iter_mut().flatten().zip(&self.shapes);
            if let Err(error) = layers.try_for_each(|(layer, shape)| layer.reserve_planes(*shape, wanted)) {
                tracing::debug!(%error, planes = wanted, "a pass has fewer drafts because memory is short");
                self.layers.iter_mut().flatten().for_each(|layer| layer.truncate_planes(wanted - 1));
                break;
            }
        }
        self.planes().min(planes)
    }

    /// Frees the planes.
    pub fn free_planes(&mut self) {
        self.plane_tokens = 0..0;
        self.layers.iter_mut().flatten().for_each(|layer| layer.truncate_planes(0));
    }

    /// Number of planes that have memory in every layer.
    fn planes(&self) -> usize {
        self.layers.iter().flatten().map(PlacedState::planes).min().unwrap_or(0)
    }

    /// Saves the states, which are after `now` tokens, in a further plane. Planes of the tokens
    /// directly before stay. Returns false if [`MOST_PLANES`] hold states already, if memory is
    /// short, or if a device fails.
    pub fn save_plane(&mut self, now: usize) -> bool {
        if self.plane_tokens.end != now {
            self.plane_tokens = now..now;
        }
        let at = self.plane_tokens.len();
        if self.unfinished || self.reserve_planes(at + 1) <= at {
            return false;
        }
        let copied = self.with_recorder(|layer, recorder| layer.save_plane(at, recorder));
        if let Err(error) = &copied {
            tracing::warn!(%error, "there are fewer drafts because the device could not copy a recurrent state");
        }
        self.plane_tokens.end += usize::from(copied.is_ok());
        copied.is_ok()
    }

    /// Calls `copy` for the state of each layer. Copies in another processor's memory are recorded
    /// in the recorder that `copy` gets, and submitted.
    fn with_recorder(&mut self, mut copy: impl FnMut(&mut PlacedState, &mut Option<Recorder>)) -> Result<()> {
        let mut recorder = None;
        self.layers.iter_mut().flatten().for_each(|layer| copy(layer, &mut recorder));
        recorder.map_or(Ok(()), |recorder| recorder.submit().map(drop))
    }

    /// Prepares for a pass of `tokens` tokens. If they are `separate`, planes save the states after
    /// each token but the last, unless there are too many tokens or memory is short.
    pub fn begin(&mut self, tokens: usize, separate: bool) {
        let wanted = if separate { tokens.saturating_sub(1) } else { 0 };
        self.saved_planes = if wanted <= MOST_PLANES && self.reserve_planes(wanted) == wanted { wanted } else { 0 };
        if self.saved_planes > 0 {
            self.plane_tokens = 0..0;
        }
    }

    /// The state of `layer`, if it is in RAM, mutably: the current chunk advances it.
    pub fn advance_layer(&mut self, layer: usize) -> Option<AdvancedState<'_>> {
        self.unfinished = true;
        match self.layers.get_mut(layer)? {
            Some(PlacedState::Ram(RamState { state, planes })) => {
                Some(AdvancedState { state, planes: planes.get_mut(..self.saved_planes)? })
            }
            _ => None,
        }
    }

    /// The state of `layer`, if it is in another processor's memory. The current chunk advances it.
    pub fn advance_layer_off_host(&mut self, layer: usize) -> Option<&dyn OffHostState> {
        self.unfinished = true;
        self.layer_off_host(layer)
    }

    /// Number of planes that the current pass saves: none, or one for each token but the last.
    pub fn saved_planes(&self) -> usize {
        self.saved_planes
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
            if let PlacedState::Ram(from) = place {
                to.restore(&from.state)?;
            }
            *place = PlacedState::OffHost(to);
            self.free_planes();
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
            *place = PlacedState::Ram(RamState::new(state));
            self.free_planes();
        }
        Ok(())
    }

    /// Notes that every layer has seen the chunk: the states are now after `tokens` tokens.
    pub fn finish(&mut self, tokens: usize) {
        self.unfinished = false;
        if self.saved_planes > 0 {
            self.plane_tokens = tokens - self.saved_planes..tokens;
        }
    }

    /// Takes a snapshot after `tokens` tokens if the last one is too old.
    pub fn take_due_snapshot(&mut self, tokens: usize) {
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

    /// Takes the states, which are after `now` tokens, back to at most `tokens` tokens: to a plane,
    /// or else to a snapshot. Returns the number of tokens reached.
    pub fn rewind(&mut self, tokens: usize, now: usize) -> usize {
        if tokens >= now && !self.unfinished {
            return now;
        }
        if self.choose_planes(tokens) {
            self.snapshots.truncate(tokens);
            return tokens;
        }
        self.unfinished = false;
        self.plane_tokens = 0..0;
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

    /// Sets the states to the states that planes hold after `tokens` tokens. False if no planes
    /// hold them, or if a device fails.
    fn choose_planes(&mut self, tokens: usize) -> bool {
        if self.unfinished || !self.plane_tokens.contains(&tokens) {
            return false;
        }
        let at = tokens - self.plane_tokens.start;
        self.plane_tokens.end = tokens;
        match self.with_recorder(|layer, recorder| layer.choose_plane(at, recorder)) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "recurrent states go back to a snapshot because the device could not copy a plane");
                false
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
        self.plane_tokens = 0..0;
        self.take_snapshot(tokens);
        Ok(())
    }

    /// Bytes of the states, or of one copy of them.
    fn one(&self) -> u64 {
        self.shapes.iter().map(StateShape::bytes).sum()
    }

    /// Bytes of the states, their planes and their snapshots.
    pub fn bytes(&self) -> u64 {
        let layers = self.layers.iter().flatten().zip(&self.shapes);
        let planes: u64 = layers.map(|(layer, shape)| layer.planes() as u64 * shape.bytes()).sum();
        self.one() * (1 + self.snapshots.iter().count() as u64) + planes
    }

    /// Bytes of the states, and of the most planes and snapshots that a conversation of at most
    /// `capacity` tokens may have.
    pub fn most_bytes(&self, capacity: usize) -> u64 {
        let one = self.one();
        one.saturating_add(planes_bytes(one)).saturating_add(snapshots::most_bytes(one, capacity))
    }
}

/// Bytes of the most planes of states of `bytes` bytes.
pub(super) fn planes_bytes(bytes: u64) -> u64 {
    bytes.saturating_mul(MOST_PLANES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::snapshots::{INTERVAL, MOST_SNAPSHOTS};

    fn states() -> RecurrentStates {
        let shape = StateShape { conv: [1, 2], scan: [1, 1, 3] };
        let state = RecurrentState::new(shape).map(|state| PlacedState::Ram(RamState::new(state)));
        RecurrentStates::of(vec![None, state], vec![shape])
    }

    /// The first element of layer 1's memory.
    fn memory(states: &RecurrentStates) -> f32 {
        match &states.layers[1] {
            Some(PlacedState::Ram(it)) => it.state.scan[0],
            other => panic!("{other:?}"),
        }
    }

    /// Computes tokens one by one. The state counts the tokens it has seen.
    fn compute(states: &mut RecurrentStates, tokens: std::ops::Range<usize>) {
        for token in tokens {
            states.begin(1, false);
            let AdvancedState { state, planes } = states.advance_layer(1).unwrap();
            assert!(planes.is_empty());
            state.scan[0] += 1.0;
            state.conv[1] = token as f32;
            states.finish(token + 1);
            states.take_due_snapshot(token + 1);
        }
    }

    /// Computes separate tokens in one pass. Returns the number of planes that it saved.
    fn compute_separate(states: &mut RecurrentStates, tokens: Range<usize>) -> usize {
        states.begin(tokens.len(), true);
        let AdvancedState { state, planes } = states.advance_layer(1).unwrap();
        let saved = planes.len();
        for (at, token) in tokens.clone().enumerate() {
            state.scan[0] += 1.0;
            state.conv[1] = token as f32;
            if let Some(plane) = planes.get_mut(at) {
                plane.copy_from(state);
            }
        }
        states.finish(tokens.end);
        saved
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
        states.advance_layer(1).unwrap().state.scan[0] = -1.0;
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
        assert_eq!(compute_separate(&mut states, 100 * INTERVAL..100 * INTERVAL + 3), 2);
        assert_eq!(states.bytes(), 20 * (1 + MOST_SNAPSHOTS as u64 + 2));
        assert_eq!(states.reserve_planes(100), MOST_PLANES);
        assert_eq!(states.most_bytes(100 * INTERVAL), states.bytes());
        states.free_planes();
        assert_eq!(states.bytes(), 20 * (1 + MOST_SNAPSHOTS as u64));
    }

    #[test]
    fn states_go_back_to_any_token_of_a_separate_pass() {
        for kept in 0..=5 {
            let mut states = states();
            compute(&mut states, 0..300);
            assert_eq!(compute_separate(&mut states, 300..305), 4);
            let reached = if kept == 0 { 256 } else { 300 + kept };
            assert_eq!(states.rewind(300 + kept, 305), reached);
            assert_eq!(memory(&states), reached as f32);
            assert_eq!(states.snapshots.last().unwrap().tokens, 256);
        }
    }

    #[test]
    fn states_go_back_to_the_planes_saved_before_passes() {
        for kept in 0..=3 {
            let mut states = states();
            compute(&mut states, 0..300);
            for token in 300..303 {
                assert!(states.save_plane(token));
                compute(&mut states, token..token + 1);
            }
            assert_eq!((states.rewind(300 + kept, 303), memory(&states)), (300 + kept, (300 + kept) as f32));
            // Planes of tokens before the kept one stay, and others follow them.
            let next = 300 + kept;
            assert!(states.save_plane(next));
            compute(&mut states, next..next + 1);
            assert_eq!((states.rewind(300, next + 1), memory(&states)), (300, 300.0));
        }
    }

    #[test]
    fn planes_saved_before_passes_are_limited_and_belong_to_the_latest_tokens() {
        let mut states = states();
        compute(&mut states, 0..10);
        for token in 10..10 + MOST_PLANES {
            assert!(states.save_plane(token));
            compute(&mut states, token..token + 1);
        }
        let end = 10 + MOST_PLANES;
        assert!(!states.save_plane(end));
        // Planes after other tokens take the place of these.
        compute(&mut states, end..end + 2);
        assert!(states.save_plane(end + 2));
        compute(&mut states, end + 2..end + 3);
        assert_eq!((states.rewind(end, end + 3), memory(&states)), (0, 0.0));
    }

    #[test]
    fn planes_hold_only_the_latest_pass() {
        let mut states = states();
        compute_separate(&mut states, 0..5);
        // Earlier planes stay valid after a later one is chosen.
        assert_eq!((states.rewind(3, 5), memory(&states)), (3, 3.0));
        assert_eq!((states.rewind(1, 3), memory(&states)), (1, 1.0));
        assert_eq!(compute_separate(&mut states, 1..4), 2);
        assert_eq!((states.rewind(2, 4), memory(&states)), (2, 2.0));
        compute(&mut states, 2..3);
        assert_eq!((states.rewind(2, 3), memory(&states)), (0, 0.0));
        // A pass of too many tokens has no planes, and neither has an incomplete one.
        assert_eq!(compute_separate(&mut states, 0..6), 0);
        assert_eq!(states.rewind(5, 6), 0);
        compute_separate(&mut states, 0..5);
        states.begin(3, true);
        states.advance_layer(1).unwrap().state.scan[0] = -1.0;
        assert_eq!((states.rewind(5, 5), memory(&states)), (0, 0.0));
    }
}
