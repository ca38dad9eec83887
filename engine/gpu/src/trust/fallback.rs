//! One fallback: a part of an adapter that is done without after its driver has failed with it.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::GpuFeature;
use thermocline_base::error::first_line;

/// Identity of an adapter: its card, and the driver by which it is reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct AdapterId {
    /// Name, as adapters are listed.
    pub name: String,
    /// `vulkan`, `metal`, `dx12`.
    pub backend: String,
    /// Driver and its version.
    pub driver: String,
    /// Place on the bus; empty where the driver does not say.
    pub pci_bus_id: String,
}

impl AdapterId {
    /// The identity of every adapter of a backend.
    pub(crate) fn of_backend(backend: &str) -> Self {
        AdapterId { backend: backend.to_owned(), ..AdapterId::default() }
    }

    /// True if `other` is this adapter with another version of its driver.
    pub(super) fn has_other_driver(&self, other: &AdapterId) -> bool {
        self != other && *self == AdapterId { driver: self.driver.clone(), ..other.clone() }
    }
}

/// Part of an adapter that is done without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FallbackPart {
    /// One of its features.
    Feature(GpuFeature),
    /// The adapter: its card is used over another backend, or not at all.
    Adapter,
    /// Every adapter of a backend: they are not looked for.
    Backend,
    /// A backend as that of the window: it is the last one that is tried.
    Window,
}

impl fmt::Display for FallbackPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FallbackPart::Feature(feature) => feature.name(),
            FallbackPart::Adapter => "all of it",
            FallbackPart::Backend => "all adapters",
            FallbackPart::Window => "the window",
        })
    }
}

/// A part of an adapter that is done without, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    /// The adapter.
    pub adapter: AdapterId,
    /// The part.
    pub part: FallbackPart,
    /// The driver's failure, in half a sentence.
    pub why: String,
    /// Time of the failure, in seconds since 1970 (UTC); 0 of what is known of a driver and was not seen here.
    pub since: u64,
}

impl Fallback {
    /// A fallback of this version of the program, from now on.
    pub fn new(adapter: AdapterId, part: FallbackPart, why: &str) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Fallback { adapter, part, why: first_line(why), since }
    }

    /// A part that is known to be bad of the adapter's driver: others have seen it fail.
    pub(super) fn known(adapter: AdapterId, part: FallbackPart, why: &str) -> Self {
        Fallback { since: 0, ..Fallback::new(adapter, part, why) }
    }

    /// Those of one adapter's that are worth a sentence: where all of it is done without, its parts are not.
    pub fn worth_telling(of_one: &[Self]) -> impl Iterator<Item = &Self> {
        let is_whole = |it: &Self| it.part == FallbackPart::Adapter;
        let whole = of_one.iter().any(is_whole);
        of_one.iter().filter(move |it| !whole || is_whole(it))
    }

    /// True if it was not seen here: trying again does not take it back.
    pub const fn is_known(&self) -> bool {
        self.since == 0
    }
}

impl fmt::Display for Fallback {
    /// A sentence without its full stop.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AdapterId { name, backend, .. } = &self.adapter;
        match self.part {
            FallbackPart::Feature(feature) => write!(f, "{name} over {backend} does without {}", feature.name())?,
            FallbackPart::Adapter => write!(f, "{name} is not used over {backend}")?,
            FallbackPart::Backend => write!(f, "GPUs are not looked for over {backend}")?,
            FallbackPart::Window => write!(f, "The window is drawn over {backend} only if nothing else draws it")?,
        }
        write!(f, ": {}", self.why)
    }
}
