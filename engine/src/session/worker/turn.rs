//! One turn: the next tokens of all sessions in one pass, then a chunk of one prompt. Also makes
//! room for their caches.

use std::{cmp::Reverse, time::Instant};

use super::{
    super::{
        Priority, StopReason,
        batch::{BatchRow, compute_batch},
        context::SessionContext,
        turns::{SessionWork, Turn, TurnCandidate},
    },
    EngineWorker, ServedSession,
};
use thermocline_base::error::Error;
use thermocline_run::runtime::Sparsity;

/// Fewest tokens of a prefix that are worth copying from another session.
const LEAST_SHARED: usize = 16;

/// The order of prompts: by priority, then by the time of the request.
type PromptRank = (Reverse<Priority>, Instant);

impl EngineWorker<'_> {
    /// The sessions that have something to compute.
    pub(super) fn candidates(&self) -> Vec<TurnCandidate> {
        let running = self.conversations.iter().enumerate().filter_map(|(at, it)| Some((at, it, it.running.as_ref()?)));
        let running = running.filter(|(at, ..)| !self.waits_for_prefix(*at));
        let candidates = running.map(|(at, it, (generation, _))| {
            let work = match generation.single_token(&it.context, &self.forward) {
                Some(_) => SessionWork::Token,
                None => SessionWork::Chunk,
            };
            TurnCandidate { at, id: it.id, priority: it.priority, work }
        });
        candidates.collect()
    }

    /// The context of a session whose prompt is being computed, the rest of the prompt, and its
    /// rank.
    fn prompt_of(&self, at: usize) -> Option<(&SessionContext, &[u32], PromptRank)> {
        let ServedSession { context, priority, running: Some((generation, _)), .. } = &self.conversations[at] else {
            return None;
        };
        Some((context, generation.rest_of_prompt()?, (Reverse(*priority), generation.progress.requested_at)))
    }

    /// True if an earlier-ranked prompt shares a longer prefix with this prompt than is computed
    /// here. That prefix is computed once and then copied.
    fn waits_for_prefix(&self, at: usize) -> bool {
        let Some((context, rest, rank)) = self.prompt_of(at) else { return false };
        let held = context.tokens();
        (0..self.conversations.len()).filter(|other| *other != at).any(|other| {
            let Some((earlier, theirs, their_rank)) = self.prompt_of(other) else { return false };
            let common = held.iter().chain(rest).zip(earlier.tokens().iter().chain(theirs));
            their_rank < rank && common.take_while(|(a, b)| a == b).count() >= held.len() + LEAST_SHARED
        })
    }

    /// Copies the part of a session's prompt that another session has computed.
    fn share_prefix(&mut self, at: usize) {
        let Some((context, rest, _)) = self.prompt_of(at) else { return };
        let least = context.tokens().len() + LEAST_SHARED;
        let others = self
            .conversations
            .iter()
            .enumerate()
            .filter(|(other, it)| *other != at && it.context.is_held() && it.context.is_settled(&self.forward));
        let common = others.map(|(other, it)| (it.context.common(context.tokens(), rest), other)).max();
        let Some((common, from)) = common.filter(|(common, _)| *common >= least) else { return };
        // The last token must be computed for its logits.
        let tokens = common.min(context.tokens().len() + rest.len() - 1);
        if !context.is_settled(&self.forward) {
            return;
        }
        let Ok([to, from]) = self.conversations.get_disjoint_mut([at, from]) else { return };
        let Some((generation, _)) = &mut to.running else { return };
        let Some(rest) = generation.rest_of_prompt() else { return };
        match to.context.copy_prefix(&from.context, rest, tokens, &mut self.forward) {
            Ok(copied) => generation.skip(copied),
            // The prefix is computed instead, which also reveals a lost device.
            Err(error) => tracing::debug!(%error, "the shared prefix was not copied, so it is computed"),
        }
    }

    /// Makes room within the cache budget for a session that is about to compute. It drops the
    /// caches of idle sessions, least recently used first. False if the session must wait for a
    /// running one.
    pub(super) fn make_room(&mut self, at: usize) -> bool {
        let it = &self.conversations[at];
        let Some(budget) = self.state.kv_budget.filter(|_| it.running.is_none() && !it.waiting.is_empty()) else {
            return true;
        };
        let own = it.context.reserved();
        loop {
            let others = self.conversations.iter().enumerate().filter(|(other, _)| *other != at);
            let held = others.filter(|(_, it)| it.running.is_some() || it.context.is_held());
            let (mut bytes, mut idle, mut running) = (own, None, false);
            for (other, it) in held {
                bytes = bytes.saturating_add(it.context.reserved());
                match it.running {
                    Some(_) => running = true,
                    None if idle.is_none_or(|(used_at, _)| it.used_at < used_at) => idle = Some((it.used_at, other)),
                    None => {}
                }
            }
            if bytes <= budget {
                return true;
            }
            match idle {
                Some((_, other)) => self.conversations[other].context.forget(),
                // A single cache is never refused.
                None => return !running,
            }
        }
    }

    /// Carries out a turn.
    pub(super) fn take_turn(&mut self, turn: &Turn, candidates: &[TurnCandidate]) {
        let started = Instant::now();
        if !(turn.together && self.decode_batch(&turn.tokens)) {
            for at in &turn.tokens {
                let started = Instant::now();
                self.step(*at, usize::MAX);
                self.turns.note_pass(1, started.elapsed());
            }
        }
        let of_tokens = started.elapsed();
        if let Some((at, most)) = turn.chunk {
            let computed = |it: &Self| it.conversations[at].context.tokens().len();
            self.share_prefix(at);
            let before = computed(self);
            self.step(at, most);
            let tokens = computed(self).saturating_sub(before);
            self.turns.note_chunk(tokens, started.elapsed().saturating_sub(of_tokens));
        }
        let is_front = |at: &&usize| candidates.iter().any(|it| it.at == **at && it.priority == Priority::Foreground);
        let front = turn.tokens.iter().filter(is_front).count();
        self.turns.note_turn(turn, front, of_tokens, started.elapsed().saturating_sub(of_tokens));
    }

    /// Computes the next tokens of several sessions in one pass. False if nothing was computed and
    /// each session must be computed on its own.
    fn decode_batch(&mut self, which: &[usize]) -> bool {
        let started = Instant::now();
        let adaptation = &self.state.planner.adaptation;
        if self.forward.sparsity() == Sparsity::Predicted && adaptation.is_on() {
            self.forward.correct_thresholds(adaptation.threshold_correction());
        }
        let (mut rows, mut ends) = (Vec::with_capacity(which.len()), Vec::new());
        for (at, it) in self.conversations.iter_mut().enumerate().filter(|(at, _)| which.contains(at)) {
            let ServedSession { id, context, cancelled, running: Some((generation, events)), .. } = it else {
                continue;
            };
            if generation.is_cancelled(cancelled) {
                ends.push((at, Ok(StopReason::Cancelled)));
            } else if let Some(token) = generation.single_token(context, &self.forward) {
                rows.push(BatchRow { at, session: *id, token, context, generation, events });
            }
        }
        let sequences = rows.len();
        let computed = match sequences {
            0 => Ok(()),
            _ => compute_batch(&mut self.forward, &mut rows, adaptation, &mut self.meter, started, &mut ends),
        };
        drop(rows);
        let done = computed.is_ok();
        match computed {
            Ok(()) => {
                self.evictions = 0;
                self.turns.note_pass(sequences, started.elapsed());
            }
            Err(error @ (Error::Gpu { .. } | Error::Memory { .. })) if self.device.on_device() => {
                self.recover(error);
                self.finish(ends);
                return true;
            }
            Err(error) => tracing::debug!(%error, "the tokens of several sessions are computed one after another"),
        }
        self.finish(ends);
        done
    }
}
