//! The quantised input of a product, in chunks of `N` blocks of 32. The last chunk is padded with
//! zeros.

use super::QuantisedInput;

/// Activations of `N` blocks of 32.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockInputs<'a, const N: usize> {
    /// As in [`QuantisedInput`].
    pub codes: &'a [[i8; 32]; N],
    pub scales: &'a [f32; N],
    pub sums: &'a [f32; N],
    pub code_sums: &'a [i32; N],
}

impl<'a, const N: usize> BlockInputs<'a, N> {
    /// The chunks of `N` whole blocks of `x`.
    #[inline(always)]
    pub fn whole(x: QuantisedInput<'a>) -> impl Iterator<Item = Self> {
        let codes = x.codes.as_chunks::<32>().0.as_chunks::<N>().0.iter().zip(x.scales.as_chunks::<N>().0);
        let sums = x.sums.as_chunks::<N>().0.iter().zip(x.code_sums.as_chunks::<N>().0);
        codes.zip(sums).map(|((codes, scales), (sums, code_sums))| BlockInputs { codes, scales, sums, code_sums })
    }
}

/// Fewer than `N` blocks of activations, padded with zero blocks that add nothing.
#[derive(Debug)]
pub(super) struct PaddedInputs<const N: usize> {
    codes: [[i8; 32]; N],
    scales: [f32; N],
    sums: [f32; N],
    code_sums: [i32; N],
}

impl<const N: usize> PaddedInputs<N> {
    /// The blocks of `x` that remain after [`BlockInputs::whole`]. `None` if there are none.
    #[inline(always)]
    pub fn rest(x: QuantisedInput<'_>) -> Option<Self> {
        let codes = x.codes.as_chunks::<32>().0.as_chunks::<N>().1;
        let [scales, sums] = [x.scales, x.sums].map(|of| padded(of.as_chunks::<N>().1, 0.0));
        let code_sums = padded(x.code_sums.as_chunks::<N>().1, 0);
        (!codes.is_empty()).then(|| PaddedInputs { codes: padded(codes, [0; 32]), scales, sums, code_sums })
    }

    /// All `N` blocks.
    #[inline(always)]
    pub fn get(&self) -> BlockInputs<'_, N> {
        let PaddedInputs { codes, scales, sums, code_sums } = self;
        BlockInputs { codes, scales, sums, code_sums }
    }
}

/// Copies `some`, fewer than `N` elements, and pads them with `zero`.
#[inline(always)]
pub(super) fn padded<T: Copy, const N: usize>(some: &[T], zero: T) -> [T; N] {
    let mut all = [zero; N];
    all[..some.len()].copy_from_slice(some);
    all
}
