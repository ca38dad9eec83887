//! The pace of a device: the work that one submission may hold, by the times that the submissions before it took. A driver's
//! watchdog ends submissions after two seconds, some after more, and a desktop that the same card draws stands still for as
//! long as one takes.

use std::ops::Range;

use parking_lot::Mutex;

use super::trust::FaultCounter;

/// Seconds that a submission is to take at most. Some take longer than those before them: the clock sinks, others use the device.
const TARGET: f64 = 0.06;
/// Submissions of a kind that are waited for before the next is made, so that each is timed alone.
const FIRST: usize = 4;
/// Times a submission's work may be that of the largest one before it: a small one says little about a large one.
const GROWTH: u64 = 8;
/// Latest submissions of a kind by the slowest of which it is judged.
const RECENT: usize = 8;
/// Work below which a time is that of the submission itself.
const TELLING_WORK: u64 = 1 << 21;
/// Tokens with which a weight is multiplied in about the time that it takes to read it.
const READ: u64 = 8;
/// Tokens that kernels for single tokens compute.
const FEW_TOKENS: usize = 8;

/// A kind of work: its kernels differ from those of the other kinds in what they make of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    /// All of a pass of a few tokens.
    Token,
    /// Products and scans of a pass of many.
    Prompt,
    /// Their attention to the keys of the context.
    Scores,
}

impl WorkKind {
    /// All of them, by number.
    const ALL: [WorkKind; 3] = [WorkKind::Token, WorkKind::Prompt, WorkKind::Scores];

    /// The kind of products with `tokens` tokens.
    pub fn of(tokens: usize) -> Self {
        if tokens <= FEW_TOKENS { WorkKind::Token } else { WorkKind::Prompt }
    }

    /// The kind of attention of `tokens` tokens.
    pub fn of_scores(tokens: usize) -> Self {
        if tokens <= FEW_TOKENS { WorkKind::Token } else { WorkKind::Scores }
    }

    /// Work of a submission before any was timed: less than 0.1 s on the slowest devices that draw a desktop. That of attention
    /// is a group of queries in the first thousand tokens.
    fn first_work(self) -> u64 {
        match self {
            WorkKind::Token | WorkKind::Prompt => 1 << 26,
            WorkKind::Scores => 1 << 28,
        }
    }

    /// Work that may always be submitted: a device that was stopped for a moment is not taken for one that takes long for less.
    fn least_work(self) -> u64 {
        match self {
            WorkKind::Token | WorkKind::Prompt => 1 << 24,
            WorkKind::Scores => 1 << 22,
        }
    }
}

/// Work of `tokens` tokens with weights that each is multiplied with, `multiply_adds` a token. The unit is a multiply-add; the
/// weights are read once for all tokens, which counts as some multiply-adds with each.
pub fn work_of(multiply_adds: u64, tokens: usize) -> u64 {
    multiply_adds.saturating_mul((tokens as u64).saturating_add(READ))
}

/// Most tokens whose work with weights of `multiply_adds` a token is not above `work`.
pub fn tokens_within(work: u64, multiply_adds: u64) -> usize {
    usize::try_from((work / multiply_adds.max(1)).saturating_sub(READ)).unwrap_or(usize::MAX)
}

/// The work of a submission, and the commands it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubmissionWork {
    /// Of each kind, as [`work_of`] counts it.
    work: [u64; WorkKind::ALL.len()],
    /// Tokens of the pass.
    pub tokens: usize,
    /// Layers that it computes, or parts of them; empty without any.
    pub layers: Range<usize>,
}

impl SubmissionWork {
    /// No work yet, of a pass of `tokens` tokens.
    pub fn new(tokens: usize) -> Self {
        SubmissionWork { tokens, ..SubmissionWork::default() }
    }

