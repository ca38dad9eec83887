//! Turns of the engine thread. A turn computes the next tokens of several sessions in one pass, and
//! then a chunk of one prompt. This module only does arithmetic on measured times.
//!
//! One pass reads the weights once for all its sequences, so all due tokens are computed together.
//! Prompts advance by a chunk between passes, so a token waits for one chunk at most. Foreground
//! sessions (the window's) keep [`FOREGROUND_SHARE`] of the speed that they have alone. The time
//! that background tokens and chunks add is paid from a credit, which the foreground's own work
//! earns.

use std::time::Duration;

/// The priority of a session among those of its engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Waits for the foreground. Used for network requests while a person works in the window.
    Background,
    /// Keeps at least four fifths of the speed that it has alone, whatever runs in the background.
    #[default]
    Foreground,
}

/// Fraction of its undisturbed speed that the foreground keeps.
const FOREGROUND_SHARE: f64 = 0.8;
/// Seconds of background work that the foreground's work earns per second.
const EARNED: f64 = 1.0 / FOREGROUND_SHARE - 1.0;
/// Largest credit, in seconds of background work.
const MOST_CREDIT: f64 = 0.1;
/// Weight of the latest pass in running means.
const LATEST: f64 = 0.25;
/// Number of passes of a size before their time counts.
const TRIALS: usize = 4;
/// Fraction by which every later pass increases the remembered time of the fastest pass.
const FORGETTING: f64 = 0.02;
/// Longest seconds of a chunk while tokens wait for it: for any session, and for a foreground
/// session.
const CHUNK_SECONDS: f64 = 0.2;
const FOREGROUND_CHUNK_SECONDS: f64 = 0.05;
/// Chunks between passes are a multiple of this number of tokens. The first chunk is twice as long.
const CHUNK_MULTIPLE: usize = 32;
/// Number of pass sizes, in sequences, whose times are kept separately.
const SIZES: usize = 33;
/// Number of turns until sequences are computed together again, after that was slower than one by
/// one.
const RETRY: usize = 64;

/// The kind of work that a session has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionWork {
    /// One token.
    Token,
    /// A chunk of its prompt, or of a cache that is recomputed.
    Chunk,
}

/// A session with work.
#[derive(Debug, Clone, Copy)]
pub(super) struct TurnCandidate {
    /// Index of the session in the list of sessions.
    pub at: usize,
    /// Number of the session.
    pub id: u64,
    pub priority: Priority,
    pub work: SessionWork,
}

/// The work of one turn.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// Sessions whose next token is computed, and (`together`) true if one pass computes all of
    /// them.
    pub tokens: Vec<usize>,
    pub together: bool,
    /// The session whose chunk is computed after the tokens, and the chunk's largest number of
    /// tokens (`usize::MAX` for no limit).
    pub chunk: Option<(usize, usize)>,
    /// True if foreground or background sessions take part in the pass, or if the chunk's
    /// session is in the foreground.
    foreground: bool,
    background: bool,
    chunk_in_foreground: bool,
}

/// Chooses turns and records their times.
#[derive(Debug)]
pub(super) struct Turns {
    /// The session that computed a chunk last.
    last_chunk: u64,
    /// Seconds of background work that are allowed while a foreground session is active.
    credit: f64,
    /// Running means in seconds: of passes by their number of sequences, and (`chunk_token`) of one
    /// token of a chunk.
    passes: [Option<f64>; SIZES],
    /// Number of passes so far and seconds of the fastest recent pass, by number of sequences. The
    /// fastest pass counts, because disturbances only make passes slower.
    quickest: [(usize, f64); SIZES],
    chunk_token: Option<f64>,
    /// Turns until sequences are computed together again.
    apart: usize,
}

impl Default for Turns {
    fn default() -> Self {
        Turns {
            last_chunk: 0,
            credit: 0.0,
            passes: [None; SIZES],
            quickest: [(0, 0.0); SIZES],
            chunk_token: None,
            apart: 0,
        }
    }
}

