//! The controller with a simulated clock: texts with known acceptance, and passes with known costs.

use super::*;

/// A text and a machine. Costs are in units of a pass without drafts.
#[derive(Debug, Clone, Copy)]
struct SimulatedDrafts {
    /// The probability that a draft is accepted, given that all earlier drafts were accepted.
    acceptance: f64,
    /// Cost of a pass with 0, 1, 2 ... drafts. Further drafts cost as much as the last one.
    passes: &'static [f64],
    /// Cost of drafting one token.
    drafting: f64,
}

impl SimulatedDrafts {
    fn pass(&self, drafts: usize) -> f64 {
        let last = self.passes.len() - 1;
        let beyond = drafts.saturating_sub(last) as f64;
        self.passes[drafts.min(last)] + beyond * (self.passes[last] - self.passes[last - 1])
    }

    /// Tokens per unit of time with always `drafts` drafts.
    fn rate(&self, drafts: usize) -> f64 {
        let tokens: f64 = (0..=drafts).map(|at| self.acceptance.powi(at as i32)).sum();
        tokens / (self.pass(drafts) + drafts as f64 * self.drafting)
    }

    /// Tokens per unit of time with the best fixed number of drafts.
    fn oracle(&self, source: DraftSource) -> f64 {
        (0..=source.most_drafts()).map(|drafts| self.rate(drafts)).fold(0.0, f64::max)
    }
}

/// Generates texts, and measures them with a simulated clock.
#[derive(Debug)]
struct SimulatedClock {
    controller: DraftController,
    source: DraftSource,
    random: u64,
    /// Passes by their number of drafts.
    passes: [usize; 1 + MOST_DRAFTS],
    /// Factor of the time of the first pass with a number of drafts.
    first: f64,
}

impl SimulatedClock {
    fn new(source: DraftSource) -> Self {
        let (controller, passes) = (DraftController::new(), [0; 1 + MOST_DRAFTS]);
        SimulatedClock { controller, source, random: 1, passes, first: 1.0 }
    }

    /// A number from 0 to 1.
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Generates about `length` tokens. Returns tokens per unit of time.
    fn generate(&mut self, length: usize, drafts: SimulatedDrafts) -> f64 {
        let (mut tokens, mut spent) = (0, 0.0);
        while tokens < length {
            let (found, other) = match self.source {
                DraftSource::Lookup => (MOST_DRAFTS, None),
                source => (0, Some(source)),
            };
            let plan = self.controller.plan(found, other, 100);
            let drafted = plan.map_or(0, |plan| plan.tokens);
            let accepted = (0..drafted).take_while(|_| self.draw() < drafts.acceptance).count();
            // Measured times vary by 5 %.
            let noise = 0.95 + 0.1 * self.draw();
            let first = if self.passes[drafted] == 0 { self.first } else { 1.0 };
            let (pass, drafting) = (noise * first * drafts.pass(drafted), drafts.drafting * drafted as f64);
            let [measured_pass, measured_drafting] = [pass, drafting].map(|it| Duration::from_secs_f64(0.01 * it));
            match plan {
                None => self.controller.note_single(measured_pass),
                Some(plan) => {
                    self.controller.note_pass(plan.source, drafted, accepted, measured_pass, measured_drafting)
                }
            }
            self.passes[drafted] += 1;
            tokens += 1 + accepted;
            spent += pass + drafting;
        }
        tokens as f64 / spent
    }
}

/// Cost tables: a memory-bound model; a model whose kernels compute four tokens at once; a model
/// bound by arithmetic; experts on a CPU; passes that always cost twice as much; Qwen3.5-4B in Q4_K
/// with AVX-512 on two threads.
const CHEAP: &[f64] = &[1.0, 1.05, 1.1, 1.15, 1.2];
const STEPS: &[f64] = &[1.0, 1.3, 1.3, 1.35, 1.9, 1.95];
const LINEAR: &[f64] = &[1.0, 1.5, 2.0, 2.5, 3.0];
const EXPERTS: &[f64] = &[1.0, 1.6, 2.1, 2.5, 2.9];
const DOUBLE: &[f64] = &[1.0, 2.0, 2.0, 2.0, 2.0];
const MEASURED: &[f64] = &[1.0, 1.19, 1.4, 1.65, 2.4];
const TABLES: [&[f64]; 6] = [CHEAP, STEPS, LINEAR, EXPERTS, DOUBLE, MEASURED];

