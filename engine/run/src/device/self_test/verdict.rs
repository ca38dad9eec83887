//! Results of a self-test: which kernels a device computes as the CPU does, and which features it can be trusted with.

use std::fmt;

use serde::{Deserialize, Serialize};

use thermocline_gpu::{GpuFeature, LargestError};

/// Result of one kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum KernelOutcome {
    /// Its results are the CPU's, but for rounding.
    Right {
        /// Largest error, relative to the result, or of products to the sum of their terms' magnitudes.
        difference: f64,
    },
    /// Its results are others.
    Wrong {
        /// The same; `None` if a result is no number.
        difference: Option<f64>,
    },
    /// It did not run.
    Failed {
        /// Message of the driver.
        reason: String,
    },
}

/// Result of one kernel, with weights of one type, in one of its texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelVerdict {
    /// Name of the kernel.
    pub kernel: String,
    /// Type of the weights that it read.
    pub weights: Option<String>,
    /// The most doubtful feature that the text uses; `None`: it runs on every device.
    pub feature: Option<GpuFeature>,
    /// The result.
    #[serde(flatten)]
    pub outcome: KernelOutcome,
    /// Time until the results were read back, compilation included.
    pub milliseconds: f64,
}

/// Results of all kernels.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SelfTest {
    /// One row per kernel, type of weights and text.
    pub rows: Vec<KernelVerdict>,
    /// Time of all.
    pub milliseconds: f64,
}

impl KernelOutcome {
    pub(super) fn of(difference: LargestError) -> Self {
        match difference {
            right if right.is_right() => KernelOutcome::Right { difference: right.largest },
            wrong => KernelOutcome::Wrong { difference: Some(wrong.largest).filter(|largest| largest.is_finite()) },
        }
    }

    /// The worse of both: what failed before what is wrong before what is right.
    pub(super) fn take_worse(&mut self, other: KernelOutcome) {
        let rank = |outcome: &KernelOutcome| match outcome {
            KernelOutcome::Right { difference } => (0, *difference),
            KernelOutcome::Wrong { difference } => (1, difference.unwrap_or(f64::INFINITY)),
            KernelOutcome::Failed { .. } => (2, 0.0),
        };
        if rank(&other) > rank(self) {
            *self = other;
        }
    }

    /// True for the CPU's results.
    pub fn is_right(&self) -> bool {
        matches!(self, KernelOutcome::Right { .. })
    }
}

impl fmt::Display for KernelOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelOutcome::Right { difference } => write!(f, "ok, differs by {difference:.1e}"),
            KernelOutcome::Wrong { difference: Some(difference) } => write!(f, "wrong, differs by {difference:.1e}"),
            KernelOutcome::Wrong { difference: None } => f.write_str("wrong, a result is no number"),
            KernelOutcome::Failed { reason } => f.write_str(reason),
        }
    }
}

impl KernelVerdict {
    /// Kernel and weights: `gemv Q4_0`.
    pub fn name(&self) -> String {
        self.weights.as_ref().map_or_else(|| self.kernel.clone(), |weights| format!("{} {weights}", self.kernel))
    }

    /// Name of the feature that the text uses, or that it uses none.
    pub fn text(&self) -> &'static str {
        self.feature.map_or("plain", GpuFeature::name)
    }
}

impl SelfTest {
    /// Features that a kernel was wrong with, and right without, most doubtful first; empty if all were right.
    pub fn failed_features(&self) -> Vec<GpuFeature> {
        let plain_is_wrong = |row: &KernelVerdict| {
            let same = |it: &&KernelVerdict| it.feature.is_none() && it.name() == row.name();
            self.rows.iter().filter(same).any(|it| !it.outcome.is_right())
        };
        let wrong: Vec<_> = self.rows.iter().filter(|row| !row.outcome.is_right() && !plain_is_wrong(row)).collect();
        GpuFeature::ALL.into_iter().filter(|feature| wrong.iter().any(|row| row.feature == Some(*feature))).collect()
    }

    /// The first kernel that is wrong without any feature: such a device is of no use.
    pub fn wrong_kernel(&self) -> Option<&KernelVerdict> {
        self.first_wrong(None)
    }

    /// The first kernel that is wrong in a text with this most doubtful feature.
    pub fn first_wrong(&self, feature: Option<GpuFeature>) -> Option<&KernelVerdict> {
        self.rows.iter().find(|row| row.feature == feature && !row.outcome.is_right())
    }

    /// True if every kernel was right in every text.
    pub fn is_right(&self) -> bool {
        self.rows.iter().all(|row| row.outcome.is_right())
    }

    /// The rows that were not right, as one line: `gemv Q4_0 (subgroups): wrong, differs by 1.0e0`.
    pub fn faults(&self) -> String {
        let wrong = self.rows.iter().filter(|row| !row.outcome.is_right());
        let lines: Vec<String> = wrong.map(|row| format!("{} ({}): {}", row.name(), row.text(), row.outcome)).collect();
        lines.join("; ")
    }
}
