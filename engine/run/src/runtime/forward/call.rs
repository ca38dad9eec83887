//! One call of the driver: the checks of its inputs, and a pass for each chunk of its tokens.

use super::{
    Forward, Outputs,
    layers::{layers, report_states, timed},
};
use crate::runtime::{CallInputs, KvCache, Pass, PassPart, Probe, Processor, Sequences};
use thermocline_base::error::{Error, Result};
use thermocline_model::Position;

/// Values that the driver reads from each chunk after its layers.
#[derive(Clone, Copy)]
pub(super) enum WantedValues {
    /// The logits of some tokens.
    Logits(Outputs),
    /// The hidden states of all tokens.
    Hidden,
    /// This many of the last token's largest logits.
    Top(usize),
}

impl Forward {
    /// Refuses logits of a model that generates no text.
    pub(super) fn check_head(&self) -> Result<()> {
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

    /// Refuses tokens that the model and `kv` do not take.
    pub(super) fn check(&self, inputs: CallInputs<'_>, kv: &KvCache) -> Result<()> {
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

    /// Appends `tokens`. If weights are lost meanwhile, all results are discarded.
    pub(super) fn compute(
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
}

/// Number of tokens of the next chunk of at most `most` tokens, if `rest` tokens are left. A short
/// rest is added to the chunk that a processor computes at once.
fn part_len(rest: usize, most: usize, processor: &dyn Processor) -> usize {
    let paced = if rest > 1 { processor.paced_chunk() } else { 1 };
    let with_rest = paced.saturating_add(paced / 2);
    most.min(if rest <= with_rest { with_rest } else { paced }).min(rest)
}
