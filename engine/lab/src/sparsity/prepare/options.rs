//! Options and progress of preparing a model.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Instant,
};

use serde::{Deserialize, Serialize};

use crate::sparsity::predictor::{Target, ThresholdGoal};
use thermocline_base::{
    error::{Error, Result},
    files::{self, Form},
};
use thermocline_cpu::CpuOptions;

/// Source of the text for the model to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PrepareCorpus {
    /// Text that the model generates from built-in prompts.
    #[default]
    Generated,
    /// Text files. `<|endoftext|>` ends a document.
    Files(Vec<PathBuf>),
    /// Texts as token ids.
    Tokens(Vec<Vec<u32>>),
}

impl fmt::Display for PrepareCorpus {
    /// Writes the description that sidecars store.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrepareCorpus::Generated => f.write_str("written by the model itself"),
            PrepareCorpus::Tokens(texts) => write!(f, "{} texts", texts.len()),
            PrepareCorpus::Files(paths) => {
                let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                f.write_str(&paths.iter().map(name).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Kinds of predictors that a layer may get.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PredictorChoice {
    /// The kind with the lowest cost per token, if it costs less than the exact gate.
    #[default]
    Auto,
    /// A trained predictor, at any cost.
    Trained,
    /// The firing rows in few bits, at any cost.
    Rows,
    /// No predictor.
    None,
}

/// Options of preparing a model. Start from [`PrepareOptions::new`].
#[derive(Debug, Clone)]
pub struct PrepareOptions {
    /// Sidecar to write. The workspace is a folder beside it.
    pub out: PathBuf,
    /// Text for the model to read.
    pub corpus: PrepareCorpus,
    /// Tokens to read. Files may have fewer.
    pub tokens: u64,
    /// Most tokens per text. Longer documents are divided.
    pub length: usize,
    /// Most bytes on disk for recorded FFN inputs. Beyond this limit, some text is only counted.
    pub disk: u64,
    /// Target recall of predictors.
    pub target: Target,
    /// Allowed kinds of predictors.
    pub predictors: PredictorChoice,
    /// Goal of activation thresholds, for models whose activations are never exactly zero.
    pub threshold_goal: ThresholdGoal,
    /// True to store neuron-major down projections in the sidecar. Otherwise they are transposed
    /// whenever the model is loaded for a sparse mode.
    pub down: bool,
    /// True to store each neuron's up row and down column (in layers with a predictor, also its
    /// gate row) side by side. This suits models that are larger than RAM. The sidecar grows by the
    /// up rows and gate rows.
    pub bundles: bool,
    /// True to find thresholds of product inputs, for input sparsity.
    pub inputs: bool,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Threads and instruction set to use.
    pub cpu: CpuOptions,
}

impl PrepareOptions {
    /// Returns the default options for a sidecar at `out`.
    pub fn new(out: impl Into<PathBuf>) -> Self {
        PrepareOptions {
            out: out.into(),
            corpus: PrepareCorpus::Generated,
            tokens: 32 << 10,
            length: 512,
            disk: 8 << 30,
            target: Target::default(),
            predictors: PredictorChoice::Auto,
            threshold_goal: ThresholdGoal::Sparsity(0.5),
            down: true,
            bundles: false,
            inputs: true,
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
        if self.bundles && !self.down {
            return Err(Error::invalid("bundles", "down projections in the sidecar", "no down projections"));
        }
        self.target.check()?;
        if self.out.file_name().is_none() {
            return Err(Error::invalid("sidecar", "the name of a file", self.out.display()));
        }
        // Checks now instead of failing hours later.
        files::check(&self.out, Form::Random)
    }

    /// Returns the folder of unfinished work, hidden beside the sidecar.
    pub fn workspace(&self) -> PathBuf {
        let name = self.out.file_name().unwrap_or_default().to_string_lossy();
        self.out.parent().unwrap_or(Path::new("")).join(format!(".{name}.work"))
    }
}

/// Phase of preparing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreparePhase {
    /// The model reads text.
    Reading,
    /// Layers get their predictors, activation thresholds and down projections.
    Layers,
    /// Layers get thresholds of their product inputs.
    Inputs,
    /// The sidecar is written.
    Writing,
}

/// Progress of preparing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrepareProgress {
    /// Phase in progress.
    pub phase: PreparePhase,
    /// Fraction of the phase that is done, from 0 to 1.
    pub done: f64,
    /// Estimated seconds left in the phase; `None` at its beginning.
    pub seconds_left: Option<f64>,
    /// Current layer, in [`PreparePhase::Layers`].
    pub layer: Option<usize>,
}

/// Estimates the time left in a phase from the time taken so far.
#[derive(Debug)]
pub(super) struct ProgressMeter {
    phase: PreparePhase,
    started: Instant,
    /// Fraction of the phase that an earlier run completed.
    skipped: f64,
}

impl ProgressMeter {
    pub fn new(phase: PreparePhase) -> Self {
        ProgressMeter { phase, started: Instant::now(), skipped: 0.0 }
    }

    /// Counts a fraction of the phase as completed by an earlier run.
    pub fn skip(&mut self, fraction: f64) {
        self.skipped += fraction;
    }

    /// Returns the progress at the fraction `done` of the whole phase.
    pub fn progress(&self, done: f64, layer: Option<usize>) -> PrepareProgress {
        let (worked, seconds) = (done - self.skipped, self.started.elapsed().as_secs_f64());
        // Before that, it is too early for an estimate.
        let seconds_left = (worked > 0.01 && seconds > 1.0).then(|| seconds * (1.0 - done).max(0.0) / worked);
        PrepareProgress { phase: self.phase, done: done.clamp(0.0, 1.0), seconds_left, layer }
    }
}
