//! The clock of submissions: when the device worked on each, as far as waiting shows.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use thermocline_base::error::Result;
use thermocline_gpu::{DevicePace, SubmissionWork};

/// After a wait of at least this time, the submission ended with the wait. After a shorter wait it
/// may have ended long before.
const WAITED: Duration = Duration::from_micros(50);
/// A submission that was finished within this time took at most this time, whenever it ended.
const SHORT: Duration = Duration::from_millis(15);

/// Submissions that have not been waited for, and the time at which the device finished the earlier
/// ones.
#[derive(Debug, Default)]
pub(super) struct SubmissionClock {
    pending: SmallVec<[PendingSubmission; 4]>,
    made: u64,
    ended: Option<Instant>,
}

#[derive(Debug)]
struct PendingSubmission {
    number: u64,
    submitted: Instant,
    held: SubmissionWork,
}

impl SubmissionClock {
    /// Notes a submission that began at `submitted`; returns its number.
    pub fn submitted(&mut self, submitted: Instant, held: SubmissionWork) -> u64 {
        self.made += 1;
        self.pending.push(PendingSubmission { number: self.made, submitted, held });
        self.made
    }

    /// Forgets submissions that will not be waited for, because their pass was given up before its
    /// hand-over was taken. Otherwise the next wait would count the pause since then as their time.
    pub fn forget(&mut self) {
        self.pending.clear();
    }

    /// Waits, by `wait`, for this submission and all earlier ones, and reports their times to
    /// `pace`. Submissions waited for together share the time in proportion to their work.
    ///
    /// # Errors
    /// The errors of `wait`.
    pub fn wait<R>(&mut self, pace: &DevicePace, number: u64, wait: impl FnOnce() -> Result<R>) -> Result<R> {
        let asked = Instant::now();
        let done = wait()?;
        let ended = Instant::now();
        let count = self.pending.iter().take_while(|it| it.number <= number).count();
        let all = &self.pending[..count];
        if let Some(first) = all.first() {
            let begun = self.ended.map_or(first.submitted, |before| before.max(first.submitted));
            let time = ended.saturating_duration_since(begun);
            let known = ended - asked >= WAITED || time <= SHORT;
            let work: f64 = all.iter().map(|it| it.held.total() as f64).sum();
            for it in all.iter().filter(|it| it.held.total() > 0) {
                let seconds = time.as_secs_f64() * it.held.total() as f64 / work;
                pace.note(&it.held, known.then_some(seconds));
            }
            self.pending.drain(..count);
            self.ended = Some(ended);
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;
    use thermocline_gpu::{AdapterChoice, Gpu, GpuOptions, WorkKind};

    fn held(work: u64) -> SubmissionWork {
        let mut held = SubmissionWork::new(100);
        held.add(WorkKind::Prompt, work, Some(1));
        held
    }

    #[test]
    fn times_are_those_of_waits_and_none_is_learned_after_a_pause() {
        let gpu = Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() }).unwrap();
        let (pace, mut clock) = (gpu.pace(), SubmissionClock::default());
        let waits = |millis| {
            move || {
                sleep(Duration::from_millis(millis));
                Ok(())
            }
        };
        let longest = || pace.longest().map(|it| (it.seconds, it.held.total()));
        let first = clock.submitted(Instant::now(), held(100));
        let second = clock.submitted(Instant::now(), held(300));
        let third = clock.submitted(Instant::now(), held(1));
        clock.wait(pace, second, waits(200)).unwrap();
        let (seconds, work) = longest().unwrap();
        assert!(work == 300 && seconds >= 0.14, "{seconds} s of {work}, the first's number {first}");
        pace.forget_longest();
        // The third began when the second ended, not when it was submitted.
        clock.wait(pace, third, waits(20)).unwrap();
        let (seconds, _) = longest().unwrap();
        assert!((0.02..0.2).contains(&seconds), "{seconds}");
        // Submissions that may have ended at any moment of a pause are not measured. A thread may
        // be paused in the middle of a wait.
        let known = (0..5).filter(|_| {
            pace.forget_longest();
            let idle = clock.submitted(Instant::now(), held(1));
            sleep(Duration::from_millis(30));
            clock.wait(pace, idle, || Ok(())).unwrap();
            longest().is_some()
        });
        assert!(known.count() < 3);
        // Forgotten submissions are not measured either.
        pace.forget_longest();
        clock.submitted(Instant::now(), held(1 << 30));
        sleep(Duration::from_millis(60));
        clock.forget();
        let next = clock.submitted(Instant::now(), held(1));
        clock.wait(pace, next, waits(20)).unwrap();
        assert_eq!(longest().map(|(_, work)| work), Some(1));
        // Without a submission to wait for, and after an error, nothing is measured.
        pace.forget_longest();
        clock.wait(pace, third, waits(5)).unwrap();
        let lost = clock.submitted(Instant::now(), held(1));
        assert!(clock.wait::<()>(pace, lost, || Err(thermocline_base::error::Error::Cancelled)).is_err());
        assert_eq!(longest(), None);
    }
}
