//! The forward pass: the one driver that walks a model's program, whoever computes it.

use std::sync::Arc;

use super::{
    CpuProcessor, KvCache, KvType, MAX_SHORTLIST, Model, Position, Probe, Processor, Resident, Shortlist, Sparsity,
    Steering, Step,
};
use crate::{
    cpu::Cpu,
    error::{Error, Result},
};

/// Which tokens' logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outputs {
    /// None: the cache is filled.
    None,
    /// The last token's.
    Last,
    /// Every token's.
    All,
}

/// Tokens computed at once, unless told otherwise.
pub const DEFAULT_CHUNK: usize = 512;

/// A model and the processor that runs it.
#[derive(Debug)]
pub struct Forward {
    model: Arc<Model>,
    processor: Box<dyn Processor>,
    chunk: usize,
    sparsity: Sparsity,
    logits: Vec<f32>,
    /// Ids and logits of a shortlist.
    top: ([u32; MAX_SHORTLIST], [f32; MAX_SHORTLIST]),
}

impl Forward {
    /// `model` on the CPU.
    pub fn new(model: Arc<Model>, cpu: Cpu) -> Self {
        Self::on(model, Box::new(CpuProcessor::new(cpu)))
    }

    /// `model` on any processor.
    pub fn on(model: Arc<Model>, processor: Box<dyn Processor>) -> Self {
        let top = ([0; MAX_SHORTLIST], [0.0; MAX_SHORTLIST]);
        Forward { model, processor, chunk: DEFAULT_CHUNK, sparsity: Sparsity::Dense, logits: Vec::new(), top }
    }

    /// Lets another processor go on, with `model` as it takes it, and returns the one before. Caches stay with those who can work on
    /// them ([`Forward::holds`]).
    pub fn replace(&mut self, model: &Arc<Model>, mut processor: Box<dyn Processor>) -> Box<dyn Processor> {
        processor.set_sparsity(self.sparsity);
        self.model = Arc::clone(model);
        std::mem::replace(&mut self.processor, processor)
    }

    /// An empty cache for `capacity` tokens, where the processor works on it. `ty` is a wish: [`KvCache::ty`] says what
    /// became of it.
    ///
    /// # Errors
    /// [`Error::Memory`] if that much cannot be had, [`Error::Invalid`] for a capacity of 0, [`Error::Gpu`] if the device is
    /// lost.
    pub fn kv_cache(&mut self, capacity: usize, ty: KvType) -> Result<KvCache> {
        self.processor.kv_cache(&self.model, capacity, ty)
    }

    /// Whether `kv` was made for a model of this shape and is where the processor can work on it.
    pub fn holds(&self, kv: &KvCache) -> bool {
        kv.fits(&self.model.config) && self.processor.holds(kv)
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Tokens computed at once; more need more scratch memory, and a processor may have less room than was asked for.
    pub fn chunk(&self) -> usize {
        self.chunk.min(self.processor.max_chunk())
    }

    /// Sets how many tokens are computed at once, at least 1, as far as the processor has room.
    pub fn set_chunk(&mut self, tokens: usize) {
        self.chunk = tokens.max(1);
    }

    /// What is skipped when single tokens are computed.
    pub fn sparsity(&self) -> Sparsity {
        self.sparsity
    }

    /// Changes it, from the next call of [`Forward::run`] or [`Forward::top`] on.
    pub fn set_sparsity(&mut self, mode: Sparsity) {
        self.sparsity = mode;
        self.processor.set_sparsity(mode);
    }

    /// See [`Processor::steer`].
    pub fn steer(&mut self, steering: &Steering) {
        self.processor.steer(steering);
    }

    /// See [`Processor::take_kv`].
    ///
    /// # Errors
    /// As there; [`Error::Invalid`] for a cache of another model's shape.
    pub fn take_kv(&mut self, kv: &mut KvCache) -> Result<()> {
        if !kv.fits(&self.model.config) {
            return Err(Error::invalid("KV cache", "one made for this model", "one of another shape"));
        }
        self.processor.take_kv(&self.model, kv)
    }

    /// See [`Processor::return_kv`].
    ///
    /// # Errors
    /// As there.
    pub fn return_kv(&mut self, kv: &mut KvCache) -> Result<()> {
        self.processor.return_kv(kv)
    }

    /// See [`Processor::set_budget`].
    ///
    /// # Errors
    /// As there.
    pub fn set_budget(&mut self, bytes: u64, caches: &mut [&mut KvCache]) -> Result<()> {
        self.processor.set_budget(&self.model, bytes, caches)
    }

    /// See [`Processor::settle`].
    ///
    /// # Errors
    /// As there.
    pub fn settle(&mut self, caches: &mut [&mut KvCache]) -> Result<bool> {
        self.processor.settle(&self.model, caches)
    }

    /// See [`Processor::resident`].
    pub fn resident(&self) -> Option<Resident> {
        self.processor.resident(&self.model)
    }

    /// See [`Processor::moves`].
    pub fn moves(&self) -> u64 {
        self.processor.moves()
    }

    /// Bytes of the buffers held, beside weights and caches.
    pub fn scratch_bytes(&self) -> u64 {
        self.processor.scratch_bytes() + (self.logits.capacity() * size_of::<f32>()) as u64
    }

    /// Appends `tokens` to the cache and returns the logits of those `outputs` asks for, `[n, n_vocab]`. The slice is
    /// overwritten by the next call.
    ///
    /// # Errors
    /// [`Error::ContextFull`] if the cache (or a learned position table) is too short, [`Error::Invalid`] for no tokens, an
    /// id outside the vocabulary or a cache the processor does not hold, [`Error::Memory`] if scratch memory cannot be had:
    /// all of these before the cache changes or with whole chunks in it. [`Error::Cancelled`] if `probe` says so,
    /// [`Error::Gpu`] if a device is lost, with the chunks completed so far in the cache.
    pub fn run(&mut self, tokens: &[u32], kv: &mut KvCache, outputs: Outputs, probe: &mut dyn Probe) -> Result<&[f32]> {
        self.check(tokens, kv)?;
        let n_vocab = self.model.config.n_vocab;
        let wanted = match outputs {
            Outputs::None => 0,
            Outputs::Last => 1,
            Outputs::All => tokens.len(),
        };
        // Rows are overwritten, so what is in the buffer does not matter.
        grow(&mut self.logits, wanted.checked_mul(n_vocab), "logits")?;
        let mut written = 0;
        let (chunk, model, processor) = (self.chunk(), &*self.model, &mut *self.processor);
        for (part, last) in parts(tokens, chunk) {
            layers(model, processor, part, kv, probe)?;
            let rows = match outputs {
                Outputs::All => 0..part.len(),
                Outputs::Last if last => part.len() - 1..part.len(),
                _ => 0..0,
            };
            if rows.is_empty() {
                processor.finish()?;
            } else {
                let logits = &mut self.logits[written * n_vocab..][..rows.len() * n_vocab];
                written += rows.len();
                processor.head(model, rows, logits)?;
            }
            processor.report(model, probe);
            kv.advance(part.len());
        }
        Ok(&self.logits[..wanted * n_vocab])
    }

    /// Appends `tokens` to the cache and returns the `k` largest logits of the last one (all, if the vocabulary is smaller):
    /// all that leaves a device. Overwritten by the next call.
    ///
    /// # Errors
    /// As [`Forward::run`]; [`Error::Invalid`] unless `k` is from 1 to [`MAX_SHORTLIST`].
    pub fn top(&mut self, tokens: &[u32], kv: &mut KvCache, k: usize, probe: &mut dyn Probe) -> Result<Shortlist<'_>> {
        if !(1..=MAX_SHORTLIST).contains(&k) {
            return Err(Error::invalid("shortlist", format!("1 to {MAX_SHORTLIST} tokens"), k));
        }
        self.check(tokens, kv)?;
        let (chunk, model, processor) = (self.chunk(), &*self.model, &mut *self.processor);
        let k = k.min(model.config.n_vocab);
        let (ids, logits) = (&mut self.top.0[..k], &mut self.top.1[..k]);
        for (part, last) in parts(tokens, chunk) {
            layers(model, processor, part, kv, probe)?;
            if last {
                processor.top(model, part.len() - 1, ids, logits)?;
            } else {
                processor.finish()?;
            }
            processor.report(model, probe);
            kv.advance(part.len());
        }
        Ok(Shortlist { ids, logits })
    }