impl Turns {
    /// Chooses the next turn. `sparse` is true if a pass of several sequences reads more weights
    /// than a pass of one. Computing them one by one may then be faster.
    pub fn next(&mut self, candidates: &[TurnCandidate], sparse: bool) -> Turn {
        let is = |priority, work| move |it: &&TurnCandidate| it.priority == priority && it.work == work;
        let some = |priority, work| candidates.iter().any(|it| is(priority, work)(&it));
        let (front, back) = (Priority::Foreground, Priority::Background);
        let is_front = some(front, SessionWork::Token) || some(front, SessionWork::Chunk);
        let front_tokens = candidates.iter().filter(is(front, SessionWork::Token)).count();
        // Protecting the foreground's speed requires knowing its time alone.
        let known = front_tokens == 0 || self.pass(front_tokens).is_some();
        let with_back = !is_front || (self.credit > 0.0 && known);
        let takes_part = |it: &&TurnCandidate| it.priority == front || with_back;
        let tokens = candidates.iter().filter(|it| it.work == SessionWork::Token).filter(takes_part);
        let tokens: Vec<usize> = tokens.map(|it| it.at).collect();
        let of_rank = |rank| self.next_chunk(candidates.iter().filter(is(rank, SessionWork::Chunk)));
        let chunk = of_rank(front).or_else(|| of_rank(back).filter(|_| with_back));
        // Waiting tokens limit the length of the chunk.
        let due = match (front_tokens > 0, candidates.iter().any(|it| it.work == SessionWork::Token)) {
            (true, _) => self.chunk_within(FOREGROUND_CHUNK_SECONDS),
            (false, true) => self.chunk_within(CHUNK_SECONDS),
            (false, false) if is_front && chunk.is_some_and(|it| it.priority == back) => {
                self.chunk_within(FOREGROUND_CHUNK_SECONDS)
            }
            (false, false) => usize::MAX,
        };
        if let Some(chunk) = chunk {
            self.last_chunk = chunk.id;
        }
        Turn {
            together: tokens.len() > 1 && (!sparse || self.pays(tokens.len())),
            foreground: front_tokens > 0,
            background: with_back && some(back, SessionWork::Token),
            chunk_in_foreground: chunk.is_some_and(|it| it.priority == front),
            chunk: chunk.map(|it| (it.at, due)),
            tokens,
        }
    }

    /// The session whose chunk is next: the one with the next higher number after the last one.
    fn next_chunk<'c>(&self, candidates: impl Iterator<Item = &'c TurnCandidate>) -> Option<&'c TurnCandidate> {
        let last = self.last_chunk;
        candidates.min_by_key(|it| (it.id <= last, it.id))
    }

    /// Number of tokens of a chunk that takes about `seconds`.
    fn chunk_within(&self, seconds: f64) -> usize {
        let tokens = self.chunk_token.map_or(2 * CHUNK_MULTIPLE, |each| (seconds / each.max(1e-9)).min(1e6) as usize);
        (tokens / CHUNK_MULTIPLE).max(1) * CHUNK_MULTIPLE
    }

    fn pass(&self, sequences: usize) -> Option<f64> {
        self.passes.get(sequences).copied().flatten()
    }

    /// True unless a pass of `sequences` takes longer than one pass for each of them.
    fn pays(&mut self, sequences: usize) -> bool {
        if self.apart > 0 {
            self.apart -= 1;
            // The last of these turns tries again.
            return self.apart == 0;
        }
        // The first passes of a size are slower, because they allocate.
        let quickest = |n: usize| self.quickest.get(n).filter(|(passes, _)| *passes >= TRIALS).map(|(_, time)| *time);
        let (Some(one), Some(all)) = (quickest(1), quickest(sequences)) else { return true };
        if all > one * sequences as f64 {
            self.apart = RETRY;
            return false;
        }
        true
    }

    /// Records that a pass of `sequences` took `time`.
    pub fn note_pass(&mut self, sequences: usize, time: Duration) {
        if let Some(mean) = self.passes.get_mut(sequences) {
            *mean = Some(running(*mean, time.as_secs_f64()));
        }
        if let Some((passes, quickest)) = self.quickest.get_mut(sequences) {
            let time = time.as_secs_f64();
            *quickest = if *passes == 0 { time } else { time.min(*quickest * (1.0 + FORGETTING)) };
            *passes += 1;
        }
    }

    /// Records that a chunk of `tokens` tokens took `time`.
    pub fn note_chunk(&mut self, tokens: usize, time: Duration) {
        if tokens > 0 {
            self.chunk_token = Some(running(self.chunk_token, time.as_secs_f64() / tokens as f64));
        }
    }

    /// Records that the tokens of `turn` took `tokens` and its chunk `chunk`. `front` is the number
    /// of its foreground sequences.
    pub fn note_turn(&mut self, turn: &Turn, front: usize, tokens: Duration, chunk: Duration) {
        let (tokens, chunk) = (tokens.as_secs_f64(), chunk.as_secs_f64());
        if !turn.foreground && !turn.chunk_in_foreground {
            // Without a foreground no debt accrues, but an existing debt stays between two
            // foreground tokens.
            self.credit = self.credit.max(-MOST_CREDIT);
            return;
        }
        let own = match (turn.foreground, turn.background) {
            (false, _) => 0.0,
            (true, false) => tokens,
            (true, true) => self.pass(front).unwrap_or(tokens).min(tokens),
        };
        let (own, others) = match turn.chunk_in_foreground {
            true => (own + chunk, tokens - own),
            false => (own, tokens - own + chunk),
        };
        self.credit = (self.credit + EARNED * own - others).min(MOST_CREDIT);
    }
}

