//! Tuning: the quickest shape of a product on this adapter, measured once per weight type, when the first matrix of it is
//! prepared.

use std::{
    collections::HashMap,
    sync::OnceLock,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use thermocline_shaders::WeightType;

use super::{
    AdapterKind, Caps, CooperativeTile, Gpu, GpuFeature, GpuMatrix, Matmul, MatmulOutput, MatrixLayout, MemoryUse,
    ProductSample, Purpose, Recorder, SampleSize, Usage, coop, pitch,
};
use thermocline_base::error::{Error, Result};

/// Kernel and workgroup of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelShape {
    /// For one token: activations of eight bits and integer products.
    pub packed: bool,
    /// Invocations of a workgroup, for one token.
    pub workgroup: u32,
    /// Rows of a workgroup, for one token.
    pub rows: u32,
    /// For many tokens: matrix products in hardware.
    pub cooperative: bool,
}

impl KernelShape {
    /// The shape where nothing is measured.
    pub const DEFAULT: KernelShape = KernelShape { packed: false, workgroup: 128, rows: 4, cooperative: false };

    /// Tiles of matrix products in hardware, on a device that has them and workgroups of as many subgroups as their kernel takes.
    pub fn tiles(caps: &Caps) -> Option<CooperativeTile> {
        caps.cooperative.filter(|tile| caps.subgroups.1 * tile.subgroups() <= caps.max_workgroup)
    }
}

/// Workgroups and rows that are measured. Small workgroups suit wide subgroups and short rows, many rows save reads of the activations.
const CANDIDATES: [(u32, u32); 4] = [(128, 4), (64, 4), (64, 8), (256, 2)];
/// Bytes of the matrix that is measured: more than caches hold, where there is room.
const BYTES: u64 = 96 << 20;
/// Fewest bytes that measure the memory rather than caches.
const LEAST_BYTES: u64 = 16 << 20;
/// Columns of it, as 7B models have.
const COLS: usize = 4096;
/// Products in a measurement, and measurements of which the shortest counts.
const PRODUCTS: usize = 8;
const ROUNDS: usize = 3;

/// Shapes measured so far.
#[derive(Debug, Default)]
pub(super) struct Tuning {
    packed: Option<bool>,
    shapes: Mutex<HashMap<WeightType, KernelShape>>,
    cooperative: OnceLock<bool>,
}

impl Tuning {
    /// `packed` settles which kind of kernel is used, for types that have both.
    pub fn new(packed: Option<bool>) -> Self {
        Tuning { packed, ..Tuning::default() }
    }

    /// The shape for weights of `ty`. On a device that only counts nothing is measured: where the kind of kernel is not
    /// settled, it is the one with more memory.
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
        // Halves would lose what F32 weights have.
        let cooperative = cooperative && ty != WeightType::F32;
        Ok(KernelShape { cooperative, ..self.one_token(gpu, ty)? })
    }

    /// Types whose products for one token round activations.
    pub fn rounding_types(&self) -> Vec<WeightType> {
        let shapes = self.shapes.lock();
        let mut types: Vec<_> = shapes.iter().filter(|(_, shape)| shape.packed).map(|(ty, _)| *ty).collect();
        types.sort();
        types
    }

    /// Software adapters and those without room for a measurement get the default.
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

/// Bytes of the matrix to measure: no more than half of what the budget has left, and one buffer.
fn room(gpu: &Gpu) -> u64 {
    let most = gpu.caps().max_binding.min(gpu.caps().max_buffer).saturating_sub(1 << 20);
    BYTES.min(gpu.arena().available() / 2).min(most)
}

/// Times every candidate on a matrix of `bytes`; the quickest right one.
fn measure(gpu: &Gpu, ty: WeightType, packings: &[bool], bytes: u64) -> Result<KernelShape> {
    let rows = bytes as usize / ty.row_bytes(COLS);
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
    tracing::info!(adapter = gpu.report().name, %ty, ?shape, "gemv at {rate:.0} GB/s");
    Ok(shape)
}

/// Shortest time of `products` products of `tokens` tokens, once the kernel is warm.
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

/// The quickest of the shapes whose products of hard samples are right: no time makes up for a wrong sum.
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
                tracing::warn!(adapter = gpu.report().name, %ty, ?shape, ?difference, "wrong products are not used");
                if shape.packed {
                    gpu.give_up(GpuFeature::PackedDot, &format!("products of {ty} by `gemv_dot` are wrong"));
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
        // Timing never chooses what is not asked for.
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
        let wrong = |kernel: &str, from: &str, to: &str| {
            let [kernel, from, to] = [kernel, from, to].map(str::to_owned);
            let mutation = Some(KernelMutation { kernel, from, to });
            Gpu::open(&GpuOptions { mutation, ..GpuOptions::first() }).unwrap()
        };
        let packed = wrong("gemv_dot", "return piece.scale * sum", "return piece.scale * sum * 1.01");
        assert_eq!(chosen(&packed), Some(kinds[1]));
        let floats = wrong("gemv", "+ first.offset * input.sum", "- first.offset * input.sum");
        assert_eq!(chosen(&floats), Some(kinds[0]));
        let neither = quickest_right(&floats, WeightType::Q4_K, vec![(Duration::ZERO, kinds[1])]).unwrap();
        assert_eq!(neither, None);
    }
}