    /// Adds `work` of `layer`, or of none.
    pub fn add(&mut self, kind: WorkKind, work: u64, layer: Option<usize>) {
        let sum = &mut self.work[kind as usize];
        *sum = sum.saturating_add(work);
        if let Some(layer) = layer {
            let first = if self.layers.is_empty() { layer } else { self.layers.start.min(layer) };
            self.layers = first..self.layers.end.max(layer + 1);
        }
    }

    /// Work of all kinds.
    pub fn total(&self) -> u64 {
        self.work.iter().fold(0, |sum, work| sum.saturating_add(*work))
    }
}

/// A submission whose time is known.
#[derive(Debug, Clone, PartialEq)]
pub struct SubmissionTime {
    /// Seconds from its beginning on the device to its end.
    pub seconds: f64,
    /// Its commands.
    pub held: SubmissionWork,
}

/// The pace of one device. Every submission of a model's commands is timed by waits that are made anyway; only the first few of
/// a kind are waited for by themselves.
#[derive(Debug)]
pub struct DevicePace {
    /// Picoseconds that each unit of work takes by the clock, on purpose.
    work_clock: Option<u64>,
    measured: Mutex<MeasuredPace>,
}

#[derive(Debug, Default)]
struct MeasuredPace {
    kinds: [KindPace; WorkKind::ALL.len()],
    longest: Option<SubmissionTime>,
}

/// The pace of one kind of work.
#[derive(Debug, Default, Clone)]
struct KindPace {
    /// Seconds per unit of work of the latest submissions, and the place of the next; 0 where there was none yet.
    recent: [f64; RECENT],
    next: usize,
    /// The slowest of them.
    slowest: f64,
    /// Work of the largest so far.
    largest: u64,
    /// Submissions timed so far.
    timed: usize,
}

impl KindPace {
    /// Learns that `work` took so long.
    fn learn(&mut self, work: u64, seconds: f64) {
        self.timed += 1;
        if work < TELLING_WORK {
            return;
        }
        self.recent[self.next] = seconds / work as f64;
        self.next = (self.next + 1) % RECENT;
        self.slowest = self.recent.iter().copied().fold(0.0, f64::max);
        self.largest = self.largest.max(work);
    }
}

impl MeasuredPace {
    /// Work of one kind that a submission may hold. One of which nothing is known is taken to be as slow as the slowest.
    fn most(&self, kind: WorkKind) -> u64 {
        let of = &self.kinds[kind as usize];
        let slowest = match of.slowest {
            0.0 => self.kinds.iter().map(|of| of.slowest).fold(0.0, f64::max),
            slowest => slowest,
        };
        // Without any time this is as much as there is.
        let in_time = (TARGET / slowest) as u64;
        in_time.min(of.largest.saturating_mul(GROWTH).max(kind.first_work())).max(kind.least_work())
    }

    /// For each kind, its work as a fraction of the most that a submission may hold.
    fn fractions(&self, held: &SubmissionWork) -> [f64; WorkKind::ALL.len()] {
        WorkKind::ALL.map(|kind| held.work[kind as usize] as f64 / self.most(kind) as f64)
    }
}

impl DevicePace {
    /// A device of which nothing is known.
    pub(super) fn new(faults: &FaultCounter) -> Self {
        DevicePace { work_clock: faults.work_clock(), measured: Mutex::default() }
    }

    /// Work of one kind that a submission may hold.
    pub fn most(&self, kind: WorkKind) -> u64 {
        self.measured.lock().most(kind)
    }

    /// True if `work` more of one kind is too much for a submission that holds something.
    pub fn is_full(&self, held: &SubmissionWork, kind: WorkKind, work: u64) -> bool {
        let measured = self.measured.lock();
        let before: f64 = measured.fractions(held).iter().sum();
        let more = work as f64 / measured.most(kind) as f64;
        before > 0.0 && before + more > 1.0
    }

    /// True if a submission of `held` is one of the first that mostly hold work of its kind: it is to be waited for.
    pub fn is_new(&self, held: &SubmissionWork) -> bool {
        let measured = self.measured.lock();
        let kind = largest(&measured.fractions(held));
        kind.is_some_and(|kind| measured.kinds[kind].timed < FIRST)
    }

