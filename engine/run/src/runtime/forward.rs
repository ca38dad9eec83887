//! The forward pass: the driver that runs a model's program on any processor.

mod call;
mod layers;

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    CallInputs, CpuProcessor, HeldExperts, InputRows, KvCache, KvType, MAX_SHORTLIST, Pass, Probe, Processor,
    Residency, RoutePreference, Sequences, Shortlist, Sparsity, ThresholdCorrection,
    scratch::{grow, held_bytes},
};
use call::WantedValues;
pub use layers::compute_layer;
use layers::{layers, report_states};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, Isa};
use thermocline_model::Model;

/// The tokens whose logits are returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outputs {
    /// No token; only the cache is filled.
    None,
    /// The last token.
    Last,
    /// Every token.
    All,
}

/// Default number of tokens per chunk.
pub const DEFAULT_CHUNK: usize = 512;

/// A model and the processor that computes it.
#[derive(Debug)]
pub struct Forward {
    model: Arc<Model>,
    processor: Box<dyn Processor>,
    chunk: usize,
    sparsity: Sparsity,
    correction: ThresholdCorrection,
    routes: RoutePreference,
    /// See [`Forward::same_bits`].
    same_bits: usize,
    /// Logits, or hidden states.
    logits: Vec<f32>,
    /// Hidden states for a probe, `[tokens, d_model]`.
    states: Vec<f32>,
    /// Ids and logits of a shortlist.
    top: ([u32; MAX_SHORTLIST], [f32; MAX_SHORTLIST]),
}

impl Forward {
    /// Computes `model` on the CPU.
    pub fn new(model: Arc<Model>, cpu: Cpu) -> Self {
        Self::on(model, Box::new(CpuProcessor::new(cpu)))
    }

    /// Computes `model` on any processor.
    pub fn on(model: Arc<Model>, processor: Box<dyn Processor>) -> Self {
        let top = ([0; MAX_SHORTLIST], [0.0; MAX_SHORTLIST]);
        let (sparsity, correction) = (Sparsity::Dense, ThresholdCorrection::NONE);
        let same_bits = processor.same_bits(&model, sparsity);
        Forward {
            model,
            processor,
            chunk: DEFAULT_CHUNK,
            sparsity,
            correction,
            routes: RoutePreference::OFF,
            same_bits,
            logits: Vec::new(),
            states: Vec::new(),
            top,
        }
    }

    /// Switches to another processor, with `model` in the form that this processor needs. Returns
    /// the previous processor. A cache can be used by the processor that [holds](Forward::holds)
    /// it.
    pub fn replace(&mut self, model: &Arc<Model>, mut processor: Box<dyn Processor>) -> Box<dyn Processor> {
        processor.expect_sparsity(self.sparsity);
        self.model = Arc::clone(model);
        self.same_bits = processor.same_bits(model, self.sparsity);
        std::mem::replace(&mut self.processor, processor)
    }

    /// Makes an empty cache for `capacity` tokens that the processor can use. `ty` is a preference:
    /// [`KvCache::ty`] is the actual encoding.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is not enough memory, [`Error::Invalid`] for a capacity of 0,
    /// [`Error::Gpu`] if the device is lost.
    pub fn kv_cache(&mut self, capacity: usize, ty: KvType) -> Result<KvCache> {
        self.processor.kv_cache(&self.model, capacity, ty)
    }

    /// True if `kv` was made for a model of this shape and the processor can use it as it is.
    pub fn holds(&self, kv: &KvCache) -> bool {
        kv.fits(&self.model.config) && self.processor.holds(kv)
    }

    /// Copies keys, values and states until `to` holds `tokens` of the tokens that `from` holds.
    /// The tokens that `to` already holds must be equal. Returns the number of tokens that `to`
    /// then holds. The number is smaller with recurrent states, which are copied from a snapshot.
    /// Nothing is copied between caches of different types or places.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost, [`Error::Memory`] if there is no room for a state.
    pub fn copy_prefix(&mut self, from: &KvCache, to: &mut KvCache, tokens: usize) -> Result<usize> {
        match self.processor.residency() {
            Some(residency) => residency.copy_prefix(from, to, tokens),
            None => to.copy_prefix(from, tokens, None),
        }
    }

