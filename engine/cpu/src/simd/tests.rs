//! Comparison of every kernel of every instruction set with its scalar form, and of the scalar form
//! with f64.

use half::f16;
use proptest::prelude::*;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use super::{
    CodePanel, CodeTile, DOT_ROWS, GatheredRow, INPUTS, InputBlock, InputMinima, Kernels, LINE, MOST_TILE_TOKENS,
    OUTPUTS, PANEL_ROWS, PanelSums, QuantisedInput, RowPanel, ScaledRow, TILE_TOKENS, TokenChunk, TokenTile, kernels,
    position_in_line,
};
use crate::{Isa, product_input::QuantisedInputBuffer};
use thermocline_formats::{
    quant,
    quant::{Grouping, TensorType, UnpackedMut, WeightType, sample::random_weights},
};

/// `n` random activations, with outliers and a non-zero mean.
pub(crate) fn random_activations(n: usize, rng: &mut impl Rng) -> Vec<f32> {
    (0..n).map(|_| rng.random_range(-1f32..1.2) * if rng.random_ratio(1, 40) { 12.0 } else { 1.0 }).collect()
}

/// Largest allowed error of the dot product of `w` and `x`: that of f32 sums, plus that of
/// activations rounded to 8 bits if `rounded`.
pub(crate) fn tolerance(rounded: bool, w: &[f32], x: &[f32]) -> f64 {
    let magnitude: f64 = w.iter().zip(x).map(|(w, x)| f64::from((w * x).abs())).sum();
    let rounding: f64 = match rounded {
        false => 0.0,
        true => w
            .chunks(32)
            .zip(x.chunks(32))
            .map(|(w, x)| {
                let largest = x.iter().fold(0f32, |a, b| a.max(b.abs()));
                w.iter().map(|w| f64::from(w.abs() * largest / 254.0)).sum::<f64>()
            })
            .sum(),
    };
    1.001 * rounding + 1e-5 * magnitude + 1e-6
}

/// Rounds `x` with `kernels`.
fn rounded(kernels: &Kernels, x: &[f32]) -> QuantisedInputBuffer {
    let mut row = QuantisedInputBuffer::default();
    row.fill_for_dots(kernels, x);
    row
}

fn close(got: &[f32], want: &[f32], relative: f32) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(1f32, |a, b| a.max(b.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        prop_assert!((got - want).abs() <= relative * scale, "{}: {} is not {}", i, got, want);
    }
    Ok(())
}

/// Active inputs of a block, by the bits of `some`, and all inputs. If `extreme`, inputs are as far
/// from zero as possible.
fn random_inputs(some: u32, extreme: bool, rng: &mut impl Rng) -> (Vec<u32>, [i8; INPUTS]) {
    let active: Vec<u32> = (0..INPUTS as u32).filter(|input| some >> input & 1 == 1).collect();
    let mut x = [0i8; INPUTS];
    active.iter().for_each(|input| x[*input as usize] = if extreme { -127 } else { rng.random_range(-127..=127) });
    (active, x)
}

/// Returns `n` random halves, and their bytes.
fn random_halves(n: usize, rng: &mut impl Rng) -> (Vec<f64>, Vec<u8>) {
    let halves: Vec<f16> = random_activations(n, rng).into_iter().map(f16::from_f32).collect();
    (halves.iter().map(|half| half.to_f64()).collect(), halves.iter().flat_map(|half| half.to_le_bytes()).collect())
}

/// The nibble of an input and an output in the codes of an [`InputBlock`].
fn nibble(codes: &[u8], input: usize, output: usize) -> f64 {
    let (byte, shift) = position_in_line(output % OUTPUTS);
    let row = codes.len() / INPUTS;
    f64::from(codes[input * row + output / OUTPUTS * (OUTPUTS / 2) + byte] >> shift & 15)
}

