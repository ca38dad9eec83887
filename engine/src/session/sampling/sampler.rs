//! The sampler: runs the chain of adjustments and filters, and draws.

use rand_chacha::{
    ChaCha12Rng,
    rand_core::{Rng, SeedableRng},
};

use super::{
    candidates::Candidates,
    penalties::{Breakers, Dry, Penalties},
};
use crate::session::Sampling;
use thermocline_base::error::{Error, Result};
use thermocline_run::runtime::{MAX_SHORTLIST, Shortlist, check_logits};

/// Chooses tokens for one generation.
#[derive(Debug)]
pub struct Sampler {
    vocab: usize,
    sampling: Sampling,
    penalties: Penalties,
    dry: Dry,
    seed: u64,
    rng: ChaCha12Rng,
    /// Logits after bias, penalties and DRY.
    adjusted: Vec<f32>,
    /// The tokens before the one to choose.
    history: Vec<u32>,
    /// Tokens whose logits bias, penalties and DRY change; sorted.
    changed: Vec<u32>,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler for a vocabulary of `vocab` tokens. `breakers` are `sampling.dry_breakers` in that
    /// vocabulary, and only matter if DRY is on.
    ///
    /// [`Error::Invalid`] for a parameter outside its domain.
    pub fn new(sampling: &Sampling, vocab: usize, breakers: Breakers) -> Result<Self> {
        sampling.validate(vocab)?;
        let s = sampling;
        let seed = s.seed.unwrap_or_else(rand::random);
        Ok(Sampler {
            vocab,
            sampling: s.clone(),
            penalties: Penalties::new(s.repeat_penalty, s.presence_penalty, s.frequency_penalty, s.penalty_last_n),
            dry: Dry::new(s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_last_n, breakers),
            seed,
            rng: ChaCha12Rng::seed_from_u64(seed),
            adjusted: Vec::new(),
            history: Vec::new(),
            changed: Vec::new(),
            candidates: Candidates::default(),
        })
    }

    /// The seed in use, whether given or drawn.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Chooses a token from `logits`, `[vocab]`, after `history` (oldest first, prompt included).
    ///
    /// A logit that is not a number counts as banned, and `+inf` as the largest finite logit.
    /// [`Error::Invalid`] if every token is banned, [`Error::NotFinite`] if no logit is a number.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32> {
        let chosen = if self.sampling.logit_bias.is_empty() && !self.penalties.is_active() && !self.dry.is_active() {
            self.choose(logits)
        } else {
            self.adjusted.clear();
            self.adjusted.extend_from_slice(logits);
            self.choose_adjusted(history)
        };
        chosen.ok_or_else(|| no_token(logits))
    }

    /// Number of the largest logits that suffice to choose the token after `held` and `next`
    /// exactly. `None` if more than [`MAX_SHORTLIST`] may be needed.
    ///
    /// A chain that begins with top-k needs only the `k` largest logits. Bias, penalties and DRY
    /// come before it. If they only lower `n` logits, at most `n` other tokens enter the first `k`.
    /// A raised logit may come from anywhere.
    pub fn shortlist(&mut self, held: &[u32], next: &[u32]) -> Option<usize> {
        if self.vocab <= MAX_SHORTLIST {
            return Some(self.vocab);
        }
        let k = if self.sampling.temperature == 0.0 { 1 } else { self.sampling.top_k };
        let raises = self.penalties.may_raise() || self.sampling.logit_bias.iter().any(|(_, bias)| *bias > 0.0);
        if k == 0 || k > MAX_SHORTLIST || raises {
            return None;
        }
        self.changed.clear();
        let Sampler { changed, history, .. } = self;
        let mut change = |id: u32| {
            if let Err(at) = changed.binary_search(&id) {
                changed.insert(at, id);
            }
            k + changed.len() <= MAX_SHORTLIST
        };
        let mut fits = self.sampling.logit_bias.iter().all(|(id, _)| change(*id));
        if self.penalties.is_active() {
            fits = fits && held.iter().chain(next).rev().take(self.penalties.last_n).all(|id| change(*id));
        }
        if fits && self.dry.is_active() {
            history.clear();
            history.extend(held.iter().chain(next));
            fits = self.dry.find(self.vocab, history).iter().all(|(id, _)| change(*id));
        }
        fits.then(|| k + self.changed.len())
    }

    /// Chooses as [`Sampler::sample`] does, from the [`Sampler::shortlist`] largest logits.
    pub fn sample_from(&mut self, shortlist: Shortlist<'_>, history: &[u32]) -> Result<u32> {
        self.adjusted.clear();
        self.adjusted.resize(self.vocab, f32::NEG_INFINITY);
        for (id, value) in shortlist.ids.iter().zip(shortlist.logits) {
            if let Some(logit) = self.adjusted.get_mut(*id as usize) {
                *logit = *value;
            }
        }
        self.choose_adjusted(history).ok_or_else(|| no_token(shortlist.logits))
    }

    /// Chooses from `adjusted` after bias, penalties and DRY.
    fn choose_adjusted(&mut self, history: &[u32]) -> Option<u32> {
        let mut logits = std::mem::take(&mut self.adjusted);
        for &(id, bias) in &self.sampling.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                // `min` would turn NaN into a number.
                *logit = if *logit == f32::INFINITY { f32::MAX } else { *logit } + bias;
            }
        }
        self.penalties.apply(&mut logits, history);
        self.dry.apply(&mut logits, history);
        let chosen = self.choose(&logits);
        self.adjusted = logits;
        chosen
    }

    fn choose(&mut self, logits: &[f32]) -> Option<u32> {
        if self.sampling.temperature == 0.0 {
            return argmax(logits);
        }
        match self.sampling.top_k {
            0 => self.candidates.collect(logits),
            k => self.candidates.collect_top_k(logits, k),
        }
        if self.candidates.is_empty() {
            return None;
        }
        self.candidates.typical(self.sampling.typical_p);
        self.candidates.top_p(self.sampling.top_p);
        self.candidates.min_p(self.sampling.min_p);
        // Uses 53 bits: the doubles in 0..1 that are multiples of 2^-53, uniformly.
        let uniform = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        self.candidates.draw(self.sampling.temperature, uniform)
    }
}

