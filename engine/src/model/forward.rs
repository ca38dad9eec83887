//! The forward pass: the one driver that walks a model's program, whoever computes it.

use std::sync::Arc;

use super::{CpuProcessor, KvCache, Model, Position, Probe, Processor, Step};
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
    logits: Vec<f32>,
}

impl Forward {
    /// `model` on the CPU.
    pub fn new(model: Arc<Model>, cpu: Cpu) -> Self {
        Self::on(model, Box::new(CpuProcessor::new(cpu)))
    }

    /// `model` on any processor.
    pub fn on(model: Arc<Model>, processor: Box<dyn Processor>) -> Self {
        Forward { model, processor, chunk: DEFAULT_CHUNK, logits: Vec::new() }
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Tokens computed at once; more need more scratch memory.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Sets how many tokens are computed at once, at least 1.
    pub fn set_chunk(&mut self, tokens: usize) {
        self.chunk = tokens.max(1);
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
    /// id outside the vocabulary or a cache of another model, [`Error::Memory`] if scratch memory cannot be had: all of
    /// these before the cache changes or with whole chunks in it. [`Error::Cancelled`] if `probe` says so, with the chunks
    /// completed so far in the cache.
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
        let mut done = 0;
        for chunk in tokens.chunks(self.chunk) {
            done += chunk.len();
            self.layers(chunk, kv, probe)?;
            let rows = match outputs {
                Outputs::All => 0..chunk.len(),
                Outputs::Last if done == tokens.len() => chunk.len() - 1..chunk.len(),
                _ => 0..0,
            };
            if !rows.is_empty() {
                let logits = &mut self.logits[written * n_vocab..][..rows.len() * n_vocab];
                written += rows.len();
                self.processor.head(&self.model, rows, logits)?;
            }
            kv.advance(chunk.len());
        }
        Ok(&self.logits[..wanted * n_vocab])
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

    fn layers(&mut self, chunk: &[u32], kv: &mut KvCache, probe: &mut dyn Probe) -> Result<()> {
        let (model, processor) = (&*self.model, &mut *self.processor);
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
            probe.layer_output(layer, processor.residual()?);
        }
        Ok(())
    }
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
