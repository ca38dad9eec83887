//! The order in which a row's groups are summed in products of 8-bit codes.
//!
//! A group's product of codes is an integer, exact in any order. Groups are summed as floats, line
//! by line. A line is [`LINE`] columns, and has [`LANES`] sums that start at zero. Group `g` of the
//! line is added to sum `g % LANES`: `sum = fma(dot, weight scale * activation scale, sum)`, and
//! with minima then `sum = fma(min, activation sum, sum)`. A line therefore does not wait for the
//! one before. At its end `(sum 0 + sum 1) + (sum 2 + sum 3)` is added to the row's total. Dot
//! kernels have the sums side by side in a 128-bit register. Panels have one register per sum, with
//! a row in each lane. A token's result is therefore bit-identical alone and in a batch, and on
//! every instruction set but AVX-512.
//!
//! With AVX-512 the kernels of the most common types sum in sixteen lanes ([`LaneChunk`]) in passes
//! of up to 32 tokens. The other quantised types have the order above in such passes. In longer
//! passes tiles sum group by group.
//!
//! [`LaneChunk`]: super::LaneChunk

/// Columns of a line, which are also the columns of a panel of codes.
pub(crate) const LINE: usize = 512;

/// Number of sums of a line.
pub(super) const LANES: usize = 4;

/// The sums of a row, in plain Rust.
#[derive(Debug, Clone, Copy)]
pub(super) struct LineSums {
    /// Sum of the previous lines.
    total: f32,
    sums: [f32; LANES],
}

impl LineSums {
    /// Begins a line after lines that sum up to `total`.
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

    /// The sum of all lines.
    #[inline(always)]
    pub fn total(self) -> f32 {
        let [a, b, c, d] = self.sums;
        self.total + ((a + b) + (c + d))
    }
}

/// `a * b + c`, rounded once, as fused instructions do. Without such an instruction,
/// [`f32::mul_add`] calls the C library.
#[inline(always)]
fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    // The product is exact. The sum is rounded to odd: if it is inexact, its last bit is set to
    // one. Rounding it again then equals rounding the exact sum.
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

    /// The fused instruction, if there is one. A C library may round the product, as MinGW's does.
    fn fused(a: f32, b: f32, c: f32) -> f32 {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "fma")]
            fn instruction(a: f32, b: f32, c: f32) -> f32 {
                a.mul_add(b, c)
            }
            if std::arch::is_x86_feature_detected!("fma") {
                // SAFETY: the machine has the instruction.
                return unsafe { instruction(a, b, c) };
            }
        }
        a.mul_add(b, c)
    }

    #[test]
    fn mul_add_is_rounded_once() {
        let rng = &mut StdRng::seed_from_u64(5);
        for _ in 0..200_000 {
            // Sums of both signs. Either term may be larger, and the rounded-off part may be close
            // to a half.
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
