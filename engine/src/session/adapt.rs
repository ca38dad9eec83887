//! Following the text while generating: what the engine thread sees, what a planner asks for, and the switch.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{
    model::{Model, Steering},
    sparsity::{
        migration::{FollowOptions, Follower},
        placement::Placement,
    },
    telemetry::neurons::LayerFiring,
};

/// A follower while it is wanted. The engine thread alone uses it, through whoever is in its hands.
#[derive(Debug, Default)]
pub(super) struct Adapt(Mutex<Option<Follower>>);

impl Adapt {
    fn lock(&self) -> MutexGuard<'_, Option<Follower>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to follow, or stops and forgets.
    pub fn switch(&self, on: bool, model: &Model, recall: f32) {
        let mut follower = self.lock();
        if on != follower.is_some() {
            let options = FollowOptions { recall, ..FollowOptions::default() };
            *follower = on.then(|| Follower::new(model, options));
        }
    }

    /// Whether it follows.
    pub fn is_on(&self) -> bool {
        self.lock().is_some()
    }

    /// A layer of a chunk was computed.
    pub fn layer(&self, firing: &LayerFiring<'_>) {
        if let Some(follower) = &mut *self.lock() {
            follower.layer(firing);
        }
    }

    /// A chunk was computed.
    pub fn tokens(&self, tokens: usize) {
        if let Some(follower) = &mut *self.lock() {
            follower.tokens(tokens);
        }
    }

    /// What should change places.
    pub fn revise(&self, now: &Placement) -> Option<Placement> {
        self.lock().as_mut()?.revise(now)
    }

    /// How predictors are to be steered at the next token; without a follower, not at all.
    pub fn steering(&self) -> Steering {
        self.lock().as_mut().map(Follower::steering).unwrap_or_default()
    }
}
