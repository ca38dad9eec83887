//! Cases of kernels: one dispatch with fixed inputs, and the results that the scalar oracle of the
//! operation expects. The numeric test runs all cases of a kernel on the driver of the test
//! machine. The self-test of a device runs the difficult ones on the user's card. The mutation test
//! checks that both detect a mistake in a kernel's text.

use bytemuck::{Pod, bytes_of, cast_slice, pod_collect_to_vec};
use half::f16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use thermocline_formats::quant::{dequantise, repack, sample::random_weights};

use crate::{Tier, WeightType, params::Params};

/// Largest error of a result of few roundings.
pub(crate) const ROUNDED: f64 = 1e-6;
/// Largest error of a result that sums few numbers of its own size, relative to results above one.
pub(crate) const CLOSE: f64 = 2e-5;
/// Largest error if the sum has more terms, or if the driver computes a function of its own.
pub(crate) const NEAR: f64 = 2e-4;
/// Largest error of a half.
pub(crate) const HALF: f64 = 2e-3;
/// A number far larger than its neighbours.
pub(crate) const OUTLIER: f32 = 3e4;
/// Contents of an output before the dispatch, where the kernel must not write.
pub(crate) const UNTOUCHED: f32 = 7.0;

/// Columns of a row, in cases of kernels with one invocation per element. Neither these nor all
/// elements are a multiple of a workgroup.
pub(crate) const COLS: usize = 129;
/// Elements from one of these rows to the next.
pub(crate) const PITCH: usize = 160;
/// Number of these rows.
pub(crate) const ROWS: usize = 3;
/// Invocations of a workgroup and workgroups of these cases, in two rows of the grid.
const FLAT: (u32, [u32; 3]) = (64, [4, 2, 1]);
/// [`COLS`], [`PITCH`], [`ROWS`], and the invocations in one row of the grid.
pub(crate) const FLAT_SIZES: [u32; 4] = [COLS as u32, PITCH as u32, ROWS as u32, FLAT.0 * FLAT.1[0]];

/// Number of cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The difficult cases, for the self-test of a device: at most 1 MB of inputs each.
    Hard,
    /// All cases.
    All,
}

/// A request for cases of a kernel.
#[derive(Debug, Clone, Copy)]
pub struct CaseRequest {
    /// Number of cases.
    pub extent: Extent,
    /// Tier of the kernel's text.
    pub tier: Tier,
    /// Type of the weights, for kernels that read weights.
    pub ty: WeightType,
}

impl CaseRequest {
    /// `all` for the numeric test, and only the first `hard` of them for the self-test.
    pub(crate) fn pick<'a, T>(&self, all: &'a [T], hard: usize) -> &'a [T] {
        match self.extent {
            Extent::Hard => &all[..hard],
            Extent::All => all,
        }
    }

    /// Largest error of results that depend on functions such as exp. Every driver computes them in
    /// its own way, and the test machine's driver is precise.
    pub(crate) fn function_error(&self) -> f64 {
        match self.extent {
            Extent::Hard => NEAR,
            Extent::All => 1e-5,
        }
    }

    /// [`CaseRequest::pick`] for shapes that do not affect how a type of weights is decoded. The
    /// numeric test takes all of them for a float, one block type and one super-block type, and the
    /// first for other types.
    pub(crate) fn pick_of_type<'a, T>(&self, all: &'a [T], hard: usize) -> &'a [T] {
        match (self.extent, self.ty) {
            (Extent::Hard, _) => &all[..hard],
            (Extent::All, WeightType::F32 | WeightType::Q4_0 | WeightType::Q4_K) => all,
            (Extent::All, _) => &all[..1],
        }
    }
}

/// One dispatch of a kernel and its expected results.
#[derive(Debug, Clone)]
pub struct KernelCase {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Sizes and options of the case, for messages.
    pub name: String,
    /// Type of the weights that the kernel reads.
    pub weights: Option<WeightType>,
    /// Invocations of a workgroup.
    pub workgroup: u32,
    /// Overrides other than the size of the workgroup.
    pub overrides: Vec<(&'static str, f64)>,
    /// The kernel's parameters.
    pub params: Vec<u8>,
    /// Workgroups of the dispatch.
    pub groups: [u32; 3],
    /// True if the device reads `groups` from a buffer.
    pub indirect: bool,
    /// Contents of the storage buffers, in the order of the bindings.
    pub buffers: Vec<Vec<u8>>,
    /// Expected contents after the dispatch.
    pub expected: Vec<ExpectedResult>,
}

/// Expected contents of a binding.
#[derive(Debug, Clone)]
pub struct ExpectedResult {
    /// Number of the binding.
    pub binding: usize,
    /// Bytes of the binding before the expected contents.
    pub offset: usize,
    /// The contents.
    pub values: CaseValues,
    /// Largest error, relative to values above one.
    pub tolerance: f64,
}

/// Contents of a binding.
#[derive(Debug, Clone)]
pub enum CaseValues {
    /// 32-bit floats.
    Floats(Vec<f64>),
    /// 16-bit floats.
    Halves(Vec<f64>),
    /// Words. The error is their difference as whole numbers.
    Words(Vec<u32>),
}

/// The element with the largest error.
#[derive(Debug, Clone, Copy)]
pub struct WorstElement {
    /// Number of the element.
    pub at: usize,
    /// The computed value.
    pub got: f64,
    /// The expected value.
    pub expected: f64,
    /// The difference, relative to expected values above one.
    pub error: f64,
}

impl KernelCase {
    pub(crate) fn new<P: Params>(kernel: &'static str, workgroup: u32, params: P, groups: [u32; 3]) -> Self {
        KernelCase {
            kernel,
            name: String::new(),
            weights: None,
            workgroup,
            overrides: Vec::new(),
            params: bytes_of(&params).to_vec(),
            groups,
            indirect: false,
            buffers: Vec::new(),
            expected: Vec::new(),
        }
    }

