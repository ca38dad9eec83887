//! What the forward pass of a generation is asked, and where what it tells goes.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::adapt::Adapt;
use crate::{
    model::{LayerFiring, Probe},
    telemetry::neurons::{NeuronRecorder, Watch},
};

/// Lets the computation of a prompt notice a cancellation between layers, and tells which neurons fire to those who want to
/// know.
pub(super) struct Observer<'a> {
    cancelled: &'a AtomicU64,
    number: u64,
    neurons: Option<&'a mut NeuronRecorder>,
    watch: Watch,
    adapt: Option<&'a Adapt>,
}

impl<'a> Observer<'a> {
    /// Of the `number`-th request of a session, of which those before `cancelled` are. Nobody looks at its neurons.
    pub fn new(cancelled: &'a AtomicU64, number: u64) -> Self {
        Observer { cancelled, number, neurons: None, watch: Watch::Off, adapt: None }
    }

    /// The hot set follows its neurons, if it follows any.
    pub fn followed(self, adapt: &'a Adapt) -> Self {
        Observer { adapt: Some(adapt).filter(|adapt| adapt.is_on()), ..self }
    }

    /// Its neurons are recorded, as far as the board wants them.
    pub fn recording(self, neurons: &'a mut NeuronRecorder) -> Self {
        let watch = neurons.watch();
        Observer { neurons: Some(neurons).filter(|_| watch != Watch::Off), watch, ..self }
    }
}

impl Probe for Observer<'_> {
    fn cancelled(&mut self) -> bool {
        self.number < self.cancelled.load(SeqCst)
    }

    fn wants_firing(&mut self) -> bool {
        self.watch != Watch::Off || self.adapt.is_some()
    }

    fn wants_strength(&mut self) -> bool {
        self.watch == Watch::Strength
    }

    fn wants_times(&mut self) -> bool {
        self.neurons.as_ref().is_some_and(|neurons| neurons.wants_times())
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        if let Some(neurons) = &mut self.neurons {
            neurons.layer(firing);
        }
        if let Some(adapt) = self.adapt {
            adapt.layer(firing);
        }
    }
}
