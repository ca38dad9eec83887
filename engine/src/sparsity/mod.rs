//! Hot and cold: which neurons fire how often, who guesses them, where they live, and the forward pass that is split
//! between a device and the CPU accordingly.
//!
//! [`profile`] counts firings and records what FFNs are given. [`predictor`] guesses which neurons fire, and says how well.
//! [`placement`] decides what is resident under a budget; it prices time, which [`measure`] finds out, and knows no device.
//! [`migration`] lets what is hot follow the text. [`executor`] computes that way. [`sidecar`] is the file beside a model that
//! holds what was found out about it, and [`prepare`] makes it.

pub mod executor;
pub mod measure;
pub mod migration;
pub mod placement;
pub mod predictor;
pub mod prepare;
pub mod profile;
pub mod sidecar;