fn running(mean: Option<f64>, latest: f64) -> f64 {
    mean.map_or(latest, |mean| mean + LATEST * (latest - mean))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Background, Foreground};

    const MS: f64 = 1e-3;

    fn candidates(all: &[(Priority, SessionWork)]) -> Vec<TurnCandidate> {
        let all = all.iter().enumerate();
        all.map(|(at, (priority, work))| TurnCandidate { at, id: at as u64, priority: *priority, work: *work })
            .collect()
    }

    /// Simulates `seconds` of turns. A pass of n sequences takes `10 + 3 n` ms, and a chunk 1 ms
    /// per token. Returns each session's tokens and the longest time between two of them.
    fn simulate(all: &[(Priority, SessionWork)], seconds: f64) -> (Vec<usize>, Vec<f64>) {
        let all = candidates(all);
        let (mut turns, mut now) = (Turns::default(), 0.0);
        let (mut done, mut last, mut gaps) = (vec![0; all.len()], vec![0.0; all.len()], vec![0.0f64; all.len()]);
        while now < seconds {
            let turn = turns.next(&all, false);
            assert!(!turn.tokens.is_empty() || turn.chunk.is_some());
            let pass = if turn.tokens.is_empty() { 0.0 } else { (10 + 3 * turn.tokens.len()) as f64 * MS };
            now += pass;
            turn.tokens.iter().for_each(|at| {
                done[*at] += 1;
                gaps[*at] = gaps[*at].max(now - last[*at]);
                last[*at] = now;
            });
            let chunk = turn.chunk.map_or(0, |(_, most)| most.min(512));
            now += chunk as f64 * MS;
            if let Some((at, _)) = turn.chunk {
                done[at] += chunk;
            }
            turns.note_pass(turn.tokens.len(), Duration::from_secs_f64(pass));
            turns.note_chunk(chunk, Duration::from_secs_f64(chunk as f64 * MS));
            let front = turn.tokens.iter().filter(|at| all[**at].priority == Foreground).count();
            let times = [pass, chunk as f64 * MS].map(Duration::from_secs_f64);
            turns.note_turn(&turn, front, times[0], times[1]);
        }
        (done, gaps)
    }

    #[test]
    fn equal_sessions_decode_together_and_at_the_same_rate() {
        let (done, _) = simulate(&[(Foreground, SessionWork::Token); 8], 10.0);
        assert!(done.iter().all(|n| *n == done[0]) && done[0] as f64 > 0.95 * 10.0 / (34.0 * MS), "{done:?}");
    }

    #[test]
    fn prompts_advance_in_turn_and_never_stop_tokens_for_more_than_a_chunk() {
        let all =
            [(Background, SessionWork::Token), (Background, SessionWork::Chunk), (Background, SessionWork::Chunk)];
        let (done, gaps) = simulate(&all, 20.0);
        assert!(gaps[0] < CHUNK_SECONDS + 2.0 * 13.0 * MS, "{gaps:?}");
        assert!(done[1] > 6000 && done[1].abs_diff(done[2]) <= 512, "{done:?}");
    }

    #[test]
    fn the_foreground_keeps_four_fifths_of_its_speed_and_the_background_is_not_starved() {
        let alone = 20.0 / (13.0 * MS);
        for back in [SessionWork::Token, SessionWork::Chunk] {
            let (done, gaps) =
                simulate(&[(Foreground, SessionWork::Token), (Background, back), (Background, back)], 20.0);
            assert!(done[0] as f64 >= 0.79 * alone, "{back:?} {done:?} of {alone}");
            assert!(done[1] > 100 && done[2] > 100, "{done:?}");
            assert!(gaps[0] < FOREGROUND_CHUNK_SECONDS + 0.05, "{gaps:?}");
        }
        // A foreground prompt keeps its share too: alone it takes 1 ms per token.
        let (done, _) = simulate(&[(Foreground, SessionWork::Chunk), (Background, SessionWork::Token)], 20.0);
        assert!(done[0] as f64 >= 0.79 * 20.0 / MS && done[1] > 90, "{done:?}");
    }

    #[test]
    fn sparse_passes_that_take_longer_together_are_taken_apart_and_tried_again() {
        let all = candidates(&[(Background, SessionWork::Token); 4]);
        let mut turns = Turns::default();
        let note = |turns: &mut Turns, n: usize, ms: u64| turns.note_pass(n, Duration::from_millis(ms));
        (0..TRIALS).for_each(|_| note(&mut turns, 1, 5));
        for _ in 0..TRIALS {
            assert!(turns.next(&all, true).together);
            note(&mut turns, 4, 30);
        }
        assert!(!turns.next(&all, true).together && turns.next(&all, false).together);
        let again = (0..2 * RETRY).find(|_| turns.next(&all, true).together);
        assert_eq!(again, Some(RETRY - 1));
        assert!(!turns.next(&all, true).together);
    }

    #[test]
    fn sparse_passes_that_were_disturbed_stay_together() {
        let all = candidates(&[(Background, SessionWork::Token); 4]);
        let mut turns = Turns::default();
        for pass in 0..100 {
            turns.note_pass(1, Duration::from_millis(5));
            assert!(turns.next(&all, true).together, "pass {pass}");
            turns.note_pass(4, Duration::from_millis(if pass % 3 == 0 { 90 } else { 15 }));
        }
    }
}
