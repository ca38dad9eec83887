//! One dispatch of a kernel with fixed inputs, and the CPU's results for it.

use half::f16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use thermocline_shaders::params::Params;

use thermocline_base::error::{Error, Result};
use thermocline_formats::{
    format::{Bytes, Matrix},
    quant::{TensorType, device_type, repack, sample::random_weights},
};
use thermocline_gpu::{Binding, Gpu, LargestError, Op, Purpose, ReadbackRing, Recorder, UploadRing, Usage, WeightType};

/// Most bytes of all inputs of a case together, and of all its results.
const MOST_BYTES: u64 = 1 << 20;

/// Largest error of a result that sums few numbers of its own size, relative to results above one.
pub(super) const CLOSE: f64 = 2e-5;
/// Largest error if the sum has more terms, or if CPU and device take functions from different
/// tables.
pub(super) const NEAR: f64 = 2e-4;
/// Largest error of a half.
pub(super) const HALF: f64 = 2e-3;

/// A dispatch and its expected results.
pub(super) struct Case {
    pub kernel: &'static str,
    pub weights: Option<WeightType>,
    workgroup: u32,
    overrides: Vec<(&'static str, f64)>,
    /// Contents in the order of the bindings.
    buffers: Vec<Vec<u8>>,
    expected: Vec<Expected>,
    record: Dispatch,
}

/// Records the dispatch, with its parameters and workgroups.
type Dispatch = Box<dyn Fn(&mut Recorder, &Op)>;

/// Expected contents of a binding.
struct Expected {
    binding: usize,
    /// Bytes before the expected contents.
    offset: u64,
    values: CaseValues,
    tolerance: f64,
}

enum CaseValues {
    Floats(Vec<f32>),
    Halves(Vec<f32>),
    Words(Vec<u32>),
}

impl Case {
    pub fn new<P: Params>(kernel: &'static str, workgroup: u32, params: P, groups: [u32; 3]) -> Self {
        let record = Box::new(move |recorder: &mut Recorder, op: &Op| recorder.dispatch(op, &params, groups));
        let (overrides, buffers, expected) = (Vec::new(), Vec::new(), Vec::new());
        Case { kernel, weights: None, workgroup, overrides, buffers, expected, record }
    }

    /// Sets an override.
    pub fn set(mut self, name: &'static str, value: impl Into<f64>) -> Self {
        self.overrides.push((name, value.into()));
        self
    }

    /// Adds both streams of a matrix as the next bindings.
    pub fn matrix(mut self, weights: &SampleWeights) -> Self {
        self.weights = Some(weights.ty);
        self.buffers.push(weights.main.clone());
        // A binding is never empty.
        self.buffers.push(if weights.aux.is_empty() { vec![0; 16] } else { weights.aux.clone() });
        self
    }

    /// Adds floats as the next binding.
    pub fn floats(mut self, values: &[f32]) -> Self {
        self.buffers.push(bytemuck::cast_slice(values).to_vec());
        self
    }

    /// Adds whole numbers as the next binding.
    pub fn words(mut self, values: &[u32]) -> Self {
        self.buffers.push(bytemuck::cast_slice(values).to_vec());
        self
    }

    /// Adds halves as the next binding.
    pub fn halves(mut self, values: &[f32]) -> Self {
        let halves: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
        self.buffers.push(bytemuck::cast_slice(&halves).to_vec());
        self
    }

    fn expect(mut self, values: CaseValues, tolerance: f64) -> Self {
        let binding = self.buffers.len().saturating_sub(1);
        self.expected.push(Expected { binding, offset: 0, values, tolerance });
        self
    }

    /// Expects these floats in the last binding after the dispatch.
    pub fn becomes(self, values: &[f32], tolerance: f64) -> Self {
        self.expect(CaseValues::Floats(values.to_vec()), tolerance)
    }

    /// Adds floats as the next binding and expects `after` there after the dispatch.
    pub fn changes(self, before: &[f32], after: &[f32], tolerance: f64) -> Self {
        self.floats(before).becomes(after, tolerance)
    }

    /// Adds rows of floats, `pitch` apart, as the next binding. Expects `values` in the first
    /// `cols` floats of each row after the dispatch.
    pub fn rows(self, before: &[f32], pitch: usize, values: &[f32], cols: usize, tolerance: f64) -> Self {
        let mut after = before.to_vec();
        let each = after.chunks_exact_mut(pitch).zip(values.chunks_exact(cols));
        each.for_each(|(row, values)| row[..cols].copy_from_slice(values));
        self.changes(before, &after, tolerance)
    }

    /// Adds halves as the next binding and expects `after` there after the dispatch.
    pub fn changes_halves(self, before: &[f32], after: &[f32]) -> Self {
        self.halves(before).expect(CaseValues::Halves(after.to_vec()), HALF)
    }

    /// Adds whole numbers as the next binding and expects `after` there after the dispatch.
    pub fn changes_words(self, before: &[u32], after: &[u32]) -> Self {
        self.words(before).expect(CaseValues::Words(after.to_vec()), 0.0)
    }

    /// Expects these words in the last binding after the dispatch. Some are floats whose last bits
    /// depend on the driver.
    pub fn becomes_near_words(self, values: &[u32]) -> Self {
        self.expect(CaseValues::Words(values.to_vec()), 4.0)
    }

    /// Expects these whole numbers in the last binding after the dispatch, after `words` words that
    /// depend on the driver.
    pub fn becomes_words_behind(self, words: u64, values: &[u32]) -> Self {
        let mut case = self.expect(CaseValues::Words(values.to_vec()), 0.0);
        case.expected.iter_mut().rev().take(1).for_each(|expected| expected.offset = 4 * words);
        case
    }

