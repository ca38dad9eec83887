//! The share of a budget that is left to what carries cold rows of prompts to the device.

use super::{Demand, Placement, Plan, Streaming, usable};
use crate::{
    error::{Error, Result},
    model::{DeviceBytes, Ffn, Model},
};

/// The part of a budget that it may take: it only makes prompts quicker, neurons every token. And where it is to be there in any
/// case.
const SHARE: u64 = 32;
const FORCED_SHARE: u64 = 4;

/// The place on a device that cold rows of prompts pass through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slab {
    /// What it takes where there is room; 0 where it does not pay.
    bytes: u64,
    /// It may take one part in so many of a budget.
    share: u64,
    /// What the whole model takes: where that is there, nothing is cold.
    everything: u64,
}

impl Slab {
    /// For prompts of `model`, which takes `bytes` on the device and asks for `demand`, where `streaming` says that it pays.
    pub fn of(model: &Model, bytes: &DeviceBytes, demand: &Demand, streaming: &Streaming) -> Self {
        let pays = model.weights.layers.iter().any(|layer| match &layer.ffn {
            Ffn::Dense(ffn) => streaming.pays(ffn, (0, ffn.up.weight.rows()), bytes.chunk),
            Ffn::Experts(_) => false,
        });
        Slab {
            bytes: if pays { bytes.slab } else { 0 },
            share: if *streaming == Streaming::Always { FORCED_SHARE } else { SHARE },
            everything: Placement::all(demand).bytes(demand),
        }
    }

    /// Bytes of `budget` that it may take; none where nothing is cold.
    pub fn within(&self, budget: u64) -> u64 {
        if self.everything <= usable(budget) { 0 } else { self.bytes.min(budget / self.share) }
    }

    /// The plan that `plan` makes of what it leaves of `budget`, with its bytes where anything can pass through it; of all of the
    /// budget where nothing would fit otherwise.
    ///
    /// # Errors
    /// Those of `plan`.
    pub fn beside(&self, demand: &Demand, budget: u64, plan: impl Fn(u64) -> Result<Plan>) -> Result<Plan> {
        let slab = self.within(budget);
        match plan(budget - slab) {
            Ok(mut plan) => {
                let (placement, layers) = (&plan.placement, &demand.layers);
                let mut resident = placement.hot.iter().zip(layers).skip(placement.first_resident);
                if resident.any(|(hot, layer)| hot.len() < layer.neurons()) {
                    plan.bytes.slab = slab;
                }
                Ok(plan)
            }
            Err(Error::Memory { .. }) if slab > 0 => plan(budget),
            refused => refused,
        }
    }
}
