//! The one order in which a row's groups are summed in products of 8-bit codes.
//!
//! A group's product of codes is an integer, exact in whatever order. Groups are summed as floats, line by line: those of
//! [`LINE`] columns in [`LANES`] sums, group `g` of the line in sum `g % LANES`, `sum = fma(dot, weight scale * activation scale,
//! sum)` and, with minima, `sum = fma(min, activation sum, sum)` behind it. Sums begin with zero, so that a line does not wait
//! for the one before; at its end `(sum 0 + sum 1) + (sum 2 + sum 3)` is added to the row's total. Dot kernels have the sums side
//! by side in a register of 128 bits. Panels have a register for each sum, with a row in each lane. So a token's result is the
//! same, bit for bit, alone and among others, and on every instruction set but AVX-512.
//!
//! With AVX-512 the dot kernels of the commonest types sum parts of groups in sixteen lanes, and tiles sum group by group. This
//! order would take 3 to 31 % more of the time of those dot kernels and 4 to 10 % more of the tiles'. Passes of up to eight tokens
//! take the dot kernels there.

/// Columns of a line: those of a panel of codes.
pub(crate) const LINE: usize = 512;

/// Sums of a line.
pub(super) const LANES: usize = 4;

/// The sums of a row, in plain Rust.
#[derive(Debug, Clone, Copy)]
pub(super) struct LineSums {
    /// Of the lines before.
    total: f32,
    sums: [f32; LANES],
}

impl LineSums {
    /// The beginning of a line behind lines that sum up to `total`.
    #[inline(always)]
    pub fn new(total: f32) -> Self {
        LineSums { total, sums: [0.0; LANES] }
    }

    /// Adds the product of the line's group `group`.
    #[inline(always)]
    pub fn add(&mut self, group: usize, factor: f32, by: f32) {
        let sum = &mut self.sums[group % LANES];
        *sum = mul_add(factor, by, *sum);
    }

    /// The sum of all.
    #[inline(always)]
    pub fn total(self) -> f32 {
        let [a, b, c, d] = self.sums;
        self.total + ((a + b) + (c + d))
    }
}

/// `a * b + c`, rounded once, as instructions do it: without one, [`f32::mul_add`] is a call of the C library's.
#[inline(always)]
fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    // The product is exact. The sum is rounded to odd: where it is not exact, its last bit is one, and rounding it again is as
    // rounding the exact sum.
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let added = sum - product;
    let error = (product - (sum - added)) + (c - added);
    let even = sum.to_bits() & 1 == 0;
    let odd = if error == 0.0 || !even || !sum.is_finite() {
        sum
    } else if (error > 0.0) == (sum > 0.0) {
        f64::from_bits(sum.to_bits() + 1)
    } else {
        f64::from_bits(sum.to_bits() - 1)
    };
    odd as f32
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    /// The instruction, where there is one: a C library may round the product, as MinGW's does.
    fn fused(a: f32, b: f32, c: f32) -> f32 {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "fma")]
            fn instruction(a: f32, b: f32, c: f32) -> f32 {
                a.mul_add(b, c)
            }
            if std::arch::is_x86_feature_detected!("fma") {
                // SAFETY: the machine has it.
                return unsafe { instruction(a, b, c) };
            }
        }
        a.mul_add(b, c)
    }

    #[test]
    fn mul_add_is_rounded_once() {
        let rng = &mut StdRng::seed_from_u64(5);
        for _ in 0..200_000 {
            // Sums of both signs in which either side is the larger, or what is cut off is near a half.
            let (a, b): (f32, f32) = (rng.random_range(-300_000i32..300_000) as f32, rng.random_range(-1.0..1.0));
            let near = -a * b;
            let c = match rng.random_range(0..4) {
                0 => near,
                1 => near * rng.random_range(0.5..2.0),
                2 => rng.random_range(-1.0..1.0) * 2f32.powi(rng.random_range(-60..60)),
                _ => f32::from_bits(rng.random()),
            };
            let (got, wanted) = (mul_add(a, b, c), fused(a, b, c));
            assert!(
                got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan(),
                "{a} * {b} + {c}: {got} is not {wanted}"
            );
        }
    }
}
