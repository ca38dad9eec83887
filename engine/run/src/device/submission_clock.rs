//! The clock of submissions: from when to when the device worked on each, as far as waiting tells.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use thermocline_base::error::Result;
use thermocline_gpu::{DevicePace, SubmissionWork};

/// A wait that took so long ended when the submission did; the end of a shorter one may have been long before.
const WAITED: Duration = Duration::from_micros(50);
/// A submission that was done within this time took at most this time, whenever it ended.
const SHORT: Duration = Duration::from_millis(15);

/// Submissions that were made and not waited for, and the time at which the device was done with those before.
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
    /// Notes a submission that was begun at `submitted`; returns its number.
    pub fn submitted(&mut self, submitted: Instant, held: SubmissionWork) -> u64 {
        self.made += 1;
        self.pending.push(PendingSubmission { number: self.made, submitted, held });
        self.made
    }

    /// Forgets submissions that nothing will wait for: those of a pass that was given up before its hand-over was taken. The next
    /// wait would count the pause since then as their time.
    pub fn forget(&mut self) {
        self.pending.clear();
    }

    /// Waits, by `wait`, for the submission of this number and those before it, and tells `pace` their times. Several that are
    /// waited for at once share the time in proportion to their work.
    ///
    /// # Errors
    /// Those of `wait`.
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
        // The third began when the second was done, not when it was submitted.
        clock.wait(pace, third, waits(20)).unwrap();
        let (seconds, _) = longest().unwrap();
        assert!((0.02..0.2).contains(&seconds), "{seconds}");
        // Those that may have ended at any moment of a pause say nothing; a thread may be stopped in the middle of a wait.
        let known = (0..5).filter(|_| {
            pace.forget_longest();
            let idle = clock.submitted(Instant::now(), held(1));
            sleep(Duration::from_millis(30));
            clock.wait(pace, idle, || Ok(())).unwrap();
            longest().is_some()
        });
        assert!(known.count() < 3);
        // What is forgotten says nothing either.
        pace.forget_longest();
        clock.submitted(Instant::now(), held(1 << 30));
        sleep(Duration::from_millis(60));
        clock.forget();
        let next = clock.submitted(Instant::now(), held(1));
        clock.wait(pace, next, waits(20)).unwrap();
        assert_eq!(longest().map(|(_, work)| work), Some(1));
        // Nothing is left to wait for, and an error says nothing.
        pace.forget_longest();
        clock.wait(pace, third, waits(5)).unwrap();
        let lost = clock.submitted(Instant::now(), held(1));
        assert!(clock.wait::<()>(pace, lost, || Err(thermocline_base::error::Error::Cancelled)).is_err());
        assert_eq!(longest(), None);
    }
}