    fn check(&self, tokens: &[u32], kv: &KvCache) -> Result<()> {
        let config = &self.model.config;
        if tokens.is_empty() {
            return Err(Error::invalid("tokens", "at least one", "none"));
        }
        if let Some(id) = tokens.iter().find(|id| **id as usize >= config.n_vocab) {
            return Err(Error::invalid("token id", format!("below {}", config.n_vocab), id));
        }
        if !kv.fits(config) {
            return Err(Error::invalid("KV cache", "one made for this model", "one of another shape"));
        }
        if !self.processor.holds(kv) {
            return Err(Error::invalid("KV cache", "one made by this processor", "another's"));
        }
        let positions = match (&config.position, &self.model.weights.position_embedding) {
            (Position::Learned { offset }, Some(table)) => table.rows().saturating_sub(*offset),
            _ => usize::MAX,
        };
        let (needed, available) = (kv.len() + tokens.len(), kv.capacity().min(positions));
        if needed > available {
            return Err(Error::ContextFull { wanted: needed, available });
        }
        Ok(())
    }
}

/// Chunks of `tokens`, and whether each is the last.
fn parts(tokens: &[u32], chunk: usize) -> impl Iterator<Item = (&[u32], bool)> {
    let mut left = tokens.len();
    tokens.chunks(chunk).map(move |part| {
        left -= part.len();
        (part, left == 0)
    })
}

/// Every layer of a chunk.
fn layers(
    model: &Model,
    processor: &mut dyn Processor,
    chunk: &[u32],
    kv: &mut KvCache,
    probe: &mut dyn Probe,
) -> Result<()> {
    processor.time(probe.wants_firing() && probe.wants_times());
    processor.begin(model, chunk, kv)?;
    for layer in 0..model.config.n_layer() {
        if probe.cancelled() {
            return Err(Error::Cancelled);
        }
        for step in &model.config.steps {
            match *step {
                Step::Norm { norm, from, into } => processor.norm(model, layer, norm, from, into)?,
                Step::Attention { from } => processor.attention(model, layer, from, kv)?,
                Step::Ffn { from } => processor.ffn(model, layer, from, probe)?,
                Step::AddOut => processor.add_out()?,
            }
        }
        if probe.wants_layer_output() {
            probe.layer_output(layer, processor.residual()?);
        }
    }
    Ok(())
}

/// Makes `vec` at least `n` long; `None` is a length that overflows.
pub(super) fn grow(vec: &mut Vec<f32>, n: Option<usize>, what: &'static str) -> Result<()> {
    let n = n.unwrap_or(usize::MAX);
    if n <= vec.len() {
        return Ok(());
    }
    let more = n - vec.len();
    vec.try_reserve_exact(more).map_err(|_| Error::Memory {
        what,
        wanted: n.saturating_mul(size_of::<f32>()) as u64,
        available: (vec.capacity() * size_of::<f32>()) as u64,
    })?;
    vec.resize(n, 0.0);
    Ok(())
}
