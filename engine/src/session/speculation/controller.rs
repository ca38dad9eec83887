//! Decides which source drafts, and how many tokens.

use std::time::Duration;

use super::{DraftSource, MOST_DRAFTS, acceptance::Acceptance, pass_costs::PassCosts, running_mean::RunningMean};

#[cfg(test)]
mod tests;

/// Smallest number of tokens that a lookup must find.
const LEAST_FOUND: usize = 3;
/// Number of passes of a trial that lose time before the source pauses. A trial also ends with a
/// pass that accepts no draft. The first pass of a trial tries the depth that was measured least
/// recently. If no depth was measured, it tries the first one.
const TRIAL: usize = 2;
const TRIAL_DEPTHS: [usize; 4] = [2, 1, 3, 4];
/// Number of passes without drafts that must be saved before a source that failed gets another
/// trial. Two trials of a short answer would cost more than [`LOSS`] of its time.
const ADVANCE: f64 = 1.2;
/// Number of tokens that are decoded without a source's drafts after they did not pay. Each failure
/// in a row doubles it.
const PAUSE: usize = 16;
const LONGEST_PAUSE: usize = 512;
/// Fraction of the time of decoding without drafts that makes up for lost time. After a loss no
/// source gets another trial until the loss and [`ADVANCE`] are made up for.
const LOSS: f64 = 0.025;
/// Time that drafts may lose before their source pauses even if it is expected to pay, in passes
/// without drafts.
const TOLERATED_LOSS: f64 = 6.0;
/// Largest lost or saved time that counts, in passes without drafts.
const CREDIT: f64 = 16.0;
/// One of this many passes with drafts may explore another number of drafts, if that number was not
/// measured in the latest passes.
const EXPLORATION: usize = 16;
/// Number of latest passes that a source's mean drafting time represents.
const DRAFTINGS: f64 = 8.0;

/// The drafts of the next pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session) struct DraftPlan {
    pub source: DraftSource,
    /// Largest number of tokens to draft, at least 1.
    pub tokens: usize,
}

/// Decides by measurement which source drafts and how many tokens. It expects
/// `(1 + a1 + a1 a2 + ...) / (pass(n) + n * drafting)` tokens per second of `n` drafts. `ai` is the
/// probability that draft `i` is accepted, given that all earlier drafts were accepted. These times
/// and probabilities are running means. Running means follow the text, the length of the context
/// and the load of the machine, so the controller has no parameters for them. A source that does
/// not pay pauses, and the time that drafts may lose is bounded.
#[derive(Debug)]
pub(in crate::session) struct DraftController {
    /// Number of drafts of every pass, if it does not follow measurements.
    fixed: Option<usize>,
    costs: PassCosts,
    /// By [`DraftSource`].
    sources: [SourceFigures; DraftSource::ALL.len()],
    /// Accepted drafts of a lookup since its latest rejected one. The next lookup continues the
    /// quotation, so its first draft has this depth.
    quoted: usize,
    /// Probabilities of the drafts for the next pass, as far as the source knows them.
    claimed: Vec<f64>,
    /// Seconds that drafts have lost and that are not made up for. Negative if drafts have saved
    /// time, or if the next trial is paid for.
    lost: f64,
    /// Passes with drafts since the latest exploration.
    unexplored: usize,
}

/// Figures of one source.
#[derive(Debug)]
struct SourceFigures {
    acceptance: Acceptance,
    /// Seconds to draft one token.
    drafting: RunningMean,
    /// Passes that the current trial may still lose; 0 if the source pays.
    trials: usize,
    /// Tokens until the source drafts again, and the length of the next pause.
    paused: usize,
    pause: usize,
}

/// The best plan of a source, and its expected tokens per second.
#[derive(Debug, Clone, Copy)]
struct DraftOffer {
    plan: DraftPlan,
    rate: f64,
    /// Largest number of drafts that the source may make.
    most: usize,
}

impl DraftController {
    /// Gives every pass this number of drafts; `None` follows the measurements.
    pub fn fix(&mut self, drafts: Option<usize>) {
        (self.fixed, self.quoted) = (drafts, 0);
    }

    /// Forgets all times, because another processor or another sparsity mode computes from now on.
    pub fn forget_costs(&mut self) {
        (self.costs, self.lost, self.quoted) = (PassCosts::default(), 0.0, 0);
        self.sources.iter_mut().for_each(|source| source.drafting = RunningMean::default());
    }

