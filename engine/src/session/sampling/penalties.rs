//! Penalties on repeated tokens: repetition, presence and frequency, and DRY ("don't repeat
//! yourself"). DRY penalises tokens that would continue a repetition.

use std::collections::HashMap;

/// Lowers the logits of recent tokens. For `n` occurrences among the last `last_n` tokens,
/// `l' = (l > 0 ? l / repeat : l * repeat) - n * frequency - presence` (repetition: Keskar et al.
/// 2019; the others: OpenAI's API).
#[derive(Debug)]
pub(super) struct Penalties {
    pub repeat: f32,
    pub presence: f32,
    pub frequency: f32,
    pub last_n: usize,
    /// Occurrences per token id; all zero between calls.
    counts: Vec<u32>,
}

impl Penalties {
    pub fn new(repeat: f32, presence: f32, frequency: f32, last_n: usize) -> Self {
        Penalties { repeat, presence, frequency, last_n, counts: Vec::new() }
    }

    /// True if the penalties change any logit.
    pub fn is_active(&self) -> bool {
        self.last_n > 0 && (self.repeat != 1.0 || self.presence != 0.0 || self.frequency != 0.0)
    }

    /// True if the penalties may raise a logit.
    pub fn may_raise(&self) -> bool {
        self.is_active() && (self.repeat < 1.0 || self.presence < 0.0 || self.frequency < 0.0)
    }

    /// Applies the penalties to `logits`, `[vocab]`. Unknown ids in `history` are ignored.
    pub fn apply(&mut self, logits: &mut [f32], history: &[u32]) {
        if !self.is_active() {
            return;
        }
        self.counts.resize(logits.len(), 0);
        let recent = &history[history.len() - self.last_n.min(history.len())..];
        for &id in recent {
            if let Some(count) = self.counts.get_mut(id as usize) {
                *count += 1;
            }
        }
        for &id in recent {
            let (Some(count), Some(logit)) = (self.counts.get_mut(id as usize), logits.get_mut(id as usize)) else {
                continue;
            };
            // The first visit takes the count, so that every token is penalised once.
            let occurrences = std::mem::take(count) as f32;
            if occurrences > 0.0 && *logit > f32::NEG_INFINITY {
                let scaled = if *logit > 0.0 { *logit / self.repeat } else { *logit * self.repeat };
                // The clamp keeps a penalty from becoming a ban.
                *logit = (scaled - occurrences * self.frequency - self.presence).clamp(f32::MIN, f32::MAX);
            }
        }
    }
}

/// Strings that end a repetition, as tokens of one vocabulary.
#[derive(Debug, Clone, Default)]
pub struct Breakers {
    /// Tokens whose text contains a breaker; sorted.
    tokens: Vec<u32>,
    /// Tokens whose text ends with the start of a breaker, and the tokens of the breaker's rest.
    sequences: HashMap<u32, Vec<Vec<u32>>>,
}

impl Breakers {
    /// Finds `strings` in a vocabulary of `vocab` tokens. `bytes` returns the text of a token.
    /// `encode` tokenises the rest of a breaker that begins inside a token.
    pub fn new<'v>(
        strings: &[String],
        vocab: usize,
        bytes: impl Fn(u32) -> &'v [u8],
        encode: impl Fn(&str) -> Vec<u32>,
    ) -> Self {
        let mut breakers = Breakers::default();
        for id in 0..u32::try_from(vocab).unwrap_or(u32::MAX) {
            let text = bytes(id);
            let contains = |breaker: &String| text.windows(breaker.len()).any(|part| part == breaker.as_bytes());
            if strings.iter().any(|breaker| !breaker.is_empty() && contains(breaker)) {
                breakers.tokens.push(id);
                continue;
            }
            for breaker in strings {
                for split in (1..breaker.len()).filter(|&at| breaker.is_char_boundary(at)) {
                    let (head, rest) = breaker.split_at(split);
                    let rest = if text.ends_with(head.as_bytes()) { encode(rest) } else { Vec::new() };
                    if !rest.is_empty() {
                        breakers.sequences.entry(id).or_default().push(rest);
                    }
                }
            }
        }
        breakers
    }

    fn is_breaker(&self, id: u32) -> bool {
        self.tokens.binary_search(&id).is_ok()
    }

    /// Number of tokens at the end of `history` after the last breaker.
    fn unbroken(&self, history: &[u32]) -> usize {
        for (start, id) in history.iter().enumerate().rev() {
            if self.is_breaker(*id) {
                return history.len() - start - 1;
            }
            let behind = &history[start + 1..];
            let rests = self.sequences.get(id).into_iter().flatten();
            if let Some(longest) = rests.filter(|rest| behind.starts_with(rest)).map(Vec::len).max() {
                return behind.len() - longest;
            }
        }
        history.len()
    }
}

