//! Tuning: finds the fastest kernel shape of a product on this adapter. It measures once per weight
//! type, when the first matrix of the type is prepared.

use std::{
    collections::HashMap,
    sync::OnceLock,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use thermocline_shaders::WeightType;

use super::{
    AdapterKind, Caps, CooperativeTile, Gpu, GpuFeature, GpuMatrix, Matmul, MatmulOutput, MatrixLayout, MemoryUse,
    ProductSample, Purpose, Recorder, SampleSize, Usage, coop, pitch, token_bits::products_keep_bits,
};
use thermocline_base::error::{Error, Result};

/// Kernel and workgroup shape of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelShape {
    /// For one token: multiply integers, with activations rounded to 8 bits.
    pub packed: bool,
    /// For one token: invocations per workgroup.
    pub workgroup: u32,
    /// For one token: rows per workgroup.
    pub rows: u32,
    /// For many tokens: use matrix products in hardware.
    pub cooperative: bool,
}

impl KernelShape {
    /// Shape without a measurement.
    pub const DEFAULT: KernelShape = KernelShape { packed: false, workgroup: 128, rows: 4, cooperative: false };

    /// Returns the tile of the hardware's matrix products, if the device supports it and workgroups
    /// with as many subgroups as its kernel needs.
    pub fn tiles(caps: &Caps) -> Option<CooperativeTile> {
        caps.cooperative.filter(|tile| caps.subgroups.1 * tile.subgroups() <= caps.max_workgroup)
    }
}

/// Workgroup sizes and rows to measure. Small workgroups suit wide subgroups and short rows. Many
/// rows save reads of the activations.
const CANDIDATES: [(u32, u32); 4] = [(128, 4), (64, 4), (64, 8), (256, 2)];
/// Bytes of the measured matrix: larger than caches, if there is room.
const BYTES: u64 = 96 << 20;
/// Fewest bytes for which a measurement shows the speed of memory, not of caches.
const LEAST_BYTES: u64 = 16 << 20;
/// Columns of the measured matrix, as in 7B models.
const COLS: usize = 4096;
/// Products per measurement, and number of measurements. The shortest measurement counts.
const PRODUCTS: usize = 8;
const ROUNDS: usize = 3;

/// Shapes measured so far.
#[derive(Debug, Default)]
pub(super) struct Tuning {
    packed: Option<bool>,
    shapes: Mutex<HashMap<WeightType, KernelShape>>,
    cooperative: OnceLock<bool>,
    /// Results of the trials of kernels for a few tokens.
    keep_bits: Mutex<HashMap<(FewTokensKernel, WeightType), TokenTrial>>,
}

/// Result of the trial of a kernel for a few tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenTrial {
    KeepsBits,
    ChangesBits,
    /// Nothing is known. The trial is repeated.
    NoRoom,
}

/// Kernels with variants for a few tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum FewTokensKernel {
    /// `gemv` or `gemv_dot`.
    Product,
    /// `sparse_down`.
    Down,
}

impl Tuning {
    /// `packed` sets the kind of kernel for weight types that have both kinds.
    pub fn new(packed: Option<bool>) -> Self {
        Tuning { packed, ..Tuning::default() }
    }

    /// Returns the shape for weights of type `ty`. A device that only counts measures nothing. If
    /// the kind of kernel is not set, it assumes the kind that uses more memory.
    pub fn shape(&self, gpu: &Gpu, ty: WeightType) -> Result<KernelShape> {
        if gpu.is_counting() {
            let packed = WeightType::PACKED.contains(&ty) && self.packed.unwrap_or(true);
            let cooperative = KernelShape::tiles(gpu.caps()).is_some() && ty != WeightType::F32;
            return Ok(KernelShape { packed, cooperative, ..KernelShape::DEFAULT });
        }
        let cooperative = match self.cooperative.get() {
            Some(usable) => *usable,
            None => {
                let usable = coop::usable(gpu)?;
                *self.cooperative.get_or_init(|| usable)
            }
        };
        // 16-bit floats would lose the precision of F32 weights.
        let cooperative = cooperative && ty != WeightType::F32;
        let shape = KernelShape { cooperative, ..self.one_token(gpu, ty)? };
        self.try_tokens(gpu, FewTokensKernel::Product, ty, || products_keep_bits(gpu, ty, shape))?;
        Ok(shape)
    }

    /// Notes once per device, when there is room, whether a few tokens keep their bits in `kernel`,
    /// with weights of type `ty`. The tests compare the bits on software adapters, which have no
    /// trial.
    pub fn try_tokens(
        &self,
        gpu: &Gpu,
        kernel: FewTokensKernel,
        ty: WeightType,
        trial: impl FnOnce() -> Result<bool>,
    ) -> Result<()> {
        if gpu.is_counting() || gpu.report().kind == AdapterKind::Software {
            return Ok(());
        }
        let mut keep_bits = self.keep_bits.lock();
        if keep_bits.get(&(kernel, ty)).is_some_and(|found| *found != TokenTrial::NoRoom) {
            return Ok(());
        }
        let found = match trial() {
            Err(Error::Memory { .. }) => TokenTrial::NoRoom,
            Ok(true) => TokenTrial::KeepsBits,
            Ok(false) => TokenTrial::ChangesBits,
            Err(error) => return Err(error),
        };
        tracing::info!(adapter = gpu.report().name, ?kernel, %ty, ?found, "bits of tokens among others were tried");
        keep_bits.insert((kernel, ty), found);
        Ok(())
    }

