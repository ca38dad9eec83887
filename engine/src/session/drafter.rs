//! A drafter: a model that proposes the tokens after a conversation. It is the draft head of the
//! engine's model, an assistant of this model, or a small model with the same vocabulary.

mod assistant;

use std::{collections::BTreeSet, sync::Arc};

use super::{
    common_tokens::CommonTokens,
    device_drafter::DeviceDrafter,
    draft_context::{DraftContext, MOST_WAITING},
    speculation::DraftSource,
    weight_reader::WeightReader,
};
use assistant::AssistantSteps;
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_model::Model;
use thermocline_run::runtime::{Forward, KvCache, KvType, Outputs, Probe, Processor};

/// A draft head, an assistant or a draft model, and the processor that computes it.
#[derive(Debug)]
pub(super) struct Drafter {
    forward: Forward,
    /// True for a draft head or an assistant, which reads hidden states of the engine's model.
    reads_states: bool,
    /// What an assistant computes beside its layers.
    assistant: Option<AssistantSteps>,
    /// Number of tokens that may be drafted: the larger vocabulary may be padded.
    vocabulary: usize,
    /// Hidden state of the latest draft, `[d_model]`.
    state: Vec<f32>,
    /// Rows of the output matrix for common tokens, on the CPU, if the vocabulary is large.
    common: Option<CommonTokens>,
    /// While the drafter is on a device: the processor that computes it on the CPU, and the least
    /// budget of the device.
    elsewhere: Option<(Box<dyn Processor>, u64)>,
    /// Reads the weights that the CPU needs, from the first generation with drafts on.
    reader: Option<WeightReader>,
}

/// The drafts to make: the tokens after which they continue, and their number.
pub(super) struct DraftTask<'t> {
    /// The tokens of the context.
    pub held: &'t [u32],
    /// The token after them, which is chosen but not computed.
    pub next: u32,
    /// The cache of the engine's model, which an assistant reads.
    pub kv: Option<&'t mut KvCache>,
    /// Largest number of drafts.
    pub most: usize,
    /// Gets the number of drafts and the probability of the last one. Returns true if another draft
    /// pays.
    pub goes_on: &'t mut dyn FnMut(usize, f32) -> bool,
}

impl DraftTask<'_> {
    /// True if another draft follows the draft `last`, which is number `count`.
    fn goes_on(&mut self, count: usize, last: DraftedToken) -> bool {
        count < self.most && (self.goes_on)(count, last.probability)
    }
}

/// A drafted token and its probability.
#[derive(Debug, Clone, Copy)]
pub(super) struct DraftedToken {
    token: u32,
    probability: f32,
}

impl DraftedToken {
    /// The token with the largest logit, the first of equal ones.
    pub fn likeliest(logits: &[f32]) -> Self {
        let (mut best, mut most) = (0, f32::NEG_INFINITY);
        for (id, logit) in logits.iter().enumerate() {
            if *logit > most {
                (best, most) = (id, *logit);
            }
        }
        let sum: f32 = logits.iter().map(|logit| (logit - most).exp()).sum();
        let probability = if sum.is_finite() { 1.0 / sum } else { 0.0 };
        DraftedToken { token: best as u32, probability }
    }
}

/// Takes the hidden state of the last token of a pass.
struct LastState<'s>(&'s mut Vec<f32>);

impl Probe for LastState<'_> {
    fn wants_states(&mut self) -> bool {
        true
    }

    fn states(&mut self, states: &[f32]) {
        let width = self.0.len();
        self.0.copy_from_slice(&states[states.len() - width..]);
    }
}

impl Drafter {
    /// Creates a drafter that computes `model` on the CPU, for an engine with `n_vocab` tokens.
    /// `cpu` makes a CPU with the workers of the engine.
    ///
    /// # Errors
    /// The errors of `cpu`.
    pub fn new(model: Arc<Model>, n_vocab: usize, cpu: impl Fn() -> Result<Cpu>) -> Result<Self> {
        let assistant = AssistantSteps::new(&model, cpu()?);
        Ok(Drafter {
            reads_states: model.weights.state_input.is_some() || assistant.is_some(),
            assistant,
            vocabulary: n_vocab.min(model.config.n_vocab),
            state: vec![0.0; model.config.d_model],
            common: CommonTokens::new(&model, cpu()?),
            forward: Forward::new(model, cpu()?),
            elsewhere: None,
            reader: None,
        })
    }

    /// The kind of the drafter.
    pub fn source(&self) -> DraftSource {
        if self.reads_states && !self.reads_keys() { DraftSource::Head } else { DraftSource::Model }
    }

    /// True if the drafter reads keys and values of the engine's model.
    pub fn reads_keys(&self) -> bool {
        self.assistant.is_some()
    }