/// Number of columns, a multiple of the type's block length.
fn columns(ty: TensorType, blocks: usize) -> usize {
    match ty.block_len() {
        1 => blocks,
        len => len * (1 + blocks % (2048 / len)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn dot_kernels_agree_with_f64_and_the_scalar_oracle(at in 0..TensorType::WEIGHTS.len(), blocks in 1usize..150, rows in 1usize..6, seed: u64) {
        let ty = TensorType::WEIGHTS[at];
        let rng = &mut StdRng::seed_from_u64(seed);
        let n = columns(ty, blocks);
        let weights = random_weights(ty, rows * n, rng);
        let x = random_activations(n, rng);
        let mut oracles = [Vec::new(), Vec::new()];
        let Some(encoding) = ty.weight_type() else { return Err(TestCaseError::fail("not a weight type")) };
        let products = Isa::available().into_iter().flat_map(|isa| [(isa, false), (isa, true)]);
        for (isa, codes) in products {
            let kernels = kernels(isa);
            let mut out = vec![f32::NAN; rows];
            match (codes, encoding) {
                (true, WeightType::Blocks(ty)) => {
                    (kernels.dot_codes)(ty, &weights, rounded(kernels, &x).row(), 64, &mut out);
                }
                (true, WeightType::Float(_)) => continue,
                (false, _) => kernels.dot_floats(encoding, &weights, &x, -64, &mut out),
            }
            let mut decoded = vec![0.0; n];
            for (row, out) in weights.chunks_exact(ty.row_bytes(n).unwrap()).zip(&out) {
                quant::dequantise(ty, row, &mut decoded);
                let exact: f64 = decoded.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                let error = (f64::from(*out) - exact).abs();
                let allowed = tolerance(codes, &decoded, &x);
                prop_assert!(error <= allowed, "{} {} {}: {} is not {} (+- {})", isa, ty, n, out, exact, allowed);
            }
            let oracle = &mut oracles[usize::from(codes)];
            if oracle.is_empty() {
                *oracle = out;
            } else if codes && isa != Isa::Avx512 {
                prop_assert_eq!(&out, &*oracle, "{} {} of {}", isa, ty, n);
            } else {
                close(&out, oracle, 2e-5)?;
            }
        }
    }

    #[test]
    fn quantise_agrees_with_the_scalar_oracle(blocks in 1usize..20, seed: u64) {
        let x = random_activations(32 * blocks, &mut StdRng::seed_from_u64(seed));
        let oracle = rounded(kernels(Isa::Scalar), &x);
        for isa in Isa::available() {
            let row = rounded(kernels(isa), &x);
            prop_assert_eq!(QuantisedInput { lanes: &[], ..row.row() }, oracle.row());
        }
        for (i, x) in x.iter().enumerate() {
            let scale = oracle.row().scales[i / 32];
            prop_assert!((scale * f32::from(oracle.row().codes[i]) - x).abs() <= scale * 0.5001);
        }
    }

    #[test]
    fn unpack_and_widen_agree_with_dequantise(at in 3..TensorType::WEIGHTS.len(), blocks in 1usize..20, seed: u64) {
        let ty = TensorType::WEIGHTS[at];
        let n = columns(ty, blocks);
        let src = random_weights(ty, n, &mut StdRng::seed_from_u64(seed));
        let mut decoded = vec![0.0; n];
        quant::dequantise(ty, &src, &mut decoded);
        let Some(encoding @ WeightType::Blocks(blocks)) = ty.weight_type() else {
            return Err(TestCaseError::fail("floats come first"));
        };
        let grouping = blocks.format().grouping;
        let groups = n / grouping.len;
        for isa in Isa::available() {
            let (mut codes, mut scales) = (vec![0; n], vec![f32::NAN; groups]);
            let mut mins = vec![0.0; if grouping.minima { groups } else { 0 }];
            let to = UnpackedMut { codes: &mut codes, scales: &mut scales, mins: &mut mins };
            (kernels(isa).unpack)(blocks, &src, to);
            let ours: Vec<f32> = codes
                .iter()
                .enumerate()
                .map(|(i, code)| {
                    let group = i / grouping.len;
                    scales[group] * f32::from(*code) + mins.get(group).copied().unwrap_or(0.0)
                })
                .collect();
            close(&ours, &decoded, 1e-6)?;
            let mut widened = vec![f32::NAN; n];
            kernels(isa).widen(encoding, &src, &mut widened);
            close(&widened, &decoded, 1e-6)?;
            prop_assert!(codes.iter().all(|code| (grouping.lowest..=grouping.highest).contains(code)));

        }
    }

    #[test]
    fn axpy_agrees_with_f64(at in 0..TensorType::WEIGHTS.len(), blocks in 1usize..150, rows in 0usize..11, seed: u64) {
        let ty = TensorType::WEIGHTS[at];
        let rng = &mut StdRng::seed_from_u64(seed);
        let n = columns(ty, blocks);
        let weights = random_weights(ty, rows * n, rng);
        let (factors, before) = (random_activations(rows, rng), random_activations(n, rng));
        let bytes = ty.row_bytes(n).unwrap();
        let mut want: Vec<f64> = before.iter().map(|x| f64::from(*x)).collect();
        let mut magnitude = want.clone();
        let mut decoded = vec![0.0; n];
        for (row, a) in weights.chunks_exact(bytes).zip(&factors) {
            quant::dequantise(ty, row, &mut decoded);
            for ((want, magnitude), w) in want.iter_mut().zip(&mut magnitude).zip(&decoded) {
                let product = f64::from(*w) * f64::from(*a);
                *want += product;
                *magnitude = magnitude.abs() + product.abs();
            }
        }
        let all: Vec<ScaledRow<'_>> =
            weights.chunks_exact(bytes).zip(&factors).map(|(row, a)| ScaledRow { row, a: *a, ahead: 64 }).collect();
        for isa in Isa::available() {
            let mut acc = before.clone();
            kernels(isa).axpy(ty.weight_type().unwrap(), &all, &mut acc);
            for (i, got) in acc.iter().enumerate() {
                let error = (f64::from(*got) - want[i]).abs();
                let allowed = 3e-6 * magnitude[i].abs() + 1e-6;
                prop_assert!(error <= allowed, "{} {} {} of {}: {} is not {}", isa, ty, i, n, got, want[i]);
            }
        }
    }

    #[test]
    /// Tests panels with codes of every width, extreme or random.
    fn panel_products_equal_the_oracle(
        len in prop_oneof![Just(16usize), Just(32)], minima: bool,
        ends in prop_oneof![
            Just((-8i8, 7i8)), Just((0, 15)), Just((0, 16)), Just((-16, 15)), Just((-12, 12)), Just((-32, 31)), Just((-43, 43)),
            Just((-64, 65)), Just((-128, 127)), Just((-127, 113)), Just((0, 0)),
        ],
        chunks in 1usize..=LINE / 32, tokens in 1usize..=MOST_TILE_TOKENS, extreme: bool, seed: u64,
    ) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let grouping = Grouping { len, minima, lowest: ends.0, highest: ends.1 };
        let mut code = |from: i8, to: i8| match (extreme, rng.random::<bool>()) {
            (true, low) => if low { from } else { to },
            (false, _) => rng.random_range(from..=to),
        };
        let weights: Vec<i8> = (0..PANEL_ROWS * 32 * chunks).map(|_| code(ends.0, ends.1)).collect();
        let codes: Vec<[i8; 32]> = (0..chunks * tokens).map(|_| std::array::from_fn(|_| code(-127, 127))).collect();
        let panel = RowPanel::of_codes(grouping, &weights, &random_activations(2 * PANEL_ROWS * LINE / 16, rng));
        let inputs: Vec<TokenChunk> = codes
            .into_iter()
            .zip(random_activations(chunks * tokens, rng))
            .map(|(codes, scale)| {
                let half_code_sums = [0, 16].map(|from| codes[from..from + 16].iter().map(|x| i32::from(*x)).sum());
                let code_sum = half_code_sums.iter().sum::<i32>();
                let half_sums = half_code_sums.map(|sum| sum as f32 * scale);
                TokenChunk { codes, scale, sum: code_sum as f32 * scale, half_sums, code_sum, half_code_sums }
            })
            .collect();
        let tile = TokenTile { tokens, chunks: &inputs };
        let mut wanted = vec![PanelSums::default(); tokens];
        (kernels(Isa::Scalar).panel_products)(&panel, tile, &mut wanted);
        for isa in Isa::available() {
            let mut got = vec![PanelSums::default(); tokens];
            (kernels(isa).panel_products)(&panel, tile, &mut got);
            for (got, wanted) in got.iter().zip(&wanted) {
                prop_assert_eq!(got.total, wanted.total, "{}", isa);
            }
        }
    }

    /// Lines of decoded panels give the bits of the kernels of one token.
    #[test]
    fn decoded_panels_agree_with_dot_kernels(at in 3..TensorType::WEIGHTS.len(), blocks in 1usize..20, tokens in 1usize..4, seed: u64) {
        let ty = TensorType::WEIGHTS[at];
        let Some(WeightType::Blocks(blocks_of)) = ty.weight_type() else { return Err(TestCaseError::fail("floats come first")) };
        let rng = &mut StdRng::seed_from_u64(seed);
        let n = (ty.block_len() * blocks).min(LINE);
        let weights = random_weights(ty, PANEL_ROWS * n, rng);
        let bytes = ty.row_bytes(n).unwrap();
        let rows: [&[u8]; PANEL_ROWS] = std::array::from_fn(|row| &weights[row * bytes..][..bytes]);
        let inputs: Vec<QuantisedInputBuffer> =
            (0..tokens).map(|_| rounded(kernels(Isa::Scalar), &random_activations(n, rng))).collect();
        let chunks: Vec<TokenChunk> =
            (0..n / 32).flat_map(|at| inputs.iter().map(move |row| TokenChunk::of(&row.row(), at))).collect();
        let tile = TokenTile { tokens, chunks: &chunks };
        for isa in Isa::available() {
            let (mut panel, mut got) = (RowPanel::default(), vec![PanelSums::default(); tokens]);
            (kernels(isa).decode_panel)(blocks_of, &rows, 0, &mut panel);
            (kernels(isa).panel_products)(&panel, tile, &mut got);
            for (got, x) in got.iter().zip(&inputs) {
                let mut alone = [f32::NAN; PANEL_ROWS];
                (kernels(Isa::Scalar).dot_codes)(blocks_of, &weights, x.row(), 0, &mut alone);
                prop_assert_eq!(got.total, alone, "{} {} of {}", isa, ty, n);
            }
        }
    }

    #[test]
    fn tile_codes_agrees_with_f64(len in prop_oneof![Just(16usize), Just(32)], minima: bool, wide: bool, blocks in 1usize..17, seed: u64) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let n = 32 * blocks;
        let (lowest, highest) = if wide { (-128, 127) } else { (-32, 32) };
        let grouping = Grouping { len, minima, lowest, highest };
        let code = |rng: &mut StdRng| rng.random_range(lowest..=highest);
        for kernels in Isa::available().into_iter().map(kernels) {
            let (rows, Some(of_tiles)) = (kernels.panel_rows, kernels.code_tiles) else { continue };
            let groups = rows * n / len;
            let weights: Vec<i8> = (0..rows * n).map(|_| code(rng)).collect();
            let mut codes = vec![0; rows * n];
            (of_tiles.interleave)(&weights, &mut codes);
            let scales = random_activations(groups, rng);
            let mins = random_activations(if minima { groups } else { 0 }, rng);
            let mut bias = vec![0; groups];
            (of_tiles.bias)(&codes, len, &mut bias);
            let x: Vec<i8> = (0..TILE_TOKENS * n).map(|_| rng.random_range(-127..=127)).collect();
            let x_codes: Vec<u32> = (0..n / 4 * TILE_TOKENS)
                .map(|i| {
                    let (quad, t) = (i / TILE_TOKENS, i % TILE_TOKENS);
                    u32::from_le_bytes(std::array::from_fn(|k| (x[t * n + 4 * quad + k] as u8) ^ 0x80))
                })
                .collect();
            let x_scales = random_activations(n / 32 * TILE_TOKENS, rng);
            let sums = random_activations(n / 32 * TILE_TOKENS, rng);
            let half_sums = random_activations(n / 16 * TILE_TOKENS, rng);
            let mut acc = random_activations(rows * TILE_TOKENS, rng);
            let want: Vec<f32> = (0..rows * TILE_TOKENS)
                .map(|i| {
                    let (t, r) = (i / rows, i % rows);
                    let mut sum = f64::from(acc[i]);
                    for group in 0..n / len {
                        let k = group * len;
                        let dot: i32 = (k..k + len).map(|k| i32::from(weights[r * n + k]) * i32::from(x[t * n + k])).sum();
                        let at = group * rows + r;
                        sum += f64::from(scales[at]) * f64::from(x_scales[k / 32 * TILE_TOKENS + t]) * f64::from(dot);
                        if minima {
                            let sums = if len == 32 { &sums } else { &half_sums };
                            sum += f64::from(mins[at]) * f64::from(sums[group * TILE_TOKENS + t]);
                        }
                    }
                    sum as f32
                })
                .collect();
            let panel = CodePanel { grouping, codes: &codes, scales: &scales, mins: &mins, bias: &bias };
            let tile = CodeTile { codes: &x_codes, scales: &x_scales, sums: &sums, half_sums: &half_sums };
            (of_tiles.tile_codes)(panel, tile, &mut acc);
            close(&acc, &want, 1e-5)?;
        }
    }

    #[test]
    fn gathered_rows_agree_with_the_scalar_oracle(at in 3..TensorType::WEIGHTS.len(), blocks in 1usize..150, seed: u64) {
        let ty = TensorType::WEIGHTS[at];
        let rng = &mut StdRng::seed_from_u64(seed);
        let n = columns(ty, blocks);
        let weights = random_weights(ty, DOT_ROWS * n, rng);
        let x = random_activations(n, rng);
        let Some(WeightType::Blocks(blocks)) = ty.weight_type() else { return Err(TestCaseError::fail("floats come first")) };
        let mut oracle = [0.0; DOT_ROWS];
        (kernels(Isa::Scalar).dot_codes)(blocks, &weights, rounded(kernels(Isa::Scalar), &x).row(), 0, &mut oracle);
        let bytes = ty.row_bytes(n).unwrap();
        let rows = std::array::from_fn(|row| GatheredRow { row: &weights[row * bytes..][..bytes], ahead: 64 });
        for isa in Isa::available() {
            let mut out = [f32::NAN; DOT_ROWS];
            kernels(isa).dot_gathered(blocks, &rows, rounded(kernels(isa), &x).row(), &mut out);
            match isa {
                Isa::Avx512 => close(&out, &oracle, 2e-5)?,
                _ => prop_assert_eq!(out, oracle, "{} {} of {}", isa, ty, n),
            }
        }
    }

    #[test]
    fn add_inputs_agrees_with_f64(lines in 1usize..4, some in any::<u32>(), extreme: bool, seed: u64) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let outputs = lines * OUTPUTS;
        let mut codes = vec![0xff; INPUTS * outputs / 2];
        if !extreme {
            rng.fill_bytes(&mut codes);
        }
        let (heads, scales) = random_halves(outputs, rng);
        let (minimum_heads, minimum_scales) = random_halves(outputs, rng);
        let (active, x) = random_inputs(some, extreme, rng);
        let scale = 0.03;
        let sum = scale * x.iter().map(|x| f32::from(*x)).sum::<f32>();
        let inputs = InputBlock { scales: &scales, codes: &codes, active: &active, x: &x, scale, sum };
        let before = random_activations(outputs, rng);
        let dot = |output: usize| {
            let products = x.iter().enumerate().map(|(input, x)| nibble(&codes, input, output) * f64::from(*x));
            products.sum::<f64>() * f64::from(scale)
        };
        let with = |product: &dyn Fn(usize) -> f64| {
            before.iter().enumerate().map(|(at, before)| (f64::from(*before) + product(at)) as f32).collect::<Vec<_>>()
        };
        let want = with(&|at| heads[at] * (dot(at) - 8.0 * f64::from(sum)));
        let (mut factors, mut minima) = (vec![0; outputs], vec![0; outputs]);
        [&mut factors, &mut minima].into_iter().flatten().for_each(|byte| *byte = rng.random_range(0..64u8));
        let less = |at: usize| minimum_heads[at] * f64::from(minima[at]) * f64::from(sum);
        let want_with_minima = with(&|at| heads[at] * f64::from(factors[at]) * dot(at) - less(at));
        for isa in Isa::available() {
            let mut acc = before.clone();
            (kernels(isa).add_inputs)(&inputs, Some(&inputs), &mut acc);
            close(&acc, &want, 1e-5)?;
            let mut acc = before.clone();
            let of = InputMinima { factors: &factors, minima: &minima, scales: &minimum_scales };
            (kernels(isa).add_inputs_with_minima)(&inputs, &of, Some(&inputs), &mut acc);
            close(&acc, &want_with_minima, 1e-5)?;
        }
    }

    #[test]
    fn add_byte_inputs_agrees_with_f64(lines in 1usize..4, some in any::<u32>(), extreme: bool, seed: u64) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let outputs = lines * OUTPUTS;
        let mut codes = vec![0x80; INPUTS * outputs];
        if !extreme {
            rng.fill_bytes(&mut codes);
        }
        let (heads, scales) = random_halves(outputs, rng);
        let (active, x) = random_inputs(some, extreme, rng);
        let (scale, before) = (0.03, random_activations(outputs, rng));
        let inputs = InputBlock { scales: &scales, codes: &codes, active: &active, x: &x, scale, sum: 0.0 };
        let want: Vec<f32> = (0..outputs)
            .map(|output| {
                let code = |input: usize| f64::from(codes[input * outputs + output] as i8);
                let dot: f64 = (0..INPUTS).map(|input| code(input) * f64::from(x[input])).sum();
                (f64::from(before[output]) + heads[output] * dot * f64::from(scale)) as f32
            })
            .collect();
        for isa in Isa::available() {
            let mut acc = before.clone();
            (kernels(isa).add_byte_inputs)(&inputs, Some(&inputs), &mut acc);
            close(&acc, &want, 1e-5)?;
        }
    }

    #[test]
    fn tile_floats_agrees_with_f64(n in 0usize..70, seed: u64) {
        let rng = &mut StdRng::seed_from_u64(seed);
        for isa in Isa::available() {
            let kernels = kernels(isa);
            let (rows, tokens) = (kernels.panel_rows, kernels.float_tokens);
            let weights = random_activations(n * rows, rng);
            let mut panel = vec![0.0; n * rows];
            (kernels.interleave_floats)(&weights, &mut panel);
            let x = random_activations(n * tokens, rng);
            let mut acc = random_activations(tokens * rows, rng);
            let want: Vec<f32> = (0..rows * tokens)
                .map(|i| {
                    let (t, r) = (i / rows, i % rows);
                    let dot: f64 = (0..n).map(|k| f64::from(weights[r * n + k]) * f64::from(x[k * tokens + t])).sum();
                    (f64::from(acc[i]) + dot) as f32
                })
                .collect();
            (kernels.tile_floats)(&panel, &x, &mut acc);
            close(&acc, &want, 1e-5)?;
        }
    }
}
