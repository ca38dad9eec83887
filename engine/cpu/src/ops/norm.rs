//! RMS norm (Zhang and Sennrich 2019) and layer norm (Ba et al. 2016) of rows.

use crate::{
    Cpu,
    simd::vector::{Vector, VectorKernel, dispatch},
};

/// Sum of `x - shift` or its square, in four chains, so that additions do not wait for each other.
#[inline(always)]
fn sum_of<V: Vector>(v: V, x: &[f32], shift: f32, squares: bool) -> f32 {
    let mut sums = [v.splat(0.0); 4];
    let by = v.splat(shift);
    let one = v.splat(1.0);
    let mut chunks = x.chunks_exact(V::LANES * 4);
    for four in chunks.by_ref() {
        for (sum, x) in sums.iter_mut().zip(four.chunks_exact(V::LANES)) {
            let x = v.sub(v.load(x), by);
            *sum = v.mul_add(x, if squares { x } else { one }, *sum);
        }
    }
    let mut total = v.sum(v.add(v.add(sums[0], sums[1]), v.add(sums[2], sums[3])));
    for x in chunks.remainder() {
        let x = x - shift;
        total += if squares { x * x } else { x };
    }
    total
}

/// `x = (x - shift) * scale * weight + bias`
#[inline(always)]
fn apply<V: Vector>(v: V, x: &mut [f32], shift: f32, scale: f32, weight: &[f32], bias: Option<&[f32]>) {
    let (by, factor) = (v.splat(shift), v.splat(scale));
    let whole = x.len() / V::LANES * V::LANES;
    for i in (0..whole).step_by(V::LANES) {
        let mut y = v.mul(v.mul(v.sub(v.load(&x[i..]), by), factor), v.load(&weight[i..]));
        if let Some(bias) = bias {
            y = v.add(y, v.load(&bias[i..]));
        }
        v.store(&mut x[i..], y);
    }
    for i in whole..x.len() {
        x[i] = (x[i] - shift) * scale * weight[i] + bias.map_or(0.0, |bias| bias[i]);
    }
}

struct RmsNorm<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    /// Number of equal parts of a row that are normed separately.
    groups: usize,
    eps: f32,
}

impl VectorKernel for RmsNorm<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let n = self.weight.len() / self.groups;
        for row in self.x.chunks_exact_mut(n * self.groups) {
            for (part, weight) in row.chunks_exact_mut(n).zip(self.weight.chunks_exact(n)) {
                let mean = sum_of(v, part, 0.0, true) / n as f32;
                apply(v, part, 0.0, 1.0 / (mean + self.eps).sqrt(), weight, None);
            }
        }
    }
}

struct LayerNorm<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    eps: f32,
}

impl VectorKernel for LayerNorm<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let n = self.weight.len();
        for row in self.x.chunks_exact_mut(n) {
            let mean = sum_of(v, row, 0.0, false) / n as f32;
            let variance = sum_of(v, row, mean, true) / n as f32;
            apply(v, row, mean, 1.0 / (variance + self.eps).sqrt(), self.weight, self.bias);
        }
    }
}

struct DivideByRms<'a> {
    x: &'a mut [f32],
    len: usize,
    eps: f32,
}

impl VectorKernel for DivideByRms<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        for row in self.x.chunks_exact_mut(self.len) {
            let scale = 1.0 / (sum_of(v, row, 0.0, true) / self.len as f32 + self.eps).sqrt();
            row.iter_mut().for_each(|x| *x *= scale);
        }
    }
}

impl Cpu {
    /// `x / sqrt(mean(x^2) + eps)` for every row of `x`, in place. Rows are `len` long.
    ///
    /// # Panics
    /// If `x` is not a whole number of rows.
    pub fn divide_by_rms(&self, x: &mut [f32], len: usize, eps: f32) {
        assert!(x.len().is_multiple_of(len));
        self.for_each_row(x, None, len, |x| dispatch(self.isa(), DivideByRms { x, len, eps }));
    }

