//! Health of a device: the reason of its loss, and the parts that are disabled because of it.

use std::{
    fmt::Display,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use thermocline_shaders::KernelFeatures;

use super::{AdapterId, CrashSentinel, Fallback, FallbackPart, Fallbacks, FaultCounter, RiskyStep};
use crate::GpuFeature;
use thermocline_base::error::{Error, GpuFailure, Result, first_line, root_cause};

/// Why a device was lost, if it was. The driver's callbacks set it from any thread.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    adapter: Arc<AdapterId>,
    fallbacks: Fallbacks,
    lost: Arc<OnceLock<String>>,
    /// Kind of the failure that led to the loss, if known.
    cause: Arc<OnceLock<GpuFailure>>,
    /// A simulated failure: memory is missing at first use, so that the next submission fails.
    pub hollow: Arc<AtomicBool>,
}

impl Health {
    /// Creates the health of a device of `adapter`. Failures are added to `fallbacks`.
    pub fn new(adapter: AdapterId, fallbacks: Fallbacks) -> Self {
        let (lost, cause, hollow) = (Arc::default(), Arc::default(), Arc::default());
        Health { adapter: Arc::new(adapter), fallbacks, lost, cause, hollow }
    }

    /// Returns the parts of the adapter that are disabled by now.
    pub fn fallbacks(&self) -> Vec<Fallback> {
        self.fallbacks.of(&self.adapter)
    }

    /// Disables a feature because of `why`.
    pub fn give_up(&self, feature: GpuFeature, why: &str) {
        let (adapter, part) = (AdapterId::clone(&self.adapter), FallbackPart::Feature(feature));
        self.fallbacks.add(Fallback::new(adapter, part, why));
    }

    /// Returns the sentinel of a step. If the process ends before the sentinel is dropped, `part`
    /// is disabled. `when` ends the message about it.
    pub fn guard(
        &self,
        step: RiskyStep,
        part: FallbackPart,
        when: &str,
        faults: &FaultCounter,
    ) -> Option<CrashSentinel> {
        let why = format!("the program ended {when}");
        self.fallbacks.guard(step, &Fallback::new(AdapterId::clone(&self.adapter), part, &why), faults)
    }

    /// Returns the sentinel for compiling a kernel that uses these features.
    pub fn guard_kernel(&self, kernel: &str, used: KernelFeatures, faults: &FaultCounter) -> Option<CrashSentinel> {
        let part = self.fallbacks.next_part(&self.adapter, used);
        self.guard(RiskyStep::Pipeline, part, &format!("while the kernel `{kernel}` was compiled"), faults)
    }

    /// Returns the error of a kernel that the driver refused or that lost the device, because of
    /// `why`. Disables the most doubtful feature that the kernel `used`.
    pub fn refused(&self, kernel: &'static str, used: KernelFeatures, why: &str) -> Error {
        let failure = GpuFailure::Refused { kernel, used };
        // Another thread's kernel may have already reported the same loss.
        if self.reason().is_none() || self.cause.set(failure).is_ok() {
            self.fallbacks.step(&self.adapter, used, why);
        }
        Error::Gpu { adapter: self.adapter.name.clone(), reason: first_line(why), failure }
    }

    /// Declares that the device does not answer.
    pub fn hang(&self, reason: &str) {
        if self.reason().is_none() {
            // The first cause stays.
            let _ = self.cause.set(GpuFailure::Hang);
        }
        self.lose(reason);
    }

    /// Declares the device lost. The first reason is kept: its first line for users, all of it in
    /// the log.
    pub fn lose(&self, reason: &str) {
        if self.lost.set(first_line(reason)).is_ok() {
            tracing::warn!(adapter = self.adapter.name, reason, "the GPU was lost");
        }
    }

    /// Declares the device lost, with the root cause of `error` as the reason.
    pub fn lose_by(&self, error: &wgpu::Error) {
        if self.lost.set(root_cause(error)).is_ok() {
            tracing::warn!(adapter = self.adapter.name, %error, "the GPU was lost");
        }
    }

    /// Declares the device lost and returns the error.
    pub fn lost(&self, reason: &str) -> Error {
        self.lose(reason);
        self.check().err().unwrap_or_else(|| self.failure(reason, GpuFailure::Lost))
    }

    pub fn reason(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Returns [`Error::Gpu`] if the device is lost.
    pub fn check(&self) -> Result<()> {
        let failure = self.cause.get().copied().unwrap_or(GpuFailure::Lost);
        self.reason().map_or(Ok(()), |reason| Err(self.failure(reason, failure)))
    }

    /// Returns the [`Error::Gpu`] of a device that cannot do what the caller requested.
    pub fn error(&self, reason: impl ToString) -> Error {
        self.failure(reason, GpuFailure::Unfit)
    }

    /// Returns an [`Error::Gpu`] of the kind `failure`.
    pub fn failure(&self, reason: impl ToString, failure: GpuFailure) -> Error {
        Error::Gpu { adapter: self.adapter.name.clone(), reason: reason.to_string(), failure }
    }

    /// Returns an [`Error::Gpu`] with a one-line reason: `what` failed, and the root cause of
    /// `error`. The whole `error` is logged.
    pub fn failed(&self, what: impl Display, error: &(dyn std::error::Error + 'static)) -> Error {
        tracing::warn!(adapter = self.adapter.name, %what, %error, "the GPU driver reported an error");
        self.failure(format!("{what}: {}", root_cause(error)), GpuFailure::Lost)
    }
}
