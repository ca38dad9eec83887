//! Pace of a device: limits the work of a submission by the times of earlier submissions. Driver
//! watchdogs end submissions after about two seconds. Until a submission ends, the desktop on the
//! same card does not update.

use std::ops::Range;

use parking_lot::Mutex;

use super::{FEW_TOKENS, trust::FaultCounter};

/// Longest intended time of a submission, in seconds. Some submissions take longer than predicted,
/// because the clock drops or other programs use the device.
const TARGET: f64 = 0.06;
/// First submissions of a kind, each of which is waited for before the next, so that its time is
/// measured alone.
const FIRST: usize = 4;
/// Most growth of a submission's work over the largest earlier submission. The time of small work
/// predicts little about large work.
const GROWTH: u64 = 8;
/// Latest submissions of a kind that count. The slowest of them sets the pace.
const RECENT: usize = 8;
/// Least work whose time counts. The time of less work is mostly overhead of the submission.
const TELLING_WORK: u64 = 1 << 21;
/// Tokens whose multiplications with a weight take about as long as reading the weight.
const READ: u64 = 8;

/// Kind of work. Each kind has a pace of its own, because its kernels use the device differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    /// A pass with few tokens, including attention.
    Token,
    /// Products and scans of a pass with many tokens.
    Prompt,
    /// Attention of a pass with many tokens to the keys of the context.
    Scores,
}

impl WorkKind {
    /// All kinds, by number.
    const ALL: [WorkKind; 3] = [WorkKind::Token, WorkKind::Prompt, WorkKind::Scores];

    /// Returns the kind of products with `tokens` tokens.
    pub fn of(tokens: usize) -> Self {
        if tokens <= FEW_TOKENS { WorkKind::Token } else { WorkKind::Prompt }
    }

    /// Returns the kind of attention with `tokens` tokens.
    pub fn of_scores(tokens: usize) -> Self {
        if tokens <= FEW_TOKENS { WorkKind::Token } else { WorkKind::Scores }
    }

    /// Returns the most work of the first submission: less than 0.1 s on the slowest devices that
    /// draw a desktop. For attention, it is a group of queries within the first thousand tokens.
    fn first_work(self) -> u64 {
        match self {
            WorkKind::Token | WorkKind::Prompt => 1 << 26,
            WorkKind::Scores => 1 << 28,
        }
    }

    /// Returns the work that a submission may always hold. A device that only paused for a moment
    /// must not be limited to less.
    fn least_work(self) -> u64 {
        match self {
            WorkKind::Token | WorkKind::Prompt => 1 << 24,
            WorkKind::Scores => 1 << 22,
        }
    }
}

/// Returns the work of `tokens` tokens with weights that need `multiply_adds` per token. The unit
/// is one multiply-add. Reading the weights once for all tokens counts as `READ` tokens.
pub fn work_of(multiply_adds: u64, tokens: usize) -> u64 {
    multiply_adds.saturating_mul((tokens as u64).saturating_add(READ))
}

/// Returns the most tokens whose work is at most `work`, for weights that need `multiply_adds` per
/// token.
pub fn tokens_within(work: u64, multiply_adds: u64) -> usize {
    usize::try_from((work / multiply_adds.max(1)).saturating_sub(READ)).unwrap_or(usize::MAX)
}

/// Work of a submission and the commands that it holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubmissionWork {
    /// Work of each kind, in the unit of [`work_of`].
    work: [u64; WorkKind::ALL.len()],
    /// Tokens of the pass.
    pub tokens: usize,
    /// Layers that the submission computes, whole or in part. Empty if it computes none.
    pub layers: Range<usize>,
}

impl SubmissionWork {
    /// Creates a submission without work, in a pass of `tokens` tokens.
    pub fn new(tokens: usize) -> Self {
        SubmissionWork { tokens, ..SubmissionWork::default() }
    }

    /// Adds `work`, which belongs to `layer` if there is one.
    pub fn add(&mut self, kind: WorkKind, work: u64, layer: Option<usize>) {
        let sum = &mut self.work[kind as usize];
        *sum = sum.saturating_add(work);
        if let Some(layer) = layer {
            let first = if self.layers.is_empty() { layer } else { self.layers.start.min(layer) };
            self.layers = first..self.layers.end.max(layer + 1);
        }
    }

    /// Returns the work of all kinds together.
    pub fn total(&self) -> u64 {
        self.work.iter().fold(0, |sum, work| sum.saturating_add(*work))
    }
}

/// A submission with its time.
#[derive(Debug, Clone, PartialEq)]
pub struct SubmissionTime {
    /// Seconds on the device from begin to end.
    pub seconds: f64,
    /// Work that the submission held.
    pub held: SubmissionWork,
}

/// Pace of one device. Existing waits measure the time of every submission of a model's commands.
/// Only the first few submissions of a kind need an extra wait.
#[derive(Debug)]
pub struct DevicePace {
    /// Picoseconds per unit of work that a simulated clock reports, for tests.
    work_clock: Option<u64>,
    measured: Mutex<MeasuredPace>,
}

#[derive(Debug, Default)]
struct MeasuredPace {
    kinds: [KindPace; WorkKind::ALL.len()],
    longest: Option<SubmissionTime>,
}