    /// The instruction set of everything computed on the CPU.
    pub fn isa(&self) -> Isa {
        self.processor.isa()
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Tokens per chunk. More tokens need more scratch memory. A processor may have room for fewer
    /// tokens than were set, or need more because it streams weights.
    pub fn chunk(&self) -> usize {
        self.chunk.max(self.processor.streamed_chunk()).min(self.processor.max_chunk())
    }

    /// Sets the tokens per chunk: at least 1, and at most what the processor has room for.
    pub fn set_chunk(&mut self, tokens: usize) {
        self.chunk = tokens.max(1);
    }

    /// The sparsity mode of single tokens.
    pub fn sparsity(&self) -> Sparsity {
        self.sparsity
    }

    /// Changes the sparsity mode for the next calls of [`Forward::run`] and [`Forward::top`].
    pub fn set_sparsity(&mut self, mode: Sparsity) {
        self.sparsity = mode;
        self.processor.expect_sparsity(mode);
        self.same_bits = self.processor.same_bits(&self.model, mode);
    }

    /// Most tokens in a pass of [`Forward::run_batch`] whose logits equal the logits of
    /// single-token passes, bit by bit, in the current sparsity mode. It is 1 if no pass of several
    /// tokens guarantees equal bits, for example while predictors are checked, because each check
    /// has its own tokens.
    pub fn same_bits(&self) -> usize {
        let keeps = self.correction.recall_check.is_none() && self.processor.keeps_bits();
        if keeps { self.same_bits } else { 1 }
    }

    /// Sets the correction of the predictors' thresholds for the next calls of [`Forward::run`] and
    /// [`Forward::top`].
    pub fn correct_thresholds(&mut self, correction: ThresholdCorrection) {
        self.correction = correction;
    }

    /// Sets the preference of routers for resident experts in the next passes of single tokens and
    /// of [`Forward::run_batch`]. Longer passes of [`Forward::run`] are exact.
    pub fn set_routes(&mut self, routes: RoutePreference) {
        self.routes = routes;
    }

    /// Sets the experts that routers prefer on a processor without a device.
    pub fn hold_experts(&mut self, held: HeldExperts) {
        self.processor.hold_experts(held);
    }

    /// The model and, if the processor has one, its residency on a device: budget, placement, and
    /// places of caches.
    pub fn residency(&mut self) -> Option<(&Model, &mut dyn Residency)> {
        Some((&self.model, self.processor.residency()?))
    }

    /// Bytes of scratch memory, without weights and caches.
    pub fn scratch_bytes(&self) -> u64 {
        self.processor.scratch_bytes() + held_bytes([&self.logits, &self.states])
    }

    /// Appends the tokens of `inputs` to the cache and returns the logits selected by `outputs`,
    /// `[n, n_vocab]`. The next call overwrites them. With recurrent states, an incomplete chunk
    /// takes the cache back to its latest snapshot ([`KvCache::truncate`]).
    ///
    /// # Errors
    /// [`Error::ContextFull`] if the cache (or a learned position table) is too short.
    /// [`Error::Invalid`] for no tokens, an id outside the vocabulary, a cache that the processor
    /// does not hold, or pictures that do not fit. [`Error::Unsupported`] for a picture that has to
    /// be computed at once and is larger than the processor's chunk. [`Error::Memory`] if there is
    /// no scratch memory. After any of these the cache is unchanged or holds only whole chunks.
    /// [`Error::Cancelled`] if `probe` cancels, and [`Error::Gpu`] if a device is lost; completed
    /// chunks are then in the cache. [`Error::FileLost`] if a mapped file of the model is lost; the
    /// cache is then unusable.
    pub fn run<'t>(
        &mut self,
        inputs: impl Into<CallInputs<'t>>,
        kv: &mut KvCache,
        outputs: Outputs,
        probe: &mut dyn Probe,
    ) -> Result<&[f32]> {
        self.logits_of(inputs.into(), kv, outputs, probe)
    }