/// The error if no token can be chosen. It is the model's fault if no logit is a number, else the
/// caller's, who banned all tokens.
fn no_token(logits: &[f32]) -> Error {
    match check_logits(logits) {
        Err(error) => error,
        Ok(()) => {
            Error::invalid("logits", "a token that is not banned", format!("no such token among {}", logits.len()))
        }
    }
}

/// The token with the largest logit; ties go to the lowest id. `None` if all are `-inf` or not a
/// number.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    // Value first, position second: the first loop has no dependency between lanes and vectorises.
    let mut lanes = [f32::NEG_INFINITY; 16];
    for chunk in logits.chunks(lanes.len()) {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    let max = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let place = logits.iter().position(|&logit| logit == max && logit > f32::NEG_INFINITY)?;
    u32::try_from(place).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OFF: fn() -> Sampling = || Sampling {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        typical_p: 1.0,
        seed: Some(7),
        ..Sampling::default()
    };

    fn sampler(sampling: &Sampling, vocab: usize) -> Sampler {
        Sampler::new(sampling, vocab, Breakers::default()).unwrap()
    }

    /// Logits of a large vocabulary, the same on every run.
    fn wide_logits(vocab: u32) -> Vec<f32> {
        (0..vocab).map(|id| (id.wrapping_mul(2_654_435_761) >> 16) as f32 / 6554.0).collect()
    }

    /// Pearson's statistic of 40,000 draws against `want` (probabilities by id).
    fn chi_square(sampling: &Sampling, logits: &[f32], want: &[f64]) -> f64 {
        const DRAWS: usize = 40_000;
        let mut sampler = sampler(sampling, logits.len());
        let mut counts = vec![0usize; logits.len()];
        for _ in 0..DRAWS {
            counts[sampler.sample(logits, &[]).unwrap() as usize] += 1;
        }
        let mut statistic = 0.0;
        for (count, p) in counts.iter().zip(want) {
            let expected = p * DRAWS as f64;
            if expected == 0.0 {
                assert_eq!(*count, 0, "a token that was filtered out was drawn");
            } else {
                statistic += (*count as f64 - expected).powi(2) / expected;
            }
        }
        statistic
    }

    fn normalised(weights: &[f64]) -> Vec<f64> {
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    #[test]
    fn draws_follow_the_distribution() {
        // Probabilities are 0.4, 0.3, 0.15, 0.1, 0.05. The bound is the 99.99 % quantile of
        // chi-square with 4 degrees of freedom.
        let p = [0.1, 0.4, 0.05, 0.15, 0.3];
        let logits: Vec<f32> = p.iter().map(|p: &f64| p.ln() as f32 + 2.0).collect();
        let cases: [(Sampling, [f64; 5]); 6] = [
            (OFF(), p),
            (Sampling { top_k: 3, ..OFF() }, [0.0, 0.4, 0.0, 0.15, 0.3]),
            (Sampling { top_p: 0.75, ..OFF() }, [0.0, 0.4, 0.0, 0.15, 0.3]),
            (Sampling { min_p: 0.3, ..OFF() }, [0.0, 0.4, 0.0, 0.15, 0.3]),
            (Sampling { temperature: 0.5, ..OFF() }, p.map(|p| p * p)),
            (Sampling { temperature: 2.0, min_p: 0.2, ..OFF() }, [0.1, 0.4, 0.0, 0.15, 0.3].map(f64::sqrt)),
        ];
        for (sampling, want) in cases {
            for seed in [1, 2, 3] {
                let statistic =
                    chi_square(&Sampling { seed: Some(seed), ..sampling.clone() }, &logits, &normalised(&want));
                assert!(statistic < 23.5, "chi-square {statistic} with {sampling:?}");
            }
        }
    }

    #[test]
    fn same_seed_same_tokens_and_other_seed_others() {
        let logits = wide_logits(50_000);
        let run = |seed| {
            let mut sampler = sampler(&Sampling { seed: Some(seed), ..Sampling::default() }, logits.len());
            assert_eq!(sampler.seed(), seed);
            (0..40).map(|_| sampler.sample(&logits, &[]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(11), run(11));
        assert_ne!(run(11), run(12));
    }

    #[test]
    fn tokens_of_a_seed_are_fixed_for_all_platforms() {
        let logits = wide_logits(1000);
        let mut plain = sampler(&Sampling { seed: Some(42), ..OFF() }, logits.len());
        let tokens: Vec<u32> = (0..6).map(|_| plain.sample(&logits, &[]).unwrap()).collect();
        let mut filtered = sampler(&Sampling { seed: Some(42), ..Sampling::default() }, logits.len());
        let filtered: Vec<u32> = (0..6).map(|_| filtered.sample(&logits, &[]).unwrap()).collect();
        assert_eq!(tokens, [524, 542, 639, 406, 40, 419]);
        assert_eq!(filtered, [487, 864, 21, 953, 377, 953]);
    }

    #[test]
    fn unset_seed_is_drawn_and_reported() {
        let one = sampler(&Sampling { seed: None, ..OFF() }, 4).seed();
        let two = sampler(&Sampling { seed: None, ..OFF() }, 4).seed();
        assert_ne!(one, two);
    }

    #[test]
    fn greedy_is_the_first_maximum() {
        let mut greedy = sampler(&Sampling::greedy(), 4);
        assert_eq!(greedy.sample(&[1.0, 3.0, 3.0, f32::NAN], &[]).unwrap(), 1);
        assert_eq!(greedy.sample(&[f32::NAN, f32::NEG_INFINITY, f32::INFINITY, 9.0], &[]).unwrap(), 2);
        assert_eq!(argmax(&[-0.0, 0.0]), Some(0));
    }

    #[test]
    fn bias_bans_and_favours() {
        let sampling = Sampling { logit_bias: vec![(1, f32::NEG_INFINITY), (0, 5.0)], ..Sampling::greedy() };
        assert_eq!(sampler(&sampling, 3).sample(&[1.0, 9.0, 2.0], &[]).unwrap(), 0);
        let ban = Sampling { logit_bias: vec![(0, f32::NEG_INFINITY)], ..OFF() };
        assert_eq!(sampler(&ban, 2).sample(&[f32::INFINITY, -50.0], &[]).unwrap(), 1);
    }

    #[test]
    fn bias_leaves_nan_logits_unselected() {
        let sampling = Sampling { logit_bias: vec![(0, -1.0)], ..Sampling::greedy() };
        assert_eq!(sampler(&sampling, 2).sample(&[f32::NAN, -9.0], &[]).unwrap(), 1);
    }

    /// The `k` largest of `logits`; ties go to the smaller id.
    fn largest(logits: &[f32], k: usize) -> (Vec<u32>, Vec<f32>) {
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        ids.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        ids.truncate(k);
        let values = ids.iter().map(|id| logits[*id as usize]).collect();
        (ids, values)
    }

    fn settings() -> impl Strategy<Value = Sampling> {
        let draw = (0.0f32..2.0, 0usize..30, 0.3f32..1.0, 0.0f32..0.3, 0.3f32..1.0);
        let penalties = (0.8f32..1.6, -0.3f32..1.0, -0.1f32..0.5, 0usize..40);
        let dry = (0.0f32..1.0, 0usize..4, prop::collection::vec((0u32..200, -3.0f32..0.5), 0..4));
        (draw, penalties, dry, any::<[bool; 6]>(), any::<u64>()).prop_map(|(draw, penalties, dry, on, seed)| {
            let or = |on: bool, value: f32, off: f32| if on { value } else { off };
            Sampling {
                temperature: or(on[0], draw.0, 0.0),
                top_k: draw.1,
                top_p: or(on[1], draw.2, 1.0),
                min_p: or(on[1], draw.3, 0.0),
                typical_p: or(on[2], draw.4, 1.0),
                repeat_penalty: or(on[3], penalties.0, 1.0),
                presence_penalty: or(on[3], penalties.1, 0.0),
                frequency_penalty: or(on[3], penalties.2, 0.0),
                penalty_last_n: penalties.3,
                dry_multiplier: or(on[4], dry.0, 0.0),
                dry_allowed_length: dry.1,
                logit_bias: if on[5] { dry.2 } else { Vec::new() },
                seed: Some(seed),
                ..Sampling::default()
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn shortlist_samples_the_tokens_of_all_logits(
            sampling in settings(),
            // Few distinct values, so that there are ties.
            logits in prop::collection::vec((-20i32..20).prop_map(|x| x as f32 / 4.0), 200),
            // Mostly likely tokens, which are often drawn.
            history in prop::collection::vec(prop_oneof![0u32..12, 0u32..200], 1..60),
        ) {
            let mut ranked = largest(&logits, logits.len()).0;
            ranked.truncate(12);
            let history: Vec<u32> = history.iter().map(|id| *ranked.get(*id as usize).unwrap_or(id)).collect();
            let (held, next) = history.split_at(history.len() - 1);
            let (mut all, mut few) = (sampler(&sampling, logits.len()), sampler(&sampling, logits.len()));
            for _ in 0..8 {
                let Some(k) = few.shortlist(held, next) else { return Ok(()) };
                prop_assert!(k <= MAX_SHORTLIST);
                let (ids, values) = largest(&logits, k);
                let shortlist = Shortlist { ids: &ids, logits: &values };
                prop_assert_eq!(few.sample_from(shortlist, &history).unwrap(), all.sample(&logits, &history).unwrap());
            }
        }
    }

    #[test]
    fn shortlist_is_the_shortest_that_is_sufficient() {
        let list = |sampling: Sampling, history: &[u32]| sampler(&sampling, 1000).shortlist(history, &[1]);
        assert_eq!(list(Sampling::greedy(), &[2, 3]), Some(1));
        assert_eq!(list(Sampling { top_k: 40, ..OFF() }, &[2, 3]), Some(40));
        assert_eq!(list(Sampling { top_k: 65, ..OFF() }, &[]), None);
        assert_eq!(list(OFF(), &[]), None);
        let repeat = Sampling { repeat_penalty: 1.2, ..Sampling::greedy() };
        assert_eq!(list(repeat.clone(), &[2, 3, 2, 1]), Some(4));
        assert_eq!(list(Sampling { penalty_last_n: 2, ..repeat.clone() }, &[2, 3, 2]), Some(3));
        assert_eq!(list(Sampling { penalty_last_n: 200, ..repeat }, &(100..200).collect::<Vec<u32>>()), None);
        assert_eq!(list(Sampling { presence_penalty: -0.1, ..Sampling::greedy() }, &[]), None);
        let ban = vec![(7, f32::NEG_INFINITY), (8, 0.0)];
        assert_eq!(list(Sampling { logit_bias: ban, ..Sampling::greedy() }, &[]), Some(3));
        assert_eq!(list(Sampling { logit_bias: vec![(7, 0.1)], ..Sampling::greedy() }, &[]), None);
        // Only tokens that would continue a repetition change.
        let dry = Sampling { dry_multiplier: 1.0, ..Sampling::greedy() };
        assert_eq!(list(dry.clone(), &[5, 2, 9, 6]), Some(1));
        assert_eq!(list(dry, &[5, 1, 9, 5]), Some(2));
        assert_eq!(sampler(&OFF(), 64).shortlist(&[], &[]), Some(64));
    }

    #[test]
    fn penalties_and_dry_see_the_history() {
        let repeat = Sampling { repeat_penalty: 2.0, ..Sampling::greedy() };
        assert_eq!(sampler(&repeat, 2).sample(&[1.5, 1.0], &[0]).unwrap(), 1);
        let dry = Sampling { dry_multiplier: 1.0, ..Sampling::greedy() };
        assert_eq!(sampler(&dry, 5).sample(&[0.0, 0.0, 0.0, 0.5, 0.1], &[0, 1, 2, 3, 0, 1, 2]).unwrap(), 4);
    }

    #[test]
    fn non_finite_logits_have_a_defined_result() {
        let nan = f32::NAN;
        let (up, down) = (f32::INFINITY, f32::NEG_INFINITY);
        let samplings = [
            Sampling::greedy(),
            OFF(),
            Sampling { temperature: 1e-9, ..OFF() },
            Sampling { temperature: 1e9, ..OFF() },
            Sampling { top_p: 0.0, ..OFF() },
            Sampling { top_k: usize::MAX, ..OFF() },
            Sampling { typical_p: 0.0, min_p: 1.0, ..OFF() },
            Sampling { typical_p: 0.5, top_p: 0.5, min_p: 0.5, ..OFF() },
            Sampling { repeat_penalty: f32::MAX, dry_multiplier: f32::MAX, dry_base: f32::MAX, ..OFF() },
        ];
        let history = [0, 0, 0, 9, 9, 9, u32::MAX, u32::MAX, 0, 0];
        for sampling in &samplings {
            for logits in [&[][..], &[down], &[nan], &[down, nan, down]] {
                let error = sampler(sampling, 1).sample(logits, &history).unwrap_err();
                assert!(matches!(error, Error::NotFinite { .. }), "{error}");
            }
            for (logits, possible) in [
                (&[0.0][..], &[0][..]),
                (&[f32::MIN], &[0]),
                (&[nan, -3.0, down], &[1]),
                (&[up, 1.0, down], &[0, 1]),
                (&[up, up], &[0, 1]),
                (&[f32::MAX, f32::MIN, nan], &[0, 1]),
            ] {
                for _ in 0..5 {
                    let chosen = sampler(sampling, 1).sample(logits, &history).unwrap();
                    assert!(possible.contains(&chosen), "{chosen} from {logits:?} with {sampling:?}");
                }
            }
        }
    }

    #[test]
    fn parameters_outside_their_domain_are_errors() {
        let set: [fn(&mut Sampling, f32); 9] = [
            |s, x| s.temperature = x,
            |s, x| s.top_p = x,
            |s, x| s.min_p = x,
            |s, x| s.typical_p = x,
            |s, x| s.repeat_penalty = x,
            |s, x| s.dry_multiplier = x,
            |s, x| s.dry_base = x,
            |s, x| s.presence_penalty = x,
            |s, x| s.frequency_penalty = x,
        ];
        for (at, set) in set.into_iter().enumerate() {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0] {
                let mut sampling = Sampling::default();
                set(&mut sampling, value);
                let refused = matches!(Sampler::new(&sampling, 8, Breakers::default()), Err(Error::Invalid { .. }));
                let domain_has_it = at >= 7 && value == -1.0;
                assert_eq!(refused, !domain_has_it, "parameter {at} = {value}");
            }
        }
        for bias in [(8, 0.0), (0, f32::NAN), (0, f32::INFINITY)] {
            let sampling = Sampling { logit_bias: vec![bias], ..Sampling::default() };
            assert!(matches!(sampling.validate(8), Err(Error::Invalid { what: "logit_bias", .. })));
        }
    }
}
