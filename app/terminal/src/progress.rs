//! A progress bar on the terminal for work that takes longer than a second.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

/// Unit of a progress bar.
#[derive(Debug, Clone, Copy)]
pub enum ProgressUnit {
    /// Bytes.
    Bytes,
    /// Tokens.
    Tokens,
    /// Weights of a model.
    Weights,
    /// Runs of a benchmark.
    Runs,
    /// A fraction of the work. The caller provides the remaining time.
    Fraction,
}

/// A progress bar that appears on standard error after a second and vanishes when dropped.
#[derive(Debug)]
pub struct TerminalProgress {
    label: &'static str,
    unit: ProgressUnit,
    started: Instant,
    terminal: bool,
    bar: Option<ProgressBar>,
}

impl TerminalProgress {
    /// Creates a bar that is not shown yet.
    pub fn new(label: &'static str, unit: ProgressUnit) -> Self {
        TerminalProgress { label, unit, started: Instant::now(), terminal: std::io::stderr().is_terminal(), bar: None }
    }

    /// Sets the position to `done` of `total`.
    pub fn set(&mut self, done: u64, total: u64) {
        if !self.terminal {
            return;
        }
        if self.bar.is_none() && self.started.elapsed() > Duration::from_secs(1) {
            let template = match self.unit {
                ProgressUnit::Bytes => "{msg} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
                ProgressUnit::Tokens => "{msg} {wide_bar} {pos}/{len} tokens {eta}",
                ProgressUnit::Weights => "{msg} {wide_bar} {percent} % of {human_len} weights {eta}",
                ProgressUnit::Runs => "{msg} {wide_bar} run {pos}/{len} {eta}",
                ProgressUnit::Fraction => "{msg} {wide_bar} {percent} % {prefix}",
            };
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            self.bar = Some(ProgressBar::new(total).with_style(style).with_message(self.label));
        }
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    /// Sets the position to a fraction from 0 to 1, and the remaining seconds.
    pub fn set_fraction(&mut self, done: f64, seconds_left: Option<f64>) {
        const STEPS: f64 = 1e4;
        self.set((done * STEPS) as u64, STEPS as u64);
        if let (Some(bar), Some(seconds)) = (&self.bar, seconds_left) {
            let left = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
            bar.set_prefix(HumanDuration(left).to_string());
        }
    }
}

impl Drop for TerminalProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
