//! Health of a device: the reason of its loss, and what is done without because of it.

use std::{
    fmt::Display,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use thermocline_shaders::KernelFeatures;

use super::{AdapterId, CrashSentinel, Fallback, FallbackPart, Fallbacks, FaultCounter, RiskyStep};
use crate::GpuFeature;
use thermocline_base::error::{Error, GpuFailure, Result, first_line, root_cause};

/// Why a device was lost, once it is. Callbacks of the driver write it, from any thread.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    adapter: Arc<AdapterId>,
    fallbacks: Fallbacks,
    lost: Arc<OnceLock<String>>,
    /// Kind of the failure that led to the loss, where it is known.
    cause: Arc<OnceLock<GpuFailure>>,
    /// A failure on purpose: memory is not there when it is first used, so that the next
    /// submission fails.
    pub hollow: Arc<AtomicBool>,
}

impl Health {
    /// The health of a device of `adapter`; what is to be done without is added to `fallbacks`.
    pub fn new(adapter: AdapterId, fallbacks: Fallbacks) -> Self {
        let (lost, cause, hollow) = (Arc::default(), Arc::default(), Arc::default());
        Health { adapter: Arc::new(adapter), fallbacks, lost, cause, hollow }
    }

    /// Parts of the adapter that are done without by now.
    pub fn fallbacks(&self) -> Vec<Fallback> {
        self.fallbacks.of(&self.adapter)
    }

    /// Gives up a feature because of `why`.
    pub fn give_up(&self, feature: GpuFeature, why: &str) {
        let (adapter, part) = (AdapterId::clone(&self.adapter), FallbackPart::Feature(feature));
        self.fallbacks.add(Fallback::new(adapter, part, why));
    }

    /// The sentinel of a step: `part` is given up if the process ends before it is dropped. `when` ends the sentence that says so.
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

    /// The same for the compilation of a kernel with these features.
    pub fn guard_kernel(&self, kernel: &str, used: KernelFeatures, faults: &FaultCounter) -> Option<CrashSentinel> {
        let part = self.fallbacks.next_part(&self.adapter, used);
        self.guard(RiskyStep::Pipeline, part, &format!("while the kernel `{kernel}` was compiled"), faults)
    }

    /// The error of a kernel that the driver refused or was lost with, because of `why`; the most doubtful feature of those that it
    /// `used` is given up.
    pub fn refused(&self, kernel: &'static str, used: KernelFeatures, why: &str) -> Error {
        let failure = GpuFailure::Refused { kernel, used };
        // Another thread's kernel may have met the same loss.
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

    /// Declares the device lost; the first reason stays, its first line for people and all of it for the log.
    pub fn lose(&self, reason: &str) {
        if self.lost.set(first_line(reason)).is_ok() {
            tracing::warn!(adapter = self.adapter.name, reason, "GPU lost");
        }
    }

    /// The same, for what `error` comes down to.
    pub fn lose_by(&self, error: &wgpu::Error) {
        if self.lost.set(root_cause(error)).is_ok() {
            tracing::warn!(adapter = self.adapter.name, %error, "GPU lost");
        }
    }

    /// Declares the device lost and returns the error that says so.
    pub fn lost(&self, reason: &str) -> Error {
        self.lose(reason);
        self.check().err().unwrap_or_else(|| self.failure(reason, GpuFailure::Lost))
    }

    pub fn reason(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// [`Error::Gpu`] once it is lost.
    pub fn check(&self) -> Result<()> {
        let failure = self.cause.get().copied().unwrap_or(GpuFailure::Lost);
        self.reason().map_or(Ok(()), |reason| Err(self.failure(reason, failure)))
    }

    /// [`Error::Gpu`] of a device that is not fit for what was asked of it.
    pub fn error(&self, reason: impl ToString) -> Error {
        self.failure(reason, GpuFailure::Unfit)
    }

    /// [`Error::Gpu`] of this kind.
    pub fn failure(&self, reason: impl ToString, failure: GpuFailure) -> Error {
        Error::Gpu { adapter: self.adapter.name.clone(), reason: reason.to_string(), failure }
    }

    /// [`Error::Gpu`] that says in a line that `what` failed and what `error` comes down to. All of `error` goes to the log.
    pub fn failed(&self, what: impl Display, error: &(dyn std::error::Error + 'static)) -> Error {
        tracing::warn!(adapter = self.adapter.name, %what, %error, "GPU refused");
        self.failure(format!("{what}: {}", root_cause(error)), GpuFailure::Lost)
    }
}
