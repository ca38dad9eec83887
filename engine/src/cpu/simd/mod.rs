//! SIMD kernels, the one place of the engine where vector intrinsics (and so `unsafe`) are written.

pub(crate) mod vector;