/// Penalises repetitions. If the last `m >= allowed` tokens occurred before and token `t` followed
/// them, `t` loses `multiplier * base^(m - allowed)`. `m` is the length of the longest such match.
#[derive(Debug)]
pub(super) struct Dry {
    pub multiplier: f32,
    pub base: f32,
    pub allowed: usize,
    pub last_n: usize,
    pub breakers: Breakers,
    /// `matches[i]` is the number of tokens that the reversed history and its tail from `i` share
    /// (Z function).
    matches: Vec<usize>,
    /// Longest match per token id; all zero between calls.
    longest: Vec<usize>,
    /// Tokens that would continue a repetition, and its length.
    found: Vec<(u32, usize)>,
}

impl Dry {
    pub fn new(multiplier: f32, base: f32, allowed: usize, last_n: usize, breakers: Breakers) -> Self {
        Dry { multiplier, base, allowed, last_n, breakers, matches: Vec::new(), longest: Vec::new(), found: Vec::new() }
    }

    /// True if DRY changes any logit.
    pub fn is_active(&self) -> bool {
        self.multiplier > 0.0 && self.last_n > 0
    }

    /// Applies DRY to `logits`, `[vocab]`, in time linear in the considered history.
    pub fn apply(&mut self, logits: &mut [f32], history: &[u32]) {
        let (multiplier, base, allowed) = (f64::from(self.multiplier), self.base, self.allowed);
        for &(id, length) in self.find(logits.len(), history) {
            if let Some(logit) = logits.get_mut(id as usize).filter(|logit| **logit > f32::NEG_INFINITY) {
                let penalty = power(base, length - allowed.min(length)) * multiplier;
                *logit = (f64::from(*logit) - penalty).clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32;
            }
        }
    }

    /// Every token below `vocab` that would continue a repetition in `history`, with the
    /// repetition's length.
    pub fn find(&mut self, vocab: usize, history: &[u32]) -> &[(u32, usize)] {
        self.found.clear();
        if !self.is_active() {
            return &self.found;
        }
        let recent = &history[history.len() - self.last_n.min(history.len())..];
        let limit = self.breakers.unbroken(recent);
        // A match of zero tokens is no repetition, even if `allowed` is 0.
        let allowed = self.allowed.max(1);
        if limit < allowed {
            return &self.found;
        }
        let n = recent.len();
        let reversed = |at: usize| recent[n - 1 - at];
        self.match_lengths(recent);
        self.longest.resize(vocab, 0);
        for at in 1..n {
            let length = self.matches[at].min(limit);
            let next = reversed(at - 1);
            if length >= allowed
                && !self.breakers.is_breaker(next)
                && let Some(longest) = self.longest.get_mut(next as usize)
            {
                *longest = length.max(*longest);
            }
        }
        for at in 1..n {
            let next = reversed(at - 1);
            // The first visit takes the length, so that every token is found once.
            let length = self.longest.get_mut(next as usize).map_or(0, std::mem::take);
            if length > 0 {
                self.found.push((next, length));
            }
        }
        &self.found
    }

    /// The Z function of `recent` read backwards (Gusfield 1997).
    fn match_lengths(&mut self, recent: &[u32]) {
        let n = recent.len();
        let reversed = |at: usize| recent[n - 1 - at];
        self.matches.clear();
        self.matches.resize(n, 0);
        let (mut left, mut right) = (0, 0);
        for at in 1..n {
            let mut length = if at < right { self.matches[at - left].min(right - at) } else { 0 };
            while at + length < n && reversed(length) == reversed(at + length) {
                length += 1;
            }
            self.matches[at] = length;
            if at + length > right {
                (left, right) = (at, at + length);
            }
        }
    }
}

