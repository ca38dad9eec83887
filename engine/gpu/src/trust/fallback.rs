//! One fallback: a part of an adapter that is disabled after its driver has failed with it.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::GpuFeature;
use thermocline_base::error::first_line;

/// Identity of an adapter: its card and driver.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct AdapterId {
    /// Name in the list of adapters.
    pub name: String,
    /// `vulkan`, `metal`, `dx12`.
    pub backend: String,
    /// Driver and its version.
    pub driver: String,
    /// PCI address. Empty if the driver does not report it.
    pub pci_bus_id: String,
}

impl AdapterId {
    /// Returns the identity of every adapter of a backend.
    pub(crate) fn of_backend(backend: &str) -> Self {
        AdapterId { backend: backend.to_owned(), ..AdapterId::default() }
    }

    /// True if `other` is this adapter with another version of its driver.
    pub(super) fn has_other_driver(&self, other: &AdapterId) -> bool {
        self != other && *self == AdapterId { driver: self.driver.clone(), ..other.clone() }
    }
}

/// Part of an adapter that can be disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FallbackPart {
    /// One feature.
    Feature(GpuFeature),
    /// The whole adapter. Its card is used over another backend, or not at all.
    Adapter,
    /// Every adapter of a backend. They are not listed.
    Backend,
    /// The backend for drawing the window. It is tried last.
    Window,
}

impl fmt::Display for FallbackPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FallbackPart::Feature(feature) => feature.name(),
            FallbackPart::Adapter => "the whole adapter",
            FallbackPart::Backend => "all adapters",
            FallbackPart::Window => "the window",
        })
    }
}

/// A disabled part of an adapter, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    /// The adapter.
    pub adapter: AdapterId,
    /// The part.
    pub part: FallbackPart,
    /// The driver's failure, as half a sentence.
    pub why: String,
    /// Time of the failure, in seconds since 1970 (UTC). 0 if the driver is known to fail and the
    /// failure did not happen here.
    pub since: u64,
}

impl Fallback {
    /// Creates a fallback with the current time.
    pub fn new(adapter: AdapterId, part: FallbackPart, why: &str) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Fallback { adapter, part, why: first_line(why), since }
    }

    /// Creates a fallback for a part that fails with the adapter's driver on other machines.
    pub(super) fn known(adapter: AdapterId, part: FallbackPart, why: &str) -> Self {
        Fallback { since: 0, ..Fallback::new(adapter, part, why) }
    }

    /// Selects the fallbacks of one adapter to report. If the whole adapter is disabled, its parts
    /// are omitted.
    pub fn worth_telling(of_one: &[Self]) -> impl Iterator<Item = &Self> {
        let is_whole = |it: &Self| it.part == FallbackPart::Adapter;
        let whole = of_one.iter().any(is_whole);
        of_one.iter().filter(move |it| !whole || is_whole(it))
    }

    /// True if the failure is known from other machines. Trying again does not remove such a
    /// fallback.
    pub const fn is_known(&self) -> bool {
        self.since == 0
    }
}

impl fmt::Display for Fallback {
    /// Writes a sentence without its full stop.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AdapterId { name, backend, .. } = &self.adapter;
        match self.part {
            FallbackPart::Feature(feature) => write!(f, "{name} runs without {} over {backend}", feature.name())?,
            FallbackPart::Adapter => write!(f, "{name} is not used over {backend}")?,
            FallbackPart::Backend => write!(f, "Thermocline does not search for GPUs over {backend}")?,
            FallbackPart::Window => {
                write!(f, "The window is drawn over {backend} only if no other backend can draw it")?;
            }
        }
        write!(f, ": {}", self.why)
    }
}
