//! Times and counts of a generation, and the events that report them.

use std::time::{Duration, Instant};

use super::{Event, GenerationStats, context::SessionContext, request::EventSender, step_times::StepTimes};
use thermocline_base::telemetry::Meter;

/// Shortest interval between two [`Event::Stats`].
const STATS_INTERVAL: Duration = Duration::from_millis(250);

/// Times and counts of a generation so far.
#[derive(Debug)]
pub(super) struct GenerationProgress {
    pub requested_at: Instant,
    reported_at: Instant,
    /// Number of steps that computed one token, and their total time.
    pub single_steps: (usize, Duration),
    /// Step times of the latest token; empty if it was not timed.
    pub step_times: StepTimes,
    pub stats: GenerationStats,
}

impl GenerationProgress {
    pub fn new(requested_at: Instant, stats: GenerationStats) -> Self {
        let (reported_at, single_steps) = (Instant::now(), (0, Duration::ZERO));
        GenerationProgress { requested_at, reported_at, single_steps, step_times: StepTimes::default(), stats }
    }

    pub fn add_time(&mut self, in_prompt: bool, time: Duration) {
        *if in_prompt { &mut self.stats.prompt_time } else { &mut self.stats.decode_time } += time;
    }

    /// Records a pass of `chunk` tokens that took `time`.
    pub fn update(
        &mut self,
        in_prompt: bool,
        chunk: usize,
        complete: bool,
        time: Duration,
        context: &SessionContext,
        meter: &mut Meter<'_>,
    ) {
        self.add_time(in_prompt, time);
        if in_prompt {
            meter.prompt(chunk, time);
        } else if complete {
            self.stats.decode_steps += chunk;
            meter.decode(chunk, 1, time);
        }
        self.stats.context_used = context.tokens().len();
        meter.context(context.tokens().len(), context.capacity());
    }

    /// Sends the statistics if they are due. False if the receiver is gone.
    pub fn report(&mut self, events: &EventSender) -> bool {
        if self.reported_at.elapsed() < STATS_INTERVAL {
            return true;
        }
        self.reported_at = Instant::now();
        events.send(Event::Stats(self.stats.clone()))
    }
}
