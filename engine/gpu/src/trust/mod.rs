//! Distrust of drivers. A driver may refuse a kernel, compute wrong numbers, hang, or end the
//! process. A [`Fallback`] then disables a part of the GPU: the most doubtful feature in use, or
//! else the adapter over that backend. [`Fallbacks`] records them, on disk per adapter, driver
//! version and program version.
//!
//! [`Health`] adds failures that the program survives. A [`CrashSentinel`] reports, at the next
//! start, a step that the program did not survive. [`known_drivers`] lists failures that others
//! have reported. [`creation`] lets only one thread at a time create objects, after the window.
//! [`faults`] simulates failures in tests. [`self_test`](fn@self_test) runs every kernel
//! before the first token. Pacing is [`crate::DevicePace`].

mod creation;
mod fallback;
mod fallback_file;
mod fallbacks;
mod faults;
mod health;
mod known_drivers;
mod self_test;
mod sentinel;

pub(super) use creation::after_first_frame;
pub use creation::{AwaitedFrame, CreationLock};
pub use fallback::{AdapterId, Fallback, FallbackPart};
pub use fallbacks::Fallbacks;
pub(super) use faults::FaultCounter;
pub use faults::{FaultPoint, Faults, KernelMutation};
pub(super) use health::Health;
pub use self_test::{CaseBench, CaseDifference, KernelOutcome, KernelVerdict, SelfTest, self_test};
pub use sentinel::{CrashSentinel, RiskyStep, withdraw_sentinels};
