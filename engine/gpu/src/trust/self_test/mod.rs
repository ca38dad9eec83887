//! The self-test of a device. It runs every kernel, in every variant that the device would run,
//! with difficult inputs ([`KernelCase`]). It compares the results with the scalar oracles of the
//! kernels and with decoded weights. Some drivers compute a kernel wrongly without any error; the
//! self-test finds this before a token depends on it. [`ProductSample`] has the products of
//! matrices, as the engine computes them. `case_bench` runs cases, also for the numeric tests of
//! kernels. `verdict` has the results.
//!
//! A kernel is compiled and run twice only if it depends on subgroups: once with them and once
//! without. The inputs of a case take at most 1 MB.

mod case_bench;
mod verdict;

use std::{ops::ControlFlow, time::Instant};

use thermocline_shaders::{CaseRequest, Extent, KERNELS, Kernel, KernelCase};

pub use case_bench::{CaseBench, CaseDifference};
pub use verdict::{KernelOutcome, KernelVerdict, SelfTest};

use crate::{
    FEW_TOKENS, FallbackPart, Gpu, GpuFeature, KernelFeatures, KernelShape, LargestError, ProductSample, RiskyStep,
    SampleSize, Tier, WeightType,
};
use thermocline_base::error::{Error, Result};
use thermocline_formats::quant::TensorType;

/// Most bytes of all inputs of a case together, and of all its results.
const MOST_BYTES: u64 = 1 << 20;
/// Numbers of tokens that the kernels for a few tokens are tested with. Five tokens leave a part of
/// a workgroup's tokens unused.
const SOME_TOKENS: &[usize] = &[1, 5, FEW_TOKENS];

/// Tests every kernel of `gpu`; kernels that read weights are tested with each of `types`. `go_on`
/// is called between two kernels.
///
/// # Errors
/// [`Error::Gpu`] if the device is lost, [`Error::Memory`] if there is no room for a test,
/// [`Error::Cancelled`].
pub fn self_test(gpu: &Gpu, types: &[TensorType], go_on: &mut dyn FnMut() -> ControlFlow<()>) -> Result<SelfTest> {
    let started = Instant::now();
    let mut types = types.to_vec();
    types.sort_by_key(|ty| ty.device_type());
    types.dedup_by_key(|ty| ty.device_type());
    let mut tests = Tests { gpu, rows: Vec::new(), benches: Vec::new(), go_on };
    let top = gpu.caps().tier;
    tests.benches.push(CaseBench::new(gpu.on_trial(top)?, MOST_BYTES)?);
    if top.subgroups {
        tests.benches.push(CaseBench::new(gpu.on_trial(Tier { subgroups: false, ..top })?, MOST_BYTES)?);
    }
    for kernel in KERNELS.iter().filter(|kernel| !kernel.cooperative) {
        match kernel.weights {
            [] => tests.kernel(kernel, None)?,
            read => {
                let types = types.iter().map(|ty| ty.device_type()).filter(|ty| read.contains(ty));
                types.map(Some).try_for_each(|ty| tests.kernel(kernel, ty))?;
            }
        }
    }
    for ty in types {
        tests.products(ty)?;
    }
    Ok(SelfTest { rows: tests.rows, milliseconds: started.elapsed().as_secs_f64() * 1e3 })
}

/// A running test.
struct Tests<'a> {
    gpu: &'a Gpu,
    rows: Vec<KernelVerdict>,
    /// The device with its own tier, and also without subgroups if its tier uses them.
    benches: Vec<CaseBench>,
    go_on: &'a mut dyn FnMut() -> ControlFlow<()>,
}