/// Pace of one kind of work.
#[derive(Debug, Default, Clone)]
struct KindPace {
    /// Seconds per unit of work of the latest submissions, 0 if empty, and the index of the next
    /// entry.
    recent: [f64; RECENT],
    next: usize,
    /// Maximum of `recent`.
    slowest: f64,
    /// Work of the largest submission so far.
    largest: u64,
    /// Submissions timed so far.
    timed: usize,
}

impl KindPace {
    /// Records that `work` took `seconds`.
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
    /// Returns the most work of one kind that a submission may hold. A kind without times is
    /// assumed to be as slow as the slowest kind.
    fn most(&self, kind: WorkKind) -> u64 {
        let of = &self.kinds[kind as usize];
        let slowest = match of.slowest {
            0.0 => self.kinds.iter().map(|of| of.slowest).fold(0.0, f64::max),
            slowest => slowest,
        };
        // Without any time, this is `u64::MAX`.
        let in_time = (TARGET / slowest) as u64;
        in_time.min(of.largest.saturating_mul(GROWTH).max(kind.first_work())).max(kind.least_work())
    }

    /// Returns for each kind its work as a fraction of the most work that a submission may hold.
    fn fractions(&self, held: &SubmissionWork) -> [f64; WorkKind::ALL.len()] {
        WorkKind::ALL.map(|kind| held.work[kind as usize] as f64 / self.most(kind) as f64)
    }
}

impl DevicePace {
    /// Creates the pace of a device without any times.
    pub(super) fn new(faults: &FaultCounter) -> Self {
        DevicePace { work_clock: faults.work_clock(), measured: Mutex::default() }
    }

    /// Returns the most work of one kind that a submission may hold.
    pub fn most(&self, kind: WorkKind) -> u64 {
        self.measured.lock().most(kind)
    }

    /// True if adding `work` of `kind` to a submission with other work would exceed the limit.
    pub fn is_full(&self, held: &SubmissionWork, kind: WorkKind, work: u64) -> bool {
        let measured = self.measured.lock();
        let before: f64 = measured.fractions(held).iter().sum();
        let more = work as f64 / measured.most(kind) as f64;
        before > 0.0 && before + more > 1.0
    }

    /// True if a submission of `held` is one of the first of its main kind of work. The caller must
    /// then wait for it.
    pub fn is_new(&self, held: &SubmissionWork) -> bool {
        let measured = self.measured.lock();
        let kind = largest(&measured.fractions(held));
        kind.is_some_and(|kind| measured.kinds[kind].timed < FIRST)
    }

    /// Records that a submission of `held` took `seconds`; `None` if its end is not known.
    pub fn note(&self, held: &SubmissionWork, seconds: Option<f64>) {
        let slow = self.work_clock.map(|picoseconds| held.total() as f64 * picoseconds as f64 * 1e-12);
        let Some(seconds) = slow.or(seconds) else { return };
        let mut measured = self.measured.lock();
        let fractions = measured.fractions(held);
        let Some(kind) = largest(&fractions) else { return };
        // The other kinds of work took their share of the time.
        let part = fractions[kind] / fractions.iter().sum::<f64>();
        measured.kinds[kind].learn(held.work[kind], seconds * part);
        if measured.longest.as_ref().is_none_or(|longest| seconds > longest.seconds) {
            measured.longest = Some(SubmissionTime { seconds, held: held.clone() });
        }
    }

    /// Returns the longest submission since the device was opened or since
    /// [`DevicePace::forget_longest`].
    pub fn longest(&self) -> Option<SubmissionTime> {
        self.measured.lock().longest.clone()
    }

    /// Forgets the longest submission. The pace does not change.
    pub fn forget_longest(&self) {
        self.measured.lock().longest = None;
    }
}

/// Returns the number of the kind with the largest fraction, if any fraction is above 0.
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

    /// Submits as much as the pace allows, `times` times, to a device that takes `seconds` per
    /// unit. Returns the times.
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
        // The clock drops to a fifth.
        let times = submitted(&pace, WorkKind::Prompt, 5e-12, 3);
        assert!(times[0] > 0.1 && times[1..].iter().all(|time| *time < 0.1), "{times:?}");
        submitted(&pace, WorkKind::Prompt, 1e-12, RECENT - 1);
        assert!(pace.most(WorkKind::Prompt) < before);
        submitted(&pace, WorkKind::Prompt, 1e-12, 4);
        assert!(pace.most(WorkKind::Prompt).abs_diff(before) < before / 1000);
        // A suspended machine must not stop all computation on the device.
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
        // Half the limit of each kind is together the limit of a submission.
        let mut both = held(WorkKind::Prompt, pace.most(WorkKind::Prompt) / 2);
        assert!(!pace.is_full(&both, WorkKind::Scores, pace.most(WorkKind::Scores) / 2));
        assert!(pace.is_full(&both, WorkKind::Scores, pace.most(WorkKind::Scores)));
        assert!(!pace.is_full(&SubmissionWork::new(1), WorkKind::Token, u64::MAX), "nothing is there to go ahead");
        // A mixed submission sets the pace of its main kind, by that kind's share of the time.
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