    /// Appends `tokens` to the cache of a draft head, whose model this is. `states` are the hidden
    /// states of the tokens before them, `[tokens, d_model]`. Otherwise as [`Forward::run`].
    ///
    /// # Errors
    /// As [`Forward::run`]; [`Error::Invalid`] if there is not one state per token.
    pub fn run_head(
        &mut self,
        tokens: &[u32],
        states: &[f32],
        kv: &mut KvCache,
        outputs: Outputs,
        probe: &mut dyn Probe,
    ) -> Result<&[f32]> {
        let d_model = self.model.config.d_model;
        if states.len() != tokens.len() * d_model {
            let expected = format!("{} hidden states of {d_model} numbers", tokens.len());
            return Err(Error::invalid("draft head", expected, format!("{} numbers", states.len())));
        }
        self.logits_of(CallInputs { states: Some(states), ..tokens.into() }, kv, outputs, probe)
    }

    /// Computes one token of an assistant, whose model this is, after the tokens in `target`, the
    /// cache of the other model. `input` is the input of the first layer, `[d_model]`. Nothing is
    /// added to a cache; `own` has the rotations. Otherwise as [`Forward::run`].
    ///
    /// # Errors
    /// As [`Forward::run`]; [`Error::Invalid`] for an input of another width, or for keys and
    /// values without a copy in RAM ([`Residency::copy_to_ram`](super::Residency::copy_to_ram)).
    pub fn run_assistant(
        &mut self,
        input: &[f32],
        own: &KvCache,
        target: &mut KvCache,
        outputs: Outputs,
        probe: &mut dyn Probe,
    ) -> Result<&[f32]> {
        let Forward { model, processor, correction, logits, states, .. } = self;
        let config = &model.config;
        if input.len() != config.d_model || !config.reads_other_keys {
            let expected = format!("an input of {} numbers for an assistant", config.d_model);
            return Err(Error::invalid("assistant", expected, format!("{} numbers", input.len())));
        }
        let (held, available) = (target.len(), own.capacity());
        if held == 0 || held >= available {
            return Err(Error::invalid("assistant", format!("1 to {} tokens", available - 1), held));
        }
        let wanted = if outputs == Outputs::None { 0 } else { config.n_vocab };
        grow(logits, Some(wanted), "logits")?;
        let mut sequences = Sequences::reading(target, own.rotary());
        let inputs = [InputRows { rows: 0..1, values: input, added: Vec::new() }];
        let mut pass = Pass { inputs: &inputs, correction, ..Pass::new(model, &[0], probe) };
        let done = layers(&mut **processor, &mut pass, &mut sequences)
            .and_then(|()| report_states(&mut **processor, &mut pass, states))
            .and_then(|()| match wanted {
                0 => processor.finish(),
                _ => processor.head(&pass, 0..1, &mut logits[..wanted]),
            });
        model.checkpoint.files().check().and(done)?;
        Ok(&logits[..wanted])
    }

    fn logits_of(
        &mut self,
        inputs: CallInputs<'_>,
        kv: &mut KvCache,
        outputs: Outputs,
        probe: &mut dyn Probe,
    ) -> Result<&[f32]> {
        self.check_head()?;
        self.check(inputs, kv)?;
        let n_vocab = self.model.config.n_vocab;
        let wanted = match outputs {
            Outputs::None => 0,
            Outputs::Last => 1,
            Outputs::All => inputs.tokens.len(),
        };
        // Every row is overwritten.
        grow(&mut self.logits, wanted.checked_mul(n_vocab), "logits")?;
        self.compute(inputs, kv, WantedValues::Logits(outputs), probe)?;
        Ok(&self.logits[..wanted * n_vocab])
    }