impl Tests<'_> {
    /// Runs the cases of a kernel in each of its variants.
    fn kernel(&mut self, kernel: &'static Kernel, weights: Option<WeightType>) -> Result<()> {
        for at in 0..self.benches.len() {
            let Some(feature) = self.feature(at, kernel.name, weights) else { continue };
            let tier = self.benches[at].gpu().caps().tier;
            let request = CaseRequest { extent: Extent::Hard, tier, ty: weights.unwrap_or(WeightType::F32) };
            let cases = (kernel.cases)(&request);
            for case in cases.iter().filter(|case| case.kernel == kernel.name) {
                self.row(at, kernel.name, weights, feature, |bench| error(bench, case))?;
            }
        }
        Ok(())
    }

    /// Runs products with weights of type `ty`, in every kernel of the device for them.
    fn products(&mut self, ty: TensorType) -> Result<()> {
        let weights = Some(ty.device_type());
        for at in 0..self.benches.len() {
            let gpu = self.benches[at].gpu();
            let samples = SampleSize::ALL.map(|size| ProductSample::new(gpu, ty, size));
            let samples = samples.into_iter().collect::<Result<Vec<_>>>()?;
            let mut shapes = vec![KernelShape::DEFAULT];
            if weights.is_some_and(|ty| WeightType::PACKED.contains(&ty)) {
                shapes.push(KernelShape { packed: true, ..KernelShape::DEFAULT });
            }
            let tile = KernelShape::tiles(gpu.caps()).filter(|_| at == 0 && weights != Some(WeightType::F32));
            if tile.is_some() {
                shapes.push(KernelShape { cooperative: true, ..KernelShape::DEFAULT });
            }
            for shape in shapes {
                // The kernels of this shape, and the numbers of tokens that they compute.
                let kernels: Vec<(&'static str, &[usize])> = match (shape, tile) {
                    (KernelShape { packed: true, .. }, _) => vec![("gemv_dot", SOME_TOKENS)],
                    (KernelShape { cooperative: true, .. }, Some(tile)) => vec![(tile.kernel(), &[usize::MAX])],
                    _ => vec![("gemv", SOME_TOKENS), ("gemm", &[usize::MAX])],
                };
                for (kernel, tokens) in kernels {
                    let Some(feature) = self.feature(at, kernel, weights) else { continue };
                    self.row(at, kernel, weights, feature, |bench| worst(bench.gpu(), &samples, shape, tokens))?;
                }
            }
        }
        Ok(())
    }

    /// The least trusted feature that `kernel` uses on a bench. `None` if another bench runs the
    /// same variant.
    fn feature(&self, at: usize, kernel: &str, weights: Option<WeightType>) -> Option<Option<GpuFeature>> {
        let kernel = Kernel::named(kernel)?;
        let uses = kernel.features(self.benches.get(at)?.gpu().caps().tier, weights);
        match uses {
            KernelFeatures { cooperative: true, .. } => Some(Some(GpuFeature::CooperativeMatrices)),
            _ if at + 1 < self.benches.len() && !uses.tier.subgroups => None,
            KernelFeatures { packed: true, .. } => Some(Some(GpuFeature::PackedDot)),
            _ => Some(uses.tier.subgroups.then_some(GpuFeature::Subgroups)),
        }
    }

    /// Notes the result of `run` on a bench. If the kernel already has a row, the row keeps the
    /// worse result. If the process crashes in `run`, the next start disables the feature, or the
    /// adapter if the kernel uses no feature.
    fn row(
        &mut self,
        at: usize,
        kernel: &'static str,
        weights: Option<WeightType>,
        feature: Option<GpuFeature>,
        run: impl FnOnce(&mut CaseBench) -> Result<LargestError>,
    ) -> Result<()> {
        if (self.go_on)().is_break() {
            return Err(Error::Cancelled);
        }
        let started = Instant::now();
        let part = feature.map_or(FallbackPart::Adapter, FallbackPart::Feature);
        let sentinel = self.gpu.guard(RiskyStep::SelfTest, part, &format!("in the self-test of the kernel `{kernel}`"));
        let bench = &mut self.benches[at];
        let outcome = run(bench);
        drop(sentinel);
        let outcome = match outcome {
            Ok(difference) => KernelOutcome::of(difference),
            Err(Error::Gpu { reason, .. }) => {
                bench.gpu().check()?;
                KernelOutcome::Failed { reason }
            }
            Err(error) => return Err(error),
        };
        let milliseconds = started.elapsed().as_secs_f64() * 1e3;
        let weights = weights.map(|ty| ty.to_string());
        let same =
            |row: &&mut KernelVerdict| (row.kernel.as_str(), &row.weights, row.feature) == (kernel, &weights, feature);
        match self.rows.iter_mut().find(same) {
            Some(row) => {
                row.milliseconds += milliseconds;
                row.outcome.take_worse(outcome);
            }
            None => {
                self.rows.push(KernelVerdict { kernel: kernel.to_owned(), weights, feature, outcome, milliseconds })
            }
        }
        Ok(())
    }
}

/// Largest error of a case.
fn error(bench: &mut CaseBench, case: &KernelCase) -> Result<LargestError> {
    let none = LargestError { largest: 0.0, tolerance: 1.0 };
    Ok(bench.run(case)?.map_or(none, |difference| difference.error))
}

/// Largest error of the products of all samples in `shape`, for each number of tokens.
fn worst(gpu: &Gpu, samples: &[ProductSample], shape: KernelShape, tokens: &[usize]) -> Result<LargestError> {
    let mut worst = LargestError { largest: 0.0, tolerance: 1.0 };
    for sample in samples {
        let product = sample.product(gpu, shape)?;
        for tokens in tokens {
            worst = worst.or_worse(sample.difference(gpu, &product, *tokens, shape.cooperative)?);
        }
    }
    Ok(worst)
}

#[cfg(test)]
mod tests;
