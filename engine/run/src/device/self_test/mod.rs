//! The self-test of a device. It runs every kernel, in every variant that the device would run,
//! with difficult inputs. It compares the results with the CPU's scalar operations and decoded
//! weights. Some drivers compute a kernel wrongly without any error; the self-test finds this
//! before a token depends on it. `case` is a dispatch with its expected results. `elements`,
//! `attention`, `recurrent`, `experts` and `neurons` have the cases of their kernels, and
//! [`ProductSample`] has the products. `verdict` has the results.
//!
//! A kernel is compiled and run twice only if it depends on subgroups: once with them and once
//! without. The whole test takes about 55 dispatches and 2 MB, plus 20 dispatches and 2 MB per
//! weight type. Nearly all of its time is compilation.

mod attention;
mod case;
mod elements;
mod experts;
mod neurons;
mod recurrent;
mod verdict;

use std::{ops::ControlFlow, time::Instant};

use thermocline_shaders::{Kernel, Tier};
pub use verdict::{KernelOutcome, KernelVerdict, SelfTest};

use self::case::{Case, TestBench};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, CpuOptions, Isa};
use thermocline_formats::quant::{TensorType, device_type};
use thermocline_gpu::{
    FallbackPart, Gpu, GpuFeature, KernelFeatures, KernelShape, LargestError, ProductSample, RiskyStep, SampleSize,
    WeightType,
};

/// Tokens of the product that tests the kernel for a few tokens.
const FEW_TOKENS: usize = 5;

/// Tests every kernel of `gpu`; kernels that read weights are tested with each of `types`. `go_on`
/// is called between two kernels.
///
/// # Errors
/// [`Error::Gpu`] if the device is lost, [`Error::Memory`] if there is no room for a test,
/// [`Error::Cancelled`].
pub fn self_test(gpu: &Gpu, types: &[TensorType], go_on: &mut dyn FnMut() -> ControlFlow<()>) -> Result<SelfTest> {
    let started = Instant::now();
    let mut types = types.to_vec();
    types.sort_by_key(|ty| device_type(*ty));
    types.dedup_by_key(|ty| device_type(*ty));
    let cpu = Cpu::new(&CpuOptions { threads: Some(1), isa: Some(Isa::Scalar), ..CpuOptions::default() })?;
    let mut tests = Tests { gpu, rows: Vec::new(), benches: Vec::new(), go_on };
    let top = gpu.caps().tier;
    tests.benches.push(TestBench::new(gpu.on_trial(top)?)?);
    if top.subgroups {
        tests.benches.push(TestBench::new(gpu.on_trial(Tier { subgroups: false, ..top })?)?);
    }
    let mut cases = elements::cases(&cpu);
    cases.extend(attention::cases(&cpu)?);
    cases.extend(recurrent::cases(&cpu));
    cases.extend(experts::cases());
    cases.extend(neurons::cases());
    for ty in &types {
        cases.extend(experts::cases_of(&cpu, *ty)?);
        cases.extend(neurons::cases_of(&cpu, *ty)?);
    }
    for case in &cases {
        tests.case(case)?;
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
    benches: Vec<TestBench>,
    go_on: &'a mut dyn FnMut() -> ControlFlow<()>,
}

impl Tests<'_> {
    /// Runs a case in each variant of its kernel.
    fn case(&mut self, case: &Case) -> Result<()> {
        for at in 0..self.benches.len() {
            let Some(feature) = self.feature(at, case.kernel, case.weights) else { continue };
            self.row(at, case.kernel, case.weights, feature, |bench| case.run(bench))?;
        }
        Ok(())
    }

    /// Runs products with weights of type `ty`, in every kernel of the device for them.
    fn products(&mut self, ty: TensorType) -> Result<()> {
        let weights = Some(device_type(ty));
        for at in 0..self.benches.len() {
            let gpu = &self.benches[at].gpu;
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
                    (KernelShape { packed: true, .. }, _) => vec![("gemv_dot", &[1])],
                    (KernelShape { cooperative: true, .. }, Some(tile)) => vec![(tile.kernel(), &[usize::MAX])],
                    _ => vec![("gemv", &[1, FEW_TOKENS]), ("gemm", &[usize::MAX])],
                };
                for (kernel, tokens) in kernels {
                    let Some(feature) = self.feature(at, kernel, weights) else { continue };
                    self.row(at, kernel, weights, feature, |bench| worst(&bench.gpu, &samples, shape, tokens))?;
                }
            }
        }
        Ok(())
    }

    /// The least trusted feature that `kernel` uses on a bench. `None` if another bench runs the
    /// same variant.
    fn feature(&self, at: usize, kernel: &str, weights: Option<WeightType>) -> Option<Option<GpuFeature>> {
        let kernel = Kernel::named(kernel)?;
        let uses = kernel.features(self.benches.get(at)?.gpu.caps().tier, weights);
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
        run: impl FnOnce(&mut TestBench) -> Result<LargestError>,
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
                bench.gpu.check()?;
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
