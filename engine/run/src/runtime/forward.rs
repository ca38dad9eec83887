//! The forward pass: the driver that runs a model's program on any processor.

use std::{sync::Arc, time::Instant};

use smallvec::SmallVec;

use super::{
    CallInputs, CpuProcessor, HeldExperts, InputRows, KvCache, KvType, MAX_SHORTLIST, Pass, PassPart, Probe, Processor,
    Residency, RoutePreference, Sequences, Shortlist, Sparsity, ThresholdCorrection,
    scratch::{grow, held_bytes},
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, Isa};
use thermocline_model::{BoundOperation, Model, Position};

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

/// Values that the driver reads from each chunk after its layers.
#[derive(Clone, Copy)]
enum WantedValues {
    /// The logits of some tokens.
    Logits(Outputs),
    /// The hidden states of all tokens.
    Hidden,
    /// This many of the last token's largest logits.
    Top(usize),
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

    /// Most tokens in a pass of [`Forward::run_batch`] whose logits equal, bit by bit, those of
    /// single-token passes in the current sparsity mode. It is 1 if no pass of several tokens
    /// guarantees equal bits, for example while predictors are checked, because each check has its
    /// own tokens.
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
    /// Weights are read once for all tokens. A token's logits are those of [`Forward::run`] for
    /// this token alone, in the sparsity mode of single tokens. Up to [`Forward::same_bits`] tokens
    /// the bits are equal; beyond that only the order of sums differs. A batch of several sequences
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

    /// Appends `tokens`. If weights are lost meanwhile, all results are discarded.
    fn compute(
        &mut self,
        inputs: CallInputs<'_>,
        kv: &mut KvCache,
        wanted: WantedValues,
        probe: &mut dyn Probe,
    ) -> Result<()> {
        let done = self.compute_chunks(inputs, kv, wanted, probe);
        let done = self.model.checkpoint.files().check().and(done);
        if done.is_err() {
            kv.drop_unfinished();
        }
        done
    }

    fn compute_chunks(
        &mut self,
        inputs: CallInputs<'_>,
        kv: &mut KvCache,
        wanted: WantedValues,
        probe: &mut dyn Probe,
    ) -> Result<()> {
        let whole = self.model.config.is_encoder();
        let chunk = self.chunk().min(kv.longest_pass());
        let Forward { model, processor, sparsity, correction, routes, logits, top, states, .. } = self;
        let d_model = model.config.d_model;
        let width = if matches!(wanted, WantedValues::Hidden) { model.config.d_model } else { model.config.n_vocab };
        kv.extend_pictures(&inputs.spans(kv.len()));
        let (mut rest, mut written) = (inputs.tokens, 0);
        while !rest.is_empty() {
            let tokens = if whole {
                rest.len()
            } else {
                let most = processor.max_chunk().min(kv.longest_pass());
                kv.pictures().whole_part(kv.len(), part_len(rest.len(), chunk, &**processor), most)?
            };
            let (part, left) = rest.split_at(tokens);
            let (begun, last) = (inputs.tokens.len() - rest.len(), left.is_empty());
            rest = left;
            let of_part = inputs.states.map(|states| &states[begun * d_model..][..part.len() * d_model]);
            let given = inputs.rows(&(kv.len()..kv.len() + part.len()), d_model);
            let mut sequences = Sequences::one(kv, part.len());
            let mut pass = Pass {
                states: of_part,
                inputs: &given,
                second_at: inputs.second_at.map(|second| second.saturating_sub(begun)),
                sparsity: *sparsity,
                correction,
                ..Pass::new(model, part, &mut *probe)
            };
            if pass.is_single() {
                pass.routes = *routes;
            }
            layers(&mut **processor, &mut pass, &mut sequences)?;
            report_states(&mut **processor, &mut pass, states)?;
            let rows = match wanted {
                WantedValues::Logits(Outputs::All) | WantedValues::Hidden => 0..part.len(),
                WantedValues::Logits(Outputs::Last) | WantedValues::Top(_) if last => part.len() - 1..part.len(),
                _ => 0..0,
            };
            let values = written * width..(written + rows.len()) * width;
            written += rows.len();
            match wanted {
                _ if rows.is_empty() => processor.finish()?,
                WantedValues::Logits(_) => {
                    timed(&mut pass, PassPart::Head, |pass| processor.head(pass, rows, &mut logits[values]))?;
                }
                WantedValues::Hidden => {
                    processor.hidden(&pass, &mut logits[values])?;
                    processor.finish()?;
                }
                WantedValues::Top(k) => {
                    let (ids, logits) = (&mut top.0[..k], &mut top.1[..k]);
                    timed(&mut pass, PassPart::Head, |pass| processor.top(pass, rows.start, ids, logits))?;
                }
            }
            processor.report(&mut pass);
            sequences.advance();
        }
        Ok(())
    }