    /// A controller without measurements.
    pub fn new() -> Self {
        let sources = DraftSource::ALL.map(|_| SourceFigures {
            acceptance: Acceptance::default(),
            drafting: RunningMean::default(),
            trials: TRIAL,
            paused: 0,
            pause: PAUSE,
        });
        let (costs, claimed) = (PassCosts::default(), Vec::new());
        DraftController { fixed: None, costs, sources, quoted: 0, claimed, lost: 0.0, unexplored: 0 }
    }

    /// Records that a pass without drafts took `time`.
    pub fn note_single(&mut self, time: Duration) {
        self.costs.note(0, time);
        self.quoted = 0;
        let advance = -ADVANCE * self.costs.single().unwrap_or_default();
        if self.lost > advance {
            self.lost = (self.lost - LOSS * time.as_secs_f64()).max(advance);
        }
    }

    /// Records that making memory for passes with drafts took `time`. This time is lost once, so
    /// the costs of passes do not contain it.
    pub fn note_reserving(&mut self, time: Duration) {
        self.lost += time.as_secs_f64();
    }

    /// Records that a pass of a token and `drafted` drafts of `source` took `pass`, that the drafts
    /// took `drafting`, and that `accepted` of them were drawn. `drafted` may be smaller than
    /// planned. It is 0 if a grammar forbids the first draft, which counts as a rejected one.
    pub fn note_pass(
        &mut self,
        source: DraftSource,
        drafted: usize,
        accepted: usize,
        pass: Duration,
        drafting: Duration,
    ) {
        self.costs.note(drafted, pass);
        let start = if source == DraftSource::Lookup { self.quoted } else { 0 };
        self.quoted = if source == DraftSource::Lookup && drafted > 0 && accepted == drafted {
            self.quoted + accepted
        } else {
            0
        };
        let figures = &mut self.sources[source as usize];
        figures.acceptance.note(start, drafted.max(1), accepted);
        for (at, probability) in self.claimed.drain(..).enumerate().take(drafted.min(accepted + 1)) {
            figures.acceptance.note_probability(probability, at < accepted);
        }
        if drafted > 0 {
            figures.drafting.add_time(drafting.as_secs_f64() / drafted as f64, DRAFTINGS);
        }
        let Some(single) = self.costs.single() else { return };
        let lost = (pass + drafting).as_secs_f64() - (1 + accepted) as f64 * single;
        // One very slow pass, for instance after a pause of the machine, says little about drafts.
        self.lost = (self.lost + lost).clamp(-CREDIT * single, CREDIT * single);
        let pays = self.best(source, source.most_drafts()).is_some_and(|offer| offer.rate * single > 1.0);
        let excessive = lost > 0.0 && self.lost > TOLERATED_LOSS * single;
        let figures = &mut self.sources[source as usize];
        let fails = figures.trials == 0 || lost > 0.0 && (figures.trials == 1 || accepted == 0);
        if pays && !excessive {
            figures.trials = 0;
            if self.lost < -ADVANCE * single {
                figures.pause = PAUSE;
            }
        } else if fails || excessive {
            figures.paused = figures.pause;
            figures.pause = (2 * figures.pause).min(LONGEST_PAUSE);
            figures.trials = TRIAL;
            figures.acceptance.doubt();
        } else if lost > 0.0 {
            figures.trials -= 1;
        }
    }

    /// The drafts of the next pass; `None` if it should have none. A lookup has found `lookup_len`
    /// tokens, `other` is the source that can draft any number, and there is room for `room`
    /// drafts. A lookup of fewer than three tokens is not used. If both sources pay, the one with
    /// more expected tokens per second drafts, the lookup if both are equal.
    pub fn plan(&mut self, lookup_len: usize, other: Option<DraftSource>, room: usize) -> Option<DraftPlan> {
        self.claimed.clear();
        for figures in &mut self.sources {
            figures.paused = figures.paused.saturating_sub(1);
        }
        let lookup = (lookup_len >= LEAST_FOUND).then_some(DraftSource::Lookup);
        if let Some(tokens) = self.fixed {
            let found = if lookup.is_some() { lookup_len } else { usize::MAX };
            let plan = DraftPlan { source: lookup.or(other)?, tokens: tokens.min(MOST_DRAFTS).min(found).min(room) };
            return (plan.tokens > 0).then_some(plan);
        }
        let mut chosen: Option<DraftOffer> = None;
        for source in [lookup, other].into_iter().flatten() {
            let found = if source == DraftSource::Lookup { lookup_len } else { usize::MAX };
            let offer = self.offer(source, found.min(room).min(source.most_drafts()));
            if let Some(offer) = offer
                && chosen.is_none_or(|chosen| offer.rate > chosen.rate)
            {
                chosen = Some(offer);
            }
        }
        chosen.and_then(|offer| self.explored(offer))
    }

