//! Results of a self-test: which kernels a device computes correctly, and which features are
//! reliable.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{GpuFeature, LargestError};

/// Result of one kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum KernelOutcome {
    /// The results equal the CPU's, up to rounding.
    Right {
        /// Largest error relative to the result; for products, relative to the sum of the terms'
        /// magnitudes.
        difference: f64,
    },
    /// The results differ from the CPU's.
    Wrong {
        /// Largest error; `None` if it is not finite.
        difference: Option<f64>,
    },
    /// The kernel did not run.
    Failed {
        /// The driver's message.
        reason: String,
    },
}

/// Result of one kernel variant with weights of one type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelVerdict {
    /// Name of the kernel.
    pub kernel: String,
    /// Type of the weights that the kernel read.
    pub weights: Option<String>,
    /// The least trusted feature that the variant uses. `None` if it runs on every device.
    pub feature: Option<GpuFeature>,
    /// Whether the kernel ran and was right.
    #[serde(flatten)]
    pub outcome: KernelOutcome,
    /// Milliseconds until the results were read back, compilation included.
    pub milliseconds: f64,
}

/// Results of all kernels.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SelfTest {
    /// One row per kernel, weight type and variant.
    pub rows: Vec<KernelVerdict>,
    /// Milliseconds of the whole test.
    pub milliseconds: f64,
}

impl KernelOutcome {
    pub(super) fn of(difference: LargestError) -> Self {
        match difference {
            right if right.is_right() => KernelOutcome::Right { difference: right.largest },
            wrong => KernelOutcome::Wrong { difference: Some(wrong.largest).filter(|largest| largest.is_finite()) },
        }
    }

    /// Keeps the worse outcome: failed is worse than wrong, and wrong is worse than right.
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

    /// True if the results equal the CPU's.
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

    /// Name of the feature that the variant uses, or `plain`.
    pub fn text(&self) -> &'static str {
        self.feature.map_or("plain", GpuFeature::name)
    }
}

impl SelfTest {
    /// Features that made a kernel wrong, although it was right without them, least trusted first.
    /// Empty if all were right.
    pub fn failed_features(&self) -> Vec<GpuFeature> {
        let plain_is_wrong = |row: &KernelVerdict| {
            let same = |it: &&KernelVerdict| it.feature.is_none() && it.name() == row.name();
            self.rows.iter().filter(same).any(|it| !it.outcome.is_right())
        };
        let wrong: Vec<_> = self.rows.iter().filter(|row| !row.outcome.is_right() && !plain_is_wrong(row)).collect();
        GpuFeature::ALL.into_iter().filter(|feature| wrong.iter().any(|row| row.feature == Some(*feature))).collect()
    }

    /// The first kernel that is wrong without any feature. Such a device cannot be used.
    pub fn wrong_kernel(&self) -> Option<&KernelVerdict> {
        self.first_wrong(None)
    }

    /// The first kernel that is wrong in a variant with this least trusted feature.
    pub fn first_wrong(&self, feature: Option<GpuFeature>) -> Option<&KernelVerdict> {
        self.rows.iter().find(|row| row.feature == feature && !row.outcome.is_right())
    }

    /// True if every kernel was right in every variant.
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