    /// `x / sqrt(mean(x^2) + eps) * weight` for every row of `from` into `x`, or for every row of
    /// `x` in place. Rows are as long as `weight`.
    ///
    /// # Panics
    /// If `x` is not a whole number of rows, or the lengths of `from` and `x` differ.
    pub fn rms_norm(&self, x: &mut [f32], from: Option<&[f32]>, weight: &[f32], eps: f32) {
        self.for_each_row(x, from, weight.len(), |x| dispatch(self.isa(), RmsNorm { x, weight, groups: 1, eps }));
    }

    /// Computes [`Cpu::rms_norm`] in place for `groups` equal parts of every row. Each part has its
    /// own mean.
    ///
    /// # Panics
    /// If `x` is not a whole number of rows, or a row cannot be divided into equal parts.
    pub fn rms_norm_groups(&self, x: &mut [f32], weight: &[f32], groups: usize, eps: f32) {
        assert!(groups > 0 && weight.len().is_multiple_of(groups) && !weight.is_empty());
        self.for_each_row(x, None, weight.len(), |x| dispatch(self.isa(), RmsNorm { x, weight, groups, eps }));
    }

    /// `(x - mean) / sqrt(variance + eps) * weight + bias` for every row of `from` into `x`, or for
    /// every row of `x` in place. Rows are as long as `weight`.
    ///
    /// # Panics
    /// If `x` is not a whole number of rows, or `from` or `bias` has the wrong length.
    pub fn layer_norm(&self, x: &mut [f32], from: Option<&[f32]>, weight: &[f32], bias: Option<&[f32]>, eps: f32) {
        assert!(bias.is_none_or(|bias| bias.len() == weight.len()));
        self.for_each_row(x, from, weight.len(), |x| dispatch(self.isa(), LayerNorm { x, weight, bias, eps }));
    }

    fn for_each_row(&self, x: &mut [f32], from: Option<&[f32]>, n: usize, norm: impl Fn(&mut [f32]) + Sync) {
        assert!(x.len().is_multiple_of(n) && from.is_none_or(|from| from.len() == x.len()));
        self.for_each_chunk(x, n, 3, |i, x| {
            if let Some(from) = from {
                x.copy_from_slice(&from[i * n..][..n]);
            }
            norm(x);
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::ops::tests::each_cpu;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn norms_agree_with_f64(
            rows in 1usize..5,
            weight in prop::collection::vec((-2f32..2.0, -1f32..1.0), 1..150),
            seed in prop::collection::vec(-5f32..5.0, 750),
            with_bias: bool,
        ) {
            let n = weight.len();
            let (weight, bias): (Vec<f32>, Vec<f32>) = weight.into_iter().unzip();
            let bias = with_bias.then_some(bias.as_slice());
            let x = &seed[..rows * n];
            for cpu in each_cpu() {
                let (mut rms, mut plain, mut layer) = (x.to_vec(), x.to_vec(), vec![f32::NAN; x.len()]);
                cpu.rms_norm(&mut rms, None, &weight, 1e-5);
                cpu.divide_by_rms(&mut plain, n, 1e-5);
                cpu.layer_norm(&mut layer, Some(x), &weight, bias, 1e-5);
                for (r, row) in x.chunks(n).enumerate() {
                    let wide: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
                    let mean = wide.iter().sum::<f64>() / n as f64;
                    let square = wide.iter().map(|x| x * x).sum::<f64>() / n as f64;
                    let variance = wide.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
                    for i in 0..n {
                        let w = f64::from(weight[i]);
                        let wanted = wide[i] / (square + 1e-5).sqrt() * w;
                        prop_assert!((f64::from(rms[r * n + i]) - wanted).abs() < 1e-5);
                        let wanted = wide[i] / (square + 1e-5).sqrt();
                        prop_assert!((f64::from(plain[r * n + i]) - wanted).abs() < 1e-5);
                        let wanted = (wide[i] - mean) / (variance + 1e-5).sqrt() * w + bias.map_or(0.0, |b| f64::from(b[i]));
                        prop_assert!((f64::from(layer[r * n + i]) - wanted).abs() < 2e-4, "{} {}", layer[r * n + i], wanted);
                    }
                }
            }
        }
    }
}
