//! Speculative decoding by prompt lookup. If the latest tokens occurred before, the tokens that
//! followed them then are drafted and computed together with the next token in one pass. The
//! sampler draws tokens as usual, and drafts that it does not draw are dropped. A controller stops
//! drafting if longer passes do not pay.

use std::{collections::HashMap, time::Duration};

/// Number of consecutive tokens that must have occurred before.
const GRAM: usize = 3;
/// Largest number of tokens in a draft, and the number in the first draft.
const MOST: usize = 16;
const FIRST: usize = 3;
/// Weight of the latest pass in running means.
const LATEST: f64 = 0.25;
/// Number of passes with drafts before they are judged, and of tokens decoded without drafts after
/// they did not pay. Each failure in a row doubles the pause.
const TRIAL: usize = 2;
const PAUSE: usize = 16;
const LONGEST_PAUSE: usize = 512;

/// Drafts of one generation.
#[derive(Debug, Default)]
pub(super) struct PromptLookup {
    /// The prompt and all tokens since.
    history: Vec<u32>,
    /// The position after each gram's latest occurrence, without the gram that ends the history.
    behind: HashMap<[u32; GRAM], usize>,
    /// Number of tokens in the next draft.
    width: usize,
    /// Seconds of a pass of one token, as a running mean.
    single: Option<f64>,
    /// Tokens per second with drafts divided by those without, as a running mean over `passes` in a
    /// row.
    gain: f64,
    passes: usize,
    /// Decoded tokens until drafts are tried again, and the length of the next pause.
    paused: usize,
    pause: usize,
}

impl PromptLookup {
    /// Creates a lookup without drafts, for a generation from `prompt`.
    pub fn new(prompt: &[u32]) -> Self {
        let mut speculation = PromptLookup { width: FIRST, pause: PAUSE, ..PromptLookup::default() };
        prompt.iter().for_each(|id| speculation.push(*id));
        speculation
    }

    /// Appends `id` to the history.
    pub fn push(&mut self, id: u32) {
        if let Some(gram) = self.history.last_chunk() {
            self.behind.insert(*gram, self.history.len());
        }
        self.history.push(id);
    }

    /// Appends at most `room` drafted tokens to `draft`. It drafts none if the latest tokens did
    /// not occur before, or if drafts have not paid.
    pub fn draft(&mut self, room: usize, draft: &mut Vec<u32>) {
        if self.paused > 0 {
            self.paused -= 1;
            return;
        }
        // Judging a draft pass requires the time of a pass of one token.
        let (Some(gram), Some(_)) = (self.history.last_chunk(), self.single) else { return };
        let Some(from) = self.behind.get(gram).copied() else { return };
        for at in from..from + self.width.min(room) {
            // A repeat that overlaps its own beginning continues with itself.
            let id = match self.history.get(at) {
                Some(id) => *id,
                None => draft[draft.len() - (self.history.len() - from)],
            };
            draft.push(id);
        }
    }

    /// Records that a pass of one token took `time`.
    pub fn note_single(&mut self, time: Duration) {
        let time = time.as_secs_f64();
        self.single = Some(self.single.map_or(time, |mean| mean + LATEST * (time - mean)));
    }

    /// Records that a pass of a token and `drafted` drafts took `time`, and that `accepted` of the
    /// drafts were drawn.
    pub fn note_draft(&mut self, drafted: usize, accepted: usize, time: Duration) {
        self.width = if accepted == drafted { (2 * drafted).min(MOST) } else { (accepted + 1).max(2) };
        let Some(single) = self.single else { return };
        let gain = (1 + accepted) as f64 * single / time.as_secs_f64().max(1e-9);
        self.gain = if self.passes == 0 { gain } else { self.gain + LATEST * (gain - self.gain) };
        self.passes += 1;
        if self.passes < TRIAL {
            return;
        }
        if self.gain < 1.0 {
            (self.paused, self.passes) = (self.pause, 0);
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        } else {
            self.pause = PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A speculation that may draft.
    fn ready(prompt: &[u32]) -> PromptLookup {
        let mut speculation = PromptLookup::new(prompt);
        speculation.note_single(10 * MS);
        speculation
    }

    fn draft(speculation: &mut PromptLookup, room: usize) -> Vec<u32> {
        let mut draft = Vec::new();
        speculation.draft(room, &mut draft);
        draft
    }

    #[test]
    fn drafts_follow_the_latest_occurrence_of_the_last_tokens() {
        let mut speculation = ready(&[1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 7, 1, 2, 3]);
        assert_eq!(draft(&mut speculation, 8), [5, 6, 7]);
        assert_eq!(draft(&mut speculation, 2), [5, 6]);
        assert!(draft(&mut speculation, 0).is_empty());
        speculation.push(8);
        assert!(draft(&mut speculation, 8).is_empty());
        (1..=3).for_each(|id| speculation.push(id));
        assert_eq!(draft(&mut speculation, 8), [8, 1, 2]);
    }

    #[test]
    fn drafts_of_a_short_period_go_on_with_themselves() {
        let mut speculation = ready(&[7, 7, 7, 7]);
        assert_eq!(draft(&mut speculation, 8), [7; 3]);
        let mut speculation = ready(&[1, 2, 1, 2, 1, 2]);
        speculation.note_draft(8, 8, 10 * MS);
        assert_eq!(draft(&mut speculation, 5), [1, 2, 1, 2, 1]);
    }

    #[test]
    fn short_histories_and_unknown_times_have_no_drafts() {
        assert!(draft(&mut ready(&[]), 8).is_empty());
        assert!(draft(&mut ready(&[1, 1]), 8).is_empty());
        assert!(draft(&mut PromptLookup::new(&[1, 1, 1, 1, 1]), 8).is_empty());
    }

    #[test]
    fn draft_width_follows_acceptance() {
        let mut speculation = ready(&[7; 10]);
        for wanted in [3, 6, 12, 16, 16] {
            let drafted = draft(&mut speculation, 100).len();
            assert_eq!(drafted, wanted);
            speculation.note_draft(drafted, drafted, 12 * MS);
        }
        speculation.note_draft(16, 4, 12 * MS);
        assert_eq!(draft(&mut speculation, 100).len(), 5);
        speculation.note_draft(5, 0, 12 * MS);
        assert_eq!(draft(&mut speculation, 100).len(), 2);
    }

    /// The lookup loses less than 3 % of the time if no draft is ever accepted and a longer pass
    /// costs twice as much.
    #[test]
    fn drafts_that_do_not_pay_cost_little() {
        let mut speculation = ready(&[7; 10]);
        let (mut spent, tokens) = (Duration::ZERO, 2000);
        for _ in 0..tokens {
            let drafted = draft(&mut speculation, 100).len();
            let time = if drafted > 0 { 20 * MS } else { 10 * MS };
            match drafted {
                0 => speculation.note_single(time),
                drafted => speculation.note_draft(drafted, 0, time),
            }
            spent += time;
        }
        let ratio = (10 * MS * tokens).as_secs_f64() / spent.as_secs_f64();
        assert!(ratio >= 0.97, "{ratio}");
    }

    /// Drafts resume once they pay, after a stretch in which they did not.
    #[test]
    fn drafts_that_pay_again_are_kept() {
        let mut speculation = ready(&[7; 10]);
        let mut gained = 0;
        for step in 0..1000 {
            let drafted = draft(&mut speculation, 100).len();
            if drafted > 0 {
                let accepted = if step < 40 { 0 } else { drafted };
                speculation.note_draft(drafted, accepted, 15 * MS);
                gained += accepted;
            }
        }
        assert!(gained > 10_000, "{gained}");
    }
}
