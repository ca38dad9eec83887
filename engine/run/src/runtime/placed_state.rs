//! A layer's recurrent state in the memory of its processor, with its planes. Planes are copies of
//! the state. One plane follows each token of a pass of separate tokens, except the last, or
//! precedes each of several passes.

use super::{off_host::OffHostState, recurrent_layer::RecurrentState};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_gpu::Recorder;
use thermocline_model::StateShape;

/// A layer's state in RAM, and its planes.
#[derive(Debug, Default)]
pub(super) struct RamState {
    pub state: RecurrentState,
    pub planes: Vec<RecurrentState>,
}

impl RamState {
    /// Takes `state`, without planes.
    pub fn new(state: RecurrentState) -> Self {
        RamState { state, planes: Vec::new() }
    }

    /// Makes memory for `planes` planes.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room. Some planes may have been made.
    pub fn reserve_planes(&mut self, shape: StateShape, planes: usize) -> Result<()> {
        let no_room = || Error::memory(ScarceMemory::Ram, "a plane of a recurrent state", shape.bytes(), 0);
        while self.planes.len() < planes {
            self.planes.push(RecurrentState::new(shape).ok_or_else(no_room)?);
        }
        Ok(())
    }

    /// Copies the state into plane `at`.
    pub fn save_plane(&mut self, at: usize) {
        self.planes[at].copy_from(&self.state);
    }

    /// Exchanges the state with the one in plane `at`, which costs no copy.
    pub fn choose_plane(&mut self, at: usize) {
        std::mem::swap(&mut self.state, &mut self.planes[at]);
    }
}

/// A state in RAM that a pass advances. Planes receive the states after the pass's tokens, one for
/// each token but the last. There are none if only the state after the pass is wanted.
#[derive(Debug)]
pub(crate) struct AdvancedState<'a> {
    pub state: &'a mut RecurrentState,
    pub planes: &'a mut [RecurrentState],
}

/// A layer's state, in the memory of the processor that computes the layer.
#[derive(Debug)]
pub(super) enum PlacedState {
    Ram(RamState),
    OffHost(Box<dyn OffHostState>),
}

impl PlacedState {
    pub fn save(&self, to: &mut RecurrentState) -> Result<()> {
        match self {
            PlacedState::Ram(from) => {
                to.copy_from(&from.state);
                Ok(())
            }
            PlacedState::OffHost(state) => state.save(to),
        }
    }

    /// Sets the state to `saved`. If its processor fails to restore it, the state is in RAM from
    /// then on.
    pub fn restore(&mut self, saved: &RecurrentState) {
        match self {
            PlacedState::Ram(to) => to.state.copy_from(saved),
            PlacedState::OffHost(state) => {
                if let Err(error) = state.restore(saved) {
                    tracing::warn!(%error, "a recurrent state moves to RAM because the device could not restore it");
                    *self = PlacedState::Ram(RamState::new(saved.clone()));
                }
            }
        }
    }

    /// Number of planes that have memory.
    pub fn planes(&self) -> usize {
        match self {
            PlacedState::Ram(state) => state.planes.len(),
            PlacedState::OffHost(state) => state.planes(),
        }
    }

    /// Makes memory for `planes` planes.
    pub fn reserve_planes(&mut self, shape: StateShape, planes: usize) -> Result<()> {
        match self {
            PlacedState::Ram(state) => state.reserve_planes(shape, planes),
            PlacedState::OffHost(state) => state.reserve_planes(planes),
        }
    }

    /// Frees all but the first `planes` planes.
    pub fn truncate_planes(&mut self, planes: usize) {
        match self {
            PlacedState::Ram(state) => state.planes.truncate(planes),
            PlacedState::OffHost(state) => state.truncate_planes(planes),
        }
    }

    /// Copies the state into plane `at`. Copies in another processor's memory are recorded in
    /// `recorder`, which is made for the first of them.
    pub fn save_plane(&mut self, at: usize, recorder: &mut Option<Recorder>) {
        match self {
            PlacedState::Ram(state) => state.save_plane(at),
            PlacedState::OffHost(state) => {
                state.save_plane(at, recorder.get_or_insert_with(|| state.recorder()));
            }
        }
    }

    /// Sets the state to the one in plane `at`. Copies in another processor's memory are recorded
    /// in `recorder`, which is made for the first of them.
    pub fn choose_plane(&mut self, at: usize, recorder: &mut Option<Recorder>) {
        match self {
            PlacedState::Ram(state) => state.choose_plane(at),
            PlacedState::OffHost(state) => {
                state.choose_plane(at, recorder.get_or_insert_with(|| state.recorder()));
            }
        }
    }
}
