//! Firings of neurons in an engine: their frequencies, the hot set that adapts to them, and the
//! probe that records them.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use parking_lot::Mutex;

use super::{FfnReads, ffn_reads::FfnSize, step_times::StepTimes};
use thermocline_base::telemetry::neurons::{DraftMasks, NeuronBoard, NeuronRecorder, Watch};
use thermocline_lab::sparsity::migration::{FollowOptions, Follower};
use thermocline_model::{LayerWeights, Model};
use thermocline_run::{
    placement::Placement,
    runtime::{LayerFiring, PassPart, Probe, ThresholdCorrection},
};

/// The source of firing frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrequencySource {
    /// The profile that `prepare` measured on its text. Plans use it.
    Profile,
    /// The engine's counts over this number of tokens, since the model was opened.
    Counted(u64),
}

/// Firing frequencies of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct NeuronFrequencies {
    /// `[n_ff]`, fraction of the tokens for which each neuron fires.
    pub values: Vec<f32>,
    /// `[experts]`, fraction of the tokens that are routed to each expert; empty in a layer without
    /// experts.
    pub experts: Vec<f32>,
    /// Source of the frequencies.
    pub source: FrequencySource,
}

impl NeuronFrequencies {
    /// The frequencies of `layer`: the profile's, or without a profile the engine's own counts.
    /// `None` if neither exists.
    pub(super) fn of_layer(model: &Model, board: &NeuronBoard, layer: usize) -> Option<Self> {
        let shape = board.shape();
        let (neurons, experts) = (shape.neurons(layer), shape.experts(layer));
        let weights: Option<&LayerWeights> = model.weights.layers.get(layer);
        let profile = weights.and_then(|layer| layer.frequency.as_ref());
        let within_experts = weights.and_then(|layer| layer.neuron_frequency.as_ref());
        let routed = profile.zip(within_experts).filter(|(of, values)| (of.len(), values.len()) == (experts, neurons));
        let dense = profile.filter(|values| experts == 0 && values.len() == neurons);
        let known = routed.map(|(of, values)| (values, of.clone())).or(dense.map(|values| (values, Vec::new())));
        if let Some((values, experts)) = known {
            return Some(NeuronFrequencies { values: values.clone(), experts, source: FrequencySource::Profile });
        }
        let tally = board.tally(layer);
        let known = tally.tokens > 0 && !tally.counts.is_empty();
        let fraction = |count: &u32| (f64::from(*count) / tally.tokens as f64) as f32;
        let profiled = profile.filter(|experts| experts.len() == tally.chosen.len()).cloned();
        known.then(|| NeuronFrequencies {
            values: tally.counts.iter().map(fraction).collect(),
            experts: profiled.unwrap_or_else(|| tally.chosen.iter().map(fraction).collect()),
            source: FrequencySource::Counted(tally.tokens),
        })
    }
}

/// Adapts the hot set to firings while adaptation is on. Only the engine thread uses it, through
/// the planner and the probe.
#[derive(Debug, Default)]
pub(super) struct HotSetAdaptation {
    follower: Mutex<Option<Follower>>,
    /// True if the device uses the CPU's memory. Exchanging experts then saves no time, because
    /// both processors read the same memory.
    unified: AtomicBool,
    /// True while an answer depends on the experts that are resident.
    held: AtomicBool,
}

impl HotSetAdaptation {
    /// Turns adaptation on, or turns it off and forgets the firings.
    pub fn switch(&self, on: bool, model: &Model, recall: f32) {
        let mut follower = self.follower.lock();
        if on != follower.is_some() {
            let options = FollowOptions { recall, ..FollowOptions::default() };
            *follower = on.then(|| Follower::new(model, options));
        }
    }

    /// True while adaptation is on.
    pub fn is_on(&self) -> bool {
        self.follower.lock().is_some()
    }

    /// Sets whether the device uses the CPU's memory.
    pub fn set_unified(&self, unified: bool) {
        self.unified.store(unified, SeqCst);
    }