    /// True if a few tokens keep their bits in every kernel that has been prepared.
    pub fn keeps_bits(&self) -> bool {
        self.keep_bits.lock().values().all(|found| *found == TokenTrial::KeepsBits)
    }

    /// Returns the weight types whose single-token products round activations.
    pub fn rounding_types(&self) -> Vec<WeightType> {
        let shapes = self.shapes.lock();
        let mut types: Vec<_> = shapes.iter().filter(|(_, shape)| shape.packed).map(|(ty, _)| *ty).collect();
        types.sort();
        types
    }

    /// Returns the shape for one token. Software adapters and devices without room for a
    /// measurement use the default.
    fn one_token(&self, gpu: &Gpu, ty: WeightType) -> Result<KernelShape> {
        let mut shapes = self.shapes.lock();
        if let Some(shape) = shapes.get(&ty) {
            return Ok(*shape);
        }
        let packings: &[bool] = match (WeightType::PACKED.contains(&ty), self.packed) {
            (true, Some(true)) => &[true],
            (true, None) => &[false, true],
            (false, _) | (_, Some(false)) => &[false],
        };
        let unmeasured = KernelShape { packed: packings[0], ..KernelShape::DEFAULT };
        let shape = match room(gpu) {
            _ if gpu.report().kind == AdapterKind::Software => unmeasured,
            ..LEAST_BYTES => unmeasured,
            bytes => match measure(gpu, ty, packings, bytes) {
                Err(Error::Memory { .. }) => unmeasured,
                shape => shape?,
            },
        };
        shapes.insert(ty, shape);
        Ok(shape)
    }
}

/// Returns the bytes of the matrix to measure: at most half of the free budget, and at most one
/// buffer.
fn room(gpu: &Gpu) -> u64 {
    let most = gpu.caps().max_binding.min(gpu.caps().max_buffer).saturating_sub(1 << 20);
    BYTES.min(gpu.arena().available() / 2).min(most)
}

/// Measures every candidate on a matrix of `bytes`, and returns the fastest correct candidate.
fn measure(gpu: &Gpu, ty: WeightType, packings: &[bool], bytes: u64) -> Result<KernelShape> {
    let rows = bytes as usize / ty.device_row_bytes(COLS);
    let what = MemoryUse { purpose: Purpose::Scratch, what: "measured matrix" };
    let matrix = GpuMatrix::new(gpu, what, MatrixLayout { ty, rows, cols: COLS, rows_together: 1 })?;
    let scratch = |floats: usize| gpu.arena().buffer(Purpose::Scratch, "measured", floats as u64 * 4, Usage::Storage);
    let (x, y) = (scratch(pitch(COLS))?, scratch(rows)?);
    let output = MatmulOutput { buffer: &y, pitch: rows, offset: 0, epilogue: Default::default() };
    let mut timed = Vec::new();
    for packed in packings {
        for (workgroup, rows) in CANDIDATES {
            let shape = KernelShape { packed: *packed, workgroup, rows, cooperative: false };
            let matmul = Matmul::shaped(gpu, &matrix, &x, None, &output, shape)?;
            timed.push((shortest_time(gpu, &matmul, 1, PRODUCTS)?, shape));
        }
    }
    let Some((took, shape)) = quickest_right(gpu, ty, timed)? else {
        return Ok(KernelShape { packed: packings[0], ..KernelShape::DEFAULT });
    };
    let rate = (matrix.bytes() * PRODUCTS as u64) as f64 / took.as_secs_f64() / 1e9;
    tracing::info!(adapter = gpu.report().name, %ty, ?shape, "gemv reads {rate:.0} GB/s");
    Ok(shape)
}

/// Returns the shortest time of `products` products of `tokens` tokens, after a warm-up.
pub(super) fn shortest_time(gpu: &Gpu, matmul: &Matmul, tokens: usize, products: usize) -> Result<Duration> {
    let run = |products: usize| {
        let mut recorder = Recorder::new(gpu);
        (0..products).for_each(|_| matmul.record(&mut recorder, tokens));
        gpu.idle()?;
        let started = Instant::now();
        recorder.submit()?;
        gpu.idle()?;
        Ok::<_, Error>(started.elapsed())
    };
    run(1)?;
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        best = best.min(run(products)?);
    }
    Ok(best)
}

