//! The self-test of GPUs, as `thermocline devices --test` prints it.

use std::{io::Write, ops::ControlFlow};

use serde_json::{Value, json};
use thermocline_engine::{
    Error,
    gpu::{AdapterChoice, AdapterKind, AdapterReport, Gpu, GpuOptions, SelfTest, self_test},
    quant::TensorType,
};

use crate::cli::table::TextTable;
use thermocline_terminal::{
    engine_options::Device,
    failure::{Failure, Outcome, one_line},
};

/// A GPU and the result of its test.
pub struct TestedGpu {
    name: String,
    /// Index of the GPU in the list of adapters.
    pub index: usize,
    found: Result<SelfTest, Error>,
}

/// Parses a weight type, in any letter case.
pub fn parse_weights(text: &str) -> Result<TensorType, String> {
    let ty = text.parse::<TensorType>().ok().filter(|ty| ty.is_weight());
    ty.ok_or_else(|| "expected a type of weights, like q4_k or f16".to_owned())
}

/// Tests the GPU that `device` names, or every GPU in `gpus` that is not software. If `types` is
/// empty, tests all weight types.
pub fn test_gpus(gpus: &[AdapterReport], device: Option<&Device>, types: &[TensorType]) -> Outcome<Vec<TestedGpu>> {
    let choices = match device {
        Some(Device::Gpu(choice)) => vec![choice.clone()],
        Some(Device::Auto) => vec![AdapterChoice::Best],
        Some(Device::Cpu) => return Err(Failure::usage("--device: expected a GPU, got cpu")),
        None => {
            let real = gpus.iter().filter(|gpu| gpu.kind != AdapterKind::Software);
            real.map(|gpu| AdapterChoice::Index(gpu.index)).collect()
        }
    };
    let all: Vec<TensorType> = TensorType::ALL.into_iter().filter(|ty| ty.is_weight()).collect();
    let types = if types.is_empty() { &all[..] } else { types };
    let test = |adapter: AdapterChoice| {
        let at = adapter.among(gpus).and_then(|at| gpus.get(at));
        let opened = Gpu::open(&GpuOptions { adapter, ..GpuOptions::default() });
        let (index, name) = match (&opened, at) {
            (Ok(gpu), _) => (gpu.report().index, gpu.report().name.clone()),
            (Err(_), Some(report)) => (report.index, report.name.clone()),
            // The adapter does not exist.
            (Err(error), None) => return Err(Failure::usage(format!("--device: {error}"))),
        };
        let found = opened.and_then(|gpu| self_test(&gpu, types, &mut || ControlFlow::Continue(())));
        Ok(TestedGpu { name, index, found })
    };
    choices.into_iter().map(test).collect()
}

impl TestedGpu {
    /// Prints a line about the GPU, and a table of its kernels.
    pub fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let name = one_line(&self.name);
        let found = match &self.found {
            Ok(found) => found,
            Err(error) => {
                return writeln!(out, "\nGPU {} {name} was not tested: {}", self.index, one_line(&error.to_string()));
            }
        };
        let seconds = found.milliseconds / 1e3;
        writeln!(out, "\nGPU {} {name}: {} ({seconds:.1} s)\n", self.index, conclusion(found))?;
        let mut lines = TextTable::new(&["kernel", "variant", "result", "ms"]);
        for row in &found.rows {
            let result = one_line(&row.outcome.to_string());
            lines.row([row.name(), row.text().to_owned(), result, format!("{:.1}", row.milliseconds)]);
        }
        write!(out, "{}", lines.text())
    }

    /// Formats the test results as JSON, or the reason that there are none.
    pub fn json(&self) -> Value {
        match &self.found {
            Ok(found) => json!({
                "conclusion": conclusion(found),
                "right": found.is_right(),
                "failed_features": found.failed_features(),
                "milliseconds": found.milliseconds,
                "rows": found.rows,
            }),
            Err(error) => json!({ "error": error.to_string() }),
        }
    }
}

/// Summarises all kernels of a device in one line.
fn conclusion(found: &SelfTest) -> String {
    let features: Vec<&str> = found.failed_features().into_iter().map(|feature| feature.name()).collect();
    match found.wrong_kernel() {
        Some(kernel) => format!("unusable, because the kernel `{}` is wrong", kernel.name()),
        None if features.is_empty() => format!("all {} kernels are right", found.rows.len()),
        None => format!("right without {}", features.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::gpu::{GpuFeature, KernelOutcome, KernelVerdict};

    use super::*;

    #[test]
    fn conclusions_name_what_is_wrong() {
        let row = |kernel: &str, feature, right| {
            let outcome = if right {
                KernelOutcome::Right { difference: 1e-6 }
            } else {
                KernelOutcome::Wrong { difference: None }
            };
            KernelVerdict { kernel: kernel.to_owned(), weights: None, feature, outcome, milliseconds: 1.0 }
        };
        let of = |rows: Vec<KernelVerdict>| conclusion(&SelfTest { rows, milliseconds: 3.0 });
        assert_eq!(of(vec![row("norm", None, true)]), "all 1 kernels are right");
        let subgroups = row("norm", Some(GpuFeature::Subgroups), false);
        assert_eq!(of(vec![row("norm", None, true), subgroups.clone()]), "right without subgroups");
        assert_eq!(of(vec![subgroups, row("norm", None, false)]), "unusable, because the kernel `norm` is wrong");
    }

    #[test]
    fn weights_are_named_in_any_case() {
        assert_eq!(parse_weights("q4_k"), Ok(TensorType::Q4_K));
        assert!(parse_weights("i32").is_err() && parse_weights("q9").is_err());
    }
}