    /// Runs the case and returns the largest error of its results.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the kernel does not compile or the device is lost, [`Error::Memory`] if
    /// the case does not fit the budget.
    pub fn run(&self, bench: &mut TestBench) -> Result<LargestError> {
        let TestBench { gpu, upload, read } = bench;
        let pipeline = gpu.pipelines().get(self.kernel, self.weights, self.workgroup, &self.overrides)?;
        let buffers = self
            .buffers
            .iter()
            .map(|contents| gpu.arena().buffer(Purpose::Scratch, "self-test", contents.len() as u64, Usage::Storage));
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        let bindings: Vec<Binding> = buffers.iter().map(Binding::from).collect();
        let op = Op::new(gpu, &pipeline, &bindings)?;
        let mut recorder = Recorder::new(gpu);
        let pieces: Vec<_> = self.buffers.iter().zip(&buffers).map(|(from, to)| (&from[..], to, 0)).collect();
        upload.record(&mut recorder, &pieces)?;
        (self.record)(&mut recorder, &op);
        let results = self.expected.iter().map(|it| (&buffers[it.binding], it.offset, it.values.bytes()));
        let results: Vec<_> = results.collect();
        let submitted = || upload.submitted();
        read.read(recorder, &results, submitted, |read| self.difference(read))
    }

    /// Largest error of `results`, which are the expected bindings one after the other.
    fn difference(&self, mut results: &[u8]) -> LargestError {
        let mut worst = LargestError { largest: 0.0, tolerance: CLOSE };
        for expected in &self.expected {
            let (got, rest) = results.split_at(results.len().min(expected.values.bytes() as usize));
            results = rest;
            worst = worst.or_worse(LargestError { largest: expected.values.error(got), tolerance: expected.tolerance });
        }
        worst
    }
}

impl CaseValues {
    fn bytes(&self) -> u64 {
        let bytes = match self {
            CaseValues::Floats(values) => values.len() * 4,
            CaseValues::Halves(values) => values.len() * 2,
            CaseValues::Words(values) => values.len() * 4,
        };
        bytes.next_multiple_of(4) as u64
    }

    /// Largest error of `got`.
    fn error(&self, got: &[u8]) -> f64 {
        let of_floats = |expected: &[f32], got: Vec<f32>| {
            let errors = expected.iter().zip(got).map(|(expected, got)| {
                let error = (f64::from(got) - f64::from(*expected)).abs() / (1.0 + f64::from(expected.abs()));
                if error.is_nan() { f64::INFINITY } else { error }
            });
            errors.fold(0.0, f64::max)
        };
        match self {
            CaseValues::Floats(expected) => of_floats(expected, bytemuck::pod_collect_to_vec(got)),
            CaseValues::Halves(expected) => {
                let halves: Vec<f16> = bytemuck::pod_collect_to_vec(got);
                of_floats(expected, halves.iter().map(|half| half.to_f32()).collect())
            }
            CaseValues::Words(expected) => {
                let got: Vec<u32> = bytemuck::pod_collect_to_vec(got);
                expected.iter().zip(got).map(|(expected, got)| f64::from(expected.abs_diff(got))).fold(0.0, f64::max)
            }
        }
    }
}

/// A device under test, and the buffers that copy data of cases to and from it.
pub(super) struct TestBench {
    pub gpu: Gpu,
    upload: UploadRing,
    read: ReadbackRing,
}

impl TestBench {
    pub fn new(gpu: Gpu) -> Result<Self> {
        let (upload, read) = (UploadRing::new(&gpu, 1, MOST_BYTES)?, ReadbackRing::new(&gpu, 1, MOST_BYTES)?);
        Ok(TestBench { gpu, upload, read })
    }
}

/// A small matrix of random codes, decoded and in the device's layout.
pub(super) struct SampleWeights {
    pub ty: WeightType,
    main: Vec<u8>,
    aux: Vec<u8>,
    /// `[rows, cols]`
    values: Vec<f32>,
    pub cols: usize,
}

impl SampleWeights {
    /// Makes a matrix `[rows, cols]` of file type `ty`; `cols` is a multiple of every block.
    pub fn new(ty: TensorType, rows: usize, cols: usize, seed: u64) -> Result<Self> {
        let bytes = random_weights(ty, rows * cols, &mut ChaCha8Rng::seed_from_u64(seed));
        let file = Matrix::new(ty, rows, cols, Bytes::new(bytes));
        let file = file.ok_or_else(|| Error::invalid("columns of a sample", format!("whole blocks of {ty}"), cols))?;
        let device = device_type(ty);
        let (main_row, aux_row) = (device.main_len(cols) * 16, device.aux_len(cols) * 4);
        let (mut main, mut aux) = (vec![0; rows * main_row], vec![0; rows * aux_row]);
        let mut values = vec![0.0; rows * cols];
        for (row, values) in values.chunks_exact_mut(cols).enumerate() {
            let to = (&mut main[row * main_row..][..main_row], &mut aux[row * aux_row..][..aux_row]);
            repack(ty, file.row(row), file.factor(), to.0, to.1)?;
            file.dequantise_row(row, values);
        }
        Ok(SampleWeights { ty: device, main, aux, values, cols })
    }

    /// A decoded row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..][..self.cols]
    }

    /// Product of a row and `x`.
    pub fn product(&self, row: usize, x: &[f32]) -> f32 {
        let products = self.row(row).iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
        products.sum::<f64>() as f32
    }
}

/// Random numbers from -1 to 1.
pub(super) fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| random.random_range(-1.0..1.0)).collect()
}

/// The first `cols` elements of each row of length `pitch`.
pub(super) fn unpadded(rows: &[f32], pitch: usize, cols: usize) -> Vec<f32> {
    rows.chunks_exact(pitch).flat_map(|row| &row[..cols]).copied().collect()
}
