//! Times of a GPU's kernels: the tests of [`run`](super::run) with every dispatch timed.

use std::path::Path;

use super::{BenchOptions, GpuSpeed, Progress, Test, run::Bench};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{AdapterReport, Clock, GpuProfile};

/// The kernel times of a model on a GPU.
#[derive(Debug, Clone)]
pub struct ModelProfile {
    /// The GPU.
    pub adapter: AdapterReport,
    /// Measured speed of the GPU.
    pub speed: GpuSpeed,
    /// One entry per test.
    pub tests: Vec<TestProfile>,
}

/// The kernel times of one test.
#[derive(Debug, Clone)]
pub struct TestProfile {
    /// The test.
    pub test: Test,
    /// Seconds of the test without timed dispatches.
    pub seconds: f64,
    /// Times of the test's dispatches.
    pub profile: GpuProfile,
}

/// Runs every test of `options` once as usual and once with its dispatches timed.
///
/// # Errors
/// As [`run`](super::run); [`Error::Invalid`] if no GPU is chosen, because only a GPU has
/// dispatches.
pub fn profile_kernels(
    path: &Path,
    options: &BenchOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<ModelProfile> {
    let mut bench = Bench::open(path, options, progress)?;
    let Some((gpu, speed)) = bench.gpu() else {
        return Err(Error::invalid("device of a profile", "a GPU", "the CPU"));
    };
    let (gpu, speed) = (gpu.clone(), *speed);
    let mut tests = Vec::new();
    for test in &options.tests {
        progress(Progress::Repetition { test: *test, number: 1, of: 1 });
        let mut prepared = bench.prepare(*test)?;
        let seconds = bench.once(&mut prepared)?;
        gpu.start_profile(Clock::Timestamps);
        let timed = bench.once(&mut prepared);
        let profile = gpu.take_profile();
        timed?;
        tests.push(TestProfile { test: *test, seconds, profile });
    }
    Ok(ModelProfile { adapter: gpu.report().clone(), speed, tests })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::GpuEffort;
    use thermocline_gpu::{AdapterChoice, GpuOptions};

    #[test]
    fn profiles_count_and_time_the_kernels_of_a_model() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf/llama-silu-gqa-256-Q4_0.gguf");
        let test = |prompt, generate| Test { prompt, generate, depth: 2 };
        let options = BenchOptions {
            tests: vec![test(0, 3), test(0, 6), test(40, 0)],
            gpu: Some(GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() }),
            effort: GpuEffort { bytes: 4 << 20, seconds: 0.002, hand_overs: 5 },
            ..BenchOptions::default()
        };
        let of = profile_kernels(&path, &options, &mut |_| {}).unwrap();
        let [three, six, prompt] = &of.tests[..] else { panic!("{of:?}") };
        // Every token runs the same dispatches.
        assert_eq!(2 * three.profile.calls(), six.profile.calls());
        let gemv = six.profile.kernels.iter().find(|times| times.name() == "gemv Q4_0").unwrap();
        assert!(gemv.bytes_per_second().unwrap() > 0.0 && gemv.calls % 6 == 0, "{gemv:?}");
        assert!(prompt.profile.kernels.iter().any(|times| times.flops_per_second().is_some()), "{prompt:?}");
        let on_cpu = BenchOptions { gpu: None, ..options };
        assert!(matches!(profile_kernels(&path, &on_cpu, &mut |_| {}), Err(Error::Invalid { .. })));
    }
}
