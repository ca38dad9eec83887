//! Pseudo-random numbers, the same in every run.

/// A linear congruential generator with its state.
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n.max(1)
    }

    /// Returns `count` different numbers below `n`, in random order.
    pub fn some(&mut self, n: usize, count: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..n as u32).collect();
        (0..count.min(n)).for_each(|at| all.swap(at, at + self.below(n - at)));
        all.truncate(count);
        all
    }
}
