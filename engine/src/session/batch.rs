//! Computes the next tokens of several generations in one pass, which reads the weights once for
//! all of them. Each generation has its own cache, sampler and grammar, and waits for no other
//! generation's choice.

use std::{sync::atomic::AtomicU64, thread::ScopedJoinHandle, time::Instant};

use super::{
    StopReason,
    context::SessionContext,
    generation::Generation,
    neurons::{GenerationProbe, HotSetAdaptation},
    request::EventSender,
};
use thermocline_base::{
    error::{Error, Result},
    telemetry::{Meter, neurons::BegunToken},
};
use thermocline_run::runtime::{Forward, KvCache, RoutePreference};

/// A generation of a batch, and its token to compute.
pub(super) struct BatchRow<'r, 'g> {
    /// Index of its session in the list of sessions, and the session's number.
    pub at: usize,
    pub session: u64,
    pub token: u32,
    pub context: &'r mut SessionContext,
    pub generation: &'r mut Generation<'g>,
    pub events: &'r EventSender,
}

/// Computes the tokens of `rows` in one pass that began at `started`, and has every generation
/// choose its next token. Adds generations that end to `ends`. On an error no context has changed
/// and no token was chosen.
pub(super) fn compute_batch(
    forward: &mut Forward,
    rows: &mut [BatchRow<'_, '_>],
    adaptation: &HotSetAdaptation,
    meter: &mut Meter<'_>,
    started: Instant,
    ends: &mut Vec<(usize, Result<StopReason>)>,
) -> Result<()> {
    let n_vocab = forward.model().config.n_vocab;
    // One request cannot cancel the pass that it shares with others.
    let never = AtomicU64::new(0);
    let mut probe = GenerationProbe::new(&never, 0);
    let recorded = rows.iter().all(|row| row.generation.recorded);
    if recorded {
        probe = probe.with_adaptation(adaptation);
        let begun = |row: &BatchRow<'_, '_>| BegunToken {
            session: row.session,
            position: row.context.tokens().len(),
            id: row.token,
            patch: None,
        };
        let neurons = meter.neurons();
        neurons.begin_each(rows.iter().map(begun), true);
        probe = probe.with_recorder(neurons);
    }
    let mut routes = rows.first().map_or(RoutePreference::OFF, |row| row.generation.routes);
    routes.frozen = rows.iter().any(|row| row.generation.routes.frozen);
    forward.set_routes(routes);
    let (mut batch, mut grammars): (Vec<(&mut KvCache, &[u32])>, Vec<_>) = (Vec::with_capacity(rows.len()), Vec::new());
    for BatchRow { context, generation, token, .. } in rows.iter_mut() {
        let Some(kv) = context.kv_mut() else {
            return Err(Error::invalid("context", "a context with a KV cache", "a context without a KV cache"));
        };
        batch.push((kv, std::slice::from_ref(token)));
        grammars.push(generation.grammar_mut());
    }
    let (computed, masks) = std::thread::scope(|scope| {
        // Like logits, masks depend on the tokens so far, and all masks are computed at once.
        let masks: Vec<_> = grammars
            .into_iter()
            .map(|grammar| grammar.map(|grammar| scope.spawn(move || grammar.compute_mask())))
            .collect();
        let computed = forward.run_batch(&mut batch, &mut probe);
        let masks = masks.into_iter().map(|mask| mask.map(ScopedJoinHandle::join));
        (computed, masks.collect::<Vec<_>>())
    });
    drop(batch);
    meter.neurons().end();
    if recorded {
        adaptation.record_tokens(rows.len(), started.elapsed());
    }
    let logits = match computed {
        Ok(logits) => logits,
        Err(error) => {
            rows.iter_mut().for_each(|row| row.context.drop_unfinished());
            return Err(error);
        }
    };
    let time = started.elapsed();
    meter.decode(rows.len(), rows.len(), time);
    for ((row, logits), mask) in rows.iter_mut().zip(logits.chunks_exact(n_vocab)).zip(masks) {
        row.context.push(&[row.token]);
        let masked = match mask {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(error),
            Some(Err(_)) => Err(Error::invalid("grammar", "a mask of the allowed next tokens", "a failure")),
        };
        let next = masked.and_then(|()| row.generation.take_logits(logits, row.context, row.events, time));
        match next {
            Ok(None) => {}
            Ok(Some(reason)) => ends.push((row.at, Ok(reason))),
            Err(error) => ends.push((row.at, Err(error))),
        }
    }
    Ok(())
}
