//! Computes the norms that weigh the output mass of neurons, in a thread that runs while the engine
//! is idle.

use std::{sync::atomic::Ordering::SeqCst, thread, time::Duration};

use super::Engine;
use thermocline_lab::sparsity::predictor::metrics::down_norms;
use thermocline_model::{Ffn, Model};

/// Default fraction of a layer's output mass that defines which neurons fire, for models without
/// natural zeros.
pub const USUAL_MASS: f32 = 0.9;

/// Largest number of bytes of down projections that are read for norms. In larger models all
/// neurons weigh alike.
const MOST_BYTES: u64 = 4 << 30;

/// Pause between two checks whether the engine is idle.
const PAUSE: Duration = Duration::from_millis(50);

/// The fraction of the output mass for `model`. `None` if its neurons are zero for most tokens, or
/// if they belong to experts: there the router's choice decides which neurons count.
pub(super) fn mass_of(model: &Model) -> Option<f32> {
    let dense = model.weights.layers.iter().all(|layer| !matches!(layer.ffn, Ffn::Experts(_)));
    (dense && !model.config.activation.is_sparse()).then_some(USUAL_MASS)
}

fn down_bytes(model: &Model) -> u64 {
    let bytes = |ffn: &Ffn| match ffn {
        Ffn::Dense(ffn) => ffn.linears().last().map_or(0, |down| down.weight.byte_len() as u64),
        _ => 0,
    };
    model.weights.layers.iter().map(|layer| bytes(&layer.ffn)).sum()
}

impl Engine {
    /// Weighs the neurons of a model without natural zeros by the norms of their down columns. A
    /// thread reads the columns while nothing is generated. Until it is done, and in models with
    /// more than 4 GiB of down projections, all neurons weigh alike. Further calls do nothing.
    pub fn weigh_neurons(&self) {
        let state = self.state();
        if state.figures.neurons.mass().is_none()
            || state.figures.weighed.swap(true, SeqCst)
            || down_bytes(&state.model) > MOST_BYTES
        {
            return;
        }
        let (engine, layers) = (self.downgrade(), state.model.weights.layers.len());
        let work = move || {
            let mut layer = 0;
            while layer < layers {
                // The handle is held for one layer at a time, so that the model can be closed.
                let Some(engine) = engine.upgrade() else { return };
                if engine.telemetry().generations > 0 {
                    drop(engine);
                    thread::sleep(PAUSE);
                    continue;
                }
                if let Ffn::Dense(ffn) = &engine.model().weights.layers[layer].ffn {
                    engine.neurons().set_norms(layer, down_norms(ffn));
                }
                layer += 1;
            }
        };
        // Without a thread all neurons weigh alike.
        let _ = thread::Builder::new().name("weigh-neurons".to_owned()).spawn(work);
    }
}