    /// True if `source` should draft another token behind `depth` drafts. It gave the latest draft
    /// `probability`. Further drafts pay if they raise the tokens per second of the pass: the
    /// calibrated probability that all drafts are accepted is compared with the marginal cost. Must
    /// be called for every draft in order, from depth 1.
    pub fn goes_on(&mut self, source: DraftSource, depth: usize, probability: f32) -> bool {
        self.claimed.truncate(depth.saturating_sub(1));
        self.claimed.push(f64::from(probability));
        if self.fixed.is_some() {
            return true;
        }
        let Some(seconds) = self.costs.seconds() else { return false };
        let figures = &self.sources[source as usize];
        let drafting = figures.drafting.mean;
        let spent = |drafts: usize| seconds[drafts] + drafts as f64 * drafting;
        let (mut tokens, mut chain) = (1.0, 1.0);
        for probability in &self.claimed {
            chain *= figures.acceptance.calibrated(*probability);
            tokens += chain;
        }
        let rate = tokens / spent(depth.min(MOST_DRAFTS));
        let probabilities = figures.acceptance.probabilities();
        (depth + 1..=source.most_drafts()).any(|drafts| {
            chain *= probabilities[drafts - 1];
            tokens += chain;
            tokens / spent(drafts) > rate
        })
    }

    /// What `source` offers with at most `most` drafts; `None` if it pauses or does not pay.
    fn offer(&self, source: DraftSource, most: usize) -> Option<DraftOffer> {
        // Judging a pass with drafts requires the time of a pass without.
        let single = self.costs.single()?;
        let figures = &self.sources[source as usize];
        if figures.paused > 0 || most == 0 {
            return None;
        }
        if figures.trials == 0 {
            return self.best(source, most).filter(|offer| offer.rate * single > 1.0);
        }
        let oldest = TRIAL_DEPTHS.into_iter().rev().filter(|depth| *depth <= most).max_by_key(|it| self.costs.age(*it));
        let plan = match figures.trials {
            TRIAL => DraftPlan { source, tokens: oldest? },
            _ => self.best(source, most)?.plan,
        };
        let failed = figures.pause > PAUSE;
        // The time of a pass varies, so nearly all of the advance is enough.
        let most_lost = if failed { -0.9 * ADVANCE * single } else { 0.0 };
        let begins = figures.trials < TRIAL || self.lost <= most_lost;
        begins.then_some(DraftOffer { plan, rate: f64::INFINITY, most })
    }

    /// The number of drafts of `source`, at most `most`, with the most expected tokens per second.
    fn best(&self, source: DraftSource, most: usize) -> Option<DraftOffer> {
        let seconds = self.costs.seconds()?;
        let figures = &self.sources[source as usize];
        let start = if source == DraftSource::Lookup { self.quoted } else { 0 };
        let tokens = figures.acceptance.tokens(start);
        let rate = |drafts: usize| tokens[drafts] / (seconds[drafts] + drafts as f64 * figures.drafting.mean);
        let offers = (1..=most).map(|tokens| {
            let plan = DraftPlan { source, tokens };
            DraftOffer { plan, rate: rate(tokens), most }
        });
        offers.max_by(|left, right| left.rate.total_cmp(&right.rate))
    }

    /// The plan of `offer`, or now and then a neighbouring number of drafts whose cost was not
    /// measured for long. One draft less than one is a pass without drafts.
    fn explored(&mut self, offer: DraftOffer) -> Option<DraftPlan> {
        let DraftOffer { plan, rate, most } = offer;
        self.unexplored += 1;
        if rate.is_finite() && self.unexplored >= EXPLORATION {
            let mut others = [0, plan.tokens + 1, plan.tokens - 1].into_iter().filter(|tokens| *tokens <= most);
            if let Some(tokens) = others.find(|tokens| self.costs.is_stale(*tokens)) {
                self.unexplored = 0;
                return (tokens > 0).then_some(DraftPlan { tokens, ..plan });
            }
        }
        Some(plan)
    }
}