    /// A case of a kernel with one invocation per element, for rows of [`FLAT_SIZES`].
    pub(crate) fn flat<P: Params>(kernel: &'static str, params: P) -> Self {
        Self::new(kernel, FLAT.0, params, FLAT.1)
    }

    /// Sets the name, for messages.
    pub(crate) fn named(mut self, name: String) -> Self {
        self.name = name;
        self
    }

    /// Sets an override.
    pub(crate) fn set(mut self, name: &'static str, value: impl Into<f64>) -> Self {
        self.overrides.push((name, value.into()));
        self
    }

    /// Sets each of the overrides `all` to whether `options` has its name.
    pub(crate) fn switches(mut self, all: &[&'static str], options: &str) -> Self {
        self.overrides.extend(all.iter().map(|name| (*name, f64::from(has(options, name)))));
        self
    }

    /// The device reads the numbers of workgroups from a buffer.
    pub(crate) fn indirect(mut self) -> Self {
        self.indirect = true;
        self
    }

    /// Adds both streams of a matrix as the next bindings.
    pub(crate) fn matrix(mut self, weights: &SampleWeights) -> Self {
        self.weights = Some(weights.ty);
        self.buffers.push(weights.main.clone());
        // A binding is never empty.
        self.buffers.push(if weights.aux.is_empty() { vec![0; 16] } else { weights.aux.clone() });
        self
    }

    /// Adds numbers (`f32` or `u32`) as the next binding.
    pub(crate) fn input<T: Pod>(mut self, values: &[T]) -> Self {
        self.buffers.push(if values.is_empty() { vec![0; 16] } else { cast_slice(values).to_vec() });
        self
    }

    /// Adds halves as the next binding.
    pub(crate) fn halves(self, values: &[f32]) -> Self {
        let halves: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
        self.input(&halves)
    }

    /// Adds elements of a cache as the next binding: floats if `kv_f32`, otherwise halves.
    pub(crate) fn cache(self, values: &[f32], kv_f32: bool) -> Self {
        if kv_f32 { self.input(values) } else { self.halves(values) }
    }

    fn expect(mut self, values: CaseValues, tolerance: f64) -> Self {
        let binding = self.buffers.len() - 1;
        self.expected.push(ExpectedResult { binding, offset: 0, values, tolerance });
        self
    }

    /// Expects these floats in the last binding after the dispatch.
    pub(crate) fn becomes(self, values: &[f64], tolerance: f64) -> Self {
        self.expect(CaseValues::Floats(values.to_vec()), tolerance)
    }

    /// Expects these words in the last binding, at its element `at`, after the dispatch. Other
    /// elements depend on the driver.
    pub(crate) fn becomes_words_at(self, at: usize, values: &[u32]) -> Self {
        let mut case = self.becomes_words(values);
        case.expected.iter_mut().rev().take(1).for_each(|expected| expected.offset = 4 * at);
        case
    }

    /// Expects these halves in the last binding after the dispatch.
    pub(crate) fn becomes_halves(self, values: &[f64]) -> Self {
        self.expect(CaseValues::Halves(values.to_vec()), HALF)
    }

    /// Expects these elements of a cache in the last binding after the dispatch.
    pub(crate) fn becomes_cache(self, values: &[f64], kv_f32: bool) -> Self {
        if kv_f32 { self.becomes(values, CLOSE) } else { self.becomes_halves(values) }
    }

    /// Expects these words in the last binding after the dispatch.
    pub(crate) fn becomes_words(self, values: &[u32]) -> Self {
        self.expect(CaseValues::Words(values.to_vec()), 0.0)
    }

    /// Expects about these words in the last binding after the dispatch. Some are floats whose last
    /// bits depend on the driver.
    pub(crate) fn becomes_near_words(self, values: &[u32]) -> Self {
        self.expect(CaseValues::Words(values.to_vec()), 4.0)
    }
}

impl CaseValues {
    /// Bytes of the contents, a whole number of words.
    pub fn bytes(&self) -> usize {
        match self {
            CaseValues::Floats(values) => values.len() * 4,
            CaseValues::Halves(values) => (values.len() * 2).next_multiple_of(4),
            CaseValues::Words(values) => values.len() * 4,
        }
    }

