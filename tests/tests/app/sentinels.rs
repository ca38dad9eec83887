//! Steps in which a driver crashes the program. The next start disables the feature of the failed
//! step and answers.

#![allow(clippy::unwrap_used)]

use std::{fs, ops::ControlFlow, path::Path};

use thermocline_engine::gpu::{AdapterChoice, Fallbacks, FaultPoint, Faults, Gpu, GpuOptions, RiskyStep, self_test};
use thermocline_tests::{
    own_process,
    terminal::{command_in, run, thermocline},
};
#[cfg(unix)]
use thermocline_tests::{terminal::wait, wait::eventually};

/// A step on the software driver of the tests, and the sentence that reports it.
struct Step {
    name: &'static str,
    step: RiskyStep,
    why: &'static str,
    /// True if the adapter still computes after the failed step is disabled.
    computes: bool,
}

const STEPS: [Step; 5] = [
    Step {
        name: "enumeration",
        step: RiskyStep::Enumeration,
        why: "the program ended while it searched for GPUs",
        computes: false,
    },
    Step {
        name: "opening",
        step: RiskyStep::Opening,
        why: "the program ended while it opened the GPU",
        computes: false,
    },
    Step {
        name: "pipeline",
        step: RiskyStep::Pipeline,
        why: "the program ended while the kernel `subgroup_trial` was compiled",
        computes: true,
    },
    Step {
        name: "submission",
        step: RiskyStep::Submission,
        why: "the program ended during its first GPU submission",
        computes: false,
    },
    Step {
        name: "self-test",
        step: RiskyStep::SelfTest,
        why: "the program ended in the self-test of the kernel",
        computes: true,
    },
];

/// Opens the first adapter, tests it and crashes within a step. This is the part of another
/// process.
fn end_within(name: &str, cache: &Path) {
    let step = STEPS.iter().find(|it| it.name == name).unwrap().step;
    let (faults, fallbacks) = (Faults(Some((FaultPoint::Abort(step), 1))), Fallbacks::in_folder(cache));
    let gpu = Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), faults, fallbacks, ..GpuOptions::default() });
    let tested = gpu.and_then(|gpu| self_test(&gpu, &[], &mut || ControlFlow::Continue(())));
    eprintln!("went on: {tested:?}");
}

#[test]
fn steps_that_end_the_program_are_not_taken_again() {
    if let Some((name, cache)) = own_process::part().as_deref().and_then(|part| part.split_once(' ')) {
        return end_within(name, Path::new(cache));
    }
    let question = ["run", "-p", "A cat and a kite", "--temp", "0", "-n", "12", "--quiet", "--sparsity", "exact"];
    let want = thermocline(&[&question[..], &["--device", "cpu"]].concat()).ok();
    for Step { name, why, computes, .. } in STEPS {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let part = format!("{name} {}", cache.display());
        let ended = own_process::start("sentinels::steps_that_end_the_program_are_not_taken_again", &part).output();
        let ended = ended.unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && !said.contains("went on"), "{name}: {said}");
        assert!(fs::read_dir(&cache).unwrap().count() > 0, "{name}: no sentinel is left");
        let start = |args: &[&str]| run(command_in(folder.path(), args), b"");
        let answer = |device: &str| start(&[&question[..], &["--device", device]].concat());
        assert_eq!(answer("auto").ok(), want, "{name}");
        let asked = answer("0");
        assert!(asked.stderr.contains(why), "{name}: {}", asked.stderr);
        match computes {
            true => assert_eq!(asked.ok(), want, "{name}"),
            false => {
                assert!(asked.stderr.contains("hint: `thermocline devices --try-again"), "{name}: {}", asked.stderr);
                asked.refusal();
            }
        }
        let listed = start(&["devices"]).ok();
        assert!(listed.contains(why), "{name}: {listed}");
        let listed = start(&["devices", "--try-again"]).ok();
        assert!(!listed.contains(why) && listed.contains("GPU 0"), "{name}: {listed}");
        let again = answer("0");
        assert_eq!(again.stderr, "", "{name}");
        assert_eq!(again.ok(), want, "{name}");
    }
}

/// A self-test that a signal ends in the middle of a step. The signal is not the driver's failure.
#[test]
#[cfg(unix)]
fn signals_within_a_step_leave_no_sentinel() {
    use std::os::unix::process::ExitStatusExt;

    for (signal, code, number) in [("-TERM", None, Some(15)), ("-INT", Some(130), None)] {
        let folder = tempfile::tempdir().unwrap();
        let sentinels = || {
            let entries = fs::read_dir(folder.path().join("cache")).into_iter().flatten().flatten();
            entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("gpu-step-")).count()
        };
        let mut child = command_in(folder.path(), &["devices", "--test", "--device", "0"]).spawn().unwrap();
        eventually("a step of the self-test", || sentinels() > 0);
        let sent = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        let status = wait(&mut child);
        assert_eq!((status.code(), status.signal()), (code, number), "{signal}");
        assert_eq!(sentinels(), 0, "{signal}");
    }
}