#[test]
fn drafts_never_cost_three_percent_of_any_text() {
    for source in DraftSource::ALL {
        for passes in TABLES {
            for acceptance in [0.0, 0.1, 0.2, 0.3, 0.4, 0.5] {
                let drafts = SimulatedDrafts { acceptance, passes, drafting: 0.05 };
                let rate = SimulatedClock::new(source).generate(2000, drafts);
                assert!(rate >= 0.97, "{source:?} {drafts:?}: {rate}");
            }
        }
    }
}

/// The first answer of a session learns that drafts do not pay. The mean time of many answers
/// counts, because a single one may be lucky.
#[test]
fn drafts_never_cost_three_percent_of_short_answers() {
    const ANSWERS: u64 = 200;
    for passes in TABLES {
        for acceptance in [0.0, 0.2, 0.4, 0.5] {
            for length in [64, 128, 512] {
                let drafts = SimulatedDrafts { acceptance, passes, drafting: 0.1 };
                let time = |seed| {
                    let mut clock = SimulatedClock::new(DraftSource::Head);
                    clock.random = seed * 7919;
                    clock.draw();
                    1.0 / clock.generate(length, drafts)
                };
                let rate = ANSWERS as f64 / (1..=ANSWERS).map(time).sum::<f64>();
                assert!(rate >= 0.97, "{length} tokens, {drafts:?}: {rate}");
            }
        }
    }
}

/// Texts that change their nature as soon as the controller has learnt it.
#[test]
fn texts_that_change_lose_little() {
    for source in DraftSource::ALL {
        for stretch in [20, 50, 100, 300, 1000] {
            let mut clock = SimulatedClock::new(source);
            let (mut tokens, mut spent) = (0.0, 0.0);
            for at in 0..4000 / stretch {
                let acceptance = if at % 2 == 0 { 0.0 } else { 0.6 };
                let rate = clock.generate(stretch, SimulatedDrafts { acceptance, passes: DOUBLE, drafting: 0.05 });
                (tokens, spent) = (tokens + stretch as f64, spent + stretch as f64 / rate);
            }
            assert!(tokens / spent >= 0.97, "{source:?} {stretch}: {}", tokens / spent);
        }
    }
}

#[test]
fn number_of_drafts_converges_to_the_best() {
    for source in [DraftSource::Head, DraftSource::Model] {
        for passes in TABLES {
            for acceptance in [0.5, 0.7, 0.9] {
                let drafts = SimulatedDrafts { acceptance, passes, drafting: 0.05 };
                let mut clock = SimulatedClock::new(source);
                clock.generate(2000, drafts);
                let rate = clock.generate(10_000, drafts) / drafts.oracle(source);
                assert!(rate >= 0.95, "{source:?} {drafts:?}: {rate} {:?}", clock.passes);
            }
        }
    }
}

/// The first pass of a length reads its memory for the first time.
#[test]
fn slow_first_passes_do_not_decide() {
    let drafts = SimulatedDrafts { acceptance: 0.9, passes: MEASURED, drafting: 0.05 };
    let mut clock = SimulatedClock { first: 1.7, ..SimulatedClock::new(DraftSource::Head) };
    clock.generate(100, drafts);
    let rate = clock.generate(500, drafts) / drafts.oracle(DraftSource::Head);
    assert!(rate >= 0.95, "{rate} {:?}", clock.passes);
}

