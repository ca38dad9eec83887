//! A progress bar for what takes longer than a second, on a terminal.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

/// What the bar counts.
#[derive(Debug, Clone, Copy)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Tokens.
    Tokens,
    /// Weights of a model.
    Weights,
    /// Runs of a benchmark.
    Runs,
    /// Shares of work of which the caller knows the time left.
    Share,
}

/// Appears on standard error once a second has passed; vanishes when dropped.
#[derive(Debug)]
pub struct Progress {
    label: &'static str,
    unit: Unit,
    started: Instant,
    terminal: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Nothing to see yet.
    pub fn new(label: &'static str, unit: Unit) -> Self {
        Progress { label, unit, started: Instant::now(), terminal: std::io::stderr().is_terminal(), bar: None }
    }

    /// `done` of `total`.
    pub fn set(&mut self, done: u64, total: u64) {
        if !self.terminal {
            return;
        }
        if self.bar.is_none() && self.started.elapsed() > Duration::from_secs(1) {
            let template = match self.unit {
                Unit::Bytes => "{msg} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
                Unit::Tokens => "{msg} {wide_bar} {pos}/{len} tokens {eta}",
                Unit::Weights => "{msg} {wide_bar} {percent} % of {human_len} weights {eta}",
                Unit::Runs => "{msg} {wide_bar} run {pos}/{len} {eta}",
                Unit::Share => "{msg} {wide_bar} {percent} % {prefix}",
            };
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            self.bar = Some(ProgressBar::new(total).with_style(style).with_message(self.label));
        }
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    /// A share from 0 to 1, and the seconds that are left.
    pub fn set_share(&mut self, done: f64, seconds_left: Option<f64>) {
        const STEPS: f64 = 1e4;
        self.set((done * STEPS) as u64, STEPS as u64);
        if let (Some(bar), Some(seconds)) = (&self.bar, seconds_left) {
            let left = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
            bar.set_prefix(HumanDuration(left).to_string());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
