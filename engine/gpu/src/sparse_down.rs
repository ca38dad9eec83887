//! Variants of the kernel `sparse_down`. A token's sums have the same order in all of them.

use std::sync::Arc;

use thermocline_shaders::{WeightType, limits::SPARSE_DOWN_TOKENS};

use super::{Gpu, Pipeline, token_bits::downs_keep_bits, tune::FewTokensKernel};
use thermocline_base::error::Result;

/// Invocations of a workgroup, and how many groups of eight columns it has for one token.
const WORKGROUP: u32 = 128;
const STRIP: usize = 32;
/// Tokens of a workgroup for several tokens. With more tokens, an invocation has fewer columns and
/// as many registers, so a few tokens would waste more of them.
const TOKENS: usize = 4;

/// Tokens that a variant is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SparseDownKind {
    /// One token, and all rows.
    One,
    /// One token, and only the rows of neurons that are not silent.
    Fired,
    /// Several tokens, and all rows.
    Several,
}

/// A variant of `sparse_down`.
#[derive(Debug, Clone)]
pub struct SparseDownVariant {
    /// The compiled kernel.
    pub pipeline: Arc<Pipeline>,
    /// Groups of eight columns of a workgroup.
    pub strip: usize,
    /// Tokens of a workgroup.
    pub tokens: usize,
}

impl SparseDownVariant {
    /// Compiles a variant for weights of type `ty`.
    ///
    /// # Errors
    /// As [`Pipelines::get`](super::Pipelines::get).
    pub(super) fn new(gpu: &Gpu, ty: WeightType, kind: SparseDownKind) -> Result<Self> {
        let tokens = if kind == SparseDownKind::Several { TOKENS } else { 1 };
        // The number of invocations side by side determines the order of sums, so it does not
        // depend on the number of tokens. With several tokens each invocation has fewer columns.
        let side_by_side = STRIP / ty.parts();
        let parts = ty.parts().min(SPARSE_DOWN_TOKENS as usize / tokens);
        let skip = f64::from(u8::from(kind == SparseDownKind::Fired));
        let overrides = [("SKIP", skip), ("STRIP", side_by_side as f64), ("TOKENS", tokens as f64)];
        let pipeline = gpu.pipelines().get("sparse_down", Some(ty), WORKGROUP, &overrides)?;
        Ok(SparseDownVariant { pipeline, strip: side_by_side * parts, tokens })
    }

    /// Compiles the variants for rows of type `ty`: of one token with all rows and with those of
    /// neurons that are not silent, and of several tokens.
    ///
    /// # Errors
    /// As [`Pipelines::get`](super::Pipelines::get).
    pub fn all(gpu: &Gpu, ty: WeightType) -> Result<[Self; 3]> {
        gpu.tuning().try_tokens(gpu, FewTokensKernel::Down, ty, || downs_keep_bits(gpu, ty))?;
        let [one, fired, several] = [SparseDownKind::One, SparseDownKind::Fired, SparseDownKind::Several];
        Ok([Self::new(gpu, ty, one)?, Self::new(gpu, ty, fired)?, Self::new(gpu, ty, several)?])
    }

    /// Returns the workgroups across a row of `chunks` times 32 columns, for one token.
    pub const fn strips(chunks: usize) -> usize {
        (chunks * 4).div_ceil(STRIP)
    }
}
