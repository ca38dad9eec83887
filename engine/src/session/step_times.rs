//! Times of the steps of decoded tokens, as a pass reports them. The times of the latest timed
//! tokens are kept.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;

use super::budget_forecast::DecodeConditions;
use thermocline_run::runtime::{LayerFiring, PassPart};

/// One token in this number is timed step by step, because reading the clock takes time too.
const PERIOD: usize = 32;

/// Number of tokens whose times are kept.
const KEPT: usize = 8;

/// Times of one layer's steps for one token.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LayerStepTimes {
    /// Time of the engine thread before the FFN, and (`ffn`) in the FFN.
    pub mixer: Duration,
    pub ffn: Duration,
    /// Time of the device for the layer, by its own clock; 0 without a device.
    pub device: Duration,
    /// Time of the CPU for the FFN, or for its cold part.
    pub cold: Duration,
}

/// Times of the steps of one token; empty if it was not timed.
#[derive(Debug, Clone, Default)]
pub(super) struct StepTimes {
    pub layers: Vec<LayerStepTimes>,
    /// Time of the engine thread for the head.
    pub head: Duration,
}

impl StepTimes {
    /// True if the token after `decoded` others must be timed. The first tokens are skipped,
    /// because they touch memory for the first time.
    pub fn are_due(decoded: usize) -> bool {
        decoded % PERIOD == PERIOD / 4
    }

    /// Clears the times.
    pub fn clear(&mut self) {
        self.layers.clear();
        self.head = Duration::ZERO;
    }

    /// Adds the engine thread's time for a part of the pass.
    pub fn add(&mut self, part: PassPart, time: Duration) {
        match part {
            PassPart::Mixer(layer) => self.layer(layer).mixer += time,
            PassPart::Ffn(layer) => self.layer(layer).ffn += time,
            PassPart::Head => self.head += time,
        }
    }

    /// Adds the times of a layer's report.
    pub fn add_firing(&mut self, firing: &LayerFiring<'_>) {
        let times = self.layer(firing.layer);
        times.device += Duration::from_nanos(firing.gpu_ns);
        times.cold += Duration::from_nanos(firing.cpu_ns);
    }

    fn layer(&mut self, layer: usize) -> &mut LayerStepTimes {
        if self.layers.len() <= layer {
            self.layers.resize(layer + 1, LayerStepTimes::default());
        }
        &mut self.layers[layer]
    }
}

/// A token that was timed step by step.
#[derive(Debug, Clone)]
pub(super) struct TimedToken {
    pub times: StepTimes,
    /// Total time of the token, including the draw of the next token.
    pub total: Duration,
}

/// The latest timed tokens, all under the same conditions.
#[derive(Debug, Default)]
pub(super) struct TimedTokens(Mutex<(Option<DecodeConditions>, VecDeque<TimedToken>)>);

impl TimedTokens {
    /// Records a token that was decoded in `total`, while no weights moved.
    pub fn record(&self, conditions: DecodeConditions, times: &StepTimes, total: Duration) {
        let mut kept = self.0.lock();
        let (of, tokens) = &mut *kept;
        if of.as_ref() != Some(&conditions) {
            tokens.clear();
            *of = Some(conditions);
        }
        if tokens.len() == KEPT {
            tokens.pop_front();
        }
        tokens.push_back(TimedToken { times: times.clone(), total });
    }

    /// The recorded tokens under `conditions`, latest last.
    pub fn under(&self, conditions: &DecodeConditions) -> Vec<TimedToken> {
        let kept = self.0.lock();
        let (of, tokens) = &*kept;
        if of.as_ref() == Some(conditions) { tokens.iter().cloned().collect() } else { Vec::new() }
    }

    /// Clears the tokens, because the machine or the placement has changed.
    pub fn forget(&self) {
        self.0.lock().1.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_run::runtime::Sparsity;

    #[test]
    fn last_tokens_of_the_same_conditions_are_kept() {
        let conditions = |mode| DecodeConditions { mode, device: None };
        let (tokens, times) = (TimedTokens::default(), StepTimes::default());
        let total = |n| Duration::from_millis(n);
        (0..2 * KEPT as u64).for_each(|n| tokens.record(conditions(Sparsity::Dense), &times, total(n)));
        let kept = tokens.under(&conditions(Sparsity::Dense));
        assert_eq!((kept.len(), kept[KEPT - 1].total), (KEPT, total(2 * KEPT as u64 - 1)));
        assert!(tokens.under(&conditions(Sparsity::Exact)).is_empty());
        tokens.record(conditions(Sparsity::Exact), &times, total(1));
        assert_eq!(tokens.under(&conditions(Sparsity::Exact)).len(), 1);
        assert!(tokens.under(&conditions(Sparsity::Dense)).is_empty());
        tokens.forget();
        assert!(tokens.under(&conditions(Sparsity::Exact)).is_empty());
    }

    #[test]
    fn times_are_added_by_layer() {
        let mut times = StepTimes::default();
        times.add(PassPart::Ffn(2), Duration::from_millis(3));
        times.add(PassPart::Mixer(2), Duration::from_millis(1));
        times.add(PassPart::Mixer(2), Duration::from_millis(1));
        times.add(PassPart::Head, Duration::from_millis(4));
        times.add_firing(&LayerFiring { layer: 1, gpu_ns: 5, cpu_ns: 6, ..LayerFiring::default() });
        let [first, second, third] = times.layers[..] else { panic!("{times:?}") };
        assert_eq!((first.ffn, second.device.as_nanos(), second.cold.as_nanos()), (Duration::ZERO, 5, 6));
        assert_eq!((third.ffn.as_millis(), third.mixer.as_millis(), times.head.as_millis()), (3, 2, 4));
        times.clear();
        assert!(times.layers.is_empty() && times.head.is_zero());
        assert_eq!((0..2 * PERIOD).filter(|n| StepTimes::are_due(*n)).count(), 2);
    }
}