    /// Appends the tokens of `inputs` to the cache and returns their hidden states after the final
    /// norm, `[tokens, d_model]`. The next call overwrites them.
    ///
    /// An encoder computes all tokens in one pass, so its cache must be empty.
    ///
    /// # Errors
    /// As [`Forward::run`]; [`Error::Invalid`] for an encoder with tokens in the cache.
    pub fn hidden<'t>(
        &mut self,
        inputs: impl Into<CallInputs<'t>>,
        kv: &mut KvCache,
        probe: &mut dyn Probe,
    ) -> Result<&[f32]> {
        let inputs = inputs.into();
        self.check(inputs, kv)?;
        if self.model.config.is_encoder() && !kv.is_empty() {
            return Err(Error::invalid("KV cache", "an empty cache, because tokens read later tokens", kv.len()));
        }
        let (d_model, tokens) = (self.model.config.d_model, inputs.tokens.len());
        grow(&mut self.logits, tokens.checked_mul(d_model), "hidden states")?;
        self.compute(inputs, kv, WantedValues::Hidden, probe)?;
        Ok(&self.logits[..tokens * d_model])
    }

    /// Appends tokens to the caches of one or several sequences in one pass. Returns the logits of
    /// every token, `[tokens, n_vocab]`, sequence by sequence; the next call overwrites them.
    /// Weights are read once for all tokens. A token gets the logits that [`Forward::run`] computes
    /// for it alone, in the sparsity mode of single tokens. Up to [`Forward::same_bits`] tokens the
    /// bits are equal; beyond that only the order of sums differs. A batch of several sequences
    /// cannot be cancelled: `probe` is not asked.
    ///
    /// # Errors
    /// As [`Forward::run`], for any of the sequences. [`Error::Invalid`] for no sequences, or for
    /// more tokens than [`Forward::chunk`]. After an error all caches are unchanged, except that
    /// recurrent states are those of their latest snapshot ([`KvCache::truncate`]).
    pub fn run_batch(&mut self, batch: &mut [(&mut KvCache, &[u32])], probe: &mut dyn Probe) -> Result<&[f32]> {
        self.check_head()?;
        batch.iter().try_for_each(|(kv, tokens)| self.check((*tokens).into(), kv))?;
        batch.iter_mut().for_each(|(kv, _)| kv.extend_pictures(&[]));
        let tokens: SmallVec<[u32; 16]> = batch.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
        let most = batch.iter().map(|(kv, _)| kv.longest_pass()).fold(self.chunk(), usize::min);
        if !(1..=most).contains(&tokens.len()) {
            return Err(Error::invalid("batch", format!("1 to {most} tokens"), tokens.len()));
        }
        let wanted = tokens.len().checked_mul(self.model.config.n_vocab);
        let Forward { model, processor, sparsity, correction, routes, logits, states, .. } = self;
        let logits = grow(logits, wanted, "logits")?;
        let mut sequences = Sequences::separate(batch.iter_mut().map(|(kv, tokens)| (&mut **kv, tokens.len())));
        let separate = tokens.len() > 1;
        let (sparsity, routes) = (*sparsity, *routes);
        let mut pass = Pass { separate, sparsity, correction, routes, ..Pass::new(model, &tokens, probe) };
        let done = layers(&mut **processor, &mut pass, &mut sequences)
            .and_then(|()| report_states(&mut **processor, &mut pass, states))
            .and_then(|()| processor.head(&pass, 0..tokens.len(), logits));
        match model.checkpoint.files().check().and(done) {
            Ok(()) => {
                processor.report(&mut pass);
                sequences.advance();
            }
            Err(error) => {
                sequences.iter_mut().for_each(|(_, kv)| kv.drop_unfinished());
                return Err(error);
            }
        }
        Ok(logits)
    }

    /// Appends the tokens of `inputs` to the cache and returns the `k` largest logits of the last
    /// token (all, if the vocabulary is smaller). Only these logits are read back from a device.
    /// The next call overwrites them.
    ///
    /// # Errors
    /// As [`Forward::run`]; [`Error::Invalid`] unless `k` is from 1 to [`MAX_SHORTLIST`].
    pub fn top<'t>(
        &mut self,
        inputs: impl Into<CallInputs<'t>>,
        kv: &mut KvCache,
        k: usize,
        probe: &mut dyn Probe,
    ) -> Result<Shortlist<'_>> {
        let inputs = inputs.into();
        if !(1..=MAX_SHORTLIST).contains(&k) {
            return Err(Error::invalid("shortlist", format!("1 to {MAX_SHORTLIST} tokens"), k));
        }
        self.check_head()?;
        self.check(inputs, kv)?;
        let k = k.min(self.model.config.n_vocab);
        self.compute(inputs, kv, WantedValues::Top(k), probe)?;
        Ok(Shortlist { ids: &self.top.0[..k], logits: &self.top.1[..k] })
    }
}
