//! Vectors of `f32`, as wide as the machine supports. A kernel is written once, as safe generic
//! code over [`Vector`]. [`dispatch`] compiles it for each instruction set and selects one at run
//! time. Only this folder contains intrinsics. A value of a vector type's token ([`Portable`],
//! `Avx2Vectors`, `Avx512Vectors`, `NeonVectors`) proves that the machine has the instructions.

/// Defines methods of an x86 [`Vector`] that are one instruction each.
#[cfg(target_arch = "x86_64")]
macro_rules! instructions {
    ($($name:ident($($arg:ident),*) = $instruction:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: Self::F),*) -> Self::F {
            // SAFETY: the token proves that the machine has the instruction.
            unsafe { $instruction($($arg),*) }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
pub(crate) mod tile;

use std::sync::OnceLock;

use half::f16;
pub(crate) use portable::Portable;

use crate::Isa;

/// One instruction set's vectors of `f32`. Every method is `#[inline(always)]` and takes the token
/// by value.
pub(crate) trait Vector: Copy + Send + Sync {
    /// [`Vector::LANES`] numbers.
    type F: Copy;
    /// Numbers per vector, a power of two of at most 16.
    const LANES: usize;
    /// Most rows of a register tile of 4 columns without spilling.
    const TILE_ROWS: usize;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::F;
    /// Loads the first [`Vector::LANES`] elements. Panics if there are fewer.
    fn load(self, src: &[f32]) -> Self::F;
    /// [`Vector::load`] from half precision, widened.
    fn load_f16(self, src: &[f16]) -> Self::F;
    /// [`Vector::load`] from integers, converted.
    fn load_i8(self, src: &[i8]) -> Self::F;
    /// [`Vector::load`] without checks.
    ///
    /// # Safety
    /// [`Vector::LANES`] elements must be readable at `src`.
    #[allow(unsafe_code)]
    unsafe fn load_ptr(self, src: *const f32) -> Self::F;
    /// Prefetches the memory `ahead` bytes after `at`. A hint.
    #[inline(always)]
    fn prefetch<T>(self, at: &[T], ahead: isize) {
        for line in (0..size_of_val(at)).step_by(64) {
            super::prefetch(at.as_ptr().cast::<u8>().wrapping_add(line).wrapping_offset(ahead));
        }
    }
    /// Writes the first [`Vector::LANES`] elements. Panics if there are fewer.
    fn store(self, dst: &mut [f32], x: Self::F);
    /// `a + b`
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once if the machine has such an instruction.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`, hence `b` if either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`, hence `b` if either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Nearest integers, ties to even.
    fn round(self, x: Self::F) -> Self::F;
    /// `x * 2^n` for integral `n` in `-126..=127`.
    fn scale(self, x: Self::F, n: Self::F) -> Self::F;
    /// 0 if `x < threshold`, otherwise `y`.
    fn zero_below(self, x: Self::F, threshold: Self::F, y: Self::F) -> Self::F;
    /// Exchanges lanes `2i` and `2i + 1`.
    fn swap_pairs(self, x: Self::F) -> Self::F;
    /// Sum of the lanes.
    fn sum(self, x: Self::F) -> f32;
    /// Sum of the lanes of four vectors.
    fn sum4(self, x: [Self::F; 4]) -> [f32; 4];
    /// Largest lane.
    fn max_lane(self, x: Self::F) -> f32;
}

/// A computation that can be compiled for any instruction set.
pub(crate) trait VectorKernel<Output = ()> {
    /// Implementations must be `#[inline(always)]`. Otherwise they are compiled without the
    /// instruction set.
    fn run<V: Vector>(self, v: V) -> Output;
}

/// Runs `kernel` with the vectors of `isa`.
///
/// # Panics
/// If this machine lacks `isa`.
#[inline]
pub(crate) fn dispatch<Output, K: VectorKernel<Output>>(isa: Isa, kernel: K) -> Output {
    static BEST: OnceLock<Isa> = OnceLock::new();
    let best = *BEST.get_or_init(|| Isa::available().last().copied().unwrap_or(Isa::Scalar));
    assert!(isa <= best, "this machine does not support {isa}");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni => avx2::run(kernel),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512::run(kernel),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => neon::run(kernel),
        _ => kernel.run(Portable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Everything<'a>(&'a mut [f32; 16], [f32; 16]);

    impl VectorKernel<(f32, [f32; 4], f32)> for Everything<'_> {
        #[inline(always)]
        fn run<V: Vector>(self, v: V) -> (f32, [f32; 4], f32) {
            let mut sum = 0.0;
            let mut sum4 = [0.0; 4];
            let mut top = f32::NEG_INFINITY;
            for (out, x) in self.0.chunks_exact_mut(V::LANES).zip(self.1.chunks_exact(V::LANES)) {
                let x = v.load(x);
                let half = v.splat(0.5);
                let clamped = v.min(v.max(x, v.splat(-3.0)), v.splat(3.0));
                let n = v.round(clamped);
                let mut y = v.scale(v.div(v.mul_add(x, half, v.sub(x, half)), v.splat(2.0)), n);
                y = v.zero_below(x, v.splat(-4.0), v.mul(y, v.splat(1.0)));
                v.store(out, v.swap_pairs(y));
                sum += v.sum(x);
                for (total, part) in sum4.iter_mut().zip(v.sum4([x, v.add(x, x), half, clamped])) {
                    *total += part;
                }
                top = top.max(v.max_lane(x));
            }
            (sum, sum4, top)
        }
    }

    #[test]
    fn vector_operations_agree_with_plain_arithmetic() {
        let x: [f32; 16] = std::array::from_fn(|i| (i as f32 - 8.0) * 0.75 + 0.1);
        let plain: [f32; 16] = std::array::from_fn(|i| {
            let n = x[i].clamp(-3.0, 3.0).round_ties_even();
            if x[i] < -4.0 { 0.0 } else { (x[i] * 0.5 + (x[i] - 0.5)) / 2.0 * n.exp2() }
        });
        let total: f32 = x.iter().sum();
        let clamped: f32 = x.iter().map(|x| x.clamp(-3.0, 3.0)).sum();
        for isa in Isa::available() {
            let mut out = [0.0; 16];
            let (sum, sum4, top) = dispatch(isa, Everything(&mut out, x));
            for i in 0..16 {
                assert!((out[i] - plain[i ^ 1]).abs() <= 1e-5 * plain[i ^ 1].abs(), "{isa} lane {i}");
            }
            assert!((sum - total).abs() < 1e-4);
            for (got, wanted) in sum4.into_iter().zip([total, 2.0 * total, 8.0, clamped]) {
                assert!((got - wanted).abs() < 1e-4, "{isa}: {got} {wanted}");
            }
            assert_eq!(top, x[15]);
        }
    }

    struct Widen<'a>(&'a mut [f32], &'a [f16], &'a [i8]);

    impl VectorKernel for Widen<'_> {
        #[inline(always)]
        fn run<V: Vector>(self, v: V) {
            for (i, out) in self.0.chunks_exact_mut(V::LANES).enumerate() {
                let (halves, ints) = (v.load_f16(&self.1[i * V::LANES..]), v.load_i8(&self.2[i * V::LANES..]));
                v.store(out, v.mul_add(halves, v.splat(256.0), ints));
            }
        }
    }

    #[test]
    fn load_f16_is_exact() {
        let halves: Vec<f16> = (0..32).map(|i| f16::from_f32(i as f32 - 7.0)).collect();
        let ints: Vec<i8> = (0..32).map(|i| (i * 8 - 128) as i8).collect();
        for isa in Isa::available() {
            let mut out = [0.0; 32];
            dispatch(isa, Widen(&mut out, &halves, &ints));
            for i in 0..32 {
                assert_eq!(out[i], (i as f32 - 7.0) * 256.0 + f32::from(ints[i]), "{isa}");
            }
        }
    }
}
