//! Products of weights of every type with activations.

use bytemuck::{bytes_of, cast_slice};
use thermocline_shaders::{Tier, WeightType, params};

use crate::gpu::{
    Call, Gpu, assert_close, bytes, noise,
    weights::{Weights, grids_of},
};

/// A matrix product, without the kernel that computes it.
#[derive(Clone)]
struct Product {
    ty: WeightType,
    rows: usize,
    cols: usize,
    tokens: usize,
    weights: Weights,
    x: Vec<f32>,
    bias: Vec<f32>,
}

/// Elements of an output row besides the results of the product. `OFFSET` of them precede the
/// results.
const MARGIN: usize = 5;
const OFFSET: usize = 3;
/// Contents of the output before the dispatch.
const BEFORE: f32 = 0.25;

impl Product {
    fn random(ty: WeightType, rows: usize, cols: usize, tokens: usize) -> Self {
        let weights = Weights::random(ty, rows, cols, 9);
        Product { ty, rows, cols, tokens, weights, x: noise(tokens * cols, 10), bias: noise(rows + 2, 11) }
    }

    fn params(&self, stride: u32) -> params::Matmul {
        let [rows, cols, tokens] = [self.rows, self.cols, self.tokens].map(|v| v as u32);
        params::Matmul {
            rows,
            chunks: cols / 32,
            tokens,
            x_pitch: cols,
            y_pitch: rows + MARGIN as u32,
            y_offset: OFFSET as u32,
            bias_offset: 2,
            stride,
        }
    }

    fn run(
        &self,
        kernel: &str,
        tier: Tier,
        overrides: &[(&str, f64)],
        params: params::Matmul,
        groups: (u32, u32, u32),
    ) -> Vec<f32> {
        self.run_on(&self.x, kernel, tier, overrides, params, groups)
    }

    /// Runs the product with activations in another form.
    fn run_on(
        &self,
        x: &[f32],
        kernel: &str,
        tier: Tier,
        overrides: &[(&str, f64)],
        params: params::Matmul,
        groups: (u32, u32, u32),
    ) -> Vec<f32> {
        let out = vec![BEFORE; self.tokens * (self.rows + MARGIN)];
        let call = Call {
            kernel,
            tier,
            weights: Some(self.ty),
            overrides,
            params: bytes_of(&params),
            buffers: &[
                cast_slice(&self.weights.main),
                cast_slice(&self.weights.aux),
                bytes(x),
                bytes(&self.bias),
                bytes(&out),
            ],
            workgroups: groups,
        };
        Gpu::get().run(&call, 4)
    }

    /// Compares with the expected output. `finish` combines a sum, its bias and the earlier output.
    fn check(&self, got: &[f32], finish: impl Fn(f64, f64, f64) -> f64, what: &str) {
        let pitch = self.rows + MARGIN;
        let mut expected = vec![f64::from(BEFORE); self.tokens * pitch];
        for (t, r) in (0..self.tokens).flat_map(|t| (0..self.rows).map(move |r| (t, r))) {
            let weights = &self.weights.values[r * self.cols..][..self.cols];
            let sum = weights.iter().zip(&self.x[t * self.cols..]).map(|(w, x)| w * f64::from(*x)).sum();
            expected[t * pitch + OFFSET + r] = finish(sum, f64::from(self.bias[2 + r]), f64::from(BEFORE));
        }
        let what = format!("{} {}x{} {} tokens {what}", self.ty, self.rows, self.cols, self.tokens);
        assert_close(got, &expected, 2e-5, &what);
    }
}

#[test]
fn gemv_matches_its_equation_for_every_type() {
    for ty in WeightType::ALL {
        for (rows, chunks, tokens) in [(1, 1, 1), (70, 9, 3)] {
            let product = Product::random(ty, rows, chunks * ty.block(), tokens);
            for tier in Gpu::get().tiers() {
                let got =
                    product.run("gemv", tier, &[], product.params(4), (4, rows.div_ceil(16) as u32, tokens as u32));
                product.check(&got, |sum, _, _| sum, &tier.to_string());
            }
        }
    }
}

#[test]
fn gemv_shares_weights_among_rows_and_tokens() {
    let product = Product::random(WeightType::Q4_0, 37, 1024, 6);
    for tier in Gpu::get().tiers() {
        for (workgroup, rows, tokens) in
            [(32.0, 1, 4), (96.0, 4, 4), (128.0, 16, 1), (256.0, 2, 2), (64.0, 3, 3), (64.0, 11, 1)]
        {
            let (row_groups, token_groups) = (product.rows.div_ceil(rows), product.tokens.div_ceil(tokens));
            let overrides =
                [("WORKGROUP_SIZE", workgroup), ("ROWS", rows as f64), ("TOKENS", tokens as f64), ("HAS_BIAS", 1.0)];
            let groups = (3, row_groups.div_ceil(3) as u32, token_groups as u32);
            let got = product.run("gemv", tier, &overrides, product.params(3), groups);
            product.check(&got, |sum, bias, _| sum + bias, &format!("{tier} {workgroup} {rows} {tokens}"));
        }
    }
}