    /// Copies the keys and values that the drafter reads to RAM, if they are on the device of
    /// `forward`, the engine's model.
    ///
    /// # Errors
    /// As [`Residency::copy_to_ram`](thermocline_run::runtime::Residency::copy_to_ram).
    pub fn copy_read_keys(&self, forward: &mut Forward, kv: Option<&mut KvCache>) -> Result<()> {
        let Some(kv) = kv.filter(|_| self.reads_keys()) else { return Ok(()) };
        let Some((_, residency)) = forward.residency() else { return Ok(()) };
        let read = self.forward.model().config.layers.iter().filter_map(|layer| layer.attention.as_ref()?.kv_from);
        let layers: BTreeSet<usize> = read.collect();
        residency.copy_to_ram(&layers.into_iter().collect::<Vec<_>>(), kv)
    }

    /// Moves to a device. Views of conversations become useless ([`Drafter::holds`]).
    pub fn move_to_device(&mut self, device: DeviceDrafter) {
        self.move_to_cpu();
        let model = Arc::clone(self.forward.model());
        self.elsewhere = Some((self.forward.replace(&model, device.processor), device.least_budget));
    }

    /// Moves to the CPU. Returns true if the drafter was on a device.
    pub fn move_to_cpu(&mut self) -> bool {
        let Some((cpu, _)) = self.elsewhere.take() else { return false };
        let model = Arc::clone(self.forward.model());
        self.forward.replace(&model, cpu);
        true
    }

    /// The least budget under which the drafter may stay on its device; `None` on the CPU.
    pub fn least_budget(&self) -> Option<u64> {
        self.elsewhere.as_ref().map(|(_, budget)| *budget)
    }

    /// True if the drafter can use this view of a conversation.
    pub fn holds(&self, context: &DraftContext) -> bool {
        self.forward.holds(&context.kv)
    }

    /// Makes the view of a conversation that holds `tokens` tokens and has room for `capacity`.
    ///
    /// # Errors
    /// The errors of [`Forward::kv_cache`].
    pub fn context(&mut self, tokens: usize, capacity: usize, ty: KvType) -> Result<DraftContext> {
        let kv = self.forward.kv_cache(capacity, ty)?;
        let of_model = self.assistant.as_ref().map_or(self.state.len(), AssistantSteps::width);
        Ok(DraftContext::new(kv, tokens, if self.reads_states { of_model } else { 0 }))
    }

    /// Bytes of scratch memory.
    pub fn scratch_bytes(&self) -> u64 {
        // The model's processor counts the bytes on a device.
        match &self.elsewhere {
            Some((cpu, _)) => cpu.scratch_bytes(),
            None => self.forward.scratch_bytes(),
        }
    }

    /// Prepares for the first draft: if the CPU computes it, another thread reads the weights.
    pub fn prepare(&mut self) {
        if self.elsewhere.is_none() && self.reader.is_none() {
            self.reader = Some(WeightReader::start(self.forward.model()));
        }
    }

    /// Forgets rejected drafts. If there are many tokens in `held` whose successors are known, this
    /// function computes these tokens.
    ///
    /// # Errors
    /// The errors of [`Forward::run`].
    pub fn follow(&mut self, context: &mut DraftContext, held: &[u32], probe: &mut dyn Probe) -> Result<()> {
        if self.reads_keys() {
            context.keep_last_state();
            return Ok(());
        }
        context.settle(held);
        let end = context.end();
        if !self.reads_states {
            let rest = held.get(end..).unwrap_or_default();
            // Others may wait for the end of the step.
            let chunk = &rest[..rest.len().min(self.forward.chunk())];
            return match rest.len() {
                0..MOST_WAITING => Ok(()),
                _ => self.forward.run(chunk, &mut context.kv, Outputs::None, probe).map(drop),
            };
        }
        let known = context.waiting().saturating_sub(1);
        if known < MOST_WAITING {
            return Ok(());
        }
        let tokens = successors(held, end, known)?;
        let (states, kv) = context.states_and_kv();
        let before = kv.len();
        let states = &states[..known * self.state.len()];
        let done = self.forward.run_head(tokens, states, kv, Outputs::None, probe).map(drop);
        // If the pass was cancelled, complete chunks stay.
        let computed = kv.len().saturating_sub(before);
        context.drop_states(computed);
        done
    }

    /// Appends the drafts of `task` to `drafts`. The context must be ready
    /// ([`DraftContext::is_ready`]). It then holds the tokens of `task` and, for a draft model, all
    /// drafts but the last.
    ///
    /// # Errors
    /// The errors of [`Forward::run`].
    pub fn draft(&mut self, context: &mut DraftContext, mut task: DraftTask<'_>, drafts: &mut Vec<u32>) -> Result<()> {
        if self.reads_keys() {
            return self.draft_beside(context, task, drafts);
        }
        // A device computes all logits.
        let common = self.elsewhere.is_none() && CommonTokens::suit(task.held);
        let mut draft = self.first(context, &task, common)?;
        let held = context.end();
        for count in 1..=task.most {
            drafts.push(draft.token);
            if !task.goes_on(count, draft) || !context.kv.begin_revocable() {
                break;
            }
            let (before, token) = (self.state.clone(), draft.token);
            let states = self.reads_states.then_some(&before[..]);
            draft = self.compute(&[token], states, &mut context.kv, common)?;
            if !self.reads_states {
                context.add_draft(token);
            }
        }
        // The head computes accepted drafts again, from the hidden states of the model.
        if self.reads_states {
            context.drop_entries(held);
        }
        Ok(())
    }