/// `base^exponent` by plain multiplication, which gives the same bits everywhere. It stops growing
/// at the largest `f32`.
fn power(base: f32, exponent: usize) -> f64 {
    let base = f64::from(base);
    let mut result = 1.0;
    for _ in 0..exponent {
        result *= base;
        if result >= f64::from(f32::MAX) || base == 1.0 {
            break;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn penalties_match_their_formula(
            logits in prop::collection::vec(-9.0f32..9.0, 20),
            history in prop::collection::vec(0u32..24, 0..60),
            repeat in 0.5f32..2.0, presence in -2.0f32..2.0, frequency in -1.0f32..1.0, last_n in 0usize..80,
        ) {
            let mut penalties = Penalties::new(repeat, presence, frequency, last_n);
            let mut got = logits.clone();
            penalties.apply(&mut got, &history);
            let mut counts = HashMap::new();
            for id in history.iter().rev().take(last_n) {
                *counts.entry(*id as usize).or_insert(0.0f64) += 1.0;
            }
            for (id, (got, logit)) in got.iter().zip(&logits).enumerate() {
                let mut want = f64::from(*logit);
                if let Some(n) = counts.get(&id) {
                    want = if want > 0.0 { want / f64::from(repeat) } else { want * f64::from(repeat) };
                    want -= n * f64::from(frequency) + f64::from(presence);
                }
                prop_assert!((f64::from(*got) - want).abs() < 1e-4, "token {id}: {got}, not {want}");
            }
            // The counts are zero again, so a second call gives the same result.
            let mut again = logits.clone();
            penalties.apply(&mut again, &history);
            prop_assert_eq!(got, again);
        }
    }

    #[test]
    fn penalties_keep_logits_finite_and_bans() {
        let mut penalties = Penalties::new(f32::MAX, 3.0, 3.0, usize::MAX);
        let mut logits = [-5.0, f32::NEG_INFINITY, 1.0];
        penalties.apply(&mut logits, &[0, 1, 1, 0]);
        assert_eq!(logits, [f32::MIN, f32::NEG_INFINITY, 1.0]);
    }

    const FREE: fn() -> Breakers = Breakers::default;

    /// Follows the definition: extends every earlier position backwards, token by token.
    fn oracle(dry: &Dry, vocab: usize, history: &[u32]) -> Vec<f64> {
        let recent = &history[history.len() - dry.last_n.min(history.len())..];
        let mut penalties = vec![0.0; vocab];
        for next in 1..recent.len() {
            let mut length = 0;
            while length < next {
                let (earlier, now) = (recent[next - 1 - length], recent[recent.len() - 1 - length]);
                if earlier != now || dry.breakers.is_breaker(now) {
                    break;
                }
                length += 1;
            }
            let token = recent[next] as usize;
            if length >= dry.allowed.max(1) && !dry.breakers.is_breaker(recent[next]) && token < vocab {
                let exponent = (length - dry.allowed.min(length)) as i32;
                let penalty = f64::from(dry.multiplier) * f64::from(dry.base).powi(exponent);
                penalties[token] = penalty.max(penalties[token]);
            }
        }
        penalties
    }

    proptest! {
        #[test]
        fn dry_penalties_match_their_definition(
            history in prop::collection::vec(0u32..5, 0..120),
            allowed in 0usize..5, last_n in 1usize..150, breaker in 0u32..9,
        ) {
            let breakers = Breakers { tokens: vec![breaker], ..Breakers::default() };
            let mut dry = Dry::new(0.8, 1.1, allowed, last_n, breakers);
            for _ in 0..2 {
                let mut logits = vec![0.0f32; 4];
                dry.apply(&mut logits, &history);
                for (got, want) in logits.iter().zip(oracle(&dry, 4, &history)) {
                    let want = want.min(f64::from(f32::MAX));
                    prop_assert!((f64::from(-got) - want).abs() <= 1e-4 * want.max(1.0), "{got} for {want}");
                }
            }
        }
    }

    #[test]
    fn dry_penalty_grows_with_the_length_of_the_repeat() {
        let mut dry = Dry::new(1.0, 2.0, 2, usize::MAX, FREE());
        let mut logits = vec![0.0; 10];
        dry.apply(&mut logits, &[1, 2, 3, 4, 5, 9, 1, 2, 3, 4]);
        assert_eq!(logits, [0.0, 0.0, 0.0, 0.0, 0.0, -4.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn long_repeats_stay_finite() {
        let mut dry = Dry::new(5.0, 1.75, 0, usize::MAX, FREE());
        let mut logits = vec![1.0, -1.0];
        dry.apply(&mut logits, &vec![1; 20_000]);
        assert_eq!(logits, [1.0, f32::MIN]);
    }

    #[test]
    fn breakers_are_found_inside_and_across_tokens() {
        let vocab = ["a", "b", "\n", ".\n", "end", "<", "|", "x<", "|>"];
        let bytes = |id: u32| vocab.get(id as usize).map_or(&[][..], |text| text.as_bytes());
        let encode = |text: &str| -> Vec<u32> {
            if let Some(at) = vocab.iter().position(|token| *token == text) {
                return vec![at as u32];
            }
            text.chars().map(|c| vocab.iter().position(|token| *token == c.to_string()).unwrap() as u32).collect()
        };
        let breakers = Breakers::new(&["\n".to_owned(), "<|".to_owned(), String::new()], 9, bytes, encode);
        assert_eq!(breakers.tokens, [2, 3]);
        assert_eq!(breakers.unbroken(&[0, 1, 0]), 3);
        assert_eq!(breakers.unbroken(&[0, 3, 0]), 1);
        assert_eq!(breakers.unbroken(&[0, 7, 6, 0, 1]), 2);
        assert_eq!(breakers.unbroken(&[0, 5, 0, 1]), 4);
        assert_eq!(breakers.unbroken(&[]), 0);
    }
}
