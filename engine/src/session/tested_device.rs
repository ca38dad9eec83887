//! Decides whether a device is trusted. Each adapter passes a self-test at its first use with this
//! driver and program version, and a file records the pass.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use thermocline_shaders::Kernel;

use thermocline_base::{
    error::{Error, GpuFailure, Result},
    files::keep_json,
};
use thermocline_formats::quant::TensorType;
use thermocline_gpu::{AdapterId, Fallback, FallbackPart, Fallbacks, Gpu, GpuFeature, self_test};

/// A device whose kernels passed the test, as it was when they were tested.
#[derive(Debug, Hash, Serialize, Deserialize)]
struct PassedTest {
    /// Version of the tested program.
    program: String,
    adapter: AdapterId,
    /// Features that the kernels used.
    features: Vec<GpuFeature>,
    /// Names of the tested weight types.
    types: Vec<String>,
}

impl PassedTest {
    /// A record of a device that is not tested yet.
    fn new(gpu: &Gpu, given_up: &[GpuFeature]) -> Self {
        let caps = gpu.caps();
        let has = |feature: &GpuFeature| match feature {
            GpuFeature::CooperativeMatrices => caps.cooperative.is_some(),
            GpuFeature::PackedDot => true,
            GpuFeature::F16 => caps.tier.f16,
            GpuFeature::Subgroups => caps.tier.subgroups,
        };
        let features = GpuFeature::ALL.into_iter().filter(|it| has(it) && !given_up.contains(it)).collect();
        let (program, adapter) = (env!("CARGO_PKG_VERSION").to_owned(), AdapterId::of(gpu.report()));
        PassedTest { program, adapter, features, types: Vec::new() }
    }

    /// The file in `folder` for this device, whether or not it is tested.
    fn file(&self, folder: &Path) -> PathBuf {
        let mut key = DefaultHasher::new();
        self.hash(&mut key);
        folder.join(format!("self-test-{:016x}.json", key.finish()))
    }

    /// Weight types that an earlier test of the same device has passed. `None` if the file is
    /// damaged or describes another device.
    fn passed_types(&self, file: &Path) -> Option<Vec<String>> {
        let kept: PassedTest = serde_json::from_slice(&fs::read(file).ok()?)
            .inspect_err(|error| tracing::warn!(file = %file.display(), %error, "the self-test runs again"))
            .ok()?;
        let device = |it: &Self| (it.program.clone(), it.adapter.clone(), it.features.clone());
        (device(&kept) == device(self)).then_some(kept.types)
    }
}