    /// Refuses logits of a model that generates no text.
    fn check_head(&self) -> Result<()> {
        let config = &self.model.config;
        if !config.is_encoder() {
            return Ok(());
        }
        let got = format!("an encoder ({})", config.architecture);
        Err(Error::unsupported(
            "logits",
            got,
            "models that generate text; `thermocline embed` embeds texts with this one",
        ))
    }

    fn check(&self, inputs: CallInputs<'_>, kv: &KvCache) -> Result<()> {
        let (config, tokens) = (&self.model.config, inputs.tokens);
        if tokens.is_empty() {
            return Err(Error::invalid("tokens", "at least one token", "no tokens"));
        }
        if let Some(id) = tokens.iter().find(|id| **id as usize >= config.n_vocab) {
            return Err(Error::invalid("token id", format!("an id below {}", config.n_vocab), id));
        }
        if !kv.fits(config) {
            return Err(Error::invalid("KV cache", "a KV cache of this model", "a KV cache of another shape"));
        }
        if !self.processor.holds(kv) {
            return Err(Error::invalid("KV cache", "a KV cache of this processor", "a KV cache of another processor"));
        }
        let positions = match (&config.position, &self.model.weights.position_embedding) {
            (Position::Learned { offset }, Some(table)) => table.rows().saturating_sub(*offset),
            _ => usize::MAX,
        };
        let (needed, available) = (kv.len() + tokens.len(), kv.capacity().min(positions));
        if needed > available {
            return Err(Error::ContextFull { wanted: needed, at_least: false, available });
        }
        inputs.check(config, kv)
    }
}

/// Number of tokens of the next chunk of at most `most` tokens, if `rest` tokens are left. A short
/// rest is added to the chunk that a processor computes at once.
fn part_len(rest: usize, most: usize, processor: &dyn Processor) -> usize {
    let paced = if rest > 1 { processor.paced_chunk() } else { 1 };
    let with_rest = paced.saturating_add(paced / 2);
    most.min(if rest <= with_rest { with_rest } else { paced }).min(rest)
}

/// Computes every layer of a chunk.
fn layers(processor: &mut dyn Processor, pass: &mut Pass<'_>, sequences: &mut Sequences<'_>) -> Result<()> {
    let config = &pass.model.config;
    // A partly advanced recurrent state would have to be recomputed from far back. Single tokens
    // and drafts are therefore finished, and so are batches, because they include other
    // conversations.
    let is_short = pass.is_single() || pass.separate;
    let may_stop = sequences.len() == 1 && !(is_short && config.is_recurrent());
    // A draft head is in the file of its model, whose passes have another order.
    if let Some(pager) = pass.model.pager().filter(|_| pass.model.weights.state_input.is_none()) {
        pager.begin_pass(is_short);
    }
    processor.begin(pass, sequences)?;
    for layer in 0..config.n_layer() {
        if may_stop && pass.probe.cancelled() {
            return Err(Error::Cancelled);
        }
        compute_layer(processor, pass, layer, sequences)?;
        if pass.added_after(layer).next().is_some() {
            processor.add_inputs(pass, layer)?;
        }
        if pass.probe.wants_layer_output() {
            let residual = processor.residual(pass)?;
            pass.probe.layer_output(layer, residual);
        }
    }
    Ok(())
}

/// Computes the steps of one layer for the chunk that the processor has begun.
pub fn compute_layer(
    processor: &mut dyn Processor,
    pass: &mut Pass<'_>,
    layer: usize,
    sequences: &mut Sequences<'_>,
) -> Result<()> {
    for step in pass.model.steps(layer) {
        let step = step?;
        let part = match step.operation {
            BoundOperation::Route { .. } | BoundOperation::Ffn(_) | BoundOperation::DenseFfn { .. } => {
                PassPart::Ffn(layer)
            }
            _ => PassPart::Mixer(layer),
        };
        timed(pass, part, |pass| processor.step(pass, &step, sequences))?;
    }
    Ok(())
}

/// Passes the hidden states of a computed chunk to the probe if the probe wants them.
fn report_states(processor: &mut dyn Processor, pass: &mut Pass<'_>, states: &mut Vec<f32>) -> Result<()> {
    if !pass.probe.wants_states() {
        return Ok(());
    }
    let rows = grow(states, Some(pass.register_len()), "hidden states")?;
    processor.hidden(pass, rows)?;
    pass.probe.states(rows);
    Ok(())
}

/// Runs `work` and reports its time to the probe if the probe wants times.
fn timed(pass: &mut Pass<'_>, part: PassPart, work: impl FnOnce(&mut Pass<'_>) -> Result<()>) -> Result<()> {
    if !pass.probe.wants_step_times() {
        return work(pass);
    }
    let started = Instant::now();
    work(pass)?;
    pass.probe.step_time(part, started.elapsed());
    Ok(())
}