    /// Notes that a submission of `held` took `seconds`; `None` if its end is not known.
    pub fn note(&self, held: &SubmissionWork, seconds: Option<f64>) {
        let slow = self.work_clock.map(|picoseconds| held.total() as f64 * picoseconds as f64 * 1e-12);
        let Some(seconds) = slow.or(seconds) else { return };
        let mut measured = self.measured.lock();
        let fractions = measured.fractions(held);
        let Some(kind) = largest(&fractions) else { return };
        // What else it held took its part of the time.
        let part = fractions[kind] / fractions.iter().sum::<f64>();
        measured.kinds[kind].learn(held.work[kind], seconds * part);
        if measured.longest.as_ref().is_none_or(|longest| seconds > longest.seconds) {
            measured.longest = Some(SubmissionTime { seconds, held: held.clone() });
        }
    }

    /// The longest submission since the device was opened, or since it was forgotten.
    pub fn longest(&self) -> Option<SubmissionTime> {
        self.measured.lock().longest.clone()
    }

    /// Forgets the longest submission; the pace stays.
    pub fn forget_longest(&self) {
        self.measured.lock().longest = None;
    }
}

/// The number of the kind with the largest fraction, if any is above 0.
fn largest(fractions: &[f64; WorkKind::ALL.len()]) -> Option<usize> {
    let at = (0..fractions.len()).max_by(|a, b| fractions[*a].total_cmp(&fractions[*b]))?;
    (fractions[at] > 0.0).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultPoint, Faults};

    fn pace() -> DevicePace {
        DevicePace::new(&FaultCounter::default())
    }

    fn held(kind: WorkKind, work: u64) -> SubmissionWork {
        let mut held = SubmissionWork::new(64);
        held.add(kind, work, None);
        held
    }

    /// Submits what the pace allows, time and again, to a device that takes `seconds` for a unit; returns the times.
    fn submitted(pace: &DevicePace, kind: WorkKind, seconds: f64, times: usize) -> Vec<f64> {
        let submit = |_| {
            let work = pace.most(kind);
            pace.note(&held(kind, work), Some(work as f64 * seconds));
            work as f64 * seconds
        };
        (0..times).map(submit).collect()
    }

    #[test]
    fn submissions_grow_to_the_time_they_may_take() {
        for kind in WorkKind::ALL {
            for (seconds, name) in [(1e-9 / 3.0, "very slow"), (1e-11, "integrated"), (1e-12, "card"), (1e-14, "large")]
            {
                let pace = pace();
                let times = submitted(&pace, kind, seconds, 12);
                assert!(times.iter().all(|time| *time < 0.1), "{kind:?} {name}: {times:?}");
                assert!(times[11] > 0.8 * TARGET, "{kind:?} {name}: {times:?}");
            }
        }
    }

    #[test]
    fn submissions_shrink_at_once_and_grow_again_when_slow_ones_are_past() {
        let pace = pace();
        submitted(&pace, WorkKind::Prompt, 1e-12, 12);
        let before = pace.most(WorkKind::Prompt);
        // The clock sinks to a fifth.
        let times = submitted(&pace, WorkKind::Prompt, 5e-12, 3);
        assert!(times[0] > 0.1 && times[1..].iter().all(|time| *time < 0.1), "{times:?}");
        submitted(&pace, WorkKind::Prompt, 1e-12, RECENT - 1);
        assert!(pace.most(WorkKind::Prompt) < before);
        submitted(&pace, WorkKind::Prompt, 1e-12, 4);
        assert!(pace.most(WorkKind::Prompt).abs_diff(before) < before / 1000);
        // A machine that slept is not a device on which nothing can be computed.
        pace.note(&held(WorkKind::Prompt, 1 << 30), Some(3600.0));
        assert_eq!(pace.most(WorkKind::Prompt), WorkKind::Prompt.least_work());
    }

    #[test]
    fn kinds_have_paces_of_their_own() {
        let pace = pace();
        submitted(&pace, WorkKind::Prompt, 1e-13, 12);
        assert_eq!(pace.most(WorkKind::Scores), WorkKind::Scores.first_work());
        assert_eq!(pace.most(WorkKind::Token), WorkKind::Token.first_work());
        assert!(!pace.is_new(&held(WorkKind::Prompt, 1 << 30)) && pace.is_new(&held(WorkKind::Scores, 1 << 20)));
        // Half of what either may hold is together as much as may be held.
        let mut both = held(WorkKind::Prompt, pace.most(WorkKind::Prompt) / 2);
        assert!(!pace.is_full(&both, WorkKind::Scores, pace.most(WorkKind::Scores) / 2));
        assert!(pace.is_full(&both, WorkKind::Scores, pace.most(WorkKind::Scores)));
        assert!(!pace.is_full(&SubmissionWork::new(1), WorkKind::Token, u64::MAX), "nothing is there to go ahead");
        // Of a submission of both, the kind that is most of it learns its part.
        both.add(WorkKind::Scores, pace.most(WorkKind::Scores), None);
        let before = pace.most(WorkKind::Prompt);
        pace.note(&both, Some(0.03));
        let scores = pace.most(WorkKind::Scores);
        assert!(scores > 2 * WorkKind::Scores.first_work() && pace.most(WorkKind::Prompt) == before, "{scores}");
    }

    #[test]
    fn unknown_kinds_are_taken_for_as_slow_as_the_slowest() {
        let pace = pace();
        submitted(&pace, WorkKind::Prompt, 2e-9, RECENT);
        let most = pace.most(WorkKind::Token);
        assert!((25_000_000..=31_000_000).contains(&most), "{most} units in {TARGET} s");
        assert_eq!(pace.most(WorkKind::Scores), most);
        submitted(&pace, WorkKind::Scores, 1e-9, RECENT);
        assert!(pace.most(WorkKind::Scores) > 3 * most / 2 && pace.most(WorkKind::Token) == most);
    }

    #[test]
    fn small_submissions_say_nothing_about_speed() {
        let pace = pace();
        (0..FIRST).for_each(|_| pace.note(&held(WorkKind::Token, TELLING_WORK - 1), Some(0.5)));
        assert_eq!(pace.most(WorkKind::Token), WorkKind::Token.first_work());
        assert!(!pace.is_new(&held(WorkKind::Token, 1)), "they are not waited for again and again");
        pace.note(&SubmissionWork::new(5), Some(9.0));
        pace.note(&held(WorkKind::Token, 1 << 30), None);
        let longest = pace.longest().unwrap();
        assert_eq!((longest.seconds, longest.held), (0.5, held(WorkKind::Token, TELLING_WORK - 1)));
        pace.forget_longest();
        assert_eq!(pace.longest(), None);
    }

    #[test]
    fn clocks_of_work_tell_time_by_the_work() {
        let slow = DevicePace::new(&FaultCounter::new(Faults(Some((FaultPoint::WorkClock, 500)))));
        let mut work = held(WorkKind::Prompt, 1_000_000_000);
        work.add(WorkKind::Scores, 1_000_000_000, Some(3));
        work.add(WorkKind::Scores, 0, Some(2));
        slow.note(&work, Some(1e-6));
        let longest = slow.longest().unwrap();
        assert!((longest.seconds - 1.0).abs() < 1e-9 && longest.held.layers == (2..4), "{longest:?}");
    }

    #[test]
    fn work_counts_weights_once_and_tokens_each() {
        assert_eq!((work_of(10, 1), work_of(10, 256)), (90, 2640));
        assert_eq!((tokens_within(2640, 10), tokens_within(2649, 10), tokens_within(5, 10)), (256, 256, 0));
        assert_eq!(work_of(u64::MAX, 3), u64::MAX);
        assert_eq!(tokens_within(100, 0), 92);
    }
}