/// Makes sure that `gpu` computes every kernel as the CPU does, with weights of `types`. It relies
/// on an earlier test saved in `folder`, or runs a self-test now if the budget allows. Features
/// that fail are added to `fallbacks`, so that the device is opened again without them.
///
/// # Errors
/// [`Error::Gpu`] with [`GpuFailure::Refused`] if a kernel is wrong, and as [`self_test`]. A file
/// that cannot be written is no error.
pub(super) fn ensure_tested(
    gpu: &Gpu,
    types: &[TensorType],
    folder: &Path,
    fallbacks: &Fallbacks,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<()> {
    let adapter = AdapterId::of(gpu.report());
    let given_up = |part: FallbackPart| fallbacks.of(&adapter).iter().any(|fallback| fallback.part == part);
    let without: Vec<GpuFeature> =
        GpuFeature::ALL.into_iter().filter(|feature| given_up(FallbackPart::Feature(*feature))).collect();
    let mut passed = PassedTest::new(gpu, &without);
    let file = passed.file(folder);
    let known = passed.passed_types(&file);
    let is_new = |ty: &TensorType| !known.iter().flatten().any(|known| known == ty.name());
    let untested: Vec<TensorType> = types.iter().copied().filter(is_new).collect();
    if known.is_some() && untested.is_empty() {
        return Ok(());
    }
    let test = match self_test(gpu, &untested, go_on) {
        Err(Error::Memory { what, wanted, available, .. }) => {
            tracing::warn!(
                adapter = adapter.name,
                what,
                wanted,
                available,
                "the self-test does not run because memory is short"
            );
            return Ok(());
        }
        test => test?,
    };
    tracing::info!(adapter = adapter.name, milliseconds = test.milliseconds, faults = test.faults(), "self-test");
    let parts = test.failed_features().into_iter().filter(|feature| !without.contains(feature));
    let parts = parts.map(|feature| (FallbackPart::Feature(feature), Some(feature)));
    let mut first = None;
    for (part, feature) in parts.chain(test.wrong_kernel().map(|_| (FallbackPart::Adapter, None))) {
        let Some(row) = test.first_wrong(feature) else { continue };
        let why = format!("the kernel `{}` failed the self-test ({})", row.name(), row.outcome);
        fallbacks.add(Fallback::new(adapter.clone(), part, &why));
        first = first.or(Kernel::named(&row.kernel).map(|kernel| (kernel, why)));
    }
    if let Some((kernel, reason)) = first {
        let used = kernel.features(gpu.caps().tier, kernel.weights.first().copied());
        let failure = GpuFailure::Refused { kernel: kernel.name, used };
        return Err(Error::Gpu { adapter: adapter.name, reason, failure });
    }
    passed.types = known.into_iter().flatten().chain(untested.iter().map(|ty| ty.name().to_owned())).collect();
    if let Err(error) = keep_json(&file, &passed) {
        tracing::debug!(%error, "the passed self-test was not saved");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_gpu::{AdapterChoice, GpuOptions, KernelMutation};

    fn open(mutation: Option<[&str; 3]>, fallbacks: &Fallbacks) -> Result<Gpu> {
        let mutation = mutation.map(|[kernel, from, to]| {
            let [kernel, from, to] = [kernel, from, to].map(str::to_owned);
            KernelMutation { kernel, from, to }
        });
        let (adapter, fallbacks) = (AdapterChoice::Index(0), fallbacks.clone());
        Gpu::open(&GpuOptions { adapter, mutation, fallbacks, ..GpuOptions::default() })
    }

    /// The verdict, and how often the test asked whether to continue; 0 if the verdict was already
    /// known.
    fn trusted(gpu: &Gpu, types: &[TensorType], folder: &Path, fallbacks: &Fallbacks) -> (bool, usize) {
        let mut asked = 0;
        let verdict = ensure_tested(gpu, types, folder, fallbacks, &mut || {
            asked += 1;
            ControlFlow::Continue(())
        });
        let refused = |error: &Error| matches!(error, Error::Gpu { failure: GpuFailure::Refused { .. }, .. });
        assert!(verdict.as_ref().err().is_none_or(refused), "{verdict:?}");
        (verdict.is_ok(), asked)
    }

    #[test]
    fn passed_tests_are_kept_and_completed() {
        let (folder, none) = (tempfile::tempdir().unwrap(), Fallbacks::default());
        let folder = folder.path().join("deeper");
        let gpu = open(None, &none).unwrap();
        let test = |types: &[TensorType]| trusted(&gpu, types, &folder, &none);
        assert!(matches!(test(&[TensorType::Q4_0]), (true, 1..)));
        assert_eq!(test(&[TensorType::Q4_0]), (true, 0));
        assert!(matches!(test(&[TensorType::Q4_0, TensorType::F16]), (true, 1..)), "a type that is new");
        assert_eq!(test(&[TensorType::F16, TensorType::Q4_0]), (true, 0));
        let files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 1);
        fs::write(&files[0], b"{").unwrap();
        assert!(matches!(test(&[TensorType::F16]), (true, 1..)), "a damaged file");
        let text = fs::read_to_string(&files[0]).unwrap();
        let driver = serde_json::to_string(&gpu.report().driver).unwrap();
        fs::write(&files[0], text.replace(&driver, "\"another\"")).unwrap();
        assert!(matches!(test(&[TensorType::F16]), (true, 1..)), "a file of another driver");
        let mut stop = || ControlFlow::Break(());
        let cancelled = ensure_tested(&gpu, &[TensorType::F32], &folder, &none, &mut stop);
        assert!(matches!(cancelled, Err(Error::Cancelled)));
        let unwritable = tempfile::NamedTempFile::new().unwrap();
        assert!(trusted(&gpu, &[], unwritable.path(), &none).0);
    }

    #[test]
    fn wrong_features_are_given_up_and_the_rest_is_trusted() {
        let (folder, fallbacks) = (tempfile::tempdir().unwrap(), Fallbacks::default());
        let mutation = Some(["norm", "subgroupAdd(value)", "subgroupMax(value)"]);
        let gpu = open(mutation, &fallbacks).unwrap();
        assert!(gpu.caps().tier.subgroups);
        assert!(!trusted(&gpu, &[TensorType::Q4_0], folder.path(), &fallbacks).0);
        let sentences: Vec<String> = fallbacks.all().iter().map(Fallback::to_string).collect();
        assert!(
            matches!(&sentences[..], [one] if one.contains("without subgroups") && one.contains("the kernel `norm` failed")),
            "{sentences:?}"
        );
        let again = open(mutation, &fallbacks).unwrap();
        assert!(!again.caps().tier.subgroups);
        assert!(trusted(&again, &[TensorType::Q4_0], folder.path(), &fallbacks).0);
        assert_eq!(trusted(&again, &[TensorType::Q4_0], folder.path(), &fallbacks), (true, 0));
        // The device with subgroups is still as little trusted as before.
        let afresh = Fallbacks::default();
        let gpu = open(mutation, &afresh).unwrap();
        assert!(!trusted(&gpu, &[TensorType::Q4_0], folder.path(), &afresh).0);
    }

    #[test]
    fn a_device_that_is_wrong_without_any_feature_is_not_used() {
        let (folder, fallbacks) = (tempfile::tempdir().unwrap(), Fallbacks::default());
        let mutation = Some(["gemv", "+ w.offset * input.sum", "- w.offset * input.sum"]);
        let gpu = open(mutation, &fallbacks).unwrap();
        assert!(!trusted(&gpu, &[TensorType::Q4_K], folder.path(), &fallbacks).0);
        let Err(Error::Gpu { reason, .. }) = open(mutation, &fallbacks) else { panic!("it was given up") };
        assert!(reason.contains("the kernel `gemv Q4_K` failed the self-test"), "{reason}");
        // A kernel that is wrong without a feature does not count against the feature.
        assert_eq!(fallbacks.all().len(), 1);
    }
}
