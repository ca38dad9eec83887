//! Translation of kernels and drawings to every backend's language, without a device.
#![allow(clippy::unwrap_used)]

mod direct3d;
mod drawings;
mod kernels;
mod metal;
#[path = "../translation/mod.rs"]
mod translation;