/// Making memory is lost time, but says nothing about the costs of later passes.
#[test]
fn memory_that_is_made_once_does_not_decide() {
    let (ms, head) = (Duration::from_millis(1), DraftSource::Head);
    let trial = |reserving: Duration, pass: Duration| {
        let mut controller = DraftController::new();
        controller.note_single(10 * ms);
        assert!(controller.plan(0, Some(head), 4).is_some());
        controller.note_reserving(reserving);
        controller.note_pass(head, 2, 1, pass, ms);
        controller
    };
    let known = trial(50 * ms, 14 * ms);
    assert!(known.sources[head as usize].trials == 0 && (0.044..0.046).contains(&known.lost), "{known:?}");
    let unknown = trial(Duration::ZERO, 64 * ms);
    assert!(unknown.sources[head as usize].trials > 0, "{unknown:?}");
}

#[test]
fn lookups_of_quoted_text_become_long() {
    let drafts = SimulatedDrafts { acceptance: 0.99, passes: CHEAP, drafting: 0.0 };
    let mut clock = SimulatedClock::new(DraftSource::Lookup);
    let rate = clock.generate(3000, drafts);
    assert!(rate > 0.85 * drafts.oracle(DraftSource::Lookup) && rate > 6.0, "{rate} {:?}", clock.passes);
}

#[test]
fn number_of_drafts_follows_changes() {
    let good = SimulatedDrafts { acceptance: 0.9, passes: CHEAP, drafting: 0.05 };
    let changes = [
        SimulatedDrafts { acceptance: 0.3, ..good },
        // A longer context.
        SimulatedDrafts { passes: &[2.0, 3.6, 5.2, 6.8, 8.4], ..good },
        SimulatedDrafts { passes: &[0.5, 0.9, 1.4, 1.9, 2.4], drafting: 0.2, ..good },
        SimulatedDrafts { acceptance: 0.0, ..good },
    ];
    let mut clock = SimulatedClock::new(DraftSource::Head);
    for changed in changes {
        for drafts in [good, changed] {
            clock.generate(1500, drafts);
            let rate = clock.generate(5000, drafts) / drafts.oracle(DraftSource::Head);
            assert!(rate >= 0.95, "{drafts:?}: {rate}");
        }
    }
}

#[test]
fn lookups_of_three_tokens_draft_first_and_a_head_otherwise() {
    let (ms, head) = (Duration::from_millis(1), Some(DraftSource::Head));
    let mut controller = DraftController::new();
    assert_eq!(controller.plan(16, head, 16), None, "no pass without drafts is measured");
    controller.note_single(10 * ms);
    let source = |plan: Option<DraftPlan>| plan.map(|plan| plan.source);
    assert_eq!(source(controller.plan(16, head, 16)), Some(DraftSource::Lookup));
    assert_eq!(source(controller.plan(2, head, 16)), head);
    assert_eq!(controller.plan(2, None, 16), None);
    assert_eq!(controller.plan(16, head, 0), None);
    assert_eq!(controller.plan(16, head, 1).map(|plan| plan.tokens), Some(1));
    for _ in 0..20 {
        controller.note_pass(DraftSource::Head, 3, 3, 12 * ms, ms);
        controller.note_pass(DraftSource::Lookup, 3, 0, 12 * ms, Duration::ZERO);
    }
    assert_eq!(source(controller.plan(16, head, 16)), head, "lookups have not paid");
}

#[test]
fn unsure_drafts_are_the_last_ones() {
    let ms = Duration::from_millis(1);
    let mut controller = DraftController::new();
    assert!(!controller.goes_on(DraftSource::Head, 1, 1.0), "nothing is measured");
    controller.note_single(10 * ms);
    for drafted in [1, 2, 3, 4, 1, 2, 3, 4, 4] {
        controller.note_pass(DraftSource::Head, drafted, drafted, ms * (10 + 3 * drafted as u32), ms);
    }
    assert!(controller.goes_on(DraftSource::Head, 1, 0.95));
    assert!(controller.goes_on(DraftSource::Head, 2, 0.95));
    assert!(!controller.goes_on(DraftSource::Head, 3, 0.1));
    assert!(!controller.goes_on(DraftSource::Head, 1, 0.1));
    assert!(!controller.goes_on(DraftSource::Head, 4, 1.0), "no more than four drafts");
    // A head that is always sure and mostly wrong is not believed for long.
    for _ in 0..100 {
        controller.goes_on(DraftSource::Head, 1, 0.95);
        controller.note_pass(DraftSource::Head, 1, 0, 13 * ms, ms);
    }
    assert!(!controller.goes_on(DraftSource::Head, 1, 0.95));
}