    /// Keeps the hot set as it is while `held`, for an answer with a seed whose routes prefer
    /// resident experts.
    pub fn hold(&self, held: bool) {
        self.held.store(held, SeqCst);
    }

    /// True if the firings of a chunk are counted. The experts that a prompt chooses say little
    /// about those of the answer, so prompts do not count in models with experts.
    pub fn counts(&self, in_prompt: bool) -> bool {
        let useless = in_prompt || self.unified.load(SeqCst);
        self.follower.lock().as_ref().is_some_and(|follower| !(useless && follower.has_experts()))
    }

    /// Counts a move of `bytes` to the device that took `time`.
    pub fn record_move(&self, bytes: u64, time: Duration) {
        if let Some(follower) = &mut *self.follower.lock() {
            follower.add_move(bytes, time);
        }
    }

    /// Counts the firings of one layer of a chunk.
    pub fn record_layer(&self, firing: &LayerFiring<'_>) {
        if let Some(follower) = &mut *self.follower.lock() {
            follower.add_firing(firing);
        }
    }

    /// Counts the tokens of a chunk that took `time`, after its layers.
    pub fn record_tokens(&self, tokens: usize, time: Duration) {
        if let Some(follower) = &mut *self.follower.lock() {
            follower.add_tokens(tokens, time);
        }
    }

    /// Counts the first `drawn` tokens of a pass with drafts, whose firings were held back. The
    /// pass took `time`.
    pub fn record_draft(&self, masks: &DraftMasks, drawn: usize, time: Duration) {
        if let Some(follower) = &mut *self.follower.lock() {
            masks.firings(drawn).for_each(|firing| follower.add_firing(&firing));
            follower.add_tokens(drawn, time);
        }
    }

    /// A placement with some neurons swapped, if the firings justify it.
    pub fn revise(&self, now: &Placement) -> Option<Placement> {
        let mut follower = self.follower.lock();
        let follower = follower.as_mut()?;
        let useless = follower.has_experts() && self.unified.load(SeqCst);
        if useless || self.held.load(SeqCst) { None } else { follower.revise(now) }
    }

    /// The threshold corrections and the recall check for the next token; empty while adaptation is
    /// off.
    pub fn threshold_correction(&self) -> ThresholdCorrection {
        self.follower.lock().as_mut().map(Follower::threshold_correction).unwrap_or_default()
    }
}

/// The probe of a generation's forward pass. It notices a cancellation between layers and passes on
/// which neurons fire.
pub(super) struct GenerationProbe<'a> {
    cancelled: &'a AtomicU64,
    number: u64,
    recorder: Option<&'a mut NeuronRecorder>,
    watch: Watch,
    /// True if only reads are counted, for a request whose neurons are not recorded.
    pub only_reads: bool,
    adaptation: Option<&'a HotSetAdaptation>,
    /// Holds the firings of a pass with drafts. Adaptation counts them once the accepted drafts are
    /// known.
    pub draft: Option<&'a mut DraftMasks>,
    /// Counts the reads of a decoded token in FFNs of these sizes; the flag is true if the mode
    /// skips nothing.
    pub reads: Option<(&'a [FfnSize], &'a mut FfnReads, bool)>,
    /// Sums the times of the pass's steps.
    pub times: Option<&'a mut StepTimes>,
    /// Collects the hidden states of the pass's tokens, for a draft head.
    pub states: Option<&'a mut Vec<f32>>,
}

impl<'a> GenerationProbe<'a> {
    /// A probe of request `number` of a session whose requests below `cancelled` are cancelled. It
    /// records no neurons.
    pub fn new(cancelled: &'a AtomicU64, number: u64) -> Self {
        GenerationProbe {
            cancelled,
            number,
            recorder: None,
            watch: Watch::Off,
            only_reads: false,
            adaptation: None,
            draft: None,
            reads: None,
            times: None,
            states: None,
        }
    }

    /// Lets `adaptation` count the firings, if it is on.
    pub fn with_adaptation(self, adaptation: &'a HotSetAdaptation) -> Self {
        GenerationProbe { adaptation: Some(adaptation).filter(|adaptation| adaptation.is_on()), ..self }
    }