    /// Computes the tokens that the context does not hold yet, and drafts the token after them. The
    /// draft is a common token if `common` is true.
    fn first(&mut self, context: &mut DraftContext, task: &DraftTask<'_>, common: bool) -> Result<DraftedToken> {
        if !self.reads_states {
            context.truncate(task.held.len());
            let mut tokens = task.held[context.end()..].to_vec();
            tokens.push(task.next);
            let first = self.compute(&tokens, None, &mut context.kv, common)?;
            context.add_draft(task.next);
            return Ok(first);
        }
        let waiting = context.waiting();
        let mut tokens = successors(task.held, context.end(), waiting.saturating_sub(1))?.to_vec();
        tokens.push(task.next);
        let (states, kv) = context.states_and_kv();
        let first = self.compute(&tokens, Some(states), kv, common)?;
        context.drop_states(waiting);
        Ok(first)
    }

    /// Computes `tokens`, with their `states` for a draft head, and drafts the token after them.
    fn compute(
        &mut self,
        tokens: &[u32],
        states: Option<&[f32]>,
        kv: &mut KvCache,
        common: bool,
    ) -> Result<DraftedToken> {
        let common = self.common.as_mut().filter(|_| common);
        let outputs = if common.is_some() { Outputs::None } else { Outputs::Last };
        // A state costs a device a synchronisation.
        let needs_state = self.reads_states || common.is_some();
        let (mut last, mut nothing) = (LastState(&mut self.state), ());
        let probe: &mut dyn Probe = if needs_state { &mut last } else { &mut nothing };
        let logits = match states {
            Some(states) => self.forward.run_head(tokens, states, kv, outputs, probe)?,
            None => self.forward.run(tokens, kv, outputs, probe)?,
        };
        Ok(match common {
            Some(common) => common.draft(&self.state),
            None => DraftedToken::likeliest(&logits[..self.vocabulary]),
        })
    }
}

/// The successors of `count` tokens of `held` from token `first` on.
fn successors(held: &[u32], first: usize, count: usize) -> Result<&[u32]> {
    let expected = || Error::invalid("draft head", format!("{} tokens", first + 1 + count), held.len());
    held.get(first + 1..first + 1 + count).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use thermocline_cpu::CpuOptions;
    use thermocline_model::LoadOptions;

    use super::*;

    /// Drafts after `held` and `next`, as a generation does. The view of the conversation is
    /// `context`.
    fn drafts(drafter: &mut Drafter, context: &mut DraftContext, held: &[u32], next: u32) -> Vec<u32> {
        let mut drafts = Vec::new();
        drafter.follow(context, held, &mut ()).unwrap();
        assert!(context.is_ready(held.len()));
        let task = DraftTask { held, next, kv: None, most: 4, goes_on: &mut |_, _| true };
        drafter.draft(context, task, &mut drafts).unwrap();
        drafts
    }

    /// A draft model keeps its entries of accepted drafts, and drafts as if it had never computed
    /// the others. Without a plane of the last kept token, a recurrent state would have to go back
    /// to the beginning.
    #[test]
    fn draft_models_go_back_to_the_last_accepted_draft() {
        for name in ["qwen3", "qwen3_5", "lfm2", "nemotron-h", "granite-4-h"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name);
            let model = Arc::new(Model::open(&path, &LoadOptions::default()).unwrap());
            let cpu = || Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() });
            let mut drafter = Drafter::new(Arc::clone(&model), model.config.n_vocab, cpu).unwrap();
            let new = |drafter: &mut Drafter| drafter.context(0, 128, KvType::F32).unwrap();
            let (mut context, mut held, mut next) = (new(&mut drafter), (30..50).collect::<Vec<u32>>(), 7);
            for (round, accepted) in [0, 1, 2, 3, 4, 0, 4, 3, 1, 0, 2].into_iter().enumerate() {
                let drafted = drafts(&mut drafter, &mut context, &held, next);
                let mut fresh = new(&mut drafter);
                assert_eq!(drafted, drafts(&mut drafter, &mut fresh, &held, next), "{name}, round {round}");
                // Without the pass that checks them, the same drafts are made again.
                if round % 3 == 0 {
                    assert_eq!(drafted, drafts(&mut drafter, &mut context, &held, next), "{name}, round {round}");
                }
                held.push(next);
                held.extend_from_slice(&drafted[..accepted]);
                next = drafted.get(accepted).map_or(9, |rejected| (rejected + 1) % 384);
                if round % 2 == 0 {
                    context.truncate(held.len());
                }
                context.settle(&held);
                // The last draft has no entry.
                assert_eq!(context.end(), held.len() - usize::from(accepted == 4), "{name}, round {round}");
            }
        }
    }
}