/// Generates about `length` tokens of a text in which a head knows whether it is sure: half of its
/// drafts are accepted with the probability 0.95, the others with 0.15. Its own probabilities are
/// larger. If `asks` is false, the controller is not asked after each draft. Returns tokens per
/// unit of time.
fn mixed_text(length: usize, passes: &'static [f64], asks: bool) -> f64 {
    let mut clock = SimulatedClock::new(DraftSource::Head);
    let costs = SimulatedDrafts { acceptance: 0.0, passes, drafting: 0.1 };
    let (mut tokens, mut spent) = (0, 0.0);
    while tokens < length {
        let most = clock.controller.plan(0, Some(DraftSource::Head), 100).map_or(0, |plan| plan.tokens);
        let (mut drafted, mut accepted) = (0, 0);
        while drafted < most {
            let (acceptance, claimed) = if clock.draw() < 0.5 { (0.95, 0.99) } else { (0.15, 0.3) };
            accepted += usize::from(accepted == drafted && clock.draw() < acceptance);
            drafted += 1;
            if asks && !clock.controller.goes_on(DraftSource::Head, drafted, claimed) {
                break;
            }
        }
        let (pass, drafting) = (costs.pass(drafted), costs.drafting * drafted as f64);
        let [measured_pass, measured_drafting] = [pass, drafting].map(|it| Duration::from_secs_f64(0.01 * it));
        match drafted {
            0 => clock.controller.note_single(measured_pass),
            _ => clock.controller.note_pass(DraftSource::Head, drafted, accepted, measured_pass, measured_drafting),
        }
        tokens += 1 + accepted;
        spent += pass + drafting;
    }
    tokens as f64 / spent
}

/// Drafting ends behind an unsure draft, which saves more than a fixed number of drafts.
#[test]
fn heads_that_know_when_they_are_sure_gain_more() {
    for (passes, gain) in [(CHEAP, 1.02), (LINEAR, 0.99), (EXPERTS, 0.99)] {
        let [fixed, asked] = [false, true].map(|asks| mixed_text(10_000, passes, asks));
        assert!(asked >= 0.97 && asked >= gain * fixed, "{passes:?}: {asked} {fixed}");
    }
}

/// A grammar may forbid every draft of a head before its pass.
#[test]
fn drafts_that_are_never_allowed_cost_little() {
    let mut controller = DraftController::new();
    let pass = Duration::from_millis(10);
    let mut spent = Duration::ZERO;
    for _ in 0..2000 {
        let drafting = match controller.plan(0, Some(DraftSource::Model), 100) {
            Some(plan) => pass / 10 * plan.tokens as u32,
            None => Duration::ZERO,
        };
        match drafting.is_zero() {
            true => controller.note_single(pass),
            false => controller.note_pass(DraftSource::Model, 0, 0, pass, drafting),
        }
        spent += pass + drafting;
    }
    let rate = (2000 * pass).as_secs_f64() / spent.as_secs_f64();
    assert!(rate >= 0.97, "{rate}");
}

/// Passes that other generations share are not measured, and the figures are kept.
#[test]
fn figures_survive_a_stretch_without_passes_of_its_own() {
    let drafts = SimulatedDrafts { acceptance: 0.9, passes: CHEAP, drafting: 0.05 };
    let mut clock = SimulatedClock::new(DraftSource::Head);
    clock.generate(500, drafts);
    let planned = |clock: &mut SimulatedClock| clock.controller.plan(0, Some(DraftSource::Head), 100);
    assert_eq!(planned(&mut clock).map(|plan| plan.tokens), Some(4));
    assert!(clock.generate(50, drafts) > 0.85 * drafts.oracle(DraftSource::Head));
}
