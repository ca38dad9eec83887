//! What is asked of a preparation, and how far it is.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Instant,
};

use serde::{Deserialize, Serialize};

use crate::{
    cpu::CpuOptions,
    error::{Error, Result},
    sparsity::predictor::{CutGoal, Target},
};

/// What the model reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Corpus {
    /// What it writes itself, asked by prompts of ours.
    #[default]
    Generated,
    /// Files of text. `<|endoftext|>` ends a document.
    Files(Vec<PathBuf>),
    /// Texts that are tokens already.
    Tokens(Vec<Vec<u32>>),
}

impl fmt::Display for Corpus {
    /// In words, as sidecars have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Corpus::Generated => f.write_str("written by the model itself"),
            Corpus::Tokens(texts) => write!(f, "{} texts", texts.len()),
            Corpus::Files(paths) => {
                let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                f.write_str(&paths.iter().map(name).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Which predictors a layer may get.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PredictorChoice {
    /// Of all kinds, the one that costs a token least, if that is less than without.
    #[default]
    Auto,
    /// One that is trained, whatever it costs.
    Trained,
    /// The firing rows in few bits, whatever they cost.
    Rows,
    /// None.
    None,
}

/// How to prepare a model. Start from [`PrepareOptions::new`].
#[derive(Debug, Clone)]
pub struct PrepareOptions {
    /// The sidecar to write; the workspace is a folder beside it.
    pub out: PathBuf,
    /// What the model reads.
    pub corpus: Corpus,
    /// Tokens to read (fewer, if the files have no more).
    pub tokens: u64,
    /// Most tokens of one text; longer documents are cut.
    pub length: usize,
    /// Most bytes of disk for what the FFNs were given; if the text gives more, some of it is only counted.
    pub disk: u64,
    /// What predictors are to find.
    pub target: Target,
    /// Which predictors.
    pub predictors: PredictorChoice,
    /// What cuts are chosen for, in models whose activations are never exactly zero.
    pub cut: CutGoal,
    /// Whether the down projections by neurons become part of the sidecar. Without them they are turned each time the model
    /// is loaded for sparse work.
    pub down: bool,
    /// Everything random follows from it.
    pub seed: u64,
    /// Threads and instruction set.
    pub cpu: CpuOptions,
}

impl PrepareOptions {
    /// The defaults, for a sidecar at `out`.
    pub fn new(out: impl Into<PathBuf>) -> Self {
        PrepareOptions {
            out: out.into(),
            corpus: Corpus::Generated,
            tokens: 32 << 10,
            length: 512,
            disk: 8 << 30,
            target: Target::default(),
            predictors: PredictorChoice::Auto,
            cut: CutGoal::Sparsity(0.5),
            down: true,
            seed: 0,
            cpu: CpuOptions::default(),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.tokens == 0 {
            return Err(Error::invalid("tokens to read", "at least 1", 0));
        }
        if self.length < 2 {
            return Err(Error::invalid("tokens of a text", "at least 2", self.length));
        }
        for (what, share) in [("target recall", self.target.recall), ("target mass recall", self.target.mass)] {
            if !(0.0..=1.0).contains(&share) {
                return Err(Error::invalid(what, "a share from 0 to 1", share));
            }
        }
        if self.out.file_name().is_none() {
            return Err(Error::invalid("sidecar", "the name of a file", self.out.display()));
        }
        Ok(())
    }

    /// Where unfinished work is kept: a hidden folder beside the sidecar.
    pub fn workspace(&self) -> PathBuf {
        let name = self.out.file_name().unwrap_or_default().to_string_lossy();
        self.out.parent().unwrap_or(Path::new("")).join(format!(".{name}.work"))
    }
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Text runs through the model.
    Reading,
    /// Layers get their predictors, cuts and down projections.
    Layers,
    /// The sidecar is written.
    Writing,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// Share of the phase that is done, from 0 to 1.
    pub done: f64,
    /// Seconds the phase will still take, as far as can be told.
    pub seconds_left: Option<f64>,
    /// The layer worked on, in [`Phase::Layers`].
    pub layer: Option<usize>,
}

/// Tells from the time taken so far what is left.
#[derive(Debug)]
pub(super) struct Meter {
    phase: Phase,
    started: Instant,
    /// Share of the phase that took no time, being done already.
    skipped: f64,
}

impl Meter {
    pub(super) fn new(phase: Phase) -> Self {
        Meter { phase, started: Instant::now(), skipped: 0.0 }
    }

    /// A share of the phase was done before.
    pub(super) fn skip(&mut self, share: f64) {
        self.skipped += share;
    }

    /// `done` is the share of the whole phase.
    pub(super) fn progress(&self, done: f64, layer: Option<usize>) -> Progress {
        let (worked, seconds) = (done - self.skipped, self.started.elapsed().as_secs_f64());
        // The first moments say little.
        let seconds_left = (worked > 0.01 && seconds > 1.0).then(|| seconds * (1.0 - done).max(0.0) / worked);
        Progress { phase: self.phase, done: done.clamp(0.0, 1.0), seconds_left, layer }
    }
}
