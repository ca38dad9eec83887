//! A policy decides which experts of a layer are on the device.

use std::fmt;

/// Decides which experts of a layer are on the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// The experts chosen most often in the warm-up stay on the device, and the CPU computes the
    /// other experts.
    Static,
    /// A fetched expert replaces the least recently used expert.
    Lru,
    /// A fetched expert replaces the expert with the smallest count. The weight of a choice halves
    /// within this many tokens.
    Lfu(f32),
    /// The engine's hot set: a [`Follower`](crate::sparsity::migration::Follower) exchanges experts
    /// between tokens, within its share of the bus. The CPU computes missing experts.
    Engine,
    /// Belady's bound keeps the experts that the next tokens use. It knows the future, and its
    /// transfers take no time.
    Bound,
}

impl Policy {
    /// Policies to compare.
    pub const ALL: [Policy; 5] = [Policy::Static, Policy::Lru, Policy::Lfu(64.0), Policy::Engine, Policy::Bound];
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Static => f.pad("static"),
            Policy::Lru => f.pad("lru"),
            Policy::Lfu(half_life) => f.pad(&format!("lfu {half_life}")),
            Policy::Engine => f.pad("engine"),
            Policy::Bound => f.pad("bound"),
        }
    }
}