    /// True if the firings themselves are needed, not only their times.
    fn counts_firing(&self) -> bool {
        self.watch != Watch::Off || self.adaptation.is_some() || self.only_reads
    }

    /// Lets `recorder` record the firings, if its board is being watched.
    pub fn with_recorder(self, recorder: &'a mut NeuronRecorder) -> Self {
        let watch = recorder.watch();
        GenerationProbe { recorder: Some(recorder).filter(|_| watch != Watch::Off), watch, ..self }
    }
}

impl Probe for GenerationProbe<'_> {
    fn cancelled(&mut self) -> bool {
        self.number < self.cancelled.load(SeqCst)
    }

    fn wants_firing(&mut self) -> bool {
        self.counts_firing() || self.times.is_some()
    }

    fn wants_states(&mut self) -> bool {
        self.states.is_some()
    }

    fn states(&mut self, states: &[f32]) {
        if let Some(all) = &mut self.states {
            all.extend_from_slice(states);
        }
    }

    fn wants_strength(&mut self) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| recorder.wants_strength())
    }

    fn wants_device_strength(&mut self) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| recorder.wants_device_strength())
    }

    fn wants_times(&mut self) -> bool {
        self.times.is_some() || self.recorder.as_ref().is_some_and(|recorder| recorder.wants_times())
    }

    fn wants_step_times(&mut self) -> bool {
        self.times.is_some()
    }

    fn step_time(&mut self, part: PassPart, time: Duration) {
        if let Some(times) = &mut self.times {
            times.add(part, time);
        }
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        if let Some(times) = &mut self.times {
            times.add_firing(firing);
        }
        if !self.counts_firing() {
            return;
        }
        if let Some((sizes, reads, dense)) = &mut self.reads {
            reads.add(sizes, firing, *dense);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.layer(firing);
        }
        if let Some(adaptation) = self.adaptation {
            match &mut self.draft {
                Some(masks) => masks.hold(firing),
                None => adaptation.record_layer(firing),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use thermocline_model::{LoadOptions, mask};

    use super::*;

    /// Lets the last experts of every layer fire at every token, while the first ones are hot.
    fn following(name: &str) -> (HotSetAdaptation, Placement) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name);
        let model = Model::open(&path, &LoadOptions::default()).unwrap();
        let adaptation = HotSetAdaptation::default();
        adaptation.switch(true, &model, 0.95);
        let units: Vec<usize> = model.weights.layers.iter().map(|layer| layer.ffn.units()).collect();
        for _ in 0..200 {
            for (layer, units) in units.iter().enumerate() {
                let mut fired = vec![0; mask::words(*units)];
                (units - 2..*units).for_each(|unit| mask::insert(&mut fired, unit));
                adaptation.record_layer(&LayerFiring { layer, tokens: 1, fired: &fired, ..LayerFiring::default() });
            }
            adaptation.record_tokens(1, Duration::ZERO);
        }
        let hot = units.iter().map(|units| (0..*units as u32 / 2).collect()).collect();
        (adaptation, Placement { hot, ..Placement::default() })
    }

    #[test]
    fn experts_count_only_tokens_of_answers_and_stay_on_unified_memory() {
        let (neurons, _) = following("llama-relu");
        assert!(neurons.counts(true) && neurons.counts(false));
        let (experts, placement) = following("qwen3-moe");
        assert!(!experts.counts(true) && experts.counts(false));
        experts.hold(true);
        assert_eq!(experts.revise(&placement), None, "an answer depends on the resident experts");
        experts.hold(false);
        experts.set_unified(true);
        assert!(!experts.counts(false));
        assert_eq!(experts.revise(&placement), None, "both processors read the same memory");
        experts.set_unified(false);
        let revised = experts.revise(&placement).unwrap();
        assert_ne!(revised.hot, placement.hot);
        let off = HotSetAdaptation::default();
        assert!(!off.counts(false));
    }
}