/// Returns the fastest shape whose products of difficult samples are correct. A fast kernel with
/// wrong sums is never used.
fn quickest_right(
    gpu: &Gpu,
    ty: WeightType,
    mut timed: Vec<(Duration, KernelShape)>,
) -> Result<Option<(Duration, KernelShape)>> {
    timed.sort_by_key(|(took, _)| *took);
    let samples = SampleSize::ALL.map(|size| ProductSample::of_device_type(gpu, ty, size));
    let samples = samples.into_iter().collect::<Result<Vec<_>>>()?;
    for (took, shape) in timed {
        let mut right = true;
        for sample in &samples {
            let difference = sample.check(gpu, shape, 1)?;
            if !difference.is_right() {
                tracing::warn!(adapter = gpu.report().name, %ty, ?shape, ?difference, "the products are wrong");
                if shape.packed {
                    gpu.give_up(GpuFeature::PackedDot, &format!("`gemv_dot` computed wrong products of {ty}"));
                }
                right = false;
            }
        }
        if right {
            return Ok(Some((took, shape)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GpuOptions, KernelMutation};

    fn open(packed_dot: Option<bool>) -> Gpu {
        Gpu::open(&GpuOptions { packed_dot, ..GpuOptions::first() }).unwrap()
    }

    #[test]
    fn shape_of_software_is_not_measured_and_of_the_kind_asked_for() {
        let software = open(None);
        assert_eq!(software.report().kind, AdapterKind::Software);
        let used = software.arena().made();
        assert_eq!(software.shape(WeightType::Q4_0).unwrap(), KernelShape::DEFAULT);
        let forced = open(Some(true));
        assert!(forced.shape(WeightType::Q4_0).unwrap().packed);
        assert!(!forced.shape(WeightType::F16).unwrap().packed);
        assert_eq!(forced.rounding_types(), [WeightType::Q4_0]);
        let floats = open(Some(false));
        assert!(!floats.shape(WeightType::Q4_0).unwrap().packed && floats.rounding_types().is_empty());
        assert_eq!(software.arena().made(), used);
    }

    /// On cards with subgroups of 32, workgroups of one subgroup have reached a third of the speed.
    #[test]
    fn workgroups_have_several_subgroups_of_32_and_share_activations_between_rows() {
        let default = (KernelShape::DEFAULT.workgroup, KernelShape::DEFAULT.rows);
        for (workgroup, rows) in CANDIDATES.into_iter().chain([default]) {
            assert!(workgroup >= 64 && rows >= 2, "{workgroup} {rows}");
        }
    }

    #[test]
    fn measure_returns_a_candidate_and_frees_its_memory() {
        let gpu = open(None);
        let used = gpu.arena().used();
        let chosen = |packings: &[bool]| {
            let shape = measure(&gpu, WeightType::Q4_0, packings, 1 << 20).unwrap();
            assert!(CANDIDATES.contains(&(shape.workgroup, shape.rows)), "{shape:?}");
            shape.packed
        };
        chosen(&[false, true]);
        // Tuning never chooses a kind that the setting excludes.
        assert!(!chosen(&[false]) && chosen(&[true]));
        assert_eq!(gpu.arena().used(), used);
        assert_eq!(room(&gpu), BYTES);
    }

    #[test]
    fn wrong_products_are_not_chosen_however_quick() {
        let kinds = [true, false].map(|packed| KernelShape { packed, ..KernelShape::DEFAULT });
        let timed =
            || kinds.into_iter().enumerate().map(|(ms, kind)| (Duration::from_millis(ms as u64), kind)).collect();
        let chosen = |gpu: &Gpu| quickest_right(gpu, WeightType::Q4_K, timed()).unwrap().map(|(_, shape)| shape);
        assert_eq!(chosen(&open(None)), Some(kinds[0]));
        // On Metal, which emulates integer products, floats are faster.
        let floats_first =
            kinds.into_iter().rev().enumerate().map(|(ms, kind)| (Duration::from_millis(ms as u64), kind)).collect();
        let found = quickest_right(&open(None), WeightType::Q4_K, floats_first).unwrap();
        assert_eq!(found, Some((Duration::ZERO, kinds[1])));
        let wrong = |kernel: &str, from: &str, to: &str| {
            let [kernel, from, to] = [kernel, from, to].map(str::to_owned);
            let mutation = Some(KernelMutation { kernel, from, to });
            Gpu::open(&GpuOptions { mutation, ..GpuOptions::first() }).unwrap()
        };
        let packed = wrong("gemv_dot", "return input.scale * sum", "return input.scale * sum * 1.01");
        assert_eq!(chosen(&packed), Some(kinds[1]));
        let floats = wrong("gemv", "+ w.offset * input.sum", "- w.offset * input.sum");
        assert_eq!(chosen(&floats), Some(kinds[0]));
        let neither = quickest_right(&floats, WeightType::Q4_K, vec![(Duration::ZERO, kinds[1])]).unwrap();
        assert_eq!(neither, None);
    }
}