    /// The element of `got` with the largest error. `None` if there is no element.
    pub fn worst(&self, got: &[u8]) -> Option<WorstElement> {
        let (got, expected): (Vec<f64>, Vec<f64>) = match self {
            CaseValues::Floats(expected) => {
                (pod_collect_to_vec::<_, f32>(got).into_iter().map(f64::from).collect(), expected.clone())
            }
            CaseValues::Halves(expected) => {
                (pod_collect_to_vec::<_, f16>(got).into_iter().map(f64::from).collect(), expected.clone())
            }
            CaseValues::Words(expected) => {
                let floats = |words: Vec<u32>| words.into_iter().map(f64::from).collect();
                (floats(pod_collect_to_vec(got)), floats(expected.clone()))
            }
        };
        let relative = !matches!(self, CaseValues::Words(_));
        let elements = expected.into_iter().zip(got).enumerate().map(|(at, (expected, got))| {
            let scale = if relative { 1.0 + expected.abs() } else { 1.0 };
            let error = if got == expected { 0.0 } else { (got - expected).abs() / scale };
            let error = if error.is_nan() { f64::INFINITY } else { error };
            WorstElement { at, got, expected, error }
        });
        elements.max_by(|a, b| a.error.total_cmp(&b.error))
    }
}

/// A small matrix of random codes: decoded, and in the device's layout.
#[derive(Debug, Clone)]
pub(crate) struct SampleWeights {
    pub ty: WeightType,
    main: Vec<u8>,
    aux: Vec<u8>,
    /// Values, `[rows, cols]`.
    pub values: Vec<f64>,
    pub cols: usize,
}

impl SampleWeights {
    /// Makes a matrix `[rows, cols]`. `cols` is a multiple of the type's block.
    ///
    /// # Panics
    /// If it is not.
    pub(crate) fn new(ty: WeightType, rows: usize, cols: usize, seed: u64) -> Self {
        let file = ty.tensor_type();
        let row_bytes = file.row_bytes(cols).unwrap_or(0);
        assert!(row_bytes > 0, "{cols} columns of {ty}");
        let bytes = random_weights(file, rows * cols, &mut ChaCha8Rng::seed_from_u64(seed));
        let factor = if ty.device().row_factor { 0.75 } else { 1.0 };
        let (main_row, aux_row) = (ty.main_len(cols) * 16, ty.aux_len(cols) * 4);
        let (mut main, mut aux) = (vec![0; rows * main_row], vec![0; rows * aux_row]);
        let mut values = vec![0.0; rows * cols];
        let mut decoded = vec![0.0; cols];
        for (row, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
            let (main, aux) = (&mut main[row * main_row..][..main_row], &mut aux[row * aux_row..][..aux_row]);
            repack(file, bytes, factor, main, aux).unwrap_or_else(|error| panic!("{ty}: {error}"));
            dequantise(file, bytes, &mut decoded);
            let values = values[row * cols..].iter_mut().zip(&decoded);
            values.for_each(|(value, decoded)| *value = f64::from(*decoded) * f64::from(factor));
        }
        SampleWeights { ty, main, aux, values, cols }
    }

    /// A decoded row.
    pub(crate) fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.cols..][..self.cols]
    }

    /// Product of a row and `x`, which may be shorter.
    pub(crate) fn product(&self, row: usize, x: &[f32]) -> f64 {
        self.row(row).iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum()
    }
}

/// True if `options`, names with a space between, has `name`.
pub(crate) fn has(options: &str, name: &str) -> bool {
    options.split(' ').any(|it| it == name)
}

/// Random numbers from -1 to 1.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| random.random_range(-1.0..1.0)).collect()
}

/// [`noise`] times `scale`.
pub(crate) fn loud_noise(len: usize, seed: u64, scale: f32) -> Vec<f32> {
    noise(len, seed).into_iter().map(|value| value * scale).collect()
}

/// Floats with more digits, as expected results.
pub(crate) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// The contents of rows of [`PITCH`] after `value` replaced the elements of their [`COLS`] columns.
/// `value` takes the row, the column and the element.
pub(crate) fn map_elements(rows: &[f32], value: impl Fn(usize, usize, f64) -> f64) -> Vec<f64> {
    let element = |(at, before): (usize, &f32)| {
        let (row, col, before) = (at / PITCH, at % PITCH, f64::from(*before));
        if col < COLS { value(row, col, before) } else { before }
    };
    rows.iter().enumerate().map(element).collect()
}

/// `1 / (1 + e^-x)`.
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)`.
pub(crate) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Numbers as the `u32`s of parameters.
pub(crate) fn sizes<const N: usize>(sizes: [usize; N]) -> [u32; N] {
    sizes.map(|size| size as u32)
}