#[test]
fn gemv_applies_relu_bias_and_accumulation() {
    let product = Product::random(WeightType::F32, 33, 64, 2);
    for (relu, accumulate) in [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)] {
        let overrides = [("RELU", relu), ("ACCUMULATE", accumulate), ("HAS_BIAS", 1.0)];
        let got = product.run("gemv", Tier::PORTABLE, &overrides, product.params(9), (9, 1, 2));
        let finish = |sum: f64, bias: f64, before: f64| {
            let value = if relu == 1.0 { (sum + bias).max(0.0) } else { sum + bias };
            value + accumulate * before
        };
        product.check(&got, finish, &format!("relu {relu} accumulate {accumulate}"));
    }
}

#[test]
fn gemm_matches_its_equation_for_every_type() {
    for ty in WeightType::ALL {
        let product = Product::random(ty, 70, if ty.block() == 32 { 96 } else { 256 }, 67);
        for tier in Gpu::get().tiers() {
            let got = product.run("gemm", tier, &[], product.params(1), (2, 1, 2));
            product.check(&got, |sum, _, _| sum, &tier.to_string());
        }
    }
}

#[test]
fn gemm_applies_relu_bias_and_accumulation() {
    for (rows, tokens) in [(1, 1), (64, 64), (129, 130)] {
        let product = Product::random(WeightType::F32, rows, 32, tokens);
        for (relu, accumulate, workgroup) in [(0.0, 1.0, 128.0), (1.0, 0.0, 32.0), (0.0, 0.0, 96.0)] {
            let overrides =
                [("RELU", relu), ("ACCUMULATE", accumulate), ("HAS_BIAS", 1.0), ("WORKGROUP_SIZE", workgroup)];
            let got = product.run("gemm", Tier::PORTABLE, &overrides, product.params(5), (3, 5, 2));
            let finish = |sum: f64, bias: f64, before: f64| {
                let value = if relu == 1.0 { (sum + bias).max(0.0) } else { sum + bias };
                value + accumulate * before
            };
            product.check(&got, finish, &format!("relu {relu} accumulate {accumulate}"));
        }
    }
}

#[test]
fn gemv_dot_multiplies_quantised_activations() {
    let gpu = Gpu::get();
    for ty in WeightType::PACKED {
        let (rows, chunks, tokens) = (37, 9 * ty.block() / 32, 2);
        let mut product = Product::random(ty, rows, chunks * 32, tokens);
        // One chunk of zeros, one of nearly zeros.
        product.x[32..64].fill(0.0);
        product.x[64..96].fill(1e-38);
        let params = params::Quantise { chunks: chunks as u32, tokens: 2, x_pitch: chunks as u32 * 32, stride: 64 };
        let quantised = vec![0.0_f32; tokens * chunks * 9];
        for tier in gpu.tiers() {
            let call = Call {
                kernel: "quantise_q8",
                tier,
                weights: None,
                overrides: &[],
                params: bytes_of(&params),
                buffers: &[bytes(&product.x), bytes(&quantised)],
                workgroups: (1, (tokens * chunks).div_ceil(64) as u32, 1),
            };
            let quantised = gpu.run(&call, 1);
            let mut rounded = product.clone();
            for (x, codes) in rounded.x.chunks_exact_mut(32).zip(quantised.chunks_exact(9)) {
                let (codes, scale) = (cast_slice::<f32, i8>(&codes[..8]), codes[8]);
                let largest = x.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                assert!((scale * 127.0 - largest).abs() <= largest * 1e-6 + 1e-38, "{tier}: {scale} for {largest}");
                for (x, code) in x.iter_mut().zip(codes) {
                    let near = f32::from(*code) * scale;
                    assert!((near - *x).abs() <= scale * 0.501 + 1e-37, "{tier}: {x} became {near}");
                    *x = near;
                }
            }
            let sizes = grids_of(ty, &[(64.0, 4), (32.0, 16), (256.0, 1)]);
            for (workgroup, group) in sizes.iter().copied() {
                let overrides = [("WORKGROUP_SIZE", workgroup), ("ROWS", group as f64), ("HAS_BIAS", 1.0)];
                let groups = (3, rows.div_ceil(group).div_ceil(3) as u32, tokens as u32);
                let got = rounded.run_on(&quantised, "gemv_dot", tier, &overrides, rounded.params(3), groups);
                rounded.check(&got, |sum, bias, _| sum + bias, &format!("{tier} {workgroup} {group}"));
            }
        }
    }
}
