//! Vectors as arrays, which the compiler vectorises on any machine (for SSE2 or NEON at least).
#![allow(unsafe_code)]

use half::f16;

use super::Vector;

/// Token of portable vectors. Every machine has them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

const LANES: usize = 8;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], op: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| op(a[i], b[i]))
}

impl Vector for Portable {
    type F = [f32; LANES];
    const LANES: usize = LANES;
    const TILE_ROWS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, src: &[f32]) -> Self::F {
        let mut out = [0.0; LANES];
        out.copy_from_slice(&src[..LANES]);
        out
    }

    #[inline(always)]
    unsafe fn load_ptr(self, src: *const f32) -> Self::F {
        // SAFETY: the caller vouches for LANES readable elements; arrays of f32 have f32's
        // alignment.
        unsafe { *src.cast() }
    }

    #[inline(always)]
    fn load_f16(self, src: &[f16]) -> Self::F {
        let src = &src[..LANES];
        std::array::from_fn(|i| src[i].to_f32_const())
    }

    #[inline(always)]
    fn load_i8(self, src: &[i8]) -> Self::F {
        let src = &src[..LANES];
        std::array::from_fn(|i| f32::from(src[i]))
    }

    #[inline(always)]
    fn prefetch<T>(self, _: &[T], _: isize) {}

    #[inline(always)]
    fn store(self, dst: &mut [f32], x: Self::F) {
        dst[..LANES].copy_from_slice(&x);
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }

    // Not `f32::mul_add`, which without the instruction is a library call per lane.
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        zip(zip(a, b, |a, b| a * b), c, |ab, c| ab + c)
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        // Adding and subtracting 1.5 * 2^23 rounds numbers below 2^22 to even, which is sufficient
        // here.
        const MAGIC: f32 = 12_582_912.0;
        zip(x, [MAGIC; LANES], |x, magic| (x + magic) - magic)
    }

    #[inline(always)]
    fn scale(self, x: Self::F, n: Self::F) -> Self::F {
        zip(x, n, |x, n| x * f32::from_bits(((n as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    fn zero_below(self, x: Self::F, threshold: Self::F, y: Self::F) -> Self::F {
        std::array::from_fn(|i| if x[i] < threshold[i] { 0.0 } else { y[i] })
    }

    #[inline(always)]
    fn swap_pairs(self, x: Self::F) -> Self::F {
        std::array::from_fn(|i| x[i ^ 1])
    }

    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
    }

    #[inline(always)]
    fn sum4(self, x: [Self::F; 4]) -> [f32; 4] {
        x.map(|x| self.sum(x))
    }

    #[inline(always)]
    fn max_lane(self, x: Self::F) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}
